//! What an observation comes to for a whole table.
//!
//! Lives here: sums over shards and generations. May use: the observation's own data. Never: a sum of some shards where
//! another could not be read, or a zero for what is unknown (contract 16).

use jiff::Timestamp;
use uuid::Uuid;

use super::anomaly::Anomaly;
use super::observation::{Observation, Pending, ShardView};

/// The sum of a figure of generations; `None` where any is unknown. A figure is what a manifest says, so it may be any number,
/// and a sum of such stays at the largest.
pub fn total<'a>(
    pending: impl IntoIterator<Item = &'a Pending>,
    of: fn(&Pending) -> Option<u64>,
) -> Option<u64> {
    let mut all = pending.into_iter();
    all.try_fold(0u64, |sum, p| Some(sum.saturating_add(of(p)?)))
}

impl Observation {
    /// The shards, where every one was read: a figure of some of them is none of the table.
    fn all(&self) -> Option<&[ShardView]> {
        self.unread.is_empty().then_some(&self.shards)
    }

    /// Pending generations; `None` where a shard could not be read.
    pub fn pending_generations(&self) -> Option<usize> {
        Some(self.all()?.iter().map(|s| s.pending.len()).sum())
    }

    /// Pending rows; `None` where a shard's, or any generation's, are unknown.
    pub fn pending_rows(&self) -> Option<u64> {
        total(self.all()?.iter().flat_map(|s| &s.pending), |p| p.rows)
    }

    /// Pending bytes; `None` where a shard's, or any generation's, are unknown.
    pub fn pending_bytes(&self) -> Option<u64> {
        total(self.all()?.iter().flat_map(|s| &s.pending), |p| p.bytes)
    }

    /// Generations that the shards' writers have ever flushed; `None` where a shard could not be read.
    pub fn flushed_ever(&self) -> Option<u64> {
        let of = |s: &ShardView| s.current_generation.saturating_sub(1);
        // Numbers are what a manifest says: any.
        Some(self.all()?.iter().map(of).fold(0, u64::saturating_add))
    }

    /// Generations that the base version has ever taken in; `None` where a shard could not be read.
    pub fn merged_ever(&self) -> Option<u64> {
        let of = |s: &ShardView| s.watermark;
        Some(self.all()?.iter().map(of).fold(0, u64::saturating_add))
    }

    /// How many shards there are, those that could not be read among them.
    pub fn shard_count(&self) -> usize {
        self.shards.len() + self.unread.len()
    }

    /// When the oldest pending generation that is known was flushed, by the store's clock.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.shards
            .iter()
            .filter_map(|s| s.pending.first()?.flushed_at)
            .min()
    }

    /// The anomaly that keeps a shard from being worked on, if any.
    pub fn blocked(&self, shard: Uuid) -> Option<&Anomaly> {
        self.anomalies
            .iter()
            .find(|a| a.kind.blocks() && a.shard.is_none_or(|s| s == shard))
    }
}
