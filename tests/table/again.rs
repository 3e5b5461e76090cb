//! A shard whose directory was removed and made again under the same id (contract 3): its counter begins at 1 below the
//! base's watermark, and what it flushes up to there is nowhere else.
//!
//! Lives here: that it is named for every process, whenever that looks first, and that nothing else is. May use: Lance's
//! own writer. Never: a clock that is set, or a wait.

use std::fs;

use freshet::table::AnomalyKind::{self, *};

use crate::disk::Tree;
use crate::fixtures::{Fixture, Spec, shard};
use crate::mergers::Merger;
use crate::reference;

pub async fn kinds(m: &mut Merger) -> Vec<AnomalyKind> {
    let (observation, _) = m.observe().await;
    observation.anomalies.iter().map(|a| a.kind).collect()
}

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
    crate::anomalies::mark(&t, 4).await;
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
    crate::fixtures::copy_dir(&aside, &log);
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
