//! An Experiment, as the engine takes it.
//!
//! Lives here: the mapping of an Experiment with its credentials into the engine's table. Pure. May use: `api`, `engine`,
//! `plan`'s names, `table`'s location. Must never come in: a tunable, or a verdict on whether the table may be touched
//! (`access`).

use std::collections::BTreeMap;

use crate::api::{Effective, Experiment, storage};
use crate::engine;
use crate::plan::{Namespace, TableId};
use crate::table::Location;

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
    let namespace = Namespace::from(namespace.unwrap_or_default());
    engine::TableSpec::of(id.clone(), namespace, location, experiment, effective)
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
        let effective =
            Effective::resolve(&experiment.spec, &Defaults::default(), &Limits::default());
        let keys = BTreeMap::from([("aws_access_key_id".to_owned(), "who".to_owned())]);
        let spec = table(&id("alder", "maze"), &experiment, &effective, keys);
        assert_eq!(&*spec.id.0, "alder/maze");
        assert_eq!(spec.id.name(), "maze");
        assert!(spec.suspended && spec.location.brings_credentials());
        assert_eq!(spec.location.options["aws_region"], "eu-central-1");
    }
}
