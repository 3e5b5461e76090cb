//! Which snapshot an answer was read from.
//!
//! Lives here: `SnapshotId`, as answers tell it, and its digest, which is equal for two reads just when they saw the same
//! base version, shard manifests and generations (contract 12: numbers recur when a table is made again). May use: a
//! snapshot. Never: the time of the read in a digest, or a request.

use jiff::Timestamp;
use lance::Dataset;
use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

use super::super::base::e_tag;
use super::super::snapshot::Snapshot;

/// One shard of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardAt {
    /// The shard.
    pub shard: Uuid,
    /// The version of its manifest.
    pub manifest_version: u64,
    /// Its pending generations.
    pub pending_generations: usize,
}

/// Which snapshot an answer was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotId {
    /// The base version.
    pub version: u64,
    /// The base manifest's e_tag, where the store gives one: versions recur when a table is made again.
    pub e_tag: Option<String>,
    /// The shards, ascending by id; `None` where none was looked at (`fragments`).
    pub shards: Option<Vec<ShardAt>>,
    /// Whether it is one moment for all shards, not one for each; `None` where no shard was looked at.
    pub across_shards: Option<bool>,
    /// When looking began, by this process's clock.
    pub read_at: Timestamp,
    /// Equal for two reads just when they saw the same, as hexadecimal digits.
    pub digest: String,
}

impl SnapshotId {
    /// A base version, of which no shard was looked at.
    pub(super) fn of_base(base: &Dataset, read_at: Timestamp) -> Self {
        Self {
            version: base.version_id(),
            e_tag: e_tag(base).map(str::to_string),
            shards: None,
            across_shards: None,
            read_at,
            digest: hex(&seen(base)),
        }
    }

    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut seen = seen(&snapshot.base);
        let mut shards = vec![];
        for shard in &snapshot.shards {
            let (id, version) = (shard.state.shard, shard.state.manifest.version);
            seen.update(id.as_bytes());
            seen.update(&version.to_le_bytes());
            for generation in &shard.pending {
                text(&mut seen, &generation.path);
            }
            shards.push(ShardAt {
                shard: id,
                manifest_version: version,
                pending_generations: shard.pending.len(),
            });
        }
        Self {
            shards: Some(shards),
            across_shards: Some(snapshot.across_shards),
            digest: hex(&seen),
            ..Self::of_base(&snapshot.base, snapshot.read_at)
        }
    }
}

fn seen(base: &Dataset) -> Xxh3 {
    let mut seen = Xxh3::new();
    seen.update(&base.version_id().to_le_bytes());
    text(&mut seen, e_tag(base).unwrap_or(""));
    // A store without e_tags: the time at which the version was made tells it from one of the same number.
    seen.update(&base.manifest().timestamp_nanos.to_le_bytes());
    seen
}

/// Adds a text with its length, so that two of them never run together.
pub(super) fn text(seen: &mut Xxh3, text: &str) {
    seen.update(&(text.len() as u64).to_le_bytes());
    seen.update(text.as_bytes());
}

fn hex(seen: &Xxh3) -> String {
    format!("{:032x}", seen.digest128())
}
