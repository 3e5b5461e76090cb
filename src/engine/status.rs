//! What the engine says of each table.
//!
//! Lives here: `TableStatus`, plain data for whoever shows it. May use: `plan`'s reasons. Must never come in: a zero for
//! what nobody has observed (`None` is unknown), or a credential.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::plan::{Kind, TableId, WhyNotNow};

/// The status of every table, by its name.
pub type Statuses = Arc<BTreeMap<TableId, TableStatus>>;

/// What is known of one table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableStatus {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its URI.
    pub uri: String,
    /// The freshness target in force.
    pub target: Duration,
    /// The grace in force: for how long the files of drained generations stay.
    pub grace: Duration,
    /// When it was last observed with success.
    pub observed_at: Option<Timestamp>,
    /// Pending generations then.
    pub pending_generations: Option<u64>,
    /// Their rows.
    pub pending_rows: Option<u64>,
    /// Their bytes.
    pub pending_bytes: Option<u64>,
    /// When the oldest of them was flushed; `None` also where none is pending.
    pub oldest_pending: Option<Timestamp>,
    /// Shards that it has.
    pub shards: Option<u64>,
    /// The base version, its rows and its fragments.
    pub base: Option<(u64, u64, u64)>,
    /// Why its view is stale, or that it is not.
    pub why: Option<WhyNotNow>,
    /// What runs on it now.
    pub running: Vec<Kind>,
    /// Generations that cannot be merged.
    pub quarantined: Vec<QuarantinedGeneration>,
    /// The last merge that committed.
    pub last_merge: Option<LastMerge>,
    /// Rows merged per second, over the last half minute.
    pub merged_rows_per_second: f64,
    /// Generations merged since this process knows the table.
    pub merged_generations: u64,
    /// Rows that those merges wrote.
    pub merged_rows: u64,
    /// Merged generations whose files are still there.
    pub leftovers: Option<Leftovers>,
    /// Directories reclaimed since this process knows the table.
    pub reclaimed: u64,
    /// When that was last.
    pub last_reclaim: Option<Timestamp>,
}

/// What merges left behind and nobody deleted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leftovers {
    /// Generations that are merged and still listed by their shards.
    pub draining: u64,
    /// Drained generations whose files wait for their grace period to end.
    pub waiting: u64,
    /// Directories whose names say nothing; nobody deletes them.
    pub unknown: u64,
}

#[cfg(test)]
impl TableStatus {
    /// A table that nobody has looked at, as tests begin with one.
    pub(crate) fn unseen(namespace: &str, uri: &str) -> Self {
        Self {
            namespace: namespace.into(),
            uri: uri.into(),
            target: Duration::from_secs(60),
            grace: Duration::from_secs(600),
            observed_at: None,
            pending_generations: None,
            pending_rows: None,
            pending_bytes: None,
            oldest_pending: None,
            shards: None,
            base: None,
            why: None,
            running: vec![],
            quarantined: vec![],
            last_merge: None,
            merged_rows_per_second: 0.0,
            merged_generations: 0,
            merged_rows: 0,
            leftovers: None,
            reclaimed: 0,
            last_reclaim: None,
        }
    }
}

/// A merge that committed.
#[derive(Debug, Clone, PartialEq)]
pub struct LastMerge {
    /// When.
    pub time: Timestamp,
    /// The version that it made.
    pub version: u64,
    /// Generations moved.
    pub generations: u64,
    /// Rows written.
    pub rows: u64,
    /// Bytes written.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
}

/// A generation that cannot be merged; its shard waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantinedGeneration {
    /// Its shard.
    pub shard: Uuid,
    /// Its number.
    pub generation: u64,
    /// Its directory's name.
    pub path: String,
    /// Why, PascalCase.
    pub reason: &'static str,
    /// What is so.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}
