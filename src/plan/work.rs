//! What there is to do: the plan and its pieces of work.
//!
//! Lives here: works with their limits, the plan that holds them, and the limits that bound every work. May use: jiff,
//! uuid, this room's views and reasons. Must never come in: how a work is done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::clock;
use super::reasons::Reason;
use super::views::{Generation, Namespace, TableId};

/// The longest deadline of any work. Old versions and drained generations live longer than this and the grace period
/// together, so that an attempt that may still commit always sees whatever it conflicts with.
pub const LONGEST_WORK: Duration = Duration::from_secs(30 * 60);
/// The shortest deadline of any work.
pub const SHORTEST_WORK: Duration = Duration::from_secs(2 * 60);
/// No merge is planned to take longer than this, save one of a single generation.
pub const SLICE: Duration = Duration::from_secs(30);

/// The kinds of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Moves generations into the base table.
    Merge,
    /// Takes merged generations out of their shards' manifests.
    Drain,
    /// Deletes drained generations' directories.
    Reclaim,
    /// Rewrites small fragments.
    Compact,
    /// Brings indexes up to date.
    OptimizeIndexes,
    /// Removes old base versions.
    CleanVersions,
}

impl Kind {
    /// Whether it needs the table's one commit permit, and a slot.
    pub fn commits(self) -> bool {
        !matches!(self, Kind::Drain | Kind::Reclaim)
    }

    /// Whether it is compaction, index upkeep or clean-up.
    pub fn is_upkeep(self) -> bool {
        matches!(
            self,
            Kind::Compact | Kind::OptimizeIndexes | Kind::CleanVersions
        )
    }

    /// Its name, in PascalCase: for labels and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Merge => "Merge",
            Kind::Drain => "Drain",
            Kind::Reclaim => "Reclaim",
            Kind::Compact => "Compact",
            Kind::OptimizeIndexes => "OptimizeIndexes",
            Kind::CleanVersions => "CleanVersions",
        }
    }
}

/// What made a work start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trigger {
    /// Somebody asked.
    Requested,
    /// Something is old enough.
    Age,
    /// There are enough of them.
    Count,
    /// They are large enough.
    Bytes,
    /// The rest of a backlog that the last merge's caps cut.
    Tail,
}

impl Trigger {
    /// Its name, in PascalCase: for labels and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Trigger::Requested => "Requested",
            Trigger::Age => "Age",
            Trigger::Count => "Count",
            Trigger::Bytes => "Bytes",
            Trigger::Tail => "Tail",
        }
    }
}

/// The part of one shard in a merge: its lowest `count` pending generations, the last of which is `up_to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardPrefix {
    /// The shard.
    pub shard: Uuid,
    /// The highest generation in it: the watermark after the merge.
    pub up_to: Generation,
    /// How many generations.
    pub count: u64,
}

/// What exactly is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Merge these prefixes in one commit.
    Merge {
        /// One entry a shard, none of them empty.
        shards: Vec<ShardPrefix>,
        /// Whether a cap left mergeable generations behind: then [`super::Past::merge_cut`] is the start of this one.
        cut: bool,
    },
    /// Take the merged generations up to these out of the manifests.
    Drain {
        /// Per shard, the highest generation to take out.
        shards: Vec<(Uuid, Generation)>,
    },
    /// Delete these directories.
    Reclaim {
        /// Shard and directory name.
        items: Vec<(Uuid, Arc<str>)>,
    },
    /// Rewrite small fragments, up to the work's bytes.
    Compact {
        /// Rows that a fragment should hold.
        target_rows_per_fragment: u64,
    },
    /// Bring indexes up to date.
    OptimizeIndexes,
    /// Remove versions whose successor is older than `older_than`.
    CleanVersions {
        /// Never less than the grace and [`LONGEST_WORK`] together.
        older_than: Duration,
        /// Always keep this many of the newest.
        keep_at_least: u64,
    },
}

impl Task {
    /// The kind of it.
    pub fn kind(&self) -> Kind {
        match self {
            Task::Merge { .. } => Kind::Merge,
            Task::Drain { .. } => Kind::Drain,
            Task::Reclaim { .. } => Kind::Reclaim,
            Task::Compact { .. } => Kind::Compact,
            Task::OptimizeIndexes => Kind::OptimizeIndexes,
            Task::CleanVersions { .. } => Kind::CleanVersions,
        }
    }
}

/// One piece of work, to be started now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// On which table.
    pub table: TableId,
    /// Whose account it goes to.
    pub namespace: Namespace,
    /// What to do.
    pub task: Task,
    /// What made it start.
    pub trigger: Trigger,
    /// When it became due; the start minus this is its wait in the queue.
    pub due: Timestamp,
    /// An attempt that has not committed by then must not commit any more.
    pub deadline: Timestamp,
    /// How long it is thought to take.
    pub predicted: Duration,
    /// Bytes to reserve before it starts; 0 for drains and reclaims.
    pub bytes: u64,
}

/// When work that starts at `now` and is thought to take `predicted` must have committed: eight times as long, within
/// [`SHORTEST_WORK`] and [`LONGEST_WORK`].
pub(crate) fn deadline(now: Timestamp, predicted: Duration) -> Timestamp {
    let span = predicted.saturating_mul(8);
    clock::after(now, span.clamp(SHORTEST_WORK, LONGEST_WORK))
}

/// Why a table's view is stale, or that it is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhyNotNow {
    /// The one reason that comes first.
    pub reason: Reason,
    /// What is so, why, and what comes next. Names instants, not ages, so that it rests while nothing happens.
    pub message: String,
    /// Whatever else holds of the table and of its shards, in order of precedence.
    pub also: Vec<Reason>,
}

/// What to do now, why the rest is not done, and when to ask again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// To be started now, most urgent first.
    pub start: Vec<Work>,
    /// One for every table.
    pub why_not_now: BTreeMap<TableId, WhyNotNow>,
    /// If nothing changes, nothing new is to be done before this instant, which is after the plan's `now`. `None`:
    /// only an observation or the end of a work changes anything.
    pub wake_at: Option<Timestamp>,
}
