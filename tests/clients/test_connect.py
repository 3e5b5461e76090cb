"""lance-context's own client reads through `freshet local` by another address alone: RolloutStore.connect(url, name)."""

from __future__ import annotations

from driver import Local, merge
from test_lance_context import Store, client
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
