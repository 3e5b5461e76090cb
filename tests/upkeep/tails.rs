//! Rows that were acknowledged and are in no generation (contract 17).

use std::time::{Duration, Instant};

use freshet::table::{AnomalyKind, StoreClock, TailPolicy, Tails};
use lance::dataset::mem_wal::util::wal_entry_filename;

use crate::desk::{Desk, age, tick};
use crate::fixtures::{Fixture, Spec, shard};

const HOUR: Duration = Duration::from_secs(3600);

async fn look(t: &Fixture, tails: &mut Tails, at: Instant) -> Vec<AnomalyKind> {
    let mut desk = Desk::open(&t.uri).await;
    let observation = desk.observe().await;
    let policy = TailPolicy::default();
    tails
        .look(&desk.table, &observation, &policy, at)
        .await
        .unwrap();
    tails
        .anomalies(&policy, at)
        .into_iter()
        .map(|a| a.kind)
        .collect()
}

#[tokio::test]
async fn rows_that_wait_in_a_log_are_told_and_never_merged() {
    let mut t = Fixture::create(Spec::default()).await;
    tick(&mut t).await;
    t.put(&[(1, 1), (2, 1)]).await;
    t.put(&[(3, 1)]).await;
    let (mut tails, now) = (Tails::new(StoreClock::new()), Instant::now());
    assert!(look(&t, &mut tails, now).await.is_empty(), "they are young");
    let there = tails.tails(now);
    assert_eq!((there.len(), there[0].shard), (1, shard(0)));
    assert!((1..=2).contains(&there[0].entries));
    assert_eq!(
        look(&t, &mut tails, now + HOUR / 2).await,
        [AnomalyKind::TailWaiting]
    );
    assert_eq!(
        look(&t, &mut tails, now + HOUR).await,
        [AnomalyKind::TailStranded]
    );
    assert!(!AnomalyKind::TailStranded.blocks() && !AnomalyKind::TailWaiting.blocks());
    let mut desk = Desk::open(&t.uri).await;
    assert_eq!(desk.merge(8).await, 1);
    t.flush().await;
    assert!(
        look(&t, &mut tails, now + 2 * HOUR).await.is_empty(),
        "a generation holds them"
    );
    assert_eq!(desk.merge(8).await, 1);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn an_entry_is_as_old_as_the_store_says_though_it_was_just_seen() {
    let mut t = Fixture::create(Spec::default()).await;
    t.put(&[(1, 1)]).await;
    age(&t, HOUR);
    t.put(&[(2, 1)]).await;
    let clock = StoreClock::new();
    let (mut tails, now) = (Tails::new(clock.clone()), Instant::now());
    // Another table of the store is written to, which moves its clock.
    clock.saw(jiff::Timestamp::now());
    assert_eq!(look(&t, &mut tails, now).await, [AnomalyKind::TailWaiting]);
}

#[tokio::test]
async fn a_log_that_moves_is_not_stranded() {
    let mut t = Fixture::create(Spec::default()).await;
    t.put(&[(1, 1)]).await;
    let (mut tails, now) = (Tails::new(StoreClock::new()), Instant::now());
    look(&t, &mut tails, now).await;
    t.put(&[(2, 1)]).await;
    assert_eq!(
        look(&t, &mut tails, now + HOUR).await,
        [AnomalyKind::TailWaiting]
    );
}

#[tokio::test]
async fn the_mark_that_a_new_writer_leaves_is_no_tail() {
    let mut t = Fixture::create(Spec::default()).await;
    tick(&mut t).await;
    t.crash_writer(0).await;
    t.writer(0).await;
    let (mut tails, now) = (Tails::new(StoreClock::new()), Instant::now());
    assert!(look(&t, &mut tails, now).await.is_empty());
    assert!(tails.tails(now).is_empty());
    assert!(look(&t, &mut tails, now + 2 * HOUR).await.is_empty());
}

#[tokio::test]
async fn a_log_is_looked_at_no_more_often_than_asked() {
    let mut t = Fixture::create(Spec::default()).await;
    tick(&mut t).await;
    let mut desk = Desk::open(&t.uri).await;
    let observation = desk.observe().await;
    let (mut tails, policy, now) = (Tails::default(), TailPolicy::default(), Instant::now());
    for (passed, looked) in [(0, 1), (1, 0), (299, 0), (300, 1)] {
        let at = now + Duration::from_secs(passed);
        let made = tails
            .look(&desk.table, &observation, &policy, at)
            .await
            .unwrap();
        assert_eq!(made, looked);
    }
}

#[tokio::test]
async fn a_log_that_counts_to_the_end_of_numbers_holds_no_look_up() {
    let mut t = Fixture::create(Spec {
        shards: 2,
        ..Default::default()
    })
    .await;
    t.put(&[(0, 1), (1, 1)]).await;
    let log = t.path().join("_mem_wal").join(shard(0).to_string());
    let last = log.join("wal").join(wal_entry_filename(u64::MAX).as_str());
    std::fs::write(last, []).unwrap();
    let (mut tails, now) = (Tails::new(StoreClock::new()), Instant::now());
    // The other shard's tail is told all the same.
    look(&t, &mut tails, now).await;
    assert_eq!(
        look(&t, &mut tails, now + HOUR / 2).await,
        [AnomalyKind::TailWaiting]
    );
    let seen: Vec<_> = tails.tails(now).iter().map(|tail| tail.shard).collect();
    assert_eq!(seen, [shard(1)]);
    t.flush().await;
    Desk::open(&t.uri).await.merge(8).await;
    assert_eq!(t.verdict().await, Default::default());
}
