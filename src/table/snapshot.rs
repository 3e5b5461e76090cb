//! One base version plus one set of pending generations, taken in the one order that is right.
//!
//! Lives here: `Listing` (shard manifests, read first), `Snapshot` (a listing and the base version read after it, less
//! what that version already holds: contract 2), `Chunk` (what a merge takes of a snapshot: contract 4).
//! A `Snapshot` can only be made from a `Listing`, so the wrong order does not compile. May use: this room's parts.
//! Never: remembered state (`observe`), or a decision how much to take (`plan`).

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use lance::Dataset;
use uuid::Uuid;

use super::base::{Table, details, e_tag, watermarks};
use super::error::{Error, Result};
use super::generation::Generation;
use super::shard::{self, Newest, ShardFault, ShardState};

/// The shards' manifests, read before the base table.
#[derive(Debug, Clone)]
pub struct Listing {
    pub(crate) found: Newest,
    /// When reading them began, by this process's clock.
    pub read_at: Timestamp,
}

impl Listing {
    /// Lists the shards and reads each one's newest manifest.
    pub async fn read(table: &Table) -> Result<Self> {
        let read_at = Timestamp::now();
        let found = shard::list(table.store(), table.path()).await?;
        let known = BTreeMap::new();
        let found = shard::newest_of(table.store(), table.path(), &found.ids, &known).await?;
        Ok(Self { found, read_at })
    }

    pub(crate) fn of(found: Newest, read_at: Timestamp) -> Self {
        Self { found, read_at }
    }

    /// Reads the newest base version and drops every generation that it holds.
    pub async fn with_base(self, table: &Table) -> Result<Snapshot> {
        let base = table.latest().await?;
        self.with(base).await
    }

    /// As [`Listing::with_base`], with a base version that was read after this listing.
    pub(crate) async fn with(self, base: Arc<Dataset>) -> Result<Snapshot> {
        let details = details(&base).await?;
        let mem_wal = details.is_some();
        let marks = details.as_ref().map(watermarks).unwrap_or_default();
        let Newest { states, faults } = self.found;
        let shards = states
            .iter()
            .map(|state| ShardPending::new(state, marks.get(&state.shard).copied()))
            .collect();
        Ok(Snapshot {
            base,
            mem_wal,
            marks,
            shards,
            read_at: self.read_at,
            across_shards: states.len() + faults.len() < 2,
            unread: faults,
        })
    }
}

/// What one shard adds to the base version of a snapshot.
#[derive(Debug, Clone)]
pub struct ShardPending {
    /// The shard's manifest.
    pub state: ShardState,
    /// The highest generation that the base version holds; 0 for none.
    pub watermark: u64,
    /// Generations above the watermark, oldest first, each once.
    pub pending: Vec<Generation>,
    /// Generations at or below the watermark that the manifest still lists, oldest first.
    pub merged: Vec<Generation>,
}

impl ShardPending {
    fn new(state: &ShardState, watermark: Option<u64>) -> Self {
        let watermark = watermark.unwrap_or(0);
        let mut listed: Vec<Generation> = state
            .manifest
            .sstables
            .iter()
            .map(|s| Generation::listed(state.shard, s))
            .collect();
        listed.sort();
        listed.dedup_by(|a, b| a.number == b.number && a.path == b.path);
        let (merged, pending) = listed.into_iter().partition(|g| g.number <= watermark);
        Self {
            state: state.clone(),
            watermark,
            pending,
            merged,
        }
    }

    /// A number that two listed directories share, if any: it stops the shard (contract 1).
    pub fn doubled(&self) -> Option<u64> {
        let all = self.merged.iter().chain(&self.pending).map(|g| g.number);
        let mut before = None;
        all.into_iter().find(|n| before.replace(*n) == Some(*n))
    }

    /// A number above the watermark and below a pending generation that nothing is listed for, if any. Writers leave none out,
    /// so another hand took it, or a writer lost it. Below the first one of a shard that nothing was marked of there may be
    /// anything: it may have been merged before by a merger that marks nothing.
    pub fn missing(&self) -> Option<u64> {
        let first = self.pending.first()?.number;
        let mut next = match self.watermark {
            0 => first,
            mark => mark.saturating_add(1),
        };
        for generation in &self.pending {
            if generation.number > next {
                return Some(next);
            }
            next = generation.number.saturating_add(1);
        }
        None
    }

    /// Whether the base holds generations that the shard has not come to: it was made again, or too much was marked.
    pub fn is_behind_its_mark(&self) -> bool {
        self.watermark > 0 && self.watermark >= self.state.manifest.current_generation
    }

    /// What is said of a shard that was once behind its mark. Without a key, rows that are merged again are there twice.
    pub fn what_is_ahead(&self, keyed: bool) -> String {
        let remedy = match keyed {
            true => "acknowledge WatermarkAhead to merge all that the shard lists from the start",
            false => {
                "the table has no primary key, so that this cannot be acknowledged: write the rows of its generations again under a new shard id, then remove the shard's directory"
            }
        };
        format!(
            "the base held generations of shard {} through {} before the shard had come so far: it was made again, or too much was marked, and nothing says which of its rows the base holds; {remedy}",
            self.state.shard, self.watermark
        )
    }

    /// Takes all that is listed as pending: what the base says of this shard is not about it.
    pub(crate) fn start_over(&mut self) {
        self.watermark = 0;
        self.show_merged();
    }

    /// Takes all that is listed as pending, whatever the base says.
    pub(crate) fn show_merged(&mut self) {
        let mut all = std::mem::take(&mut self.merged);
        all.append(&mut self.pending);
        self.pending = all;
    }

    /// A number that is listed with a directory which is not named as that generation's, if any: it stops the shard.
    pub fn misnamed(&self) -> Option<u64> {
        let mut all = self.merged.iter().chain(&self.pending);
        all.find(|g| !g.is_named()).map(|g| g.number)
    }
}

/// What is said of a shard that lists a directory which no writer names so.
pub(crate) fn misnamed(number: u64) -> String {
    format!(
        "its manifest lists a directory for generation {number} whose name is not one that writers give; take the entry out of the manifest by hand, nothing there was read"
    )
}

/// One base version plus, per shard, the generations that it does not hold.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) base: Arc<Dataset>,
    /// Whether the base version has a MemWAL index at all.
    pub mem_wal: bool,
    /// The base version's watermarks, also of shards that are not there.
    pub(crate) marks: BTreeMap<Uuid, u64>,
    /// The shards, ascending by id.
    pub shards: Vec<ShardPending>,
    /// Shards of which nothing is known, ascending by id: what is pending in them is in no figure of this snapshot.
    pub unread: Vec<ShardFault>,
    /// When reading the manifests began, by this process's clock.
    pub read_at: Timestamp,
    /// Whether this is a cut across shards too: one moment for all, not one for each.
    pub across_shards: bool,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("version", &self.version())
            .field("shards", &self.shards)
            .field("unread", &self.unread)
            .finish()
    }
}

impl Snapshot {
    /// Takes a snapshot now: manifests, then base; then the manifests again, to say whether it is a cut across shards.
    pub async fn take(table: &Table) -> Result<Self> {
        const TRIES: usize = 3;
        let mut listing = Listing::read(table).await?;
        for _ in 1..TRIES {
            let snapshot = listing.with_base(table).await?;
            if snapshot.across_shards {
                return Ok(snapshot);
            }
            let again = Listing::read(table).await?;
            if versions(&again.found.states) == versions(snapshot.shards.iter().map(|s| &s.state)) {
                return Ok(Self {
                    across_shards: true,
                    ..snapshot
                });
            }
            listing = again;
        }
        listing.with_base(table).await
    }

    /// A snapshot that was taken before, of the manifests that it read, each with whether all that it lists was pending.
    pub(crate) async fn again(
        base: Arc<Dataset>,
        shards: Vec<(ShardState, bool)>,
        read_at: Timestamp,
        across_shards: bool,
    ) -> Result<Self> {
        let (states, whole): (Vec<_>, Vec<_>) = shards.into_iter().unzip();
        let faults = vec![];
        let listing = Listing::of(Newest { states, faults }, read_at);
        let mut snapshot = listing.with(base).await?;
        snapshot.across_shards = across_shards;
        for (shard, whole) in snapshot.shards.iter_mut().zip(whole) {
            if whole {
                shard.show_merged();
            }
        }
        Ok(snapshot)
    }

    /// The base version's number.
    pub fn version(&self) -> u64 {
        self.base.version_id()
    }

    /// The base version's e_tag, where the store gives one: numbers recur when a table is made again.
    pub fn e_tag(&self) -> Option<&str> {
        e_tag(&self.base)
    }

    /// Every pending generation that is known, shard by shard, oldest first.
    pub fn pending(&self) -> impl Iterator<Item = &Generation> {
        self.shards.iter().flat_map(|s| &s.pending)
    }

    /// How many generations are pending; `None` where a shard could not be read.
    pub fn pending_count(&self) -> Option<usize> {
        let known = self.shards.iter().map(|s| s.pending.len()).sum();
        self.unread.is_empty().then_some(known)
    }

    /// What a merge takes: of each named shard its oldest pending generations through the given number.
    ///
    /// # Errors
    /// `UnsupportedManifest` where a shard's cannot be gone by; `Bug` where a shard is unknown or nothing of it is pending up
    /// to that number.
    pub fn chunk(&self, through: &[(Uuid, u64)]) -> Result<Chunk> {
        let mut parts = BTreeMap::new();
        for (shard, through) in through {
            if let Some(fault) = self.unread.iter().find(|f| f.shard == *shard) {
                return Err(fault.error());
            }
            let Some(found) = self.shards.iter().find(|s| s.state.shard == *shard) else {
                return Err(Error::Bug(format!("shard {shard} is not in the snapshot")));
            };
            if let Some(number) = found.doubled() {
                return Err(Error::UnsupportedManifest {
                    shard: *shard,
                    what: format!(
                        "it lists two directories for generation {number}; remove the wrong one by hand"
                    ),
                });
            }
            if let Some(number) = found.misnamed() {
                return Err(Error::UnsupportedManifest {
                    shard: *shard,
                    what: misnamed(number),
                });
            }
            let taken: Vec<_> = found
                .pending
                .iter()
                .take_while(|g| g.number <= *through)
                .cloned()
                .collect();
            if taken.is_empty() || parts.insert(*shard, taken).is_some() {
                return Err(Error::Bug(format!(
                    "shard {shard} has nothing to take through {through}"
                )));
            }
        }
        if parts.is_empty() {
            return Err(Error::Bug("an empty chunk".into()));
        }
        Ok(Chunk { parts })
    }
}

fn versions<'a>(shards: impl IntoIterator<Item = &'a ShardState>) -> Vec<(Uuid, u64)> {
    shards
        .into_iter()
        .map(|s| (s.shard, s.manifest.version))
        .collect()
}

/// Per shard, a contiguous run of its oldest pending generations: what one merge moves. Made by [`Snapshot::chunk`] only,
/// so a gap cannot be asked for.
#[derive(Debug, Clone)]
pub struct Chunk {
    parts: BTreeMap<Uuid, Vec<Generation>>,
}

impl Chunk {
    /// The generations, shard by shard, oldest first.
    pub fn generations(&self) -> impl DoubleEndedIterator<Item = &Generation> {
        self.parts.values().flatten()
    }

    /// How many generations.
    pub fn len(&self) -> usize {
        self.parts.values().map(Vec::len).sum()
    }

    /// Never: a chunk holds at least one generation.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Per shard, the highest generation: its watermark after the merge.
    pub fn marks(&self) -> impl Iterator<Item = (Uuid, u64)> {
        self.parts
            .iter()
            .filter_map(|(shard, gens)| Some((*shard, gens.last()?.number)))
    }
}
