"""`freshet local` over manifests: it keeps tables fresh, serves them by source, and follows its manifests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import lance
import pytest
from driver import PATIENCE, Local, backlog, eventually, merge
from memwal import Delete, Table, differences, same

PYTHON = os.environ.get("LANCE_CONTEXT_PYTHON", "python3")
EXAMPLE = Path(__file__).parents[2] / "examples" / "gymnasium_rollouts.py"


def manifest(folder: Path, name: str, uri, annotations: dict | None = None, **spec) -> Path:
    """An Experiment's file. JSON is YAML."""
    file = folder / f"{name}.yaml"
    body = {"apiVersion": "freshet.dev/v1alpha1", "kind": "Experiment", "metadata": {"name": name, "annotations": annotations or {}}, "spec": {"table": {"uri": str(uri)}} | spec}
    part = folder / f".{name}.part"
    part.write_text(json.dumps(body, indent=2))
    part.rename(file)
    return file


SLOW = {"freshness": {"target": "30m", "mergeAt": {"generations": 100000, "bytes": "100Gi"}}}
FAST = {"freshness": {"target": "2s", "mergeAt": {"generations": 1}}}


@pytest.fixture
def manifests(tmp_path) -> Path:
    folder = tmp_path / "manifests"
    folder.mkdir()
    return folder


def names(body) -> list[str]:
    items = body["experiments"] if isinstance(body, dict) else body
    return sorted(i["name"] for i in items)


def keys(records: list[dict]) -> list[int]:
    return sorted(r["id"] for r in records)


def texts(records: list[dict]) -> dict:
    assert len({r["id"] for r in records}) == len(records), "a key is there twice"
    return {r["id"]: r["text"] for r in records}


def wanted(rows: dict) -> dict:
    return {k[0]: r["text"] for k, r in rows.items()}


def test_the_three_sources_tell_one_story_before_and_after_the_merge(tmp_path, manifests, table):
    table.generation("s0", table.rows([0, 2, 500]), Delete([4]))
    table.generation("s1", table.rows([1, 501]), Delete([3]))
    table.generation("s0", table.rows([2, 502]))
    changed = {k: r for k, r in table.truth.items() if table.base.get(k) != r}
    manifest(manifests, "run", table.uri, **SLOW)
    with Local("-f", manifests) as local:
        assert names(local.get("/api/v1/experiments")[1]) == ["run"]
        assert texts(local.records("run", "fragments")) == wanted(table.base)
        assert texts(local.records("run", "wal")) == wanted(changed)
        assert texts(local.records("run", "all")) == wanted(table.truth)
        same(table, table.base)
        manifest(manifests, "run", table.uri, **FAST)  # the file changes: no restart
        eventually("the merge", lambda: table.dataset().count_rows() == len(table.truth), local.child)
        eventually("an empty backlog", lambda: backlog(table.uri)["pending"]["generations"] == 0, local.child)
        assert texts(local.records("run", "fragments")) == wanted(table.truth)
        assert local.records("run", "wal") == []
        assert texts(local.records("run", "all")) == wanted(table.truth)
        same(table)
        assert local.stop(signal.SIGINT) in (0, 130)


def test_a_page_says_what_it_is(manifests, table):
    manifest(manifests, "run", table.uri, **SLOW)
    with Local("-f", manifests) as local:
        first = local.page("run")
        assert (first["source"], first["offset"], first["has_more"]) == ("fragments", 0, True)
        assert len(first["records"]) == first["limit"]
        last = local.page("run", source="", limit=7, offset=196)
        assert (last["source"], last["offset"], last["has_more"], len(last["records"])) == ("fragments", 196, False, 4)
        assert keys(local.records("run", "fragments", limit=7)) == list(range(200))
        assert local.page("run", offset=100000)["records"] == []


@pytest.mark.parametrize("query", [{"source": "bogus"}, {"limit": "many"}, {"limit": "-1"}, {"offset": "-1"}], ids=str)
def test_a_wrong_question_is_a_bad_request(manifests, table, query):
    manifest(manifests, "run", table.uri, **SLOW)
    with Local("-f", manifests) as local:
        status, body = local.get("/api/v1/experiments/run/records", **query)
        assert status == 400, body
        if "source" in query:
            assert all(word in json.dumps(body) for word in ("bogus", "fragments", "wal", "all")), body


def test_what_is_not_there_is_not_found(manifests, table):
    manifest(manifests, "run", table.uri, **SLOW)
    with Local("-f", manifests) as local:
        assert local.get("/api/v1/experiments/nobody")[0] == 404
        assert local.get("/api/v1/experiments/nobody/records")[0] == 404
        assert local.get("/nonsense")[0] == 404
        assert local.get("/api/v1/experiments/run")[0] == 200


def test_health_and_metrics_are_served(manifests, table):
    table.generation("s0", table.rows([1]))
    manifest(manifests, "run", table.uri, **SLOW)
    with Local("-f", manifests) as local:
        assert local.get("/healthz")[0] == 200
        said = eventually("the backlog's gauge", lambda: [ln for ln in local.get("/metrics")[1].splitlines() if "pending_generations" in ln and not ln.startswith("#")], local.child)
        assert any(ln.split()[-1] in ("1", "1.0") for ln in said), said


def test_tables_on_the_command_line_are_kept_fresh_too(tmp_path, table):
    table.generation("s0", table.rows([1, 2, 900]))
    with Local("--table", f"mine={table.uri}") as local:
        assert texts(local.records("mine", "all")) == wanted(table.truth)


def test_a_suspended_experiment_is_served_and_not_merged(manifests, table):
    other = Table(str(table.uri).replace("rollouts", "other"), 2).create(range(50))
    for t in (table, other):
        t.generation("s0", t.rows([0, 900]))
    manifest(manifests, "still", table.uri, suspend=True, **FAST)
    manifest(manifests, "moving", other.uri, **FAST)
    with Local("-f", manifests) as local:
        eventually("the other's merge", lambda: other.dataset().count_rows() == len(other.truth), local.child)
        assert backlog(table.uri)["pending"]["generations"] == 1
        assert texts(local.records("still", "all")) == wanted(table.truth)
        same(table, table.base)


def test_an_experiment_appears_and_goes_with_its_file(manifests, table):
    other = Table(str(table.uri).replace("rollouts", "other"), 2).create(range(5))
    manifest(manifests, "one", table.uri, **SLOW)
    with Local("-f", manifests) as local:
        file = manifest(manifests, "two", other.uri, **SLOW)
        eventually("the second", lambda: names(local.get("/api/v1/experiments")[1]) == ["one", "two"], local.child)
        file.unlink()
        eventually("its end", lambda: names(local.get("/api/v1/experiments")[1]) == ["one"], local.child)
        assert local.get("/api/v1/experiments/two/records")[0] == 404
    assert other.dataset().count_rows() == 5, "the table stays"


def test_every_answer_is_one_of_the_states_while_a_writer_writes_and_merges_run(manifests, table):
    """A page of all keys of `all`, taken at any moment, is the state after some generation, and never an older one than before."""
    manifest(manifests, "run", table.uri, **FAST)
    with Local("-f", manifests) as local:
        states, at = [wanted(table.base)], 0
        for g in range(15):
            table.generation("s0", table.rows([g, 300 + g]), Delete([100 + g, 299 + g]))
            states.append(wanted(table.truth))
            got = texts(local.page("run", source="all", limit=1000)["records"]) if g % 2 else texts(local.records("run", "all", limit=1000))
            here = next((i for i in range(at, len(states)) if states[i] == got), None)
            assert here is not None, f"{len(got)} records are no state from {at} on"
            at = here
        eventually("freshness", lambda: backlog(table.uri)["pending"]["generations"] == 0, local.child)
        assert not differences(table.read(), table.truth, table.names)


def test_a_local_that_is_killed_goes_on_where_it_was(manifests, table):
    manifest(manifests, "run", table.uri, **FAST)
    for turn in range(4):
        with Local("-f", manifests) as local:  # leaving it is SIGKILL
            table.generation("s0", table.rows([turn, 400 + turn]), Delete([50 + turn]))
            table.generation("s1", table.rows([60 + turn]))
            eventually("a merge", lambda: backlog(table.uri)["pending"]["generations"] < 2, local.child)
    with Local("-f", manifests) as local:
        eventually("freshness", lambda: backlog(table.uri)["pending"]["generations"] == 0, local.child)
    same(table)


def test_a_shard_that_is_ahead_is_merged_once_its_manifest_acknowledges_it(manifests, table):
    for n in range(3):
        table.generation("s0", table.rows([n]))
    merge(table.uri)
    shutil.rmtree(f"{table.uri}/_mem_wal")
    table.generation("s0", table.rows([5]))
    is_merged_once_acknowledged(manifests, table, "WatermarkAhead")


def test_a_table_that_was_restored_is_merged_once_its_manifest_acknowledges_it(manifests, table):
    table.generation("s0", table.rows([1, 2]))
    version = table.dataset().version
    merge(table.uri)
    table.generation("s0", table.rows([3]))
    lance.dataset(table.uri, version=version).restore()
    is_merged_once_acknowledged(manifests, table, "WentBack")


def is_merged_once_acknowledged(manifests, table, reason: str):
    before = table.dataset().version
    manifest(manifests, "run", table.uri, **FAST)
    with Local("-f", manifests) as local:
        eventually(reason, lambda: reason in json.dumps(local.get("/api/v1/experiments/run")[1]), local.child)
        assert table.dataset().version == before, "nothing is merged before it is acknowledged"
        manifest(manifests, "run", table.uri, {"freshet.dev/acknowledge": f"Nonsense, {reason}"}, **FAST)
        eventually("the merge", lambda: not differences(table.read(), table.truth, table.names), local.child)
        eventually("freshness", lambda: backlog(table.uri)["pending"]["generations"] == 0, local.child)
        table.generation("s0", table.rows([7, 900]))
        eventually("the next merge", lambda: not differences(table.read(), table.truth, table.names), local.child)
        assert reason not in json.dumps(local.get("/api/v1/experiments/run")[1])


def example(uri, first: int, episodes: int, *more) -> str:
    args = [PYTHON, str(EXAMPLE), str(uri), "--first", str(first), "--episodes", str(episodes), *more]
    done = subprocess.run(args, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_episodes_of_a_gymnasium_environment_are_kept_fresh(tmp_path, manifests):
    """The example of the documentation: rollouts recorded while `freshet local` merges behind the writer."""
    uri = tmp_path / "cartpole.rollout.lance"
    told = [json.loads(line) for line in example(uri, 0, 9, "--print").splitlines()]
    truth = {r["id"]: r for r in told}
    example(uri, 0, 3)
    manifest(manifests, "cartpole", uri, **FAST)
    with Local("-f", manifests) as local:
        for first in (3, 6):
            example(uri, first, 3)
            written = {i for i, r in truth.items() if int(r["rollout_id"].rsplit("-", 1)[1]) < first + 3}
            assert set(r["id"] for r in local.records("cartpole", "all")) == written
        eventually("freshness", lambda: backlog(uri)["pending"]["generations"] == 0, local.child)
        served = {r["id"]: r for r in local.records("cartpole", "fragments")}
        assert local.records("cartpole", "wal") == []
    assert served.keys() == truth.keys()
    for i, want in truth.items():
        assert {k: served[i][k] for k in ("rollout_id", "role", "content", "reward", "sequence_order")} == {
            k: want.get(k) for k in ("rollout_id", "role", "content", "reward", "sequence_order")
        }
    ds = lance.dataset(str(uri))
    assert ds.count_rows() == len(truth)
    assert {r["id"]: r["score"] for r in ds.to_table(columns=["id", "score"]).to_pylist()} == {i: r.get("score") for i, r in truth.items()}
