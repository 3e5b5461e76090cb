"""What a user gets wrong, and what a store does wrong: the exit code, what is said, and that nothing was changed."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import driver
import lance
import pyarrow as pa
import pytest
from driver import CORRUPT, CREDENTIALS, INTERRUPTED, NOT_FOUND, OK, REFUSED, UNREACHABLE, USAGE, backlog, freshet, merge
from memwal import KEY, Delete, Table, differences, same

BOTH = pytest.mark.parametrize("command", ["merge", "backlog"])


def untouched(folder, command: str, uri, expect: int, *words: str, env=None):
    """Runs a command on a table; it must fail so, say each word, and leave the folder as it was."""
    before = driver.tree(folder)
    done = freshet(command, "--table", uri, expect=expect, env=env)
    assert driver.changes(before, driver.tree(folder)) == []
    for word in words:
        assert word.lower() in done.text.lower(), f"{word!r} is not said: {done.text}"
    assert "panicked" not in done.text, done.text
    return done


# -- what is named is not there, or is no table ------------------------------------------------------------------------


@BOTH
def test_a_missing_table_is_named_and_nothing_is_made(tmp_path, command):
    untouched(tmp_path, command, tmp_path / "nowhere.lance", NOT_FOUND, "nowhere.lance")


@BOTH
def test_a_folder_that_is_no_table_is_left_alone(tmp_path, command):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("hello")
    untouched(tmp_path, command, tmp_path / "folder", NOT_FOUND, "folder")


@BOTH
def test_a_file_is_no_table(tmp_path, command):
    (tmp_path / "file.lance").write_text("hello")
    untouched(tmp_path, command, tmp_path / "file.lance", NOT_FOUND, "file.lance")


@BOTH
def test_a_table_without_memwal_is_named_so_and_left_alone(tmp_path, command):
    lance.write_dataset(pa.table({"id": [1, 2, 3]}), tmp_path / "plain.lance")
    untouched(tmp_path, command, tmp_path / "plain.lance", NOT_FOUND, "MemWAL")


# -- tables that are refused -------------------------------------------------------------------------------------------


def test_a_users_own_tombstone_column_is_refused(tmp_path):
    sch = pa.schema([pa.field("id", pa.int64(), False, KEY), pa.field("_tombstone", pa.bool_())])
    uri = str(tmp_path / "t.lance")
    ds = lance.write_dataset(pa.table({"id": [1, 2], "_tombstone": [True, False]}, schema=sch), uri)
    ds.initialize_mem_wal(maintained_indexes=[], unsharded=True)
    untouched(tmp_path, "merge", uri, REFUSED, "_tombstone")


def test_a_table_that_was_overwritten_is_not_merged_over(table):
    table.generation("s0", table.rows([1, 2]))
    merge(table.uri)
    table.generation("s0", table.rows([3]))
    lance.write_dataset(table.arrow(table.rows([700])), table.uri, mode="overwrite")
    table.dataset().initialize_mem_wal(maintained_indexes=[], unsharded=True)
    untouched(table.uri, "merge", table.uri, REFUSED, "WentBack")
    assert "WentBack" in [a["reason"] for a in backlog(table.uri)["anomalies"]]


def test_a_table_that_was_restored_is_not_merged_over(table):
    table.generation("s0", table.rows([1, 2]))
    version = table.dataset().version
    merge(table.uri)
    table.generation("s0", table.rows([3]))
    ds = lance.dataset(table.uri, version=version)
    ds.restore()
    untouched(table.uri, "merge", table.uri, REFUSED, "WentBack")


def test_a_shard_whose_log_was_thrown_away_is_not_taken_for_merged(table):
    for n in range(3):
        table.generation("s0", table.rows([n]))
    merge(table.uri)
    subprocess.run(["rm", "-r", f"{table.uri}/_mem_wal"], check=True)
    table.generation("s0", table.rows([5]))
    untouched(table.uri, "merge", table.uri, REFUSED, "WatermarkAhead")
    # Nor once it has come past what was merged before, whoever looks first then.
    for n in range(4):
        table.generation("s0", table.rows([n]))
    untouched(table.uri, "merge", table.uri, REFUSED, "WatermarkAhead")
    freshet("merge", "--table", table.uri, "--drain", expect=REFUSED)
    merge(table.uri, "--drain", "--acknowledge", "WatermarkAhead")
    same(table, table.truth)
    table.generation("s0", table.rows([3, 9]), Delete([0]))
    merge(table.uri)
    same(table, table.truth)


# -- broken files ------------------------------------------------------------------------------------------------------


def files(table: Table, shard: str, pattern: str) -> list[Path]:
    return sorted(Path(table.uri, "_mem_wal", table.shard_id(shard)).glob(pattern))


def test_a_truncated_generation_stops_its_shard_and_no_other(table):
    for n in range(3):
        table.generation("good", table.rows([2 * n]), Delete([100 + 2 * n]))
    table.generation("bad", table.rows([1]))
    healthy = dict(table.truth)
    table.generation("bad", table.rows(range(3, 90, 2)))
    table.generation("bad", table.rows([5]))
    broken = files(table, "bad", "*_gen_2/data/*.lance")[0]
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    before = driver.tree(Path(table.uri, "_mem_wal", table.shard_id("bad")))
    done = merge(table.uri, expect=CORRUPT)
    assert "_gen_2" in done.text, done.text
    same(table, healthy)
    assert [c for c in driver.changes(before, driver.tree(Path(table.uri, "_mem_wal", table.shard_id("bad")))) if "_gen_" in c] == []
    pending = {s["shard"]: s["pending"] for s in backlog(table.uri)["shards"]}
    assert pending[table.shard_id("bad")] == 2 and pending[table.shard_id("good")] == 0
    # The same again: still corrupt, and no commit for nothing.
    version = table.dataset().version
    merge(table.uri, expect=CORRUPT)
    assert table.dataset().version == version


def test_a_missing_generation_is_named(table):
    table.generation("bad", table.rows([1]))
    subprocess.run(["rm", "-r", str(files(table, "bad", "*_gen_1")[0])], check=True)
    untouched(table.uri, "merge", table.uri, CORRUPT, "_gen_1")


@pytest.mark.parametrize("how", ["noise", "cut", "empty"])
def test_an_unreadable_shard_manifest_is_named(table, how):
    table.generation("bad", table.rows([1]))
    for manifest in files(table, "bad", "manifest/*.binpb"):
        whole = manifest.read_bytes()
        manifest.write_bytes({"noise": b"\xff" * 64, "cut": whole[: len(whole) // 2], "empty": b""}[how])
    untouched(table.uri, "merge", table.uri, CORRUPT, table.shard_id("bad")[:8])


@BOTH
@pytest.mark.parametrize("how", ["noise", "cut", "empty"])
def test_an_unreadable_base_manifest_is_named(table, command, how):
    table.generation("s0", table.rows([1]))
    for manifest in Path(table.uri, "_versions").glob("*.manifest"):
        whole = manifest.read_bytes()
        manifest.write_bytes({"noise": b"\xff" * 64, "cut": whole[: len(whole) // 2], "empty": b""}[how])
    untouched(table.uri, command, table.uri, CORRUPT, "manifest")


# -- stores that do not let us -----------------------------------------------------------------------------------------


def mount(*args) -> bool:
    return os.geteuid() == 0 and subprocess.run(["mount", *args], capture_output=True).returncode == 0


@pytest.fixture
def mounted():
    """Folders to unmount at the end."""
    places: list = []
    yield places
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_folder_that_is_read_only_is_named_and_can_still_be_looked_at(tmp_path, table, mounted):
    table.generation("s0", table.rows([1, 2]))
    place = tmp_path / "readonly"
    place.mkdir()
    if not mount("--bind", str(tmp_path), str(place)):
        pytest.skip("no right to mount here")
    mounted.append(place)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
    uri = place / Path(table.uri).name
    done = untouched(table.uri, "merge", uri, UNREACHABLE)
    assert "read-only" in done.text.lower() or "permission" in done.text.lower(), done.text
    assert backlog(uri)["pending"]["generations"] == 1
    merge(table.uri)
    same(table)


def test_a_full_disk_is_named_and_the_merge_succeeds_once_there_is_room(tmp_path, mounted, seed):
    place = tmp_path / "small"
    place.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)):
        pytest.skip("no right to mount here")
    mounted.append(place)
    t = Table(place / "t.lance", seed).create(range(50))
    t.generation("s0", [r | {"payload": t.rng.randbytes(1_500_000)} for r in t.rows([1, 2])])
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as f:
        try:
            while f.write(b"\0" * 4096):
                pass
        except OSError:
            pass
    done = freshet("merge", "--table", t.uri, expect=UNREACHABLE)
    assert "space" in done.text.lower() or "full" in done.text.lower(), done.text
    wrong = differences(t.read(), t.base, t.names)
    assert not wrong, wrong[:3]
    ballast.unlink()
    merge(t.uri)
    same(t)


class Refusing(http.server.BaseHTTPRequestHandler):
    """An object store that knows nobody."""

    def refuse(self):
        body = b"<?xml version='1.0'?><Error><Code>InvalidAccessKeyId</Code><Message>who are you</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = refuse

    def log_message(self, *_):
        pass


KEYS = {"AWS_ACCESS_KEY_ID": "wrong", "AWS_SECRET_ACCESS_KEY": "wrong", "AWS_EC2_METADATA_DISABLED": "true"}
S3 = "s3://bucket/run.lance"


def s3(command: str, endpoint: str, expect: int):
    args = ["--storage", f"endpoint={endpoint}", "--storage", "region=us-east-1", "--storage", "allowHTTP=true"]
    return freshet(command, "--table", S3, *args, expect=expect, env=KEYS)


@BOTH
def test_wrong_credentials_are_named(command):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = s3(command, f"http://127.0.0.1:{server.server_port}", CREDENTIALS)
    server.shutdown()
    assert "credential" in done.text.lower() and "wrong" not in done.text, done.text


@BOTH
def test_a_store_that_does_not_answer_is_named(command):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"127.0.0.1:{s.getsockname()[1]}"
        done = s3(command, f"http://{address}", UNREACHABLE)
    assert address in done.text, done.text


# -- what is typed wrong -----------------------------------------------------------------------------------------------

WRONG_FLAGS = [
    ["merge"],
    ["backlog"],
    ["nonsense"],
    [],
    ["merge", "--table"],
    ["merge", "--table", "{t}", "--nonsense"],
    ["merge", "--table", "{t}", "--max-bytes", "12 elephants"],
    ["merge", "--table", "{t}", "--max-bytes", "0"],
    ["merge", "--table", "{t}", "--max-generations", "-1"],
    ["merge", "--table", "{t}", "--max-generations", "0"],
    ["merge", "--table", "{t}", "-o", "yaml"],
    ["merge", "--table", "{t}", "--storage", "nothing"],
    ["merge", "--table", "{t}", "--storage", "colour=blue"],
    ["backlog", "--table", ""],
    ["backlog", "--table", "ftp://host/x"],
    ["backlog", "--table", "s3://user:hunter2@bucket/x"],
    ["backlog", "--table", "s3://bucket/x?versionId=1"],
    ["local", "-f", "{dir}/missing.yaml"],
    ["local", "--table", "no-uri"],
    ["local", "--listen", "nowhere"],
    ["demo", "--seconds", "soon"],
]


@pytest.mark.parametrize("args", WRONG_FLAGS, ids=" ".join)
def test_a_wrong_command_line_is_a_usage_error(tmp_path, table, args):
    before = driver.tree(tmp_path)
    done = freshet(*(a.format(t=table.uri, dir=tmp_path) for a in args), expect=USAGE)
    assert driver.changes(before, driver.tree(tmp_path)) == []
    assert done.err and "hunter2" not in done.text and "panicked" not in done.text, done.text


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["merge", "--help"], ["backlog", "--help"], ["local", "--help"], ["demo", "--help"], ["crds", "--help"]], ids=" ".join)
def test_help_is_there(args):
    assert "freshet" in freshet(*args, expect=OK).out


def test_the_exit_codes_are_in_the_help():
    said = freshet("merge", "--help").out
    for code in (NOT_FOUND, CREDENTIALS, UNREACHABLE, CORRUPT, REFUSED, INTERRUPTED):
        assert str(code) in said


BAD_MANIFESTS = {
    "not yaml": "a: [",
    "another kind": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n",
    "no table": "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata: {name: a}\nspec: {}\n",
    "an unknown field": "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata: {name: a}\nspec:\n  table: {uri: 'TABLE'}\n  frehsness: {target: 60s}\n",
    "a bad duration": "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata: {name: a}\nspec:\n  table: {uri: 'TABLE'}\n  freshness: {target: soon}\n",
    "credentials in the address": "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata: {name: a}\nspec:\n  table: {uri: 's3://me:hunter2@bucket/x'}\n",
}


@pytest.mark.parametrize("what", BAD_MANIFESTS)
def test_a_bad_manifest_is_named_with_its_file_and_line(tmp_path, table, what):
    file = tmp_path / "bad.yaml"
    file.write_text(BAD_MANIFESTS[what].replace("TABLE", table.uri))
    done = freshet("local", "-f", file, "--listen", "127.0.0.1:0", expect=USAGE)
    assert "bad.yaml:" in done.text and "hunter2" not in done.text, done.text


# -- a person who changes their mind -----------------------------------------------------------------------------------


def test_an_interrupted_merge_leaves_a_whole_prefix(table):
    states = [dict(table.base)]
    for n in range(60):
        table.generation("s0", table.rows([n, 1000 + n]), Delete([100 + n]))
        states.append(dict(table.truth))
    version = table.dataset().version
    child = driver.start("merge", "--table", table.uri, "--until-fresh", "--max-generations", "1")
    driver.eventually("the first commit", lambda: table.dataset().version > version, child)
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=driver.PATIENCE)
    assert child.returncode == INTERRUPTED, said
    rows = table.read()
    assert any(not differences(rows, state, table.names) for state in states), differences(rows, states[-1], table.names)[:3]
    merge(table.uri)
    same(table)
