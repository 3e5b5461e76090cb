"""lance-context's own client reads through `freshet local` by another address alone: `RolloutStore` and `GenericStore.connect`."""

from __future__ import annotations

import base64
import json
import random
import urllib.error
import urllib.request

import lance
import pyarrow as pa
import pytest
from driver import Local, merge
from test_lance_context import Store, client, short
from test_local import SLOW, manifest


def plan(s: Store) -> list:
    ids = sorted(s.added)[:4]
    rollout = s.added[ids[0]]["rollout_id"]
    return [
        ["list"],
        ["list", {"limit": 7, "offset": 3}],
        ["list", {"filters": {"role": "tool"}}],
        ["list", {"filters": {"include_in_training": True, "problem_id": "problem-1"}}],
        ["get_trajectory", rollout],
        ["get", "nobody"],
        *[["get", i] for i in ids],
        *[["get_blob", i] for i in ids],
    ]


def sorted_rows(answer):
    return sorted(answer, key=lambda r: r["id"]) if isinstance(answer, list) else answer


def agrees(s: Store, url: str):
    """What the client reads through the server is what was added; `get` in the embedded store leaves some of it out."""
    rows = {i: {k: v for k, v in r.items() if k != "binary_payload"} for i, r in s.added.items()}
    ids = sorted(s.added)[:4]
    remote, embedded = client("rollout", url, plan(s)), client("rollout", s.uri, plan(s))
    listed, page, tools, some, trajectory, nobody = map(sorted_rows, remote[:6])
    assert listed == [rows[i] for i in sorted(rows)]
    assert page == sorted_rows(remote[0][3:10])
    for at in (0, 2, 3, 4):
        assert sorted_rows(remote[at]) == sorted_rows(embedded[at]), plan(s)[at]
    assert tools and all(r["role"] == "tool" for r in tools)
    assert trajectory and some is not None and nobody is None
    assert remote[6:10] == [rows[i] for i in ids]
    assert remote[10:14] == embedded[10:14]


def test_the_client_reads_pending_and_merged_rollouts_through_the_server(tmp_path, seed):
    s = Store(tmp_path, seed)
    s.write(3)
    folder = tmp_path / "manifests"
    folder.mkdir()
    manifest(folder, "run", s.uri, **SLOW)
    with Local("-f", folder) as local:
        url = f"http://{local.address}/run"
        agrees(s, url)
        [before] = client("rollout", url, [["version"]])
        merge(s.uri)
        agrees(s, url)
        [after] = client("rollout", url, [["version"]])
        assert after > before
        s.write(1, name="later")
        agrees(s, url)


def test_a_write_through_the_server_is_refused_and_says_where_writes_go(tmp_path, seed):
    s = Store(tmp_path, seed)
    s.write(1)
    folder = tmp_path / "manifests"
    folder.mkdir()
    manifest(folder, "run", s.uri, **SLOW)
    with Local("-f", folder) as local:
        row = {"id": "x", "rollout_id": "y"}
        [said] = client("rollout", f"http://{local.address}/run", [["refused", "add", [row]]])
        assert "RolloutStore.open(uri)" in said
        assert local.page("run", source="all", limit=1000)["has_more"] is False
        assert len(local.records("run", "all")) == len(s.added)


# Every type that a generic store declares.
SCHEMA = {
    "id": {"type": "string", "nullable": False}, "n": "int64", "i": "int32", "t": "timestamp", "b": "binary", "large": {"type": "binary", "blob": True},
    "f": "float64", "g": "float32", "o": "bool", "v": {"type": "vector", "dim": 3}, "s": {"type": "list", "item": {"type": "string"}},
    "w": {"type": "list", "item": {"type": "int64"}}, "x": {"type": "list", "item": {"type": "timestamp"}},
}  # fmt: skip


def thing(r: random.Random, name: str) -> dict:
    """A row with every column, or with its key alone."""
    if r.random() < 0.2:
        return {"id": name}
    return {
        "id": name, "n": r.choice([r.randrange(9), 2**60 + r.randrange(99), -(2**63)]), "i": r.randrange(-(2**31), 2**31), "t": r.randrange(10**15),
        "b": base64.b64encode(r.randbytes(9)).decode(), "large": base64.b64encode(r.randbytes(5000)).decode(), "f": short(r), "g": short(r),
        "o": r.random() < 0.5, "v": [short(r) for _ in range(3)], "s": ["é", "", "x" * r.randrange(5)], "w": [2**55 + 1, 0], "x": [1, -1],
    }  # fmt: skip


def test_a_generic_store_is_read_through_the_server_as_it_was_written(tmp_path, seed):
    rng, uri = random.Random(seed), tmp_path / "things.lance"
    rows, steps = {}, []
    for g in range(4):
        added = [thing(rng, f"{g}/{i} ü") for i in range(8)]
        rows |= {row["id"]: row for row in added}
        steps += [["add", added], ["flush"]]
    [*_, declared] = client("generic", uri, [*steps, ["schema"]], SCHEMA)
    small = {i: {k: v for k, v in row.items() if k != "large"} for i, row in rows.items()}
    ids = sorted(rows)[:5]
    folder = tmp_path / "manifests"
    folder.mkdir()
    manifest(folder, "things", uri, **SLOW)
    with Local("-f", folder) as local:
        url = f"http://{local.address}/things"
        versions = []
        for _ in range(2):
            steps = [["schema"], ["list"], ["list", {"limit": 7, "offset": 3}], ["list", {"filter": "n > 5 and o"}], ["get", "nobody"], ["version"]]
            steps += [["get", i] for i in ids] + [["get", i, {"columns": ["large", "n"]}] for i in ids]
            schema, listed, page, some, nobody, version, *got = client("generic", url, steps)
            # A metric that nobody declared is told by the writer alone.
            told = [[name, {k: v for k, v in spec.items() if k != "metric"}] for name, spec in declared["columns"]]
            assert [[name, {k: v for k, v in spec.items() if k != "metric"}] for name, spec in schema["columns"]] == told
            assert sorted_rows(listed) == [small[i] for i in sorted(rows)]
            assert page == listed[3:10]
            assert sorted_rows(some) == [small[i] for i in sorted(rows) if rows[i].get("n", 0) > 5 and rows[i].get("o")]
            assert nobody is None
            assert got[:5] == [small[i] for i in ids]
            assert got[5:] == [{k: v for k, v in rows[i].items() if k in ("id", "n", "large")} for i in ids]
            versions.append(version)
            merge(uri)
        assert versions[1] > versions[0]
        [said] = client("generic", url, [["refused", "add", [{"id": "x"}]]])
        assert "RolloutStore.open(uri)" in said or "own client" in said
        [said] = client("generic", url, [["refused", "list", {"filter": "n >"}]])
        assert "no SQL expression" in said


def test_a_table_that_is_no_generic_store_is_not_read_as_one(tmp_path):
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([pa.field("step", pa.int64(), nullable=False, metadata=key)])
    lance.write_dataset(pa.table({"step": [1]}, schema=schema), tmp_path / "steps.lance")
    lance.dataset(tmp_path / "steps.lance").initialize_mem_wal(maintained_indexes=[], unsharded=True)
    folder = tmp_path / "manifests"
    folder.mkdir()
    manifest(folder, "steps", tmp_path / "steps.lance", **SLOW)
    with Local("-f", folder) as local, pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{local.address}/api/v1/generic/steps")
    assert refused.value.code == 404
    assert json.load(refused.value)["error"]["code"] == "NO_GENERIC_STORE"
