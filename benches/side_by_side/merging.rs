//! Merging: many small generations, large batches, a slow store, what is written, and an idle table.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{Array, BooleanArray, RecordBatch, cast::AsArray};
use arrow_select::filter::filter_record_batch;
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{Expr, lit};
use freshet::table::{Limits, Location, Outcome, Stores, StoresConfig, Table, Tracker};
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::builder::DatasetBuilder;
use lance::dataset::{
    InsertBuilder, MergeInsertBuilder, WhenMatched, WhenNotMatched, WhenNotMatchedBySource,
};
use lance::dataset::{WriteMode, WriteParams};
use lance_index::mem_wal::CompactedSsTable;
use lance_io::object_store::ObjectStoreParams;

use super::fixtures::{Fixture, Spec, shard};
use super::store::Slow;
use super::{Figure, median};

const ROUNDS: usize = 5;

/// A table of `base` rows and `generations` pending ones of `rows` rows; with `updates`, half of them replace base rows
/// and every tenth generation deletes ten.
async fn table(base: u64, generations: u64, rows: u64, updates: bool) -> Fixture {
    let spec = Spec {
        base: (0..base).map(|k| (k, 0)).collect(),
        // A generation ends where it is flushed, never before.
        memtable_rows: 2 * rows as usize + 100,
        ..Default::default()
    };
    let mut made = Fixture::create(spec).await;
    for g in 0..generations {
        let key = |r: u64| {
            if updates && r.is_multiple_of(2) {
                (g * 7919 + r * 31) % base
            } else {
                base + g * rows + r
            }
        };
        let mut batch: Vec<(u64, i64)> = (0..rows).map(|r| (key(r), g as i64 + 1)).collect();
        batch.sort_unstable();
        batch.dedup_by_key(|row| row.0);
        made.put(&batch).await;
        if updates && g % 10 == 9 {
            made.delete(
                &(0..10)
                    .map(|i| (g * 104_729 + i * 13) % base)
                    .collect::<Vec<_>>(),
            )
            .await;
        }
        made.flush().await;
    }
    made.close().await;
    made
}

/// The time of Freshet's look at the table and merge of all that is pending, in one commit; a drain after it is not timed.
async fn ours(uri: &str, slow: Option<&Slow>, drain: bool) -> Duration {
    let wrapper = slow.map(|s| Arc::new(s.clone()) as _);
    let stores = Stores::new(StoresConfig {
        wrapper,
        ..Default::default()
    });
    let table = Table::open(&stores, &Location::new(uri)).await.unwrap();
    if let Some(slow) = slow {
        slow.counts.take();
    }
    let begun = Instant::now();
    let mut tracker = Tracker::new();
    let (seen, snapshot) = tracker.observe(&table).await.unwrap();
    let through: Vec<_> = seen
        .shards
        .iter()
        .filter_map(|s| Some((s.shard, s.pending.last()?.generation.number)))
        .collect();
    let chunk = snapshot.chunk(&through).unwrap();
    let limits = Limits::new(1 << 30, Duration::from_secs(600));
    let done = table
        .merge(&snapshot, &chunk, &tracker.known(), &limits)
        .await
        .unwrap();
    let took = begun.elapsed();
    assert!(matches!(done, Outcome::Merged(_)), "{done:?}");
    if drain {
        for (shard, through) in through {
            table.drain(shard, through).await.unwrap();
        }
    }
    took
}

async fn open(uri: &str, slow: Option<&Slow>) -> Dataset {
    let Some(slow) = slow else {
        return Dataset::open(uri).await.unwrap();
    };
    let params = ObjectStoreParams {
        object_store_wrapper: Some(Arc::new(slow.clone())),
        ..Default::default()
    };
    let uri = format!(
        "file-object-store://{}",
        std::fs::canonicalize(uri).unwrap().display()
    );
    DatasetBuilder::from_uri(uri)
        .with_store_params(params)
        .load()
        .await
        .unwrap()
}

/// One marked `merge_insert` a generation: what a careful user of Lance writes today.
async fn one_at_a_time(made: &Fixture, uri: &str, slow: Option<&Slow>) -> Duration {
    let begun = Instant::now();
    let mut dataset = Arc::new(open(uri, slow).await);
    let root = dataset.uri().to_string();
    let manifest = lance::dataset::mem_wal::ShardManifestStore::new(
        dataset.object_store(None).await.unwrap(),
        &dataset.branch_location().path,
        shard(0),
        2,
    );
    let listed = manifest.latest().await.unwrap().unwrap().sstables;
    let key = made.spec.shape.keys[0].0.clone();
    for sstable in listed {
        let mut builder =
            DatasetBuilder::from_uri(format!("{root}/_mem_wal/{}/{}", shard(0), sstable.path))
                .with_session(dataset.session());
        if let Some(params) = dataset.store_params() {
            builder = builder.with_store_params(params.clone());
        }
        let generation = builder.load().await.unwrap();
        let all = generation.scan().try_into_batch().await.unwrap();
        let (live, dead) = split(&all, &key);
        let mut merge = MergeInsertBuilder::try_new(dataset.clone(), vec![key.clone()]).unwrap();
        merge
            .when_matched(WhenMatched::UpdateAll)
            .when_not_matched(WhenNotMatched::InsertAll)
            .skip_auto_cleanup(true)
            .mark_sstables_as_compacted(vec![CompactedSsTable::new(shard(0), sstable.generation)]);
        if let Some(dead) = dead {
            merge.when_not_matched_by_source(WhenNotMatchedBySource::DeleteIf(dead));
        }
        let (next, _) = merge
            .try_build()
            .unwrap()
            .execute_batches(vec![live])
            .await
            .unwrap();
        dataset = next;
    }
    begun.elapsed()
}

/// A generation's living rows, and the base rows that it deletes.
fn split(all: &RecordBatch, key: &str) -> (RecordBatch, Option<Expr>) {
    let mut live = all.clone();
    let at = all.schema().index_of("_tombstone").unwrap();
    let dead = live.remove_column(at);
    let dead = dead.as_boolean();
    let keys = arrow_select::filter::filter(all.column_by_name(key).unwrap(), dead).unwrap();
    let values: Vec<_> = (0..keys.len())
        .map(|at| lit(ScalarValue::try_from_array(&keys, at).unwrap()))
        .collect();
    let live = filter_record_batch(
        &live,
        &BooleanArray::from_iter(dead.iter().map(|d| Some(d != Some(true)))),
    )
    .unwrap();
    (
        live,
        (!values.is_empty()).then(|| Expr::Column(Column::from_name(key)).in_list(values, false)),
    )
}

/// Bytes of the data files of a table.
fn data_bytes(uri: &str) -> u64 {
    let files = std::fs::read_dir(Path::new(uri).join("data")).unwrap();
    files.map(|f| f.unwrap().metadata().unwrap().len()).sum()
}

/// A plain append of the rows that a merge wrote: its time, and the bytes of its files.
async fn plain_append(merged: &str, target: &str) -> (Duration, u64) {
    let from = Dataset::open(merged).await.unwrap();
    let newest = from.fragments().last().unwrap().id;
    let new: Vec<_> = from
        .fragments()
        .iter()
        .filter(|f| f.id == newest)
        .cloned()
        .collect();
    let mut scan = from.scan();
    scan.with_fragments(new);
    let rows: Vec<_> = scan
        .try_into_stream()
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let (before, dataset) = (
        data_bytes(target),
        Arc::new(Dataset::open(target).await.unwrap()),
    );
    let params = WriteParams {
        mode: WriteMode::Append,
        ..Default::default()
    };
    let begun = Instant::now();
    InsertBuilder::new(dataset)
        .with_params(&params)
        .execute(rows)
        .await
        .unwrap();
    (begun.elapsed(), data_bytes(target) - before)
}

/// 400 generations of 100 rows over 200,000 rows, half of them updates.
pub async fn many_small() {
    let made = table(200_000, 400, 100, true).await;
    let (mut mine, mut theirs, mut amplified) = (vec![], vec![], 0.0);
    for round in 0..ROUNDS {
        let copy = made.copy();
        let before = data_bytes(&copy.uri);
        mine.push(ours(&copy.uri, None, false).await);
        let written = data_bytes(&copy.uri) - before;
        let (_, plain) = plain_append(&copy.uri, &made.copy().uri).await;
        amplified = written as f64 / plain as f64;
        if round < 2 {
            theirs.push(one_at_a_time(&made, &made.copy().uri, None).await);
        }
    }
    let (mine, theirs) = (median(mine), median(theirs));
    Figure {
        name: "400 generations × 100 rows over 200k, half updates: generations/s against one merge_insert a generation",
        ours: 400e3 / mine,
        other: 400e3 / theirs,
        unit: "/s",
        ratio: theirs / mine,
        goal: Some((30.0, true)),
    }
    .print();
    Figure {
        name: "the same: bytes of data files written ÷ bytes of a plain append of the same live rows",
        ours: amplified,
        other: 1.0,
        unit: "×",
        ratio: amplified,
        goal: Some((1.15, false)),
    }
    .print();
}

/// Four generations of 50,000 rows over 200,000: MB/s against a plain append of the same rows.
pub async fn large(updates: bool) {
    let made = table(200_000, 4, 50_000, updates).await;
    let (mut mine, mut theirs, mut amplified) = (vec![], vec![], 0.0);
    for _ in 0..ROUNDS {
        let copy = made.copy();
        let before = data_bytes(&copy.uri);
        mine.push(ours(&copy.uri, None, false).await);
        let written = data_bytes(&copy.uri) - before;
        let (took, bytes) = plain_append(&copy.uri, &made.copy().uri).await;
        theirs.push(took);
        amplified = written as f64 / bytes as f64;
    }
    let (mine, theirs) = (median(mine), median(theirs));
    Figure {
        name: if updates {
            "large batches, half updates: time against a plain append"
        } else {
            "large batches, inserts: time against a plain append"
        },
        ours: mine,
        other: theirs,
        unit: "ms",
        ratio: theirs / mine,
        goal: Some((if updates { 0.35 } else { 0.7 }, true)),
    }
    .print();
    Figure {
        name: "the same: bytes written ÷ a plain append's",
        ours: amplified,
        other: 1.0,
        unit: "×",
        ratio: amplified,
        goal: Some((1.15, false)),
    }
    .print();
}

/// 20 ms a request: 40 generations, merged and drained.
pub async fn slow_store() {
    let made = table(200_000, 40, 100, true).await;
    let slow = Slow {
        delay: Duration::from_millis(20),
        ..Default::default()
    };
    let copy = made.copy();
    let mine = ours(&copy.uri, Some(&slow), true).await;
    let (reads, writes, _) = slow.counts.take();
    let theirs = one_at_a_time(&made, &made.copy().uri, Some(&slow)).await;
    Figure {
        name: "20 ms a request: 40 generations observed and merged, against one merge_insert a generation",
        ours: mine.as_secs_f64() * 1e3,
        other: theirs.as_secs_f64() * 1e3,
        unit: "ms",
        ratio: mine.as_secs_f64() / theirs.as_secs_f64(),
        goal: Some((1.0 / 60.0, false)),
    }
    .print();
    let each = (reads + writes) as f64 / 40.0;
    Figure {
        name: "the same, with the drain: requests a generation (other: the figure to beat)",
        ours: each,
        other: 5.4,
        unit: "",
        ratio: each,
        goal: Some((4.0, false)),
    }
    .print();
}

/// An idle table: looks at it write nothing.
pub async fn idle() {
    let made = table(1_000, 0, 0, false).await;
    let slow = Slow::default();
    let stores = Stores::new(StoresConfig {
        wrapper: Some(Arc::new(slow.clone())),
        ..Default::default()
    });
    let table = Table::open(&stores, &Location::new(&made.uri))
        .await
        .unwrap();
    let mut tracker = Tracker::new();
    tracker.observe(&table).await.unwrap();
    slow.counts.take();
    for _ in 0..100 {
        tracker.observe(&table).await.unwrap();
    }
    let (reads, writes, _) = slow.counts.take();
    Figure {
        name: "an idle table: requests that write, of 100 looks",
        ours: writes as f64,
        other: 0.0,
        unit: "",
        ratio: writes as f64,
        goal: Some((0.0, false)),
    }
    .print();
    Figure {
        name: "an idle table: requests that read, a look",
        ours: reads as f64 / 100.0,
        other: 1.0,
        unit: "",
        ratio: reads as f64 / 100.0,
        goal: None,
    }
    .print();
}
