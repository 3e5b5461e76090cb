//! An Experiment, as the engine and the server take it.
//!
//! Lives here: the mapping of an Experiment into the engine's table and the server's location, with every tunable filled
//! and held within limits. May use: `api`, `engine`, `plan`'s names, `table`'s location. Must never come in: a tunable read from the
//! spec itself.

use std::path::Path;

use super::secrets;
use crate::api::{Defaults, Effective, Experiment, GoDuration, Limits, Quantity, storage};
use crate::engine;
use crate::plan::{Namespace, TableId};
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
        spec: engine::TableSpec::of(
            TableId::from(name),
            Namespace::from(namespace),
            place.clone().with_options(writing),
            experiment,
            &effective,
        ),
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
