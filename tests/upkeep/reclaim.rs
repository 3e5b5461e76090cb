//! When a drained generation's directory goes, and what never does.

use std::time::{Duration, Instant};

use freshet::table::{AnomalyKind, ReclaimPolicy, Reclaimed, reclaimable, steps};

use crate::desk::{
    Desk, GRACE, LONG, MINUTE, age, drained, files, gate, generations, names, restore, shard_dir,
    tick,
};
use crate::fixtures::{Fixture, Spec, shard};

#[tokio::test]
async fn a_directory_stays_until_the_grace_has_passed_by_the_stores_clock() {
    let mut t = Fixture::create(Spec::default()).await;
    drained(&mut t).await;
    // Each desk is a process that begins anew, so that only the store's clock can say how long ago the drain was.
    age(&t, GRACE - MINUTE);
    tick(&mut t).await;
    assert_eq!(Desk::open(&t.uri).await.reclaim().await.directories, 0);
    assert_eq!(generations(&t).len(), 4);
    age(&t, 2 * MINUTE);
    tick(&mut t).await;
    let done = Desk::open(&t.uri).await.reclaim().await;
    assert_eq!((done.directories, done.kept), (3, 0));
    assert!(done.bytes > 0 && done.objects > 3);
    assert_eq!(generations(&t).len(), 2);
    Desk::open(&t.uri).await.merge(8).await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_directory_goes_when_the_grace_has_passed_since_this_process_saw_it_gone() {
    let mut t = Fixture::create(Spec::default()).await;
    drained(&mut t).await;
    let mut desk = Desk::open(&t.uri).await;
    // Nobody writes any more, so the store's clock stands still.
    assert_eq!(desk.reclaim().await.directories, 0);
    assert_eq!(desk.memory.waiting(), 3);
    assert_eq!(desk.reclaim_after(GRACE - MINUTE).await.directories, 0);
    assert_eq!(desk.reclaim_after(GRACE + MINUTE).await.directories, 3);
    assert!(generations(&t).is_empty());
    assert_eq!(desk.reclaim_after(2 * GRACE).await, Reclaimed::default());
}

#[tokio::test]
async fn what_a_drain_took_out_waits_from_then_on_without_a_listing() {
    let mut t = Fixture::create(Spec::default()).await;
    let mut desk = Desk::open(&t.uri).await;
    desk.reclaim().await;
    tick(&mut t).await;
    desk.merge(8).await;
    let drained = desk.table.drain(shard(0), u64::MAX).await.unwrap();
    desk.memory.drained(&drained);
    assert_eq!(desk.memory.waiting(), 1);
    assert_eq!(desk.reclaim_after(GRACE + MINUTE).await.directories, 1);
}

#[tokio::test]
async fn what_another_process_drained_waits_since_it_was_seen_to_be_gone() {
    let mut t = Fixture::create(Spec::default()).await;
    let mut desk = Desk::open(&t.uri).await;
    tick(&mut t).await;
    desk.merge(8).await;
    desk.reclaim().await;
    assert_eq!(desk.memory.waiting(), 0);
    Desk::open(&t.uri).await.drain().await;
    desk.reclaim().await;
    assert_eq!(desk.memory.waiting(), 1);
    assert_eq!(desk.reclaim_after(GRACE + MINUTE).await.directories, 1);
}

#[tokio::test]
async fn the_planner_is_told_when_to_come_back_and_what_for() {
    let mut t = Fixture::create(Spec::default()).await;
    let left = drained(&mut t).await;
    let mut desk = Desk::open(&t.uri).await;
    let observation = desk.observe().await;
    let now = Instant::now();
    desk.table
        .survey(&observation, &mut desk.memory, now)
        .await
        .unwrap();
    let mut policy = ReclaimPolicy::new(GRACE, LONG);
    let due = reclaimable(&observation, &policy, &desk.memory, now);
    let paths: Vec<_> = due.iter().map(|d| d.path.clone()).collect();
    assert_eq!(paths, left);
    assert!(
        due.iter()
            .all(|d| d.due == now + GRACE && d.shard == shard(0))
    );
    policy.hold_until = Some(now + 3 * GRACE);
    let held = reclaimable(&observation, &policy, &desk.memory, now);
    assert!(held.iter().all(|d| d.due == now + 3 * GRACE));
}

#[tokio::test]
async fn a_hold_keeps_every_directory_until_it_ends() {
    let mut t = Fixture::create(Spec::default()).await;
    drained(&mut t).await;
    let mut desk = Desk::open(&t.uri).await;
    let observation = desk.observe().await;
    let now = Instant::now();
    let policy = ReclaimPolicy {
        hold_until: Some(now + 3 * GRACE),
        ..ReclaimPolicy::new(GRACE, LONG)
    };
    for (passed, gone) in [(0, 0), (2, 0), (3, 3)] {
        let at = now + passed * GRACE;
        let done = desk
            .table
            .reclaim_at(&observation, &policy, &mut desk.memory, at);
        assert_eq!(done.await.unwrap().directories, gone);
    }
}

#[tokio::test]
async fn a_directory_at_or_past_the_current_generation_is_never_deleted() {
    let mut t = Fixture::create(Spec::default()).await;
    drained(&mut t).await;
    let dir = shard_dir(&t);
    let foreign = [
        "0badcafe_gen_4",
        "0badcafe_gen_9",
        "notes",
        "0badcafe_gen_1x",
    ];
    for name in foreign {
        std::fs::create_dir_all(dir.join(name).join("data")).unwrap();
        std::fs::write(dir.join(name).join("data/blob"), b"payload").unwrap();
    }
    let log = files(&dir.join("wal"));
    let manifests = files(&dir.join("manifest"));
    age(&t, 100 * GRACE);
    let mut desk = Desk::open(&t.uri).await;
    desk.reclaim().await;
    assert_eq!(desk.reclaim_after(100 * GRACE).await.directories, 3);
    for name in foreign {
        assert!(dir.join(name).join("data/blob").exists(), "{name} is gone");
    }
    assert_eq!(files(&dir.join("wal")), log);
    assert_eq!(files(&dir.join("manifest")), manifests);
    let unknown: Vec<_> = desk
        .memory
        .unknown()
        .map(|(_, name)| name.to_string())
        .collect();
    assert_eq!(unknown, ["0badcafe_gen_1x", "notes"]);
}

#[tokio::test]
async fn a_generation_that_is_listed_or_not_merged_is_never_deleted() {
    let mut t = Fixture::create(Spec::default()).await;
    t.put(&[(1, 1)]).await;
    t.flush().await;
    t.put(&[(1, 2)]).await;
    t.flush().await;
    let mut desk = Desk::open(&t.uri).await;
    desk.reclaim().await;
    assert_eq!(desk.reclaim_after(100 * GRACE).await, Reclaimed::default());
    desk.merge(1).await;
    assert_eq!(desk.reclaim_after(100 * GRACE).await, Reclaimed::default());
    assert_eq!(generations(&t).len(), 2);
}

/// Runs a reclaim of everything up to a step, and drops it there as a kill would.
async fn killed_at(t: &Fixture, step: &'static str) {
    let mut desk = Desk::open(&t.uri).await;
    desk.reclaim().await;
    let (hook, mut gate) = gate(step);
    tokio::select! {
        done = steps::with_hook(hook, desk.reclaim_after(GRACE + MINUTE)) => panic!("{step} was not reached: {done:?}"),
        () = gate.reached() => {}
    }
}

#[tokio::test]
async fn a_killed_reclaim_goes_on_where_it_stopped() {
    for (step, left) in [
        ("reclaim.begin", 3),
        ("reclaim.delete", 3),
        ("reclaim.headless", 3),
        ("reclaim.deleted", 2),
    ] {
        let mut t = Fixture::create(Spec::default()).await;
        drained(&mut t).await;
        killed_at(&t, step).await;
        assert_eq!(generations(&t).len(), left, "{step}");
        let mut next = Desk::open(&t.uri).await;
        next.reclaim().await;
        assert_eq!(
            next.reclaim_after(GRACE + MINUTE).await.directories,
            left,
            "{step}"
        );
        assert!(generations(&t).is_empty(), "{step}");
        tick(&mut t).await;
        next.merge(8).await;
        assert_eq!(t.verdict().await, Default::default(), "{step}");
    }
}

#[tokio::test]
async fn a_half_deleted_directory_has_no_manifest_so_nobody_reads_a_part_of_it() {
    let mut t = Fixture::create(Spec::default()).await;
    let left = drained(&mut t).await;
    killed_at(&t, "reclaim.headless").await;
    let first = shard_dir(&t).join(&left[0]);
    assert!(names(&first.join("_versions")).is_empty());
    assert!(!names(&first.join("data")).is_empty());
}

#[tokio::test]
async fn nothing_of_a_table_that_went_back_is_deleted() {
    let mut t = Fixture::create(Spec::default()).await;
    let before = t.dataset().await.version_id();
    drained(&mut t).await;
    let mut desk = Desk::open(&t.uri).await;
    desk.reclaim().await;
    restore(&t, before).await;
    let observation = desk.observe().await;
    assert!(
        observation
            .anomalies
            .iter()
            .any(|a| a.kind == AnomalyKind::WentBack)
    );
    assert_eq!(desk.reclaim_after(100 * GRACE).await, Reclaimed::default());
    assert_eq!(generations(&t).len(), 3);
}

#[tokio::test]
async fn the_newest_base_version_has_the_last_word() {
    let mut t = Fixture::create(Spec::default()).await;
    let before = t.dataset().await.version_id();
    drained(&mut t).await;
    let mut desk = Desk::open(&t.uri).await;
    // Restored after it was observed, so that the observation knows of nothing.
    let observation = desk.observe().await;
    restore(&t, before).await;
    let policy = ReclaimPolicy::new(Duration::ZERO, LONG);
    let done = desk
        .table
        .reclaim(&observation, &policy, &mut desk.memory)
        .await
        .unwrap();
    assert_eq!((done.directories, done.kept), (0, 3));
    assert_eq!(generations(&t).len(), 3);
}

#[tokio::test]
async fn shard_manifests_go_when_no_directory_needs_them_any_more() {
    let mut t = Fixture::create(Spec::default()).await;
    for value in 0..70 {
        t.put(&[(1, value)]).await;
        t.flush().await;
    }
    let mut desk = Desk::open(&t.uri).await;
    desk.merge(100).await;
    desk.drain().await;
    let manifests = || files(&shard_dir(&t).join("manifest")).len();
    let all = manifests();
    assert!(all > 70);
    age(&t, Duration::from_secs(3 * 24 * 3600));
    // The directories are there still, so the manifest that lists them no more is needed, and those before it are not.
    let mut desk = Desk::open(&t.uri).await;
    tick(&mut t).await;
    let done = desk.reclaim().await;
    assert_eq!((done.directories, done.manifests), (70, all - 1 - 1));
    assert_eq!(
        files(&shard_dir(&t).join("manifest")).len(),
        all + 1 - done.manifests
    );
    // The shard lives on: its writer, another one, and a drain.
    tick(&mut t).await;
    t.close().await;
    t.put(&[(7, 7)]).await;
    t.flush().await;
    desk.merge(8).await;
    desk.drain().await;
    assert_eq!(t.verdict().await, Default::default());
}
