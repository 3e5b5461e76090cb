//! Naming a snapshot, so that another page of it can be asked for later, of any server.
//!
//! Lives here: `Pin`: the base version and the shard manifests that a read went by, by numbers and digests, never by a
//! path, and `Position`, the place in its rows where the next page begins. Old shard manifests stay in the store for
//! longer than any cursor lives (`survey`), so that what was pending need not be written down: it is read back, and a
//! digest says whether it is the same. May use: a snapshot. Never: a request, or a path that somebody sent.

use std::sync::Arc;

use jiff::Timestamp;
use lance::Dataset;
use uuid::Uuid;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::super::base::e_tag;
use super::super::snapshot::{ShardPending, Snapshot};
use super::identity::text;
use super::{SnapshotId, Source, View};

/// Shards with nothing pending are told with every page of a walk only where there are not more than this.
const IDLE_TOLD: usize = 64;
/// Bits of a shard's id by which a pin names it, of the shards that are there.
const NAME_BITS: u32 = 40;

/// A snapshot and a source: enough to open the very same one again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The source.
    pub source: Source,
    /// The base version.
    pub base: PinnedBase,
    /// Shards with something pending, ascending by id; none for `fragments`.
    pub pending: Vec<PinnedShard>,
    /// Shards with nothing pending, ascending by id; none where there are many of them.
    pub idle: Vec<PinnedShard>,
    /// Whether the snapshot is one moment for all shards.
    pub across_shards: bool,
    /// When looking began, by the clock of the process that looked.
    pub read_at: Timestamp,
    /// The snapshot's digest, as answers tell it.
    pub digest: u128,
    /// The digest of what is opened again.
    pub check: u128,
}

/// A base version. Its number alone recurs when a table is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedBase {
    /// Its number.
    pub version: u64,
    /// When it was made, in nanoseconds since 1970.
    pub made: u64,
    /// A digest of its manifest's e_tag, where the store gives one.
    pub e_tag: Option<u64>,
}

/// A manifest of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedShard {
    /// A digest of the shard's id, of 40 bits.
    pub name: u64,
    /// The manifest's version.
    pub version: u64,
    /// Whether all that it lists is pending, whatever the base version says of the shard.
    pub whole: bool,
}

/// Where in a source's rows a page begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Rows of the answer before it.
    pub rows: u64,
    /// The place of the first row that is looked at, where rows are chosen by their values: those before it are not
    /// looked through again.
    pub place: Option<Place>,
}

/// A row of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Whether it is in a pending generation, not in a fragment of the base.
    pub pending: bool,
    /// The how-manieth fragment, or generation, in the snapshot's order.
    pub part: u32,
    /// The offset of the row there.
    pub row: u32,
}

/// How a page is gone on from.
#[derive(Clone)]
pub struct Next {
    /// The page's snapshot.
    pub pin: Pin,
    /// Where its last row was.
    pub position: Position,
    pub(super) view: Arc<View>,
}

impl std::fmt::Debug for Next {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Next")
            .field("pin", &self.pin)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl PinnedBase {
    pub(super) fn of(base: &Dataset) -> Self {
        Self {
            version: base.version_id(),
            made: u64::try_from(base.manifest().timestamp_nanos).unwrap_or(u64::MAX),
            e_tag: e_tag(base).map(|tag| xxh3_64(tag.as_bytes())),
        }
    }

    /// Whether it is this version of the table, and not one of the same number of another that is there by now.
    pub(super) fn is(&self, base: &Dataset) -> bool {
        let other = Self::of(base);
        // A listing and a look at one file do not always both tell the e_tag.
        let differ = self.e_tag.zip(other.e_tag).is_some_and(|(a, b)| a != b);
        (self.version, self.made) == (other.version, other.made) && !differ
    }
}

impl PinnedShard {
    fn of(shard: &ShardPending) -> Self {
        Self {
            name: short(shard.state.shard),
            version: shard.state.manifest.version,
            whole: is_whole(shard),
        }
    }

    /// The largest name.
    pub const LAST_NAME: u64 = (1 << NAME_BITS) - 1;
}

/// What a shard is called in a pin.
pub(super) fn short(shard: Uuid) -> u64 {
    xxh3_64(shard.as_bytes()) & PinnedShard::LAST_NAME
}

/// Whether a shard shows what its watermark says is merged.
fn is_whole(shard: &ShardPending) -> bool {
    let first = shard.pending.first();
    first.is_some_and(|g| g.number <= shard.watermark)
}

impl Pin {
    /// A base version alone.
    pub(super) fn of_base(base: &Dataset, id: &SnapshotId) -> Self {
        Self {
            source: Source::Fragments,
            base: PinnedBase::of(base),
            pending: vec![],
            idle: vec![],
            across_shards: true,
            read_at: id.read_at,
            digest: number(&id.digest),
            check: check(base.version_id(), &[]),
        }
    }

    pub(super) fn of(snapshot: &Snapshot, id: &SnapshotId, source: Source) -> Self {
        let (pending, idle): (Vec<_>, Vec<_>) =
            snapshot.shards.iter().partition(|s| !s.pending.is_empty());
        let idle = match idle.len() {
            0..=IDLE_TOLD => idle,
            _ => vec![],
        };
        let all = |shards: Vec<&ShardPending>| shards.into_iter().map(PinnedShard::of).collect();
        Self {
            source,
            check: check(snapshot.version(), &snapshot.shards),
            pending: all(pending),
            idle: all(idle),
            across_shards: snapshot.across_shards,
            ..Self::of_base(&snapshot.base, id)
        }
    }
}

fn number(digest: &str) -> u128 {
    u128::from_str_radix(digest, 16).unwrap_or_default()
}

/// A digest of what is pending at a base version.
pub(super) fn check(version: u64, shards: &[ShardPending]) -> u128 {
    let mut seen = Xxh3::new();
    seen.update(&version.to_le_bytes());
    for shard in shards.iter().filter(|s| !s.pending.is_empty()) {
        seen.update(shard.state.shard.as_bytes());
        seen.update(&shard.state.manifest.version.to_le_bytes());
        seen.update(&(shard.pending.len() as u64).to_le_bytes());
        for generation in &shard.pending {
            seen.update(&generation.number.to_le_bytes());
            text(&mut seen, &generation.path);
        }
    }
    seen.digest128()
}
