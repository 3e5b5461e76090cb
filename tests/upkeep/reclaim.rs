//! When a drained generation's directory goes, and what never does.

use std::time::{Duration, Instant};

use freshet::table::{AnomalyKind, ReclaimPolicy, Reclaimed, reclaimable, steps};
use lance::dataset::mem_wal::ShardManifestStore;
use lance::dataset::mem_wal::util::manifest_filename;
use lance_index::mem_wal::ShardManifest;

use crate::desk::{
    Desk, GRACE, LONG, MINUTE, age, date_2096, drained, files, gate, generations, names, restore,
    shard_dir, tick,
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

#[tokio::test]
async fn a_listed_path_that_is_the_log_or_the_manifests_outlives_every_reclaim() {
    for path in ["wal", "manifest"] {
        let mut t = Fixture::create(Spec::default()).await;
        tick(&mut t).await;
        let mut desk = Desk::open(&t.uri).await;
        desk.merge(8).await;
        tick(&mut t).await;
        // A stranger lists it as the generation that is merged, and takes it out again later.
        rewrite(&t, |m| m.sstables[0].path = path.into()).await;
        let kinds = desk.observe().await.anomalies;
        assert_eq!(kinds[0].kind, AnomalyKind::UnsupportedManifest, "{path}");
        desk.reclaim().await;
        rewrite(&t, |m| drop(m.sstables.remove(0))).await;
        assert_eq!(desk.observe().await.anomalies, [], "{path}");
        let before = files(&shard_dir(&t).join(path));
        desk.reclaim().await;
        desk.reclaim_after(100 * GRACE).await;
        assert_eq!(files(&shard_dir(&t).join(path)), before, "{path}");
        desk.merge(8).await;
        assert_eq!(t.verdict().await, Default::default(), "{path}");
    }
}

/// Changes the first shard's manifest as a stranger would.
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

#[tokio::test]
async fn a_file_dated_in_the_year_2096_lets_no_directory_go_early() {
    for dated in [
        "the newest manifest",
        "the oldest manifest",
        "the directory",
    ] {
        let mut t = Fixture::create(Spec::default()).await;
        let left = drained(&mut t).await;
        let oldest = manifest_filename(1);
        date_2096(&match dated {
            "the newest manifest" => t.newest_manifest(0),
            "the oldest manifest" => shard_dir(&t).join("manifest").join(oldest),
            _ => files(&shard_dir(&t).join(&left[0]))[0].clone(),
        });
        let mut desk = Desk::open(&t.uri).await;
        for _ in 0..2 {
            assert_eq!(desk.reclaim().await.directories, 0, "{dated}");
        }
        assert_eq!(desk.reclaim_after(GRACE - MINUTE).await.directories, 0);
        assert_eq!(generations(&t), left, "{dated}");
        let done = desk.reclaim_after(GRACE + MINUTE).await;
        assert_eq!(done.directories, 3, "{dated}");
    }
}

#[tokio::test]
async fn an_older_manifest_that_is_broken_lets_nothing_go_early_and_holds_nothing_up() {
    let mut t = Fixture::create(Spec::default()).await;
    let left = drained(&mut t).await;
    let newest = t.newest_manifest(0);
    for file in files(&shard_dir(&t).join("manifest")) {
        if file != newest && file.extension().is_some_and(|e| e == "binpb") {
            std::fs::write(file, []).unwrap();
        }
    }
    let mut desk = Desk::open(&t.uri).await;
    assert_eq!(desk.observe().await.anomalies, []);
    assert_eq!(desk.reclaim().await.directories, 0);
    // Nothing says any more that they were ever listed, so only the store's clock can tell that they are old.
    assert_eq!(desk.reclaim_after(100 * GRACE).await.directories, 0);
    assert_eq!(generations(&t), left);
    age(&t, GRACE + MINUTE);
    tick(&mut t).await;
    assert_eq!(Desk::open(&t.uri).await.reclaim().await.directories, 3);
    desk.merge(8).await;
    assert_eq!(t.verdict().await, Default::default());
}
