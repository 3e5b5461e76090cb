//! One seeded schedule: writers, mergers, drains and house-keeping in a random order, with stops and pauses at named steps.
//!
//! Lives here: `Plan` (what a seed says, as data that can be printed) and `play`, which plays it on a real table and has it
//! judged. Two mergers share nothing but storage. May use: fixtures, mergers, Lance's own house-keeping as other clients
//! call it. Never: a clock or a sleep.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use freshet::table::steps::{self, Hook};
use freshet::table::{Class, Error, Outcome};
use lance::dataset::cleanup::CleanupPolicyBuilder;
use lance::dataset::optimize::{CompactionOptions, compact_files};
use lance::index::DatasetIndexExt;
use lance_index::optimize::OptimizeOptions;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;

use crate::faults::{Faults, Trick};
use crate::fixtures::{Fixture, Verdict, open};
use crate::mergers::Merger;

/// Something that happens to the table.
#[derive(Debug, Clone)]
pub enum Act {
    Put(Vec<u64>),
    Delete(Vec<u64>),
    Flush(usize),
    /// The writer of a shard ends without a flush.
    CrashWriter(usize),
    /// Merger, the most generations that it takes of a shard, and what befalls it.
    Merge(usize, usize, Fault),
    Drain(usize, Fault),
    /// Upkeep by a merger's process.
    Upkeep(usize, Upkeep, Fault),
    /// The merger's process starts anew.
    Restart(usize),
    /// Another client compacts the base.
    Compact,
    /// Another client brings the indexes up to date.
    Optimize,
    /// Another client removes every version but the newest ones.
    CleanUp(usize),
}

impl Act {
    fn is_by(&self, merger: usize) -> bool {
        match self {
            Act::Merge(by, ..) | Act::Drain(by, _) | Act::Upkeep(by, ..) | Act::Restart(by) => {
                *by == merger
            }
            _ => false,
        }
    }
}

/// Upkeep of ours, without any grace.
#[derive(Debug, Clone, Copy)]
pub enum Upkeep {
    Reclaim,
    Compact,
    Indexes,
    Versions,
}

/// What befalls a work.
#[derive(Debug, Clone)]
pub enum Fault {
    None,
    /// It ends at a step and is never heard of again.
    Stop(&'static str),
    /// It waits at a step while others run to their end.
    Pause(&'static str, Vec<Act>),
    /// One of its writes goes wrong, after so many that do not; others run before a late one is carried out.
    Store(Trick, usize, Vec<Act>),
}

const MERGE_STEPS: &[&str] = &[
    "merge.begin",
    "merge.read",
    "merge.found",
    "merge.written",
    "merge.commit",
    "merge.commit",
    "merge.commit",
    "merge.committed",
];
const DRAIN_STEPS: &[&str] = &["drain.begin", "drain.write", "drain.written"];

impl Upkeep {
    fn steps(self) -> &'static [&'static str] {
        match self {
            Upkeep::Reclaim => &[
                "reclaim.begin",
                "reclaim.delete",
                "reclaim.headless",
                "reclaim.deleted",
            ],
            Upkeep::Compact => &[
                "compact.begin",
                "compact.rewritten",
                "compact.commit",
                "compact.remapped",
                "compact.committed",
            ],
            Upkeep::Indexes => &["indexes.begin", "indexes.commit", "indexes.committed"],
            Upkeep::Versions => &["versions.begin", "versions.done"],
        }
    }
}

/// What a seed says.
#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub acts: Vec<Act>,
}

impl Plan {
    /// `keys`: how many different keys there are; `shards`: how many shards.
    pub fn of(seed: u64, keys: u64, shards: usize) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        let count = dice.random_range(10..22);
        let acts = (0..count)
            .flat_map(|_| acts(&mut dice, keys, shards))
            .collect();
        Self { seed, acts }
    }
}

fn some_keys(dice: &mut StdRng, keys: u64, most: usize) -> Vec<u64> {
    let count = dice.random_range(1..=most);
    (0..count).map(|_| dice.random_range(0..keys)).collect()
}

/// One generation's worth of writing: puts, deletes, and mostly a flush.
fn write(dice: &mut StdRng, keys: u64, shards: usize) -> Vec<Act> {
    let mut out = vec![];
    for _ in 0..dice.random_range(1..3) {
        out.push(match dice.random_range(0..10) {
            0..3 => Act::Delete(some_keys(dice, keys, 4)),
            _ => Act::Put(some_keys(dice, keys, 6)),
        });
    }
    let shard = dice.random_range(0..shards);
    match dice.random_range(0..12) {
        0 => out.push(Act::CrashWriter(shard)),
        1 | 2 => {}
        _ => (0..shards).for_each(|s| out.push(Act::Flush(s))),
    }
    out
}

fn acts(dice: &mut StdRng, keys: u64, shards: usize) -> Vec<Act> {
    match dice.random_range(0..20) {
        0..9 => write(dice, keys, shards),
        9..15 => {
            let (by, most) = (dice.random_range(0..2), dice.random_range(1..6));
            vec![Act::Merge(
                by,
                most,
                fault(dice, MERGE_STEPS, by, keys, shards),
            )]
        }
        15 | 16 => {
            let by = dice.random_range(0..2);
            vec![Act::Drain(by, fault(dice, DRAIN_STEPS, by, keys, shards))]
        }
        17 => {
            let by = dice.random_range(0..2);
            let work = upkeep(dice);
            vec![Act::Upkeep(
                by,
                work,
                fault(dice, work.steps(), by, keys, shards),
            )]
        }
        18 => vec![Act::Restart(dice.random_range(0..2))],
        _ => vec![house_keeping(dice)],
    }
}

fn upkeep(dice: &mut StdRng) -> Upkeep {
    match dice.random_range(0..4) {
        0 => Upkeep::Reclaim,
        1 => Upkeep::Compact,
        2 => Upkeep::Indexes,
        _ => Upkeep::Versions,
    }
}

fn house_keeping(dice: &mut StdRng) -> Act {
    match dice.random_range(0..4) {
        0 | 1 => Act::CleanUp(dice.random_range(1..3)),
        2 => Act::Compact,
        _ => Act::Optimize,
    }
}

/// Mostly a fault: they are what this is about.
fn fault(dice: &mut StdRng, steps: &[&'static str], by: usize, keys: u64, shards: usize) -> Fault {
    let step = steps[dice.random_range(0..steps.len())];
    match dice.random_range(0..10) {
        0..3 => Fault::None,
        3..5 => Fault::Stop(step),
        5 => {
            let trick = [Trick::LostAnswer, Trick::Late, Trick::Refused][dice.random_range(0..3)];
            let skip = dice.random_range(0..5);
            Fault::Store(trick, skip, beside(dice, by, keys, shards))
        }
        _ => Fault::Pause(step, beside(dice, by, keys, shards)),
    }
}

/// What others do meanwhile.
fn beside(dice: &mut StdRng, by: usize, keys: u64, shards: usize) -> Vec<Act> {
    let other = 1 - by;
    let mut beside = vec![];
    for _ in 0..dice.random_range(1..4) {
        match dice.random_range(0..9) {
            8 => beside.push(Act::Upkeep(other, upkeep(dice), Fault::None)),
            0..4 => beside.push(Act::Merge(other, dice.random_range(1..6), Fault::None)),
            4 => beside.push(Act::Drain(other, Fault::None)),
            5 => beside.extend(write(dice, keys, shards)),
            _ => beside.push(house_keeping(dice)),
        }
    }
    beside
}

/// What a schedule saw: how often things of interest came about.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    pub merged: usize,
    pub lost: usize,
    pub overtaken: usize,
    pub stopped: usize,
    pub paused: usize,
    pub drained: usize,
    pub refused: usize,
    pub upkeep: usize,
    pub tricked: usize,
}

impl Seen {
    /// An error is the store's, or a version or a directory was taken from under the work; never a fault of ours.
    fn refuse(&mut self, e: &Error) {
        assert!(e.class() != Class::Bug, "{e}");
        self.refused += 1;
    }

    pub fn add(&mut self, other: &Seen) {
        self.merged += other.merged;
        self.lost += other.lost;
        self.overtaken += other.overtaken;
        self.stopped += other.stopped;
        self.paused += other.paused;
        self.drained += other.drained;
        self.refused += other.refused;
        self.upkeep += other.upkeep;
        self.tricked += other.tricked;
    }
}

struct Stage<'a> {
    table: &'a RefCell<Fixture>,
    mergers: [RefCell<Merger>; 2],
    faults: [Faults; 2],
    seen: RefCell<Seen>,
    /// Values of rows rise with every put.
    clock: RefCell<i64>,
}

/// Plays a plan on a table, merges what is left, and has the base judged.
pub async fn play(table: Fixture, plan: &Plan) -> (Verdict, Seen) {
    let uri = table.uri.clone();
    let table = RefCell::new(table);
    let faults = [Faults::default(), Faults::default()];
    let stage = Stage {
        table: &table,
        mergers: [
            RefCell::new(Merger::open_faulty(&uri, &faults[0]).await),
            RefCell::new(Merger::open_faulty(&uri, &faults[1]).await),
        ],
        faults,
        seen: Default::default(),
        clock: RefCell::new(0),
    };
    for act in &plan.acts {
        stage.act(act).await;
    }
    let seen = stage.seen.take();
    let mut table = table.into_inner();
    // A crashed writer's rows come back when its shard is opened again.
    for at in 0..table.spec.shards {
        table.writer(at).await;
    }
    table.close().await;
    Merger::open(&uri).await.merge_all(usize::MAX).await;
    (table.verdict().await, seen)
}

impl Stage<'_> {
    // One act at a time borrows the table: what runs beside a paused work does not meet it there.
    #[allow(clippy::await_holding_refcell_ref)]
    async fn act(&self, act: &Act) {
        match act {
            Act::Put(keys) => {
                let rows: Vec<(u64, i64)> = {
                    let mut clock = self.clock.borrow_mut();
                    let value = || {
                        *clock += 1;
                        *clock
                    };
                    let mut value = value;
                    keys.iter().map(|k| (*k, value())).collect()
                };
                self.table.borrow_mut().put(&rows).await;
            }
            Act::Delete(keys) => self.table.borrow_mut().delete(keys).await,
            Act::Flush(shard) => drop(self.table.borrow_mut().flush_shard(*shard).await),
            Act::CrashWriter(shard) => self.table.borrow_mut().crash_writer(*shard).await,
            Act::Merge(by, most, fault) => {
                let mut merger = self.mergers[*by].borrow_mut();
                let work = async {
                    let outcome = merger.try_merge(*most).await;
                    let mut seen = self.seen.borrow_mut();
                    match outcome {
                        Ok(Some(Outcome::Merged(_))) => seen.merged += 1,
                        Ok(Some(Outcome::Lost)) => seen.lost += 1,
                        Ok(Some(Outcome::Overtaken)) => seen.overtaken += 1,
                        Ok(None) => {}
                        // The version that it read may be cleaned up under it; then nothing is changed.
                        Err(e) => seen.refuse(&e),
                    }
                };
                self.with_fault(*by, work, fault).await;
            }
            Act::Drain(by, fault) => {
                let mut merger = self.mergers[*by].borrow_mut();
                let work = async {
                    match merger.drain_all().await {
                        Ok(gone) => self.seen.borrow_mut().drained += gone,
                        Err(e) => self.seen.borrow_mut().refuse(&e),
                    }
                };
                self.with_fault(*by, work, fault).await;
            }
            Act::Upkeep(by, upkeep, fault) => {
                let mut merger = self.mergers[*by].borrow_mut();
                let work = async {
                    let done = match upkeep {
                        Upkeep::Reclaim => merger.reclaim_all().await.map(|n| n > 0),
                        Upkeep::Compact => merger.compact().await,
                        Upkeep::Indexes => merger.optimize_indexes().await,
                        Upkeep::Versions => merger.clean_versions().await.map(|n| n > 0),
                    };
                    match done {
                        Ok(done) => self.seen.borrow_mut().upkeep += usize::from(done),
                        Err(e) => self.seen.borrow_mut().refuse(&e),
                    }
                };
                self.with_fault(*by, work, fault).await;
            }
            Act::Restart(by) => {
                let uri = self.table.borrow().uri.clone();
                *self.mergers[*by].borrow_mut() =
                    Merger::open_faulty(&uri, &self.faults[*by]).await;
            }
            Act::Compact => self.compact().await,
            Act::Optimize => {
                let mut dataset = self.table.borrow().dataset().await;
                dataset
                    .optimize_indices(&OptimizeOptions::append())
                    .await
                    .unwrap();
            }
            Act::CleanUp(keep) => {
                let dataset = self.table.borrow().dataset().await;
                let policy = CleanupPolicyBuilder::default().retain_n_versions(&dataset, *keep);
                let policy = policy.await.unwrap().build();
                dataset.cleanup_with_policy(policy).await.unwrap();
            }
        }
    }

    async fn compact(&self) {
        let uri = self.table.borrow().uri.clone();
        let mut dataset = open(&uri).await;
        let options = CompactionOptions {
            target_rows_per_fragment: 1000,
            materialize_deletions_threshold: 0.0,
            ..Default::default()
        };
        compact_files(&mut dataset, options, None).await.unwrap();
    }

    async fn with_fault(&self, by: usize, work: impl Future<Output = ()>, fault: &Fault) {
        let (step, beside) = match fault {
            Fault::None => return work.await,
            Fault::Stop(step) => (*step, None),
            Fault::Pause(step, beside) => (*step, Some(beside)),
            Fault::Store(trick, skip, beside) => {
                self.faults[by].arm(*skip, *trick);
                work.await;
                if !self.faults[by].disarm() {
                    self.seen.borrow_mut().tricked += 1;
                }
                // The other merger shares no store with this one.
                for act in beside.iter().filter(|act| !act.is_by(by)) {
                    Box::pin(self.act(act)).await;
                }
                return self.faults[by].release().await;
            }
        };
        let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let mut work = pin!(steps::with_hook(once_at(step, &reached, &go_on), work));
        tokio::select! {
            biased;
            () = &mut work => return,
            () = reached.notified() => {}
        }
        match beside {
            // Dropped here, with all that it holds.
            None => self.seen.borrow_mut().stopped += 1,
            Some(beside) => {
                self.seen.borrow_mut().paused += 1;
                for act in beside {
                    Box::pin(self.act(act)).await;
                }
                go_on.notify_one();
                work.await;
            }
        }
    }
}

/// A hook that waits, the first time that `step` is passed, until it is told to go on.
fn once_at(step: &'static str, reached: &Arc<Notify>, go_on: &Arc<Notify>) -> Hook {
    let (reached, go_on) = (reached.clone(), go_on.clone());
    let first = Arc::new(AtomicBool::new(true));
    Arc::new(move |at| {
        let stop = at == step && first.swap(false, Ordering::Relaxed);
        let (reached, go_on) = (reached.clone(), go_on.clone());
        Box::pin(async move {
            if stop {
                reached.notify_one();
                go_on.notified().await;
            }
        })
    })
}
