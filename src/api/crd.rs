//! The CustomResourceDefinition, made from the types.
//!
//! kube derives it; here it is brought into the form that the API conventions ask for: nothing is nullable, numbers
//! have formats that Kubernetes knows, conditions are bounded, and a new object's status says that nobody has looked
//! at it. The file under `crds/` is this, written out; a test fails where the two differ.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::Experiment;
use super::status::NEVER_OBSERVED;

/// The file's first lines.
const HEADER: &str = "# Generated from the code by `freshet crds`; do not edit.\n";

/// The largest size that the schema of a Kubernetes condition allows, by field.
const CONDITION_BOUNDS: [(&str, u32); 3] = [("type", 316), ("reason", 1024), ("message", 32768)];

static DOCUMENT: LazyLock<Value> = LazyLock::new(document);

/// The CustomResourceDefinition as YAML, as the file under `crds/` holds it.
pub fn crd_yaml() -> String {
    // A JSON value of a schema always has a YAML form; were that untrue, the test over the committed file would see it.
    let yaml = serde_saphyr::to_string(&*DOCUMENT).unwrap_or_default();
    format!("{HEADER}{yaml}")
}

/// The CustomResourceDefinition, as it is to be applied to a cluster.
///
/// Prefer it to `Experiment::crd()`, which lacks the touches of this module.
pub fn crd() -> CustomResourceDefinition {
    // It was made from this very type, so it reads back; the fallback is that type, untouched.
    serde_json::from_value(DOCUMENT.clone()).unwrap_or_else(|_| Experiment::crd())
}

/// The schema of an Experiment document, `spec` and `status` below its properties.
pub(super) fn schema() -> &'static Value {
    &DOCUMENT["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

fn document() -> Value {
    let mut document = serde_json::to_value(Experiment::crd()).unwrap_or_default();
    let schema = &mut document["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    conventional(schema);
    let status = &mut schema["properties"]["status"];
    status["description"] = json!("What Freshet last saw and did.");
    status["default"] = json!({ "observedGeneration": NEVER_OBSERVED });
    let condition = &mut status["properties"]["conditions"]["items"]["properties"];
    for (field, length) in CONDITION_BOUNDS {
        condition[field]["maxLength"] = json!(length);
    }
    condition["status"]["enum"] = json!(["True", "False", "Unknown"]);
    schema["properties"]["spec"]["description"] =
        json!("What the table is, how fresh it shall be, and what may be done to it.");
    document
}

/// Walks a schema: drops `nullable` (null is the same as absent) and `title`, puts descriptions on one line, and turns
/// Rust's number formats into Kubernetes's.
fn conventional(schema: &mut Value) {
    let Some(node) = schema.as_object_mut() else {
        return;
    };
    node.remove("nullable");
    node.remove("title");
    if let Some(Value::String(text)) = node.get_mut("description") {
        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    if let Some(format) = node.get("format").and_then(Value::as_str)
        && format.starts_with("uint")
    {
        node.insert("format".into(), json!("int64"));
        node.entry("minimum").or_insert(json!(0));
    }
    for whole in ["minimum", "maximum"] {
        if let Some(number) = node.get(whole).and_then(Value::as_f64)
            && number.fract() == 0.0
        {
            node.insert(whole.into(), json!(number as i64));
        }
    }
    if let Some(properties) = node.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(conventional);
    }
    for below in ["items", "additionalProperties"] {
        if let Some(below) = node.get_mut(below) {
            conventional(below);
        }
    }
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
