//! An Experiment, as the engine and the server take it.
//!
//! Lives here: the mapping of an Experiment into the engine's table and the server's location, with every tunable filled
//! and held within limits. May use: `api`, `plan`'s policy, `table`'s location. Must never come in: a tunable read from the
//! spec itself.

use std::path::Path;

use super::secrets;
use crate::api::{Defaults, Effective, Experiment, GoDuration, Limits, Quantity, storage};
use crate::engine;
use crate::plan::{Compaction, Namespace, Policy, TableId};
use crate::table::Location;

/// One experiment, ready to be worked on and served.
#[derive(Debug, Clone, PartialEq)]
pub struct Ready {
    /// For the engine.
    pub spec: engine::TableSpec,
    /// For readers.
    pub read: Location,
}

/// Maps an Experiment.
///
/// # Errors
/// What is missing of its credentials.
pub fn ready(
    experiment: &Experiment,
    defaults: &Defaults,
    secrets_dir: Option<&Path>,
) -> Result<Ready, String> {
    let table = &experiment.spec.table;
    let name = experiment.metadata.name.as_deref().unwrap_or_default();
    let namespace = experiment
        .metadata
        .namespace
        .as_deref()
        .unwrap_or("default");
    let writing = secrets::credentials(secrets_dir, table, table.secret_ref.as_ref())?;
    let reading = match &table.read_secret_ref {
        Some(named) => secrets::credentials(secrets_dir, table, Some(named))?,
        None => writing.clone(),
    };
    let place = Location::new(table.uri.clone()).with_options(storage::options(table));
    let effective = Effective::resolve(&experiment.spec, defaults, &limits());
    for moved in &effective.clamped {
        tracing::warn!(
            experiment = name,
            field = moved.field,
            asked = moved.asked,
            used = moved.used,
            "{}",
            moved.why
        );
    }
    Ok(Ready {
        spec: engine::TableSpec {
            id: TableId::from(name),
            namespace: Namespace::from(namespace),
            location: place.clone().with_options(writing),
            policy: policy(&effective),
            suspended: experiment.spec.suspend,
            acknowledged: vec![],
        },
        read: place.with_options(reading),
    })
}

/// One person's own machine: what is asked for is what is done, as far as it is safe.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.target.min = GoDuration::from_millis(100);
    limits.merge_at_generations.max = u32::MAX;
    limits.merge_at_bytes.min = Quantity::from_bytes(1);
    limits.merge_at_bytes.max = Quantity::MAX;
    limits.max_generations_per_merge.max = u32::MAX;
    limits.max_bytes_per_merge.min = Quantity::from_bytes(1);
    limits
}

fn policy(e: &Effective) -> Policy {
    Policy {
        target: e.freshness.target.as_duration(),
        merge_at_generations: e.freshness.merge_at.generations.into(),
        merge_at_bytes: e.freshness.merge_at.bytes.bytes(),
        max_generations_per_merge: e.merge.max_generations_per_merge.into(),
        max_bytes_per_merge: e.merge.max_bytes_per_merge.bytes(),
        compaction: Compaction {
            enabled: e.compaction.enabled,
            min_fragments: e.compaction.min_fragments.into(),
            target_rows_per_fragment: e.compaction.target_rows_per_fragment.into(),
        },
        optimize_indexes: e.indexes.optimize,
        drain_delay: e.retention.drain_delay.as_duration(),
        grace: e.retention.merged_generation_grace_period.as_duration(),
        versions_older_than: e.retention.versions.older_than.as_duration(),
        versions_keep_at_least: e.retention.versions.keep_at_least.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ExperimentSpec, FreshnessSpec, TableSpec};

    #[test]
    fn what_a_spec_leaves_out_is_filled_and_what_it_asks_for_is_in_force() {
        let spec = ExperimentSpec {
            table: TableSpec {
                uri: "/data/maze.lance".into(),
                ..Default::default()
            },
            freshness: Some(FreshnessSpec {
                target: Some(GoDuration::from_secs(2)),
                merge_at: None,
            }),
            ..Default::default()
        };
        let experiment = Experiment::new("maze", spec);
        let ready = ready(&experiment, &Defaults::default(), None).unwrap();
        assert_eq!(ready.spec.policy.target.as_secs(), 2);
        assert_eq!(ready.spec.policy.max_generations_per_merge, 64);
        assert_eq!(ready.spec.location, ready.read);
        assert_eq!(&*ready.spec.id.0, "maze");
    }
}
