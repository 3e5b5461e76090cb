//! What Freshet reports: the status of an Experiment.
//!
//! Bounded in size whatever the table holds: counts and extremes, never a list of generations. What is not known is
//! absent, never 0. Nothing in it moves while nothing happens: times are those of events, not of looking. No behaviour
//! lives here.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Effective;

/// The most quarantined generations that a status lists; `quarantinedCount` counts them all.
pub const QUARANTINED_LISTED: usize = 10;

/// The value of `observedGeneration` before anyone looked at the object.
pub const NEVER_OBSERVED: i64 = -1;

fn never_observed() -> i64 {
    NEVER_OBSERVED
}

/// What Freshet last saw and did.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentStatus {
    /// The metadata.generation that this status answers to; -1 until somebody looked at the object.
    #[serde(default = "never_observed")]
    #[schemars(range(min = -1))]
    pub observed_generation: i64,

    /// The conditions: Ready, Fresh, StorageReachable, and, while they hold, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// Every tunable as it is in force: from the spec, else from the operator's defaults, within the operator's limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,

    /// The pending generations at the last observation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<BacklogStatus>,

    /// The base table at the last observation: what an ordinary Lance reader sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragments: Option<FragmentsStatus>,

    /// The last merge that was committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_merge: Option<LastMerge>,

    /// Generations that cannot be merged and stop their shard until a person acts; at most 10 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub quarantined: Vec<QuarantinedGeneration>,

    /// How many generations are quarantined, listed above or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined_count: Option<u32>,

    /// The deletion of merged generations' files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim: Option<ReclaimStatus>,

    /// The value of the annotation freshet.dev/requestedAt that was last acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub last_handled_request: Option<String>,
}

impl Default for ExperimentStatus {
    fn default() -> Self {
        Self {
            observed_generation: NEVER_OBSERVED,
            conditions: Vec::new(),
            effective: None,
            backlog: None,
            fragments: None,
            last_merge: None,
            quarantined: Vec::new(),
            quarantined_count: None,
            reclaim: None,
            last_handled_request: None,
        }
    }
}

/// The pending generations of a table: listed in a shard's manifest above its watermark.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BacklogStatus {
    /// How many generations are pending.
    pub pending_generations: u64,

    /// How many rows they hold; absent while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_rows: Option<u64>,

    /// How many bytes they hold; absent while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_bytes: Option<u64>,

    /// When the oldest of them was flushed; absent when none is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending_time: Option<Time>,

    /// How many shards the table has, retired writers' included.
    pub shards: u32,

    /// When these figures last changed.
    pub observed_time: Time,
}

/// The base table: what an ordinary Lance reader sees.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FragmentsStatus {
    /// The version of the base table.
    pub version: u64,

    /// How many rows it holds; absent while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,

    /// How many fragments it has.
    pub fragments: u64,
}

/// A merge that was committed.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastMerge {
    /// When it was committed.
    pub time: Time,

    /// The version of the base table that it made.
    pub version: u64,

    /// How many generations it merged.
    pub generations: u64,

    /// How many rows it read from them; absent when that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,

    /// How many bytes of generations it read; absent when that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,

    /// How long it took, from its start to its commit.
    pub duration: super::GoDuration,
}

/// A generation that cannot be merged and stops its shard until a person acts.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuarantinedGeneration {
    /// The shard, by its UUID.
    #[schemars(length(max = 64))]
    pub shard: String,

    /// The number of the generation.
    pub generation: u64,

    /// Why, in one word.
    #[schemars(length(max = 64))]
    pub reason: String,

    /// Why, and what to do about it, in one sentence.
    #[schemars(length(max = 512))]
    pub message: String,

    /// Since when.
    pub since: Time,
}

/// The deletion of merged generations' files.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReclaimStatus {
    /// Generations that are merged and wait to be drained from their shard's manifest.
    pub draining: u64,

    /// Generations that are drained and whose files wait for the grace period to end.
    pub waiting: u64,

    /// When files were last deleted; absent when none ever were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_time: Option<Time>,

    /// Directories under the table's write-ahead log that are nobody's; they are reported and left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_directories: Option<u32>,
}
