//! A table without a primary key that went back (contract 3): what is merged again is there twice, unless its rows went too.
//!
//! Lives here: what can be acknowledged there and what cannot, by the rows that a reader finds. May use: Lance as other
//! clients use it. Never: a judgement by watermarks alone.

use std::fs;

use arrow_array::RecordBatchIterator;
use freshet::table::AnomalyKind::*;
use lance::Dataset;
use lance::dataset::{WriteMode, WriteParams};
use lance::index::DatasetIndexExt;

use crate::anomalies::{kinds, restore};
use crate::disk::Tree;
use crate::fixtures::{Fixture, Shape, Spec};
use crate::mergers::Merger;

/// A table without a key and two generations of a row each.
async fn table() -> Fixture {
    let mut t = Fixture::create(Spec {
        shape: Shape::append_only(),
        ..Default::default()
    })
    .await;
    for n in 0..2 {
        t.put(&[(200 + n, 1)]).await;
        t.flush().await;
    }
    t
}

/// Makes the MemWAL index anew and leaves the rows where they are.
async fn make_anew(t: &mut Fixture) {
    let mut dataset = t.dataset().await;
    dataset.drop_index("__lance_mem_wal").await.unwrap();
    t.enable_mem_wal().await;
}

async fn overwrite(t: &mut Fixture) {
    let rows = vec![Ok(t.spec.shape.batch(&[(7, 7)]))];
    let rows = RecordBatchIterator::new(rows, t.spec.shape.schema());
    let params = WriteParams {
        mode: WriteMode::Overwrite,
        ..Default::default()
    };
    Dataset::write(rows, &t.uri, Some(params)).await.unwrap();
    t.enable_mem_wal().await;
    t.model.rows = [(7, 7)].into();
}

async fn person(uri: &str) -> Merger {
    let mut m = Merger::open(uri).await;
    m.tracker.acknowledge([WentBack, WatermarkAhead]);
    m
}

/// Nothing is merged, whoever says so, and the anomaly says why.
async fn is_refused(t: &Fixture, also: &mut Merger) {
    let before = Tree::of(t.path());
    also.tracker.acknowledge([WentBack]);
    for m in [also, &mut person(&t.uri).await] {
        let (observation, snapshot) = m.observe().await;
        let told = &observation.anomalies[0];
        assert_eq!(told.kind, WentBack);
        assert!(told.message.contains("no primary key"), "{}", told.message);
        assert!(told.message.contains("new shard id"), "{}", told.message);
        assert!(Merger::chunk(&observation, &snapshot, 9).is_none());
        assert_eq!(m.merge_all(9).await, 0);
        assert_eq!(m.drain_all().await.unwrap(), 0);
    }
    assert_eq!(Tree::of(t.path()), before);
    assert_eq!(t.verdict().await, Default::default());
}

/// It waits for a person, and is merged once one says so.
async fn is_merged(t: &Fixture, generations: usize) {
    let mut running = Merger::open(&t.uri).await;
    assert_eq!(kinds(&mut running).await, [WentBack]);
    assert_eq!(person(&t.uri).await.merge_all(1).await, generations);
    assert_eq!(t.verdict().await, Default::default());
    assert_eq!(kinds(&mut running).await, []);
}

#[tokio::test]
async fn a_mem_wal_index_made_anew_over_merged_rows_without_a_key_doubles_none_whoever_acknowledges()
 {
    let mut t = table().await;
    let mut running = Merger::open(&t.uri).await;
    running.merge_all(9).await;
    make_anew(&mut t).await;
    is_refused(&t, &mut running).await;
    // Nor where the two commits lie further back.
    for n in 0..12 {
        let rows = vec![Ok(t.spec.shape.batch(&[(900 + n, 1)]))];
        let rows = RecordBatchIterator::new(rows, t.spec.shape.schema());
        t.dataset().await.append(rows, None).await.unwrap();
        t.model.put(&[(900 + n, 1)]);
    }
    is_refused(&t, &mut running).await;
}

#[tokio::test]
async fn generations_that_were_drained_before_the_index_was_made_anew_are_not_in_the_way() {
    let mut t = table().await;
    let mut m = Merger::open(&t.uri).await;
    m.merge_all(9).await;
    assert_eq!(m.drain_all().await.unwrap(), 2);
    t.put(&[(300, 1)]).await;
    t.flush().await;
    make_anew(&mut t).await;
    is_merged(&t, 1).await;
}

#[tokio::test]
async fn a_mem_wal_index_made_anew_over_what_was_never_merged_is_merged_once_it_is_acknowledged() {
    let mut t = table().await;
    make_anew(&mut t).await;
    is_merged(&t, 2).await;
}

#[tokio::test]
async fn where_the_versions_before_are_gone_nobody_can_tell_and_nothing_is_doubled() {
    let mut t = table().await;
    let mut running = Merger::open(&t.uri).await;
    running.merge_all(9).await;
    make_anew(&mut t).await;
    assert!(kinds(&mut running).await.contains(&WentBack));
    let newest = t.dataset().await.version_id();
    for version in 1..newest - 1 {
        let name = format!("{:020}.manifest", u64::MAX - version);
        fs::remove_file(t.path().join("_versions").join(name)).unwrap();
    }
    let before = Tree::of(t.path());
    running.tracker.acknowledge([WentBack]);
    running.tracker.refresh();
    for m in [&mut running, &mut person(&t.uri).await] {
        assert_eq!(kinds(m).await, [WentBack]);
        assert_eq!(m.merge_all(9).await, 0);
    }
    assert_eq!(Tree::of(t.path()), before);
}

#[tokio::test]
async fn a_restore_takes_rows_back_with_their_watermark_and_can_be_acknowledged() {
    let t = table().await;
    let before = t.dataset().await.version_id();
    Merger::open(&t.uri).await.merge_all(1).await;
    restore(&t, before).await;
    is_merged(&t, 2).await;
    // Of a part too, also where the versions before are gone.
    restore(&t, before + 1).await;
    for version in 1..=before {
        let name = format!("{:020}.manifest", u64::MAX - version);
        fs::remove_file(t.path().join("_versions").join(name)).unwrap();
    }
    is_merged(&t, 1).await;
}

#[tokio::test]
async fn a_restore_of_an_index_that_was_made_anew_over_merged_rows_cannot_be_acknowledged() {
    let mut t = table().await;
    let mut running = Merger::open(&t.uri).await;
    running.merge_all(9).await;
    make_anew(&mut t).await;
    let anew = t.dataset().await.version_id();
    make_anew(&mut t).await;
    restore(&t, anew).await;
    is_refused(&t, &mut running).await;
}

#[tokio::test]
async fn an_overwrite_takes_all_rows_away_and_can_be_acknowledged_until_they_are_merged_again() {
    for merged in [false, true] {
        let mut t = table().await;
        if merged {
            Merger::open(&t.uri).await.merge_all(9).await;
        }
        t.close().await;
        overwrite(&mut t).await;
        t.model.put(&[(200, 1), (201, 1)]);
        is_merged(&t, 2).await;
        make_anew(&mut t).await;
        is_refused(&t, &mut Merger::open(&t.uri).await).await;
    }
}
