//! What the spec says, what the operator says, and what is in force.

use super::*;
use crate::api::{
    CompactionSpec, FreshnessSpec, MergeAtSpec, MergeSpec, RetentionSpec, VersionsSpec,
};

fn resolve(spec: &ExperimentSpec) -> Effective {
    Effective::resolve(spec, &Defaults::default(), &Limits::default())
}

#[test]
fn a_spec_without_tunables_gets_the_first_values_and_nothing_is_clamped() {
    let effective = resolve(&ExperimentSpec::default());
    let shown = serde_json::to_value(&effective).unwrap();
    assert_eq!(
        shown,
        serde_json::json!({
            "freshness": {"target": "1m", "mergeAt": {"generations": 256, "bytes": "1Gi"}},
            "merge": {"maxGenerationsPerMerge": 64, "maxBytesPerMerge": "256Mi"},
            "compaction": {"enabled": true, "minFragments": 16, "targetRowsPerFragment": 1_048_576},
            "indexes": {"optimize": true},
            "retention": {
                "drainDelay": "1m",
                "mergedGenerationGracePeriod": "10m",
                "versions": {"olderThan": "24h", "keepAtLeast": 1},
            },
            "deletion": {"timeout": "15m"},
        })
    );
    assert_eq!(
        serde_json::from_value::<Effective>(shown).unwrap(),
        effective
    );
}

#[test]
fn what_the_spec_says_wins_over_the_defaults() {
    let effective = resolve(&ExperimentSpec {
        freshness: Some(FreshnessSpec {
            target: Some(GoDuration::from_secs(5)),
            merge_at: Some(MergeAtSpec {
                generations: Some(3),
                bytes: None,
            }),
        }),
        compaction: Some(CompactionSpec {
            enabled: Some(false),
            ..Default::default()
        }),
        ..Default::default()
    });
    assert_eq!(effective.freshness.target, GoDuration::from_secs(5));
    assert_eq!(effective.freshness.merge_at.generations, 3);
    assert_eq!(
        effective.freshness.merge_at.bytes,
        Quantity::from_gibibytes(1)
    );
    assert!(!effective.compaction.enabled);
    assert_eq!(effective.clamped, []);
}

#[test]
fn what_exceeds_a_limit_is_moved_to_it_and_named() {
    let effective = resolve(&ExperimentSpec {
        freshness: Some(FreshnessSpec {
            target: Some(GoDuration::from_millis(1)),
            merge_at: None,
        }),
        merge: Some(MergeSpec {
            max_generations_per_merge: Some(100_000),
            max_bytes_per_merge: None,
        }),
        ..Default::default()
    });
    assert_eq!(effective.freshness.target, GoDuration::from_secs(1));
    assert_eq!(effective.merge.max_generations_per_merge, 1_024);
    let named: Vec<_> = effective
        .clamped
        .iter()
        .map(|c| (c.field.as_str(), c.asked.as_str(), c.used.as_str()))
        .collect();
    assert_eq!(
        named,
        [
            ("spec.freshness.target", "1ms", "1s"),
            ("spec.merge.maxGenerationsPerMerge", "100000", "1024")
        ]
    );
    assert_eq!(
        effective.clamped[0].why,
        "the operator's limits allow at least 1s"
    );
}

#[test]
fn a_default_beyond_the_limits_is_moved_too_and_blames_the_operator() {
    let defaults = Defaults {
        max_bytes_per_merge: Quantity::from_gibibytes(100),
        ..Default::default()
    };
    let effective = Effective::resolve(&ExperimentSpec::default(), &defaults, &Limits::default());
    assert_eq!(
        effective.merge.max_bytes_per_merge,
        Quantity::from_gibibytes(4)
    );
    assert!(
        effective.clamped[0].why.contains("operator's own default"),
        "{:?}",
        effective.clamped
    );
}

#[test]
fn limits_that_contradict_themselves_do_not_panic() {
    let limits = Limits {
        min_fragments: Bounds { min: 9, max: 3 },
        ..Default::default()
    };
    let effective = Effective::resolve(&ExperimentSpec::default(), &Defaults::default(), &limits);
    assert_eq!(effective.compaction.min_fragments, 3);
}

#[test]
fn old_versions_outlive_the_grace_period_and_the_longest_work_whatever_is_asked() {
    let asked = |older_than: Option<u64>, grace: Option<u64>| {
        resolve(&ExperimentSpec {
            retention: Some(RetentionSpec {
                drain_delay: None,
                merged_generation_grace_period: grace.map(GoDuration::from_mins),
                versions: Some(VersionsSpec {
                    older_than: older_than.map(GoDuration::from_mins),
                    keep_at_least: None,
                }),
            }),
            ..Default::default()
        })
    };
    // The spec's rule cannot know the default grace period of 10m that this one meets.
    let effective = asked(Some(35), None);
    assert_eq!(
        effective.retention.versions.older_than,
        GoDuration::from_mins(41)
    );
    assert_eq!(effective.clamped.len(), 1);
    assert_eq!(effective.clamped[0].used, "41m");
    // A grace period beyond the default age of versions.
    let effective = asked(None, Some(24 * 60));
    assert_eq!(
        effective.retention.versions.older_than,
        GoDuration::from_mins(24 * 60 + 31)
    );
    // Both a limit and the relation move it: told once.
    let effective = asked(Some(1), Some(60));
    assert_eq!(
        effective.retention.versions.older_than,
        GoDuration::from_mins(91)
    );
    assert_eq!(effective.clamped.len(), 1);
    assert_eq!(effective.clamped[0].asked, "1m");
    assert_eq!(asked(Some(45), Some(10)).clamped, []);
}
