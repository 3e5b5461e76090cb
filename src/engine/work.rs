//! Doing one piece of work.
//!
//! Lives here: `run`, which does what a plan's work says and reports what came of it. May use: `table`. Must never come
//! in: a second try (the table is looked at and planned anew), or a limit other than the work's own.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use uuid::Uuid;

use super::config::Config;
use super::look::{Held, Seen, versions_policy};
use crate::plan::{End, Generation, Policy, Reason, ShardPrefix, Task, Work};
use crate::table::{
    CompactPolicy, Error, Limits, Merged, Outcome, ReclaimPolicy, Result, Stores, Upkeep,
};

/// What came of a work.
#[derive(Debug)]
pub struct Report {
    /// For the plan.
    pub end: End,
    /// What a merge did.
    pub merged: Option<Merged>,
    /// How a merge ended that did not commit, for the metrics.
    pub overtaken: bool,
    /// The generation that is at fault, and why.
    pub poisoned: Option<(Uuid, u64, Error)>,
    /// Shards that were drained less than asked: the first generation that stayed.
    pub undrained: Vec<(Uuid, u64)>,
    /// Directories deleted.
    pub reclaimed: u64,
}

impl Report {
    pub fn of(end: End) -> Self {
        Self {
            end,
            merged: None,
            overtaken: false,
            poisoned: None,
            undrained: vec![],
            reclaimed: 0,
        }
    }

    fn failed(e: &Error) -> Self {
        Self::of(failure(e))
    }
}

/// How the plan is told of an error.
pub fn failure(e: &Error) -> End {
    End::Failed {
        reason: reason(e),
        detail: e.to_string(),
        random: rand::random(),
    }
}

/// The plan's name for an error.
pub fn reason(e: &Error) -> Reason {
    Reason::named(e.reason()).unwrap_or(Reason::LanceError)
}

/// What a work needs besides itself.
pub struct Room {
    pub held: Arc<Held>,
    pub seen: Arc<Seen>,
    pub policy: Policy,
    pub stores: Arc<Stores>,
    pub config: Arc<Config>,
    /// Merges that failed before this one, in a row.
    pub failures: u32,
}

/// Merges of one generation that fail in a row before the generation is held to be at fault.
const SINGLE_TRIES: u32 = 2;

impl Room {
    /// Does a work.
    pub async fn run(&self, work: &Work, now: Timestamp) -> Report {
        let left = work.deadline.duration_since(now).unsigned_abs();
        let deadline = Instant::now() + left;
        let done = match &work.task {
            Task::Merge { shards, .. } => return self.merge(work, shards, deadline).await,
            Task::Drain { shards } => self.drain(shards).await,
            Task::Reclaim { .. } => self.reclaim(deadline).await,
            Task::Compact {
                target_rows_per_fragment,
            } => {
                self.compact(work, *target_rows_per_fragment, deadline)
                    .await
            }
            Task::OptimizeIndexes => self.optimize(deadline).await,
            Task::CleanVersions { .. } => self.clean(deadline).await,
        };
        done.unwrap_or_else(|e| Report::failed(&e))
    }

    async fn merge(&self, work: &Work, shards: &[ShardPrefix], deadline: Instant) -> Report {
        let size: u64 = shards.iter().map(|s| s.count).sum();
        let outcome = self.merge_once(work, shards, deadline).await;
        match outcome {
            Ok(Outcome::Merged(merged)) => Report {
                merged: Some(merged),
                ..Report::of(End::Done)
            },
            Ok(Outcome::Overtaken) => Report {
                overtaken: true,
                ..Report::of(End::Done)
            },
            Ok(Outcome::Lost) => Report::failed(&Error::Conflict("merge")),
            Err(e) => {
                let own = matches!(e, Error::Lance { .. } | Error::Corrupt { .. });
                let only = shards
                    .first()
                    .filter(|_| own && size == 1 && self.failures >= SINGLE_TRIES);
                let poisoned = e.poisoned().or_else(|| only.map(|s| (s.shard, s.up_to.0)));
                match poisoned {
                    // Its shard waits from now on, so the rest is planned again at once.
                    Some((shard, generation)) => Report {
                        poisoned: Some((shard, generation, e)),
                        ..Report::of(End::Stopped)
                    },
                    None => Report::failed(&e),
                }
            }
        }
    }

    async fn merge_once(
        &self,
        work: &Work,
        shards: &[ShardPrefix],
        deadline: Instant,
    ) -> Result<Outcome> {
        let table = self.held.table(&self.stores).await?;
        let known = self.held.tracker.lock().await.known();
        let through: Vec<_> = shards.iter().map(|s| (s.shard, s.up_to.0)).collect();
        let chunk = self.seen.snapshot.chunk(&through)?;
        let limits = Limits {
            budget_bytes: self.config.real_bytes(work.bytes),
            deadline,
        };
        table
            .merge(&self.seen.snapshot, &chunk, &known, &limits)
            .await
    }

    async fn drain(&self, shards: &[(Uuid, Generation)]) -> Result<Report> {
        let table = self.held.table(&self.stores).await?;
        let mut report = Report::of(End::Done);
        for (shard, through) in shards {
            let drained = table.drain(*shard, through.0).await?;
            self.held.reclaim.lock().await.drained(&drained);
            let view = self
                .seen
                .observation
                .shards
                .iter()
                .find(|s| s.shard == *shard);
            let asked = view.into_iter().flat_map(|s| &s.merged);
            let stayed = asked
                .map(|(g, _)| g)
                .filter(|g| g.number <= through.0)
                .find(|g| !drained.generations.iter().any(|d| d.path == g.path));
            // What was gone already is no stay; the next look tells.
            report.undrained.extend(stayed.map(|g| (*shard, g.number)));
        }
        Ok(report)
    }

    async fn reclaim(&self, deadline: Instant) -> Result<Report> {
        let table = self.held.table(&self.stores).await?;
        let mut memory = self.held.reclaim.lock().await;
        let mut policy = ReclaimPolicy::new(self.policy.grace, Default::default());
        policy.deadline = deadline;
        let observation = &self.seen.observation;
        let done = table.reclaim(observation, &policy, &mut memory).await?;
        Ok(Report {
            reclaimed: done.directories as u64,
            ..Report::of(End::Done)
        })
    }

    async fn compact(&self, work: &Work, rows: u64, deadline: Instant) -> Result<Report> {
        let table = self.held.table(&self.stores).await?;
        let mut memory = self.held.compact.lock().await;
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        let mut policy = CompactPolicy::new(rows, Default::default());
        policy.min_fragments =
            usize::try_from(self.policy.compaction.min_fragments).unwrap_or(usize::MAX);
        policy.budget_bytes = self.config.real_bytes(work.bytes);
        policy.deadline = deadline;
        let done = table.compact(&policy, &mut memory).await?;
        Ok(self.upkeep("compaction", done))
    }

    async fn optimize(&self, deadline: Instant) -> Result<Report> {
        let table = self.held.table(&self.stores).await?;
        let done = table.optimize_indexes(deadline).await?;
        Ok(self.upkeep("index upkeep", done))
    }

    async fn clean(&self, deadline: Instant) -> Result<Report> {
        let table = self.held.table(&self.stores).await?;
        let mut memory = self.held.versions.lock().await;
        let mut policy = versions_policy(&self.policy, Default::default());
        policy.deadline = deadline;
        let observation = &self.seen.observation;
        table
            .clean_versions(observation, &policy, &mut memory)
            .await?;
        Ok(Report::of(End::Done))
    }

    fn upkeep<T>(&self, what: &'static str, done: Upkeep<T>) -> Report {
        let base_version = self.seen.observation.base.version;
        match done {
            Upkeep::Done(_) => Report::of(End::Done),
            Upkeep::Nothing => Report::of(End::NothingToDo { base_version }),
            Upkeep::Lost => Report::failed(&Error::Conflict(what)),
            Upkeep::Refused(refusal) => {
                tracing::warn!(table = %self.held.spec.id, reason = refusal.reason(), "{what} is not done on this table");
                Report::of(End::NothingToDo { base_version })
            }
        }
    }
}
