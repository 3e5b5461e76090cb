//! Works of the table room as tests drive them: one process each, sharing nothing but storage.
//!
//! Lives here: `Merger` (its own sessions and tracker). May use: the library's table room. Never: a decision of `plan`.

use std::time::Duration;

use freshet::table::{
    Chunk, Error, Limits, Location, Observation, Outcome, Snapshot, Stores, StoresConfig, Table,
    Tracker,
};

/// A merger as another process would be.
pub struct Merger {
    pub table: Table,
    pub tracker: Tracker,
    pub budget: u64,
}

impl Merger {
    pub async fn open(uri: &str) -> Self {
        Self::try_open(uri).await.unwrap()
    }

    pub async fn try_open(uri: &str) -> Result<Self, Error> {
        let stores = Stores::new(StoresConfig::default());
        Ok(Self {
            table: Table::open(&stores, &Location::new(uri)).await?,
            tracker: Tracker::new(),
            budget: 64 << 20,
        })
    }

    pub fn with_budget(mut self, bytes: u64) -> Self {
        self.budget = bytes;
        self
    }

    pub fn limits(&self) -> Limits {
        Limits::new(self.budget, Duration::from_secs(600))
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
}
