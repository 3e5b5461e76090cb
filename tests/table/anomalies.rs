//! What is not as it should be is named, and what blocks stops its shard (contracts 1, 3, 8, 9, 16).
//!
//! Lives here: one table per anomaly, made as it comes about in the field. May use: Lance as other clients use it.
//! Never: an anomaly that is only declared.

use std::fs;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arrow_array::RecordBatchIterator;
use freshet::table::AnomalyKind::{self, *};
use freshet::table::{Location, StoresConfig, Tracker};
use lance::Dataset;
use lance::dataset::mem_wal::{DatasetMemWalExt, ShardManifestStore};
use lance::dataset::{MergeInsertBuilder, WhenMatched, WhenNotMatched, WriteMode, WriteParams};
use lance::index::DatasetIndexExt;
use lance_index::mem_wal::{CompactedSsTable, ShardManifest};

use crate::disk::Tree;
use crate::fixtures::{Fixture, Spec, shard, writer_config};
use crate::mergers::Merger;

async fn two_generations() -> Fixture {
    let mut t = Fixture::create(Spec::default()).await;
    t.put(&[(1, 1), (300, 1)]).await;
    t.flush().await;
    t.put(&[(2, 2), (301, 2)]).await;
    t.flush().await;
    t
}

pub async fn kinds(m: &mut Merger) -> Vec<AnomalyKind> {
    let (observation, _) = m.observe().await;
    observation.anomalies.iter().map(|a| a.kind).collect()
}

/// Changes the shard's manifest as another client would.
async fn rewrite(t: &Fixture, change: impl Fn(&mut ShardManifest)) {
    let dataset = t.dataset().await;
    let store = dataset.object_store(None).await.unwrap();
    let store = ShardManifestStore::new(store, &dataset.branch_location().path, shard(0), 2);
    let epoch = store.latest().await.unwrap().unwrap().writer_epoch;
    let prepare = |c: &ShardManifest| {
        let mut next = ShardManifest {
            version: c.next_version(),
            ..c.clone()
        };
        change(&mut next);
        next
    };
    store.commit_update(epoch, prepare).await.unwrap();
}

/// Marks generations as merged that never were.
pub async fn mark(t: &Fixture, through: u64) {
    let dataset = Arc::new(t.dataset().await);
    let none = t.spec.shape.batch(&[]);
    let mut job = MergeInsertBuilder::try_new(dataset, vec![]).unwrap();
    job.when_matched(WhenMatched::UpdateAll)
        .when_not_matched(WhenNotMatched::InsertAll)
        .mark_sstables_as_compacted(vec![CompactedSsTable::new(shard(0), through)]);
    job.try_build()
        .unwrap()
        .execute_batches(vec![none])
        .await
        .unwrap();
}

/// Restores a version as the newest.
pub async fn restore(t: &Fixture, version: u64) {
    let mut old = t.dataset().await.checkout_version(version).await.unwrap();
    old.restore().await.unwrap();
}

/// Makes versions that change no row.
pub async fn more_versions(t: &Fixture, count: usize) {
    let mut dataset = t.dataset().await;
    for n in 0..count {
        let note = n.to_string();
        dataset
            .update_config([("note", note.as_str())])
            .await
            .unwrap();
    }
}

async fn overwrite(t: &mut Fixture) {
    let rows = RecordBatchIterator::new(
        vec![Ok(t.spec.shape.batch(&[(1, 0)]))],
        t.spec.shape.schema(),
    );
    let params = WriteParams {
        mode: WriteMode::Overwrite,
        ..Default::default()
    };
    Dataset::write(rows, &t.uri, Some(params)).await.unwrap();
    t.enable_mem_wal().await;
}

#[tokio::test]
async fn a_sound_table_shows_no_anomaly_through_its_life() {
    let mut t = two_generations().await;
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut m).await, []);
    m.merge_all(1).await;
    assert_eq!(kinds(&mut m).await, []);
    m.drain_all().await.unwrap();
    assert_eq!(kinds(&mut m).await, []);
    t.crash_writer(0).await;
    t.put(&[(9, 9)]).await;
    t.close().await;
    assert_eq!(kinds(&mut m).await, []);
}

#[tokio::test]
async fn a_mark_past_the_shards_counter_blocks_the_shard_and_nothing_is_drained() {
    let t = two_generations().await;
    mark(&t, 999).await;
    let mut m = Merger::open(&t.uri).await;
    let (observation, snapshot) = m.observe().await;
    assert_eq!(observation.anomalies[0].kind, WatermarkAhead);
    assert!(Merger::chunk(&observation, &snapshot, 9).is_none());
    // Whoever drains all the same takes out nothing: those rows are nowhere else.
    let drained = m.table.drain(shard(0), 999).await;
    assert!(drained.is_err() || drained.unwrap().generations.is_empty());
}

#[tokio::test]
async fn a_restored_table_went_back_for_a_tracker_that_saw_it_before() {
    let t = two_generations().await;
    let version = t.dataset().await.version_id();
    let mut m = Merger::open(&t.uri).await;
    m.merge_all(9).await;
    restore(&t, version).await;
    let (observation, snapshot) = m.observe().await;
    assert!(observation.anomalies.iter().any(|a| a.kind == WentBack));
    assert!(Merger::chunk(&observation, &snapshot, 9).is_none());
    m.tracker.acknowledge([WentBack]);
    assert!(!kinds(&mut m).await.contains(&WentBack));
    m.merge_all(9).await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_restored_table_went_back_for_a_tracker_that_sees_it_for_the_first_time() {
    let t = two_generations().await;
    let version = t.dataset().await.version_id();
    Merger::open(&t.uri).await.merge_all(9).await;
    restore(&t, version).await;
    assert!(
        kinds(&mut Merger::open(&t.uri).await)
            .await
            .contains(&WentBack)
    );
}

#[tokio::test]
async fn a_restore_that_one_person_acknowledged_is_settled_for_every_process() {
    let t = two_generations().await;
    let version = t.dataset().await.version_id();
    Merger::open(&t.uri).await.merge_all(9).await;
    let mut running = Merger::open(&t.uri).await;
    running.observe().await;
    restore(&t, version).await;
    assert!(kinds(&mut running).await.contains(&WentBack));
    let mut person = Merger::open(&t.uri).await;
    person.tracker.acknowledge([WentBack]);
    // One generation of two: the watermark is still below the one that older versions hold.
    person.try_merge(1).await.unwrap();
    let mut later = Merger::open(&t.uri).await;
    assert!(!kinds(&mut later).await.contains(&WentBack));
    assert!(!kinds(&mut running).await.contains(&WentBack));
    running.merge_all(9).await;
    assert_eq!(t.verdict().await, Default::default());
    // A second restore is another matter.
    restore(&t, version).await;
    assert!(
        kinds(&mut Merger::open(&t.uri).await)
            .await
            .contains(&WentBack)
    );
}

#[tokio::test]
async fn a_table_that_was_overwritten_and_enabled_again_went_back() {
    let mut t = two_generations().await;
    let mut m = Merger::open(&t.uri).await;
    m.merge_all(9).await;
    t.close().await;
    overwrite(&mut t).await;
    assert!(kinds(&mut m).await.contains(&WentBack));
    assert!(
        kinds(&mut Merger::open(&t.uri).await)
            .await
            .contains(&WentBack)
    );
}

#[tokio::test]
async fn generations_from_before_an_overwrite_are_not_merged_over_it_until_somebody_says_so() {
    let mut t = two_generations().await;
    let mut running = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut running).await, []);
    t.close().await;
    overwrite(&mut t).await;
    let before = Tree::of(t.path());
    for m in [&mut running, &mut Merger::open(&t.uri).await] {
        assert!(kinds(m).await.contains(&WentBack));
        let (observation, snapshot) = m.observe().await;
        assert!(Merger::chunk(&observation, &snapshot, 9).is_none());
        assert_eq!(observation.pending_generations(), Some(2));
    }
    assert_eq!(Tree::of(t.path()), before);
    // What is flushed from now on waits behind them.
    t.put(&[(7, 7)]).await;
    t.flush().await;
    assert!(kinds(&mut running).await.contains(&WentBack));
    let mut person = Merger::open(&t.uri).await;
    person.tracker.acknowledge([WentBack]);
    person.try_merge(1).await.unwrap().unwrap();
    // What one merge recorded holds for the rest, in every process.
    for m in [&mut running, &mut Merger::open(&t.uri).await] {
        assert!(!kinds(m).await.contains(&WentBack));
    }
    assert_eq!(running.merge_all(1).await, 2);
    // The overwrite left nothing of the rows that were there before.
    let mut expected = t.model.clone();
    expected.rows = [(1, 1), (2, 2), (7, 7), (300, 1), (301, 2)].into();
    let verdict = t.rows().await.against(&expected, &t.spec.shape);
    assert_eq!(verdict, Default::default());
}

#[tokio::test]
async fn an_overwrite_among_many_versions_between_two_looks_is_found() {
    let mut t = two_generations().await;
    let mut running = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut running).await, []);
    t.close().await;
    more_versions(&t, 10).await;
    assert_eq!(kinds(&mut running).await, []);
    more_versions(&t, 10).await;
    overwrite(&mut t).await;
    more_versions(&t, 10).await;
    assert!(kinds(&mut running).await.contains(&WentBack));
}

#[tokio::test]
async fn a_look_that_is_given_up_anywhere_does_not_make_the_next_one_miss_an_overwrite() {
    for polls in 1.. {
        let mut t = two_generations().await;
        let mut running = Merger::open(&t.uri).await;
        assert_eq!(kinds(&mut running).await, []);
        t.close().await;
        overwrite(&mut t).await;
        let mut look = Box::pin(running.observe());
        let mut polled = 0;
        let done = poll_fn(|cx| {
            polled += 1;
            match look.as_mut().poll(cx) {
                Poll::Pending if polled < polls => Poll::Pending,
                end => Poll::Ready(end.is_ready()),
            }
        })
        .await;
        drop(look);
        assert!(kinds(&mut running).await.contains(&WentBack), "{polls}");
        if done {
            // How often it has to wait is the machine's affair; once at least, or nothing was given up.
            assert!(polls > 1, "{polls}");
            break;
        }
    }
}

#[tokio::test]
async fn a_mem_wal_index_dropped_and_made_again_over_what_is_pending_went_back() {
    let mut t = two_generations().await;
    let mut running = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut running).await, []);
    let mut dataset = t.dataset().await;
    dataset.drop_index("__lance_mem_wal").await.unwrap();
    t.enable_mem_wal().await;
    assert!(kinds(&mut running).await.contains(&WentBack));
    let fresh = &mut Merger::open(&t.uri).await;
    assert!(kinds(fresh).await.contains(&WentBack));
}

#[tokio::test]
async fn a_mem_wal_index_dropped_and_made_again_went_back() {
    let mut t = two_generations().await;
    let mut m = Merger::open(&t.uri).await;
    m.merge_all(9).await;
    t.dataset()
        .await
        .drop_index("__lance_mem_wal")
        .await
        .unwrap();
    t.enable_mem_wal().await;
    assert!(kinds(&mut m).await.contains(&WentBack));
    assert!(
        kinds(&mut Merger::open(&t.uri).await)
            .await
            .contains(&WentBack)
    );
}

#[tokio::test]
async fn a_number_with_two_directories_stops_its_shard() {
    let t = two_generations().await;
    rewrite(&t, |m| {
        let mut again = m.sstables[1].clone();
        again.path = "0badcafe_gen_2".into();
        m.sstables.push(again);
    })
    .await;
    let before = Tree::of(t.path());
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut m).await, [DuplicateGeneration]);
    let (_, snapshot) = m.observe().await;
    assert_eq!(
        snapshot.chunk(&[(shard(0), 2)]).unwrap_err().reason(),
        "UnsupportedManifest"
    );
    assert_eq!(Tree::of(t.path()), before);
}

#[tokio::test]
async fn a_generation_that_is_listed_twice_by_one_path_is_one_generation() {
    let t = two_generations().await;
    rewrite(&t, |m| m.sstables.push(m.sstables[1].clone())).await;
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut m).await, []);
    m.merge_all(9).await;
    assert_eq!(m.drain_all().await.unwrap(), 3);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_shard_manifest_of_a_newer_client_is_named_and_not_written_back() {
    let mut t = two_generations().await;
    let mut m = Merger::open(&t.uri).await;
    m.try_merge(1).await.unwrap();
    t.close().await;
    let newest = t.newest_manifest(0);
    let mut bytes = fs::read(&newest).unwrap();
    bytes.extend([0xf8, 0x07, 0x01]);
    fs::write(&newest, bytes).unwrap();
    let before = Tree::of(t.path());
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut m).await, [UnsupportedManifest]);
    assert_eq!(
        m.drain_all().await.unwrap_err().reason(),
        "UnsupportedManifest"
    );
    assert_eq!(Tree::of(t.path()), before);
}

#[tokio::test]
async fn a_generation_that_left_without_a_mark_is_the_work_of_another_merger() {
    let t = two_generations().await;
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut m).await, []);
    rewrite(&t, |m| drop(m.sstables.remove(0))).await;
    assert_eq!(kinds(&mut m).await, [ForeignMerger]);
}

#[tokio::test]
async fn rows_written_to_the_base_past_mem_wal_are_named_and_our_merges_are_not() {
    let t = two_generations().await;
    let mut m = Merger::open(&t.uri).await;
    m.merge_all(1).await;
    assert_eq!(kinds(&mut m).await, []);
    let rows = RecordBatchIterator::new(
        vec![Ok(t.spec.shape.batch(&[(900, 0)]))],
        t.spec.shape.schema(),
    );
    t.dataset().await.append(rows, None).await.unwrap();
    assert_eq!(kinds(&mut m).await, [DirectWrite]);
}

/// A merger that tells what another hand did only as long as it is so.
async fn forgetful(t: &Fixture) -> Merger {
    let mut m = Merger::open(&t.uri).await;
    m.tracker = Tracker::new().telling_for(Duration::ZERO);
    assert_eq!(kinds(&mut m).await, []);
    m
}

#[tokio::test]
async fn a_direct_write_is_told_until_what_was_pending_then_is_merged_and_its_time_is_over() {
    let t = two_generations().await;
    let (mut m, mut long) = (forgetful(&t).await, Merger::open(&t.uri).await);
    assert_eq!(kinds(&mut long).await, []);
    let rows = RecordBatchIterator::new(
        vec![Ok(t.spec.shape.batch(&[(900, 0)]))],
        t.spec.shape.schema(),
    );
    t.dataset().await.append(rows, None).await.unwrap();
    for left in [2, 1] {
        let seen = [kinds(&mut m).await, kinds(&mut m).await];
        assert_eq!(seen, [[DirectWrite], [DirectWrite]], "{left} pending");
        m.try_merge(1).await.unwrap();
    }
    assert_eq!(kinds(&mut m).await, []);
    assert_eq!(kinds(&mut long).await, [DirectWrite]);
}

#[tokio::test]
async fn another_merger_that_came_once_is_not_told_for_ever() {
    let t = two_generations().await;
    let (mut m, mut long) = (forgetful(&t).await, Merger::open(&t.uri).await);
    assert_eq!(kinds(&mut long).await, []);
    rewrite(&t, |m| drop(m.sstables.remove(0))).await;
    for (m, after) in [(&mut m, &[][..]), (&mut long, &[ForeignMerger][..])] {
        assert_eq!(kinds(m).await, [ForeignMerger]);
        assert_eq!(kinds(m).await, after);
    }
}

#[tokio::test]
async fn a_version_that_is_gone_since_it_was_seen_does_not_end_the_looking() {
    let t = two_generations().await;
    // Nothing of what was read is kept: as where much else was read since.
    let config = StoresConfig {
        cache_bytes: 0,
        ..Default::default()
    };
    let mut m = Merger::open_at(&Location::new(&t.uri), config)
        .await
        .unwrap();
    let (before, _) = m.observe().await;
    assert_eq!(before.pending_generations(), Some(2));
    assert_eq!(Merger::open(&t.uri).await.merge_all(1).await, 2);
    let newest = t.dataset().await.version_id();
    for version in t.dataset().await.versions().await.unwrap() {
        if version.version < newest {
            let name = format!("{:020}.manifest", u64::MAX - version.version);
            fs::remove_file(t.path().join("_versions").join(name)).unwrap();
        }
    }
    let (after, _) = m.observe().await;
    assert_eq!(after.base.version, newest);
    assert_eq!(after.pending_generations(), Some(0));
}

#[tokio::test]
async fn a_tables_own_clean_up_is_named_and_never_run_by_us() {
    let t = two_generations().await;
    let mut dataset = t.dataset().await;
    let options = [
        ("lance.auto_cleanup.interval", "1"),
        ("lance.auto_cleanup.older_than", "0s"),
    ];
    dataset.update_config(options).await.unwrap();
    let before = t.dataset().await.versions().await.unwrap().len();
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut m).await, [AutoCleanup]);
    assert_eq!(m.merge_all(1).await, 2);
    assert_eq!(
        t.dataset().await.versions().await.unwrap().len(),
        before + 2
    );
}

#[tokio::test]
async fn a_directory_that_is_no_shard_is_reported_and_left_alone() {
    let t = two_generations().await;
    fs::create_dir_all(t.path().join("_mem_wal/notes")).unwrap();
    fs::write(t.path().join("_mem_wal/notes/a.txt"), "x").unwrap();
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut m).await, [UnknownDirectory]);
    m.merge_all(9).await;
    assert!(t.path().join("_mem_wal/notes/a.txt").exists());
}

#[tokio::test]
async fn a_retired_writers_shard_is_found_and_drains_too() {
    let mut t = two_generations().await;
    t.close().await;
    let mut m = Merger::open(&t.uri).await;
    m.merge_all(9).await;
    assert_eq!(m.drain_all().await.unwrap(), 2);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn what_cannot_be_read_is_unknown_and_not_zero() {
    let mut t = two_generations().await;
    rewrite(&t, |m| {
        m.sstables[1].physical_rows = None;
        m.sstables[1].in_memory_bytes = None;
    })
    .await;
    t.close().await;
    let tree = Tree::of(t.path());
    for file in tree.find("_gen_2/_versions/") {
        fs::remove_file(file).unwrap();
    }
    let (observation, _) = Merger::open(&t.uri).await.observe().await;
    assert_eq!(observation.pending_generations(), Some(2));
    assert_eq!(observation.pending_rows(), None);
    assert_eq!(observation.pending_bytes(), None);
    assert!(observation.oldest().is_some());
}

#[tokio::test]
async fn generations_that_claim_more_than_any_memory_overflow_nothing_and_are_merged() {
    let mut t = two_generations().await;
    rewrite(&t, |m| {
        for sstable in &mut m.sstables {
            sstable.physical_rows = Some(u64::MAX);
            sstable.in_memory_bytes = Some(u64::MAX);
        }
    })
    .await;
    t.close().await;
    let mut m = Merger::open(&t.uri).await;
    let (observation, _) = m.observe().await;
    assert_eq!(observation.pending_bytes(), Some(u64::MAX));
    assert_eq!(observation.pending_rows(), Some(u64::MAX));
    m.merge_all(9).await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_number_that_is_missing_between_pending_ones_is_named_and_holds_nothing_up() {
    for marked in [0, 1] {
        let mut t = two_generations().await;
        if marked == 1 {
            Merger::open(&t.uri).await.try_merge(1).await.unwrap();
        }
        t.put(&[(3, 3), (302, 3)]).await;
        t.flush().await;
        rewrite(&t, |m| m.sstables.retain(|s| s.generation != 2)).await;
        let mut m = Merger::open(&t.uri).await;
        let (observation, _) = m.observe().await;
        let found = observation.anomalies.first().unwrap();
        assert_eq!((found.kind, found.shard), (ForeignMerger, Some(shard(0))));
        assert!(
            found.message.starts_with("generation 2 "),
            "{}",
            found.message
        );
        m.merge_all(9).await;
        // What was in it is in the base no more than before; all else is.
        let mut without = t.model.clone();
        without.rows.insert(2, 0);
        without.rows.remove(&301);
        let verdict = t.rows().await.against(&without, &t.spec.shape);
        assert_eq!(verdict, Default::default());
        // It stays told for a while by the process that saw it.
        assert_eq!(kinds(&mut m).await, [ForeignMerger]);
    }
}

#[tokio::test]
async fn writers_that_crash_fence_each_other_and_flush_nothing_leave_no_number_out() {
    let mut t = Fixture::create(Spec::default()).await;
    let mut m = Merger::open(&t.uri).await;
    for round in 1..=6 {
        t.put(&[(round, round as i64)]).await;
        match round % 3 {
            0 => t.crash_writer(0).await,
            1 => drop(t.flush_shard(0).await),
            _ => t.close().await,
        }
        // Nothing to flush, and a writer that takes the shard from the one before and holds nothing either.
        t.flush_shard(0).await;
        let dataset = t.dataset().await;
        let config = writer_config(shard(0), 100);
        let other = dataset.mem_wal_writer(shard(0), config).await.unwrap();
        other.close().await.unwrap();
        t.crash_writer(0).await;
        let (observation, snapshot) = m.observe().await;
        assert_eq!(snapshot.shards[0].missing(), None);
        assert_eq!(observation.anomalies, []);
        if round == 4 {
            m.merge_all(1).await;
        }
    }
    t.writer(0).await;
    t.close().await;
    m.merge_all(9).await;
    assert_eq!(kinds(&mut m).await, []);
    assert_eq!(t.verdict().await, Default::default());
}
