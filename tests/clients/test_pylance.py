"""Tables that pylance 14 writes through MemWAL, merged by the binary, read back with pylance."""

from __future__ import annotations

import datetime as dt
import threading

import driver
import lance
import pytest
from driver import backlog, freshet, merge
from memwal import Delete, Table, differences, now, same


def busy(t: Table, generations=4):
    """Inserts, updates and deletes of three shards; a shard's keys are its own (the number modulo 3)."""
    for g in range(generations):
        for s in range(3):
            mine = range(s, 200, 3)
            new = [200 + 60 * g + 3 * i + s for i in range(10)]
            old = t.rng.sample(mine, 12)
            t.generation(f"s{s}", t.rows(new + old[:6]), Delete(old[4:9]), t.rows(old[8:]))
    return t


def by_shard(t: Table, report: dict) -> dict:
    """Label to the report's entry of that shard."""
    entries = {s["shard"]: s for s in report["shards"]}
    return {label: entries[t.shard_id(label)] for label in t.generations}


@pytest.mark.parametrize("index", [False, True], ids=["", "btree"])
@pytest.mark.parametrize("kind", ["int64", "int16", "string", "binary", "composite"])
def test_inserts_updates_and_deletes_of_three_shards_reach_the_base(tmp_path, seed, kind, index):
    t = busy(Table(tmp_path / "t.lance", seed, kind).create(range(200), index=index))
    same(t, t.base)
    merge(t.uri)
    same(t)
    assert backlog(t.uri)["pending"]["generations"] == 0


@pytest.mark.parametrize("options", [{"enable_stable_row_ids": True}, {"data_storage_version": "2.1"}, {"data_storage_version": "2.2"}, {"max_rows_per_file": 30}], ids=str)
def test_a_table_made_with_other_options_is_merged_as_well(tmp_path, seed, options):
    t = busy(Table(tmp_path / "t.lance", seed).create(range(200), **options), 2)
    merge(t.uri)
    same(t)


def test_a_base_that_was_empty_receives_the_rows(tmp_path, seed):
    t = Table(tmp_path / "t.lance", seed).create([])
    t.generation("s0", t.rows(range(5)), Delete([1, 99]))
    merge(t.uri)
    same(t)


def test_generations_that_only_delete_are_merged(table):
    table.generation("s0", Delete(range(0, 50)))
    table.generation("s0", Delete([1, 2, 777]))
    merge(table.uri)
    same(table)


def test_rows_that_are_null_in_every_column_but_the_key_are_merged(table):
    """Also a dictionary column, whose dictionary is then empty."""
    nothing = dict.fromkeys(f.name for f in table.schema)
    table.generation("s0", [nothing | {"id": n} for n in (1, 300)], Delete([2]))
    merge(table.uri)
    same(table)


def test_a_key_that_was_deleted_and_written_again_is_there_once(table):
    for _ in range(3):
        table.generation("s0", Delete([5]))
        table.generation("s0", table.rows([5]))
    merge(table.uri)
    same(table)


def test_the_backlog_is_what_the_writer_flushed(table):
    before = now()
    busy(table)
    report = backlog(table.uri)
    ds = table.dataset()
    assert report["base"] == {"version": ds.version, "rows": 200, "fragments": len(ds.get_fragments())}
    assert report["pending"]["generations"] == table.pending()
    assert report["pending"]["rows"] == sum(sum(g) for g in table.generations.values())
    assert report["pending"]["bytes"] > 0
    for label, shard in by_shard(table, report).items():
        assert shard["pending"] == len(table.generations[label]), shard
        assert shard["rows"] == sum(table.generations[label]), shard
        assert shard["watermark"] in (0, None) and shard["currentGeneration"] == shard["pending"] + 1, shard
    oldest = dt.datetime.fromisoformat(report["pending"]["oldest"].replace("Z", "+00:00"))
    assert before - dt.timedelta(seconds=1) <= oldest <= now()
    assert report["anomalies"] == []


def test_after_a_merge_the_watermarks_say_so(table):
    busy(table)
    merge(table.uri)
    report = backlog(table.uri)
    assert report["pending"] == {"generations": 0, "rows": 0, "bytes": 0, "oldest": None}
    for label, shard in by_shard(table, report).items():
        assert (shard["watermark"], shard["pending"]) == (len(table.generations[label]), 0), shard
    assert report["base"]["rows"] == len(table.truth)


def test_the_backlog_is_told_to_people_too(table):
    table.generation("s0", table.rows([1, 500]))
    said = freshet("backlog", "--table", table.uri).out
    assert table.shard_id("s0")[:8] in said, said


def test_looking_changes_nothing(table):
    busy(table, 1)
    before = driver.tree(table.uri)
    backlog(table.uri)
    freshet("merge", "--table", table.uri, "--until-fresh", "--dry-run")
    freshet("merge", "--table", table.uri, "--dry-run", "-o", "json").json  # noqa: B018
    assert driver.changes(before, driver.tree(table.uri)) == []


def test_a_merge_with_nothing_to_do_commits_nothing(table):
    busy(table, 1)
    merge(table.uri)
    version = table.dataset().version
    merge(table.uri)
    assert table.dataset().version == version
    same(table)


def test_each_commit_takes_the_oldest_generations_and_no_more_than_it_may(table):
    for g in range(5):
        table.generation("s0", table.rows([g, 300 + g]), Delete([10 + g]))
    first = table.dataset().version
    merge(table.uri, "--max-generations", "2")
    same(table)
    commits = range(first + 1, table.dataset().version + 1)
    states = [lance.dataset(table.uri, version=v).to_table().to_pylist() for v in commits]
    for rows, taken in zip(states, (2, 4, 5), strict=True):
        assert not differences(rows, table.history[taken - 1], table.names), taken


def test_a_small_byte_budget_merges_all_the_same(table):
    busy(table, 2)
    merge(table.uri, "--max-bytes", "1Ki")
    same(table)


def test_the_shard_of_a_retired_writer_is_merged_too(table):
    table.generation("retired", table.rows(range(500, 520)))
    merge(table.uri)
    table.generation("also-retired", table.rows(range(600, 620)), Delete([0]))
    table.generation("young", table.rows(range(700, 720)))
    merge(table.uri)
    same(table)


def test_a_writer_that_stays_open_goes_on_after_a_merge(table):
    with table.writer("s0", max_memtable_rows=20) as w:
        for g in range(6):
            version = table.dataset().version
            w.do(table.rows(range(g * 10, g * 10 + 10)))
            w.do(Delete(range(100 + g * 10, 110 + g * 10)))  # fills the memtable: it is sealed
            w.sealed()
            driver.eventually("the sealed generation", lambda: backlog(table.uri)["pending"]["generations"])
            merge(table.uri)
            assert table.dataset().version > version
            same(table)
        w.do(table.rows([900]))
    merge(table.uri)
    same(table)


def test_a_writers_own_view_is_whole_after_a_merge(table):
    table.generation("s0", table.rows(range(1000, 1010)), Delete([3]))
    w = table.writer("s0")
    w.do(table.rows([4, 2000]))
    merge(table.uri)
    view = {tuple(r[n] for n in table.names): r for r in w.w.lsm_scanner().to_table().to_pylist()}
    w.close()
    assert view.keys() == table.truth.keys()
    assert {k: v["text"] for k, v in view.items()} == {k: v["text"] for k, v in table.truth.items()}


def test_rows_that_were_never_sealed_are_not_merged(table):
    w = table.writer("s0")
    w.do(table.rows([1, 2, 3]))
    merge(table.uri)
    same(table, table.base)
    w.close()
    merge(table.uri)
    same(table)


def test_a_column_added_between_generations_is_null_in_older_rows(table):
    table.generation("s0", table.rows([1, 500]))
    table.add_column("later")
    table.generation("s0", table.rows([2, 501]), Delete([3]))
    merge(table.uri)
    same(table)


def test_compaction_by_the_tables_owner_and_a_merge_go_together(table):
    busy(table, 2)
    merge(table.uri)
    table.dataset().optimize.compact_files()
    table.generation("s0", table.rows([0, 3, 6]), Delete([9]))
    merge(table.uri)
    same(table)


def test_a_scalar_index_answers_right_after_a_merge(tmp_path, seed):
    t = busy(Table(tmp_path / "t.lance", seed).create(range(200), index=True), 2)
    merge(t.uri)
    for n in (0, 1, 2, 199, 203, 260, 99999):
        found = t.dataset().to_table(filter=f"id = {n}").to_pylist()
        assert found == ([t.truth[(n,)]] if (n,) in t.truth else []), n


def test_a_reader_sees_whole_versions_while_merges_run(table):
    """Every look at the base finds each key once, and the rows of one of the states that a prefix of the log makes."""
    states = [dict(table.base)]
    for g in range(12):
        table.generation("s0", table.rows([g, 300 + g]), Delete([50 + g, 300 + g - 2]))
        states.append(dict(table.truth))
    wrong, stop, seen = [], threading.Event(), set()

    def read():
        at = 0
        while not stop.is_set():
            rows = table.read()
            here = next((i for i in range(at, len(states)) if not differences(rows, states[i], table.names)), None)
            if here is None:
                wrong.append(f"{len(rows)} rows that are no state from {at} on: {differences(rows, states[-1], table.names)[:3]}")
                return
            at = here
            seen.add(at)

    reader = threading.Thread(target=read)
    reader.start()
    merge(table.uri, "--max-generations", "1")
    stop.set()
    reader.join()
    assert not wrong, wrong
    assert seen, "the reader never looked"
    same(table)
