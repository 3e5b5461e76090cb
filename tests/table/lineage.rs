//! What Lance keeps of a row on tables with stable row ids, through merges: its id, and the versions that made and changed it.
//!
//! Lives here: that a merge leaves it as Lance's own merge does. May use: fixtures, the reference. Never: a count of bytes.

use std::collections::{BTreeMap, BTreeSet};

use freshet::table::Outcome;

use crate::fixtures::{Fixture, Kind, Shape, Spec};
use crate::mergers::Merger;
use crate::reference;

const KEPT: [&str; 3] = [
    "_rowid",
    "_row_created_at_version",
    "_row_last_updated_at_version",
];

/// Base rows of two versions, one of them updated by a merge before; updates, deletes and new rows are pending.
async fn table() -> Fixture {
    let spec = Spec {
        shape: Shape::composite(&[Kind::Utf8, Kind::Int32]),
        base: (0..40).map(|k| (k, 0)).collect(),
        rows_per_file: 16,
        stable_row_ids: true,
        ..Default::default()
    };
    let mut t = Fixture::create(spec).await;
    t.put(&[(3, 1), (21, 1), (100, 1), (101, 1)]).await;
    t.flush().await;
    Merger::open(&t.uri).await.merge_all(9).await;
    t.put(&[(39, 2), (3, 2), (100, 2), (17, 2), (200, 2)]).await;
    t.delete(&[4, 101]).await;
    t.flush().await;
    t.put(&[(17, 3), (0, 3), (201, 3)]).await;
    t.delete(&[39]).await;
    t.flush().await;
    t
}

async fn kept(t: &Fixture) -> Vec<BTreeMap<String, u64>> {
    let mut all = vec![];
    for column in KEPT {
        all.push(t.lineage(column).await);
    }
    all
}

/// The same with each version as its place among those that occur: the reference makes two of a generation.
fn in_order(all: &[BTreeMap<String, u64>]) -> Vec<BTreeMap<String, usize>> {
    let versions: BTreeSet<u64> = all.iter().flat_map(|m| m.values().copied()).collect();
    let place = |version: &u64| versions.range(..version).count();
    let of = |m: &BTreeMap<String, u64>| m.iter().map(|(k, v)| (k.clone(), place(v))).collect();
    all.iter().map(of).collect()
}

#[tokio::test]
async fn rows_keep_their_ids_and_the_versions_that_made_them_as_by_lances_own_merge() {
    let ours = table().await;
    let plain = ours.copy();
    let before = kept(&ours).await;
    // A generation at a time, as the reference does.
    assert_eq!(Merger::open(&ours.uri).await.merge_all(1).await, 2);
    reference::merge_all(&plain.uri).await;
    assert_eq!(ours.verdict().await, Default::default());
    let (ours, plain) = (kept(&ours).await, kept(&plain).await);
    assert_eq!(in_order(&ours[1..]), in_order(&plain[1..]));
    let stays = |key: &&String| before[0].contains_key(*key);
    assert!(ours[0].keys().filter(stays).count() > 30);
    for key in ours[0].keys().filter(stays) {
        assert_eq!(ours[0][key], before[0][key], "{key}");
        assert_eq!(ours[0][key], plain[0][key], "{key}");
        assert_eq!(ours[1][key], before[1][key], "{key}");
    }
}

#[tokio::test]
async fn a_merge_that_is_streamed_keeps_of_each_row_what_one_that_is_held_does() {
    let held = table().await;
    let streamed = held.copy();
    let mut small = Merger::open(&streamed.uri).await.with_budget(2 << 10);
    let done = small.try_merge(9).await.unwrap();
    assert!(matches!(done, Some(Outcome::Merged(m)) if m.streamed));
    Merger::open(&held.uri).await.merge_all(9).await;
    assert_eq!(kept(&streamed).await, kept(&held).await);
}

#[tokio::test]
async fn what_a_commit_takes_for_its_rows_counts_on_tables_with_stable_row_ids_alone() {
    for stable_row_ids in [false, true] {
        let spec = Spec {
            stable_row_ids,
            ..Default::default()
        };
        let mut t = Fixture::create(spec).await;
        t.put(&[(1, 1), (2, 1), (200, 1)]).await;
        t.flush().await;
        let (seen, _) = Merger::open(&t.uri).await.observe().await;
        let expected = if stable_row_ids { 3 * 112 } else { 0 };
        assert_eq!(seen.shards[0].pending[0].commit_bytes, expected);
    }
}
