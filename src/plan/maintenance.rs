//! What a table needs besides merges: drain, reclaim, compaction, index upkeep, clean-up of old versions.
//!
//! Lives here: when each is due and what exactly it takes. May use: this room's views and work. Must never come in: how
//! they are done, and what other tables do.
//! Nothing here is due on a table that nobody writes and that is in order: idle costs nothing.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::clock::after;
use super::views::{Generation, Observation, ShardView, TableView};
use super::work::{Kind, Task, Trigger};

/// Upkeep that merges have kept from running for this long goes before them, once.
pub const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// The least patience, of compaction that is needed badly. With slices of well under a minute, upkeep under constant
/// merging takes a fraction of the table's time.
pub const LEAST_PATIENCE: Duration = Duration::from_secs(2 * 60);
/// Indexes are brought up to date at most this often.
pub const OPTIMIZE_SPACING: Duration = Duration::from_secs(60);
/// Old versions are removed in batches: at most this often, and at least.
const CLEAN_SPACING: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3600)];
/// Directories that one reclaim deletes at most.
pub const RECLAIM_ITEMS: usize = 256;
/// Bytes that a slice of compaction or of index upkeep reserves.
const UPKEEP_BYTES: u64 = 64 << 20;
/// Bytes that a clean-up reserves.
const CLEAN_BYTES: u64 = 8 << 20;

/// Work of one kind on one table: now, later, or not in sight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need<T> {
    /// Nothing is to be done, as far as can be seen.
    None,
    /// From this instant on, if nothing changes.
    Later(Timestamp),
    /// Now.
    Now(T),
}

impl<T> Need<T> {
    /// The instant, if it is to be done later.
    pub fn later(&self) -> Option<Timestamp> {
        match self {
            Need::Later(at) => Some(*at),
            _ => None,
        }
    }
}

/// A drain or a reclaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Light {
    /// What to do.
    pub task: Task,
    /// Since when it is due.
    pub due: Timestamp,
}

/// One slice of compaction, index upkeep or clean-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upkeep {
    /// What to do.
    pub task: Task,
    /// What made it due.
    pub trigger: Trigger,
    /// From this instant on it goes before merges of its table and waits with all others for its turn; until then it
    /// yields to every merge that is due.
    pub turn_at: Timestamp,
    /// Bytes to reserve.
    pub bytes: u64,
}

/// The drain of `view`: of every shard the merged generations that were listed long enough and that indexes hold.
pub fn drain(view: &TableView, observation: &Observation, now: Timestamp) -> Need<Light> {
    let mut shards: Vec<(Uuid, Generation)> = Vec::new();
    let (mut due, mut next) = (Timestamp::MAX, None);
    for shard in observation.shards.iter().filter(|s| !s.keeps_everything()) {
        let (ready, later) = drain_of(shard, view.policy.drain_delay, now);
        if let Some((at, up_to)) = ready {
            shards.push((shard.id, up_to));
            due = due.min(at);
        }
        next = earliest(next, later);
    }
    shards.sort();
    if shards.is_empty() {
        return next.map_or(Need::None, Need::Later);
    }
    Need::Now(Light {
        task: Task::Drain { shards },
        due,
    })
}

type Drainable = (Timestamp, Generation);

/// How far `shard` can be drained now (and since when), and when more can.
fn drain_of(
    shard: &ShardView,
    delay: Duration,
    now: Timestamp,
) -> (Option<Drainable>, Option<Timestamp>) {
    let mut merged: Vec<_> = shard.merged.iter().collect();
    merged.sort_by_key(|m| m.generation);
    let (mut at, mut ready) = (Timestamp::MIN, None);
    for m in merged {
        if !m.caught_up || Some(m.generation) > shard.watermark {
            break;
        }
        at = at.max(after(m.merged_at, delay));
        if at > now {
            return (ready, Some(at));
        }
        ready = Some((ready.map_or(at, |(first, _)| first), m.generation));
    }
    (ready, None)
}

/// The reclaim of `view`: the directories that are due, oldest first, at most [`RECLAIM_ITEMS`].
pub fn reclaim(observation: &Observation, now: Timestamp) -> Need<Light> {
    let mut all: Vec<(Timestamp, Uuid, &Arc<str>)> = observation
        .shards
        .iter()
        .filter(|shard| !shard.keeps_everything())
        .flat_map(|shard| shard.reclaimable.iter().map(|r| (r.due, shard.id, &r.path)))
        .collect();
    all.sort();
    match all.first() {
        None => Need::None,
        Some((due, ..)) if *due > now => Need::Later(*due),
        Some((due, ..)) => Need::Now(Light {
            due: *due,
            task: Task::Reclaim {
                items: all
                    .iter()
                    .take_while(|(due, ..)| *due <= now)
                    .take(RECLAIM_ITEMS)
                    .map(|(_, shard, path)| (*shard, Arc::clone(path)))
                    .collect(),
            },
        }),
    }
}

/// The upkeep of `view` that has waited longest, and when more will be due.
pub fn upkeep(
    view: &TableView,
    observation: &Observation,
    budget_bytes: u64,
    now: Timestamp,
) -> (Option<Upkeep>, Option<Timestamp>) {
    let needs = [
        compact(view, observation),
        optimize(view, observation),
        clean(view, observation),
    ];
    let last = [
        view.past.compact_started,
        view.past.optimize_started,
        view.past.clean_started,
    ];
    // The patience of all counts from the last slice of any, so that three kinds do not take three shares.
    let rested = last.into_iter().flatten().max().unwrap_or(view.known_since);
    let (due, later): (Vec<Due>, Vec<Due>) =
        needs.into_iter().flatten().partition(|due| due.from <= now);
    let chosen = due
        .into_iter()
        .min_by_key(|due| (started(view, due.task.kind()), due.task.kind()))
        .map(|due| Upkeep {
            task: due.task,
            trigger: due.trigger,
            turn_at: after(rested, due.patience),
            bytes: due.bytes.min(budget_bytes),
        });
    (chosen, later.into_iter().map(|due| due.from).min())
}

/// One kind of upkeep that is needed.
struct Due {
    task: Task,
    trigger: Trigger,
    from: Timestamp,
    patience: Duration,
    bytes: u64,
}

fn started(view: &TableView, kind: Kind) -> Option<Timestamp> {
    match kind {
        Kind::Compact => view.past.compact_started,
        Kind::OptimizeIndexes => view.past.optimize_started,
        _ => view.past.clean_started,
    }
}

fn compact(view: &TableView, observation: &Observation) -> Option<Due> {
    let policy = view.policy.compaction;
    let enough = policy.min_fragments.max(2);
    let settled = view.past.compact_settled == Some(observation.base_version);
    if !policy.enabled || settled || observation.small_fragments < enough {
        return None;
    }
    // Twice as many small fragments as it takes halve the patience, and so on.
    let pressure = u32::try_from(observation.small_fragments / enough).unwrap_or(u32::MAX);
    Some(Due {
        task: Task::Compact {
            target_rows_per_fragment: policy.target_rows_per_fragment,
        },
        trigger: Trigger::Count,
        from: Timestamp::MIN,
        patience: (PATIENCE / pressure.max(1)).max(LEAST_PATIENCE),
        bytes: UPKEEP_BYTES,
    })
}

fn optimize(view: &TableView, observation: &Observation) -> Option<Due> {
    let settled = view.past.optimize_settled == Some(observation.base_version);
    if !view.policy.optimize_indexes || settled || observation.unindexed_rows == 0 {
        return None;
    }
    Some(Due {
        task: Task::OptimizeIndexes,
        trigger: Trigger::Count,
        from: spaced(view.past.optimize_started, OPTIMIZE_SPACING),
        patience: LEAST_PATIENCE,
        bytes: UPKEEP_BYTES,
    })
}

fn clean(view: &TableView, observation: &Observation) -> Option<Due> {
    let frozen = observation.shards.iter().any(ShardView::keeps_everything);
    let due = observation.old_versions_due.filter(|_| !frozen)?;
    let older_than = view.policy.versions_older_than();
    let spacing = (older_than / 24).clamp(CLEAN_SPACING[0], CLEAN_SPACING[1]);
    Some(Due {
        task: Task::CleanVersions {
            older_than,
            keep_at_least: view.policy.versions_keep_at_least.max(1),
        },
        trigger: Trigger::Age,
        from: due.max(spaced(view.past.clean_started, spacing)),
        patience: PATIENCE,
        bytes: CLEAN_BYTES,
    })
}

fn spaced(last: Option<Timestamp>, spacing: Duration) -> Timestamp {
    last.map_or(Timestamp::MIN, |last| after(last, spacing))
}

fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}
