//! Merging: many small generations, large batches, a slow store, what is written, and an idle table.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{Array, BooleanArray, RecordBatch, cast::AsArray};
use arrow_select::filter::filter_record_batch;
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{Expr, lit};
use freshet::table::{
    CompactMemory, CompactPolicy, Limits, Location, Outcome, ShardView, Stores, StoresConfig,
    Table, Tracker, Upkeep,
};
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::builder::DatasetBuilder;
use lance::dataset::{
    InsertBuilder, MergeInsertBuilder, WhenMatched, WhenNotMatched, WhenNotMatchedBySource,
};
use lance::dataset::{WriteMode, WriteParams};
use lance_index::mem_wal::CompactedSsTable;
use lance_io::object_store::ObjectStoreParams;

use super::fixtures::{Fixture, Kind, Shape, Spec, shard};
use super::store::Slow;
use super::{Figure, median};

const ROUNDS: usize = 5;
/// Rows that a writer puts at once.
const PUT_ROWS: usize = 8192;

/// A table of `base` rows and `generations` pending ones of `rows` rows; with `updates`, half of them replace base rows
/// and every tenth generation deletes ten.
async fn table(shape: Shape, base: u64, generations: u64, rows: u64, updates: bool) -> Fixture {
    let spec = Spec {
        shape,
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
        for part in batch.chunks(PUT_ROWS) {
            made.put(part).await;
        }
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

/// How long each part took.
#[derive(Clone, Copy)]
struct Took {
    /// Finding out what is pending.
    look: Duration,
    merge: Duration,
}

impl Took {
    fn whole(self) -> Duration {
        self.look + self.merge
    }
}

/// Freshet's first look at the table and its merge of all that is pending, in one commit; a drain after it is not timed.
async fn ours(uri: &str, slow: Option<&Slow>, drain: bool) -> Took {
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
    let look = begun.elapsed();
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
    let merge = begun.elapsed() - look;
    assert!(matches!(done, Outcome::Merged(_)), "{done:?}");
    if drain {
        for (shard, through) in through {
            table.drain(shard, through).await.unwrap();
        }
    }
    Took { look, merge }
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
async fn one_at_a_time(made: &Fixture, uri: &str, slow: Option<&Slow>) -> Took {
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
    let look = begun.elapsed();
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
    Took {
        look,
        merge: begun.elapsed() - look,
    }
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
    let made = table(narrow(), 200_000, 400, 100, true).await;
    let (mut mine, mut theirs, mut amplified) = (vec![], vec![], 0.0);
    for round in 0..ROUNDS {
        let copy = made.copy();
        let before = data_bytes(&copy.uri);
        mine.push(ours(&copy.uri, None, false).await.whole());
        let written = data_bytes(&copy.uri) - before;
        let (_, plain) = plain_append(&copy.uri, &made.copy().uri).await;
        amplified = written as f64 / plain as f64;
        if round < 2 {
            theirs.push(one_at_a_time(&made, &made.copy().uri, None).await.whole());
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

/// Rows of a key, a number and a short text.
fn narrow() -> Shape {
    Shape::keyed(Kind::Int64)
}

/// Rows that hold a text of 1,000 bytes besides, as rollouts do.
fn wide() -> Shape {
    narrow().with("content", Kind::Long(1000))
}

/// Four generations of 20,000 rows of 1 KiB over 80,000 of them: MB/s against a plain append of the same rows.
pub async fn large(updates: bool) {
    let made = table(wide(), 80_000, 4, 20_000, updates).await;
    let (mut mine, mut theirs, mut amplified, mut bytes) = (vec![], vec![], 0.0, 0);
    for _ in 0..ROUNDS {
        let copy = made.copy();
        let before = data_bytes(&copy.uri);
        mine.push(ours(&copy.uri, None, false).await.whole());
        let written = data_bytes(&copy.uri) - before;
        let (took, plain) = plain_append(&copy.uri, &made.copy().uri).await;
        theirs.push(took);
        bytes = plain;
        amplified = written as f64 / plain as f64;
    }
    let (mine, theirs) = (median(mine), median(theirs));
    let speed = |ms: f64| bytes as f64 / 1e6 / (ms / 1e3);
    Figure {
        name: if updates {
            "large batches, half updates: MB/s against a plain append of the same rows"
        } else {
            "large batches, inserts: MB/s against a plain append of the same rows"
        },
        ours: speed(mine),
        other: speed(theirs),
        unit: "MB/s",
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

/// 400 generations of 100 rows over 200,000 rows, merged 4 at a time as they come in, and compacted in between as soon
/// as there is something to compact: what all of that writes, for the rows that live in the end.
pub async fn amplified() {
    let made = table(narrow(), 200_000, 400, 100, true).await;
    let stores = Stores::new(StoresConfig::default());
    let table = Table::open(&stores, &Location::new(&made.uri))
        .await
        .unwrap();
    let (mut tracker, mut memory) = (Tracker::new(), CompactMemory::default());
    let (mut merged, mut compacted) = (0, 0);
    loop {
        let (seen, snapshot) = tracker.observe(&table).await.unwrap();
        let next = |s: &ShardView| {
            let chunk = s.pending.iter().take(4).next_back()?;
            Some((s.shard, chunk.generation.number))
        };
        let through: Vec<_> = seen.shards.iter().filter_map(next).collect();
        if through.is_empty() {
            break;
        }
        let limits = Limits::new(1 << 30, Duration::from_secs(600));
        let chunk = snapshot.chunk(&through).unwrap();
        match table
            .merge(&snapshot, &chunk, &tracker.known(), &limits)
            .await
            .unwrap()
        {
            Outcome::Merged(done) => merged += done.bytes_written,
            other => panic!("{other:?}"),
        }
        let policy = CompactPolicy {
            min_fragments: 16,
            ..CompactPolicy::new(1 << 20, Duration::from_secs(600))
        };
        if let Upkeep::Done(done) = table.compact(&policy, &mut memory).await.unwrap() {
            compacted += done.bytes_written;
        }
    }
    let written = merged + compacted;
    let ratio = written as f64 / merged as f64;
    Figure {
        name: "400 generations × 100 rows, 4 a merge, compaction on the way: bytes of data files written ÷ those of the merges",
        ours: written as f64 / 1e6,
        other: merged as f64 / 1e6,
        unit: "MB",
        ratio,
        goal: Some((3.0, false)),
    }
    .print();
}

/// 20 ms a request: 40 generations, merged and drained.
pub async fn slow_store() {
    let made = table(narrow(), 200_000, 40, 100, true).await;
    let slow = Slow {
        delay: Duration::from_millis(20),
        ..Default::default()
    };
    let copy = made.copy();
    let mine = ours(&copy.uri, Some(&slow), true).await;
    let (reads, writes, _) = slow.counts.take();
    let theirs = one_at_a_time(&made, &made.copy().uri, Some(&slow)).await;
    let figure = |name, mine: Duration, theirs: Duration, goal| {
        Figure {
            name,
            ours: mine.as_secs_f64() * 1e3,
            other: theirs.as_secs_f64() * 1e3,
            unit: "ms",
            ratio: mine.as_secs_f64() / theirs.as_secs_f64(),
            goal,
        }
        .print();
    };
    figure(
        "20 ms a request: 40 generations merged, against one merge_insert a generation",
        mine.merge,
        theirs.merge,
        Some((1.0 / 60.0, false)),
    );
    figure(
        "the same, with the first look at the table",
        mine.whole(),
        theirs.whole(),
        None,
    );
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
    let made = table(narrow(), 1_000, 0, 0, false).await;
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
