"""Merges that are killed at any moment, and two at once, against pylance writers that go on updating and deleting."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import driver
import pytest
from driver import backlog, merge
from memwal import Delete, Table, same

SEEDS = range(1, 21) if os.environ.get("FRESHET_FULL") else range(1, 4)


class LiveWriter(threading.Thread):
    """One shard's writer: its keys are those of its number modulo 3; every fourth operation seals a generation."""

    def __init__(self, table: Table, k: int, seed: int, generations: int):
        super().__init__(name=f"writer {k}")
        self.t, self.k, self.n, self.r, self.error = table, k, generations, random.Random(f"{seed}/{k}"), None

    def run(self):
        try:
            with self.t.writer(f"s{self.k}", max_memtable_rows=40) as w:
                new = 300 + self.k
                for _ in range(self.n):
                    for _ in range(4):
                        mine = [n for n in range(self.k, new, 3)]
                        if self.r.random() < 0.3:
                            w.do(Delete(self.r.sample(mine, 10)))
                        elif self.r.random() < 0.6:
                            w.do(self.t.rows(self.r.sample(mine, 10)))
                        else:
                            w.do(self.t.rows(range(new, new + 30, 3)))
                            new += 30
                    w.sealed()
        except BaseException as e:  # told by the test, which joins all writers first
            self.error = e


def write(table: Table, seed: int, generations: int) -> list[LiveWriter]:
    writers = [LiveWriter(table, k, seed, generations) for k in range(3)]
    for w in writers:
        w.start()
    return writers


def done(writers: list[LiveWriter]):
    for w in writers:
        w.join()
        assert w.error is None, f"{w.name}: {w.error!r}"


def settled(table: Table):
    merge(table.uri)
    assert backlog(table.uri)["pending"]["generations"] == 0
    same(table)


@pytest.mark.parametrize("kind,index", [("int64", False), ("int64", True), ("composite", False), ("int16", False)])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_merge_that_is_killed_and_restarted_loses_doubles_and_resurrects_nothing(tmp_path, seed, kind, index):
    t = Table(tmp_path / "t.lance", seed, kind).create(range(300), index=index)
    r, writers, kills = random.Random(f"{seed}/{kind}/{index}"), write(t, seed, 25), 0
    while any(w.is_alive() for w in writers) or kills < 6:
        child = driver.start("merge", "--table", t.uri, "--until-fresh", "--max-generations", r.randint(1, 8))
        try:
            child.wait(r.uniform(0.02, 0.6))
        except subprocess.TimeoutExpired:
            child.kill()
            kills += 1
        said, _ = child.communicate(timeout=driver.PATIENCE)
        assert child.returncode in (0, -9), said
        if not any(w.is_alive() for w in writers) and child.returncode == 0:
            break
    done(writers)
    settled(t)


@pytest.mark.parametrize("index", [False, True], ids=["", "btree"])
@pytest.mark.parametrize("seed", SEEDS)
def test_two_merges_at_once_with_chunks_of_different_size_do_no_harm(tmp_path, seed, index):
    t = Table(tmp_path / "t.lance", seed).create(range(300), index=index)
    r, writers = random.Random(seed), write(t, seed, 25)
    while any(w.is_alive() for w in writers):
        pair = [driver.start("merge", "--table", t.uri, "--until-fresh", "--max-generations", r.choice([1, 2, 3, 5, 50])) for _ in range(2)]
        for child in pair:
            said, _ = child.communicate(timeout=driver.PATIENCE)
            assert child.returncode == 0, said
    done(writers)
    settled(t)


MERGE_STEPS = ["merge.begin", "merge.read", "merge.found", "merge.written", "merge.deletions", "merge.commit", "merge.committed"]
DRAIN_STEPS = ["drain.begin", "drain.write", "drain.written"]


@pytest.mark.parametrize("step", MERGE_STEPS + DRAIN_STEPS)
def test_a_merge_that_is_killed_at_a_named_step_is_finished_by_the_next(tmp_path, table, step):
    """A debug build stops at the step for good; meanwhile the writer goes on and another merge does all there is."""
    table.generation("s0", table.rows([1, 2, 300]), Delete([5]))
    table.generation("s1", table.rows([7, 301]), Delete([8]))
    sign = tmp_path / "reached"
    env = {"FRESHET_STOP_AT": step, "FRESHET_STOP_FILE": str(sign)}
    child = driver.start("merge", "--table", table.uri, "--until-fresh", "--drain", env=env)
    driver.eventually(step, sign.exists, child)
    table.generation("s0", table.rows([2, 5]), Delete([300, 1]))
    merge(table.uri, "--drain")
    same(table)
    table.generation("s1", table.rows([8]), Delete([7, 301]))
    child.kill()
    child.wait()
    settled(table)


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from memwal import Delete, Table
t = Table(sys.argv[2], int(sys.argv[3]))
t.truth = {}
w = t.writer("s0", max_memtable_rows=20)
for op in range(10**6):
    n = 10 * (op % 40)
    rows = t.rows(range(n, n + 10)) if op % 3 else Delete(range(n, n + 10))
    print("try", op, flush=True)
    w.do(rows)
    print("ack", op, flush=True)
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_killed_writer_acknowledged_is_merged_once_its_shard_is_opened_again(tmp_path, seed):
    """Until then its last entries are in no generation, and must not be merged."""
    t = Table(tmp_path / "t.lance", seed).create(range(400))
    r = random.Random(seed)
    args = [sys.executable, "-c", WRITER, str(Path(__file__).parent), t.uri, str(seed)]
    child = subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
    stop, acked, tried = r.randint(20, 60), -1, -1
    for line in child.stdout:
        word, op = line.split()
        acked, tried = (int(op), tried) if word == "ack" else (acked, int(op))
        if acked >= stop:
            child.kill()
    child.wait()
    merge(t.uri)
    t.generations = {}
    versions = replayed(t, seed, tried + 1)
    ids = {row["id"]: row["text"] for row in t.read()}
    assert any(ids == v for v in versions[: acked + 2]), "the base is no prefix of what the writer did"
    t.writer("s0").w.close()  # opening replays the tail, closing seals it
    merge(t.uri)
    ids = {row["id"]: row["text"] for row in t.read()}
    assert len(ids) == t.dataset().count_rows()
    assert ids in (versions[acked + 1], versions[tried + 1]), "an acknowledged operation is lost"


def replayed(t: Table, seed: int, ops: int) -> list[dict]:
    """The text of each row after every number of operations, as the writer's process made them."""
    twin = Table(t.uri, seed)
    now = {k[0]: row["text"] for k, row in t.base.items()}
    out = [dict(now)]
    for op in range(ops):
        n = 10 * (op % 40)
        if op % 3:
            now |= {row["id"]: row["text"] for row in twin.rows(range(n, n + 10))}
        else:
            for i in range(n, n + 10):
                now.pop(i, None)
        out.append(dict(now))
    return out
