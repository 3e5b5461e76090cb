//! Each rule with a spec that keeps it and specs that break it.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A document whose spec is the smallest valid one with `patch` merged over it.
fn document(patch: Value) -> Value {
    let mut document = json!({
        "apiVersion": "freshet.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": "rollouts"},
        "spec": {"table": {"uri": "s3://bkt/tables/rollouts"}},
    });
    merge(&mut document["spec"], patch);
    document
}

fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}

fn table(uri: &str) -> Value {
    json!({"table": {"uri": uri}})
}

fn with_storage(uri: &str, storage: Value) -> Value {
    json!({"table": {"uri": uri, "storage": storage}})
}

fn verdict(document: &Value, mode: Mode) -> Vec<Violation> {
    validate_document(document.clone(), mode)
        .err()
        .unwrap_or_default()
}

fn experiment(patch: Value) -> Experiment {
    serde_json::from_value(document(patch)).unwrap()
}

/// Specs that keep every rule.
fn kept() -> Vec<Value> {
    vec![
        json!({}),
        table("gs://bucket_1.example/a/b c/ü/テーブル"),
        table("s3://bkt"),
        table("s3://bkt/a@b:c/...d/.e"),
        with_storage("az://cont/p", json!({"account": "acct"})),
        with_storage(
            "az://$root/p",
            json!({"account": "acct", "endpoint": "https://127.0.0.1:10000/acct"}),
        ),
        table("abfss://cont@acct.dfs.core.windows.net/p"),
        table("abfss://cont@acct.blob.core.windows.net"),
        table("abfss://0a-b@onelake.dfs.fabric.microsoft.com/p"),
        with_storage(
            "abfss://cont@acct.dfs.core.windows.net/p",
            json!({"account": "acct"}),
        ),
        with_storage(
            "s3://bkt/p",
            json!({"endpoint": "https://minio.store:9000", "region": "eu-west-1"}),
        ),
        with_storage(
            "s3://bkt/p",
            json!({"endpoint": "http://[::1]:9000", "allowHTTP": true}),
        ),
        with_storage("s3://bkt/p", json!({"virtualHostedStyle": true})),
        json!({"table": {"secretRef": {"name": "store.keys-1"}, "readSecretRef": {"name": "r"}}}),
        json!({"freshness": {"target": "1ms", "mergeAt": {"generations": 1, "bytes": "1"}}}),
        json!({"merge": {"maxGenerationsPerMerge": 100_000, "maxBytesPerMerge": "99999Ti"}}),
        json!({"compaction": {"enabled": false, "minFragments": 2, "targetRowsPerFragment": 1}}),
        json!({"indexes": {"optimize": false}}),
        json!({"retention": {"drainDelay": "1m", "mergedGenerationGracePeriod": "10m",
            "versions": {"olderThan": "40m1s", "keepAtLeast": 3}}}),
        json!({"retention": {"versions": {"olderThan": "30m0.001s"}}}),
        json!({"retention": {"mergedGenerationGracePeriod": "99999h"}}),
        json!({"suspend": true, "deletionPolicy": "MergePending", "deletion": {"timeout": "1h"}}),
        json!({"freshness": null, "merge": {"maxBytesPerMerge": null}, "suspend": null}),
    ]
}

#[test]
fn specs_that_keep_every_rule_are_accepted() {
    for patch in kept() {
        let document = document(patch);
        assert_eq!(verdict(&document, Mode::Cluster), [], "{document}");
        assert_eq!(verdict(&document, Mode::Local), [], "{document}");
    }
}

/// What breaks a rule: the spec's patch, the field that the verdict names, and words of the remedy.
fn broken() -> Vec<(Value, &'static str, &'static str)> {
    let uri = "spec.table.uri";
    let account = "spec.table.storage.account";
    let endpoint = "spec.table.storage.endpoint";
    let target = "spec.freshness.target";
    let older = "spec.retention.versions.olderThan";
    let mut cases = vec![
        (table("http://bkt/p"), uri, "must begin with s3://"),
        (table("S3://bkt/p"), uri, "must begin with s3://"),
        (table(" s3://bkt/p"), uri, "must begin with s3://"),
        (table("s3://bkt/p?x=1"), uri, "no query"),
        (table("s3://bkt/p#x"), uri, "no query"),
        (table("s3://key:secret@bkt/p"), uri, "Secret"),
        (table("s3://key@bkt/p"), uri, "Secret"),
        (table("gs://key@bkt"), uri, "Secret"),
        (
            table("abfss://cont:secret@acct.dfs.core.windows.net/p"),
            uri,
            "Secret",
        ),
        (
            table("abfss://key@cont@acct.dfs.core.windows.net/p"),
            uri,
            "Secret",
        ),
        (table("s3://"), uri, "name a bucket"),
        (table("s3:///p"), uri, "name a bucket"),
        (table("s3://b/p"), uri, "name a bucket"),
        (table("s3://bkt:9000/p"), uri, "name a bucket"),
        (table("s3://-bkt/p"), uri, "name a bucket"),
        (table("s3://bück/p"), uri, "name a bucket"),
        (table("abfss://cont/p"), uri, "abfss://container@account"),
        (
            table("abfss://cont@acct.dfs.example.com/p"),
            uri,
            "abfss://container@account",
        ),
        (
            table("abfss://cont@acct.dfs.core.windows.net.example.com/p"),
            uri,
            "abfss://container@account",
        ),
        (table("s3://bkt/p/"), uri, "trailing slash"),
        (table("s3://bkt/"), uri, "trailing slash"),
        (table("s3://bkt//p"), uri, "trailing slash"),
        (table("s3://bkt/./p"), uri, "segment"),
        (table("s3://bkt/a/../p"), uri, "segment"),
        (table("s3://bkt/a/.."), uri, "segment"),
        (table("s3://bkt/%2e%2e/p"), uri, "percent"),
        (table("s3://bkt/a\\b"), uri, "backslash"),
        (table("s3://bkt/a\tb"), uri, "control character"),
        (table("s3://bkt/a\nb"), uri, "control character"),
        (table("s3://bkt/a "), uri, "space"),
        (table(""), uri, "is empty"),
        (
            table(&format!("s3://bkt/{}", "x".repeat(1024))),
            uri,
            "at most 1024",
        ),
        (json!({"table": {"uri": null}}), uri, "is missing"),
        (json!({"table": null}), "spec.table", "is missing"),
        (table("az://cont/p"), uri, "set table.storage.account"),
        (
            with_storage("s3://bkt/p", json!({"account": "acct"})),
            account,
            "remove it",
        ),
        (
            with_storage(
                "abfss://cont@acct.dfs.core.windows.net/p",
                json!({"account": "other"}),
            ),
            account,
            "remove it",
        ),
        (
            with_storage(
                "abfss://cont@acct.dfs.core.windows.net/p",
                json!({"account": "acc"}),
            ),
            account,
            "remove it",
        ),
        (
            with_storage("az://cont/p", json!({"account": "UPPER"})),
            account,
            "matches",
        ),
        (
            with_storage(
                "abfss://cont@acct.dfs.core.windows.net/p",
                json!({"endpoint": "https://h"}),
            ),
            endpoint,
            "remove",
        ),
        (
            with_storage("gs://bkt/p", json!({"region": "eu"})),
            "spec.table.storage",
            "remove them",
        ),
        (
            with_storage("gs://bkt/p", json!({"virtualHostedStyle": false})),
            "spec.table.storage",
            "remove them",
        ),
        (
            with_storage("s3://bkt/p", json!({"region": "eu west"})),
            "spec.table.storage.region",
            "matches",
        ),
        (
            with_storage("s3://bkt/p", json!({"endpoint": "http://minio"})),
            endpoint,
            "allowHTTP: true",
        ),
        (
            with_storage(
                "s3://bkt/p",
                json!({"endpoint": "http://minio", "allowHTTP": false}),
            ),
            endpoint,
            "allowHTTP",
        ),
        (
            json!({"table": {"secretRef": {}}}),
            "spec.table.secretRef.name",
            "is missing",
        ),
        (
            json!({"table": {"secretRef": {"name": "Bad_Name"}}}),
            "spec.table.secretRef.name",
            "lower-case",
        ),
        (
            json!({"table": {"readSecretRef": {"name": ""}}}),
            "spec.table.readSecretRef.name",
            "lower-case",
        ),
        (
            json!({"freshness": {"target": "0s"}}),
            target,
            "longer than 0s",
        ),
        (
            json!({"freshness": {"target": "0h0m"}}),
            target,
            "longer than 0s",
        ),
        (json!({"freshness": {"target": "-5s"}}), target, "as in 90s"),
        (
            json!({"freshness": {"target": "5 minutes"}}),
            target,
            "as in 90s",
        ),
        (json!({"freshness": {"target": 60}}), target, "quotes"),
        (
            json!({"freshness": {"target": "1m1h"}}),
            target,
            "in this order",
        ),
        (
            json!({"freshness": "60s"}),
            "spec.freshness",
            "mergeAt, target",
        ),
        (
            json!({"freshness": {"mergeAt": {"generations": 0}}}),
            "spec.freshness.mergeAt.generations",
            "at least 1",
        ),
        (
            json!({"freshness": {"mergeAt": {"generations": -1}}}),
            "spec.freshness.mergeAt.generations",
            "at least 1",
        ),
        (
            json!({"freshness": {"mergeAt": {"generations": 1.5}}}),
            "spec.freshness.mergeAt.generations",
            "digits",
        ),
        (
            json!({"freshness": {"mergeAt": {"generations": "9"}}}),
            "spec.freshness.mergeAt.generations",
            "quotes",
        ),
        (
            json!({"freshness": {"mergeAt": {"generations": u64::MAX}}}),
            "spec.freshness.mergeAt.generations",
            "at most",
        ),
        (
            json!({"freshness": {"mergeAt": {"bytes": "0"}}}),
            "spec.freshness.mergeAt.bytes",
            "more than 0",
        ),
        (
            json!({"freshness": {"mergeAt": {"bytes": "0Gi"}}}),
            "spec.freshness.mergeAt.bytes",
            "more than 0",
        ),
        (
            json!({"freshness": {"mergeAt": {"bytes": "1.5Gi"}}}),
            "spec.freshness.mergeAt.bytes",
            "as in 256Mi",
        ),
        (
            json!({"merge": {"maxGenerationsPerMerge": 0}}),
            "spec.merge.maxGenerationsPerMerge",
            "at least 1",
        ),
        (
            json!({"merge": {"maxBytesPerMerge": "0Ki"}}),
            "spec.merge.maxBytesPerMerge",
            "more than 0",
        ),
        (
            json!({"merge": {"maxBytesPerMerge": 5}}),
            "spec.merge.maxBytesPerMerge",
            "quotes",
        ),
        (
            json!({"compaction": {"minFragments": 1}}),
            "spec.compaction.minFragments",
            "at least 2",
        ),
        (
            json!({"compaction": {"targetRowsPerFragment": 0}}),
            "spec.compaction.targetRowsPerFragment",
            "at least 1",
        ),
        (
            json!({"compaction": {"enabled": "yes"}}),
            "spec.compaction.enabled",
            "without quotes",
        ),
        (
            json!({"retention": {"drainDelay": "0s"}}),
            "spec.retention.drainDelay",
            "longer than 0s",
        ),
        (
            json!({"retention": {"mergedGenerationGracePeriod": "0s"}}),
            "spec.retention.mergedGenerationGracePeriod",
            "longer than 0s",
        ),
        (
            json!({"retention": {"versions": {"olderThan": "0s"}}}),
            older,
            "longer than 0s",
        ),
        (
            json!({"retention": {"versions": {"olderThan": "30m"}}}),
            older,
            "must exceed",
        ),
        (
            json!({"retention": {"mergedGenerationGracePeriod": "10m", "versions": {"olderThan": "40m"}}}),
            older,
            "must exceed",
        ),
        (
            json!({"retention": {"versions": {"keepAtLeast": 0}}}),
            "spec.retention.versions.keepAtLeast",
            "at least 1",
        ),
        (json!({"suspend": "true"}), "spec.suspend", "without quotes"),
        (
            json!({"deletionPolicy": "Delete"}),
            "spec.deletionPolicy",
            "Retain, MergePending",
        ),
        (
            json!({"deletion": {"timeout": "0s"}}),
            "spec.deletion.timeout",
            "longer than 0s",
        ),
        (
            json!({"freshness": {"taget": "60s"}}),
            "spec.freshness.taget",
            "write target",
        ),
        (
            json!({"table": {"storage": {"allowHttp": true}}}),
            "spec.table.storage.allowHttp",
            "write allowHTTP",
        ),
        (
            json!({"table": {"storage": {"proxy_url": "x"}}}),
            "spec.table.storage.proxy_url",
            "use one of account",
        ),
        (json!({"freshness": []}), "spec.freshness", "must be a map"),
    ];
    for bad in [
        "minio:9000",
        "ftp://minio",
        "https://",
        "https://u:p@minio",
        "https://minio/",
        "https://minio?x",
        "https://MINIO",
        "https://minio:99999999",
        "https://minio/../x?",
        "https://mi nio",
        "https://-minio",
        "https://minio#x",
    ] {
        cases.push((
            with_storage("s3://bkt/p", json!({"endpoint": bad, "allowHTTP": true})),
            endpoint,
            "without credentials",
        ));
    }
    cases
}

#[test]
fn each_broken_rule_is_refused_with_its_field_and_its_remedy_by_both_judges_alike() {
    for (patch, field, remedy) in broken() {
        let document = document(patch);
        let found = verdict(&document, Mode::Cluster);
        assert!(
            found
                .iter()
                .any(|v| v.field == field && v.message.contains(remedy)),
            "{document}: wanted {field}: …{remedy}…, found {found:#?}"
        );
        let scheme = found.iter().any(|v| v.message == rules::SCHEME.1);
        let local = verdict(&document, Mode::Local);
        let is_path = uri(&document).is_some_and(is_local);
        if !(scheme && is_path) {
            assert_eq!(local, found, "{document}");
        }
    }
}

#[test]
fn a_typed_experiment_gets_the_verdict_of_its_document() {
    for (patch, ..) in broken() {
        let document = document(patch);
        if let Ok(typed) = serde_json::from_value::<Experiment>(document.clone()) {
            let found = validate(&typed, Mode::Cluster);
            let unknown = |v: &Violation| v.message.contains("is not a field here");
            let of_document: Vec<_> = verdict(&document, Mode::Cluster)
                .into_iter()
                .filter(|v| !unknown(v))
                .collect();
            assert_eq!(found, of_document, "{document}");
        }
    }
}

#[test]
fn one_mistake_in_a_uri_gets_one_message() {
    for bad in [
        "http://bkt/p",
        "s3://k:s@bkt/p",
        "s3://bkt/p/",
        "s3://bkt/p?x",
        "s3://bkt:1/p",
        "abfss://cont/p",
        "",
        "/p",
    ] {
        let found = verdict(&document(table(bad)), Mode::Cluster);
        assert_eq!(found.len(), 1, "{bad}: {found:#?}");
    }
}

#[test]
fn every_mistake_of_a_document_is_told_at_once() {
    let found = verdict(
        &document(json!({
            "table": {"uri": "s3://bkt/p/", "colour": "red"},
            "freshness": {"target": "0s", "mergeAt": {"bytes": "many"}},
            "deletionPolicy": "Never",
        })),
        Mode::Cluster,
    );
    let fields: Vec<_> = found.iter().map(|v| v.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.deletionPolicy",
            "spec.freshness.mergeAt.bytes",
            "spec.freshness.target",
            "spec.table.colour",
            "spec.table.uri"
        ]
    );
}

#[test]
fn what_surrounds_a_spec_is_judged_too() {
    for (pointer, value, field) in [
        ("/apiVersion", json!("freshet.dev/v1"), "apiVersion"),
        ("/apiVersion", Value::Null, "apiVersion"),
        ("/kind", json!("experiment"), "kind"),
        ("/metadata", Value::Null, "metadata"),
        ("/metadata/name", json!("Upper"), "metadata.name"),
        ("/metadata/name", json!("x".repeat(254)), "metadata.name"),
        ("/metadata/name", json!(7), "metadata.name"),
        ("/spec", Value::Null, "spec"),
        (
            "/metadata",
            json!({"name": "a", "labels": {"a": 1}}),
            "metadata.labels.a",
        ),
        (
            "/metadata",
            json!({"name": "a", "lables": {}}),
            "metadata.lables",
        ),
        (
            "/metadata",
            json!({"name": "a", "namespace": "a.b"}),
            "metadata.namespace",
        ),
        ("/metadata", json!({"generateName": "a-"}), "metadata.name"),
    ] {
        let mut document = document(json!({}));
        *document.pointer_mut(pointer).unwrap() = value;
        let found = verdict(&document, Mode::Local);
        assert!(
            found.iter().any(|v| v.field == field),
            "{document}: {found:#?}"
        );
    }
    for not_a_map in [json!([]), json!("x"), json!(null), json!(5)] {
        assert!(!verdict(&not_a_map, Mode::Local).is_empty());
    }
}

#[test]
fn a_document_taken_from_a_cluster_is_accepted_and_its_status_dropped() {
    let mut document = document(json!({}));
    merge(
        &mut document,
        json!({
            "metadata": {"namespace": "ml", "uid": "u", "resourceVersion": "1", "generation": 2,
                "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"a": "b"}, "managedFields": [{"manager": "x"}]},
            "status": {"observedGeneration": 2, "anything": true},
        }),
    );
    let experiment = validate_document(document, Mode::Local).unwrap();
    assert_eq!(experiment.status, None);
    assert_eq!(experiment.metadata.namespace.as_deref(), Some("ml"));
}

#[test]
fn local_excuses_from_the_scheme_and_from_nothing_else() {
    for uri in [
        "file:///data/t",
        "/data/t",
        "data/t",
        "./t",
        "/da ta/ü#?",
        "~/t",
    ] {
        assert_eq!(verdict(&document(table(uri)), Mode::Local), [], "{uri}");
        let cluster = verdict(&document(table(uri)), Mode::Cluster);
        assert_eq!(cluster.len(), 1, "{uri}: {cluster:#?}");
        assert_eq!(
            (cluster[0].field.as_str(), cluster[0].message.as_str()),
            ("spec.table.uri", rules::SCHEME.1)
        );
    }
    for (patch, field) in [
        (table("file:///data/t?x"), "spec.table.uri"),
        (table("file://host/t"), "spec.table.uri"),
        (table("file:t"), "spec.table.uri"),
        (table("ftp://host/t"), "spec.table.uri"),
        (table("memory://t"), "spec.table.uri"),
        (table("x=s3://bucket/t"), "spec.table.uri"),
        (
            with_storage("/data/t", json!({"account": "acct"})),
            "spec.table.storage.account",
        ),
        (
            with_storage("/data/t", json!({"endpoint": "https://minio"})),
            "spec.table.storage.endpoint",
        ),
        (
            json!({"table": {"uri": "/data/t"}, "freshness": {"target": "0s"}}),
            "spec.freshness.target",
        ),
    ] {
        let found = verdict(&document(patch.clone()), Mode::Local);
        assert!(
            found.iter().any(|v| v.field == field),
            "{patch}: {found:#?}"
        );
    }
}

/// Pairs of tables: before, after, whether CEL lets the change pass, whether it is the same table in truth.
fn changes() -> Vec<(Value, Value, bool, bool)> {
    let az = || with_storage("az://cont/p/q", json!({"account": "acct"}));
    let abfss = || table("abfss://cont@acct.dfs.core.windows.net/p/q");
    let minio = |url: &str| with_storage("s3://bkt/p", json!({"endpoint": url}));
    vec![
        (table("s3://bkt/p"), table("s3://bkt/p"), true, true),
        (table("s3://bkt/p"), table("s3://bkt/p2"), false, false),
        (table("s3://bkt/p"), table("gs://bkt/p"), false, false),
        (az(), abfss(), true, true),
        (abfss(), az(), true, true),
        (
            abfss(),
            with_storage(
                "abfss://cont@acct.dfs.core.windows.net/p/q",
                json!({"account": "acct"}),
            ),
            true,
            true,
        ),
        (
            az(),
            with_storage("az://cont/p/q", json!({"account": "other"})),
            false,
            false,
        ),
        (
            az(),
            table("abfss://cont@other.dfs.core.windows.net/p/q"),
            false,
            false,
        ),
        (
            az(),
            table("abfss://cont2@acct.dfs.core.windows.net/p/q"),
            false,
            false,
        ),
        (
            az(),
            table("abfss://cont@acct.dfs.core.windows.net/p/r"),
            false,
            false,
        ),
        (
            abfss(),
            with_storage("az://cont/p/q", json!({"account": "other"})),
            false,
            false,
        ),
        (
            abfss(),
            with_storage(
                "az://cont/p/q",
                json!({"account": "acct", "endpoint": "https://x"}),
            ),
            false,
            false,
        ),
        (table("s3://bkt/p"), minio("https://minio"), false, false),
        (minio("https://minio"), table("s3://bkt/p"), false, false),
        (
            minio("https://minio"),
            minio("https://minio2"),
            false,
            false,
        ),
        (
            minio("https://minio"),
            with_storage(
                "s3://bkt/p",
                json!({"endpoint": "https://minio", "region": "eu"}),
            ),
            true,
            true,
        ),
        // Spelled differently but one place: the API server is stricter than the truth.
        (
            minio("https://minio"),
            minio("https://minio:443"),
            false,
            true,
        ),
        (
            table("abfss://cont@acct.blob.core.windows.net/p"),
            table("abfss://cont@acct.dfs.core.windows.net/p"),
            false,
            true,
        ),
    ]
}

#[test]
fn the_identity_of_a_table_cannot_be_changed() {
    for (before, after, by_cel, in_truth) in changes() {
        let (old, new) = (document(before), document(after));
        let found = judge(&new, Some(&old), Mode::Cluster);
        assert_eq!(found.is_empty(), by_cel, "{old} -> {new}: {found:#?}");
        let typed = |d: Value| serde_json::from_value::<Experiment>(d).unwrap();
        let found = validate_update(&typed(new.clone()), &typed(old.clone()), Mode::Cluster);
        assert_eq!(found.is_empty(), in_truth, "{old} -> {new}: {found:#?}");
        if !in_truth {
            assert_eq!(found[0].field, "spec.table");
            assert!(
                found[0].message.contains("create a new Experiment"),
                "{found:#?}"
            );
        }
    }
}

#[test]
fn everything_but_the_identity_may_be_changed() {
    let old = experiment(json!({"suspend": true, "freshness": {"target": "1m"}}));
    let new = experiment(
        json!({"table": {"secretRef": {"name": "other"}}, "freshness": {"target": "2m"}}),
    );
    assert_eq!(validate_update(&new, &old, Mode::Cluster), []);
}

#[test]
fn the_longest_work_of_the_rule_is_that_of_the_code() {
    let quoted = format!("duration('{}')", crate::api::LONGEST_WORK);
    assert!(rules::VERSIONS_OUTLIVE_WORK.0.contains(&quoted));
    assert!(
        rules::VERSIONS_OUTLIVE_WORK
            .1
            .contains(&format!("plus {}", crate::api::LONGEST_WORK))
    );
}

#[test]
fn a_giant_document_is_refused_with_a_short_answer() {
    let giant = "🦀".repeat(2_000_000);
    for patch in [
        table(&format!("s3://bkt/{giant}")),
        json!({"freshness": {"target": giant}}),
        json!({giant.clone(): 1}),
        json!({"deletionPolicy": giant}),
        json!({"table": {"secretRef": {"name": giant}}}),
    ] {
        for violation in verdict(&document(patch), Mode::Local) {
            assert!(violation.message.chars().count() < 1_000);
        }
    }
}

fn uri_like() -> impl Strategy<Value = String> {
    prop_oneof![
        "(s3|gs|az|abfss|file|http)?(://|:/|:)?[a-z0-9$@:./%?# \\\\-]{0,24}",
        "(s3|gs)://[a-z]{2,5}(/[a-zü.]{0,4}){0,4}",
        "(az|abfss)://[a-z]{2,4}(@[a-z]{2,4}[.](dfs|blob)[.]core[.]windows[.]net)?(/[a-z.]{0,3}){0,3}",
        "[a-z]{1,5}://.{0,12}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_the_rules_let_pass_has_an_identity_and_what_they_refuse_of_object_stores_has_none(
        uri in uri_like(),
        account in proptest::option::of("(acct|[a-z]{3,4})"),
    ) {
        let mut patch = table(&uri);
        if let Some(account) = &account {
            patch["table"]["storage"] = json!({"account": account});
        }
        let document = document(patch);
        let mut structural_and_cel = Vec::new();
        schema::check(&DOCUMENT_SCHEMA, &document, "", &mut structural_and_cel);
        let cel = validate_compiled(&COMPILED, &document, None).err().map(|e| e.into_vec()).unwrap_or_default();
        let accepted = structural_and_cel.is_empty() && cel.is_empty();
        let table: TableSpec = serde_json::from_value(document["spec"]["table"].clone()).unwrap();
        let identity = TableIdentity::of(&table);
        if accepted {
            prop_assert!(identity.is_ok(), "{uri}: {identity:?}");
        } else if identity.is_ok() && !is_local(&uri) {
            // What the identity does not care for: an account where none belongs, and the last details of host names.
            let excess = cel.iter().all(|e| [rules::ACCOUNT_ONLY_AZURE.0, rules::URI_ABFSS.0].contains(&e.rule.as_str()));
            prop_assert!(excess, "{uri}: {cel:#?}");
        }
    }

    #[test]
    fn no_uri_makes_the_judges_panic(uri in ".{0,40}") {
        let _ = verdict(&document(table(&uri)), Mode::Local);
        let _ = verdict(&document(table(&format!("s3://{uri}"))), Mode::Cluster);
    }
}
