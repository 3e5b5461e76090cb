//! What the engine is told: the tables, and how it may spend itself.
//!
//! Lives here: plain data with first values. May use: `plan`'s policies, `table`'s locations. Must never come in: where
//! any of it came from.

use std::time::Duration;

use crate::plan::{Namespace, Policy, TableId};
use crate::table::{AnomalyKind, Location, TailPolicy};

/// One table that is to be kept fresh.
#[derive(Debug, Clone, PartialEq)]
pub struct TableSpec {
    /// Its name, unique in this process.
    pub id: TableId,
    /// Whom it shares fairly with.
    pub namespace: Namespace,
    /// Where it lies and how it is opened for writing.
    pub location: Location,
    /// What its owner wants.
    pub policy: Policy,
    /// No new work; it is still looked at.
    pub suspended: bool,
    /// Anomalies that a person says are as they should be.
    pub acknowledged: Vec<AnomalyKind>,
    /// The grace that another process may have had in force until this one came, where that is known.
    pub grace_before: Option<Duration>,
}

/// How long one look may take.
pub const LOOK_WITHIN: Duration = Duration::from_secs(60);

/// How the engine may spend itself.
#[derive(Debug, Clone)]
pub struct Config {
    /// How often a table is looked at, jittered by a fifth.
    pub poll: Duration,
    /// How long one look may take.
    pub look_within: Duration,
    /// The longest wait after looks that failed.
    pub longest_wait: Duration,
    /// Memory that all work together may use, in bytes.
    pub memory_bytes: u64,
    /// Merges and upkeep that may run at once.
    pub slots: usize,
    /// Drains and reclaims that may run at once.
    pub light_slots: usize,
    /// How long work that runs may go on once the engine is told to stop.
    pub stop_grace: Duration,
    /// How often shards' logs are looked at.
    pub tails: TailPolicy,
    /// The first and the longest wait before a quarantined generation is tried again.
    pub quarantine_retry: [Duration; 2],
}

impl Default for Config {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            poll: Duration::from_secs(1),
            look_within: LOOK_WITHIN,
            longest_wait: Duration::from_secs(30),
            memory_bytes: 1 << 30,
            slots: cores.max(2),
            light_slots: 8,
            stop_grace: Duration::from_secs(10),
            tails: TailPolicy::default(),
            quarantine_retry: [Duration::from_secs(300), Duration::from_secs(3600)],
        }
    }
}

/// What a planned byte stands for: rows grow when they are read, and are held, sorted out and written at once.
pub(super) const REAL_PER_PLANNED: u64 = 3;

impl Config {
    /// The byte budget in the plan's bytes.
    pub(super) fn planned_bytes(&self) -> u64 {
        self.memory_bytes / REAL_PER_PLANNED
    }

    /// The memory that work of so many planned bytes may use.
    pub(super) fn real_bytes(&self, planned: u64) -> u64 {
        planned
            .saturating_mul(REAL_PER_PLANNED)
            .min(self.memory_bytes)
    }
}
