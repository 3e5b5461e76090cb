//! Everything that the controller knows, and what follows from it: observe and decide, never act.
//!
//! Lives here: `Desk`, which is told what was seen and done and says what to do next. No clock and no client, so that it is
//! tested without a cluster. May use: this room's pure parts, `engine`'s data. Must never come in: an await.
//!
//! ```text
//! watch ─▶ took ─┐            ┌─▶ engine: tables, merge now
//! reads ─▶ heard ┼─▶ judge ─▶ acts ─▶ reads: Secrets, endpoints
//! engine ─▶ said ┘            └─▶ writes: status, finalizer, events
//! ```

mod judge;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::core::error_boundary::InvalidObject;

use super::finalize::{self, Step};
use super::news::{self, News};
use super::row::{Row, Verdict};
use super::specs;
use super::status::{Figures, status};
use super::writes::{Urgency, Writes, urgency};
use crate::api::{Experiment, ExperimentStatus, TableIdentity};
use crate::cluster::Settings;
use crate::cluster::endpoints::Leads;
use crate::cluster::secrets::{Found, Mono, Named, SecretBook};
use crate::engine::{Statuses, TableSpec};
use crate::plan::{Reason, TableId};

/// Something to be done outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// The engine's tables from now on.
    Tables(Vec<TableSpec>),
    /// Merge now.
    MergeNow(TableId),
    /// Read a Secret.
    ReadSecret(Named),
    /// See where an endpoint leads.
    LookUp(String),
    /// Write a status, and tell the events that belong to it.
    Write {
        /// Whose.
        id: TableId,
        /// The object that is meant, and no later one of its name.
        uid: String,
        /// What.
        status: Box<ExperimentStatus>,
        /// Told once it is written.
        news: Vec<News>,
    },
    /// Put these finalizers on the version that was seen.
    Finalizers {
        /// Whose.
        id: TableId,
        /// The object that is meant.
        uid: String,
        /// The version.
        version: String,
        /// The whole list.
        list: Vec<String>,
        /// Told once it is done.
        news: Vec<News>,
    },
}

/// What a write came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Wrote {
    /// It is written; the object's version now.
    Done(Option<u64>),
    /// The object is gone, or another one.
    Gone,
    /// It was not written; it is tried again later.
    Failed,
}

/// A generation may be on its way to the engine for so long before its status says that it waits.
const QUIET: Duration = Duration::from_secs(5);
/// So long where its last status still answers to it: after a restart, or a failover.
const QUIET_AGAIN: Duration = Duration::from_secs(60);
/// A write is told by the watch within this, mostly.
const UNTIL_WATCHED: Duration = Duration::from_secs(2);
/// All statuses are made at most this often.
const PASS_EVERY: Duration = Duration::from_millis(200);
/// Tables go to the engine at most this often.
const TABLES_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Endpoint {
    leads: Option<Leads>,
    next: Mono,
    looking: bool,
}

/// Everything that the controller knows.
#[derive(Debug)]
pub struct Desk {
    settings: Arc<Settings>,
    rows: BTreeMap<TableId, Row>,
    secrets: SecretBook,
    endpoints: BTreeMap<String, Endpoint>,
    statuses: Statuses,
    writes: Writes,
    /// Rows whose verdict is to be found again.
    dirty: BTreeSet<TableId>,
    /// Rows that claim a table.
    claims: BTreeMap<TableIdentity, BTreeSet<TableId>>,
    /// Rows seen since a watch began anew, by the watch.
    listing: BTreeMap<usize, BTreeSet<TableId>>,
    /// The tables that the engine has, and when it was told.
    told: Option<(Vec<TableSpec>, Mono)>,
    moved: bool,
    /// When all statuses were last made.
    passed: Option<Mono>,
}

impl Desk {
    /// An empty desk.
    pub fn new(settings: Arc<Settings>, now: Mono) -> Self {
        Self {
            settings,
            rows: BTreeMap::new(),
            secrets: SecretBook::default(),
            endpoints: BTreeMap::new(),
            statuses: Statuses::default(),
            writes: Writes::new(now),
            dirty: BTreeSet::new(),
            claims: BTreeMap::new(),
            listing: BTreeMap::new(),
            told: None,
            moved: true,
            passed: None,
        }
    }

    /// A watch begins anew: what it does not list until `listed` is gone.
    pub fn lists(&mut self, watch: usize) {
        self.listing.insert(watch, BTreeSet::new());
    }

    /// A watch has listed everything; `of` says which Experiments are its business.
    pub fn listed(&mut self, watch: usize, of: impl Fn(&str) -> bool) {
        let Some(there) = self.listing.remove(&watch) else {
            return;
        };
        let gone = self.rows.values();
        let gone = gone.filter(|r| of(r.namespace()) && !there.contains(&r.id));
        let gone: Vec<TableId> = gone.map(|r| r.id.clone()).collect();
        for id in gone {
            self.remove(&id);
        }
    }

    /// An Experiment is there, as it is now.
    pub fn took(&mut self, watch: usize, object: Result<Experiment, InvalidObject>, now: Mono) {
        let meta = match &object {
            Ok(e) => &e.metadata,
            Err(e) => &e.metadata,
        };
        let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        let id = specs::id(namespace.unwrap_or_default(), name.unwrap_or_default());
        if let Some(listing) = self.listing.get_mut(&watch) {
            listing.insert(id.clone());
        }
        if self
            .rows
            .get(&id)
            .is_some_and(|row| row.meta.uid != meta.uid)
        {
            self.remove(&id);
        }
        let row = self.rows.entry(id.clone());
        let row = row.or_insert_with(|| Row::new(id.clone(), now));
        let before = row.spec.as_ref().and_then(|s| s.identity.clone().ok());
        if row.take(object, &self.settings, now) {
            let after = row.spec.as_ref().and_then(|s| s.identity.clone().ok());
            let secret = row.secret();
            self.claim(&id, before, after);
            if let Some(secret) = secret {
                self.secrets.touch(&secret, now);
            }
            self.dirty.insert(id);
        }
    }

    /// An Experiment is gone.
    pub fn lost(&mut self, namespace: &str, name: &str, uid: Option<&str>) {
        let id = specs::id(namespace, name);
        let same = |row: &Row| uid.is_none() || row.meta.uid.as_deref() == uid;
        if self.rows.get(&id).is_some_and(same) {
            self.remove(&id);
        }
    }

    fn remove(&mut self, id: &TableId) {
        if let Some(row) = self.rows.remove(id) {
            let identity = row.spec.and_then(|s| s.identity.ok());
            self.claim(id, identity, None);
        }
        self.dirty.remove(id);
        self.moved = true;
    }

    /// Keeps account of who claims which table. Whoever else claims it is judged again.
    fn claim(&mut self, id: &TableId, old: Option<TableIdentity>, new: Option<TableIdentity>) {
        for (identity, comes) in [(old, false), (new, true)] {
            let Some(identity) = identity else {
                continue;
            };
            let claims = self.claims.entry(identity.clone()).or_default();
            match comes {
                true => claims.insert(id.clone()),
                false => claims.remove(id),
            };
            let others = claims.iter().filter(|other| *other != id);
            self.dirty.extend(others.cloned());
            if claims.is_empty() {
                self.claims.remove(&identity);
            }
        }
    }

    /// A Secret was read; `None` where the API server did not answer. `random` is from 0 to 1.
    pub fn heard_secret(&mut self, named: &Named, found: Option<Found>, now: Mono, random: f64) {
        if self.secrets.read(named, found, now, random) {
            let of = |row: &&Row| row.secret().as_ref() == Some(named);
            let rows = self.rows.values().filter(of);
            self.dirty.extend(rows.map(|r| r.id.clone()));
        }
    }

    /// It was seen where an endpoint leads. `random` is from 0 to 1.
    pub fn heard_endpoint(&mut self, endpoint: &str, leads: Leads, now: Mono, random: f64) {
        let Some(known) = self.endpoints.get_mut(endpoint) else {
            return;
        };
        known.looking = false;
        let wait = match leads {
            Leads::Nowhere => 30.0,
            _ => 300.0,
        };
        known.next = now + Duration::from_secs_f64(wait * (0.9 + 0.2 * random));
        // A resolver that fails for a while takes nothing back.
        let keeps = leads == Leads::Nowhere && known.leads.is_some();
        if !keeps && known.leads != Some(leads) {
            known.leads = Some(leads);
            self.dirty.extend(self.rows.keys().cloned());
        }
    }

    /// The engine said what it knows of its tables.
    pub fn said(&mut self, statuses: Statuses, now: Mono) {
        for (id, status) in statuses.iter() {
            let reason = status.why.as_ref().map(|w| w.reason);
            let before = self.statuses.get(id).and_then(|s| s.why.as_ref());
            let before = before.map(|w| w.reason);
            let rejected = |r| {
                matches!(
                    r,
                    Some(Reason::CredentialsRejected | Reason::CredentialsMissing)
                )
            };
            if rejected(reason) || rejected(before) {
                if let Some(secret) = self.rows.get(id).and_then(Row::secret) {
                    self.secrets.rejected(&secret, now);
                }
                // Whoever can open the table has it.
                if rejected(reason) != rejected(before) {
                    self.dirty.extend(self.rivals(id));
                }
            }
        }
        self.statuses = statuses;
    }

    fn rivals(&self, id: &TableId) -> Vec<TableId> {
        let row = self.rows.get(id);
        let identity = row.and_then(|r| r.spec.as_ref()?.identity.as_ref().ok());
        let claims = identity.and_then(|i| self.claims.get(i));
        claims.into_iter().flatten().cloned().collect()
    }

    /// What a write came to; `status` is what was to be written, or nothing for finalizers. `random` is from 0 to 1.
    pub fn wrote(
        &mut self,
        id: &TableId,
        status: Option<ExperimentStatus>,
        wrote: &Wrote,
        now: Mono,
        random: f64,
    ) {
        let Some(row) = self.rows.get_mut(id) else {
            return;
        };
        row.busy = false;
        match wrote {
            Wrote::Done(version) => {
                match status {
                    Some(status) => {
                        row.failed = (0, now);
                        row.written = status;
                        row.wrote = Some(now);
                        row.made = *version;
                    }
                    // The watch tells of it soon; until then the same would be asked again.
                    None => row.failed = (0, now + UNTIL_WATCHED),
                }
            }
            Wrote::Gone | Wrote::Failed => row.failed(now, random),
        }
    }

    /// Leadership ended, or begins: the engine has no tables, and nothing is under way.
    pub fn restart(&mut self, now: Mono) {
        self.told = None;
        self.moved = true;
        self.statuses = Statuses::default();
        self.secrets.abandon();
        for endpoint in self.endpoints.values_mut() {
            endpoint.looking = false;
        }
        for row in self.rows.values_mut() {
            row.busy = false;
            row.hurried = false;
            row.since = now;
            row.takes_over();
        }
        self.dirty.extend(self.rows.keys().cloned());
    }

    /// What is to be done now. `wall` is the time for conditions, `now` this process's own.
    pub fn acts(&mut self, wall: Timestamp, now: Mono) -> Vec<Act> {
        self.judge_dirty(now);
        let mut acts: Vec<Act> = self.tables(now).into_iter().collect();
        acts.extend(self.secrets.due(now).into_iter().map(Act::ReadSecret));
        for (name, endpoint) in &mut self.endpoints {
            if !endpoint.looking && endpoint.next <= now {
                endpoint.looking = true;
                acts.push(Act::LookUp(name.clone()));
            }
        }
        let soon = |passed: Mono| now.saturating_sub(passed) < PASS_EVERY;
        if !self.passed.is_some_and(soon) {
            self.passed = Some(now);
            self.report(wall, now, &mut acts);
        }
        acts
    }

    /// What is to be written, as far as the budget goes.
    fn report(&mut self, wall: Timestamp, now: Mono, acts: &mut Vec<Act>) {
        let mut writes = Vec::new();
        for row in self.rows.values_mut() {
            let engine = self.statuses.get(&row.id);
            hurry(row, self.told.as_ref().map(|(t, _)| t.as_slice()), acts);
            if !row.is_free(now) {
                continue;
            }
            if let Some(act) = finalizers(row, engine, wall) {
                row.busy = true;
                acts.push(act);
                continue;
            }
            let known = row.known(engine);
            let answered = row.written.observed_generation == row.generation();
            let quiet = if answered { QUIET_AGAIN } else { QUIET };
            if !known.acted && now.saturating_sub(row.since) < quiet {
                continue;
            }
            let figures = Figures {
                engine: matches!(row.verdict, Verdict::Allowed(_))
                    .then_some(engine)
                    .flatten(),
                effective: row.spec.as_ref().map(|s| &s.effective),
                handled: row.handled.as_deref(),
            };
            let next = status(&row.written, &known, figures, wall);
            let urgency = urgency(&row.written, &next);
            if urgency.is_due(row.wrote, now) {
                writes.push((known.acted, urgency, row.id.clone(), next));
            }
        }
        // What matters most goes first, as far as the budget goes.
        writes.sort_by_key(|w| std::cmp::Reverse((w.0, w.1)));
        for (acted, urgency, id, next) in writes {
            if !acted && !self.writes.has_plenty(now) || !self.writes.take(urgency, now) {
                break;
            }
            acts.extend(self.write(&id, urgency, next));
        }
    }

    fn write(&mut self, id: &TableId, urgency: Urgency, next: ExperimentStatus) -> Option<Act> {
        let row = self.rows.get_mut(id)?;
        row.busy = true;
        let mut told = std::mem::take(&mut row.news);
        if urgency == Urgency::Conditions {
            told.extend(news::between(&row.written.conditions, &next.conditions));
        }
        Some(Act::Write {
            id: id.clone(),
            uid: row.meta.uid.clone().unwrap_or_default(),
            status: Box::new(next),
            news: told,
        })
    }

    /// The engine's tables, if they are others than it has.
    fn tables(&mut self, now: Mono) -> Option<Act> {
        let soon = |(_, at): &(Vec<TableSpec>, Mono)| now.saturating_sub(*at) < TABLES_EVERY;
        if !self.moved || self.told.as_ref().is_some_and(soon) {
            return None;
        }
        self.moved = false;
        let tables = self.rows.values().filter_map(|row| match &row.verdict {
            Verdict::Allowed(spec) => Some((**spec).clone()),
            _ => None,
        });
        let tables: Vec<TableSpec> = tables.collect();
        if self.told.as_ref().is_some_and(|(told, _)| *told == tables) {
            return None;
        }
        self.told = Some((tables.clone(), now));
        Some(Act::Tables(tables))
    }
}

/// Passes on that a merge was asked for, by annotation or by a deletion.
fn hurry(row: &mut Row, told: Option<&[TableSpec]>, acts: &mut Vec<Act>) {
    let Verdict::Allowed(_) = &row.verdict else {
        return;
    };
    let asked = row.asked();
    let ends = row.deleting() && !row.hurried;
    if asked.is_none() && !ends {
        return;
    }
    // Tables are kept in the order of their names, as rows are.
    let has = told.is_some_and(|t| t.binary_search_by(|s| s.id.cmp(&row.id)).is_ok());
    if !has {
        return;
    }
    if let Some(asked) = asked {
        row.handled = Some(asked);
        row.news.push(News::normal(
            "MergeRequested",
            "A merge was asked for and starts as soon as it may.",
        ));
    }
    row.hurried |= ends;
    acts.push(Act::MergeNow(row.id.clone()));
}

/// What is to be done with the finalizer.
fn finalizers(
    row: &Row,
    engine: Option<&crate::engine::TableStatus>,
    wall: Timestamp,
) -> Option<Act> {
    let step = finalize::step(row.facts(engine), wall);
    let (with, news) = match step {
        Step::Leave => return None,
        Step::Add => (true, vec![]),
        Step::Drop => (false, vec![]),
        Step::Merged => (
            false,
            vec![News::normal(
                "DeletedMerged",
                "Everything that was pending is merged; the Experiment goes, its table stays.",
            )],
        ),
        Step::GiveUp => (
            false,
            vec![News::warning(
                "DeletedWithPending",
                "The Experiment goes without its last merges: they cannot be made, or not in time. What is pending stays in the table.",
            )],
        ),
    };
    Some(Act::Finalizers {
        id: row.id.clone(),
        uid: row.meta.uid.clone().unwrap_or_default(),
        version: row.meta.resource_version.clone()?,
        list: row.finalizers(with),
        news,
    })
}
