//! Looking at a table: all that one plan needs to know of it.
//!
//! Lives here: `Held`, what is kept of a table between looks and works, and `look`, which opens, observes and asks the
//! memories what is due. May use: `table`. Must never come in: a write; a look that waits for a work.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use uuid::Uuid;

use super::config::{Config, TableSpec};
use crate::plan::{LONGEST_WORK, Policy};
use crate::table::{
    CompactMemory, Observation, ReclaimMemory, ReclaimPolicy, Reclaimable, Result, Snapshot,
    StoreClock, Stores, Table, Tail, Tails, Tracker, VersionsMemory, VersionsPolicy, reclaimable,
};

/// What is kept of a table.
pub struct Held {
    pub spec: TableSpec,
    table: Mutex<Option<Arc<Table>>>,
    pub tracker: Mutex<Tracker>,
    pub reclaim: Mutex<ReclaimMemory>,
    pub compact: Mutex<CompactMemory>,
    pub versions: Mutex<VersionsMemory>,
    /// The logs, and each shard's manifest version when they were looked at last.
    tails: Mutex<(Tails, BTreeMap<Uuid, u64>)>,
}

/// What one look saw.
pub struct Seen {
    pub observation: Observation,
    pub snapshot: Snapshot,
    /// Rows that indexes do not cover.
    pub unindexed_rows: u64,
    /// In how long the first old version may go.
    pub old_versions_in: Option<Duration>,
    pub reclaimable: Vec<Reclaimable>,
    /// Drained directories that wait, and those whose names say nothing; `None` while they are being deleted.
    pub left: Option<Left>,
    pub tails: Vec<Tail>,
    /// The instant to which the waits of this look count.
    pub at: Instant,
    /// Tells one schema of the base from another.
    pub schema: u64,
}

/// Directories that no manifest lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub waiting: u64,
    pub unknown: u64,
}

impl Held {
    pub fn new(spec: TableSpec) -> Self {
        let clock = StoreClock::new();
        let mut tracker = Tracker::new();
        tracker.acknowledge(spec.acknowledged.iter().copied());
        Self {
            spec,
            table: Mutex::default(),
            tracker: Mutex::new(tracker),
            reclaim: Mutex::new(ReclaimMemory::new(clock.clone())),
            compact: Mutex::default(),
            versions: Mutex::new(VersionsMemory::new(clock.clone())),
            tails: Mutex::new((Tails::new(clock), BTreeMap::new())),
        }
    }

    /// The table, opened if it was not.
    pub async fn table(&self, stores: &Stores) -> Result<Arc<Table>> {
        let mut held = self.table.lock().await;
        if let Some(table) = held.as_ref() {
            return Ok(table.clone());
        }
        let table = Arc::new(Table::open(stores, &self.spec.location).await?);
        *held = Some(table.clone());
        Ok(table)
    }

    /// The next look opens the table anew.
    pub async fn close(&self) {
        *self.table.lock().await = None;
    }

    /// Looks at the table. What a running work has in its hands is left out.
    pub async fn look(
        self: Arc<Self>,
        stores: Arc<Stores>,
        policy: Policy,
        config: Arc<Config>,
    ) -> Result<Seen> {
        let table = self.table(&stores).await?;
        let (observation, snapshot) = self.tracker.lock().await.observe(&table).await?;
        let stale = table.stale_indexes().await?;
        let unindexed_rows = stale.iter().map(|s| s.rows.max(u64::from(s.unsaid))).sum();
        let at = Instant::now();
        let (mut due, mut left) = (vec![], None);
        if let Ok(mut memory) = self.reclaim.try_lock() {
            memory.watch(&observation, at);
            table.survey(&observation, &mut memory, at).await?;
            let within = ReclaimPolicy::new(policy.grace, Duration::ZERO);
            due = reclaimable(&observation, &within, &memory, at);
            left = Some(Left {
                waiting: memory.waiting() as u64,
                unknown: memory.unknown().count() as u64,
            });
        }
        let mut old_versions_in = None;
        if let Ok(mut memory) = self.versions.try_lock() {
            memory.watch(observation.base.version, at);
            let within = versions_policy(&policy, Duration::ZERO);
            old_versions_in = memory
                .due(&within, at)
                .map(|due| due.saturating_duration_since(at));
        }
        let tails = self.tails(&table, &observation, &config, at).await?;
        Ok(Seen {
            schema: fingerprint(&snapshot),
            tails,
            observation,
            snapshot,
            unindexed_rows,
            old_versions_in,
            reclaimable: due,
            left,
            at,
        })
    }
}

impl Held {
    /// The tails that there are. One whose shard has flushed since it was looked at says nothing any more.
    async fn tails(
        &self,
        table: &Table,
        observation: &Observation,
        config: &Config,
        at: Instant,
    ) -> Result<Vec<Tail>> {
        let mut held = self.tails.lock().await;
        let (tails, versions) = &mut *held;
        let looked = tails.look(table, observation, &config.tails, at).await?;
        for s in &observation.shards {
            if looked > 0 || !versions.contains_key(&s.shard) {
                versions.insert(s.shard, s.manifest_version);
            }
        }
        let still = |tail: &Tail| {
            let now = observation.shards.iter().find(|s| s.shard == tail.shard);
            now.is_some_and(|s| versions.get(&s.shard) == Some(&s.manifest_version))
        };
        Ok(tails.tails(at).into_iter().filter(still).collect())
    }
}

/// The policy for old versions that a table's policy asks for.
pub fn versions_policy(policy: &Policy, within: Duration) -> VersionsPolicy {
    let mut versions = VersionsPolicy::new(
        policy.versions_older_than,
        policy.grace,
        LONGEST_WORK,
        within,
    );
    versions.keep_at_least = usize::try_from(policy.versions_keep_at_least).unwrap_or(usize::MAX);
    versions
}

fn fingerprint(snapshot: &Snapshot) -> u64 {
    let mut hasher = DefaultHasher::new();
    for field in snapshot.base.schema().fields_pre_order() {
        (&field.name, field.id, field.nullable).hash(&mut hasher);
        field.data_type().hash(&mut hasher);
    }
    hasher.finish()
}
