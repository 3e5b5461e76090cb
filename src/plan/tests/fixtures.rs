//! Tables to plan for, made by hand or at random.
//!
//! Lives here: builders and proptest strategies for this room's tests. May use: proptest. Must never come in: anything
//! that is compiled outside tests.

use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use uuid::Uuid;

use crate::plan::*;

pub const MIB: u64 = 1 << 20;

/// The `seconds`-th second of the tests' time.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000_000 + seconds).expect("a small number of seconds")
}

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn shard_id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// A generation of `bytes` bytes, flushed at `flushed`.
pub fn generation(number: u64, bytes: u64, flushed: i64) -> PendingGeneration {
    PendingGeneration {
        generation: Generation(number),
        path: format!("abcdef01_gen_{number}").into(),
        rows: Some(100),
        bytes: Some(bytes),
        commit_bytes: 0,
        flushed_at: Some(at(flushed)),
        first_seen: at(flushed),
    }
}

/// A shard with `pending` above watermark 0.
pub fn shard(number: u128, pending: Vec<PendingGeneration>) -> ShardView {
    ShardView {
        pending,
        ..ShardView::new(shard_id(number))
    }
}

pub fn observation(shards: Vec<ShardView>) -> Observation {
    Observation {
        observed_at: at(0),
        base_version: 7,
        shards,
        anomalies: Vec::new(),
        small_fragments: 0,
        unindexed_rows: 0,
        old_versions_due: None,
    }
}

/// A table `name` of namespace `namespace` that has merged before (so its starts are not jittered).
pub fn table(namespace: &str, name: &str, shards: Vec<ShardView>) -> TableView {
    let mut view = TableView::new(name.into(), namespace.into(), Policy::default(), at(0));
    view.observation = Some(observation(shards));
    view.past.merge_started = Some(at(-100));
    view
}

pub fn budgets() -> Budgets {
    Budgets::new(1024 * MIB, 4, 4)
}

/// The reason that `name` shows.
pub fn why(made: &Plan, name: &str) -> Reason {
    made.why_not_now[&TableId::from(name)].reason
}

/// The tables whose merges start, and why.
pub fn merges(made: &Plan) -> Vec<(&str, Trigger)> {
    made.start
        .iter()
        .filter(|w| w.task.kind() == Kind::Merge)
        .map(|w| (&*w.table.0, w.trigger))
        .collect()
}

/// The kinds of what starts.
pub fn kinds(made: &Plan) -> Vec<Kind> {
    made.start.iter().map(|w| w.task.kind()).collect()
}

/// `(shard, up_to, count)` of the plan's first work, and whether it was cut.
pub fn chunk_of(made: &Plan) -> (Vec<(u128, u64, u64)>, bool) {
    let Task::Merge { shards, cut } = &made.start[0].task else {
        panic!("the first work is no merge: {:?}", made.start[0]);
    };
    let plain = |s: &ShardPrefix| (s.shard.as_u128(), s.up_to.0, s.count);
    (shards.iter().map(plain).collect(), *cut)
}

/// What was observed, to be changed.
pub fn seen(view: &mut TableView) -> &mut Observation {
    view.observation.as_mut().expect("the fixture has one")
}

/// `count` generations of `bytes` bytes, flushed one second apart from `flushed` on.
pub fn run(count: u64, bytes: u64, flushed: i64) -> Vec<PendingGeneration> {
    (0..count)
        .map(|i| generation(i + 1, bytes, flushed + i.cast_signed()))
        .collect()
}

pub fn requested(mut view: TableView) -> TableView {
    view.requested = Some(at(0));
    view
}

/// What `table` would look like once `work` runs on it.
pub fn start(tables: &mut [TableView], works: &[Work], now: Timestamp) {
    for work in works {
        let table = tables.iter_mut().find(|t| t.id == work.table);
        let table = table.expect("a plan only starts work on tables it was given");
        table.work_started(work, now);
    }
}

fn any_anomaly() -> impl Strategy<Value = Anomaly> {
    prop::sample::select(vec![
        Reason::WentBack,
        Reason::WatermarkAhead,
        Reason::UnsupportedManifest,
        Reason::DuplicateGeneration,
        Reason::Quarantined,
        Reason::ForeignMerger,
        Reason::DirectWrite,
    ])
    .prop_map(|reason| Anomaly {
        reason,
        detail: "seen in a test".into(),
    })
}

fn rarely<T: std::fmt::Debug + Clone + 'static>(
    of: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Option<T>> {
    prop::option::weighted(0.15, of)
}

prop_compose! {
    fn any_pending()(
        step in prop_oneof![8 => Just(1u64), 1 => Just(0), 2 => 2u64..5],
        bytes in prop_oneof![1 => Just(None), 8 => (0..40 * MIB).prop_map(Some), 1 => (0..2000 * MIB).prop_map(Some)],
        flushed in prop::option::weighted(0.9, -100i64..100),
        seen in -90i64..100,
    ) -> (u64, PendingGeneration) {
        let mut pending = generation(0, 0, seen);
        pending.bytes = bytes;
        pending.flushed_at = flushed.map(at);
        (step, pending)
    }
}

prop_compose! {
    fn any_shard()(
        id in 0u128..1 << 60,
        first in 0u64..4,
        pending in prop::collection::vec(any_pending(), 0..12),
        watermark in prop::option::of(0u64..6),
        merged in prop::collection::vec((-200i64..50, any::<bool>()), 0..4),
        reclaimable in prop::collection::vec(-50i64..200, 0..4),
        quarantined in rarely(0u64..14),
        anomaly in rarely(any_anomaly()),
        tail in rarely((0u64..9, -2000i64..0, -2000i64..0)),
    ) -> ShardView {
        let mut number = first;
        let pending = pending.into_iter().map(|(step, mut p)| {
            number += step;
            p.generation = Generation(number);
            p
        }).collect();
        let merged = (1u64..).zip(merged).map(|(number, (merged, caught_up))| MergedGeneration {
            generation: Generation(number), merged_at: at(merged), caught_up,
        }).collect();
        let reclaimable = reclaimable.into_iter().enumerate().map(|(i, due)| Reclaimable {
            path: format!("0123_gen_{i}").into(), due: at(due),
        }).collect();
        ShardView {
            id: shard_id(id),
            watermark: watermark.map(Generation),
            pending,
            merged,
            reclaimable,
            quarantined: quarantined.map(Generation),
            anomalies: anomaly.into_iter().collect(),
            tail: tail.map(|(entries, since, unchanged)| Tail {
                entries, since: at(since), unchanged_since: at(unchanged),
            }),
        }
    }
}

prop_compose! {
    fn any_policy()(
        target in 4u64..200,
        merge_at_generations in 1u64..40,
        merge_at_bytes in 1u64..400,
        generations in 0u64..20,
        bytes in 1u64..200,
        min_fragments in 0u64..20,
        drain_delay in 0u64..100,
        older_than in 0u64..100_000,
    ) -> Policy {
        Policy {
            target: secs(target),
            merge_at_generations,
            merge_at_bytes: merge_at_bytes * MIB,
            max_generations_per_merge: generations,
            max_bytes_per_merge: bytes * MIB,
            compaction: Compaction { min_fragments, ..Policy::default().compaction },
            drain_delay: secs(drain_delay),
            versions_older_than: secs(older_than),
            ..Policy::default()
        }
    }
}

fn any_running() -> impl Strategy<Value = Vec<Running>> {
    let kinds = [Kind::Merge, Kind::Compact, Kind::Drain, Kind::Reclaim];
    prop::collection::vec((prop::sample::select(kinds.to_vec()), 0u64..300), 0..2).prop_map(
        |running| {
            let one = |(kind, mib): (Kind, u64)| Running {
                kind,
                bytes: if kind.commits() { mib * MIB } else { 0 },
                started: at(0),
            };
            running.into_iter().map(one).collect()
        },
    )
}

prop_compose! {
    fn any_past()(
        merge in prop::option::of(-300i64..0),
        cut in rarely(-100i64..0),
        upkeep in prop::array::uniform3(prop::option::of(-1500i64..0)),
        ended in rarely(-10i64..2),
    ) -> Past {
        Past {
            merge_started: merge.map(at),
            merge_cut: cut.map(at),
            compact_started: upkeep[0].map(at),
            optimize_started: upkeep[1].map(at),
            clean_started: upkeep[2].map(at),
            ended: ended.map(at),
            ..Past::default()
        }
    }
}

prop_compose! {
    fn any_trouble(chance: f64)(
        failure in prop::option::weighted(chance, (prop::sample::select(Reason::ALL.to_vec()), 1u32..9, -50i64..100)),
    ) -> Trouble {
        failure.map_or(Trouble::default(), |(reason, failures, until)| Trouble {
            backoff: Backoff { failures, until: Some(at(until)) },
            failure: Some(Failure { reason, at: at(-1), detail: "x".into() }),
        })
    }
}

prop_compose! {
    fn any_table()(
        namespace in prop::sample::select(vec!["alder", "birch", "cedar"]),
        policy in any_policy(),
        (suspended, not_allowed, observed) in (prop::bool::weighted(0.1), prop::bool::weighted(0.05), prop::bool::weighted(0.95)),
        requested in rarely(-100i64..50),
        jitter in any::<u64>(),
        shards in prop::collection::vec(any_shard(), 0..4),
        (small, unindexed, versions) in (0u64..60, 0u64..3, prop::option::of(-100i64..500)),
        running in any_running(),
        past in any_past(),
        (look, merge, aside) in (any_trouble(0.07), any_trouble(0.15), any_trouble(0.15)),
        anomaly in prop::option::weighted(0.05, any_anomaly()),
    ) -> TableView {
        let mut view = table(namespace, "", shards);
        view.policy = policy;
        view.suspended = suspended;
        view.not_allowed = not_allowed;
        view.requested = requested.map(at);
        view.jitter = jitter;
        if let Some(seen) = view.observation.as_mut() {
            seen.small_fragments = small;
            seen.unindexed_rows = unindexed;
            seen.old_versions_due = versions.map(at);
            seen.anomalies = anomaly.into_iter().collect();
        }
        view.observation = view.observation.filter(|_| observed);
        view.running = running;
        view.past = past;
        (view.look_trouble, view.merge_trouble, view.aside_trouble) = (look, merge, aside);
        view
    }
}

pub fn any_tables() -> impl Strategy<Value = Vec<TableView>> {
    prop::collection::vec(any_table(), 0..9).prop_map(|mut tables| {
        for (number, table) in tables.iter_mut().enumerate() {
            table.id = TableId(format!("rollouts-{number}").into());
        }
        tables
    })
}

prop_compose! {
    pub fn any_budgets()(
        mib in 1u64..1500,
        slots in 0usize..6,
        light_slots in 0usize..4,
        wait in 0u64..20,
        served in prop::collection::vec(0u64..1000, 3),
    ) -> Budgets {
        let mut budgets = Budgets::new(mib * MIB, slots, light_slots);
        budgets.queue_wait = secs(wait);
        for (namespace, served) in ["alder", "birch", "cedar"].into_iter().zip(served) {
            budgets.served.charge(&namespace.into(), served * MIB);
        }
        budgets
    }
}
