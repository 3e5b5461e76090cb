"""Stores that lance-context 0.6.7 (on Lance 9) writes, merged by the binary, while that client lists, gets and writes."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import lance
import pytest
from driver import PATIENCE, REFUSED, backlog, merge

PYTHON = os.environ.get("LANCE_CONTEXT_PYTHON", "python3")
# Large text that `get` answers from the base table and leaves out from a generation.
APART = {"model_input_string", "model_output_string", "rationale", "problem_text", "user_metadata"}


def client(kind: str, uri, steps: list, schema: dict | None = None) -> list:
    """One process of the client: the answers to each step."""
    plan = {"steps": steps} | ({"schema": schema} if schema else {})
    script = Path(__file__).with_name("lance_context_client.py")
    done = subprocess.run([PYTHON, str(script), kind, str(uri)], input=json.dumps(plan), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, f"lance-context: {done.stderr[-2000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def short(r: random.Random) -> float:
    """A number that a float32 and a JSON text both hold exactly."""
    return r.randrange(-1024, 1024) / 16


def record(r: random.Random, name: str) -> dict:
    """A rollout record with every field filled."""
    text = lambda: r.choice(["plain", "né 🦀 \"q\" 'x'\n", "long " * 300])  # noqa: E731
    n, m = r.randrange(1, 6), r.randrange(1, 6)
    payload = r.randbytes(r.choice([1, 100, 40_000]))
    at = dt.datetime(2026, 1, 1) + dt.timedelta(microseconds=r.randrange(10**13))
    return {
        "id": name, "rollout_id": f"rollout-{r.randrange(5)}", "problem_id": f"problem-{r.randrange(3)}", "dataset": "Ωset",
        "sequence_order": r.randrange(100), "role": r.choice(["assistant", "tool", "grade", "artifact"]),
        "created_at": at.isoformat(timespec="microseconds") + "Z", "content": text(), "content_type": "application/json",
        "model_input_string": text(), "model_output_string": text(), "rationale": text(), "problem_text": text(), "user_metadata": text(),
        "input_tokens": [r.randrange(2**31) for _ in range(n)], "output_tokens": [r.randrange(50_000) for _ in range(m)],
        "num_input_tokens": n, "num_output_tokens": m, "output_logprobs": [short(r) for _ in range(m)], "input_logprobs": [short(r) for _ in range(n)],
        "ref_logprobs": [short(r) for _ in range(m)], "loss_mask": [r.randrange(2) for _ in range(m)], "advantage": short(r), "reward": short(r),
        "raw_reward": short(r), "grader_id": "grader-1", "score": short(r), "include_in_training": r.random() < 0.5, "exclude_reason": "too long",
        "policy_version": f"step-{r.randrange(100)}", "relationships": [{"target_id": "t1", "relation": "parent", "weight": 0.5}],
        "binary_payload": payload, "payload_size": len(payload), "payload_checksum": f"sum-{r.randrange(10**6)}", "artifact_type": "image/png",
        "metadata": {"z": r.randrange(9), "a": ["é", None, True], "n": {"k": "v"}},
    }  # fmt: skip


def wire(rec: dict) -> dict:
    return {k: {"base64": base64.b64encode(v).decode()} if isinstance(v, bytes) else v for k, v in rec.items()}


class Store:
    """A RolloutStore, and beside it what was added, by id."""

    def __init__(self, folder: Path, seed: int):
        self.uri, self.rng, self.added = folder / "run.rollout.lance", random.Random(seed), {}

    def write(self, generations: int, rows: int = 12, name="r"):
        """A process of the client that adds and flushes."""
        steps = []
        for g in range(generations):
            recs = [record(self.rng, f"{name}-{g:02}-{i:03}") for i in range(rows)]
            self.added |= {rec["id"]: rec for rec in recs}
            steps += [["add", [wire(rec) for rec in recs]], ["flush"]]
        client("rollout", self.uri, steps)

    def listed_is_right(self):
        """What the client itself lists and gets is what was added."""
        ids = self.rng.sample(sorted(self.added), min(6, len(self.added)))
        listed, missing, *got = client("rollout", self.uri, [["list"], ["get", "nobody"]] + [["get", i] for i in ids] + [["get_blob", i] for i in ids])
        assert sorted(r["id"] for r in listed) == sorted(self.added)
        for r in listed:
            want = {k: v for k, v in self.added[r["id"]].items() if k != "binary_payload"}
            assert r == want
        assert missing is None
        for i, one, blob in zip(ids, got, got[len(ids) :]):
            want = {k: v for k, v in self.added[i].items() if k != "binary_payload"}
            assert one in (want, {k: v for k, v in want.items() if k not in APART})
            assert base64.b64decode(blob["base64"]) == self.added[i]["binary_payload"]

    def base_is(self, added: dict):
        """What an ordinary reader of Lance 14 finds, physically."""
        ds = lance.dataset(str(self.uri))
        rows = ds.to_table().to_pylist()
        assert ds.count_rows() == len(rows)
        assert sorted(r["id"] for r in rows) == sorted(added)
        for r in rows:
            want = added[r["id"]]
            at = dt.datetime.fromisoformat(want["created_at"][:-1])
            meta = json.loads(r["metadata"])
            assert r | {"metadata": meta} == want | {"created_at": at}


def test_rollouts_with_every_field_are_the_same_before_and_after_merges(tmp_path, seed):
    s = Store(tmp_path, seed)
    s.write(4)
    s.listed_is_right()
    s.base_is({})
    assert backlog(s.uri)["pending"]["generations"] == 4
    merge(s.uri)
    s.base_is(s.added)
    s.listed_is_right()


def test_the_client_goes_on_writing_after_a_merge_and_is_merged_again(tmp_path, seed):
    s = Store(tmp_path, seed)
    for turn in range(3):
        s.write(2, name=f"turn{turn}")
        merge(s.uri)
        s.base_is(s.added)
        s.listed_is_right()


def test_a_log_that_was_thrown_away_is_merged_from_its_start_once_somebody_says_so(tmp_path, seed):
    """The client always writes one shard id, so that its counter begins below what was merged before."""
    s = Store(tmp_path, seed)
    s.write(2, name="first")
    merge(s.uri)
    shutil.rmtree(s.uri / "_mem_wal")
    s.write(4, name="second")
    assert "WatermarkAhead" in merge(s.uri, "--drain", expect=REFUSED).text
    merge(s.uri, "--drain", "--acknowledge", "WatermarkAhead")
    s.base_is(s.added)
    s.listed_is_right()
    s.write(1, name="third")
    merge(s.uri)
    s.base_is(s.added)
    s.listed_is_right()


def test_the_clients_backlog_is_counted_though_its_manifests_carry_no_sizes(tmp_path, seed):
    s = Store(tmp_path, seed)
    s.write(3)
    pending = backlog(s.uri)["pending"]
    assert pending["generations"] == 3
    assert pending["rows"] in (None, 36), "unknown, or right; never a wrong number"
    assert pending["oldest"] is not None


def test_only_an_id_and_a_rollout_are_needed(tmp_path):
    uri = tmp_path / "small.rollout.lance"
    client("rollout", uri, [["add", [{"id": "a", "rollout_id": "b"}]], ["flush"]])
    before = client("rollout", uri, [["list"]])
    merge(uri)
    assert client("rollout", uri, [["list"]]) == before
    assert lance.dataset(str(uri)).count_rows() == 1


def test_more_roles_than_the_dictionary_of_roles_can_number_stay_readable(tmp_path, seed):
    """The column is a dictionary of at most 128 values a file; four generations together hold 320."""
    s = Store(tmp_path, seed)
    steps = []
    for g in range(4):
        recs = [record(s.rng, f"g{g}-{i}") | {"role": f"role-{g}-{i}"} for i in range(80)]
        s.added |= {rec["id"]: rec for rec in recs}
        steps += [["add", [wire(rec) for rec in recs]], ["flush"]]
    client("rollout", s.uri, steps)
    merge(s.uri)
    s.base_is(s.added)


THINGS = {"id": {"type": "string", "nullable": False}, "user": "string", "score": "float32", "n": "int64", "ok": "bool", "tags": {"type": "list", "item": {"type": "string"}}}


def things(r: random.Random, numbers) -> list[dict]:
    return [{"id": f"t{i}", "user": f"ü{i}", "score": short(r), "n": r.randrange(2**60), "ok": True, "tags": ["x", "y"][: i % 3]} for i in numbers]


def test_a_store_that_its_own_client_merged_before_has_a_gap_and_is_merged(tmp_path, seed):
    """`cleanup_wal` appends two generations and forgets them without a mark: what is pending starts at the third."""
    r, uri = random.Random(seed), tmp_path / "things.lance"
    sets = [things(r, range(20 * g, 20 * g + 20)) for g in range(4)]
    step = lambda rows: [["add", rows], ["flush"]]  # noqa: E731
    client("generic", uri, [*step(sets[0]), *step(sets[1]), ["cleanup_wal"], *step(sets[2]), *step(sets[3])], THINGS)
    report = backlog(uri)
    assert report["base"]["rows"] == 40 and report["pending"]["generations"] == 2, report
    merge(uri)
    rows = lance.dataset(str(uri)).to_table().to_pylist()
    want = {t["id"]: t for rows_ in sets for t in rows_}
    assert len(rows) == len(want)
    assert {r["id"]: {k: r[k] for k in THINGS} for r in rows} == want


@pytest.mark.parametrize("order", ["ours then theirs", "theirs then ours"])
def test_the_clients_clean_up_and_ours_by_turns_double_nothing(tmp_path, seed, order):
    r, uri = random.Random(seed), tmp_path / "things.lance"
    added: dict = {}
    for turn in range(3):
        rows = things(r, range(10 * turn, 10 * turn + 15))
        added |= {t["id"]: t for t in rows}
        theirs = [["cleanup_wal"]] if order == "theirs then ours" else []
        client("generic", uri, [["add", rows], ["flush"], *theirs], THINGS)
        merge(uri)
        if order == "ours then theirs":
            client("generic", uri, [["cleanup_wal"]])
    merge(uri)
    ids = [x["id"] for x in lance.dataset(str(uri)).to_table(columns=["id"]).to_pylist()]
    assert sorted(ids) == sorted(added)
