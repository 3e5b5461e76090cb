//! What the engine knows of a table, and what the room is asked about.
//!
//! Lives here: ids, policies, observations, what runs, and budgets; plain data without behaviour beyond small readings
//! of itself. May use: jiff, uuid. Must never come in: Lance's or Kubernetes' types, a clock, I/O.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::backoff::Backoff;
use super::predict::History;
use super::reasons::{Reach, Reason};
use super::work::Kind;
use super::{LONGEST_WORK, clock};

/// A table's name in this process. Unique among the tables of one plan; where names are unique only within namespaces, it
/// is `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub Arc<str>);

impl TableId {
    /// The name without its namespace.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, name)| name)
    }
}

/// The group of tables that shares fairly with the other groups.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(pub Arc<str>);

/// A generation's number within its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

impl From<&str> for TableId {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<&str> for Namespace {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a table's owner wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The deadline: nothing pending may be older.
    pub target: Duration,
    /// This many pending generations start a merge early.
    pub merge_at_generations: u64,
    /// This many pending bytes start a merge early.
    pub merge_at_bytes: u64,
    /// At most this many generations in one merge; 0 counts as 1.
    pub max_generations_per_merge: u64,
    /// At most this many bytes in one merge; a larger generation goes alone.
    pub max_bytes_per_merge: u64,
    /// Whether and when small fragments are rewritten.
    pub compaction: Compaction,
    /// Whether indexes are brought up to date.
    pub optimize_indexes: bool,
    /// How long a merged generation stays listed.
    pub drain_delay: Duration,
    /// How long a drained generation's files stay.
    pub grace: Duration,
    /// A base version may go when its successor is older than this; see [`Policy::versions_older_than`].
    pub versions_older_than: Duration,
    /// Always keep this many of the newest versions.
    pub versions_keep_at_least: u64,
}

/// When small fragments are rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compaction {
    /// Off means never.
    pub enabled: bool,
    /// Start at this many small fragments; below 2 counts as 2.
    pub min_fragments: u64,
    /// Rows that a fragment should hold.
    pub target_rows_per_fragment: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            target: Duration::from_secs(60),
            merge_at_generations: 256,
            merge_at_bytes: 1 << 30,
            max_generations_per_merge: 64,
            max_bytes_per_merge: 256 << 20,
            compaction: Compaction {
                enabled: true,
                min_fragments: 16,
                target_rows_per_fragment: 1 << 20,
            },
            optimize_indexes: true,
            drain_delay: Duration::from_secs(60),
            grace: Duration::from_secs(600),
            versions_older_than: Duration::from_secs(24 * 3600),
            versions_keep_at_least: 1,
        }
    }
}

impl Policy {
    /// The age of its successor at which a version may go: what is asked for, but never less than the grace and the
    /// longest deadline of any work together, since conflicts are only seen with manifests that still exist.
    pub fn versions_older_than(&self) -> Duration {
        self.versions_older_than
            .max(self.grace.saturating_add(LONGEST_WORK))
    }
}

/// Something wrong or worth telling. [`Reason::reach`] says what it stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anomaly {
    /// What it is.
    pub reason: Reason,
    /// Names, numbers and times for people: at most a sentence.
    pub detail: String,
}

/// A generation that waits to be merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingGeneration {
    /// Its number.
    pub generation: Generation,
    /// Its directory's name: a number alone never identifies a generation.
    pub path: Arc<str>,
    /// Rows in it, if known.
    pub rows: Option<u64>,
    /// Bytes that it takes in memory, if known.
    pub bytes: Option<u64>,
    /// What committing its rows takes once the merge let go of them, in the same bytes; 0 where that is next to nothing.
    pub commit_bytes: u64,
    /// When it was flushed, by the store's clock, if known.
    pub flushed_at: Option<Timestamp>,
    /// When this process first saw it.
    pub first_seen: Timestamp,
}

impl PendingGeneration {
    /// The instant from which its age counts: its flush, or the first sight of it where that is unknown or (by a clock
    /// that runs ahead) earlier.
    pub fn since(&self) -> Timestamp {
        self.flushed_at
            .map_or(self.first_seen, |at| at.min(self.first_seen))
    }
}

/// A generation that is merged and still listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedGeneration {
    /// Its number.
    pub generation: Generation,
    /// When the merge was first seen.
    pub merged_at: Timestamp,
    /// False while an index of the table has yet to take its rows in; it is not drained before.
    pub caught_up: bool,
}

/// A drained generation's directory, or an orphan's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaimable {
    /// The directory's name within its shard.
    pub path: Arc<str>,
    /// From when on it may be deleted.
    pub due: Timestamp,
}

/// Durable entries that no generation holds yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// How many entries, at most.
    pub entries: u64,
    /// There has been a tail since.
    pub since: Timestamp,
    /// It has not grown or shrunk since.
    pub unchanged_since: Timestamp,
}

/// One shard, as last observed.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardView {
    /// The shard's id.
    pub id: Uuid,
    /// The highest generation that the base table records as merged.
    pub watermark: Option<Generation>,
    /// Pending generations, oldest (lowest number) first.
    pub pending: Vec<PendingGeneration>,
    /// Merged generations that are still listed.
    pub merged: Vec<MergedGeneration>,
    /// Directories to delete.
    pub reclaimable: Vec<Reclaimable>,
    /// The lowest generation that cannot be merged; those before it can.
    pub quarantined: Option<Generation>,
    /// What is wrong with the shard.
    pub anomalies: Vec<Anomaly>,
    /// Its tail, if it has one.
    pub tail: Option<Tail>,
}

impl ShardView {
    /// A shard of which nothing is known but its id.
    pub fn new(id: Uuid) -> Self {
        Self {
            id,
            watermark: None,
            pending: Vec::new(),
            merged: Vec::new(),
            reclaimable: Vec::new(),
            quarantined: None,
            anomalies: Vec::new(),
            tail: None,
        }
    }

    /// Whether an anomaly stops every merge of the shard.
    pub fn is_stopped(&self) -> bool {
        self.anomalies
            .iter()
            .any(|a| a.reason.reach() != Reach::Told)
    }

    /// Whether nothing of the shard may be deleted.
    pub fn keeps_everything(&self) -> bool {
        self.anomalies.iter().any(|a| a.reason.keeps_everything())
    }
}

/// The last successful look at a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// When it began, by the clock that `now` comes from.
    pub observed_at: Timestamp,
    /// The base table's version.
    pub base_version: u64,
    /// Every shard.
    pub shards: Vec<ShardView>,
    /// What is wrong with the table as a whole.
    pub anomalies: Vec<Anomaly>,
    /// Fragments smaller than the policy wants.
    pub small_fragments: u64,
    /// Rows that an index does not cover yet.
    pub unindexed_rows: u64,
    /// When the first old version may go, by [`Policy::versions_older_than`]; `None` when there is none.
    pub old_versions_due: Option<Timestamp>,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub reason: Reason,
    /// When.
    pub at: Timestamp,
    /// Names, numbers and times for people: at most a sentence.
    pub detail: String,
}

/// Attempts of one sort that failed in a row; nothing of it once one succeeds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trouble {
    /// How many, and until when they are waited out.
    pub backoff: Backoff,
    /// The last of them.
    pub failure: Option<Failure>,
}

/// Work that runs on a table now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// What it is.
    pub kind: Kind,
    /// The bytes that it reserved.
    pub bytes: u64,
    /// When it started.
    pub started: Timestamp,
}

/// What is remembered of past work on a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Past {
    /// When the last merge started, whatever became of it.
    pub merge_started: Option<Timestamp>,
    /// When the last merge started, if a cap cut it short and it succeeded.
    pub merge_cut: Option<Timestamp>,
    /// When the last compaction started.
    pub compact_started: Option<Timestamp>,
    /// The base version on which compaction last found nothing to do.
    pub compact_settled: Option<u64>,
    /// When the last index upkeep started.
    pub optimize_started: Option<Timestamp>,
    /// The base version on which index upkeep last found nothing to do.
    pub optimize_settled: Option<u64>,
    /// When the last clean-up of old versions started.
    pub clean_started: Option<Timestamp>,
    /// When the last work on the table ended. An observation that began earlier is not planned from.
    pub ended: Option<Timestamp>,
}

/// All that is known of one table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableView {
    /// The table.
    pub id: TableId,
    /// Whom it shares with.
    pub namespace: Namespace,
    /// What its owner wants.
    pub policy: Policy,
    /// No new work.
    pub suspended: bool,
    /// The operator's rules forbid it: no new work, and no request.
    pub not_allowed: bool,
    /// Merge now whatever was pending at this instant.
    pub requested: Option<Timestamp>,
    /// Spreads the first merges of many tables; any number, the same for the same table.
    pub jitter: u64,
    /// When this process first heard of the table.
    pub known_since: Timestamp,
    /// The last successful look, kept while later looks fail.
    pub observation: Option<Observation>,
    /// Looks that failed since the last good one: while there is one, no work starts.
    pub look_trouble: Trouble,
    /// Merges that failed since the last good one: no merge until they are waited out.
    pub merge_trouble: Trouble,
    /// Other work that failed since the last good one: no such work until it is waited out. Apart, so that a
    /// compaction that fails never holds a merge up.
    pub aside_trouble: Trouble,
    /// What its work has cost.
    pub history: History,
    /// What runs on it now.
    pub running: Vec<Running>,
    /// What ran on it before.
    pub past: Past,
}

impl TableView {
    /// Takes nothing that is remembered as later than `now`: a clock that was ahead, and was set back, said so.
    pub fn set_back(&mut self, now: Timestamp) {
        let Past {
            merge_started,
            merge_cut,
            compact_started,
            compact_settled: _,
            optimize_started,
            optimize_settled: _,
            clean_started,
            ended,
        } = &mut self.past;
        let past = [
            merge_started,
            merge_cut,
            compact_started,
            optimize_started,
            clean_started,
            ended,
        ];
        for at in past.into_iter().chain([&mut self.requested]).flatten() {
            *at = now.min(*at);
        }
        self.known_since = now.min(self.known_since);
        for running in &mut self.running {
            running.started = now.min(running.started);
        }
    }

    /// A table that nobody has looked at.
    pub fn new(id: TableId, namespace: Namespace, policy: Policy, known_since: Timestamp) -> Self {
        Self {
            id,
            namespace,
            policy,
            suspended: false,
            not_allowed: false,
            requested: None,
            jitter: 0,
            known_since,
            observation: None,
            look_trouble: Trouble::default(),
            merge_trouble: Trouble::default(),
            aside_trouble: Trouble::default(),
            history: History::default(),
            running: Vec::new(),
            past: Past::default(),
        }
    }

    /// Whether work of this kind runs on the table.
    pub fn runs(&self, kind: Kind) -> bool {
        self.running.iter().any(|r| r.kind == kind)
    }

    /// The work that holds the table's commit permit.
    pub fn permit_holder(&self) -> Option<&Running> {
        self.running.iter().find(|r| r.kind.commits())
    }

    /// The observation, if work may be planned from it: no look failed since, no work ended since, and nothing stops
    /// the table as a whole.
    pub fn workable(&self) -> Option<&Observation> {
        self.observation.as_ref().filter(|o| {
            self.look_trouble.failure.is_none()
                && !self.suspended
                && !self.not_allowed
                && self.past.ended.is_none_or(|ended| o.observed_at >= ended)
                && o.anomalies.iter().all(|a| a.reason.reach() == Reach::Told)
        })
    }
}

/// Work that each namespace got lately, for fairness. Kept by the engine, decayed so that the past is forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Served(BTreeMap<Namespace, u64>);

impl Served {
    /// What one work costs its namespace besides its bytes, so that many small ones count too.
    const PER_WORK: u64 = 16 << 20;

    /// What `namespace` got.
    pub fn of(&self, namespace: &Namespace) -> u64 {
        self.0.get(namespace).copied().unwrap_or(0)
    }

    /// Books one work of `bytes` bytes to `namespace`. To be called for every commit work that was started.
    pub fn charge(&mut self, namespace: &Namespace, bytes: u64) {
        let served = self.0.entry(namespace.clone()).or_insert(0);
        *served = served.saturating_add(bytes.saturating_add(Self::PER_WORK));
    }

    /// Halves every account; called once a minute, an hour-old debt is gone.
    pub fn halve(&mut self) {
        self.0.retain(|_, served| {
            *served /= 2;
            *served > 0
        });
    }
}

/// What all tables share.
#[derive(Debug, Clone, PartialEq)]
pub struct Budgets {
    /// Bytes that all running work may reserve together.
    pub bytes: u64,
    /// Merges and upkeep that may run at once; 0 means none.
    pub slots: usize,
    /// Drains and reclaims that may run at once; 0 means none.
    pub light_slots: usize,
    /// Work that still runs on tables that are no longer listed.
    pub elsewhere: Vec<Running>,
    /// How long merges that were due have waited lately (a smoothed measurement): merges start that much earlier.
    pub queue_wait: Duration,
    /// What each namespace got lately.
    pub served: Served,
}

impl Budgets {
    /// Budgets of which nothing is used.
    pub fn new(bytes: u64, slots: usize, light_slots: usize) -> Self {
        Self {
            bytes,
            slots,
            light_slots,
            elsewhere: Vec::new(),
            queue_wait: Duration::ZERO,
            served: Served::default(),
        }
    }

    /// `queue_wait` after one more merge, due at `due`, started at `started`.
    pub fn waited(queue_wait: Duration, due: Timestamp, started: Timestamp) -> Duration {
        queue_wait.mul_f64(0.9) + clock::between(due, started).mul_f64(0.1)
    }
}
