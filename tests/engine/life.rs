//! The life of tables under an engine.

use std::time::Duration;

use freshet::engine::Config;
use freshet::plan::{Reason, TableId};
use freshet::table::AnomalyKind;

use crate::fixtures::{Fixture, Spec, shard};
use crate::running::{Running, eager, patient, quick, table};

async fn two_shards() -> Fixture {
    Fixture::create(Spec {
        shards: 2,
        ..Default::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_written_all_the_time_ends_as_its_writers_left_it() {
    let mut t = two_shards().await;
    let mut engine = Running::start(quick(), vec![table("maze", &t, eager())]);
    for round in 1..=30i64 {
        let rows: Vec<(u64, i64)> = (0..10)
            .map(|n| ((n * 7 + round as u64) % 60, round))
            .collect();
        t.put(&rows).await;
        t.delete(&[round as u64, 2 * round as u64]).await;
        t.flush().await;
        if round % 10 == 0 {
            engine.until_fresh("maze").await;
        }
    }
    let last = engine.until_fresh("maze").await;
    assert_eq!(last.merged_generations, 60);
    assert_eq!(t.verdict().await, Default::default());
    engine.until("maze", |s| s.reclaimed == 60).await;
    engine.engine.stop().await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_table_costs_no_write() {
    let mut t = two_shards().await;
    t.put(&[(1, 1), (2, 2)]).await;
    t.flush().await;
    let mut engine = Running::start(quick(), vec![table("maze", &t, eager())]);
    engine
        .until("maze", |s| s.reclaimed == 2 && s.running.is_empty())
        .await;
    engine.until_fresh("maze").await;
    let writes = |e: &Running| e.requests("put") + e.requests("delete") + e.requests("copy");
    let before = writes(&engine);
    assert!(before > 0.0, "the merge was not counted");
    for _ in 0..40 {
        engine.until_fresh("maze").await;
    }
    assert_eq!(writes(&engine), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantined_generation_stops_its_shard_alone_and_is_tried_again() {
    let mut t = two_shards().await;
    t.put(&[(0, 1), (1, 1)]).await;
    t.flush().await;
    t.put(&[(2, 2), (3, 2)]).await;
    t.flush().await;
    let broken = data_file(&t, 0);
    let whole = std::fs::read(&broken).unwrap();
    std::fs::write(&broken, &whole[..whole.len() / 2]).unwrap();
    let config = Config {
        quarantine_retry: [Duration::from_millis(200), Duration::from_secs(1)],
        ..quick()
    };
    let mut engine = Running::start(config, vec![table("maze", &t, eager())]);
    let stuck = engine
        .until("maze", |s| {
            !s.quarantined.is_empty() && s.pending_generations == Some(2)
        })
        .await;
    assert_eq!(
        (stuck.quarantined[0].shard, stuck.quarantined[0].generation),
        (shard(0), 1)
    );
    assert_eq!(stuck.quarantined[0].reason, "GenerationUnreadable");
    std::fs::write(&broken, &whole).unwrap();
    let mended = engine.until_fresh("maze").await;
    assert!(mended.quarantined.is_empty());
    assert_eq!(t.verdict().await, Default::default());
}

/// The data file of a shard's first generation.
fn data_file(t: &Fixture, at: usize) -> std::path::PathBuf {
    let dir = t.path().join("_mem_wal").join(shard(at).to_string());
    let found = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut first = found.filter(|p| p.to_string_lossy().ends_with("_gen_1"));
    let mut files = std::fs::read_dir(first.next().unwrap().join("data")).unwrap();
    files.next().unwrap().unwrap().path()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_larger_than_the_whole_budget_is_merged_alone() {
    let mut t = Fixture::create(Spec::default()).await;
    let rows: Vec<(u64, i64)> = (0..20_000).map(|k| (k, 1)).collect();
    t.put(&rows).await;
    t.flush().await;
    let config = Config {
        memory_bytes: 64 << 10,
        ..quick()
    };
    let mut engine = Running::start(config, vec![table("maze", &t, eager())]);
    engine.until_fresh("maze").await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_dropped_by_a_stop_is_done_by_the_next_engine() {
    let mut t = two_shards().await;
    for round in 1..=12i64 {
        t.put(&[(round as u64, round), (round as u64 + 1, round)])
            .await;
        t.delete(&[40 + round as u64]).await;
        t.flush().await;
        let mut policy = eager();
        policy.max_generations_per_merge = 1;
        let engine = Running::start(quick(), vec![table("maze", &t, policy)]);
        for _ in 0..round * 40 {
            tokio::task::yield_now().await;
        }
        engine.engine.stop().await;
    }
    let mut engine = Running::start(quick(), vec![table("maze", &t, eager())]);
    engine.until_fresh("maze").await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_engines_on_one_table_leave_what_one_would() {
    let mut t = two_shards().await;
    let mut small = eager();
    small.max_generations_per_merge = 1;
    let mut one = Running::start(quick(), vec![table("maze", &t, eager())]);
    let mut two = Running::start(quick(), vec![table("yew", &t, small)]);
    for round in 1..=25i64 {
        t.put(&[(round as u64 % 9, round), (round as u64 % 9 + 1, round)])
            .await;
        t.delete(&[round as u64 % 7]).await;
        t.flush().await;
    }
    one.until_fresh("maze").await;
    two.until_fresh("yew").await;
    one.engine.stop().await;
    two.engine.stop().await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_table_is_looked_at_and_not_merged() {
    let mut t = two_shards().await;
    t.put(&[(1, 1)]).await;
    t.flush().await;
    let mut still = table("maze", &t, eager());
    still.suspended = true;
    let mut engine = Running::start(quick(), vec![still.clone()]);
    let why = |s: &freshet::engine::TableStatus| s.why.as_ref().map(|w| w.reason);
    let seen = engine
        .until("maze", |s| s.pending_generations == Some(1))
        .await;
    assert_eq!(why(&seen), Some(Reason::Suspended));
    assert_eq!(engine.requests("put"), 0.0);
    still.suspended = false;
    engine.engine.set_tables(vec![still]);
    engine.until_fresh("maze").await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_due_is_merged_when_somebody_asks() {
    let mut t = two_shards().await;
    t.put(&[(1, 1), (2, 2)]).await;
    t.flush().await;
    let mut engine = Running::start(quick(), vec![table("maze", &t, patient())]);
    let seen = engine
        .until("maze", |s| s.pending_generations == Some(2))
        .await;
    assert_eq!(seen.why.unwrap().reason, Reason::Scheduled);
    engine.engine.merge_now(TableId::from("maze"));
    engine.until_fresh("maze").await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_not_there_yet_is_waited_for_and_others_flow_on() {
    let mut t = two_shards().await;
    let mut missing = table("later", &t, eager());
    missing.location = freshet::table::Location::new(format!("{}-not-there", t.uri));
    let mut engine = Running::start(quick(), vec![missing, table("maze", &t, eager())]);
    let waiting = engine
        .until("later", |s| {
            s.why
                .as_ref()
                .is_some_and(|w| w.reason == Reason::TableNotFound)
        })
        .await;
    assert_eq!(waiting.pending_generations, None, "unknown is not zero");
    t.put(&[(1, 1)]).await;
    t.flush().await;
    engine.until("maze", |s| s.merged_generations == 1).await;
    engine.engine.set_tables(vec![table("maze", &t, eager())]);
    engine.until_gone("later").await;
    assert!(!engine.metrics.render().contains("later"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_newest_manifest_breaks_waits_alone_and_the_tables_figures_are_unknown() {
    let mut t = two_shards().await;
    t.put(&[(0, 1), (1, 1)]).await;
    t.flush().await;
    let mut engine = Running::start(quick(), vec![table("maze", &t, eager())]);
    engine.until("maze", |s| s.reclaimed == 2).await;
    t.put(&[(0, 2)]).await;
    t.close().await;
    let file = t.newest_manifest(0);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let why = |s: &freshet::engine::TableStatus| s.why.as_ref().map(|w| w.reason);
    let broken = |s: &freshet::engine::TableStatus| why(s) == Some(Reason::UnsupportedManifest);
    let before = engine.until("maze", broken).await.merged_generations;
    t.put(&[(1, 2)]).await;
    t.flush_shard(1).await;
    let seen = engine
        .until("maze", |s| broken(s) && s.merged_generations == before + 1)
        .await;
    let since = seen.observed_at;
    // A look at the shard that goes on, after its merge.
    let seen = engine
        .until("maze", |s| s.reclaimed == 3 && s.observed_at > since)
        .await;
    assert!(broken(&seen), "{seen:?}");
    assert_eq!(seen.pending_generations, None, "{seen:?}");
    assert_eq!((seen.pending_rows, seen.pending_bytes), (None, None));
    assert_eq!(seen.shards, Some(2));
    let text = engine.metrics.render();
    let told = |metric: &str| {
        let of = |l: &&str| l.starts_with(metric) && l.contains("maze");
        text.lines().filter(of).count()
    };
    for unknown in ["generations", "rows", "bytes"] {
        let name = format!("freshet_experiment_pending_{unknown}{{");
        assert_eq!(told(&name), 0, "{text}");
    }
    assert_eq!(
        told("freshet_experiment_observed_timestamp_seconds{"),
        1,
        "{text}"
    );
    std::fs::write(&file, whole).unwrap();
    let mended = engine.until_fresh("maze").await;
    assert_eq!(why(&mended), Some(Reason::Fresh));
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_was_made_again_waits_for_a_persons_word_and_is_merged_from_its_start_then() {
    let mut t = two_shards().await;
    for n in 0..3 {
        t.put(&[(n, 1), (n + 1, 1)]).await;
        t.flush().await;
    }
    let spec = table("maze", &t, eager());
    let mut engine = Running::start(quick(), vec![spec.clone()]);
    engine.until_fresh("maze").await;
    engine.engine.stop().await;
    t.close().await;
    let made_again = t.path().join("_mem_wal").join(shard(0).to_string());
    std::fs::remove_dir_all(made_again).unwrap();
    for n in 0..5 {
        t.put(&[(2 * n, 5), (2 * n + 1, 5)]).await;
        t.delete(&[40 + 2 * n]).await;
        t.flush().await;
    }
    let mut engine = Running::start(quick(), vec![spec.clone()]);
    let waits = engine.until("maze", |s| {
        let ahead = s.why.as_ref();
        ahead.is_some_and(|why| why.reason == Reason::WatermarkAhead)
    });
    assert_ne!(waits.await.pending_generations, None);
    let mut acknowledged = spec;
    acknowledged.acknowledged = vec![AnomalyKind::WatermarkAhead];
    engine.engine.set_tables(vec![acknowledged]);
    engine
        .until("maze", |s| {
            let ahead = s.why.as_ref();
            ahead.is_some_and(|why| why.reason != Reason::WatermarkAhead)
        })
        .await;
    engine.until_fresh("maze").await;
    assert_eq!(t.verdict().await, Default::default());
    engine.engine.stop().await;
    assert_eq!(t.verdict().await, Default::default());
}
