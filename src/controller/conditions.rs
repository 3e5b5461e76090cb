//! One reason, five conditions: what an Experiment's status says, from one table.
//!
//! Lives here: `TABLE` (reason → each condition) and the pure function that turns what is known of an Experiment into its
//! conditions. May use: `plan`'s reasons, `api`'s names, jiff. Must never come in: a clock, a client, or a condition that
//! is not in the table. The same table is in `docs/conditions.md`; a test compares them.

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::plan::{Reason, WhyNotNow};

/// The longest message, in bytes.
const LONGEST_MESSAGE: usize = 1024;
/// An observation older than this says nothing of now, whatever the reason.
const BLIND_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// What a condition says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody knows.
    Unknown,
    /// `False` once something pending is older than the target, `True` before; `Unknown` without a recent observation.
    ByAge,
}

impl Says {
    fn as_str(self) -> &'static str {
        match self {
            Says::True => "True",
            Says::False => "False",
            Says::Unknown => "Unknown",
            Says::ByAge => "by age",
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Whether Freshet takes care of the table.
    pub ready: Says,
    /// Whether nothing pending is past its deadline.
    pub fresh: Says,
    /// Whether the store answers, and lets the table be read.
    pub storage: Says,
    /// Whether an edit of the spec alone can mend it, so that nobody need wait.
    pub stalled: bool,
}

/// Reasons that the shell itself knows; all others are `plan`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// The spec says what cannot be.
    InvalidSpec,
    /// An older Experiment has the same table.
    AlreadyClaimed,
    /// The Experiment is being deleted and waits for its last merges.
    Deleting,
}

impl Own {
    /// All of them.
    pub const ALL: [Own; 3] = [Own::InvalidSpec, Own::AlreadyClaimed, Own::Deleting];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Own::InvalidSpec => "InvalidSpec",
            Own::AlreadyClaimed => "AlreadyClaimed",
            Own::Deleting => "Deleting",
        }
    }
}

/// Why an Experiment is as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// As the plan says.
    Plan(Reason),
    /// As the shell says.
    Own(Own),
}

impl Cause {
    /// Its name, in PascalCase.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Plan(reason) => reason.as_str(),
            Cause::Own(own) => own.as_str(),
        }
    }

    /// Every cause there is, in the order of the table.
    pub fn all() -> impl Iterator<Item = Cause> {
        let own = Own::ALL.into_iter().map(Cause::Own);
        own.chain(Reason::ALL.iter().copied().map(Cause::Plan))
    }

    /// Its line of the table.
    pub fn row(self) -> Row {
        use Reason as R;
        use Says::{ByAge, False, True, Unknown};
        let row = |ready, fresh, storage, stalled| Row {
            ready,
            fresh,
            storage,
            stalled,
        };
        match self {
            Cause::Own(Own::InvalidSpec) => row(False, Unknown, Unknown, true),
            Cause::Own(Own::AlreadyClaimed) => row(False, Unknown, Unknown, false),
            Cause::Own(Own::Deleting) => row(False, ByAge, True, false),
            Cause::Plan(reason) => match reason {
                R::NotAllowed => row(False, Unknown, Unknown, false),
                R::CredentialsMissing | R::CredentialsRejected | R::StoreUnreachable => {
                    row(False, Unknown, False, false)
                }
                R::BadOption => row(False, Unknown, False, true),
                R::TableNotFound | R::NotALanceTable | R::NotMemWal | R::Corrupt => {
                    row(False, Unknown, True, false)
                }
                R::NeverObserved => row(Unknown, Unknown, Unknown, false),
                R::ForeignBase
                | R::Unsupported
                | R::SchemaMismatch
                | R::ReadOnlyStore
                | R::DiskFull
                | R::GenerationUnreadable
                | R::Bug
                | R::LanceError
                | R::WentBack
                | R::WatermarkAhead
                | R::UnsupportedManifest
                | R::DuplicateGeneration
                | R::Quarantined => row(False, ByAge, True, false),
                R::Suspended
                | R::StoreThrottled
                | R::OverBudget
                | R::DeadlineExceeded
                | R::Conflict
                | R::BackingOff
                | R::Observing
                | R::Merging
                | R::Upkeep
                | R::BudgetWait
                | R::Queued
                | R::Scheduled
                | R::ForeignMerger
                | R::DirectWrite
                | R::AutoCleanup
                | R::UnknownDirectory
                | R::TailStranded
                | R::TailWaiting
                | R::Fresh => row(True, ByAge, True, false),
            },
        }
    }

    /// Whether it comes and goes while all is well, so that its coming is no news.
    pub fn is_daily(self) -> bool {
        matches!(self, Cause::Plan(reason) if reason.is_well()
            || matches!(reason, Reason::Queued | Reason::BudgetWait | Reason::Conflict))
    }
}

/// What is known of an Experiment.
#[derive(Debug, Clone)]
pub struct Known {
    /// The generation of the object.
    pub generation: i64,
    /// Whether what follows answers to that generation.
    pub acted: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Why it is as it is.
    pub cause: Cause,
    /// What is so, why, and what to do, in one sentence.
    pub message: String,
    /// Whatever else holds.
    pub also: Vec<Reason>,
    /// When the table was last observed with success.
    pub observed: Option<Timestamp>,
    /// When the oldest pending generation was flushed.
    pub oldest: Option<Timestamp>,
    /// The freshness target in force.
    pub target: Duration,
}

impl Known {
    /// What the engine says of a table.
    pub fn because(mut self, why: &WhyNotNow) -> Self {
        self.cause = Cause::Plan(why.reason);
        self.message = why.message.clone();
        self.also = why.also.clone();
        self
    }

    /// Why the store cannot be read, where something else comes first.
    fn blind(&self) -> Option<&'static str> {
        let unreachable = |r: &&Reason| Cause::Plan(**r).row().storage == Says::False;
        let found = self.also.iter().find(unreachable)?;
        (self.cause.row().storage != Says::False).then_some(found.as_str())
    }

    fn row(&self) -> Row {
        let mut row = self.cause.row();
        // Whatever comes first: a store that cannot be read is told, and nothing is known of what it holds.
        if self.blind().is_some() {
            row.storage = Says::False;
            row.fresh = Says::Unknown;
        }
        if self.observed.is_none() && row.storage == Says::True && row.fresh == Says::ByAge {
            // Nobody has read anything yet; a store that was not asked is not known to answer.
            row.storage = Says::Unknown;
        }
        row
    }

    fn fresh(&self, row: Row, now: Timestamp) -> Says {
        if row.fresh != Says::ByAge {
            return row.fresh;
        }
        match (self.observed, self.oldest) {
            (None, _) => Says::Unknown,
            (Some(seen), _) if now.duration_since(seen) > BLIND_AFTER => Says::Unknown,
            (Some(_), Some(oldest)) => {
                let age = now.duration_since(oldest);
                match SignedDuration::try_from(self.target).is_ok_and(|target| age > target) {
                    true => Says::False,
                    false => Says::True,
                }
            }
            (Some(_), None) => Says::True,
        }
    }
}

/// The conditions of an Experiment. Those that were there keep their transition times while their status stays the same.
pub fn conditions(known: &Known, before: &[Condition], now: Timestamp) -> Vec<Condition> {
    let row = known.row();
    let reason = known.cause.as_str();
    let fresh = known.fresh(row, now);
    let fresh_reason = match fresh {
        Says::Unknown if row.fresh == Says::ByAge => "NotObserved",
        Says::Unknown => known.blind().unwrap_or(reason),
        _ => reason,
    };
    let ready_reason = match row.ready {
        Says::True if known.cause != Cause::Plan(Reason::Suspended) => "Ready",
        _ => reason,
    };
    let storage = match row.storage {
        Says::True => ("Reachable", "The store answers.".to_owned()),
        _ => (known.blind().unwrap_or(reason), known.message.clone()),
    };
    let ready_message = match ready_reason {
        "Ready" => "Freshet takes care of this table.".to_owned(),
        _ => known.message.clone(),
    };
    let said = |kind, says, reason: &str, message: String| Said {
        kind,
        says,
        reason: reason.to_owned(),
        message,
    };
    let mut all = vec![
        said("Ready", row.ready, ready_reason, ready_message),
        said("Fresh", fresh, fresh_reason, known.message.clone()),
        said("StorageReachable", row.storage, storage.0, storage.1),
    ];
    if known.deleting {
        let waits = "It is being deleted and waits for its pending generations to be merged.";
        let why = Own::Deleting.as_str();
        all.push(said("Reconciling", Says::True, why, waits.into()));
    } else if !known.acted {
        let waits = "This generation of the object has not been acted on yet.";
        all.push(said(
            "Reconciling",
            Says::True,
            "NewGeneration",
            waits.into(),
        ));
    }
    if row.stalled {
        all.push(said("Stalled", Says::True, reason, known.message.clone()));
    }
    all.into_iter()
        .map(|s| s.condition(known.generation, before, now))
        .collect()
}

struct Said {
    kind: &'static str,
    says: Says,
    reason: String,
    message: String,
}

impl Said {
    fn condition(self, generation: i64, before: &[Condition], now: Timestamp) -> Condition {
        let status = self.says.as_str();
        let kept = before
            .iter()
            .find(|c| c.type_ == self.kind && c.status == status);
        // Kubernetes keeps whole seconds.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Condition {
            type_: self.kind.to_owned(),
            status: status.to_owned(),
            reason: self.reason,
            message: shortened(self.message),
            observed_generation: Some(generation),
            last_transition_time: kept.map_or(Time(now), |c| c.last_transition_time.clone()),
        }
    }
}

/// A message within its bound, cut between characters.
pub(super) fn shortened(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        let mut end = LONGEST_MESSAGE - '…'.len_utf8();
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push('…');
    }
    message
}

/// What kstatus makes of a line, and Flux and Argo CD's health check with it.
fn kstatus(row: Row) -> &'static str {
    match row {
        Row { stalled: true, .. } => "Failed",
        Row {
            ready: Says::True, ..
        } => "Current",
        _ => "InProgress",
    }
}

/// The table in Markdown, as the docs show it.
pub fn reference() -> String {
    let mut out = String::from(
        "| reason | Ready | Fresh | StorageReachable | Stalled | kstatus |\n|---|---|---|---|---|---|\n",
    );
    for cause in Cause::all() {
        let row = cause.row();
        let stalled = if row.stalled { "True" } else { "–" };
        out.push_str(&format!(
            "| `{}` | {} | {} | {} | {stalled} | {} |\n",
            cause.as_str(),
            row.ready.as_str(),
            row.fresh.as_str(),
            row.storage.as_str(),
            kstatus(row)
        ));
    }
    out
}
