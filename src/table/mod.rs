//! Everything Lance: what a table is, what is pending, and the work that keeps it fresh.
//!
//! Lives here: opening, observing, snapshots, merging, draining, reclaiming, compaction, clean-up, and reading by source.
//! May use: lance and its parts, arrow, object_store. Never: Kubernetes, HTTP, or a decision what to do next (`plan`).
//!
//! ```text
//! Stores ── open ──▶ Table ── Tracker::observe ──▶ Snapshot ── Table::merge ──▶ one marked, fenced commit
//!                      │                              │
//!                      └── drain, reclaim, compact …  └── read: fragments | wal | all
//! ```

mod anomaly;
mod backlog;
mod base;
mod begun;
mod clock;
mod commit;
mod compact;
mod diagnose;
mod drain;
mod error;
mod file;
mod find;
mod generation;
mod history;
mod indexes;
mod keys;
mod known;
mod lineage;
mod mapping;
mod marks;
mod merge;
mod newest;
mod observation;
mod observe;
mod read;
mod reclaim;
mod reset;
mod rowids;
mod shard;
mod slices;
mod snapshot;
pub mod steps;
mod store;
mod survey;
mod tail;
mod tip;
mod told;
mod versions;
mod write;

/// The longest time for which old files are kept for readers that may still hold a cursor to them: what a longer grace asks
/// for beyond it holds for files, and not for cursors.
pub const LONGEST_GRACE: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

pub use anomaly::{Anomaly, AnomalyKind};
pub use backlog::total;
pub use base::Table;
pub use clock::StoreClock;
pub use compact::{CompactMemory, CompactPolicy, Compacted, Refusal, Upkeep};
pub use drain::Drained;
pub use error::{Class, Error, Result};
pub use generation::{Facts, Generation};
pub use indexes::{Indexed, StaleIndex};
pub use known::Known;
pub use merge::{Limits, Merged, Outcome};
pub use observation::{BaseFacts, Observation, Pending, ShardView};
pub use observe::Tracker;
pub use read::{
    Ask, Awaited, CONDITION_BYTES, Column, Count, Goal, KeyText, Next, ORDER_COLUMNS, OrderBy,
    Page, PageMemory, Payload, Pin, PinnedBase, PinnedShard, Place, Point, Position, ReadError,
    ReadLimits, Reader, ShardAt, SnapshotId, Source, UnknownSource, Waited,
};
pub use reclaim::{ReclaimPolicy, Reclaimable, Reclaimed, reclaimable};
pub use shard::{ShardFault, ShardState};
pub use snapshot::{Chunk, Listing, ShardPending, Snapshot};
pub use store::{Door, Location, Stores, StoresConfig};
pub use survey::{ReclaimMemory, SURVEY_EVERY};
pub use tail::{Tail, TailPolicy, Tails};
pub use versions::{Cleaned, VersionsMemory, VersionsPolicy};
