//! The engine's one task: it looks, asks the plan, starts, and hears what ended.
//!
//! Lives here: `Engine` (the handle) and `Dispatcher` (the task that owns all state, so that nothing is shared). May use:
//! `plan`, this room's parts, tokio. Must never come in: a decision (`plan`), or an await on a store: looks and works run
//! in tasks of their own and report through one channel.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::config::{Config, TableSpec};
use super::entry::Entry;
use super::grace::Graces;
use super::look::Seen;
use super::pace::Pace;
use super::status::Statuses;
use super::tell::tell;
use super::ticket::Ticket;
use super::work::{self, Report, Room};
use crate::plan::{self, Budgets, End, Kind, Running, TableId, Work};
use crate::table::{Error, Stores};
use crate::telemetry::{MergeResult, Metrics};

/// What the dispatcher hears.
pub enum Event {
    /// These tables, and no others, from now on.
    Tables(Vec<TableSpec>),
    /// Merge now what is pending.
    MergeNow(TableId),
    /// A look ended.
    Looked {
        table: TableId,
        incarnation: u64,
        began: Timestamp,
        result: Result<Box<Seen>, Error>,
    },
    /// A work ended.
    Ended {
        table: TableId,
        incarnation: u64,
        work: Work,
        report: Box<Report>,
    },
}

/// A running engine.
pub struct Engine {
    events: UnboundedSender<Event>,
    statuses: watch::Receiver<Statuses>,
    stop: CancellationToken,
    kill: CancellationToken,
    /// Cancelled as the task ends, however it does.
    gone: CancellationToken,
    task: JoinHandle<()>,
}

impl Engine {
    /// Starts an engine with no tables.
    pub fn start(config: Config, stores: Arc<Stores>, metrics: Arc<Metrics>) -> Self {
        let (events, heard) = unbounded_channel();
        let (told, statuses) = watch::channel(Statuses::default());
        let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
        let budgets = Budgets::new(config.planned_bytes(), config.slots, config.light_slots);
        let dispatcher = Dispatcher {
            config: Arc::new(config),
            stores,
            metrics,
            events: events.clone(),
            told,
            budgets,
            entries: BTreeMap::new(),
            graces: Graces::default(),
            retired: BTreeMap::new(),
            incarnations: 0,
            works: JoinSet::new(),
            stop: stop.clone(),
            kill: kill.clone(),
            looks: [LOOKS, DOUBTFUL_LOOKS].map(|turns| Arc::new(Semaphore::new(turns))),
            halved: Instant::now(),
            clock: Timestamp::MIN,
        };
        let gone = CancellationToken::new();
        let ended = gone.clone().drop_guard();
        Self {
            events,
            statuses,
            stop,
            kill,
            task: tokio::spawn(async move {
                let _ended = ended;
                dispatcher.run(heard).await;
            }),
            gone,
        }
    }

    /// Keeps these tables fresh from now on, and no others. A table that keeps its name and place keeps what is known of
    /// it; work on one that goes is let finish.
    pub fn set_tables(&self, tables: Vec<TableSpec>) {
        let _ = self.events.send(Event::Tables(tables));
    }

    /// Merges now what is pending in a table, however young it is.
    pub fn merge_now(&self, table: TableId) {
        let _ = self.events.send(Event::MergeNow(table));
    }

    /// What is known of every table, now and whenever it changes.
    pub fn statuses(&self) -> watch::Receiver<Statuses> {
        self.statuses.clone()
    }

    /// Ends when the engine does by itself, which is a defect: nothing is kept fresh from then on, and whoever runs it has to
    /// end, too, for somebody to start it anew.
    pub async fn ended(&self) {
        self.gone.cancelled().await;
    }

    /// Stops: no new work; what runs gets a short grace and is dropped then, which commits all of it or nothing.
    pub async fn stop(self) {
        self.stop_before(std::future::pending()).await;
    }

    /// The same, and the grace is over as soon as `at_once` ends.
    pub async fn stop_before(mut self, at_once: impl Future<Output = ()>) {
        self.stop.cancel();
        let ended = tokio::select! {
            biased;
            () = at_once => {
                self.kill.cancel();
                self.task.await
            }
            ended = &mut self.task => ended,
        };
        if let Err(e) = ended {
            tracing::error!(error = %e, "the engine did not end well");
        }
    }
}

/// Looks that may be under way at once: each holds a connection, and what it reads.
const LOOKS: usize = 64;
/// Looks at tables that could not be looked at last time; a store that hangs takes no turns of those that answer.
const DOUBTFUL_LOOKS: usize = 32;
/// The fairness accounts are halved this often.
const HALVE_EVERY: Duration = Duration::from_secs(60);
/// Without anything else to wait for, the dispatcher looks around this often.
const IDLE: Duration = Duration::from_secs(5);

struct Dispatcher {
    config: Arc<Config>,
    stores: Arc<Stores>,
    metrics: Arc<Metrics>,
    events: UnboundedSender<Event>,
    told: watch::Sender<Statuses>,
    budgets: Budgets,
    entries: BTreeMap<TableId, Entry>,
    graces: Graces,
    /// What still runs on tables that are gone, by incarnation.
    retired: BTreeMap<u64, Vec<Running>>,
    incarnations: u64,
    works: JoinSet<()>,
    stop: CancellationToken,
    /// Drops what runs.
    kill: CancellationToken,
    /// Turns to look, for tables that could be looked at last time and for those that could not.
    looks: [Arc<Semaphore>; 2],
    halved: Instant,
    clock: Timestamp,
}

impl Dispatcher {
    async fn run(mut self, mut heard: UnboundedReceiver<Event>) {
        let (mut pace, mut wake) = (Pace::default(), Instant::now());
        while !self.stop.is_cancelled() {
            while self.works.try_join_next().is_some() {}
            let began = Instant::now();
            if pace.may(began) {
                self.start_looks();
                wake = self.plan();
                tell(&mut self.entries, &self.told, &self.metrics);
                pace.turned(began, Instant::now());
            }
            let turns = wake.max(pace.next());
            let woken = tokio::select! {
                event = heard.recv() => event,
                () = tokio::time::sleep_until(turns.into()) => None,
                () = self.stop.cancelled() => break,
            };
            // Everything that has been said by now is heard before the next plan.
            let mut next = woken;
            while let Some(event) = next {
                self.hear(event);
                wake = began;
                next = heard.try_recv().ok();
            }
        }
        self.wind_down(&mut heard).await;
    }

    /// No new work; what runs gets its grace.
    async fn wind_down(&mut self, heard: &mut UnboundedReceiver<Event>) {
        let grace = self.config.stop_grace;
        if tokio::time::timeout(grace, all_of(&mut self.works))
            .await
            .is_err()
        {
            tracing::warn!(running = self.works.len(), "work is dropped uncommitted");
            self.kill.cancel();
            all_of(&mut self.works).await;
        }
        while let Ok(event) = heard.try_recv() {
            if let Event::Ended { .. } = event {
                self.hear(event);
            }
        }
        tell(&mut self.entries, &self.told, &self.metrics);
    }

    /// This process's time. It stands still while its clock is corrected by a little, and follows one that was set back.
    fn now(&mut self) -> Timestamp {
        let (told, before) = (Timestamp::now(), self.clock);
        self.clock = super::views::follow(before, told);
        if self.clock < before {
            self.entries.values_mut().for_each(|e| e.set_back(told));
        }
        self.clock
    }

    fn hear(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Tables(specs) => self.set(specs),
            Event::MergeNow(table) => {
                if let Some(entry) = self.entries.get_mut(&table) {
                    entry.view.requested = Some(now);
                    entry.next_look = Instant::now();
                }
            }
            Event::Looked {
                table,
                incarnation,
                began,
                result,
            } => {
                if let Some(entry) = current(&mut self.entries, &table, incarnation) {
                    looked(entry, &self.config, began, result, now);
                }
            }
            Event::Ended {
                table,
                incarnation,
                work,
                report,
            } => self.ended(&table, incarnation, work, *report, now),
        }
    }

    fn set(&mut self, specs: Vec<TableSpec>) {
        let named: BTreeMap<&TableId, &TableSpec> = specs.iter().map(|s| (&s.id, s)).collect();
        let gone = self.entries.extract_if(.., |id, entry| {
            let (now, then) = (named.get(id), &entry.held.spec);
            !now.is_some_and(|s| s.location == then.location && s.acknowledged == then.acknowledged)
        });
        for (id, entry) in gone {
            entry.cancel.cancel();
            self.graces.gone(id.clone(), entry.grace, Instant::now());
            if !entry.view.running.is_empty() {
                self.retired.insert(entry.incarnation, entry.view.running);
            }
            if !named.contains_key(&id) {
                self.metrics.forget(&entry.view.namespace.0, id.name());
            }
        }
        for spec in specs {
            match self.entries.get_mut(&spec.id) {
                Some(entry) => entry.update(&spec),
                None => {
                    self.incarnations += 1;
                    let mut entry =
                        Entry::new(self.incarnations, spec.clone(), self.kill.child_token());
                    entry.grace = self.graces.again(&spec.id, entry.grace);
                    self.entries.insert(spec.id, entry);
                }
            }
        }
    }

    fn ended(
        &mut self,
        table: &TableId,
        incarnation: u64,
        work: Work,
        report: Report,
        now: Timestamp,
    ) {
        if work.task.kind() == Kind::Merge {
            self.measure(&work, &report, now);
        }
        if let End::Failed { reason, detail, .. } = &report.end {
            let kind = work.task.kind().as_str();
            tracing::warn!(%table, kind, %reason, "work failed: {detail}");
        }
        let Some(entry) = current(&mut self.entries, table, incarnation) else {
            if let Some(running) = self.retired.get_mut(&incarnation) {
                let kind = work.task.kind();
                if let Some(at) = running.iter().position(|r| r.kind == kind) {
                    running.remove(at);
                }
            }
            self.retired.retain(|_, running| !running.is_empty());
            return;
        };
        entry.worked(&work, &report, &self.config, now);
        entry.view.work_ended(&work, report.end, now);
        entry.touched = true;
        entry.next_look = Instant::now();
    }

    fn measure(&self, work: &Work, report: &Report, now: Timestamp) {
        let result = match (&report.merged, &report.end) {
            (Some(m), _) => MergeResult::Merged {
                generations: m.generations as u64,
                rows: m.rows_written,
            },
            (None, _) if report.overtaken => MergeResult::Overtaken,
            (None, End::Failed { reason, .. }) if *reason == plan::Reason::Conflict => {
                MergeResult::Lost
            }
            (None, End::Stopped) if report.poisoned.is_none() => MergeResult::Canceled,
            _ => MergeResult::Failed,
        };
        let took = match &report.merged {
            Some(merged) => merged.took.iter().sum(),
            None => now.duration_since(work.due).unsigned_abs(),
        };
        self.metrics.merge_done(result, took);
    }

    /// Starts the looks that are due.
    fn start_looks(&mut self) {
        let (at, began) = (Instant::now(), self.now());
        for (id, entry) in &mut self.entries {
            entry.at(at);
            if entry.looking || entry.next_look > at {
                continue;
            }
            entry.looking = true;
            let (held, stores) = (entry.held.clone(), self.stores.clone());
            let (policy, config) = (entry.view.policy.clone(), self.config.clone());
            let (events, cancel) = (self.events.clone(), entry.cancel.clone());
            let (table, incarnation) = (id.clone(), entry.incarnation);
            let within = config.look_within;
            let look: BoxFuture<'static, _> =
                Box::pin(held.clone().look(stores, policy, config.clone()));
            // A look that panics has to be heard of too, or the table would never be looked at again.
            let look = AssertUnwindSafe(look).catch_unwind();
            let cancelled = cancel.cancelled_owned();
            let doubtful = entry.view.look_trouble.failure.is_some();
            let turn = self.looks[usize::from(doubtful)].clone().acquire_owned();
            let look = async move {
                // Closed by nobody.
                let _turn = turn.await;
                tokio::time::timeout(within, look).await
            };
            tokio::spawn(async move {
                let result = tokio::select! {
                    look = look => match look {
                        Ok(Ok(result)) => result,
                        Ok(Err(_panic)) => Err(Error::Bug("a look at the table panicked".into())),
                        Err(_) => Err(Error::StoreUnreachable("look at the table in time")),
                    },
                    () = cancelled => return,
                };
                let reopen = |e: &Error| {
                    matches!(
                        e.reason(),
                        "TableNotFound" | "CredentialsRejected" | "CredentialsMissing"
                    )
                };
                if result.as_ref().is_err_and(reopen) {
                    held.close().await;
                }
                let result = result.map(Box::new);
                let _ = events.send(Event::Looked {
                    table,
                    incarnation,
                    began,
                    result,
                });
            });
        }
    }

    /// Plans, and starts what the plan says. Gives back when to ask again if nothing happens.
    fn plan(&mut self) -> Instant {
        let (now, at) = (self.now(), Instant::now());
        if at.saturating_duration_since(self.halved) >= HALVE_EVERY {
            self.budgets.served.halve();
            self.halved = at;
        }
        self.budgets.elsewhere = self.retired.values().flatten().copied().collect();
        let views = self.entries.values().map(|e| &e.view);
        let plan = plan::plan(views, &self.budgets, now);
        let mut waiting = 0;
        for (id, why) in plan.why_not_now {
            if let Some(entry) = self.entries.get_mut(&id) {
                let waits = matches!(why.reason, plan::Reason::Queued | plan::Reason::BudgetWait);
                waiting += usize::from(waits);
                log_change(&id, entry.why.as_ref(), &why);
                entry.touched |= entry.why.as_ref() != Some(&why);
                entry.why = Some(why);
            }
        }
        self.metrics.set_queue_depth(waiting);
        for work in plan.start {
            self.start(work, now);
        }
        let used = self.entries.values().flat_map(|e| &e.view.running);
        let used = used.chain(&self.budgets.elsewhere).map(|r| r.bytes);
        let used = used.fold(0, u64::saturating_add);
        self.metrics
            .set_budget(self.config.real_bytes(used), self.config.memory_bytes);
        let wake = plan.wake_at.map(|wake| {
            let span = wake.duration_since(now);
            at + Duration::try_from(span).unwrap_or_default() + Duration::from_millis(1)
        });
        let looks = self.entries.values().filter(|e| !e.looking);
        let looks = looks.map(|e| e.next_look);
        looks.chain(wake).chain([at + IDLE]).min().unwrap_or(at)
    }

    fn start(&mut self, work: Work, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(&work.table) else {
            return;
        };
        let Some(seen) = entry.seen.clone() else {
            return;
        };
        if work.task.kind() == Kind::Merge {
            self.budgets.queue_wait = Budgets::waited(self.budgets.queue_wait, work.due, now);
        }
        if work.task.kind().commits() {
            self.budgets.served.charge(&work.namespace, work.bytes);
        }
        entry.view.work_started(&work, now);
        entry.touched = true;
        let room = Room {
            held: entry.held.clone(),
            seen,
            policy: entry.view.policy.clone(),
            stores: self.stores.clone(),
            config: self.config.clone(),
            failures: entry.view.merge_trouble.backoff.failures,
        };
        let ticket = Ticket::new(self.events.clone(), entry.incarnation, work.clone());
        let kill = self.kill.clone();
        tracing::debug!(table = %work.table, kind = work.task.kind().as_str(), trigger = work.trigger.as_str(), "starts");
        self.works.spawn(async move {
            let ticket = ticket;
            tokio::select! {
                report = room.run(&work, now) => {
                    let retry = !matches!(report.end, End::Done | End::NothingToDo { .. });
                    if retry {
                        // What was believed of the table led here: the next look takes nothing for granted.
                        room.held.tracker.lock().await.refresh();
                    }
                    ticket.end(report);
                }
                () = kill.cancelled() => drop(ticket),
            }
        });
    }
}

async fn all_of(works: &mut JoinSet<()>) {
    while works.join_next().await.is_some() {}
}

/// The entry of a table, if it is still the one that is meant.
fn current<'a>(
    entries: &'a mut BTreeMap<TableId, Entry>,
    table: &TableId,
    incarnation: u64,
) -> Option<&'a mut Entry> {
    entries
        .get_mut(table)
        .filter(|e| e.incarnation == incarnation)
}

fn looked(
    entry: &mut Entry,
    config: &Config,
    began: Timestamp,
    result: Result<Box<Seen>, Error>,
    now: Timestamp,
) {
    entry.looking = false;
    entry.touched = true;
    let poll = config.poll.mul_f64(0.8 + 0.4 * rand::random::<f64>());
    let ended = entry.view.past.ended.is_some_and(|ended| began < ended);
    match result {
        Ok(seen) => {
            entry.looked(*seen, began, now);
            // A look that began before a work ended is not planned from.
            entry.next_look = Instant::now() + if ended { Duration::ZERO } else { poll };
        }
        Err(e) => {
            let before = entry.view.look_trouble.failure.as_ref().map(|f| f.reason);
            let reason = work::reason(&e);
            if before != Some(reason) {
                tracing::warn!(table = %entry.view.id, %reason, "the table cannot be looked at: {e}");
            }
            entry
                .view
                .look_failed(reason, e.to_string(), now, rand::random());
            let until = entry.view.look_trouble.backoff.until;
            let wait = until.map_or(poll, |until| until.duration_since(now).unsigned_abs());
            entry.next_look = Instant::now() + wait.clamp(poll, config.longest_wait.max(poll));
        }
    }
}

/// What keeps a table from being fresh is in the log once, when it begins, and once more when it has ended.
fn log_change(table: &TableId, before: Option<&plan::WhyNotNow>, now: &plan::WhyNotNow) {
    use plan::Reason::{BudgetWait, NeverObserved, Queued, Suspended};
    let quiet = |reason: plan::Reason| {
        let ordinary = matches!(reason, BudgetWait | NeverObserved | Queued | Suspended);
        ordinary || reason.is_well() || reason.is_passing()
    };
    let was = before.map(|b| b.reason);
    if was == Some(now.reason) {
        return;
    }
    if !quiet(now.reason) {
        tracing::warn!(table = %table.0, reason = now.reason.as_str(), "{}", now.message);
    } else if was.is_some_and(|was| !quiet(was)) {
        tracing::info!(table = %table.0, reason = now.reason.as_str(), "work goes on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::StoresConfig;

    #[tokio::test]
    async fn an_engine_that_died_is_noticed_by_whoever_runs_it() {
        let stores = Arc::new(Stores::new(StoresConfig::default()));
        let engine = Engine::start(Config::default(), stores, Arc::new(Metrics::new()));
        engine.task.abort();
        engine.ended().await;
        engine.stop().await;
    }
}
