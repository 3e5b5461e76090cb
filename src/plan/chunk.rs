//! Which generations go into one merge.
//!
//! Lives here: what of a shard can be merged at all, and the choice of one chunk across a table's shards. May use: this
//! room's views and prediction. Must never come in: when to merge; that is `triggers`.
//! Lance does not check gaps, so the rule is kept here: of every shard a prefix, and nothing past what is blocked.

use super::predict::History;
use super::views::{PendingGeneration, ShardView, TableView};
use super::work::{SLICE, ShardPrefix};

/// What a generation of unknown size counts as: a quarter of the largest memtable that Lance makes by default.
pub const UNKNOWN_BYTES: u64 = 64 << 20;
/// Every merge reserves at least this much, for what it needs besides its generations.
pub const LEAST_BYTES: u64 = 4 << 20;

/// The bytes that `generation` counts as.
pub fn bytes_of(generation: &PendingGeneration) -> u64 {
    generation.bytes.unwrap_or(UNKNOWN_BYTES)
}

/// The bytes that a merge of `generation` takes: those of its rows, or those of their commit, which comes after.
fn cost(generation: &PendingGeneration) -> u64 {
    bytes_of(generation).max(generation.commit_bytes)
}

/// The generations of `shard` that can be merged: its pending ones above the watermark, up to (and without) the first
/// quarantined one and the first whose number is not its own. None of a stopped shard.
pub fn mergeable(shard: &ShardView) -> &[PendingGeneration] {
    if shard.is_stopped() {
        return &[];
    }
    let above = above_watermark(shard);
    let end = (0..above.len())
        .find(|&i| {
            let number = above[i].generation;
            shard.quarantined.is_some_and(|q| number >= q)
                || above
                    .get(i + 1)
                    .is_some_and(|next| next.generation <= number)
        })
        .unwrap_or(above.len());
    &above[..end]
}

fn above_watermark(shard: &ShardView) -> &[PendingGeneration] {
    let all = &shard.pending;
    let start = all
        .iter()
        .position(|g| Some(g.generation) > shard.watermark)
        .unwrap_or(all.len());
    &all[start..]
}

/// Whether some number of `shard` is listed twice above the watermark, or its order is broken.
pub fn has_duplicates(shard: &ShardView) -> bool {
    above_watermark(shard)
        .windows(2)
        .any(|pair| pair[1].generation <= pair[0].generation)
}

/// How large a chunk may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Generations, at least 1.
    pub generations: u64,
    /// Bytes; the first generation goes whatever its size.
    pub bytes: u64,
}

impl Caps {
    /// The caps of `view`'s policy, within the whole byte budget.
    ///
    /// Every merge that fails in a row halves the generations, down to one: so a generation that cannot be merged is
    /// found by itself, and those before it get through.
    pub fn of(view: &TableView, budget_bytes: u64) -> Self {
        let halvings = view.merge_trouble.backoff.failures;
        let generations = view
            .policy
            .max_generations_per_merge
            .checked_shr(halvings)
            .unwrap_or(0);
        Self {
            generations: generations.max(1),
            bytes: view.policy.max_bytes_per_merge.min(budget_bytes),
        }
    }
}

/// The generations of one merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// A prefix of each shard that takes part, by shard id.
    pub shards: Vec<ShardPrefix>,
    /// Generations in all.
    pub generations: u64,
    /// Bytes in all; those of unknown size count [`UNKNOWN_BYTES`].
    pub bytes: u64,
    /// Whether mergeable generations were left behind.
    pub cut: bool,
}

impl Chunk {
    /// The bytes that its merge reserves.
    pub fn reserved(&self) -> u64 {
        self.bytes.max(LEAST_BYTES)
    }
}

/// One shard while a chunk is filled.
struct Lane<'a> {
    shard: &'a ShardView,
    rest: &'a [PendingGeneration],
    taken: u64,
    open: bool,
}

/// Chooses the generations of the next merge: the oldest of every shard, oldest first across shards, within the caps
/// and [`SLICE`]. `None` when nothing can be merged.
pub fn choose(shards: &[ShardView], caps: Caps, history: &History) -> Option<Chunk> {
    let mut lanes: Vec<Lane<'_>> = shards
        .iter()
        .map(|shard| Lane {
            shard,
            rest: mergeable(shard),
            taken: 0,
            open: true,
        })
        .collect();
    lanes.sort_by_key(|lane| lane.shard.id);
    let (mut generations, mut bytes) = (0u64, 0u64);
    while let Some(lane) = oldest(&mut lanes) {
        let with = bytes.saturating_add(cost(&lane.rest[0]));
        let first = generations == 0;
        if !first {
            let full = generations >= caps.generations;
            if full || history.merge(generations + 1, with.max(LEAST_BYTES)) > SLICE {
                break;
            }
            if with > caps.bytes {
                lane.open = false;
                continue;
            }
        }
        lane.rest = &lane.rest[1..];
        lane.taken += 1;
        generations += 1;
        bytes = with;
    }
    let prefixes: Vec<ShardPrefix> = lanes.iter().filter_map(Lane::prefix).collect();
    (!prefixes.is_empty()).then(|| Chunk {
        shards: prefixes,
        generations,
        bytes,
        cut: lanes.iter().any(|lane| !lane.rest.is_empty()),
    })
}

/// The open lane whose next generation is the oldest.
fn oldest<'a, 'b>(lanes: &'b mut [Lane<'a>]) -> Option<&'b mut Lane<'a>> {
    lanes
        .iter_mut()
        .filter(|lane| lane.open && !lane.rest.is_empty())
        .min_by_key(|lane| (lane.rest[0].since(), lane.shard.id))
}

impl Lane<'_> {
    fn prefix(&self) -> Option<ShardPrefix> {
        let all = mergeable(self.shard);
        let last = all[..all.len() - self.rest.len()].last()?;
        Some(ShardPrefix {
            shard: self.shard.id,
            up_to: last.generation,
            count: self.taken,
        })
    }
}
