//! One Experiment at the desk: the object as it was last seen, what was decided of it, and what was written to it.
//!
//! Lives here: `Row`, plain state with small readings of itself. May use: `api`, this room's pure parts. Must never come
//! in: another Experiment (the desk compares them), a clock, a client.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::error_boundary::InvalidObject;

use super::conditions::{Cause, Known, Own};
use super::finalize::{self, Facts};
use super::news::News;
use super::specs::FINALIZER;
use super::status::LONGEST_REQUEST;
use crate::api::{
    DeletionPolicy, Effective, Experiment, ExperimentStatus, REQUESTED_AT, TableIdentity,
    annotation,
};
use crate::cluster::Settings;
use crate::cluster::secrets::{Mono, Named};
use crate::engine::{TableSpec, TableStatus};
use crate::plan::{Reason, TableId};

/// What was decided of an Experiment.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Something has to be read first; the sentence says what.
    Waits(&'static str),
    /// It may not be worked on.
    Refused(Cause, String),
    /// It may, like this.
    Allowed(Box<TableSpec>),
}

/// A spec that can be read.
#[derive(Debug)]
pub struct Spec {
    /// The object.
    pub experiment: Experiment,
    /// Every tunable in force.
    pub effective: Effective,
    /// Which table it is.
    pub identity: Result<TableIdentity, String>,
}

/// One Experiment.
#[derive(Debug)]
pub struct Row {
    /// Its name in this process.
    pub id: TableId,
    /// Its metadata.
    pub meta: ObjectMeta,
    /// Its spec; `None` where it cannot be read.
    pub spec: Option<Spec>,
    /// What was decided.
    pub verdict: Verdict,
    /// The status as the cluster holds it, as far as is known.
    pub written: ExperimentStatus,
    /// When this process last wrote it.
    pub wrote: Option<Mono>,
    /// The version of the object that our last write made.
    pub made: Option<u64>,
    /// Whether a call for it is under way.
    pub busy: bool,
    /// Failed calls in a row, and when the next may be made.
    pub failed: (u32, Mono),
    /// Since when its generation waits to be acted on.
    pub since: Mono,
    /// The request that was passed on last.
    pub handled: Option<String>,
    /// Whether its last merges were asked for.
    pub hurried: bool,
    /// The grace that its status said was in force when this process took it over.
    pub grace_before: Option<Duration>,
    /// Events that wait for the status that they belong to.
    pub news: Vec<News>,
}

impl Row {
    /// A row for an object that was not there before.
    pub fn new(id: TableId, now: Mono) -> Self {
        Self {
            id,
            meta: ObjectMeta::default(),
            spec: None,
            verdict: Verdict::Waits("It has not been looked at yet."),
            written: ExperimentStatus::default(),
            wrote: None,
            made: None,
            busy: false,
            failed: (0, Mono::ZERO),
            since: now,
            handled: None,
            hurried: false,
            grace_before: None,
            news: vec![],
        }
    }

    /// Takes the object as it is now. Gives back whether more than its status moved.
    pub fn take(
        &mut self,
        object: Result<Experiment, InvalidObject>,
        settings: &Settings,
        now: Mono,
    ) -> bool {
        let meta = match &object {
            Ok(e) => &e.metadata,
            Err(e) => &e.metadata,
        };
        let first = self.spec.is_none();
        let version = meta.resource_version.as_ref().and_then(|v| v.parse().ok());
        let moved = self.meta.generation != meta.generation
            || self.meta.annotations != meta.annotations
            || self.meta.deletion_timestamp != meta.deletion_timestamp
            || self.meta.finalizers != meta.finalizers
            || self.spec.is_none() != object.is_err();
        if self.meta.generation != meta.generation {
            self.since = now;
            self.failed = (0, now);
        }
        if self.meta.finalizers != meta.finalizers {
            self.failed = (0, now);
        }
        self.meta = meta.clone();
        match object {
            Ok(mut experiment) => {
                let status = experiment.status.take().unwrap_or_default();
                // An event from before our own last write says nothing new of the status.
                if self
                    .made
                    .zip(version)
                    .is_none_or(|(made, v): (u64, u64)| v >= made)
                {
                    self.written = status;
                }
                if first {
                    self.takes_over();
                }
                self.spec = Some(Spec {
                    effective: Effective::resolve(
                        &experiment.spec,
                        &settings.defaults,
                        &settings.limits,
                    ),
                    identity: TableIdentity::of(&experiment.spec.table).map_err(|e| e.to_string()),
                    experiment,
                });
            }
            // What it said is not repeated: it may be anything.
            Err(_) => self.spec = None,
        }
        moved
    }

    /// Nobody has worked on it in this process yet.
    pub fn takes_over(&mut self) {
        let effective = self.written.effective.as_ref();
        let grace = effective.map(|e| e.retention.merged_generation_grace_period);
        self.grace_before = grace.map(|g| g.as_duration());
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        self.meta.namespace.as_deref().unwrap_or_default()
    }

    /// Its generation.
    pub fn generation(&self) -> i64 {
        self.meta.generation.unwrap_or_default()
    }

    /// Which of two Experiments has a table: the older, ties by uid.
    pub fn seniority(&self) -> (Option<Timestamp>, &str) {
        let created = self.meta.creation_timestamp.as_ref().map(|t| t.0);
        (created, self.meta.uid.as_deref().unwrap_or_default())
    }

    /// The Secret that opens its table for writing.
    pub fn secret(&self) -> Option<Named> {
        let named = self
            .spec
            .as_ref()?
            .experiment
            .spec
            .table
            .secret_ref
            .as_ref()?;
        Some((self.namespace().to_owned(), named.name.clone()))
    }

    /// The request that its annotation makes.
    pub fn request(&self) -> Option<String> {
        let said = annotation(&self.spec.as_ref()?.experiment, REQUESTED_AT)?;
        Some(said.chars().take(LONGEST_REQUEST).collect())
    }

    /// The request that has not been passed on yet.
    pub fn asked(&self) -> Option<String> {
        let asked = self.request()?;
        let known = [&self.handled, &self.written.last_handled_request];
        (!known.contains(&&Some(asked.clone()))).then_some(asked)
    }

    /// Whether the API server was told to delete it.
    pub fn deleting(&self) -> bool {
        self.meta.deletion_timestamp.is_some()
    }

    /// What its conditions go by.
    pub fn known(&self, engine: Option<&TableStatus>) -> Known {
        let known = Known {
            generation: self.generation(),
            acted: true,
            deleting: self.deleting(),
            cause: Cause::Plan(Reason::NeverObserved),
            message: Reason::NeverObserved.explain().to_owned(),
            also: vec![],
            observed: engine.and_then(|e| e.observed_at),
            oldest: engine.and_then(|e| e.oldest_pending),
            target: engine.map_or(Duration::ZERO, |e| e.target),
        };
        match &self.verdict {
            Verdict::Waits(what) => Known {
                acted: false,
                message: (*what).to_owned(),
                ..known
            },
            Verdict::Refused(cause, message) => Known {
                cause: *cause,
                message: message.clone(),
                ..known
            },
            Verdict::Allowed(spec) => match engine.and_then(|e| Some((e, e.why.as_ref()?))) {
                Some((status, why)) if answers(spec, status) => known.because(why),
                _ => Known {
                    acted: false,
                    ..known
                },
            },
        }
    }

    /// What the finalizer goes by.
    pub fn facts(&self, engine: Option<&TableStatus>) -> Facts {
        let finalizers = self.meta.finalizers.iter().flatten();
        let timeout = self.spec.as_ref().map(|s| s.effective.deletion.timeout);
        let timeout = timeout.and_then(|t| SignedDuration::try_from(t.as_duration()).ok());
        Facts {
            policy: self.policy(),
            there: finalizers.into_iter().any(|f| f == FINALIZER),
            deleted: self.meta.deletion_timestamp.as_ref().map(|t| t.0),
            timeout: timeout.unwrap_or_default(),
            worked_on: !matches!(self.verdict, Verdict::Refused(..)),
            observed: engine.and_then(|e| Some((e.observed_at?, e.pending_generations?))),
        }
    }

    fn policy(&self) -> Option<DeletionPolicy> {
        Some(self.spec.as_ref()?.experiment.spec.deletion_policy)
    }

    /// Its finalizers with ours, or without.
    pub fn finalizers(&self, with: bool) -> Vec<String> {
        let before = self.meta.finalizers.as_deref().unwrap_or_default();
        finalize::list(before, with)
    }

    /// Whether a call may be made for it.
    pub fn is_free(&self, now: Mono) -> bool {
        !self.busy && self.failed.1 <= now
    }

    /// A call failed: the next one waits, twice as long each time, somewhere up to it. `random` is from 0 to 1.
    pub fn failed(&mut self, now: Mono, random: f64) {
        const FIRST: Duration = Duration::from_secs(1);
        const LONGEST: Duration = Duration::from_secs(60);
        let times = self.failed.0.min(10);
        let wait = (FIRST * 2u32.pow(times)).min(LONGEST).mul_f64(random);
        self.failed = (times + 1, now + wait);
    }
}

/// Whether what the engine says of a table answers to this spec of it.
fn answers(spec: &TableSpec, status: &TableStatus) -> bool {
    let suspended = status.why.as_ref().is_some_and(|why| {
        why.reason == Reason::Suspended || why.also.contains(&Reason::Suspended)
    });
    let looked = status
        .why
        .as_ref()
        .is_some_and(|why| why.reason != Reason::NeverObserved);
    looked && status.target == spec.policy.target && suspended == spec.suspended
}

/// A spec that cannot be worked on, with the reason.
pub fn invalid(what: impl Into<String>) -> Verdict {
    Verdict::Refused(Cause::Own(Own::InvalidSpec), what.into())
}
