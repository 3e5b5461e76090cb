//! What upkeep costs a table that nobody writes (contract 18).

use std::time::{Duration, Instant};

use freshet::table::{
    ReclaimPolicy, Reclaimed, StoreClock, TailPolicy, Tails, Upkeep, VersionsMemory,
    VersionsPolicy, reclaimable,
};

use crate::counting::counting;
use crate::desk::{Desk, GRACE, LONG, MINUTE, drained, eager};
use crate::fixtures::{Fixture, Spec};

#[tokio::test]
async fn an_idle_table_costs_no_write_and_its_upkeep_no_request() {
    let mut t = Fixture::create(Spec {
        btree: true,
        ..Default::default()
    })
    .await;
    drained(&mut t).await;
    let (config, counts) = counting();
    let mut desk = Desk::with(&t.uri, config).await;
    let (mut tails, mut versions) = (Tails::new(StoreClock::new()), VersionsMemory::default());
    let day = VersionsPolicy::new(Duration::from_secs(86_400), GRACE, LONG, LONG);
    // What there is to do is done.
    desk.reclaim().await;
    desk.reclaim_after(GRACE + MINUTE).await;
    while let Upkeep::Done(_) = desk.compact(&eager()).await {}
    let deadline = || Instant::now() + LONG;
    while let Upkeep::Done(_) = desk.table.optimize_indexes(deadline()).await.unwrap() {}
    let observation = desk.observe().await;
    let (now, policy) = (Instant::now(), TailPolicy::default());
    tails
        .look(&desk.table, &observation, &policy, now)
        .await
        .unwrap();
    let cleaned = desk
        .table
        .clean_versions(&observation, &day, &mut versions)
        .await
        .unwrap();
    assert_eq!(cleaned.versions, 0);
    let (_, wrote) = counts.take();
    assert!(wrote > 0, "the counts count");

    // An hour later nothing has moved.
    let later = now + Duration::from_secs(3600);
    let observation = desk.observe().await;
    counts.take();
    let grace = ReclaimPolicy::new(GRACE, LONG);
    let done = desk
        .table
        .reclaim_at(&observation, &grace, &mut desk.memory, later)
        .await
        .unwrap();
    assert_eq!(done, Reclaimed::default());
    assert!(reclaimable(&observation, &grace, &desk.memory, later).is_empty());
    assert!(desk.table.stale_indexes().await.unwrap().is_empty());
    versions.watch(observation.base.version, later);
    assert!(versions.due(&day, later).is_some_and(|due| due > later));
    assert_eq!(
        counts.take(),
        (0, 0),
        "neither asking nor deciding takes a request"
    );
    tails
        .look(&desk.table, &observation, &policy, later)
        .await
        .unwrap();
    assert_eq!(counts.take(), (1, 0), "one look at the log's end");
    assert_eq!(desk.compact(&eager()).await, Upkeep::Nothing);
    let indexed = desk.table.optimize_indexes(deadline()).await.unwrap();
    assert_eq!(indexed, Upkeep::Nothing);
    assert_eq!(counts.take().1, 0, "looking for work writes nothing");
}

#[tokio::test]
async fn versions_that_others_made_between_two_looks_cost_a_few_requests_each_and_no_look_at_the_past()
 {
    let t = Fixture::create(Spec::default()).await;
    let mut dataset = t.dataset().await;
    let mut make = async |count: usize| {
        for n in 0..count {
            let note = n.to_string();
            dataset
                .update_config([("note", note.as_str())])
                .await
                .unwrap();
        }
    };
    make(60).await;
    let (config, counts) = counting();
    let mut desk = Desk::with(&t.uri, config).await;
    let mut reads = [0; 4];
    for (read, versions) in reads.iter_mut().zip([0, 1, 5, 20]) {
        make(versions).await;
        counts.take();
        desk.observe().await;
        *read = counts.take().0;
    }
    let [_, one, five, twenty] = reads;
    let each = (five - one) / 4;
    assert!((1..=3).contains(&each), "{reads:?}");
    assert!(twenty <= five + 15 * each, "{reads:?}");
}

#[tokio::test]
async fn a_merged_generation_that_is_still_listed_costs_one_request_on_the_first_look_and_none_later()
 {
    let mut t = Fixture::create(Spec::default()).await;
    t.put(&[(1, 1)]).await;
    t.flush().await;
    t.put(&[(2, 2)]).await;
    t.flush().await;
    let looks = |uri: String| async move {
        let (config, counts) = counting();
        let mut desk = Desk::with(&uri, config).await;
        let mut reads = [0; 3];
        for read in &mut reads {
            counts.take();
            desk.observe().await;
            *read = counts.take().0;
        }
        reads
    };
    let mut desk = Desk::open(&t.uri).await;
    desk.merge(9).await;
    let listed = looks(t.uri.clone()).await;
    desk.drain().await;
    let drained = looks(t.uri.clone()).await;
    assert_eq!(listed[0], drained[0] + 1);
    assert_eq!(listed[1..], drained[1..]);
}
