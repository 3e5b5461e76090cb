//! The structural half of the rules: what the schema itself says of types, bounds, patterns, and known fields.
//!
//! Says what the API server would say of the same document, with the remedy in the words of this project. It walks
//! plain JSON against the schema that `crd` made and knows no single field; the CEL half is in `validate`. As in the
//! API server, null is the same as absent.

use serde_json::{Map, Value, json};

use super::duration::{DURATION_PATTERN, DURATION_REMEDY};
use super::quantity::{QUANTITY_PATTERN, QUANTITY_REMEDY};
use super::{API_VERSION, KIND, Violation, crd};

/// The pattern of a name of a Kubernetes object.
const NAME_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The pattern of a namespace.
const NAMESPACE_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// The fields of an object's metadata that others write, and that a document may carry from a cluster.
const OTHERS_METADATA: [&str; 9] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "uid",
];

/// The schema of a whole document: the CRD's, with what the API server knows of every object. `status` is not judged:
/// it is never a user's to write.
pub(super) fn of_document() -> Value {
    let free = json!({"x-kubernetes-preserve-unknown-fields": true});
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let mut metadata: Map<String, Value> = OTHERS_METADATA
        .iter()
        .map(|name| ((*name).to_owned(), free.clone()))
        .collect();
    metadata.insert(
        "name".into(),
        json!({"type": "string", "minLength": 1, "maxLength": 253, "pattern": NAME_PATTERN}),
    );
    metadata.insert(
        "namespace".into(),
        json!({"type": "string", "minLength": 1, "maxLength": 63, "pattern": NAMESPACE_PATTERN}),
    );
    metadata.insert("labels".into(), texts.clone());
    metadata.insert("annotations".into(), texts);
    json!({
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"type": "string", "enum": [API_VERSION]},
            "kind": {"type": "string", "enum": [KIND]},
            "metadata": {"type": "object", "required": ["name"], "properties": metadata},
            "spec": crd::schema()["properties"]["spec"],
            "status": free,
        },
    })
}

/// The value without object members that are null.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .filter(|(_, v)| !v.is_null())
                .map(|(k, v)| (k, without_nulls(v)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

/// Checks `value` at `path` against `schema` and tells every violation.
pub(super) fn check(schema: &Value, value: &Value, path: &str, found: &mut Vec<Violation>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) {
        return;
    }
    let expected = schema["type"].as_str().unwrap_or_default();
    match (expected, value) {
        ("object", Value::Object(members)) => check_object(schema, members, path, found),
        ("array", Value::Array(items)) => check_array(schema, items, path, found),
        ("string", Value::String(text)) => check_string(schema, text, path, found),
        ("integer", Value::Number(number)) if number.is_i64() || number.is_u64() => {
            check_integer(schema, number, path, found);
        }
        ("boolean", Value::Bool(_)) => {}
        _ => found.push(Violation::new(path, wrong_type(schema, expected, value))),
    }
}

fn wrong_type(schema: &Value, expected: &str, value: &Value) -> String {
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(n) if n.is_f64() => "a number with a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    };
    let (should, remedy) = match expected {
        "string" if value.is_number() || value.is_boolean() => {
            ("a string", "put it in quotes".to_owned())
        }
        "string" => (
            "a string",
            remedy_of_pattern(schema)
                .unwrap_or("write one value")
                .to_owned(),
        ),
        "integer" => (
            "a whole number",
            "write it in digits, without quotes, unit or fraction".to_owned(),
        ),
        "boolean" => (
            "true or false",
            "write one of the two, without quotes".to_owned(),
        ),
        "array" => ("a list", "write each item behind a dash".to_owned()),
        _ => (
            "a map",
            format!("write its fields below it: {}", names(schema)),
        ),
    };
    format!("must be {should}, but is {is}; {remedy}")
}

fn names(schema: &Value) -> String {
    let names = schema["properties"]
        .as_object()
        .map(|p| p.keys().map(String::as_str).collect::<Vec<_>>());
    names.unwrap_or_default().join(", ")
}

fn check_object(
    schema: &Value,
    members: &Map<String, Value>,
    path: &str,
    found: &mut Vec<Violation>,
) {
    let properties = schema["properties"].as_object();
    for required in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if !members.contains_key(required) {
            let remedy = if required == "uri" {
                "write the table's URI, as in s3://bucket/path"
            } else {
                "add it"
            };
            found.push(Violation::new(
                join(path, required),
                format!("is missing; {remedy}"),
            ));
        }
    }
    for (name, value) in members {
        let path = join(path, name);
        match (
            properties.and_then(|p| p.get(name)),
            &schema["additionalProperties"],
        ) {
            (Some(schema), _) => check(schema, value, &path, found),
            (None, additional @ Value::Object(_)) => check(additional, value, &path, found),
            (None, _) => found.push(Violation::new(path, unknown_field(schema, name))),
        }
    }
}

fn unknown_field(schema: &Value, name: &str) -> String {
    let known = schema["properties"]
        .as_object()
        .map(|p| p.keys().collect::<Vec<_>>())
        .unwrap_or_default();
    match known.iter().find(|k| nearly(k, name)) {
        Some(meant) => format!("is not a field here; write {meant}"),
        None => format!(
            "is not a field here; remove it, or use one of {}",
            names(schema)
        ),
    }
}

/// Whether two names differ by no more than case, separators, or one letter.
fn nearly(known: &str, name: &str) -> bool {
    if name.len() > 64 {
        return false;
    }
    let plain = |s: &str| -> Vec<char> {
        s.to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric())
            .collect()
    };
    let (one, other) = (plain(known), plain(name));
    let same_start = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let same_end = one[same_start..]
        .iter()
        .rev()
        .zip(other[same_start..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    one.len().max(other.len()) - same_start - same_end <= 1
}

fn check_array(schema: &Value, items: &[Value], path: &str, found: &mut Vec<Violation>) {
    if let Some(most) = schema["maxItems"].as_u64()
        && items.len() as u64 > most
    {
        found.push(Violation::new(
            path,
            format!(
                "has {} items; at most {most} are allowed, remove some",
                items.len()
            ),
        ));
        return;
    }
    for (index, item) in items.iter().enumerate() {
        check(&schema["items"], item, &format!("{path}[{index}]"), found);
    }
}

fn check_string(schema: &Value, text: &str, path: &str, found: &mut Vec<Violation>) {
    let length = text.chars().count() as u64;
    if let Some(most) = schema["maxLength"].as_u64()
        && length > most
    {
        found.push(Violation::new(
            path,
            format!("is {length} characters long; shorten it to at most {most}"),
        ));
        return;
    }
    let allowed: Vec<&str> = schema["enum"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !allowed.is_empty() && !allowed.contains(&text) {
        let what = if allowed.len() == 1 {
            "must be"
        } else {
            "must be one of"
        };
        found.push(Violation::new(
            path,
            format!("{what} {}; write it exactly so", allowed.join(", ")),
        ));
        return;
    }
    let short = schema["minLength"]
        .as_u64()
        .is_some_and(|least| length < least);
    let pattern = schema["pattern"].as_str();
    if short || pattern.is_some_and(|p| !matches(p, text)) {
        let empty = if text.is_empty() {
            "is empty"
        } else {
            "is not written as it must be"
        };
        let remedy = remedy_of_pattern(schema).map_or_else(
            || match pattern {
                Some(pattern) => format!("write it so that it matches {pattern}"),
                None => "write a value, or leave the field out".to_owned(),
            },
            str::to_owned,
        );
        found.push(Violation::new(path, format!("{empty}; {remedy}")));
    }
}

fn remedy_of_pattern(schema: &Value) -> Option<&'static str> {
    match schema["pattern"].as_str()? {
        DURATION_PATTERN => Some(DURATION_REMEDY),
        QUANTITY_PATTERN => Some(QUANTITY_REMEDY),
        NAME_PATTERN => Some(
            "use lower-case letters, digits, - and ., and begin and end with a letter or digit",
        ),
        NAMESPACE_PATTERN => {
            Some("use lower-case letters, digits and -, and begin and end with a letter or digit")
        }
        _ => None,
    }
}

/// Patterns come from the schema alone, so one that does not compile is ours to see, in the tests over every pattern.
fn matches(pattern: &str, text: &str) -> bool {
    regex::Regex::new(pattern).is_ok_and(|p| p.is_match(text))
}

fn check_integer(
    schema: &Value,
    number: &serde_json::Number,
    path: &str,
    found: &mut Vec<Violation>,
) {
    let value = number
        .as_i64()
        .map_or_else(|| number.as_u64().map_or(0, i128::from), i128::from);
    let bound = |name: &str| schema[name].as_i64().map(i128::from);
    let default = "or leave it out to use the operator's default";
    if let Some(least) = bound("minimum")
        && value < least
    {
        found.push(Violation::new(
            path,
            format!("is {value}; write at least {least}, {default}"),
        ));
    }
    if let Some(most) = bound("maximum")
        && value > most
    {
        found.push(Violation::new(
            path,
            format!("is {value}; write at most {most}, {default}"),
        ));
    }
}

/// `name` below `path`.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}
