//! Works of the table room as tests drive them: one process each, sharing nothing but storage.
//!
//! Lives here: `Merger` (its own sessions and tracker). May use: the library's table room. Never: a decision of `plan`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use freshet::table::{
    Chunk, CompactMemory, CompactPolicy, Error, Limits, Location, Observation, Outcome,
    ReclaimMemory, ReclaimPolicy, Snapshot, Stores, StoresConfig, Table, Tracker, Upkeep,
    VersionsMemory, VersionsPolicy,
};

use crate::faults::Faults;

/// A merger as another process would be.
pub struct Merger {
    pub table: Table,
    pub tracker: Tracker,
    pub budget: u64,
    reclaim: ReclaimMemory,
    compact: CompactMemory,
    versions: VersionsMemory,
}

impl Merger {
    pub async fn open(uri: &str) -> Self {
        Self::try_open(uri).await.unwrap()
    }

    pub async fn try_open(uri: &str) -> Result<Self, Error> {
        Self::open_in(uri, StoresConfig::default()).await
    }

    /// A merger whose store plays tricks when it is told to.
    pub async fn open_faulty(uri: &str, faults: &Faults) -> Self {
        let config = StoresConfig {
            wrapper: Some(Arc::new(faults.clone())),
            ..Default::default()
        };
        Self::open_in(uri, config).await.unwrap()
    }

    async fn open_in(uri: &str, config: StoresConfig) -> Result<Self, Error> {
        Self::open_at(&Location::new(uri), config).await
    }

    /// A merger of a table that lies anywhere.
    pub async fn open_at(location: &Location, config: StoresConfig) -> Result<Self, Error> {
        let stores = Stores::new(config);
        Ok(Self {
            table: Table::open(&stores, location).await?,
            tracker: Tracker::new(),
            budget: 64 << 20,
            reclaim: ReclaimMemory::default(),
            compact: CompactMemory::default(),
            versions: VersionsMemory::default(),
        })
    }

    pub fn with_budget(mut self, bytes: u64) -> Self {
        self.budget = bytes;
        self
    }

    pub fn limits(&self) -> Limits {
        Limits::new(self.budget, WITHIN)
    }

    pub async fn observe(&mut self) -> (Observation, Snapshot) {
        self.tracker.refresh();
        self.tracker.observe(&self.table).await.unwrap()
    }

    /// The oldest `at_most` pending generations of every shard that is not blocked; `None` where nothing is pending.
    pub fn chunk(observation: &Observation, snapshot: &Snapshot, at_most: usize) -> Option<Chunk> {
        let free = snapshot
            .shards
            .iter()
            .filter(|s| observation.blocked(s.state.shard).is_none());
        let through: Vec<_> = free
            .filter_map(|s| {
                Some((
                    s.state.shard,
                    s.pending.iter().take(at_most).next_back()?.number,
                ))
            })
            .collect();
        (!through.is_empty()).then(|| snapshot.chunk(&through).unwrap())
    }

    /// One attempt at the oldest `at_most` generations of every shard.
    pub async fn try_merge(&mut self, at_most: usize) -> Result<Option<Outcome>, Error> {
        self.tracker.refresh();
        let (observation, snapshot) = self.tracker.observe(&self.table).await?;
        let Some(chunk) = Self::chunk(&observation, &snapshot, at_most) else {
            return Ok(None);
        };
        let (known, limits) = (self.tracker.known(), self.limits());
        self.table
            .merge(&snapshot, &chunk, &known, &limits)
            .await
            .map(Some)
    }

    /// Merges until nothing is pending; how many commits it took.
    pub async fn merge_all(&mut self, at_most: usize) -> usize {
        let mut commits = 0;
        loop {
            match self.try_merge(at_most).await.unwrap() {
                None => return commits,
                Some(Outcome::Merged(_)) => commits += 1,
                Some(Outcome::Overtaken | Outcome::Lost) => {}
            }
        }
    }

    /// Drains every shard through its watermark.
    pub async fn drain_all(&mut self) -> Result<usize, Error> {
        let (_, snapshot) = self.observe().await;
        let mut gone = 0;
        for s in &snapshot.shards {
            gone += self
                .table
                .drain(s.state.shard, s.watermark)
                .await?
                .generations
                .len();
        }
        Ok(gone)
    }

    /// Deletes every drained directory at once: no grace.
    pub async fn reclaim_all(&mut self) -> Result<usize, Error> {
        self.tracker.refresh();
        let (observation, _) = self.tracker.observe(&self.table).await?;
        let policy = ReclaimPolicy::new(Duration::ZERO, WITHIN);
        let done = self
            .table
            .reclaim(&observation, &policy, &mut self.reclaim)
            .await?;
        Ok(done.directories)
    }

    /// Removes every version but the newest at once.
    pub async fn clean_versions(&mut self) -> Result<u64, Error> {
        self.tracker.refresh();
        let (observation, _) = self.tracker.observe(&self.table).await?;
        let none = Duration::ZERO;
        let policy = VersionsPolicy::new(none, none, none, WITHIN);
        let done = self
            .table
            .clean_versions(&observation, &policy, &mut self.versions)
            .await?;
        Ok(done.versions)
    }

    /// One slice of compaction, of whatever is worth it and more.
    pub async fn compact(&mut self) -> Result<bool, Error> {
        let policy = CompactPolicy {
            min_fragments: 2,
            deleted_share: 0.0,
            ..CompactPolicy::new(1000, WITHIN)
        };
        let done = self.table.compact(&policy, &mut self.compact).await?;
        Ok(matches!(done, Upkeep::Done(_)))
    }

    /// Brings every index up to date.
    pub async fn optimize_indexes(&mut self) -> Result<bool, Error> {
        let done = self.table.optimize_indexes(Instant::now() + WITHIN).await?;
        Ok(matches!(done, Upkeep::Done(_)))
    }
}

/// Time enough for any piece of work here.
const WITHIN: Duration = Duration::from_secs(600);
