//! `crds/` on a real API server: accepted, explained, and as strict as the library says.
//!
//! Lives here: specs that keep and break the rules, judged by the API server beside the library. May use: the harness,
//! `freshet::api`. Never: the operator.

use freshet::api::{Mode, validate_document};
use serde_json::{Value, json};

use crate::harness::Cluster;

/// The shared cluster with the resource, and a namespace of the test's own.
fn cluster(namespace: &str) -> &'static Cluster {
    static APPLIED: std::sync::Once = std::sync::Once::new();
    let cluster = Cluster::shared();
    APPLIED.call_once(|| cluster.apply_crds());
    cluster.namespace(namespace);
    cluster
}

/// A document whose spec is the smallest valid one with `patch` merged over it.
fn experiment(namespace: &str, name: &str, patch: &Value) -> Value {
    let mut document = json!({
        "apiVersion": "freshet.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"table": {"uri": "s3://orchard/plots/plums"}},
    });
    merge(&mut document["spec"], patch);
    document
}

fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

fn table(uri: &str) -> Value {
    json!({"table": {"uri": uri}})
}

fn with_storage(uri: &str, storage: Value) -> Value {
    json!({"table": {"uri": uri, "storage": storage}})
}

/// Specs that keep every rule.
fn kept() -> Vec<Value> {
    vec![
        json!({}),
        table("gs://bucket_1.example/a/b c/ü/テーブル"),
        table("s3://orchard"),
        table("s3://orchard/a@b:c/...d/.e"),
        with_storage("az://cellar/p", json!({"account": "acct"})),
        table("abfss://cellar@acct.dfs.core.windows.net/p"),
        with_storage(
            "s3://orchard/p",
            json!({"endpoint": "https://shelf.store:9000", "region": "eu-west-1"}),
        ),
        with_storage(
            "s3://orchard/p",
            json!({"endpoint": "http://[::1]:9000", "allowHTTP": true}),
        ),
        json!({"table": {"secretRef": {"name": "store.keys-1"}, "readSecretRef": {"name": "r"}}}),
        json!({"freshness": {"target": "1ms", "mergeAt": {"generations": 1, "bytes": "1"}}}),
        json!({"merge": {"maxGenerationsPerMerge": 100_000, "maxBytesPerMerge": "99999Ti"}}),
        json!({"compaction": {"enabled": false, "minFragments": 2, "targetRowsPerFragment": 1}}),
        json!({"retention": {"drainDelay": "1m", "mergedGenerationGracePeriod": "10m",
            "versions": {"olderThan": "40m1s", "keepAtLeast": 3}}}),
        json!({"suspend": true, "deletionPolicy": "MergePending", "deletion": {"timeout": "1h"}}),
    ]
}

/// What breaks a rule: the spec's patch, the field that the answer names, and words of the remedy in it.
fn broken() -> Vec<(Value, &'static str, &'static str)> {
    let (uri, storage) = ("spec.table.uri", "spec.table.storage");
    let long = table(&format!("s3://orchard/{}", "x".repeat(1024)));
    vec![
        (table("http://orchard/p"), uri, "must begin with s3://"),
        (table("s3://orchard/p?x=1"), uri, "no query"),
        (table("s3://key:word@orchard/p"), uri, "Secret"),
        (table("s3://b/p"), uri, "name a bucket"),
        (table("abfss://cellar/p"), uri, "abfss://container@account"),
        (table("s3://orchard/p/"), uri, "trailing slash"),
        (table("s3://orchard/a/../p"), uri, "segment"),
        (table("s3://orchard/%2e%2e/p"), uri, "percent"),
        (table("s3://orchard/a\\b"), uri, "backslash"),
        (table("s3://orchard/a\nb"), uri, "control character"),
        (long, uri, "1024"),
        (json!({"table": {"uri": null}}), uri, "Required value"),
        (table("az://cellar/p"), uri, "set table.storage.account"),
        (
            with_storage("s3://orchard/p", json!({"account": "acct"})),
            "spec.table.storage.account",
            "remove it",
        ),
        (
            with_storage("gs://orchard/p", json!({"region": "eu"})),
            storage,
            "remove them",
        ),
        (
            with_storage("s3://orchard/p", json!({"endpoint": "http://shelf"})),
            "spec.table.storage.endpoint",
            "allowHTTP: true",
        ),
        (
            json!({"table": {"secretRef": {"name": "Bad_Name"}}}),
            "spec.table.secretRef.name",
            "should match '^[a-z0-9]",
        ),
        (
            json!({"freshness": {"target": "0s"}}),
            "spec.freshness.target",
            "longer than 0s",
        ),
        (
            json!({"freshness": {"target": 60}}),
            "spec.freshness.target",
            "must be of type string",
        ),
        (
            json!({"freshness": {"mergeAt": {"generations": 0}}}),
            "spec.freshness.mergeAt.generations",
            "greater than or equal to 1",
        ),
        (
            json!({"freshness": {"mergeAt": {"bytes": "0Gi"}}}),
            "spec.freshness.mergeAt.bytes",
            "more than 0",
        ),
        (
            json!({"compaction": {"minFragments": 1}}),
            "spec.compaction.minFragments",
            "greater than or equal to 2",
        ),
        (
            json!({"retention": {"mergedGenerationGracePeriod": "2h", "versions": {"olderThan": "2h"}}}),
            "spec.retention.versions.olderThan",
            "lower the grace period",
        ),
        (
            json!({"deletionPolicy": "Delete"}),
            "spec.deletionPolicy",
            "\"Retain\", \"MergePending\"",
        ),
        (
            json!({"freshness": {"tarket": "60s"}}),
            "spec.freshness.tarket",
            "unknown field",
        ),
    ]
}

#[test]
fn specs_that_keep_every_rule_are_accepted_and_stored_as_they_are() {
    let cluster = cluster("kept");
    for (at, patch) in kept().iter().enumerate() {
        let document = experiment("kept", &format!("row-{at}"), patch);
        assert_eq!(
            validate_document(document.clone(), Mode::Cluster).err(),
            None
        );
        cluster.apply(&document);
        let stored = cluster.get("kept", &format!("experiment/row-{at}"));
        let mut whole = stored["spec"].clone();
        merge(&mut whole, &document["spec"]);
        assert_eq!(
            whole, stored["spec"],
            "the API server kept less than it was given"
        );
    }
}

#[test]
fn each_broken_rule_is_refused_with_its_field_and_the_remedy_by_server_and_library_alike() {
    let cluster = cluster("broken");
    let mut wrong = Vec::new();
    for (patch, field, remedy) in broken() {
        let document = experiment("broken", "plums", &patch);
        let here = validate_document(document.clone(), Mode::Cluster).unwrap_err();
        let answer = cluster.kubectl_in(&document, &["create", "-f", "-"]);
        let words = String::from_utf8_lossy(&answer.stderr).into_owned();
        let refused = !answer.status.success() && words.contains(field) && words.contains(remedy);
        if !refused || here.iter().all(|v| v.field != field) {
            wrong.push(format!("{field}, {remedy}: {words}{here:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let none = cluster.kubectl_ok(&["get", "experiments", "-n", "broken", "-o", "name"]);
    assert_eq!(none, "");
}

#[test]
fn an_experiment_stays_with_its_table_and_all_else_may_change() {
    let cluster = cluster("moves");
    let azure = with_storage("az://cellar/p", json!({"account": "acct"}));
    cluster.apply(&experiment("moves", "plums", &azure));
    let moves = |patch: Value| {
        let document = experiment("moves", "plums", &patch);
        cluster.kubectl_in(&document, &["replace", "-f", "-"])
    };
    for other in [
        with_storage("az://cellar/q", json!({"account": "acct"})),
        with_storage("az://cellar/p", json!({"account": "other"})),
        with_storage(
            "az://cellar/p",
            json!({"account": "acct", "endpoint": "https://shelf"}),
        ),
        table("s3://orchard/p"),
    ] {
        let answer = moves(other);
        let words = String::from_utf8_lossy(&answer.stderr).into_owned();
        assert!(!answer.status.success());
        assert!(
            words.contains("spec.table") && words.contains("create a new Experiment"),
            "{words}"
        );
    }
    for same in [
        table("abfss://cellar@acct.dfs.core.windows.net/p"),
        json!({"freshness": {"target": "90s"}, "table": azure["table"]}),
        json!({"suspend": true, "table": azure["table"]}),
    ] {
        let answer = moves(same);
        assert!(answer.status.success(), "{answer:?}");
    }
}

#[test]
fn what_a_user_leaves_out_is_the_default_and_an_unseen_object_says_so() {
    let cluster = cluster("defaults");
    cluster.apply(&experiment("defaults", "plums", &json!({})));
    let stored = cluster.get("defaults", "experiment/plums");
    let spec = json!({
        "table": {"uri": "s3://orchard/plots/plums"},
        "suspend": false,
        "deletionPolicy": "Retain",
    });
    assert_eq!(stored["spec"], spec);
    assert_eq!(stored["status"], json!({"observedGeneration": -1}));

    // A spec's writer does not reach the status, nor a status' writer the spec; only the spec counts generations.
    let mut forged = experiment("defaults", "plums", &json!({"suspend": true}));
    forged["status"] = json!({"observedGeneration": 7});
    cluster.apply(&forged);
    let stored = cluster.get("defaults", "experiment/plums");
    assert_eq!(stored["status"], json!({"observedGeneration": -1}));
    assert_eq!(stored["metadata"]["generation"], 2);
}

#[test]
fn the_table_of_kubectl_shows_the_conditions_by_every_name_of_the_resource() {
    let cluster = cluster("columns");
    cluster.apply(&experiment("columns", "plums", &json!({})));
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": "-",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1})
    };
    let status = json!({"status": {
        "observedGeneration": 1,
        "conditions": [condition("Ready", "True", "Watching"), condition("Fresh", "False", "Queued")],
        "backlog": {"pendingGenerations": 41, "pendingRows": 8, "pendingBytes": 43, "shards": 42,
            "oldestPendingTime": "2026-01-01T00:00:00Z", "observedTime": "2026-01-01T00:00:00Z"},
    }});
    let patch = status.to_string();
    cluster.kubectl_ok(&[
        "patch",
        "experiment",
        "plums",
        "-n",
        "columns",
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ]);
    let shown = |name: &str, how: &str| {
        let text = cluster.kubectl_ok(&["get", name, "-n", "columns", "-o", how]);
        let lines: Vec<Vec<String>> = text
            .lines()
            .map(|l| l.split_whitespace().map(str::to_owned).collect())
            .collect();
        assert_eq!(lines.len(), 2, "{text}");
        (lines[0].join(" "), lines[1].clone())
    };
    let (head, row) = shown("experiments", "wide");
    assert_eq!(
        head,
        "NAME READY FRESH REASON PENDING OLDEST LAST-MERGE AGE URI SHARDS BYTES"
    );
    assert_eq!(
        row[..5],
        ["plums", "True", "False", "Queued", "41"],
        "{row:?}"
    );
    let end = ["s3://orchard/plots/plums", "42", "43"];
    assert_eq!(row[row.len() - 3..], end, "{row:?}");
    for name in ["exp", "experiment", "experiments.freshet.dev", "freshet"] {
        let args = ["get", name, "-n", "columns", "-o", "name"];
        assert_eq!(
            cluster.kubectl_ok(&args),
            "experiment.freshet.dev/plums\n",
            "{name}"
        );
    }
    let all = cluster.kubectl_ok(&["get", "all", "-n", "columns", "-o", "name"]);
    assert!(!all.contains("plums"), "{all}");
}

#[test]
fn kubectl_explain_has_words_for_every_field() {
    let cluster = cluster("explain");
    let served = cluster.kubectl_ok(&["get", "--raw", "/openapi/v3/apis/freshet.dev/v1alpha1"]);
    let served: Value = serde_json::from_str(&served).unwrap();
    let schema = &served["components"]["schemas"]["dev.freshet.v1alpha1.Experiment"];
    let mut objects = Vec::new();
    let mut fields = 0;
    for part in ["spec", "status"] {
        walk(
            &schema["properties"][part],
            &format!("experiment.{part}"),
            &mut objects,
            &mut fields,
        );
    }
    assert!(fields > 60, "only {fields} fields were found");
    for object in objects {
        let words = cluster.kubectl_ok(&["explain", &object]);
        assert!(words.contains("FIELDS:"), "{object}: {words}");
        assert!(!words.contains("<no description>"), "{object}: {words}");
    }
    let tree = cluster.kubectl_ok(&["explain", "experiment", "--recursive"]);
    for word in [
        "mergedGenerationGracePeriod",
        "oldestPendingTime",
        "readSecretRef",
    ] {
        assert!(tree.contains(word), "{word}: {tree}");
    }
}

/// Every object below a schema by its path; each field on the way has to have a description.
fn walk(schema: &Value, path: &str, objects: &mut Vec<String>, fields: &mut usize) {
    let words = schema["description"].as_str().unwrap_or_default();
    assert!(words.len() > 10, "{path} is not described: {words:?}");
    *fields += 1;
    let inner = match schema["items"].is_object() {
        true => &schema["items"],
        false => schema,
    };
    if let Some(properties) = inner["properties"].as_object() {
        objects.push(path.to_owned());
        for (name, schema) in properties {
            walk(schema, &format!("{path}.{name}"), objects, fields);
        }
    }
}
