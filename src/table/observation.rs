//! What one look at a table saw.
//!
//! Lives here: `Observation` and its parts: counts, bytes, exact times. Plain data. May use: generations, anomalies.
//! Never: how it is found (`observe`), or what it comes to
//! for the whole table (`backlog`).

use jiff::Timestamp;
use lance::Dataset;
use uuid::Uuid;

use super::anomaly::Anomaly;
use super::generation::Generation;
use super::shard::ShardFault;

/// One pending generation.
#[derive(Debug, Clone)]
pub struct Pending {
    /// The generation.
    pub generation: Generation,
    /// Its rows, masked duplicates and tombstones among them; `None` where nobody has looked yet.
    pub rows: Option<u64>,
    /// Its bytes in memory as its writer counted them, else those of its data files; `None` where nobody has looked yet.
    pub bytes: Option<u64>,
    /// Bytes that the commit of a merge takes for its rows, after the merge itself let go of what it held; 0 where that is
    /// next to nothing, or nobody has looked yet.
    pub commit_bytes: u64,
    /// When it was flushed, by the store's clock; `None` where nobody has looked yet.
    pub flushed_at: Option<Timestamp>,
}

/// One shard of an observation.
#[derive(Debug, Clone)]
pub struct ShardView {
    /// The shard.
    pub shard: Uuid,
    /// The manifest version that was read.
    pub manifest_version: u64,
    /// The writer's epoch, which draining goes by.
    pub writer_epoch: u64,
    /// The generation that its writer fills next.
    pub current_generation: u64,
    /// The highest generation that the base version holds; 0 for none.
    pub watermark: u64,
    /// Pending generations, oldest first.
    pub pending: Vec<Pending>,
    /// Merged generations that are still listed, oldest first, and when this process first saw them merged.
    pub merged: Vec<(Generation, Timestamp)>,
}

/// The base version of an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseFacts {
    /// Its number.
    pub version: u64,
    /// Its live rows.
    pub rows: u64,
    /// Its fragments.
    pub fragments: usize,
    /// Fragments with fewer live rows than `SMALL_ROWS`.
    pub small_fragments: usize,
}

/// A fragment with fewer live rows counts as small in [`BaseFacts`].
pub const SMALL_ROWS: u64 = 1 << 18;

/// What Lance holds of a row while it commits to a table with stable row ids: it looks up where each came from in two maps,
/// which are largest as they have just grown.
const COMMIT_BYTES: u64 = 112;

/// What a commit holds of so many rows.
pub(crate) fn commit_bytes(base: &Dataset, rows: Option<u64>) -> u64 {
    match base.manifest().uses_stable_row_ids() {
        true => rows.unwrap_or(0).saturating_mul(COMMIT_BYTES),
        false => 0,
    }
}

/// What was seen of a table at one time.
#[derive(Debug, Clone)]
pub struct Observation {
    /// When looking began, by this process's clock.
    pub observed_at: Timestamp,
    /// The base version.
    pub base: BaseFacts,
    /// The shards, ascending by id.
    pub shards: Vec<ShardView>,
    /// Shards whose newest manifest cannot be used, ascending by id; each is an anomaly too.
    pub unread: Vec<ShardFault>,
    /// What is not as it should be.
    pub anomalies: Vec<Anomaly>,
}

/// Counts of a base version, all from its manifest.
pub(crate) fn base_facts(base: &Dataset) -> BaseFacts {
    let rows = |f: &lance_table::format::Fragment| f.num_rows().unwrap_or(0) as u64;
    BaseFacts {
        version: base.version_id(),
        rows: base.fragments().iter().map(rows).sum(),
        fragments: base.fragments().len(),
        small_fragments: base
            .fragments()
            .iter()
            .filter(|f| rows(f) < SMALL_ROWS)
            .count(),
    }
}
