"""A client of Lance that rolls out into one shard, for a Pod; and the judge over what several of them wrote.

Lives here: `make`, `write` (rows put, put again and deleted; each flush a generation; the truth printed as the last line) and
`judge` (truths on standard input, against the base's physical rows). May use: lance, pyarrow. Never: Freshet, or a read of
the table while it writes.

`writer.py make URI`, `writer.py write URI SHARD OF`, which ends well when it is sent SIGUSR1, and `writer.py judge URI`; the
store's options are the variable STORAGE, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import uuid

import lance
import pyarrow as pa

PACE = 0.15  # seconds between two flushes
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field("text", pa.string()),
    ]
)


def opened(uri: str):
    return lance.dataset(uri, storage_options=json.loads(os.environ["STORAGE"]))


def make(uri: str):
    none = pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())}, schema=SCHEMA)
    made = lance.write_dataset(none, uri, schema=SCHEMA, storage_options=json.loads(os.environ["STORAGE"]))
    made.initialize_mem_wal(maintained_indexes=[], unsharded=True)


def write(uri: str, shard: int, of: int):
    """Its keys are those that leave `shard` when divided by `of`."""
    rng, truth, n, asked = random.Random(shard), {}, 0, threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: asked.set())
    while not asked.wait(PACE):
        n += 1
        # A writer that is opened takes its shard over from who had it, as a rollout worker that starts again does.
        writer = opened(uri).mem_wal_writer(str(uuid.UUID(int=(4 << 76) + (8 << 60) + shard)), max_wal_flush_interval_ms=2)
        keys = [of * rng.randrange(400) + shard for _ in range(12)]
        rows = {k: f"{n} of {shard}: {rng.randrange(10**9)}" for k in keys}
        writer.put(pa.table({"id": list(rows), "text": list(rows.values())}, schema=SCHEMA))
        gone = rng.sample(sorted(truth | rows), 3)
        writer.delete(pa.table({"id": gone}, schema=pa.schema([SCHEMA.field("id")])))
        writer.close()
        truth = {k: v for k, v in (truth | rows).items() if k not in gone}
    print(json.dumps(truth))


def judge(uri: str):
    truth = {}
    for line in sys.stdin:
        truth |= {int(k): v for k, v in json.loads(line).items()}
    rows = opened(uri).to_table().to_pylist()
    stored = {row["id"]: row["text"] for row in rows}
    wrong = [f"doubled: {len(rows) - len(stored)}"] if len(rows) != len(stored) else []
    wrong += [f"lost: {k}" for k in sorted(truth.keys() - stored.keys())]
    wrong += [f"never written or deleted: {k}" for k in sorted(stored.keys() - truth.keys())]
    wrong += [f"old: {k}" for k in sorted(truth.keys() & stored.keys()) if truth[k] != stored[k]]
    if wrong or not truth:
        raise SystemExit(f"{len(truth)} rows: {wrong[:8]}")
    print(len(truth))


if __name__ == "__main__":
    what, uri, *more = sys.argv[1:]
    {"make": make, "write": write, "judge": judge}[what](uri, *map(int, more))
