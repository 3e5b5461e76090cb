//! What the server is told about experiments.
//!
//! Lives here: `Catalog`, the trait through which the embedding role names its experiments and their tables, and
//! `ExperimentStatus`, plain data. May use: the table room's `Table` and its errors. Must never come in: a zero for what
//! nobody has observed yet, or a credential.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use crate::table::{Error, Table};

/// The experiments that a server serves.
#[async_trait]
pub trait Catalog: Send + Sync + 'static {
    /// Every experiment, in the order of their names. Answers from memory: no request to a store.
    fn list(&self) -> Vec<ExperimentStatus>;

    /// The namespace that is meant where a path names none; `None` where names are unique over all namespaces.
    fn namespace(&self) -> Option<&str> {
        None
    }

    /// One experiment, in a namespace or, for `None`, in any; `None` where there is none of that name. Answers from memory.
    fn get(&self, namespace: Option<&str>, name: &str) -> Option<ExperimentStatus>;

    /// The table of an experiment that was got here, opened if it was not; `None` where it is gone.
    ///
    /// # Errors
    /// What opening the table says, and why it may not be.
    async fn table(&self, of: &ExperimentStatus) -> Result<Option<Arc<Table>>, Unopened>;

    /// A store refused what a table was opened with: it is to be looked at again.
    fn refused(&self, _namespace: Option<&str>, _name: &str) {}

    /// Whether the experiments have been read once, so that "not found" can be said with confidence.
    fn ready(&self) -> bool {
        true
    }
}

/// Why a table is not open.
#[derive(Debug, thiserror::Error)]
pub enum Unopened {
    /// What opening it says.
    #[error(transparent)]
    Table(#[from] Error),
    /// Whoever runs the server did not allow it. No request was made.
    #[error("{0}")]
    NotAllowed(String),
    /// What it is to be opened with is not there or cannot be used. No request was made.
    #[error("{0}")]
    Credentials(String),
    /// Its store cannot be found. No request was made.
    #[error("{0}")]
    Unreachable(String),
    /// Its experiment cannot be read.
    #[error("the experiment cannot be read")]
    Unreadable,
    /// What it is to be opened with is not known yet.
    #[error("what opens the table is not known yet")]
    NotYet,
}

impl Unopened {
    /// The kind's name.
    pub fn reason(&self) -> &'static str {
        match self {
            Unopened::Table(e) => e.reason(),
            Unopened::NotAllowed(_) => "NotAllowed",
            Unopened::Credentials(_) => "CredentialsMissing",
            Unopened::Unreachable(_) => "StoreUnreachable",
            Unopened::Unreadable => "InvalidSpec",
            Unopened::NotYet => "NotYet",
        }
    }
}

/// What is known of one experiment. `None` is unknown, never 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExperimentStatus {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Which of all experiments of this name it is, where they have such an id: a cursor to the one before is of no use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Its table's URI, without credentials.
    pub uri: String,
    /// Pending generations at the last observation.
    pub pending_generations: Option<u64>,
    /// Their rows.
    pub pending_rows: Option<u64>,
    /// Their bytes.
    pub pending_bytes: Option<u64>,
    /// When the oldest of them was flushed; `None` also where none is pending.
    pub oldest_pending_time: Option<Timestamp>,
    /// When the table was last observed with success.
    pub observed_time: Option<Timestamp>,
    /// The freshness target in force, in seconds.
    pub target_seconds: Option<f64>,
    /// For how long files that no newer snapshot needs are kept for readers, in seconds: the least of what is asked for and
    /// what is in force. Cursors live by it; there are none where it is unknown.
    pub grace_seconds: Option<f64>,
    /// Why the table is not merged at this moment.
    pub why_not_now: Option<WhyNotNow>,
    /// Generations that cannot be merged and stop their shard until a person acts.
    pub quarantined_generations: Option<u64>,
    /// The last merge that was committed.
    pub last_merge: Option<LastMerge>,
    /// The base table at the last observation.
    pub fragments: Option<Fragments>,
    /// Rows merged per second, of late.
    pub merged_rows_per_second: Option<f64>,
}

impl ExperimentStatus {
    /// The freshness lag at `now`, in seconds: 0 where the last observation saw nothing pending, `None` where nobody
    /// observed or the oldest generation's time is not known.
    pub fn lag_seconds(&self, now: Timestamp) -> Option<f64> {
        match self.pending_generations? {
            0 => Some(0.0),
            _ => Some(lag(self.oldest_pending_time?, now)),
        }
    }
}

/// How long ago a time was, in seconds; a store's clock ahead of ours makes it 0.
pub(super) fn lag(oldest: Timestamp, now: Timestamp) -> f64 {
    ((now.as_millisecond() - oldest.as_millisecond()).max(0)) as f64 / 1e3
}

/// Why a table is not merged at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhyNotNow {
    /// The reason, PascalCase, from a closed set.
    pub reason: String,
    /// What is so and what to do, in one sentence.
    pub message: String,
}

/// A merge that was committed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LastMerge {
    /// When it was committed.
    pub time: Timestamp,
    /// The base version that it made.
    pub version: Option<u64>,
    /// Generations that it moved.
    pub generations: Option<u64>,
    /// Rows that it wrote.
    pub rows: Option<u64>,
    /// How long it took.
    pub seconds: Option<f64>,
}

/// The base table: what an ordinary Lance reader sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fragments {
    /// Its version.
    pub version: u64,
    /// Its rows.
    pub rows: Option<u64>,
    /// Its fragments.
    pub fragments: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_lag_of_what_nobody_observed_is_unknown() {
        assert_eq!(ExperimentStatus::default().lag_seconds(at(5)), None);
    }

    #[test]
    fn the_lag_is_the_age_of_the_oldest_pending_generation() {
        let mut status = ExperimentStatus {
            pending_generations: Some(2),
            ..Default::default()
        };
        assert_eq!(status.lag_seconds(at(100)), None);
        status.oldest_pending_time = Some(at(90));
        assert_eq!(status.lag_seconds(at(100)), Some(10.0));
        assert_eq!(status.lag_seconds(at(80)), Some(0.0));
    }

    #[test]
    fn nothing_pending_is_no_lag() {
        let status = ExperimentStatus {
            pending_generations: Some(0),
            ..Default::default()
        };
        assert_eq!(status.lag_seconds(at(5)), Some(0.0));
    }
}
