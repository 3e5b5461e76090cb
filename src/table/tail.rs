//! Rows that are durable in a shard's log and that no generation holds yet.
//!
//! Lives here: `Tails`, which looks at logs seldom and remembers what it saw, and the two things that it tells: a tail that
//! waits, and one whose writer seems gone (contract 17). May use: Lance's log reader, manifests. Never: a merge of such
//! rows, which only their writer may flush, or a write of any kind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use lance::dataset::mem_wal::WalTailer;
use lance::dataset::mem_wal::util::{shard_wal_path, wal_entry_filename};
use object_store::{Error as StoreError, ObjectStoreExt as _};
use uuid::Uuid;

use super::anomaly::{Anomaly, AnomalyKind};
use super::base::Table;
use super::clock::StoreClock;
use super::error::{Error, Result};
use super::observation::{Observation, ShardView};
use super::shard::{self, timestamp};

/// How often logs are looked at, and from when on their tails are told.
#[derive(Debug, Clone, Copy)]
pub struct TailPolicy {
    /// A shard's log is looked at no more often than this.
    pub every: Duration,
    /// A tail is told when its oldest entry is older than this.
    pub waiting_after: Duration,
    /// Its writer counts as gone when neither manifest nor log moved for this long.
    pub stranded_after: Duration,
}

impl Default for TailPolicy {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(300),
            waiting_after: Duration::from_secs(900),
            stranded_after: Duration::from_secs(3600),
        }
    }
}

/// One shard's tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// The shard.
    pub shard: Uuid,
    /// Entries that no generation holds, at most: some may be in one already.
    pub entries: u64,
    /// How long its oldest entry has been there, at least.
    pub waiting: Duration,
    /// How long neither the manifest nor the log has moved, as far as this process saw.
    pub unchanged: Duration,
}

#[derive(Debug, Clone)]
struct Seen {
    looked: Instant,
    manifest_version: u64,
    /// The position that the next entry gets.
    next: u64,
    entries: u64,
    /// The position of the oldest entry of the tail.
    first: u64,
    first_seen: Instant,
    first_written: Option<Timestamp>,
    unchanged_since: Instant,
}

/// Remembers the logs of one table's shards between looks.
#[derive(Debug, Default)]
pub struct Tails {
    clock: StoreClock,
    seen: BTreeMap<Uuid, Seen>,
}

/// A tail of no more entries than this is read, to tell rows from the mark that a new writer leaves.
const READ_AT_MOST: u64 = 4;

impl Tails {
    /// An empty memory that goes by its store's clock.
    pub fn new(clock: StoreClock) -> Self {
        Self {
            clock,
            seen: BTreeMap::new(),
        }
    }

    /// Looks at the logs that are due: one request for a shard that has not moved, about ten for one that has. Returns how
    /// many were looked at.
    ///
    /// # Errors
    /// The store's kinds; what was seen before stays.
    pub async fn look(
        &mut self,
        table: &Table,
        observation: &Observation,
        policy: &TailPolicy,
        now: Instant,
    ) -> Result<usize> {
        let there = |shard: &Uuid| observation.shards.iter().any(|s| s.shard == *shard);
        self.seen.retain(|shard, _| there(shard));
        let mut looked = 0;
        for view in &observation.shards {
            let before = self.seen.get(&view.shard).cloned();
            let due = |s: &Seen| now.saturating_duration_since(s.looked) >= policy.every;
            if before.as_ref().is_some_and(|before| !due(before)) {
                continue;
            }
            match self.look_at(table, view, before, now).await {
                Ok(seen) => drop(self.seen.insert(view.shard, seen)),
                // Broken since it was observed: nothing is known of its log, and the next look at the table says so.
                Err(Error::UnsupportedManifest { .. }) => drop(self.seen.remove(&view.shard)),
                // Such as a log that counts to the end of numbers: what was seen before stays, and merges go on.
                Err(e @ Error::Lance { .. }) => {
                    tracing::warn!(shard = %view.shard, error = %e, "a shard's log cannot be looked at");
                    if let Some(before) = self.seen.get_mut(&view.shard) {
                        before.looked = now;
                    }
                }
                Err(e) => return Err(e),
            }
            looked += 1;
        }
        Ok(looked)
    }

    async fn look_at(
        &self,
        table: &Table,
        view: &ShardView,
        before: Option<Seen>,
        now: Instant,
    ) -> Result<Seen> {
        let still = before
            .as_ref()
            .filter(|b| b.manifest_version == view.manifest_version);
        if let Some(still) = still
            && self.written(table, view.shard, still.next).await?.is_none()
        {
            return Ok(Seen {
                looked: now,
                ..still.clone()
            });
        }
        let state = shard::newest(table.store(), table.path(), view.shard, None).await?;
        let replay = state
            .as_ref()
            .map_or(0, |s| s.manifest.replay_after_wal_entry_position);
        let version = state.as_ref().map_or(0, |s| s.manifest.version);
        let tailer = WalTailer::new(table.store().clone(), table.path().clone(), view.shard);
        let next = tailer
            .next_position()
            .await
            .map_err(|e| Error::lance("look for the end of a shard's log", e))?;
        let mut entries = next.saturating_sub(replay + 1);
        if entries <= READ_AT_MOST && !self.any_rows(&tailer, replay + 1..next).await? {
            entries = 0;
        }
        let first = replay + 1;
        let kept = before
            .as_ref()
            .filter(|b| b.first == first && b.entries > 0);
        let first_written = match (entries, kept) {
            (0, _) => None,
            (_, Some(kept)) => kept.first_written,
            (_, None) => self.written(table, view.shard, first).await?,
        };
        Ok(Seen {
            looked: now,
            manifest_version: version,
            next,
            entries,
            first,
            first_seen: kept.map_or(now, |k| k.first_seen),
            first_written,
            unchanged_since: now,
        })
    }

    /// When an entry was written; `None` where there is none.
    async fn written(
        &self,
        table: &Table,
        shard: Uuid,
        position: u64,
    ) -> Result<Option<Timestamp>> {
        let path = shard_wal_path(table.path(), &shard).join(wal_entry_filename(position).as_str());
        match table.store().inner.head(&path).await {
            Ok(meta) => {
                let at = timestamp(meta.last_modified);
                self.clock.saw(at);
                Ok(Some(at))
            }
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(e) => Err(Error::store("look at an entry of a shard's log", e)),
        }
    }

    /// Whether any of a few entries holds rows. One that cannot be read counts as if it did.
    async fn any_rows(&self, tailer: &WalTailer, positions: std::ops::Range<u64>) -> Result<bool> {
        for position in positions {
            match tailer.read_entry(position).await {
                Ok(None) => {}
                Ok(Some(entry)) if entry.batches.iter().all(|b| b.num_rows() == 0) => {}
                Ok(Some(_)) => return Ok(true),
                Err(e) => {
                    tracing::debug!(position, error = %e, "an entry of a shard's log cannot be read");
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The tails that there are, ascending by shard.
    pub fn tails(&self, now: Instant) -> Vec<Tail> {
        let with_rows = self.seen.iter().filter(|(_, seen)| seen.entries > 0);
        let tail = |(shard, seen): (&Uuid, &Seen)| Tail {
            shard: *shard,
            entries: seen.entries,
            waiting: seen
                .first_written
                .map_or(Duration::ZERO, |at| self.clock.age(at))
                .max(now.saturating_duration_since(seen.first_seen)),
            unchanged: now.saturating_duration_since(seen.unchanged_since),
        };
        with_rows.map(tail).collect()
    }

    /// What is told of them.
    pub fn anomalies(&self, policy: &TailPolicy, now: Instant) -> Vec<Anomaly> {
        let told = |tail: Tail| {
            let (shard, entries) = (tail.shard, tail.entries);
            let (kind, message) = match () {
                _ if tail.unchanged >= policy.stranded_after => (
                    AnomalyKind::TailStranded,
                    format!(
                        "shard {shard} holds up to {entries} durable entries that no generation holds, and its writer has not moved for {} min: open the shard with a writer again and close it, which flushes them",
                        tail.unchanged.as_secs() / 60
                    ),
                ),
                _ if tail.waiting >= policy.waiting_after => (
                    AnomalyKind::TailWaiting,
                    format!(
                        "shard {shard} holds up to {entries} durable entries that no generation holds, the oldest for {} min: writers flush by size and never by age, so flush or close this one",
                        tail.waiting.as_secs() / 60
                    ),
                ),
                _ => return None,
            };
            Some(Anomaly {
                kind,
                shard: Some(shard),
                message,
            })
        };
        self.tails(now).into_iter().filter_map(told).collect()
    }
}
