//! An Experiment, as the engine takes it, whoever read it: from a cluster or from a file.
//!
//! Lives here: the mapping of an Experiment and its resolved tunables into `TableSpec`. Pure. May use: `api`, `plan`'s
//! policy, `table`'s location. Must never come in: a tunable read from the spec itself, a credential, or a verdict on
//! whether the table may be touched.

use super::config::TableSpec;
use crate::api::{ACKNOWLEDGE, Effective, Experiment, annotation};
use crate::plan::{Compaction, Namespace, Policy, TableId};
use crate::table::{AnomalyKind, Location};

impl TableSpec {
    /// An Experiment's table, called `id` in this process, at `location`.
    pub fn of(
        id: TableId,
        namespace: Namespace,
        location: Location,
        experiment: &Experiment,
        effective: &Effective,
    ) -> Self {
        Self {
            id,
            namespace,
            location,
            policy: policy(effective),
            suspended: experiment.spec.suspend,
            acknowledged: acknowledged(experiment),
            grace_before: None,
        }
    }
}

fn policy(e: &Effective) -> Policy {
    let (fresh, kept) = (&e.freshness, &e.retention);
    Policy {
        target: fresh.target.as_duration(),
        merge_at_generations: fresh.merge_at.generations.into(),
        merge_at_bytes: fresh.merge_at.bytes.bytes(),
        max_generations_per_merge: e.merge.max_generations_per_merge.into(),
        max_bytes_per_merge: e.merge.max_bytes_per_merge.bytes(),
        compaction: Compaction {
            enabled: e.compaction.enabled,
            min_fragments: e.compaction.min_fragments.into(),
            target_rows_per_fragment: e.compaction.target_rows_per_fragment.into(),
        },
        optimize_indexes: e.indexes.optimize,
        drain_delay: kept.drain_delay.as_duration(),
        grace: kept.merged_generation_grace_period.as_duration(),
        versions_older_than: kept.versions.older_than.as_duration(),
        versions_keep_at_least: kept.versions.keep_at_least.into(),
    }
}

/// The anomalies that a person acknowledged. Names that are none, or that nobody may acknowledge, count for nothing.
fn acknowledged(experiment: &Experiment) -> Vec<AnomalyKind> {
    let said = annotation(experiment, ACKNOWLEDGE).unwrap_or_default();
    let named = |k: &AnomalyKind| said.split(',').any(|word| word.trim() == k.reason());
    let mut kinds = vec![AnomalyKind::WentBack, AnomalyKind::WatermarkAhead];
    kinds.retain(named);
    kinds
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::{Defaults, ExperimentSpec, Limits};

    #[test]
    fn what_nobody_may_acknowledge_is_not_acknowledged() {
        let mut experiment = Experiment::new("maze", ExperimentSpec::default());
        experiment.spec.suspend = true;
        let effective =
            Effective::resolve(&experiment.spec, &Defaults::default(), &Limits::default());
        let spec = |e: &Experiment| {
            let (id, at) = (TableId::from("maze"), Location::new("s3://runs/maze"));
            TableSpec::of(id, Namespace::from("alder"), at, e, &effective)
        };
        assert!(spec(&experiment).suspended);
        assert_eq!(spec(&experiment).acknowledged, []);
        let words = "WentBack, WatermarkAhead,Quarantined,Nonsense";
        let said = BTreeMap::from([(ACKNOWLEDGE.into(), words.into())]);
        experiment.metadata.annotations = Some(said);
        let both = [AnomalyKind::WentBack, AnomalyKind::WatermarkAhead];
        assert_eq!(spec(&experiment).acknowledged, both);
    }
}
