"""Merge throughput beside the other clients' own: in one run, in turn, on copies of the same tables.

    FRESHET=target/release/freshet PY -m benches.clients     (make bench sets both venvs up)

Measured inside each client's process, so that no interpreter's start counts: `freshet merge` reports its own time.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

import lance
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

os.environ["RUST_LOG"] = "off"  # a client logs its index of the WAL as an error, once a merge
FRESHET = os.environ["FRESHET"]
LC = os.environ["LANCE_CONTEXT_PYTHON"]
KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("ver", pa.int64()), pa.field("name", pa.string())])
SHARD = str(uuid.UUID(int=7))
ROUNDS = 3
GENERATIONS = 400


def rows(ids, ver):
    ids = list(ids)
    return pa.table({"id": ids, "ver": [ver] * len(ids), "name": [f"n{i}-v{ver}" for i in ids]}, schema=SCHEMA)


def make(uri, base, generations, size):
    """Half updates of old rows, half new ones; every tenth generation deletes ten."""
    lance.write_dataset(rows(range(base), 0), uri)
    lance.dataset(uri).initialize_mem_wal(maintained_indexes=[], unsharded=True)
    w = lance.dataset(uri).mem_wal_writer(SHARD, max_memtable_rows=size, max_wal_flush_interval_ms=2)
    for g in range(generations):
        ids = [(g * 7919 + r * 31) % base if r % 2 == 0 else base + g * size + r for r in range(size)]
        if g % 10 == 9:
            gone = [(g * 104_729 + i * 13) % base for i in range(10)]
            ids = [i for i in ids if i not in gone][: size - 10]
            w.put(rows(dict.fromkeys(ids + [base * 9 + g * size + j for j in range(size - 10 - len(ids))]), g + 1))
            w.delete(pa.table({"id": gone}, schema=pa.schema([SCHEMA.field("id")])))
        else:
            w.put(rows(ids, g + 1))
    w.close()


def freshet(uri):
    done = subprocess.run([FRESHET, "merge", "--table", uri, "--until-fresh", "--max-generations", "4096", "--budget", "1Gi", "-o", "json"],
                          check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["seconds"]


def pylance(uri):
    """One marked merge_insert a generation."""
    begun = time.perf_counter()
    listed = sorted((int(d.rsplit("_gen_", 1)[1]), d) for d in os.listdir(f"{uri}/_mem_wal/{SHARD}") if "_gen_" in d)
    for number, path in listed:
        ds = lance.dataset(uri)
        got = lance.dataset(f"{uri}/_mem_wal/{SHARD}/{path}").to_table()
        dead = got.filter(got["_tombstone"])["id"].to_pylist()
        live = got.filter(pa.compute.invert(got["_tombstone"])).drop_columns("_tombstone")
        b = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        if dead:
            b = b.when_not_matched_by_source_delete(f"id IN ({', '.join(map(str, dead))})")
        b.mark_sstables_as_compacted([CompactedSsTable(SHARD, number)]).execute(live.cast(lance.dataset(uri).schema))
    return time.perf_counter() - begun


LC_MAKE = """
import sys, lance_context as lc
s = lc.GenericStore.open(sys.argv[1], {"id": {"type": "string", "nullable": False}, "n": "int64", "text": "string"})
for g in range(int(sys.argv[2])):
    s.add([{"id": f"{g:05}-{r:04}", "n": r, "text": f"text {g} {r}"} for r in range(int(sys.argv[3]))])
    s.flush()
"""
# One call takes a few generations only: it is called until nothing is left.
LC_CLEAN = """
import sys, time, lance_context as lc
s = lc.GenericStore.open_existing(sys.argv[1])
t = time.perf_counter(); merged = 0
while n := s.cleanup_wal(): merged += n
print(time.perf_counter() - t, merged)
"""


def seen(uri):
    t = lance.dataset(uri).to_table(columns=["id"])["id"]
    return len(t), len(pa.compute.unique(t))


def compare(name, source, folder, other, goal):
    mine, theirs = [], []
    for n in range(ROUNDS):
        a, b = f"{folder}/a{n}.lance", f"{folder}/b{n}.lance"
        shutil.copytree(source, a), shutil.copytree(source, b)
        mine.append(freshet(a))
        theirs.append(other(b))
        assert seen(a) == seen(b) and seen(a)[0] == seen(a)[1], (seen(a), seen(b))
    m, t = statistics.median(mine), statistics.median(theirs)
    met = "met" if t / m >= goal else "MISSED"
    print(f"| {name} | {GENERATIONS / m:.0f}/s | {GENERATIONS / t:.0f}/s | {t / m:.1f} | ≥ {goal} {met} |", flush=True)


def lc_cleanup(uri):
    took, merged = subprocess.run([LC, "-c", LC_CLEAN, uri], check=True, capture_output=True, text=True).stdout.split()
    assert int(merged) == GENERATIONS, merged
    return float(took)


def main():
    with tempfile.TemporaryDirectory() as d:
        make(f"{d}/small.lance", 200_000, GENERATIONS, 100)
        compare("400 generations × 100 rows over 200k rows: pylance, one merge_insert a generation", f"{d}/small.lance", d, pylance, 30)
        subprocess.run([LC, "-c", LC_MAKE, f"{d}/things.lance", str(GENERATIONS), "100"], check=True)
        os.makedirs(f"{d}/lc")
        compare("400 generations × 100 rows: lance-context's own clean-up", f"{d}/things.lance", f"{d}/lc", lc_cleanup, 30)


if __name__ == "__main__":
    sys.exit(main())
