//! The routes of lance-context's client, where that client's own tests do not look.
//!
//! Lives here: ids that look like routes, numbers that JSON readers change, and what is asked twice or too much. May use:
//! Lance's own writer, a running server. Never: the client, which `tests/clients` runs.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{BinaryArray, RecordBatch, RecordBatchIterator, StringArray};
use arrow_schema::{DataType, Field, Schema};
use freshet::server::Config;
use freshet::table::{ReadLimits, StoresConfig};
use lance::Dataset;
use lance::dataset::mem_wal::DatasetMemWalExt;
use tempfile::TempDir;

use crate::served::{Served, Tables};

/// A table of these ids, each with a payload of its own, and all with this metadata.
async fn served(ids: &[&str], metadata: &str, config: Config) -> (TempDir, Served) {
    let dir = tempfile::tempdir().unwrap();
    let uri = dir.path().join("rollouts.lance");
    let uri = uri.to_str().unwrap();
    let key = HashMap::from([(crate::fixtures::KEY.to_string(), "true".to_string())]);
    let schema = Arc::new(Schema::new(vec![
        Field::new("id", DataType::Utf8, false).with_metadata(key),
        Field::new("metadata", DataType::Utf8, true),
        Field::new("binary_payload", DataType::Binary, true),
    ]));
    let payloads = ids.iter().map(|id| format!("of {id}"));
    let rows = RecordBatch::try_new(
        schema.clone(),
        vec![
            Arc::new(StringArray::from_iter_values(ids)),
            Arc::new(StringArray::from_iter_values(ids.iter().map(|_| metadata))),
            Arc::new(BinaryArray::from_iter_values(payloads)),
        ],
    );
    let rows = RecordBatchIterator::new([Ok(rows.unwrap())], schema);
    let mut dataset = Dataset::write(rows, uri, None).await.unwrap();
    let start = dataset.initialize_mem_wal().unsharded();
    let none = Vec::<String>::new();
    start.maintained_indexes(none).execute().await.unwrap();
    let tables = Tables::new(StoresConfig::default()).with_table("r", uri);
    (dir, Served::with(tables, config).await)
}

const RECORDS: &str = "/api/v1/rollouts/r/records";

#[tokio::test]
async fn an_id_that_ends_in_blob_is_a_record_where_its_slash_is_escaped_or_nobody_has_the_rest() {
    let ids = ["x", "x/blob", "y/blob", "a/b"];
    let (_dir, served) = served(&ids, "{}", Config::default()).await;
    for (path, payload) in [
        ("x/blob", "of x"),
        ("x/blob/blob", "of x/blob"),
        ("y/blob/blob", "of y/blob"),
        ("x%2Fblob/blob", "of x/blob"),
        ("a/b/blob", "of a/b"),
    ] {
        let answer = served.get(&format!("{RECORDS}/{path}")).await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, payload),
            "{path}"
        );
    }
    for (path, id) in [
        ("x", "x"),
        ("x%2Fblob", "x/blob"),
        ("y/blob", "y/blob"),
        ("y%2fblob", "y/blob"),
        ("a/b", "a/b"),
    ] {
        let answer = served.get(&format!("{RECORDS}/{path}")).await;
        assert_eq!(answer.json()["record"]["id"], id, "{path}");
    }
    let answer = served.get(&format!("{RECORDS}/nobody/blob")).await;
    assert_eq!(answer.problem(), "record-not-found");
    for path in ["nobody", "nobody%2Fblob"] {
        let answer = served.get(&format!("{RECORDS}/{path}")).await;
        assert_eq!(answer.body, "{\"record\":null}", "{path}");
    }
}

#[tokio::test]
async fn numbers_in_metadata_are_told_with_every_digit() {
    let metadata = r#"{"seed":123456789012345678901234567890,"rate":0.1000000000000000055}"#;
    let (_dir, served) = served(&["x"], metadata, Config::default()).await;
    let one = served.get(&format!("{RECORDS}/x")).await;
    let listed = served.get(RECORDS).await;
    let row = format!("{{\"id\":\"x\",\"metadata\":{metadata}}}");
    assert_eq!(one.body, format!("{{\"record\":{row}}}"));
    assert_eq!(listed.body, format!("{{\"records\":[{row}]}}"));
}

#[tokio::test]
async fn a_parameter_that_is_given_twice_is_named() {
    let (_dir, served) = served(&["x"], "{}", Config::default()).await;
    for (query, name) in [
        ("limit=1&limit=1", "limit"),
        ("filters={}&offset=0&filters={}", "filters"),
    ] {
        let answer = served.get(&format!("{RECORDS}?{query}")).await;
        assert_eq!(answer.problem(), "invalid-parameter");
        assert_eq!(
            (answer.status, &answer.json()["parameter"]),
            (400, &name.into())
        );
        assert_eq!(answer.json()["error"]["code"], "INVALID_PARAMETER");
    }
    let answer = served.get("/api/v1/experiments/r/records?id=x&id=x").await;
    assert_eq!(answer.json()["parameter"], "id");
}

#[tokio::test]
async fn a_list_without_a_limit_that_is_more_than_a_page_may_hold_is_refused() {
    let ids: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let config = Config {
        read: ReadLimits {
            page_bytes: 64 << 10,
            ..Default::default()
        },
        ..Default::default()
    };
    let (_dir, served) = served(&ids, "{}", config).await;
    let answer = served.get(RECORDS).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (413, "page-too-large")
    );
    let answer = served.get(&format!("{RECORDS}?limit=10")).await;
    assert_eq!(answer.records().len(), 10);
}

#[tokio::test]
async fn a_list_whose_json_is_more_than_a_page_may_hold_is_refused_though_its_rows_fit() {
    let ids: Vec<String> = (0..1000)
        .map(|n| format!("{n}{}", "\u{1}".repeat(50)))
        .collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let config = Config {
        read: ReadLimits {
            page_bytes: 256 << 10,
            ..Default::default()
        },
        ..Default::default()
    };
    let (_dir, served) = served(&ids, "{}", config).await;
    let fits = served
        .get("/api/v1/experiments/r/records?limit=1000&columns=id,metadata")
        .await;
    assert_eq!(fits.records().len(), 1000);
    let answer = served.get(RECORDS).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (413, "page-too-large")
    );
}
