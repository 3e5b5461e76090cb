//! The CRD as a whole: complete, bounded, cheap, and the same as the committed file.

use kube::core::cel::{compile_schema, estimate_rule_cost};

use super::*;

const COMMITTED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/crds/freshet.dev_experiments.yaml"
);

#[test]
fn the_committed_crd_is_the_one_that_the_code_makes() {
    let made = crd_yaml();
    if std::env::var_os("FRESHET_WRITE_CRDS").is_some() {
        std::fs::write(COMMITTED, &made).unwrap();
    }
    let committed = std::fs::read_to_string(COMMITTED).unwrap();
    assert!(
        committed == made,
        "{COMMITTED} differs from the code; run `freshet crds`"
    );
}

#[test]
fn the_yaml_reads_back_as_the_crd() {
    let read: Value = serde_saphyr::from_str(&crd_yaml()).unwrap();
    assert!(read == *DOCUMENT);
    let typed: CustomResourceDefinition = serde_saphyr::from_str(&crd_yaml()).unwrap();
    assert!(typed == crd());
}

#[test]
fn the_resource_is_named_as_people_will_type_it() {
    let crd = crd();
    assert_eq!(
        crd.metadata.name.as_deref(),
        Some("experiments.freshet.dev")
    );
    assert_eq!(crd.spec.scope, "Namespaced");
    assert_eq!(crd.spec.names.short_names, Some(vec!["exp".to_owned()]));
    assert_eq!(crd.spec.names.categories, Some(vec!["freshet".to_owned()]));
    let version = &crd.spec.versions[0];
    assert_eq!(
        (version.name.as_str(), version.served, version.storage),
        ("v1alpha1", true, true)
    );
    assert!(
        version
            .subresources
            .as_ref()
            .is_some_and(|s| s.status.is_some())
    );
    let columns = version.additional_printer_columns.clone().unwrap();
    let names: Vec<_> = columns
        .iter()
        .map(|c| (c.name.as_str(), c.priority.unwrap_or(0)))
        .collect();
    assert_eq!(
        names,
        [
            ("Ready", 0),
            ("Fresh", 0),
            ("Reason", 0),
            ("Pending", 0),
            ("Oldest", 0),
            ("Last-Merge", 0),
            ("Age", 0),
            ("URI", 1),
            ("Shards", 1),
            ("Bytes", 1)
        ]
    );
}

#[test]
fn every_column_shows_a_field_that_the_schema_has() {
    let paths: Vec<_> = properties(schema())
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    for column in crd().spec.versions[0]
        .additional_printer_columns
        .clone()
        .unwrap()
    {
        let path = column
            .json_path
            .trim_start_matches('.')
            .split("[?")
            .next()
            .unwrap()
            .to_owned();
        assert!(
            path.starts_with("metadata.") || paths.contains(&path),
            "{}",
            column.json_path
        );
    }
}

#[test]
fn every_field_is_described_and_bounded() {
    let properties = properties(schema());
    assert!(properties.len() > 60, "{}", properties.len());
    for (path, field) in properties {
        let described = field["description"]
            .as_str()
            .is_some_and(|d| d.len() > 10 && !d.contains('\n'));
        assert!(described, "{path} has no description: {field}");
        let bounded = match field["type"].as_str() {
            Some("string") => {
                let time = field["format"] == "date-time";
                time || field["maxLength"].is_u64() || field["enum"].is_array()
            }
            Some("array") => field["maxItems"].is_u64(),
            Some("integer") => {
                ["int32", "int64"].contains(&field["format"].as_str().unwrap_or_default())
            }
            Some("object") => {
                field["properties"].is_object() && field["additionalProperties"].is_null()
            }
            Some("boolean") => true,
            other => panic!("{path} has type {other:?}"),
        };
        assert!(bounded, "{path} is not bounded: {field}");
        assert!(field.get("nullable").is_none(), "{path} is nullable");
    }
}

#[test]
fn every_pattern_compiles_and_is_anchored() {
    for (path, field) in properties(schema()) {
        if let Some(pattern) = field["pattern"].as_str() {
            assert!(regex::Regex::new(pattern).is_ok(), "{path}: {pattern}");
            assert!(
                pattern.starts_with('^') && pattern.ends_with('$'),
                "{path}: {pattern}"
            );
        }
    }
}

#[test]
fn only_suspend_and_deletion_policy_and_the_observed_generation_have_defaults() {
    let defaults: Vec<_> = properties(schema())
        .into_iter()
        .filter_map(|(path, field)| field.get("default").map(|d| (path, d.clone())))
        .collect();
    let wanted = [
        ("spec.deletionPolicy", json!("Retain")),
        ("spec.suspend", json!(false)),
        ("status", json!({"observedGeneration": -1})),
        ("status.observedGeneration", json!(-1)),
    ];
    let mut defaults: Vec<_> = defaults
        .iter()
        .map(|(p, d)| (p.as_str(), d.clone()))
        .collect();
    defaults.sort_by(|a, b| a.0.cmp(b.0));
    assert_eq!(defaults, wanted);
}

#[test]
fn only_the_uri_of_the_table_is_required_of_a_user() {
    let required: Vec<_> = properties(schema())
        .into_iter()
        .filter(|(path, field)| path.starts_with("spec") && field["required"].is_array())
        .map(|(path, field)| format!("{path}: {}", field["required"]))
        .collect();
    assert_eq!(
        required,
        [
            "spec: [\"table\"]",
            "spec.table: [\"uri\"]",
            "spec.table.readSecretRef: [\"name\"]",
            "spec.table.secretRef: [\"name\"]"
        ]
    );
}

#[test]
fn conditions_are_a_list_by_type() {
    let conditions = &schema()["properties"]["status"]["properties"]["conditions"];
    assert_eq!(conditions["x-kubernetes-list-type"], "map");
    assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
}

#[test]
fn every_rule_compiles_says_its_remedy_and_costs_little() {
    let mut rules = 0;
    for (path, field) in properties(schema()) {
        let compiled = compile_schema(field);
        assert!(
            !compiled.has_errors(),
            "{path}: {:?}",
            compiled.compilation_errors()
        );
        for rule in field["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            rules += 1;
            let text = rule["rule"].as_str().unwrap();
            let message = rule["message"].as_str().unwrap();
            assert!(
                message.contains(';') && !message.contains('\n'),
                "{path}: {message}"
            );
            assert!(message.chars().count() <= 300, "{path}: {message}");
            assert!(
                estimate_rule_cost(text, &compiled)
                    .iter()
                    .all(|w| !w.message.contains("cost")),
                "{path}: {text}"
            );
        }
    }
    assert!(rules >= 20, "{rules}");
}

#[test]
fn values_that_may_hold_a_credential_are_not_repeated_by_the_api_server() {
    for (path, field) in properties(schema()) {
        let Some(rules) = field["x-kubernetes-validations"].as_array() else {
            continue;
        };
        if ["spec.table.uri", "spec.table.storage.endpoint"].contains(&path.as_str()) {
            assert!(
                rules.iter().all(|r| r["reason"] == "FieldValueForbidden"),
                "{path}: {rules:?}"
            );
        }
    }
}

/// Every property of a schema with its path, as in `spec.table.uri`.
fn properties(schema: &Value) -> Vec<(String, &Value)> {
    fn walk<'a>(path: &str, schema: &'a Value, found: &mut Vec<(String, &'a Value)>) {
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            found.push((path.clone(), below));
            walk(&path, below, found);
            walk(&format!("{path}[]"), &below["items"], found);
        }
    }
    let mut found = Vec::new();
    walk("", schema, &mut found);
    found
}
