"""A table that pylance writes through MemWAL, and beside it the truth, kept in plain Python.

Lives here: `Table`. Each operation goes to Lance and to the truth. May use: lance, pyarrow. Never: reading a table to
learn what it should hold.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
import uuid

import lance
import pyarrow as pa

KEY = {"lance-schema:unenforced-primary-key": "true"}
# Kind of key: its columns, and the key of a number.
KEYS = {
    "int64": ([("id", pa.int64())], lambda n: (n,)),
    "int16": ([("id", pa.int16())], lambda n: (n - 300,)),
    "string": ([("id", pa.string())], lambda n: (f"rö-{n:05}",)),
    "binary": ([("id", pa.binary())], lambda n: (n.to_bytes(3, "big") + b"\0\xff",)),
    "composite": ([("run", pa.string()), ("step", pa.int32())], lambda n: (f"run-{n // 16}", n % 16)),
}
VALUES = [
    pa.field("text", pa.string()),
    pa.field("count", pa.int64()),
    pa.field("ratio", pa.float64()),
    pa.field("good", pa.bool_()),
    pa.field("at", pa.timestamp("us")),
    pa.field("tags", pa.list_(pa.field("item", pa.string()))),
    pa.field("place", pa.struct([pa.field("x", pa.float32()), pa.field("y", pa.float32())])),
    pa.field("payload", pa.large_binary()),
    pa.field("kind", pa.dictionary(pa.int16(), pa.string())),
]
NEVER_NULL = {"text"}  # the tests look at it


class Delete(list):
    """Keys, given by number, to be deleted."""


class Table:
    """`base` is what the base table held before any merge, `truth` what it holds once all is merged: key to row."""

    def __init__(self, uri, seed: int = 1, kind: str = "int64"):
        self.uri, self.kind = str(uri), kind
        self.keys, self.key_of = KEYS[kind]
        self.names = [n for n, _ in self.keys]
        self.schema = pa.schema([pa.field(n, t, nullable=False, metadata=KEY) for n, t in self.keys] + VALUES)
        self.rng = random.Random(seed)
        self.base: dict = {}
        self.truth: dict = {}
        self.generations: dict[str, list[int]] = {}  # shard: physical rows of each generation
        self.history: list[dict] = []  # the truth after each generation
        self.lock = threading.Lock()

    # -- rows -----------------------------------------------------------------------------------------------------

    def row(self, n: int) -> dict:
        """A new version of the row with that number: every column filled, or null by chance."""
        r = self.rng
        some = {
            "text": f"{n} ü {r.randrange(10**9)}",
            "count": r.randrange(-(2**63), 2**63),
            "ratio": r.uniform(-1e9, 1e9),
            "good": r.random() < 0.5,
            "at": dt.datetime(2026, 1, 1) + dt.timedelta(microseconds=r.randrange(10**15)),
            "tags": [r.choice(["a", "b", "", None]) for _ in range(r.randrange(4))],
            "place": {"x": r.randrange(-64, 64) / 4, "y": None},
            "payload": r.randbytes(r.choice([0, 3, 2000])),
            "kind": r.choice(["assistant", "tool", "grade"]),
        }
        row = dict(zip(self.names, self.key_of(n))) | {k: v if k in NEVER_NULL or r.random() > 0.1 else None for k, v in some.items()}
        return row | {f.name: n for f in self.schema if f.name not in row}

    def rows(self, numbers) -> list[dict]:
        return [self.row(n) for n in numbers]

    def arrow(self, rows: list[dict]) -> pa.Table:
        return pa.Table.from_pylist(rows, schema=self.schema)

    def key(self, row: dict) -> tuple:
        return tuple(row[n] for n in self.names)

    # -- writing --------------------------------------------------------------------------------------------------

    def create(self, numbers, index=False, **options):
        rows = self.rows(numbers)
        ds = lance.write_dataset(self.arrow(rows), self.uri, schema=self.schema, **options)
        if index:
            ds.create_scalar_index(self.names[0], "BTREE")
            ds = lance.dataset(self.uri)
        ds.initialize_mem_wal(maintained_indexes=[], unsharded=True)
        self.base = {self.key(r): r for r in rows}
        self.truth = dict(self.base)
        return self

    def add_column(self, name: str):
        lance.dataset(self.uri).add_columns(pa.field(name, pa.int64()))
        self.schema = self.schema.append(pa.field(name, pa.int64()))
        for rows in (self.base, self.truth):
            for k in rows:
                rows[k] = rows[k] | {name: None}

    @staticmethod
    def shard_id(label: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"clients/{label}"))

    def writer(self, shard: str, **options) -> "Writer":
        return Writer(self, shard, options)

    def generation(self, shard: str, *ops):
        """One generation: the shard's writer is opened, does the operations, and is closed, which seals it."""
        with self.writer(shard) as w:
            for op in ops:
                w.do(op)

    # -- reading --------------------------------------------------------------------------------------------------

    def dataset(self):
        return lance.dataset(self.uri)

    def read(self) -> list[dict]:
        return self.dataset().to_table().to_pylist()

    def pending(self) -> int:
        return sum(len(g) for g in self.generations.values())


class Writer:
    """A shard's writer. What it did reaches the truth when its memtable is sealed: here, when it is closed."""

    def __init__(self, table: Table, shard: str, options: dict):
        self.t, self.shard = table, shard
        self.w = table.dataset().mem_wal_writer(table.shard_id(shard), **{"max_wal_flush_interval_ms": 2, **options})
        self.done: dict = {}
        self.physical = 0

    def do(self, op):
        if isinstance(op, Delete):
            keys = [self.t.key_of(n) for n in op]
            fields = [self.t.schema.field(n) for n in self.t.names]
            columns = [pa.array([k[i] for k in keys], f.type) for i, f in enumerate(fields)]
            self.w.delete(pa.table(columns, schema=pa.schema(fields)))
            self.done |= dict.fromkeys(keys)
        else:
            self.w.put(self.t.arrow(op))
            self.done |= {self.t.key(r): r for r in op}
        self.physical += len(op)

    def sealed(self):
        """Says that all that was done so far is in a generation now."""
        with self.t.lock:
            for k, row in self.done.items():
                if row is None:
                    self.t.truth.pop(k, None)
                else:
                    self.t.truth[k] = row
            self.t.generations.setdefault(self.shard, []).append(self.physical)
            self.t.history.append(dict(self.t.truth))
        self.done, self.physical = {}, 0

    def close(self):
        self.w.close()
        if self.physical:
            self.sealed()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
        return False


def differences(rows: list[dict], truth: dict, names: list[str]) -> list[str]:
    """What is wrong with rows as they are physically stored: doubled, lost, resurrected or of another version."""
    out, seen = [], {}
    for row in rows:
        k = tuple(row[n] for n in names)
        if k in seen:
            out.append(f"doubled: {k}")
        seen[k] = row
    out += [f"lost: {k}" for k in truth if k not in seen]
    out += [f"resurrected or never written: {k}" for k in seen if k not in truth]
    for k in truth.keys() & seen.keys():
        wrong = [c for c in truth[k].keys() | seen[k].keys() if truth[k].get(c, ...) != seen[k].get(c, ...)]
        if wrong:
            c = wrong[0]
            out.append(f"wrong: {k}, {c} is {seen[k].get(c, '(none)')!r}, expected {truth[k].get(c, '(none)')!r}")
    return out


def same(table: Table, truth: dict | None = None):
    """The base table holds the truth: each key once, as the newest version, in every column."""
    truth = table.truth if truth is None else truth
    wrong = differences(table.read(), truth, table.names)
    assert not wrong, f"{len(wrong)} differences: " + "; ".join(wrong[:8])
    assert table.dataset().count_rows() == len(truth)


def now() -> dt.datetime:
    """The store's clock, as a file's time shows it; a little coarser than Python's own."""
    return dt.datetime.fromtimestamp(time.time(), dt.timezone.utc)
