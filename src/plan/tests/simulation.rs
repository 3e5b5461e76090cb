//! The plan over time: a small world of tables, flushes and an executor, stepped from event to event.
//!
//! Lives here: the simulator and what is checked with it (deadlines, turns, permits, rest). May use: this room's
//! fixtures. Must never come in: real time or threads; the same seed is always the same run.
//! The executor asks for a plan at every event and at every wake, as an engine does, and obeys it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::fixtures::{MIB, at, generation, secs, shard, start, table};
use crate::plan::*;

/// How fast the world's merges are: seconds, of which the plan is told nothing but what it measures.
#[derive(Debug, Clone, Copy)]
struct Speed {
    fixed: f64,
    per_generation: f64,
    per_mib: f64,
    upkeep: f64,
}

const QUICK: Speed = Speed {
    fixed: 0.2,
    per_generation: 0.01,
    per_mib: 0.01,
    upkeep: 4.0,
};

struct World {
    now: Timestamp,
    speed: Speed,
    budgets: Budgets,
    tables: Vec<TableView>,
    flushes: BTreeMap<Timestamp, Vec<(usize, u64)>>,
    ends: Vec<(Timestamp, Work)>,
    plans: u64,
    log: Vec<(Timestamp, Work)>,
    /// The longest that a generation of each table was pending.
    lag: BTreeMap<TableId, Duration>,
}

impl World {
    fn new(tables: Vec<TableView>, budgets: Budgets, speed: Speed) -> Self {
        Self {
            now: at(0),
            speed,
            budgets,
            tables,
            flushes: BTreeMap::new(),
            ends: Vec::new(),
            plans: 0,
            log: Vec::new(),
            lag: BTreeMap::new(),
        }
    }

    /// Table number `index` flushes a generation of `bytes` every `every` seconds, between two instants.
    fn flush_every(&mut self, index: usize, every: f64, bytes: u64, from: i64, to: i64) {
        let mut second = from as f64 + every;
        while second <= to as f64 {
            let instant = at(0) + jiff::SignedDuration::from_secs_f64(second);
            self.flushes
                .entry(instant)
                .or_default()
                .push((index, bytes));
            second += every;
        }
    }

    /// Runs until `end`, or until nothing is left to happen.
    fn run(&mut self, end: Timestamp) {
        loop {
            let made = self.obey();
            let next = [
                self.flushes.keys().next().copied(),
                self.ends.iter().map(|(at, _)| *at).min(),
                made.wake_at,
            ];
            match next.into_iter().flatten().min() {
                Some(next) if next <= end => {
                    assert!(next > self.now, "the world stands still at {next}");
                    self.now = next;
                    self.happen();
                }
                _ => break,
            }
        }
    }

    /// Plans and starts until nothing more starts now.
    fn obey(&mut self) -> Plan {
        let now = self.now;
        for _ in 0..100 {
            self.plans += 1;
            let made = plan(&self.tables, &self.budgets, now);
            if made.start.is_empty() {
                return made;
            }
            start(&mut self.tables, &made.start, now);
            for work in made.start {
                let kind = work.task.kind();
                if kind.commits() {
                    self.budgets.served.charge(&work.namespace, work.bytes);
                }
                if kind == Kind::Merge {
                    self.budgets.queue_wait =
                        Budgets::waited(self.budgets.queue_wait, work.due, now);
                }
                let took = jiff::SignedDuration::from_secs_f64(self.duration(&work));
                self.log.push((now, work.clone()));
                self.ends.push((now + took, work));
            }
            self.check_limits();
        }
        panic!("a plan starts more and more at one instant");
    }

    fn duration(&self, work: &Work) -> f64 {
        match &work.task {
            Task::Merge { shards, .. } => {
                let count: u64 = shards.iter().map(|s| s.count).sum();
                self.speed.fixed
                    + self.speed.per_generation * count as f64
                    + self.speed.per_mib * (work.bytes / MIB) as f64
            }
            task if task.kind().is_upkeep() => self.speed.upkeep,
            _ => 0.5,
        }
    }

    fn check_limits(&self) {
        let running: Vec<&Running> = self.tables.iter().flat_map(|t| &t.running).collect();
        let slots = running.iter().filter(|r| r.kind.commits()).count();
        assert!(slots <= self.budgets.slots);
        let bytes: u64 = running.iter().map(|r| r.bytes).sum();
        let holders = running.iter().filter(|r| r.bytes > 0).count();
        assert!(bytes <= self.budgets.bytes || holders == 1);
        for table in &self.tables {
            assert!(table.running.iter().filter(|r| r.kind.commits()).count() <= 1);
        }
    }

    fn happen(&mut self) {
        let now = self.now;
        for (index, bytes) in self.flushes.remove(&now).unwrap_or_default() {
            let seen = self.tables[index].observation.as_mut().expect("built so");
            let shard = &mut seen.shards[0];
            let last = shard
                .pending
                .last()
                .map(|g| g.generation)
                .max(shard.watermark);
            let mut flushed = generation(last.map_or(1, |g| g.0 + 1), bytes, 0);
            (flushed.flushed_at, flushed.first_seen) = (Some(now), now);
            shard.pending.push(flushed);
        }
        let (done, ends) = std::mem::take(&mut self.ends)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.ends = ends;
        for (_, work) in done {
            self.end(&work);
        }
    }

    fn end(&mut self, work: &Work) {
        let now = self.now;
        let table = self.tables.iter_mut().find(|t| t.id == work.table);
        let table = table.expect("tables stay");
        table.work_ended(work, End::Done, now);
        let seen = table.observation.as_mut().expect("built so");
        let shard = &mut seen.shards[0];
        seen.observed_at = now;
        match &work.task {
            Task::Merge { shards, .. } => {
                let up_to = shards[0].up_to;
                let (merged, left) = std::mem::take(&mut shard.pending)
                    .into_iter()
                    .partition(|g| g.generation <= up_to);
                shard.pending = left;
                shard.watermark = Some(up_to);
                for g in merged {
                    let lag = self.lag.entry(work.table.clone()).or_default();
                    *lag = (*lag).max(clock::between(g.since(), now));
                    shard.merged.push(MergedGeneration {
                        generation: g.generation,
                        merged_at: now,
                        caught_up: true,
                    });
                }
                seen.small_fragments += 1;
                seen.base_version += 1;
            }
            Task::Drain { shards } => {
                shard.merged.retain(|m| m.generation > shards[0].1);
                shard.reclaimable.push(Reclaimable {
                    path: format!("to {}", shards[0].1).into(),
                    due: clock::after(now, table.policy.grace),
                });
            }
            Task::Reclaim { items } => shard
                .reclaimable
                .retain(|r| items.iter().all(|(_, path)| *path != r.path)),
            Task::Compact { .. } => {
                (seen.small_fragments, seen.base_version) = (0, seen.base_version + 1);
            }
            Task::OptimizeIndexes | Task::CleanVersions { .. } => {}
        }
    }

    fn started(&self, name: &str, kind: Kind) -> Vec<Timestamp> {
        let wanted = |work: &Work| &*work.table.0 == name && work.task.kind() == kind;
        let of = self.log.iter().filter(|(_, work)| wanted(work));
        of.map(|(at, _)| *at).collect()
    }

    fn pending(&self) -> usize {
        let shards = self.tables.iter().flat_map(|t| t.observation.iter());
        shards
            .flat_map(|o| &o.shards)
            .map(|s| s.pending.len())
            .sum()
    }
}

fn tables(count: usize, target: u64) -> Vec<TableView> {
    (0..count)
        .map(|i| {
            let namespace = ["alder", "birch", "cedar"][i % 3];
            let mut view = table(namespace, &format!("maze-{i}"), vec![shard(1, vec![])]);
            view.policy.target = secs(target);
            view.past.merge_started = None;
            view.jitter = i as u64;
            view
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn deadlines_are_met_where_capacity_suffices(
        targets in prop::collection::vec(10u64..120, 2..30),
        paces in prop::collection::vec(1.0f64..40.0, 30),
        kib in prop::collection::vec(1u64..8000, 30),
    ) {
        let mut all = tables(targets.len(), 60);
        for (view, target) in all.iter_mut().zip(&targets) {
            view.policy.target = secs(*target);
        }
        let mut world = World::new(all, Budgets::new(512 * MIB, 4, 4), QUICK);
        for index in 0..targets.len() {
            world.flush_every(index, paces[index], kib[index] << 10, 0, 200);
        }
        world.run(at(4000));
        prop_assert_eq!(world.pending(), 0);
        for (index, target) in targets.iter().enumerate() {
            let lag = world.lag.get(&world.tables[index].id).copied().unwrap_or_default();
            prop_assert!(lag <= secs(*target), "table {index}: {lag:?} over {target} s");
        }
    }
}

#[test]
fn a_world_that_is_done_rests_without_a_wake() {
    let mut world = World::new(tables(5, 30), Budgets::new(512 * MIB, 2, 2), QUICK);
    for index in 0..5 {
        world.flush_every(index, 3.0, MIB, 0, 100);
    }
    world.run(at(100_000));
    let (plans, works) = (world.plans, world.log.len());
    assert_eq!(world.pending(), 0);
    let last = world.log.last().expect("it worked").0;
    assert!(last < at(2000), "the last work started at {last}");
    world.now = at(90_000);
    world.run(at(1_000_000));
    assert_eq!((world.plans - plans, world.log.len() - works), (1, 0));
    for view in &world.tables {
        let shard = &view.observation.as_ref().expect("built so").shards[0];
        assert_eq!((shard.merged.len(), shard.reclaimable.len()), (0, 0));
    }
}

#[test]
fn merges_are_batched_by_the_deadline_and_not_made_for_each_flush() {
    let mut world = World::new(tables(1, 60), Budgets::new(512 * MIB, 2, 2), QUICK);
    world.flush_every(0, 1.0, MIB, 0, 600);
    world.run(at(2000));
    let merges = world.started("maze-0", Kind::Merge).len();
    assert!(
        (15..=30).contains(&merges),
        "{merges} merges of 600 flushes"
    );
}

#[test]
fn under_overload_every_table_and_namespace_still_gets_its_turns() {
    // One slot and merges of a second each: 40 tables with a target of 10 s cannot all be in time.
    let slow = Speed {
        fixed: 1.0,
        ..QUICK
    };
    let mut all = tables(40, 10);
    all.iter_mut().for_each(|t| t.namespace = "alder".into());
    all[39].namespace = "birch".into();
    let mut world = World::new(all, Budgets::new(512 * MIB, 1, 2), slow);
    for index in 0..40 {
        world.flush_every(index, 2.0, MIB, 0, 500);
    }
    world.run(at(500));
    let turns: Vec<usize> = (0..40)
        .map(|i| world.started(&format!("maze-{i}"), Kind::Merge).len())
        .collect();
    let least = turns.iter().min().expect("forty");
    let most = turns[..39].iter().max().expect("forty");
    assert!(*least >= 4, "{turns:?}");
    assert!(*most <= least * 2, "{turns:?}");
    // The namespace of one table gets all that it needs: once overdue it waits for the merge that runs and for its own.
    let lag = world.lag[&world.tables[39].id];
    assert!(lag <= secs(14), "{lag:?}, {turns:?}");
}

#[test]
fn a_huge_backlog_neither_starves_nor_is_starved() {
    let mut all = tables(6, 20);
    all[0].policy.max_generations_per_merge = 8;
    let seen = all[0].observation.as_mut().expect("built so");
    seen.shards[0].pending = (1..=400).map(|n| generation(n, MIB, -5000)).collect();
    let mut world = World::new(all, Budgets::new(512 * MIB, 1, 2), QUICK);
    for index in 1..6 {
        world.flush_every(index, 2.0, MIB, 0, 400);
    }
    world.run(at(400));
    for index in 1..6 {
        let lag = world.lag[&world.tables[index].id];
        assert!(lag <= secs(20), "table {index}: {lag:?}");
    }
    let left = world.tables[0].observation.as_ref().expect("built so");
    assert!(
        left.shards[0].pending.is_empty(),
        "{}",
        left.shards[0].pending.len()
    );
}

#[test]
fn compaction_keeps_up_under_constant_merging_and_merges_stay_in_time() {
    let mut all = tables(2, 20);
    // Every flush is enough to merge: the table always has a merge that is due.
    all.iter_mut()
        .for_each(|t| t.policy.merge_at_generations = 1);
    let busy = Speed {
        fixed: 1.0,
        ..QUICK
    };
    let mut world = World::new(all, Budgets::new(512 * MIB, 2, 2), busy);
    for index in 0..2 {
        world.flush_every(index, 0.7, MIB, 0, 1800);
    }
    world.run(at(1800));
    for index in 0..2 {
        let name = format!("maze-{index}");
        let compactions = world.started(&name, Kind::Compact).len();
        assert!((5..=30).contains(&compactions), "{compactions}");
        assert!(
            world.lag[&world.tables[index].id] <= secs(20),
            "{:?}",
            world.lag
        );
    }
}

#[test]
fn work_larger_than_the_budget_gets_its_turn_among_a_stream_of_small_work() {
    let mut all = tables(5, 30);
    let seen = all[0].observation.as_mut().expect("built so");
    seen.shards[0].pending = vec![generation(1, 400 * MIB, 0)];
    let mut world = World::new(all, Budgets::new(100 * MIB, 4, 2), QUICK);
    for index in 1..5 {
        world.flush_every(index, 0.3, 10 * MIB, 0, 300);
    }
    world.run(at(300));
    let turns = world.started("maze-0", Kind::Merge);
    assert_eq!(turns.len(), 1);
    assert!(turns[0] <= at(60), "{turns:?}");
}
