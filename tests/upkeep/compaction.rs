//! Compaction beside merges: no row is lost, nobody is made to fail, and no file is committed that cannot be read.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use freshet::table::{CompactPolicy, Compacted, Error, Refusal, Upkeep, steps};
use futures::TryStreamExt;

use crate::desk::{Desk, eager, gate, names};
use crate::fixtures::{Fixture, Kind, Shape, Spec, canonical};

/// A table of many small fragments: one for each of `count` generations, merged one by one, with updates and deletes.
async fn scattered(spec: Spec, count: u64) -> (Fixture, Desk) {
    let mut t = Fixture::create(spec).await;
    let mut desk = Desk::open(&t.uri).await;
    for round in 0..count {
        let rows: Vec<_> = (0..20).map(|i| (round * 7 + i * 3, round as i64)).collect();
        t.put(&rows).await;
        t.delete(&[round, 40 + round]).await;
        t.flush().await;
        desk.merge(1).await;
    }
    (t, desk)
}

fn done(upkeep: Upkeep<Compacted>) -> Compacted {
    match upkeep {
        Upkeep::Done(done) => done,
        other => panic!("{other:?}"),
    }
}

async fn fragments(t: &Fixture) -> usize {
    t.dataset().await.get_fragments().len()
}

#[tokio::test]
async fn compaction_keeps_every_row_and_merges_go_on() {
    for (stable_row_ids, btree) in [(false, false), (false, true), (true, false), (true, true)] {
        let spec = Spec {
            stable_row_ids,
            btree,
            ..Default::default()
        };
        let (mut t, mut desk) = scattered(spec, 8).await;
        t.put(&[(5, 99), (700, 99)]).await;
        t.flush().await;
        let before = fragments(&t).await;
        let made = done(desk.compact(&eager()).await);
        assert!(fragments(&t).await < before);
        assert_eq!(
            before - made.fragments_removed + made.fragments_added,
            fragments(&t).await
        );
        assert_eq!(t.dataset().await.version_id(), made.version.unwrap());
        assert_eq!(desk.merge(8).await, 1);
        assert_eq!(
            t.verdict().await,
            Default::default(),
            "{stable_row_ids} {btree}"
        );
        assert_eq!(desk.drain().await, 9);
        while let Upkeep::Done(_) = desk.compact(&eager()).await {}
        assert_eq!(
            t.verdict().await,
            Default::default(),
            "{stable_row_ids} {btree}"
        );
    }
}

#[tokio::test]
async fn a_slice_reads_no_more_than_it_may_and_the_next_one_goes_on() {
    let (t, mut desk) = scattered(Spec::default(), 8).await;
    let policy = CompactPolicy {
        slice_bytes: 1,
        ..eager()
    };
    // Two neighbours are the least that can become one.
    let made = done(desk.compact(&policy).await);
    assert_eq!((made.fragments_removed, made.fragments_added), (2, 1));
    done(desk.compact(&policy).await);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn deleted_rows_are_given_back_when_they_are_many() {
    let mut t = Fixture::create(Spec::default()).await;
    t.delete(&(0..50).collect::<Vec<_>>()).await;
    t.flush().await;
    let mut desk = Desk::open(&t.uri).await;
    desk.merge(8).await;
    let policy = |deleted_share| CompactPolicy {
        deleted_share,
        ..eager()
    };
    assert_eq!(desk.compact(&policy(0.6)).await, Upkeep::Nothing);
    done(desk.compact(&policy(0.4)).await);
    let dataset = t.dataset().await;
    assert!(
        dataset
            .fragments()
            .iter()
            .all(|f| f.deletion_file.is_none())
    );
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_compaction_that_a_merge_overtakes_is_lost_and_no_error() {
    for step in ["compact.rewritten", "compact.commit", "compact.remapped"] {
        let (mut t, mut desk) = scattered(
            Spec {
                btree: true,
                ..Default::default()
            },
            6,
        )
        .await;
        t.put(&[(3, 99)]).await;
        t.delete(&[6]).await;
        t.flush().await;
        let mut other = Desk::open(&t.uri).await;
        let (hook, mut gate) = gate(step);
        let policy = eager();
        let work = steps::with_hook(hook, desk.compact(&policy));
        let (outcome, ()) = tokio::join!(work, async {
            gate.reached().await;
            assert_eq!(other.merge(8).await, 1);
            gate.open();
        });
        assert_eq!(outcome, Upkeep::Lost, "{step}");
        assert_eq!(t.verdict().await, Default::default(), "{step}");
        // Nothing of the lost slice is left behind.
        let dataset = t.dataset().await;
        let used: BTreeSet<String> = dataset
            .fragments()
            .iter()
            .flat_map(|f| f.files.iter().map(|f| f.path.to_string()))
            .collect();
        let there: BTreeSet<String> = names(&t.path().join("data")).into_iter().collect();
        assert!(there.is_superset(&used));
        let all_versions = used_by_any_version(&t).await;
        assert_eq!(there, all_versions, "{step}");
        done(desk.compact(&eager()).await);
        assert_eq!(t.verdict().await, Default::default(), "{step}");
    }
}

async fn used_by_any_version(t: &Fixture) -> BTreeSet<String> {
    let dataset = t.dataset().await;
    let mut used = BTreeSet::new();
    for version in dataset.versions().await.unwrap() {
        let old = dataset.checkout_version(version.version).await.unwrap();
        let files = old
            .fragments()
            .iter()
            .flat_map(|f| f.files.clone())
            .collect::<Vec<_>>();
        used.extend(files.into_iter().map(|f| f.path.to_string()));
    }
    used
}

#[tokio::test]
async fn a_merge_that_a_compaction_overtakes_succeeds_when_it_is_tried_again() {
    let (mut t, mut desk) = scattered(Spec::default(), 6).await;
    t.put(&[(3, 99)]).await;
    t.delete(&[6]).await;
    t.flush().await;
    let mut merger = Desk::open(&t.uri).await;
    let (hook, mut gate) = gate("merge.commit");
    let (commits, ()) = tokio::join!(steps::with_hook(hook, merger.merge(8)), async {
        gate.reached().await;
        done(desk.compact(&eager()).await);
        gate.open();
    });
    assert_eq!(commits, 1);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn an_attempt_past_its_deadline_never_commits() {
    let (t, mut desk) = scattered(Spec::default(), 4).await;
    let before = t.dataset().await.version_id();
    let late = CompactPolicy {
        deadline: Instant::now(),
        ..eager()
    };
    let failed = desk.table.compact(&late, &mut desk.compaction).await;
    assert!(matches!(failed, Err(Error::DeadlineExceeded)), "{failed:?}");
    // The same where the time runs out just before the commit.
    let short = CompactPolicy::new(1 << 20, Duration::from_secs(5));
    let policy = CompactPolicy {
        min_fragments: 2,
        ..short
    };
    let (hook, mut gate) = gate("compact.commit");
    let work = desk.table.compact(&policy, &mut desk.compaction);
    let (failed, ()) = tokio::join!(steps::with_hook(hook, work), async {
        gate.reached().await;
        tokio::time::sleep_until(policy.deadline.into()).await;
        gate.open();
    });
    assert!(matches!(failed, Err(Error::DeadlineExceeded)), "{failed:?}");
    assert_eq!(t.dataset().await.version_id(), before);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn compaction_sets_off_no_auto_clean_up() {
    let (t, mut desk) = scattered(Spec::default(), 6).await;
    let mut dataset = t.dataset().await;
    let options = [
        ("lance.auto_cleanup.interval", "1"),
        ("lance.auto_cleanup.older_than", "0s"),
    ];
    dataset.update_config(options).await.unwrap();
    let before = versions(&t).await;
    done(desk.compact(&eager()).await);
    let after = versions(&t).await;
    assert!(after.is_superset(&before), "{before:?} became {after:?}");
    // Lance's own commit of index upkeep would set it off, so that is refused by name.
    let refused = desk
        .table
        .optimize_indexes(Instant::now() + Duration::from_secs(60))
        .await;
    assert_eq!(refused.unwrap(), Upkeep::Refused(Refusal::AutoCleanup));
}

async fn versions(t: &Fixture) -> BTreeSet<u64> {
    let versions = t.dataset().await.versions().await.unwrap();
    versions.into_iter().map(|v| v.version).collect()
}

/// Generations of 60 rows whose `role` has about as many values, of 300 in all; an int8 numbers 128.
async fn many_roles() -> (Fixture, Desk) {
    let mut t = Fixture::create(Spec {
        shape: Shape::keyed(Kind::Int64).with("role", Kind::Role(300)),
        base: vec![],
        ..Default::default()
    })
    .await;
    let mut desk = Desk::open(&t.uri).await;
    for round in 0..6u64 {
        let rows: Vec<_> = (0..60).map(|i| (round * 60 + i, 0)).collect();
        t.put(&rows).await;
        t.flush().await;
        desk.merge(1).await;
    }
    (t, desk)
}

/// Every row of every column as text.
async fn lines(t: &Fixture) -> BTreeSet<String> {
    let dataset = t.dataset().await;
    let mut rows = dataset.scan().try_into_stream().await.unwrap();
    let mut lines = BTreeSet::new();
    while let Some(batch) = rows.try_next().await.unwrap() {
        lines.extend(canonical(&batch));
    }
    lines
}

#[tokio::test]
async fn compaction_never_commits_a_file_that_cannot_be_read() {
    let (t, mut desk) = many_roles().await;
    let written = lines(&t).await;
    assert_eq!(written.len(), 360);
    let before = fragments(&t).await;
    assert_eq!(before, 6);
    let mut dropped = 0;
    loop {
        match desk.compact(&eager()).await {
            Upkeep::Nothing => break,
            outcome => {
                let made = done(outcome);
                dropped += made.unreadable;
            }
        }
        assert_eq!(lines(&t).await, written);
    }
    assert!(
        dropped > 0,
        "six fragments hold more values than one file can number"
    );
    let after = fragments(&t).await;
    assert!(after < before && after > 1, "{after} fragments are left");
    let files = names(&t.path().join("data"));
    assert_eq!(
        files.into_iter().collect::<BTreeSet<_>>(),
        used_by_any_version(&t).await
    );
}
