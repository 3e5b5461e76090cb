//! What holds of every plan, whatever the tables: checked on hundreds of random ones.
//!
//! Lives here: proptest properties of [`plan`]. May use: this room's fixtures. Must never come in: examples of single
//! rules; those have files of their own.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::fixtures::{any_budgets, any_tables, at, start};
use crate::plan::*;

fn table_of<'a>(tables: &'a [TableView], work: &Work) -> &'a TableView {
    tables.iter().find(|t| t.id == work.table).expect("given")
}

/// The generations of `prefix`, by the definition: the lowest pending numbers above the watermark.
fn lowest(shard: &ShardView, count: u64) -> Vec<Generation> {
    let above = |g: &&PendingGeneration| Some(g.generation) > shard.watermark;
    let mut numbers: Vec<Generation> = shard
        .pending
        .iter()
        .filter(above)
        .map(|g| g.generation)
        .collect();
    numbers.sort();
    numbers.truncate(count.try_into().expect("small"));
    numbers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_merge_takes_the_lowest_pending_generations_and_nothing_that_is_blocked(
        tables in any_tables(), budgets in any_budgets(),
    ) {
        for work in plan(&tables, &budgets, at(0)).start {
            let Task::Merge { shards, .. } = &work.task else { continue };
            let table = table_of(&tables, &work);
            let seen = table.observation.as_ref().expect("no merge without a look");
            let ids: BTreeSet<_> = shards.iter().map(|s| s.shard).collect();
            prop_assert_eq!(ids.len(), shards.len());
            prop_assert!(!shards.is_empty());
            for prefix in shards {
                let shard = seen.shards.iter().find(|s| s.id == prefix.shard).expect("given");
                let taken = lowest(shard, prefix.count);
                prop_assert!(prefix.count > 0);
                prop_assert_eq!(taken.len() as u64, prefix.count);
                prop_assert_eq!(taken.last(), Some(&prefix.up_to));
                prop_assert!(taken.windows(2).all(|w| w[0] < w[1]), "one number twice");
                prop_assert!(Some(prefix.up_to) > shard.watermark);
                prop_assert!(shard.quarantined.is_none_or(|q| prefix.up_to < q));
                prop_assert!(shard.anomalies.iter().all(|a| a.reason.reach() == Reach::Told));
                let of_last = shard.pending.iter().filter(|g| g.generation == prefix.up_to);
                prop_assert_eq!(of_last.count(), 1);
            }
        }
    }

    #[test]
    fn a_merge_stays_within_its_caps_unless_it_is_one_generation(
        tables in any_tables(), budgets in any_budgets(),
    ) {
        for work in plan(&tables, &budgets, at(0)).start {
            let Task::Merge { shards, .. } = &work.task else { continue };
            let policy = &table_of(&tables, &work).policy;
            let count: u64 = shards.iter().map(|s| s.count).sum();
            if count > 1 {
                prop_assert!(count <= policy.max_generations_per_merge);
                prop_assert!(work.bytes <= policy.max_bytes_per_merge.max(LEAST_BYTES));
                prop_assert!(work.predicted <= SLICE);
            }
        }
    }

    #[test]
    fn permits_slots_and_bytes_are_never_exceeded_save_by_one_alone(
        tables in any_tables(), budgets in any_budgets(),
    ) {
        let before: Vec<Running> = tables.iter().flat_map(|t| t.running.clone()).collect();
        let works = plan(&tables, &budgets, at(0)).start;
        let mut after = tables.clone();
        start(&mut after, &works, at(0));
        for table in &after {
            let fresh = works.iter().filter(|w| w.table == table.id);
            if fresh.clone().any(|w| w.task.kind().commits()) {
                prop_assert_eq!(table.running.iter().filter(|r| r.kind.commits()).count(), 1);
            }
            for work in fresh {
                let kind = work.task.kind();
                prop_assert_eq!(table.running.iter().filter(|r| r.kind == kind).count(), 1);
            }
        }
        let all: Vec<Running> = after.iter().flat_map(|t| t.running.clone()).collect();
        let count = |of: &[Running], commits: bool| of.iter().filter(|r| r.kind.commits() == commits).count();
        prop_assert!(count(&all, true) <= budgets.slots.max(count(&before, true)));
        prop_assert!(count(&all, false) <= budgets.light_slots.max(count(&before, false)));
        let bytes = |of: &[Running]| of.iter().map(|r| r.bytes).sum::<u64>();
        let holding = all.iter().filter(|r| r.bytes > 0).count();
        prop_assert!(bytes(&all) <= budgets.bytes.max(bytes(&before)) || holding == 1);
    }

    #[test]
    fn every_due_merge_starts_or_says_why_not(tables in any_tables(), budgets in any_budgets()) {
        let made = plan(&tables, &budgets, at(0));
        prop_assert_eq!(made.why_not_now.len(), tables.len());
        let merging: BTreeSet<_> = made.start.iter()
            .filter(|w| w.task.kind() == Kind::Merge).map(|w| &w.table).collect();
        for table in &tables {
            let why = &made.why_not_now[&table.id];
            prop_assert!(why.message.ends_with('.'), "{}", why.message);
            prop_assert!(why.also.iter().all(|r| *r > why.reason));
            let pending = table.observation.iter().flat_map(|o| &o.shards)
                .any(|s| !lowest(s, 1).is_empty());
            if pending {
                prop_assert_ne!(why.reason, Reason::Fresh);
            }
            let needed = table.workable().and_then(|o| triggers::next_merge(table, o, &budgets));
            let due = needed.is_some_and(|m| m.due <= at(0));
            if due && !merging.contains(&table.id) {
                let said = std::iter::once(why.reason).chain(why.also.iter().copied());
                prop_assert!(said.into_iter().any(|r| r != Reason::Scheduled
                    && (r.reach() == Reach::Table || matches!(r,
                        Reason::Queued | Reason::BudgetWait | Reason::Upkeep | Reason::Merging)
                    || table.merge_trouble.backoff.waits_until(at(0)).is_some())), "{why:?}");
            }
            if merging.contains(&table.id) {
                prop_assert!(due);
                prop_assert!(why.reason == Reason::Merging || why.also.contains(&Reason::Merging));
            }
        }
    }

    #[test]
    fn a_plan_does_not_depend_on_the_order_of_the_tables(
        (tables, shuffled) in any_tables().prop_flat_map(|t| (Just(t.clone()), Just(t).prop_shuffle())),
        budgets in any_budgets(),
    ) {
        prop_assert_eq!(plan(&tables, &budgets, at(0)), plan(&shuffled, &budgets, at(0)));
    }

    #[test]
    fn nothing_new_starts_before_the_wake_and_the_wake_is_never_past(
        tables in any_tables(), budgets in any_budgets(), offsets in prop::collection::vec(0.0f64..1.0, 6),
    ) {
        let now = at(0);
        let mut tables = tables;
        // Until the plan is settled: what is started may let something else in (a drain's slot, another order).
        let mut made = plan(&tables, &budgets, now);
        for _ in 0..20 {
            if made.start.is_empty() { break }
            start(&mut tables, &made.start, now);
            made = plan(&tables, &budgets, now);
        }
        prop_assert!(made.start.is_empty());
        if let Some(wake) = made.wake_at {
            prop_assert!(wake > now);
        }
        let horizon = made.wake_at.unwrap_or(at(5000));
        let span = horizon.duration_since(now).as_secs_f64();
        for offset in offsets {
            let then = now + jiff::SignedDuration::from_secs_f64(span * offset);
            if then < horizon {
                prop_assert_eq!(&plan(&tables, &budgets, then).start, &Vec::new());
            }
        }
    }

    #[test]
    fn no_work_is_planned_from_what_is_not_known_or_not_allowed(
        tables in any_tables(), budgets in any_budgets(),
    ) {
        for work in plan(&tables, &budgets, at(0)).start {
            let table = table_of(&tables, &work);
            prop_assert!(!table.suspended && !table.not_allowed);
            prop_assert!(table.look_trouble.failure.is_none());
            let seen = table.observation.as_ref().expect("no work without a look");
            prop_assert!(table.past.ended.is_none_or(|ended| ended <= seen.observed_at));
            prop_assert!(seen.anomalies.iter().all(|a| a.reason.reach() == Reach::Told));
        }
    }

    #[test]
    fn nothing_is_deleted_early_or_where_everything_is_kept(
        tables in any_tables(), budgets in any_budgets(),
    ) {
        for work in plan(&tables, &budgets, at(0)).start {
            let table = table_of(&tables, &work);
            let shards: BTreeMap<_, _> = table.observation.iter().flat_map(|o| &o.shards)
                .map(|s| (s.id, s)).collect();
            match &work.task {
                Task::Drain { shards: drains } => for (id, up_to) in drains {
                    let shard = shards[id];
                    prop_assert!(!shard.keeps_everything());
                    prop_assert!(Some(*up_to) <= shard.watermark);
                    for m in shard.merged.iter().filter(|m| m.generation <= *up_to) {
                        prop_assert!(m.caught_up && m.merged_at + table.policy.drain_delay <= at(0));
                    }
                },
                Task::Reclaim { items } => for (id, path) in items {
                    let shard = shards[id];
                    prop_assert!(!shard.keeps_everything());
                    prop_assert!(shard.reclaimable.iter().any(|r| r.path == *path && r.due <= at(0)));
                },
                Task::CleanVersions { older_than, keep_at_least } => {
                    prop_assert!(shards.values().all(|s| !s.keeps_everything()));
                    prop_assert!(*older_than >= table.policy.grace + LONGEST_WORK);
                    prop_assert!(*keep_at_least >= 1);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn every_deadline_is_in_the_future_and_bounded(tables in any_tables(), budgets in any_budgets()) {
        for work in plan(&tables, &budgets, at(0)).start {
            prop_assert!(work.due <= at(0));
            prop_assert!(work.deadline >= at(0) + SHORTEST_WORK);
            prop_assert!(work.deadline <= at(0) + LONGEST_WORK);
        }
    }
}
