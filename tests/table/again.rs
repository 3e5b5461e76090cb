//! A shard whose directory was removed and made again under the same id (contract 3): its counter begins at 1 below the
//! base's watermark, and what it flushes up to there is nowhere else.
//!
//! Lives here: that it is named for every process, whenever that looks first, and that nothing else is. May use: Lance's
//! own writer. Never: a clock that is set, or a wait.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use freshet::table::AnomalyKind::*;
use freshet::table::Outcome;
use lance::dataset::mem_wal::DatasetMemWalExt;
use lance::index::DatasetIndexExt;
use uuid::Uuid;

use crate::anomalies::{kinds, mark, more_versions};
use crate::disk::Tree;
use crate::fixtures::{Fixture, Shape, Spec, copy_dir, shard};
use crate::mergers::Merger;
use crate::pauses::held;
use crate::reference;

/// A table with two merged generations, undrained.
async fn merged() -> Fixture {
    let mut t = Fixture::create(Spec::default()).await;
    for n in 1..=2 {
        t.put(&[(n, 1), (300 + n, 1)]).await;
        t.flush().await;
    }
    Merger::open(&t.uri).await.merge_all(9).await;
    t
}

/// Removes what lies under `_mem_wal/` and writes so many generations anew under the same id.
async fn make_again(t: &mut Fixture, generations: u64) {
    t.close().await;
    fs::remove_dir_all(t.path().join("_mem_wal")).unwrap();
    for n in 0..generations {
        t.put(&[(n, 7), (500 + n, 7)]).await;
        t.delete(&[90 + n]).await;
        t.flush().await;
    }
}

#[tokio::test]
async fn a_shard_made_again_under_a_live_tracker_is_named_also_once_it_came_past_its_mark() {
    let mut t = merged().await;
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut m).await, []);
    make_again(&mut t, 1).await;
    assert_eq!(kinds(&mut m).await, [WatermarkAhead]);
    for n in 6..9 {
        t.put(&[(n, 5)]).await;
        t.flush().await;
    }
    assert_eq!(kinds(&mut m).await, [WatermarkAhead]);
    let (observation, snapshot) = m.observe().await;
    assert!(Merger::chunk(&observation, &snapshot, 9).is_none());
}

#[tokio::test]
async fn a_shard_that_came_past_its_mark_between_two_looks_is_named() {
    let mut t = merged().await;
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut m).await, []);
    make_again(&mut t, 4).await;
    assert_eq!(kinds(&mut m).await, [WatermarkAhead]);
}

#[tokio::test]
async fn a_shard_made_again_after_merges_that_nobody_saw_is_named_however_many_versions_follow() {
    for versions in [1, 20] {
        let mut t = merged().await;
        let mut m = Merger::open(&t.uri).await;
        assert_eq!(kinds(&mut m).await, []);
        for n in 3..=4 {
            t.put(&[(n, 1)]).await;
            t.flush().await;
        }
        Merger::open(&t.uri).await.merge_all(1).await;
        // What it lists at the mark was flushed after the base said so, and before the version that is looked at.
        make_again(&mut t, 4).await;
        more_versions(&t, versions).await;
        assert_eq!(kinds(&mut m).await, [WatermarkAhead]);
    }
}

#[tokio::test]
async fn a_shard_that_came_past_its_mark_before_anybody_looked_is_named_and_keeps_its_rows() {
    for generations in [3, 6] {
        let mut t = merged().await;
        make_again(&mut t, generations).await;
        let before = Tree::of(t.path());
        for _ in 0..2 {
            let mut m = Merger::open(&t.uri).await;
            assert_eq!(kinds(&mut m).await, [WatermarkAhead]);
            assert_eq!(m.merge_all(9).await, 0);
            assert_eq!(m.reclaim_all().await.unwrap(), 0);
            let (observation, _) = m.observe().await;
            assert!(observation.blocked(shard(0)).is_some());
        }
        assert_eq!(Tree::of(t.path()), before);
    }
}

#[tokio::test]
async fn a_mark_that_was_made_by_hand_before_the_shard_came_to_it_is_named_later_too() {
    let mut t = merged().await;
    mark(&t, 4).await;
    for n in 5..9 {
        t.put(&[(n, 5)]).await;
        t.flush().await;
    }
    assert_eq!(
        kinds(&mut Merger::open(&t.uri).await).await,
        [WatermarkAhead]
    );
}

#[tokio::test]
async fn merged_generations_that_are_still_listed_say_nothing_whoever_merged_them() {
    let mut t = Fixture::create(Spec {
        shards: 2,
        ..Default::default()
    })
    .await;
    let mut running = Merger::open(&t.uri).await;
    for n in 0..6 {
        t.put(&[(2 * n, 1), (2 * n + 1, 2), (400 + n, 3)]).await;
        t.flush().await;
        // As soon as it is flushed: times lie as close together as they ever do.
        match n % 2 {
            0 => reference::merge_all(&t.uri).await,
            _ => drop(Merger::open(&t.uri).await.merge_all(1).await),
        }
        t.put(&[(2 * n, 4), (2 * n + 1, 4)]).await;
        t.flush().await;
        assert_eq!(kinds(&mut Merger::open(&t.uri).await).await, []);
        assert_eq!(kinds(&mut running).await, []);
    }
    // Old versions go; the oldest that is left is younger than most flushes.
    running.merge_all(9).await;
    running.clean_versions().await.unwrap();
    assert_eq!(kinds(&mut Merger::open(&t.uri).await).await, []);
    assert_eq!(running.drain_all().await.unwrap(), 24);
    assert_eq!(kinds(&mut Merger::open(&t.uri).await).await, []);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_copy_of_a_table_with_times_of_its_own_says_nothing() {
    let t = merged().await;
    let copy = t.copy();
    // Its generations come last.
    let log = copy.path().join("_mem_wal");
    let aside = copy.path().parent().unwrap().join("aside");
    fs::rename(&log, &aside).unwrap();
    copy_dir(&aside, &log);
    fs::remove_dir_all(&aside).unwrap();
    assert_eq!(kinds(&mut Merger::open(&copy.uri).await).await, []);
}

#[tokio::test]
async fn a_table_that_was_restored_and_merged_again_says_nothing_more() {
    let t = merged().await;
    let first = t.dataset().await.checkout_version(2).await.unwrap();
    let mut old = first;
    old.restore().await.unwrap();
    let mut person = Merger::open(&t.uri).await;
    person.tracker.acknowledge([WentBack]);
    person.merge_all(1).await;
    assert_eq!(kinds(&mut Merger::open(&t.uri).await).await, []);
}

#[tokio::test]
async fn a_merged_generation_that_cannot_be_read_does_not_end_the_looking() {
    let mut t = merged().await;
    t.close().await;
    for file in Tree::of(t.path()).find("_gen_2/_versions/") {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(kinds(&mut Merger::open(&t.uri).await).await, []);
}

// -- acknowledged -----------------------------------------------------------------------------------------------------

/// The base's watermarks.
async fn marks(t: &Fixture) -> BTreeMap<Uuid, u64> {
    let dataset = t.dataset().await;
    let details = dataset.mem_wal_index_details().await.unwrap().unwrap();
    let all = details.compacted_sstables.iter();
    all.map(|c| (c.shard_id, c.generation)).collect()
}

/// A merger of a person who said that all that is listed is to be merged.
async fn person(uri: &str) -> Merger {
    let mut m = Merger::open(uri).await;
    m.tracker.acknowledge([WatermarkAhead]);
    m
}

#[tokio::test]
async fn an_acknowledged_shard_is_merged_from_its_start_and_is_settled_for_every_process() {
    // Behind the mark, at it, and past it.
    for generations in [1, 2, 3, 6] {
        for at_most in [1, 9] {
            let mut t = merged().await;
            let mut running = Merger::open(&t.uri).await;
            running.observe().await;
            make_again(&mut t, generations).await;
            assert_eq!(kinds(&mut running).await, [WatermarkAhead]);
            let mut m = person(&t.uri).await;
            let (observation, _) = m.observe().await;
            assert_eq!(
                observation.pending_generations(),
                Some(generations as usize)
            );
            assert_eq!(observation.anomalies, []);
            m.try_merge(at_most).await.unwrap();
            // A process that was there before, and one that was not.
            assert_eq!(kinds(&mut running).await, []);
            let mut later = Merger::open(&t.uri).await;
            assert_eq!(kinds(&mut later).await, []);
            later.merge_all(at_most).await;
            assert_eq!(t.verdict().await, Default::default(), "{generations}");
            assert_eq!(kinds(&mut m).await, []);
            assert_eq!(later.drain_all().await.unwrap() as u64, generations);
            t.put(&[(8, 8)]).await;
            t.flush().await;
            later.merge_all(9).await;
            for m in [&mut running, &mut m, &mut later] {
                assert_eq!(kinds(m).await, []);
            }
            assert_eq!(t.verdict().await, Default::default());
        }
    }
}

#[tokio::test]
async fn nothing_is_drained_or_reclaimed_of_an_acknowledged_shard_before_it_is_merged() {
    let mut t = merged().await;
    make_again(&mut t, 5).await;
    let before = Tree::of(t.path());
    let mut m = person(&t.uri).await;
    let (observation, _) = m.observe().await;
    assert_eq!(observation.shards[0].watermark, 0);
    assert!(observation.shards[0].merged.is_empty());
    assert_eq!(m.reclaim_all().await.unwrap(), 0);
    assert_eq!(m.drain_all().await.unwrap(), 0);
    assert_eq!(Tree::of(t.path()), before);
}

#[tokio::test]
async fn too_much_that_was_marked_by_hand_is_merged_once_it_is_acknowledged() {
    for through in [999, 1 << 62, u64::MAX - 1] {
        let mut t = merged().await;
        t.put(&[(3, 3)]).await;
        t.flush().await;
        mark(&t, through).await;
        let mut m = person(&t.uri).await;
        m.merge_all(2).await;
        assert_eq!(t.verdict().await, Default::default());
        assert_eq!(kinds(&mut Merger::open(&t.uri).await).await, []);
    }
}

#[tokio::test]
async fn a_merge_that_was_prepared_before_the_acknowledgement_does_not_lift_the_mark_again() {
    let mut t = merged().await;
    make_again(&mut t, 2).await;
    for n in 3..=4 {
        t.put(&[(n, n as i64), (700 + n, 3)]).await;
        t.flush().await;
    }
    // As an older release would, and any other client: they take generations 3 and 4 for the only pending ones.
    let mut old = Merger::open(&t.uri).await;
    let (_, snapshot) = old.observe().await;
    let chunk = snapshot.chunk(&[(shard(0), 4)]).unwrap();
    let (known, limits) = (old.tracker.known(), old.limits());
    let ours = old.table.merge(&snapshot, &chunk, &known, &limits);
    let dataset = Arc::new(t.dataset().await);
    let foreign = reference::prepare_unfenced(&dataset, shard(0), 2).await;
    let outcome = held("merge.commit", ours, async {
        let mut m = person(&t.uri).await;
        m.try_merge(1).await.unwrap();
    })
    .await;
    assert!(matches!(outcome.unwrap(), Outcome::Lost));
    let late = reference::commit_unfenced(&dataset, foreign).await;
    assert!(late.is_err());
    let mut later = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut later).await, []);
    later.merge_all(9).await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn an_acknowledgement_undoes_nothing_that_was_committed_while_it_was_made() {
    let mut t = Fixture::create(Spec {
        shards: 2,
        ..Default::default()
    })
    .await;
    t.put(&[(2, 1), (3, 1)]).await;
    t.flush().await;
    t.put(&[(2, 2), (3, 2)]).await;
    t.flush().await;
    Merger::open(&t.uri).await.merge_all(9).await;
    t.close().await;
    let made_again = t.path().join("_mem_wal").join(shard(0).to_string());
    fs::remove_dir_all(made_again).unwrap();
    for n in 3..6 {
        t.put(&[(2, n), (3, n)]).await;
        t.flush().await;
    }
    let mut m = person(&t.uri).await;
    held("reset.commit", m.try_merge(1), async {
        // Not blocked: the other shard. And somebody makes an index.
        Merger::open(&t.uri).await.merge_all(9).await;
        t.index_key().await;
    })
    .await
    .unwrap();
    assert_eq!(marks(&t).await[&shard(1)], 5);
    let indices = t.dataset().await.load_indices().await.unwrap();
    assert_eq!(indices.len(), 2);
    m.merge_all(9).await;
    assert_eq!(marks(&t).await[&shard(0)], 3);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn of_two_people_who_acknowledge_at_once_neither_undoes_the_others_merges() {
    let mut t = merged().await;
    make_again(&mut t, 4).await;
    let (mut a, mut b) = (person(&t.uri).await, person(&t.uri).await);
    let late = held("reset.commit", a.try_merge(1), async {
        assert_eq!(b.merge_all(3).await, 2);
    });
    assert!(matches!(late.await.unwrap(), Some(Outcome::Lost)));
    assert_eq!(a.merge_all(9).await, 0);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn without_a_key_it_cannot_be_acknowledged_for_rows_would_be_doubled() {
    let mut t = Fixture::create(Spec {
        shape: Shape::append_only(),
        ..Default::default()
    })
    .await;
    t.put(&[(200, 1)]).await;
    t.flush().await;
    Merger::open(&t.uri).await.merge_all(9).await;
    t.close().await;
    fs::remove_dir_all(t.path().join("_mem_wal")).unwrap();
    t.put(&[(201, 1)]).await;
    t.flush().await;
    let before = Tree::of(t.path());
    let mut m = person(&t.uri).await;
    let (observation, snapshot) = m.observe().await;
    let told = &observation.anomalies[0];
    assert_eq!(told.kind, WatermarkAhead);
    assert!(told.message.contains("new shard id"), "{}", told.message);
    assert!(Merger::chunk(&observation, &snapshot, 9).is_none());
    assert_eq!(Tree::of(t.path()), before);
}
