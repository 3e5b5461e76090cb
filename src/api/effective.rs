//! What is in force: every tunable of an Experiment, filled from the operator's defaults and held within its limits.
//!
//! Pure: the same spec, defaults and limits give the same values, and each value that was moved says so. The result is
//! shown in `status.effective` and is what every other room goes by; none reads a tunable from the spec itself.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ExperimentSpec, GoDuration, Quantity};

/// The longest deadline of any work: a merge, a compaction slice, an index job. An attempt past its deadline never
/// commits, and old versions outlive it, so that no commit meets a conflict that it cannot see. A rule of the schema
/// states the same figure.
pub const LONGEST_WORK: GoDuration = GoDuration::from_mins(30);

/// Old versions stay at least this much longer than grace period and [`LONGEST_WORK`] together.
const VERSIONS_MARGIN: GoDuration = GoDuration::from_mins(1);

/// The operator's values for the tunables that a spec leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// `freshness.target`.
    pub target: GoDuration,
    /// `freshness.mergeAt.generations`.
    pub merge_at_generations: u32,
    /// `freshness.mergeAt.bytes`.
    pub merge_at_bytes: Quantity,
    /// `merge.maxGenerationsPerMerge`.
    pub max_generations_per_merge: u32,
    /// `merge.maxBytesPerMerge`.
    pub max_bytes_per_merge: Quantity,
    /// `compaction.enabled`.
    pub compaction: bool,
    /// `compaction.minFragments`.
    pub min_fragments: u32,
    /// `compaction.targetRowsPerFragment`.
    pub target_rows_per_fragment: u32,
    /// `indexes.optimize`.
    pub optimize_indexes: bool,
    /// `retention.drainDelay`.
    pub drain_delay: GoDuration,
    /// `retention.mergedGenerationGracePeriod`.
    pub grace_period: GoDuration,
    /// `retention.versions.olderThan`.
    pub versions_older_than: GoDuration,
    /// `retention.versions.keepAtLeast`.
    pub versions_keep_at_least: u32,
    /// `deletion.timeout`.
    pub deletion_timeout: GoDuration,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            target: GoDuration::from_secs(60),
            merge_at_generations: 256,
            merge_at_bytes: Quantity::from_gibibytes(1),
            max_generations_per_merge: 64,
            max_bytes_per_merge: Quantity::from_mebibytes(256),
            compaction: true,
            min_fragments: 16,
            target_rows_per_fragment: 1 << 20,
            optimize_indexes: true,
            drain_delay: GoDuration::from_mins(1),
            grace_period: GoDuration::from_mins(10),
            versions_older_than: GoDuration::from_hours(24),
            versions_keep_at_least: 1,
            deletion_timeout: GoDuration::from_mins(15),
        }
    }
}

/// The least and the most that a tunable may be, both allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    /// The least.
    pub min: T,
    /// The most.
    pub max: T,
}

/// The operator's limits: what a spec asks for beyond them is moved to the nearer one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of `freshness.target`.
    pub target: Bounds<GoDuration>,
    /// Of `freshness.mergeAt.generations`.
    pub merge_at_generations: Bounds<u32>,
    /// Of `freshness.mergeAt.bytes`.
    pub merge_at_bytes: Bounds<Quantity>,
    /// Of `merge.maxGenerationsPerMerge`.
    pub max_generations_per_merge: Bounds<u32>,
    /// Of `merge.maxBytesPerMerge`.
    pub max_bytes_per_merge: Bounds<Quantity>,
    /// Of `compaction.minFragments`.
    pub min_fragments: Bounds<u32>,
    /// Of `compaction.targetRowsPerFragment`.
    pub target_rows_per_fragment: Bounds<u32>,
    /// Of `retention.drainDelay`.
    pub drain_delay: Bounds<GoDuration>,
    /// Of `retention.mergedGenerationGracePeriod`.
    pub grace_period: Bounds<GoDuration>,
    /// Of `retention.versions.olderThan`; raised further where the grace period demands it.
    pub versions_older_than: Bounds<GoDuration>,
    /// Of `retention.versions.keepAtLeast`.
    pub versions_keep_at_least: Bounds<u32>,
    /// Of `deletion.timeout`.
    pub deletion_timeout: Bounds<GoDuration>,
}

impl Default for Limits {
    fn default() -> Self {
        let between = |min, max| Bounds { min, max };
        Self {
            target: between(GoDuration::from_secs(1), GoDuration::from_hours(24)),
            merge_at_generations: Bounds {
                min: 1,
                max: 10_000,
            },
            merge_at_bytes: Bounds {
                min: Quantity::from_mebibytes(1),
                max: Quantity::from_gibibytes(64),
            },
            max_generations_per_merge: Bounds { min: 1, max: 1_024 },
            max_bytes_per_merge: Bounds {
                min: Quantity::from_mebibytes(1),
                max: Quantity::from_gibibytes(4),
            },
            min_fragments: Bounds {
                min: 2,
                max: 10_000,
            },
            target_rows_per_fragment: Bounds {
                min: 1_024,
                max: 1 << 28,
            },
            drain_delay: between(GoDuration::from_millis(1), GoDuration::from_hours(1)),
            grace_period: between(GoDuration::from_secs(1), GoDuration::from_hours(24)),
            versions_older_than: between(
                GoDuration::from_mins(31),
                GoDuration::from_hours(24 * 366),
            ),
            versions_keep_at_least: Bounds {
                min: 1,
                max: 10_000,
            },
            deletion_timeout: between(GoDuration::from_secs(1), GoDuration::from_hours(24)),
        }
    }
}

/// Every tunable as it is in force.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Effective {
    /// The deadline, and what starts a merge early.
    pub freshness: EffectiveFreshness,
    /// How much one merge takes.
    pub merge: EffectiveMerge,
    /// Compaction of the base table.
    pub compaction: EffectiveCompaction,
    /// Upkeep of indexes.
    pub indexes: EffectiveIndexes,
    /// How long what is no longer current stays.
    pub retention: EffectiveRetention,
    /// Bounds of a deletion.
    pub deletion: EffectiveDeletion,
    /// The values that the operator's limits moved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub clamped: Vec<Clamp>,
}

/// The deadline, and what starts a merge early.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveFreshness {
    /// No pending generation may become older than this.
    pub target: GoDuration,
    /// What starts a merge before its time.
    pub merge_at: EffectiveMergeAt,
}

/// What starts a merge before its time.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveMergeAt {
    /// Pending generations.
    pub generations: u32,
    /// Pending bytes.
    pub bytes: Quantity,
}

/// How much one merge takes.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveMerge {
    /// The most generations of one merge.
    pub max_generations_per_merge: u32,
    /// The most bytes of one merge.
    pub max_bytes_per_merge: Quantity,
}

/// Compaction of the base table.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveCompaction {
    /// Whether it happens.
    pub enabled: bool,
    /// The least number of fragments worth rewriting at once.
    pub min_fragments: u32,
    /// The rows that a rewritten fragment aims at.
    pub target_rows_per_fragment: u32,
}

/// Upkeep of indexes.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveIndexes {
    /// Whether merged rows are taken into the table's indexes.
    pub optimize: bool,
}

/// How long what is no longer current stays.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveRetention {
    /// How long a merged generation stays listed.
    pub drain_delay: GoDuration,
    /// How long the files of a drained generation stay.
    pub merged_generation_grace_period: GoDuration,
    /// Which old versions of the base table are kept.
    pub versions: EffectiveVersions,
}

/// Which old versions of the base table are kept.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveVersions {
    /// A version may go once its successor is older than this.
    pub older_than: GoDuration,
    /// The newest versions that are kept however old they are.
    pub keep_at_least: u32,
}

/// Bounds of a deletion.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveDeletion {
    /// How long a deletion waits for pending generations to be merged.
    pub timeout: GoDuration,
}

/// A value that the operator's limits moved.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Clamp {
    /// The path of the field, as in spec.freshness.target.
    #[schemars(length(max = 64))]
    pub field: String,
    /// What was asked for, by the spec or by the operator's default.
    #[schemars(length(max = 48))]
    pub asked: String,
    /// What is in force.
    #[schemars(length(max = 48))]
    pub used: String,
    /// Which limit moved it.
    #[schemars(length(max = 128))]
    pub why: String,
}

impl Effective {
    /// Fills every tunable: the spec's value, else the default, moved into the limits. What was moved is listed in
    /// [`clamped`](Self::clamped), in the order of the fields. Whatever is asked, `versions.olderThan` ends up above
    /// the grace period plus [`LONGEST_WORK`].
    pub fn resolve(spec: &ExperimentSpec, defaults: &Defaults, limits: &Limits) -> Self {
        let mut fill = Fill::default();
        let freshness = fill.freshness(spec, defaults, limits);
        let merge = fill.merge(spec, defaults, limits);
        let compaction = fill.compaction(spec, defaults, limits);
        let indexes = EffectiveIndexes {
            optimize: spec
                .indexes
                .as_ref()
                .and_then(|i| i.optimize)
                .unwrap_or(defaults.optimize_indexes),
        };
        let retention = fill.retention(spec, defaults, limits);
        let timeout = spec.deletion.as_ref().and_then(|d| d.timeout);
        let timeout = fill.value(
            "spec.deletion.timeout",
            timeout,
            defaults.deletion_timeout,
            limits.deletion_timeout,
        );
        let deletion = EffectiveDeletion { timeout };
        Self {
            freshness,
            merge,
            compaction,
            indexes,
            retention,
            deletion,
            clamped: fill.clamped,
        }
    }
}

/// Collects what is moved while the values are filled.
#[derive(Default)]
struct Fill {
    clamped: Vec<Clamp>,
}

impl Fill {
    fn value<T: Ord + Copy + Display>(
        &mut self,
        field: &str,
        spec: Option<T>,
        default: T,
        bounds: Bounds<T>,
    ) -> T {
        let asked = spec.unwrap_or(default);
        // Written out, since `clamp` panics where an operator set min above max; then max holds.
        let used = asked.max(bounds.min).min(bounds.max);
        if used != asked {
            let side = if used > asked { "least" } else { "most" };
            let whose = if spec.is_some() {
                ""
            } else {
                " (asked by the operator's own default)"
            };
            self.note(
                field,
                asked,
                used,
                format!("the operator's limits allow at {side} {used}{whose}"),
            );
        }
        used
    }

    fn note<T: Display>(&mut self, field: &str, asked: T, used: T, why: String) {
        self.clamped.push(Clamp {
            field: field.into(),
            asked: asked.to_string(),
            used: used.to_string(),
            why,
        });
    }

    fn freshness(
        &mut self,
        spec: &ExperimentSpec,
        defaults: &Defaults,
        limits: &Limits,
    ) -> EffectiveFreshness {
        let asked = spec.freshness.as_ref();
        let at = asked.and_then(|f| f.merge_at.as_ref());
        EffectiveFreshness {
            target: self.value(
                "spec.freshness.target",
                asked.and_then(|f| f.target),
                defaults.target,
                limits.target,
            ),
            merge_at: EffectiveMergeAt {
                generations: self.value(
                    "spec.freshness.mergeAt.generations",
                    at.and_then(|m| m.generations),
                    defaults.merge_at_generations,
                    limits.merge_at_generations,
                ),
                bytes: self.value(
                    "spec.freshness.mergeAt.bytes",
                    at.and_then(|m| m.bytes),
                    defaults.merge_at_bytes,
                    limits.merge_at_bytes,
                ),
            },
        }
    }

    fn merge(
        &mut self,
        spec: &ExperimentSpec,
        defaults: &Defaults,
        limits: &Limits,
    ) -> EffectiveMerge {
        let asked = spec.merge.as_ref();
        EffectiveMerge {
            max_generations_per_merge: self.value(
                "spec.merge.maxGenerationsPerMerge",
                asked.and_then(|m| m.max_generations_per_merge),
                defaults.max_generations_per_merge,
                limits.max_generations_per_merge,
            ),
            max_bytes_per_merge: self.value(
                "spec.merge.maxBytesPerMerge",
                asked.and_then(|m| m.max_bytes_per_merge),
                defaults.max_bytes_per_merge,
                limits.max_bytes_per_merge,
            ),
        }
    }

    fn compaction(
        &mut self,
        spec: &ExperimentSpec,
        defaults: &Defaults,
        limits: &Limits,
    ) -> EffectiveCompaction {
        let asked = spec.compaction.as_ref();
        EffectiveCompaction {
            enabled: asked.and_then(|c| c.enabled).unwrap_or(defaults.compaction),
            min_fragments: self.value(
                "spec.compaction.minFragments",
                asked.and_then(|c| c.min_fragments),
                defaults.min_fragments,
                limits.min_fragments,
            ),
            target_rows_per_fragment: self.value(
                "spec.compaction.targetRowsPerFragment",
                asked.and_then(|c| c.target_rows_per_fragment),
                defaults.target_rows_per_fragment,
                limits.target_rows_per_fragment,
            ),
        }
    }

    fn retention(
        &mut self,
        spec: &ExperimentSpec,
        defaults: &Defaults,
        limits: &Limits,
    ) -> EffectiveRetention {
        let asked = spec.retention.as_ref();
        let versions = asked.and_then(|r| r.versions.as_ref());
        let drain_delay = self.value(
            "spec.retention.drainDelay",
            asked.and_then(|r| r.drain_delay),
            defaults.drain_delay,
            limits.drain_delay,
        );
        let grace = self.value(
            "spec.retention.mergedGenerationGracePeriod",
            asked.and_then(|r| r.merged_generation_grace_period),
            defaults.grace_period,
            limits.grace_period,
        );
        let field = "spec.retention.versions.olderThan";
        let asked_age = versions.and_then(|v| v.older_than);
        let mut older_than = self.value(
            field,
            asked_age,
            defaults.versions_older_than,
            limits.versions_older_than,
        );
        let least = grace.saturating_add(LONGEST_WORK);
        if older_than <= least {
            let used = least.saturating_add(VERSIONS_MARGIN);
            self.clamped.retain(|c| c.field != field);
            let why = format!(
                "it must exceed the grace period of {grace} plus {LONGEST_WORK}, the longest work"
            );
            self.note(
                field,
                asked_age.unwrap_or(defaults.versions_older_than),
                used,
                why,
            );
            older_than = used;
        }
        let keep_at_least = self.value(
            "spec.retention.versions.keepAtLeast",
            versions.and_then(|v| v.keep_at_least),
            defaults.versions_keep_at_least,
            limits.versions_keep_at_least,
        );
        EffectiveRetention {
            drain_delay,
            merged_generation_grace_period: grace,
            versions: EffectiveVersions {
                older_than,
                keep_at_least,
            },
        }
    }
}

#[cfg(test)]
mod tests;
