//! One run over one table: what is pending is merged, chunk by chunk, and what cannot be is named.
//!
//! Lives here: `Sweep` (look, choose, merge, look again), `Lanes` (which generations go into the next chunk) and `Swept`
//! (what came of it). May use: `table`. Must never come in: a schedule (a run is asked for), output for people, or a
//! retry of the same decision: after every attempt the table is looked at anew.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::config::LOOK_WITHIN;
use crate::table::{
    AnomalyKind, Class, Error, Limits, Merged, Observation, Outcome, Pending, Result, ShardView,
    Snapshot, Table, Tracker,
};

/// What a generation of unknown size counts as.
const UNKNOWN_BYTES: u64 = 64 << 20;
/// Attempts that fail in a row, whatever the reason, before a run gives up.
const PATIENCE: u32 = 24;
/// Tries of one generation that fails for a reason that is not its own.
const SINGLE_TRIES: u32 = 3;

/// How much one merge may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Generations, at least 1.
    pub generations: usize,
    /// Bytes; a larger generation goes alone.
    pub bytes: u64,
    /// Bytes that the commit of its rows may take, where the table has stable row ids; a larger generation goes alone.
    pub commit_bytes: u64,
}

/// What a run is asked to do.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Go on until nothing is pending that could be merged; else only what is pending at the start.
    pub until_fresh: bool,
    /// How much one merge may take.
    pub caps: Caps,
    /// Bytes that one merge may hold in memory.
    pub budget_bytes: u64,
    /// How long one attempt may take; past it, it never commits.
    pub attempt: Duration,
    /// Whether merged generations are taken out of the shards' manifests at the end.
    pub drain: bool,
    /// Anomalies that a person says are as they should be.
    pub acknowledged: Vec<AnomalyKind>,
}

/// A shard (or the whole table) that is left alone because of an anomaly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The shard; `None` for the table.
    pub shard: Option<Uuid>,
    /// The anomaly's name.
    pub reason: &'static str,
    /// What is so and what to do.
    pub message: String,
    /// Whether it is stopped by a file that cannot be read.
    pub unread: bool,
}

/// A generation that cannot be merged; it and what comes after it in its shard wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Its shard.
    pub shard: Uuid,
    /// Its number.
    pub generation: u64,
    /// Its directory's name.
    pub path: String,
    /// The error's name.
    pub reason: &'static str,
    /// What is so.
    pub message: String,
    /// Generations of the shard that wait, itself among them.
    pub waiting: usize,
}

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct Swept {
    /// Commits made.
    pub commits: usize,
    /// Generations moved.
    pub generations: usize,
    /// Rows written to the base.
    pub rows_written: u64,
    /// Base rows replaced or deleted.
    pub rows_deleted: u64,
    /// Bytes of the data files written.
    pub bytes_written: u64,
    /// The base version seen or made last.
    pub version: Option<u64>,
    /// Attempts that another hand was faster than.
    pub lost: usize,
    /// Generations taken out of manifests.
    pub drained: usize,
    /// What is left alone.
    pub blocked: Vec<Blocked>,
    /// What cannot be merged.
    pub quarantined: Vec<Quarantined>,
    /// Generations that are pending by the last look; `None` where that is not known.
    pub left: Option<usize>,
}

/// Why a run ended before its end. What had been merged by then stays merged.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SweepError(#[from] pub Error);

/// One run over one table.
pub struct Sweep<'a> {
    table: &'a Table,
    wish: &'a Wish,
    tracker: Tracker,
    poisoned: BTreeMap<Uuid, Quarantined>,
    /// Per shard the highest generation to take; without it, all.
    goal: Option<BTreeMap<Uuid, u64>>,
    cap: usize,
    failures: u32,
}

/// What the next step is.
enum Next {
    Chunk(Vec<Taken>),
    Nothing,
}

impl<'a> Sweep<'a> {
    /// A run that has not begun.
    pub fn new(table: &'a Table, wish: &'a Wish) -> Self {
        let mut tracker = Tracker::new();
        tracker.acknowledge(wish.acknowledged.iter().copied());
        Self {
            table,
            wish,
            tracker,
            poisoned: BTreeMap::new(),
            goal: None,
            cap: wish.caps.generations.max(1),
            failures: 0,
        }
    }

    /// The merges that a run would make now. Nothing is written.
    pub async fn preview(mut self) -> Result<(Observation, Vec<Vec<Taken>>), SweepError> {
        let (seen, _) = self.look().await?;
        let mut lanes = Lanes::of(&seen, |_| u64::MAX, |_| None);
        let chunks = std::iter::from_fn(|| lanes.take(self.wish.caps)).collect();
        Ok((seen, chunks))
    }

    /// Merges. `swept` always tells what was done so far, also when the run fails or is dropped.
    pub async fn run(mut self, swept: &mut Swept) -> Result<(), SweepError> {
        let mut seen;
        loop {
            let first = self.goal.is_none() && swept.commits == 0 && self.failures == 0;
            let (observation, snapshot) = self.look().await?;
            if first && !self.wish.until_fresh {
                self.goal = Some(highest(&observation));
            }
            self.account(&observation, swept);
            let next = self.next(&observation);
            seen = observation;
            match next {
                Next::Chunk(taken) => self.attempt(&snapshot, &taken, swept).await?,
                Next::Nothing if first || !self.wish.until_fresh => break,
                Next::Nothing => {
                    // A shard may have come up since the last full look.
                    self.tracker.refresh();
                    let (observation, _) = self.look().await?;
                    self.account(&observation, swept);
                    let next = self.next(&observation);
                    seen = observation;
                    if let Next::Nothing = next {
                        break;
                    }
                }
            }
        }
        if self.wish.drain {
            self.drain(&seen, swept).await?;
        }
        Ok(())
    }

    /// One look, which a store that hangs does not hold up.
    async fn look(&mut self) -> Result<(Observation, Snapshot)> {
        let look = self.tracker.observe_within(self.table, LOOK_WITHIN);
        look.await
    }

    /// Takes what a look showed into the account of the run.
    fn account(&mut self, seen: &Observation, swept: &mut Swept) {
        swept.version = Some(seen.base.version);
        swept.left = seen.pending_generations();
        swept.blocked = blocked(seen);
        // What is pending no more was merged by another hand, or was never ours.
        self.poisoned.retain(|shard, q| {
            let pending = seen.shards.iter().find(|s| s.shard == *shard);
            let waiting = pending.map_or(0, |s| waiting(s, q));
            q.waiting = waiting;
            waiting > 0
        });
        swept.quarantined = self.poisoned.values().cloned().collect();
    }

    fn next(&self, seen: &Observation) -> Next {
        let goal = |shard: Uuid| match &self.goal {
            Some(goal) => goal.get(&shard).copied().unwrap_or(0),
            None => u64::MAX,
        };
        let stop = |shard: Uuid| self.poisoned.get(&shard).map(|q| q.generation);
        let caps = Caps {
            generations: self.cap,
            bytes: self.wish.caps.bytes,
            commit_bytes: self.wish.caps.commit_bytes,
        };
        Lanes::of(seen, goal, stop)
            .take(caps)
            .map_or(Next::Nothing, Next::Chunk)
    }

    /// One merge, and what is learnt from it.
    async fn attempt(
        &mut self,
        snapshot: &Snapshot,
        taken: &[Taken],
        swept: &mut Swept,
    ) -> Result<(), SweepError> {
        let through: Vec<_> = taken.iter().map(|t| (t.shard, t.through)).collect();
        let chunk = snapshot.chunk(&through)?;
        let limits = Limits::new(self.wish.budget_bytes, self.wish.attempt);
        let known = self.tracker.known();
        match self.table.merge(snapshot, &chunk, &known, &limits).await {
            Ok(Outcome::Merged(merged)) => {
                self.failures = 0;
                self.cap = (self.cap * 2).min(self.wish.caps.generations.max(1));
                swept.book(&merged);
                Ok(())
            }
            Ok(Outcome::Overtaken | Outcome::Lost) => {
                swept.lost += 1;
                self.look_again(Error::Conflict("merge")).await
            }
            Err(e) => self.failed(snapshot, chunk.len(), taken, e).await,
        }
    }

    async fn failed(
        &mut self,
        snapshot: &Snapshot,
        size: usize,
        taken: &[Taken],
        e: Error,
    ) -> Result<(), SweepError> {
        if let Some((shard, generation)) = e.poisoned() {
            self.quarantine(snapshot, shard, generation, &e);
            return self.look_again(e).await;
        }
        let of_the_chunk = matches!(
            e,
            Error::Lance { .. }
                | Error::Corrupt { .. }
                | Error::OverBudget { .. }
                | Error::DeadlineExceeded
        );
        if of_the_chunk && size > 1 {
            // Smaller, so that a generation at fault is found by itself and those before it get through.
            self.cap = (size / 2).max(1);
            return self.look_again(e).await;
        }
        let own = matches!(e, Error::Lance { .. } | Error::Corrupt { .. });
        if own
            && self.failures + 1 >= SINGLE_TRIES
            && let Some(t) = taken.first()
        {
            self.quarantine(snapshot, t.shard, t.through, &e);
            return self.look_again(e).await;
        }
        match e.class() {
            Class::Transient => self.look_again(e).await,
            _ => Err(e.into()),
        }
    }

    fn quarantine(&mut self, snapshot: &Snapshot, shard: Uuid, generation: u64, e: &Error) {
        let found = snapshot
            .pending()
            .find(|g| g.shard == shard && g.number == generation);
        let path = found.map(|g| g.path.clone()).unwrap_or_default();
        self.poisoned.insert(
            shard,
            Quarantined {
                shard,
                generation,
                path,
                reason: e.reason(),
                message: e.to_string(),
                waiting: 1,
            },
        );
    }

    /// Waits a little, longer after every failure in a row, and has the next look see everything.
    async fn look_again(&mut self, e: Error) -> Result<(), SweepError> {
        self.failures += 1;
        if self.failures >= PATIENCE {
            return Err(e.into());
        }
        self.tracker.refresh();
        let ceiling = Duration::from_millis(20 << self.failures.min(8));
        tokio::time::sleep(ceiling.mul_f64(rand::random::<f64>())).await;
        Ok(())
    }

    async fn drain(&mut self, seen: &Observation, swept: &mut Swept) -> Result<(), SweepError> {
        for s in seen.shards.iter().filter(|s| !s.merged.is_empty()) {
            if seen.blocked(s.shard).is_none() {
                let drained = self.table.drain(s.shard, s.watermark).await?;
                swept.drained += drained.generations.len();
            }
        }
        Ok(())
    }
}

impl Swept {
    fn book(&mut self, merged: &Merged) {
        self.commits += 1;
        self.generations += merged.generations;
        self.rows_written += merged.rows_written;
        self.rows_deleted += merged.rows_deleted;
        self.bytes_written += merged.bytes_written;
        self.version = Some(merged.version);
    }
}

/// How many generations of a shard wait because of a quarantined one; none where that is pending no more.
fn waiting(shard: &ShardView, q: &Quarantined) -> usize {
    let is = |p: &Pending| p.generation.number == q.generation && p.generation.path == q.path;
    let at = shard.pending.iter().position(is);
    at.map_or(0, |at| shard.pending.len() - at)
}

fn blocked(seen: &Observation) -> Vec<Blocked> {
    let unread = |shard: Option<Uuid>| seen.unread.iter().any(|f| Some(f.shard) == shard);
    let stopping = seen.anomalies.iter().filter(|a| a.kind.blocks());
    stopping
        .map(|a| Blocked {
            shard: a.shard,
            reason: a.kind.reason(),
            message: a.message.clone(),
            unread: unread(a.shard),
        })
        .collect()
}

/// Per shard the highest pending generation.
fn highest(seen: &Observation) -> BTreeMap<Uuid, u64> {
    let of = |s: &ShardView| Some((s.shard, s.pending.last()?.generation.number));
    seen.shards.iter().filter_map(of).collect()
}

/// The part of one shard in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The shard.
    pub shard: Uuid,
    /// The highest generation taken.
    pub through: u64,
    /// How many generations.
    pub count: usize,
    /// Bytes of those whose size is known.
    pub bytes: u64,
}

/// What of each shard can still be taken, oldest first.
pub struct Lanes<'a> {
    lanes: Vec<Lane<'a>>,
}

struct Lane<'a> {
    shard: Uuid,
    rest: &'a [Pending],
}

impl<'a> Lanes<'a> {
    /// The lanes of an observation: of every shard that no anomaly blocks its pending generations up to `goal`, and
    /// before `stop` where there is one.
    pub fn of(
        seen: &'a Observation,
        goal: impl Fn(Uuid) -> u64,
        stop: impl Fn(Uuid) -> Option<u64>,
    ) -> Self {
        let open = seen
            .shards
            .iter()
            .filter(|s| seen.blocked(s.shard).is_none());
        let lanes = open.map(|s| {
            let (goal, stop) = (goal(s.shard), stop(s.shard).unwrap_or(u64::MAX));
            let end = s
                .pending
                .partition_point(|p| p.generation.number <= goal && p.generation.number < stop);
            Lane {
                shard: s.shard,
                rest: &s.pending[..end],
            }
        });
        Self {
            lanes: lanes.collect(),
        }
    }

    /// Takes the next chunk: the oldest generations of all shards, oldest first, within the caps; a generation larger
    /// than the caps goes alone. `None` when nothing is left.
    pub fn take(&mut self, caps: Caps) -> Option<Vec<Taken>> {
        let mut taken: BTreeMap<Uuid, Taken> = BTreeMap::new();
        let (mut count, mut bytes, mut commit) = (0, 0u64, 0u64);
        let mut full = vec![false; self.lanes.len()];
        while count < caps.generations.max(1) {
            let Some(at) = self.oldest(&full) else { break };
            let lane = &mut self.lanes[at];
            let Some((first, rest)) = lane.rest.split_first() else {
                break;
            };
            let with = bytes.saturating_add(first.bytes.unwrap_or(UNKNOWN_BYTES));
            let committed = commit.saturating_add(first.commit_bytes);
            if count > 0 && (with > caps.bytes || committed > caps.commit_bytes) {
                full[at] = true;
                continue;
            }
            lane.rest = rest;
            (count, bytes, commit) = (count + 1, with, committed);
            let part = taken.entry(lane.shard).or_insert(Taken {
                shard: lane.shard,
                through: 0,
                count: 0,
                bytes: 0,
            });
            part.through = first.generation.number;
            part.count += 1;
            part.bytes = part.bytes.saturating_add(first.bytes.unwrap_or(0));
        }
        (count > 0).then(|| taken.into_values().collect())
    }

    /// The lane whose next generation is the oldest, of those that are not full.
    fn oldest(&self, full: &[bool]) -> Option<usize> {
        let since = |lane: &Lane<'_>| -> Option<Option<Timestamp>> {
            lane.rest.first().map(|p| p.flushed_at)
        };
        (0..self.lanes.len())
            .filter(|at| !full[*at])
            .filter_map(|at| since(&self.lanes[at]).map(|since| (since, at)))
            .min()
            .map(|(_, at)| at)
    }
}
