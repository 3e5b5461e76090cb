//! Many seeded schedules: whoever dies or comes late, the base holds each key once, in its newest version.
//!
//! Lives here: which tables are played on, and how often (`FRESHET_SCHEDULES` multiplies; `FRESHET_SEED` plays one seed).
//! May use: schedules. Never: a schedule of its own.

use std::sync::Arc;

use lance::Dataset;

use crate::fixtures::{Fixture, Kind, Shape, Spec, shard};
use crate::reference;
use crate::schedule::{Plan, Seen, play};

/// Different keys: few, so that they meet.
const KEYS: u64 = 40;
/// Schedules per table, by default.
const EACH: u64 = 170;

fn seeds(table: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match number("FRESHET_SEED") {
        Some(seed) => vec![seed],
        None => {
            let from = table * 1_000_000;
            (from..from + EACH * number("FRESHET_SCHEDULES").unwrap_or(1)).collect()
        }
    }
}

/// Plays all seeds on copies of one table, each on a runtime of its own.
fn all(table: u64, spec: Spec) -> Seen {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let template = runtime().block_on(Fixture::create(spec.clone()));
    let mut total = Seen::default();
    for seed in seeds(table) {
        let plan = Plan::of(seed, KEYS, spec.shards);
        let table = template.copy();
        let runtime = runtime();
        let (verdict, seen) = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(play(table, &plan))
        })) {
            Ok(played) => played,
            Err(panic) => {
                eprintln!("seed {}: {plan:#?}", plan.seed);
                std::panic::resume_unwind(panic)
            }
        };
        assert!(
            verdict.is_sound(),
            "seed {}: {verdict:#?}\nthe schedule was {plan:#?}",
            plan.seed
        );
        total.add(&seen);
    }
    println!("{total:?}");
    total
}

/// Whether what was to be tried did come about; one seed alone need not show it all.
fn tried(seen: &Seen) {
    if std::env::var("FRESHET_SEED").is_err() {
        assert!(
            seen.merged > 100 && seen.lost > 4 && seen.overtaken > 0,
            "{seen:?}"
        );
        assert!(
            seen.stopped > 20 && seen.paused > 50 && seen.drained > 20,
            "{seen:?}"
        );
    }
}

fn small(shape: Shape) -> Spec {
    Spec {
        shape,
        base: (0..24).map(|k| (k, 0)).collect(),
        rows_per_file: 8,
        ..Default::default()
    }
}

#[test]
fn a_table_with_int64_keys_survives_every_schedule() {
    tried(&all(1, small(Shape::keyed(Kind::Int64))));
}

#[test]
fn a_table_with_a_btree_survives_every_schedule() {
    let spec = Spec {
        btree: true,
        ..small(Shape::keyed(Kind::Int64))
    };
    tried(&all(2, spec));
}

#[test]
fn a_table_with_int16_keys_survives_every_schedule() {
    tried(&all(3, small(Shape::keyed(Kind::Int16))));
}

#[test]
fn a_table_with_composite_keys_and_two_shards_survives_every_schedule() {
    let shape = Shape::composite(&[Kind::Utf8, Kind::Int32]);
    tried(&all(
        4,
        Spec {
            shards: 2,
            ..small(shape)
        },
    ));
}

#[test]
fn a_table_with_stable_row_ids_survives_every_schedule() {
    let spec = Spec {
        stable_row_ids: true,
        btree: true,
        ..small(Shape::keyed(Kind::Utf8))
    };
    tried(&all(5, spec));
}

#[test]
fn a_table_with_two_shards_and_a_btree_survives_every_schedule() {
    let spec = Spec {
        shards: 2,
        btree: true,
        ..small(Shape::keyed(Kind::UInt8))
    };
    tried(&all(6, spec));
}

#[tokio::test]
async fn two_mergers_without_the_sentinel_are_caught_by_the_same_judge() {
    let spec = Spec {
        btree: true,
        ..small(Shape::keyed(Kind::Int64))
    };
    let mut t = Fixture::create(spec).await;
    t.put(&[(100, 1), (101, 1)]).await;
    t.flush().await;
    t.put(&[(102, 2)]).await;
    t.flush().await;
    let base = Arc::new(Dataset::open(&t.uri).await.unwrap());
    let one = reference::prepare_unfenced(&base, shard(0), 1).await;
    let both = reference::prepare_unfenced(&base, shard(0), 2).await;
    reference::commit_unfenced(&base, one).await.unwrap();
    reference::commit_unfenced(&base, both).await.unwrap();
    assert_eq!(t.verdict().await.doubled.len(), 2);
}
