//! Whether the cluster serves the Experiment as this binary knows it.
//!
//! Lives here: comparing the OpenAPI document that the API server serves with the schema made from the code. May use:
//! `api`, plain JSON. Must never come in: the CustomResourceDefinition object, which needs rights on the whole cluster
//! and may be stored before it is served. A field that is not served is dropped by the API server without a word.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::api::crd::crd;

/// Where the API server tells the schema of the Experiment's group and version; whoever is authenticated may read it.
pub const OPENAPI: &str = "/openapi/v3/apis/freshet.dev/v1alpha1";

/// The most missing fields that are named.
const NAMED: usize = 8;

/// Why the binary cannot work with what is served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// The API server does not know the kind.
    #[error(
        "the cluster does not serve experiments.freshet.dev/v1alpha1; install the CustomResourceDefinition: `freshet crds --stdout | kubectl apply --server-side -f -`, or install the chart with crds.enabled=true"
    )]
    Absent,
    /// It knows an older form of it.
    #[error(
        "the cluster's CustomResourceDefinition experiments.freshet.dev lacks {}; the API server would drop what is written there. Apply this version's: `freshet crds --stdout | kubectl apply --server-side -f -`, or upgrade the chart with crds.enabled=true",
        listed(.0)
    )]
    Lacks(Vec<String>),
}

impl Unserved {
    /// The kind's name.
    pub fn reason(&self) -> &'static str {
        match self {
            Unserved::Absent => "CrdMissing",
            Unserved::Lacks(_) => "CrdTooOld",
        }
    }
}

fn listed(fields: &[String]) -> String {
    let mut said = fields[..fields.len().min(NAMED)].join(", ");
    if fields.len() > NAMED {
        said.push_str(&format!(" and {} more fields", fields.len() - NAMED));
    }
    said
}

/// Judges the document served at [`OPENAPI`]; `None` where there is none.
///
/// # Errors
/// `Absent` where it has no Experiment, `Lacks` with the paths of all fields that it does not have.
pub fn check(document: Option<&Value>) -> Result<(), Unserved> {
    let served = document
        .and_then(|d| d["components"]["schemas"].as_object())
        .and_then(|schemas| schemas.values().find(|s| is_experiment(s)))
        .ok_or(Unserved::Absent)?;
    let wanted = wanted(&crd());
    let mut missing = Vec::new();
    for part in ["spec", "status"] {
        lacks(
            &wanted["properties"][part],
            &served["properties"][part],
            part,
            &mut missing,
        );
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Unserved::Lacks(missing)),
    }
}

fn is_experiment(schema: &Value) -> bool {
    let kinds = schema["x-kubernetes-group-version-kind"].as_array();
    kinds.is_some_and(|kinds| {
        kinds.iter().any(|k| {
            k["group"] == "freshet.dev" && k["version"] == "v1alpha1" && k["kind"] == "Experiment"
        })
    })
}

/// The schema that this binary was built with.
fn wanted(crd: &CustomResourceDefinition) -> Value {
    let schema = crd.spec.versions.first().and_then(|v| v.schema.as_ref());
    let schema = schema.and_then(|s| s.open_api_v3_schema.as_ref());
    // A schema is plain data and has a JSON form.
    schema.map_or(Value::Null, |s| serde_json::to_value(s).unwrap_or_default())
}

/// Collects the paths that `wanted` has and `served` has not. Where unknown fields are kept, nothing is missing.
fn lacks(wanted: &Value, served: &Value, path: &str, missing: &mut Vec<String>) {
    if !served.is_object() {
        missing.push(path.to_string());
        return;
    }
    if served["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    if let Some(properties) = wanted["properties"].as_object() {
        for (name, below) in properties {
            let path = format!("{path}.{name}");
            lacks(below, &served["properties"][name], &path, missing);
        }
    }
    for (inner, mark) in [("items", "[]"), ("additionalProperties", ".*")] {
        if wanted[inner].is_object() {
            let path = format!("{path}{mark}");
            lacks(&wanted[inner], &served[inner], &path, missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The document of an API server that has this binary's definition.
    fn document() -> Value {
        let mut schema = wanted(&crd());
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": "freshet.dev", "version": "v1alpha1", "kind": "Experiment"}]);
        let list = json!({"x-kubernetes-group-version-kind":
            [{"group": "freshet.dev", "version": "v1alpha1", "kind": "ExperimentList"}]});
        json!({"components": {"schemas": {
            "dev.freshet.v1alpha1.Experiment": schema,
            "dev.freshet.v1alpha1.ExperimentList": list,
        }}})
    }

    fn schema(document: &mut Value) -> &mut Value {
        &mut document["components"]["schemas"]["dev.freshet.v1alpha1.Experiment"]
    }

    #[test]
    fn what_the_binary_knows_is_enough() {
        assert_eq!(check(Some(&document())), Ok(()));
    }

    #[test]
    fn a_newer_definition_with_more_fields_is_enough() {
        let mut newer = document();
        schema(&mut newer)["properties"]["status"]["properties"]["later"] =
            json!({"type": "string"});
        assert_eq!(check(Some(&newer)), Ok(()));
    }

    #[test]
    fn no_definition_is_told_with_its_remedy() {
        assert_eq!(check(None), Err(Unserved::Absent));
        let e = check(Some(&json!({"components": {"schemas": {}}}))).unwrap_err();
        assert_eq!(e.reason(), "CrdMissing");
        assert!(e.to_string().contains("freshet crds --stdout"), "{e}");
    }

    #[test]
    fn every_missing_field_is_named_by_its_path() {
        let mut older = document();
        let status = &mut schema(&mut older)["properties"]["status"]["properties"];
        let status = status.as_object_mut().unwrap();
        status.remove("lastMerge");
        let listed = status.get_mut("quarantined").unwrap();
        let listed = listed["items"]["properties"].as_object_mut().unwrap();
        listed.remove("since");
        let spec = &mut schema(&mut older)["properties"]["spec"]["properties"];
        spec.as_object_mut().unwrap().remove("suspend");
        let Err(Unserved::Lacks(mut missing)) = check(Some(&older)) else {
            panic!("it lacks three")
        };
        missing.sort();
        assert_eq!(
            missing,
            [
                "spec.suspend",
                "status.lastMerge",
                "status.quarantined[].since"
            ]
        );
        let said = check(Some(&older)).unwrap_err().to_string();
        assert!(
            said.contains("lacks spec.suspend, status.lastMerge"),
            "{said}"
        );
    }

    #[test]
    fn a_definition_that_lacks_much_is_told_shortly() {
        let mut older = document();
        schema(&mut older)["properties"]["status"]["properties"] = json!({});
        let e = check(Some(&older)).unwrap_err();
        assert!(e.to_string().contains("more fields"), "{e}");
        assert!(e.to_string().len() < 600);
    }

    #[test]
    fn fields_are_not_missed_where_all_are_kept() {
        let mut loose = document();
        schema(&mut loose)["properties"]["status"] =
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        assert_eq!(check(Some(&loose)), Ok(()));
    }
}
