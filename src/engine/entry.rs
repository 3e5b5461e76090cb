//! One table in the dispatcher's book.
//!
//! Lives here: `Entry`, what is remembered beside the plan's view of a table: its last look, its quarantine, when it is
//! looked at next, and what its work came to. Plain state. May use: `plan`, `table`'s data. Must never come in: an await.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::config::{Config, TableSpec};
use super::grace::Grace;
use super::look::{Held, Seen};
use super::quarantine::Quarantine;
use super::status::{LastMerge, Leftovers, QuarantinedGeneration, TableStatus};
use super::views::{self, FirstSeen, With};
use super::work::Report;
use crate::plan::{TableView, WhyNotNow, Work};
use crate::table::{Merged, Observation};

/// Rows per second are told over so long.
const RATE_WINDOW: Duration = Duration::from_secs(30);
/// Generations that could not be drained yet are asked for again after so long.
const DRAIN_AGAIN: Duration = Duration::from_secs(30);

/// What is remembered of a table.
pub struct Entry {
    /// Tells this table from one that had its name before.
    pub incarnation: u64,
    pub held: Arc<Held>,
    pub view: TableView,
    pub seen: Option<Arc<Seen>>,
    /// Ends its looks and works.
    pub cancel: CancellationToken,
    pub looking: bool,
    pub next_look: Instant,
    pub why: Option<WhyNotNow>,
    /// Whether something happened to it since it was told of.
    pub touched: bool,
    pub grace: Grace,
    quarantine: Quarantine,
    first_seen: FirstSeen,
    undrained: BTreeMap<Uuid, (u64, Instant)>,
    last_merge: Option<LastMerge>,
    recent: VecDeque<(Instant, u64)>,
    merged_generations: u64,
    merged_rows: u64,
    leftovers: Option<Leftovers>,
    reclaimed: u64,
    last_reclaim: Option<Timestamp>,
    since: Instant,
}

impl Entry {
    pub fn new(incarnation: u64, spec: TableSpec, cancel: CancellationToken) -> Self {
        let now = Timestamp::now();
        let mut view = TableView::new(
            spec.id.clone(),
            spec.namespace.clone(),
            spec.policy.clone(),
            now,
        );
        view.suspended = spec.suspended;
        view.jitter = rand::random();
        let grace = Grace::new(spec.policy.grace, spec.grace_before, Instant::now());
        Self {
            incarnation,
            held: Arc::new(Held::new(spec)),
            view,
            seen: None,
            cancel,
            looking: false,
            next_look: Instant::now(),
            why: None,
            touched: true,
            grace,
            quarantine: Quarantine::default(),
            first_seen: FirstSeen::default(),
            undrained: BTreeMap::new(),
            last_merge: None,
            recent: VecDeque::new(),
            merged_generations: 0,
            merged_rows: 0,
            leftovers: None,
            reclaimed: 0,
            last_reclaim: None,
            since: Instant::now(),
        }
    }

    /// Takes what may change while the table stays the same.
    pub fn update(&mut self, spec: &TableSpec) {
        self.view.namespace = spec.namespace.clone();
        self.view.policy = spec.policy.clone();
        self.view.suspended = spec.suspended;
        self.grace.ask(spec.policy.grace, Instant::now());
        self.touched = true;
    }

    /// What the plan, looks and works go by is the grace in force, which falls by itself.
    pub fn at(&mut self, now: Instant) {
        self.view.policy.grace = self.grace.in_force(now);
    }

    /// Whether what is told of it may be other than it was: a rate falls by itself.
    pub fn is_restless(&self) -> bool {
        self.touched || !self.recent.is_empty()
    }

    /// Takes nothing as later than `now`: a clock that was ahead said so.
    pub fn set_back(&mut self, now: Timestamp) {
        self.view.set_back(now);
        self.first_seen
            .values_mut()
            .for_each(|at| *at = now.min(*at));
        self.touched = true;
    }

    /// Takes a look that succeeded and began at `began`.
    pub fn looked(&mut self, seen: Seen, began: Timestamp, now: Timestamp) {
        let observation = &seen.observation;
        // Of a shard that could not be read, nothing is known to have changed.
        let unread = |shard| observation.unread.iter().any(|f| f.shard == shard);
        self.quarantine
            .keep(|q| unread(q.shard) || is_pending(observation, q));
        self.undrained
            .retain(|_, (_, until)| Instant::now() < *until);
        let held = self.undrained.iter().map(|(s, (from, _))| (*s, *from));
        let held = held.collect();
        let quarantine = &self.quarantine;
        let stops = |shard| quarantine.stops(shard, Some(seen.schema), now);
        let with = With {
            began,
            stops: &stops,
            held: &held,
        };
        let mapped = views::observation(&seen, &with, &mut self.first_seen);
        self.view.looked(mapped);
        if let Some(left) = seen.left.filter(|_| observation.unread.is_empty()) {
            let listed = observation.shards.iter().map(|s| s.merged.len() as u64);
            self.leftovers = Some(Leftovers {
                draining: listed.sum(),
                waiting: left.waiting,
                unknown: left.unknown,
            });
        }
        self.seen = Some(Arc::new(seen));
    }

    /// Takes what a work came to. The view's part is the caller's.
    pub fn worked(&mut self, work: &Work, report: &Report, config: &Config, now: Timestamp) {
        if let Some(merged) = &report.merged {
            self.merged(work, merged, now);
        }
        if let Some((shard, generation, e)) = &report.poisoned {
            let seen = self.seen.as_ref();
            let path = seen.and_then(|s| path_of(&s.observation, *shard, *generation));
            let told = QuarantinedGeneration {
                shard: *shard,
                generation: *generation,
                path: path.unwrap_or_default(),
                reason: e.reason(),
                message: e.to_string(),
                since: now,
            };
            tracing::warn!(table = %self.view.id, %shard, generation, path = told.path, reason = told.reason, "quarantined: {e}");
            let schema = seen.map(|s| s.schema);
            self.quarantine
                .put(told, schema, now, config.quarantine_retry);
        }
        let until = Instant::now() + DRAIN_AGAIN;
        for (shard, from) in &report.undrained {
            self.undrained.insert(*shard, (*from, until));
        }
        if report.reclaimed > 0 {
            self.reclaimed += report.reclaimed;
            self.last_reclaim = Some(now);
        }
    }

    fn merged(&mut self, work: &Work, merged: &Merged, now: Timestamp) {
        let took = merged.took.iter().sum();
        tracing::info!(
            table = %self.view.id, version = merged.version, generations = merged.generations, rows = merged.rows_written,
            deleted = merged.rows_deleted, bytes = merged.bytes_written, trigger = work.trigger.as_str(), ?took, "merged"
        );
        self.merged_generations += merged.generations as u64;
        self.merged_rows += merged.rows_written;
        self.recent.push_back((Instant::now(), merged.rows_written));
        self.last_merge = Some(LastMerge {
            time: now,
            version: merged.version,
            generations: merged.generations as u64,
            rows: merged.rows_written,
            bytes: merged.bytes_written,
            took,
        });
    }

    /// What is to be shown of it.
    pub fn status(&mut self) -> TableStatus {
        let at = Instant::now();
        self.recent
            .retain(|(when, _)| at.saturating_duration_since(*when) < RATE_WINDOW);
        let over = at.saturating_duration_since(self.since).min(RATE_WINDOW);
        let over = over.as_secs_f64().max(1.0);
        let rows: u64 = self.recent.iter().map(|(_, rows)| rows).sum();
        let seen = self.seen.as_ref().map(|s| &s.observation);
        TableStatus {
            namespace: self.view.namespace.0.clone(),
            uri: self.held.spec.location.uri.clone(),
            target: self.view.policy.target,
            grace: self.grace.in_force(at),
            observed_at: self.view.observation.as_ref().map(|o| o.observed_at),
            pending_generations: seen.and_then(|o| o.pending_generations()).map(|n| n as u64),
            pending_rows: seen.and_then(Observation::pending_rows),
            pending_bytes: seen.and_then(Observation::pending_bytes),
            oldest_pending: seen.and_then(Observation::oldest),
            shards: seen.map(|o| o.shard_count() as u64),
            base: seen.map(|o| (o.base.version, o.base.rows, o.base.fragments as u64)),
            why: self.why.clone(),
            running: self.view.running.iter().map(|r| r.kind).collect(),
            quarantined: self.quarantine.told(),
            last_merge: self.last_merge.clone(),
            merged_rows_per_second: rows as f64 / over,
            merged_generations: self.merged_generations,
            merged_rows: self.merged_rows,
            leftovers: self.leftovers,
            reclaimed: self.reclaimed,
            last_reclaim: self.last_reclaim,
        }
    }
}

fn is_pending(seen: &Observation, q: &QuarantinedGeneration) -> bool {
    path_of(seen, q.shard, q.generation).is_some_and(|path| path == q.path)
}

fn path_of(seen: &Observation, shard: Uuid, generation: u64) -> Option<String> {
    let view = seen.shards.iter().find(|s| s.shard == shard)?;
    let found = view
        .pending
        .iter()
        .find(|p| p.generation.number == generation)?;
    Some(found.generation.path.clone())
}
