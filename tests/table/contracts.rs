//! The contracts of merging, one test each: the fence, the deadline, the mark, and what a clean-up beside a merge does.
//!
//! Lives here: contracts 2, 4, 5, 6, 8, 14, 15 as far as the table room shows them. May use: fixtures, mergers. Never: a
//! promise that another world shows better.

use std::time::{Duration, Instant};

use freshet::table::{Limits, Listing, Outcome};
use lance::dataset::cleanup::CleanupPolicyBuilder;
use lance::dataset::mem_wal::DatasetMemWalExt;

use crate::disk::Tree;
use crate::fixtures::{Fixture, Kind, Shape, Spec, shard};
use crate::mergers::Merger;
use crate::pauses::held;

/// Three generations: a key that is put and deleted again, updates, new keys.
async fn three_generations(spec: Spec) -> Fixture {
    let mut t = Fixture::create(spec).await;
    t.put(&[(1, 1), (110, 1), (111, 1)]).await;
    t.flush().await;
    t.delete(&[110, 2]).await;
    t.put(&[(3, 2), (112, 2)]).await;
    t.flush().await;
    t.put(&[(1, 3), (111, 3)]).await;
    t.flush().await;
    t
}

fn specs() -> Vec<Spec> {
    let base = Spec {
        rows_per_file: 40,
        ..Default::default()
    };
    vec![
        base.clone(),
        Spec {
            btree: true,
            ..base.clone()
        },
        Spec {
            shape: Shape::keyed(Kind::Int16),
            ..base.clone()
        },
        Spec {
            shape: Shape::composite(&[Kind::Int8, Kind::Utf8]),
            ..base.clone()
        },
        Spec {
            stable_row_ids: true,
            ..base
        },
    ]
}

/// Merges `first` generations while another merger, which read the same base, merges `second` of them.
async fn race(t: &Fixture, first: usize, second: usize) -> (Outcome, Outcome) {
    let (mut a, mut b) = (Merger::open(&t.uri).await, Merger::open(&t.uri).await);
    let mut inner = None;
    let outer = held("merge.commit", a.try_merge(first), async {
        inner = b.try_merge(second).await.unwrap();
    })
    .await;
    (outer.unwrap().unwrap(), inner.unwrap())
}

#[tokio::test]
async fn of_two_merges_prepared_on_one_base_whose_chunks_end_apart_exactly_one_commits() {
    for spec in specs() {
        for (late, early) in [(3, 1), (2, 1), (3, 2)] {
            let t = three_generations(spec.clone()).await;
            let before = t.dataset().await.version_id();
            let (outer, inner) = race(&t, late, early).await;
            assert!(matches!(inner, Outcome::Merged(_)), "{spec:?}: {inner:?}");
            assert!(matches!(outer, Outcome::Lost), "{spec:?}: {outer:?}");
            assert_eq!(t.dataset().await.version_id(), before + 1);
            Merger::open(&t.uri).await.merge_all(9).await;
            assert_eq!(t.verdict().await, Default::default(), "{spec:?}");
        }
    }
}

#[tokio::test]
async fn a_watermark_at_or_past_ours_is_success_by_another_hand() {
    for spec in specs() {
        for (late, early) in [(1, 1), (1, 3), (2, 3), (3, 3)] {
            let t = three_generations(spec.clone()).await;
            let (outer, inner) = race(&t, late, early).await;
            assert!(matches!(inner, Outcome::Merged(_)), "{inner:?}");
            assert!(matches!(outer, Outcome::Overtaken), "{spec:?}: {outer:?}");
            Merger::open(&t.uri).await.merge_all(9).await;
            assert_eq!(t.verdict().await, Default::default(), "{spec:?}");
        }
    }
}

#[tokio::test]
async fn merges_of_two_shards_do_not_disturb_each_other() {
    let mut t = Fixture::create(Spec {
        shards: 2,
        ..Default::default()
    })
    .await;
    t.put(&[(2, 1), (3, 1), (200, 1), (201, 1)]).await;
    t.flush().await;
    let (mut a, mut b) = (Merger::open(&t.uri).await, Merger::open(&t.uri).await);
    let (_, one) = a.observe().await;
    let (_, two) = b.observe().await;
    let (first, second) = (
        one.chunk(&[(shard(0), 1)]).unwrap(),
        two.chunk(&[(shard(1), 1)]).unwrap(),
    );
    let (la, ka, lb, kb) = (a.limits(), a.tracker.known(), b.limits(), b.tracker.known());
    let outcome = held(
        "merge.commit",
        a.table.merge(&one, &first, &ka, &la),
        async {
            let inner = b.table.merge(&two, &second, &kb, &lb).await.unwrap();
            assert!(matches!(inner, Outcome::Merged(_)), "{inner:?}");
        },
    );
    let outcome = outcome.await.unwrap();
    assert!(matches!(outcome, Outcome::Merged(_)), "{outcome:?}");
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn rows_deletes_and_watermarks_land_in_one_version() {
    let t = three_generations(Spec::default()).await;
    let before = t.dataset().await.version_id();
    assert_eq!(Merger::open(&t.uri).await.merge_all(9).await, 1);
    let after = t.dataset().await;
    assert_eq!(after.version_id(), before + 1);
    let marks = after
        .mem_wal_index_details()
        .await
        .unwrap()
        .unwrap()
        .compacted_sstables;
    assert_eq!(
        marks
            .iter()
            .map(|m| (m.shard_id, m.generation))
            .collect::<Vec<_>>(),
        [(shard(0), 3)]
    );
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn an_attempt_past_its_deadline_never_commits() {
    let t = three_generations(Spec::default()).await;
    let before = t.dataset().await.version_id();
    let mut m = Merger::open(&t.uri).await;
    let (observation, snapshot) = m.observe().await;
    let chunk = Merger::chunk(&observation, &snapshot, 9).unwrap();
    let known = m.tracker.known();
    // Past from the start, and past while it waited to commit.
    let late = Limits {
        budget_bytes: 1 << 26,
        deadline: Instant::now(),
    };
    let e = m
        .table
        .merge(&snapshot, &chunk, &known, &late)
        .await
        .unwrap_err();
    assert_eq!(e.reason(), "DeadlineExceeded");
    let soon = Limits::new(1 << 26, Duration::from_secs(2));
    let work = m.table.merge(&snapshot, &chunk, &known, &soon);
    let e = held(
        "merge.commit",
        work,
        tokio::time::sleep_until(soon.deadline.into()),
    )
    .await
    .unwrap_err();
    assert_eq!(e.reason(), "DeadlineExceeded");
    assert_eq!(t.dataset().await.version_id(), before);
}

/// Another client updates a key past this merge, and the version that it made is cleaned up before this merge commits.
async fn clean_up_beside(tag: bool) {
    let mut t = three_generations(Spec {
        rows_per_file: 40,
        ..Default::default()
    })
    .await;
    let read = t.dataset().await.version_id();
    if tag {
        t.dataset().await.tags().create("kept", read).await.unwrap();
    }
    let (mut a, mut b) = (Merger::open(&t.uri).await, Merger::open(&t.uri).await);
    let outer = held("merge.commit", a.try_merge(3), async {
        b.try_merge(2).await.unwrap();
        // A version on top, so that the merge's own may go.
        let mut dataset = t.dataset().await;
        dataset.update_config([("any", "thing")]).await.unwrap();
        let policy = CleanupPolicyBuilder::default()
            .error_if_tagged_old_versions(false)
            .retain_n_versions(&dataset, 1);
        dataset
            .cleanup_with_policy(policy.await.unwrap().build())
            .await
            .unwrap();
        let left = t.dataset().await.versions().await.unwrap();
        assert!(!left.iter().any(|v| v.version == read + 1));
    });
    let outer = outer.await.unwrap().unwrap();
    assert!(matches!(outer, Outcome::Lost), "{outer:?}");
    t.put(&[(7, 9)]).await;
    t.flush().await;
    Merger::open(&t.uri).await.merge_all(9).await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_version_cleaned_up_between_read_and_commit_is_a_conflict_and_no_resurrection() {
    clean_up_beside(false).await;
}

#[tokio::test]
async fn a_version_cleaned_up_while_a_tag_keeps_the_one_that_was_read_is_a_conflict_too() {
    clean_up_beside(true).await;
}

#[tokio::test]
async fn a_snapshot_whose_base_moved_after_the_manifests_were_read_hides_and_doubles_nothing() {
    let t = three_generations(Spec::default()).await;
    let mut m = Merger::open(&t.uri).await;
    let listing = Listing::read(&m.table).await.unwrap();
    m.merge_all(2).await;
    m.drain_all().await.unwrap();
    let snapshot = listing.with_base(&m.table).await.unwrap();
    assert_eq!(snapshot.pending_count(), Some(0));
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_drain_claims_no_epoch_and_the_live_writer_writes_on() {
    let mut t = three_generations(Spec::default()).await;
    let epoch = t.writer(0).await.epoch();
    let mut m = Merger::open(&t.uri).await;
    m.merge_all(9).await;
    assert_eq!(m.drain_all().await.unwrap(), 3);
    let (observation, _) = m.observe().await;
    assert_eq!(observation.shards[0].writer_epoch, epoch);
    assert!(observation.shards[0].merged.is_empty());
    t.put(&[(5, 5)]).await;
    assert_eq!(t.flush_shard(0).await, Some(4));
    t.close().await;
    // A reopened writer brings nothing back.
    t.put(&[(6, 6)]).await;
    t.flush().await;
    m.merge_all(9).await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_drain_takes_out_nothing_that_is_not_merged() {
    let t = three_generations(Spec::default()).await;
    let mut m = Merger::open(&t.uri).await;
    assert!(
        m.table
            .drain(shard(0), 99)
            .await
            .unwrap()
            .generations
            .is_empty()
    );
    m.try_merge(2).await.unwrap();
    let gone = m.table.drain(shard(0), 99).await.unwrap().generations;
    assert_eq!(gone.iter().map(|g| g.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(m.merge_all(9).await, 1);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_generation_four_times_the_budget_merges_alone() {
    for spec in specs() {
        let mut t = Fixture::create(spec).await;
        let rows: Vec<_> = (0..2000).map(|k| (k, 5)).collect();
        t.put(&rows).await;
        t.delete(&[0, 1, 5000]).await;
        t.flush().await;
        let mut m = Merger::open(&t.uri).await.with_budget(16 << 10);
        let outcome = m.try_merge(1).await.unwrap().unwrap();
        let Outcome::Merged(merged) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(merged.streamed);
        assert_eq!(t.verdict().await, Default::default());
    }
}

#[tokio::test]
async fn looking_at_a_table_writes_nothing() {
    let mut t = three_generations(Spec::default()).await;
    t.close().await;
    let before = Tree::of(t.path());
    let mut m = Merger::open(&t.uri).await;
    for _ in 0..10 {
        m.tracker.observe(&m.table).await.unwrap();
    }
    assert_eq!(Tree::of(t.path()), before);
}
