//! An Experiment, as the engine takes it.
//!
//! Lives here: the mapping of an Experiment with its credentials into the engine's table, and the reading of its
//! annotations. Pure. May use: `api`, `plan`'s policy, `table`'s location. Must never come in: a tunable read from the
//! spec itself, or a verdict on whether the table may be touched (`access`).

use std::collections::BTreeMap;

use crate::api::{Effective, Experiment, storage};
use crate::engine;
use crate::plan::{Compaction, Namespace, Policy, TableId};
use crate::table::{AnomalyKind, Location};

/// Asks for a merge now; its value is answered in `status.lastHandledRequest`.
pub const REQUESTED_AT: &str = "freshet.dev/requestedAt";
/// Names anomalies that are as they should be, with commas between.
pub const ACKNOWLEDGE: &str = "freshet.dev/acknowledge";
/// There only while `deletionPolicy: MergePending` asks for it.
pub const FINALIZER: &str = "experiments.freshet.dev/finalizer";

/// The name of an Experiment's table in this process: `namespace/name`, which no other has.
pub fn id(namespace: &str, name: &str) -> TableId {
    TableId::from(format!("{namespace}/{name}").as_str())
}

/// Maps an Experiment that may be touched.
pub fn table(
    id: &TableId,
    experiment: &Experiment,
    effective: &Effective,
    credentials: BTreeMap<String, String>,
) -> engine::TableSpec {
    let table = &experiment.spec.table;
    let location = Location::new(table.uri.clone())
        .with_options(storage::options(table))
        .with_options(credentials);
    let namespace = experiment.metadata.namespace.as_deref();
    engine::TableSpec {
        id: id.clone(),
        namespace: Namespace::from(namespace.unwrap_or_default()),
        location,
        policy: policy(effective),
        suspended: experiment.spec.suspend,
        acknowledged: acknowledged(experiment),
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

/// An annotation's value.
pub fn annotation<'a>(experiment: &'a Experiment, key: &str) -> Option<&'a str> {
    let all = experiment.metadata.annotations.as_ref()?;
    all.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Defaults, ExperimentSpec, Limits, StorageSpec, TableSpec};

    #[test]
    fn a_table_is_named_by_namespace_and_name_and_takes_what_it_brings() {
        let mut experiment = Experiment::new(
            "maze",
            ExperimentSpec {
                table: TableSpec {
                    uri: "s3://runs/maze".into(),
                    storage: Some(StorageSpec {
                        region: Some("eu-central-1".into()),
                        ..Default::default()
                    }),
                    ..Default::default()
                },
                suspend: true,
                ..Default::default()
            },
        );
        experiment.metadata.namespace = Some("alder".into());
        let words = "WentBack, WatermarkAhead,Quarantined,Nonsense";
        let said = BTreeMap::from([(ACKNOWLEDGE.into(), words.into())]);
        experiment.metadata.annotations = Some(said);
        let effective =
            Effective::resolve(&experiment.spec, &Defaults::default(), &Limits::default());
        let keys = BTreeMap::from([("aws_access_key_id".to_owned(), "who".to_owned())]);
        let spec = table(&id("alder", "maze"), &experiment, &effective, keys);
        assert_eq!(&*spec.id.0, "alder/maze");
        assert_eq!(spec.id.name(), "maze");
        assert!(spec.suspended && spec.location.brings_credentials());
        assert_eq!(spec.location.options["aws_region"], "eu-central-1");
        let both = [AnomalyKind::WentBack, AnomalyKind::WatermarkAhead];
        assert_eq!(spec.acknowledged, both);
    }
}
