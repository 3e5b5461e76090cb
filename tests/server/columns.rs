//! Columns that need care: blobs, and columns that came after a generation.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch, RecordBatchIterator};
use arrow_schema::{DataType, Field, Schema};
use freshet::table::StoresConfig;
use lance::Dataset;
use lance::blob::{BlobArrayBuilder, blob_field};
use lance::dataset::mem_wal::DatasetMemWalExt;
use lance::dataset::{NewColumnTransform, WriteParams};
use lance_file::version::LanceFileVersion;
use serde_json::json;

use crate::fixtures::{Fixture, Spec, flush, shard, writer_config};
use crate::mergers::Merger;
use crate::served::{Served, Tables};

fn schema() -> Arc<Schema> {
    let key = HashMap::from([(crate::fixtures::KEY.to_string(), "true".to_string())]);
    Arc::new(Schema::new(vec![
        Field::new("step", DataType::Int64, false).with_metadata(key),
        blob_field("frame", true),
    ]))
}

fn batch(rows: &[(i64, Option<usize>)]) -> RecordBatch {
    let mut frames = BlobArrayBuilder::new(rows.len());
    for (_, size) in rows {
        match size {
            Some(size) => frames.push_bytes(vec![7u8; *size]).unwrap(),
            None => frames.push_null().unwrap(),
        }
    }
    let keys = Int64Array::from_iter_values(rows.iter().map(|r| r.0));
    RecordBatch::try_new(schema(), vec![Arc::new(keys), frames.finish().unwrap()]).unwrap()
}

#[tokio::test]
async fn a_blob_is_shown_as_its_size_and_sent_when_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let uri = dir
        .path()
        .join("frames.lance")
        .to_str()
        .unwrap()
        .to_string();
    let params = WriteParams {
        data_storage_version: Some(LanceFileVersion::V2_2),
        ..Default::default()
    };
    let base = batch(&[(1, Some(3)), (2, None), (3, Some(0)), (4, Some(200_000))]);
    let rows = RecordBatchIterator::new(vec![Ok(base)], schema());
    let mut dataset = Dataset::write(rows, &uri, Some(params)).await.unwrap();
    let start = dataset.initialize_mem_wal().unsharded();
    let none = Vec::<String>::new();
    start.maintained_indexes(none).execute().await.unwrap();
    let writer = dataset
        .mem_wal_writer(shard(0), writer_config(shard(0), 100_000))
        .await
        .unwrap();
    writer
        .put(vec![batch(&[(2, Some(9)), (5, None), (6, Some(300_000))])])
        .await
        .unwrap();
    flush(&writer).await.unwrap();
    let tables = Tables::new(StoresConfig::default()).with_table("frames", &uri);
    let served = Served::new(tables).await;
    let of = |size: Option<u64>| match size {
        Some(size) => json!({ "size": size }),
        None => json!(null),
    };
    let shown = |rows: &[(i64, Option<u64>)]| -> Vec<_> {
        rows.iter()
            .map(|(step, size)| json!({"step": step, "frame": of(*size)}))
            .collect()
    };
    let fragments = served.records("frames", "").await.records();
    assert_eq!(
        fragments,
        shown(&[(1, Some(3)), (2, None), (3, Some(0)), (4, Some(200_000))])
    );
    let all = served.records("frames", "?source=all").await.records();
    let want = shown(&[
        (1, Some(3)),
        (3, Some(0)),
        (4, Some(200_000)),
        (2, Some(9)),
        (5, None),
        (6, Some(300_000)),
    ]);
    assert_eq!(all, want);
    let payloads = async || {
        for (step, size) in [(1, 3), (3, 0), (4, 200_000), (2, 9), (6, 300_000)] {
            let path = format!("/api/v1/experiments/frames/records/{step}/blobs/frame");
            let payload = served.get(&path).await;
            assert_eq!(payload.status, 200, "{step} {}", payload.head);
            assert_eq!(payload.body, "\u{7}".repeat(size), "{step}");
        }
        let null = served
            .get("/api/v1/experiments/frames/records/5/blobs/frame")
            .await;
        assert_eq!(null.problem(), "payload-not-found");
    };
    payloads().await;
    Merger::open(&uri).await.merge_all(8).await;
    assert_eq!(served.records("frames", "").await.records(), want);
    payloads().await;
}

#[tokio::test]
async fn a_column_that_was_added_after_a_generation_is_null_in_it() {
    let mut t = Fixture::create(Spec {
        base: vec![(100, 0)],
        ..Default::default()
    })
    .await;
    t.put(&[(101, 1)]).await;
    t.delete(&[102]).await;
    t.flush().await;
    t.close().await;
    let mut dataset = t.dataset().await;
    // `_tombstone` has the field id that this column gets.
    let added = Schema::new(vec![Field::new("solved", DataType::Boolean, true)]);
    dataset
        .add_columns(NewColumnTransform::AllNulls(Arc::new(added)), None, None)
        .await
        .unwrap();
    let tables = Tables::new(StoresConfig::default()).with_table("t", &t.uri);
    let served = Served::new(tables).await;
    let row = |key: i64, value: i64| json!({"episode": key, "value": value, "solved": null});
    assert_eq!(
        served.records("t", "?source=all").await.records(),
        [row(50, 0), row(51, 1)]
    );
}

/// A row whose blob lies at an address.
async fn write_with_address(to: &str, step: i64, address: &str) {
    let mut frames = BlobArrayBuilder::new(1);
    frames.push_uri(address).unwrap();
    let columns = vec![
        Arc::new(Int64Array::from(vec![step])) as _,
        frames.finish().unwrap(),
    ];
    let rows = RecordBatch::try_new(schema(), columns).unwrap();
    let params = WriteParams {
        data_storage_version: Some(LanceFileVersion::V2_2),
        allow_external_blob_outside_bases: true,
        ..Default::default()
    };
    let rows = RecordBatchIterator::new([Ok(rows)], schema());
    Dataset::write(rows, to, Some(params)).await.unwrap();
}

#[tokio::test]
async fn a_blob_outside_the_table_is_refused_before_anything_is_asked_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    std::fs::write(at("there"), b"nobody's business").unwrap();
    let uri = at("frames.lance");
    // Of what is not there, asking would tell.
    write_with_address(&uri, 1, &format!("file://{}", at("there"))).await;
    let mut dataset = Dataset::open(&uri).await.unwrap();
    let start = dataset.initialize_mem_wal().unsharded();
    let none = Vec::<String>::new();
    start.maintained_indexes(none).execute().await.unwrap();
    for step in [2, 3] {
        let writer = dataset
            .mem_wal_writer(shard(0), writer_config(shard(0), 100))
            .await
            .unwrap();
        writer.put(vec![batch(&[(step, Some(9))])]).await.unwrap();
        flush(&writer).await.unwrap();
        writer.close().await.unwrap();
    }
    let log = std::path::Path::new(&uri)
        .join("_mem_wal")
        .join(shard(0).to_string());
    for (number, address) in [(1, "there"), (2, "nowhere")] {
        let mut dirs = std::fs::read_dir(&log).unwrap().map(|e| e.unwrap().path());
        let ends = format!("_gen_{number}");
        let generation = dirs.find(|d| d.to_string_lossy().ends_with(&ends)).unwrap();
        std::fs::remove_dir_all(&generation).unwrap();
        let to = generation.to_str().unwrap();
        write_with_address(to, number + 1, &format!("file://{}", at(address))).await;
    }
    let other = at("other.lance");
    write_with_address(&other, 4, &format!("file://{}", at("nowhere"))).await;
    let tables = Tables::new(StoresConfig::default())
        .with_table("frames", &uri)
        .with_table("other", &other);
    let served = Served::new(tables).await;
    for (name, step) in [("frames", 1), ("frames", 2), ("frames", 3), ("other", 4)] {
        let source = if name == "other" {
            "?source=fragments"
        } else {
            ""
        };
        let path = format!("/api/v1/experiments/{name}/records/{step}/blobs/frame{source}");
        let answer = served.get(&path).await;
        // One in a pending generation is that generation's own fault.
        let problem = match step {
            2 | 3 => "generation-unreadable",
            _ => "table-unsupported",
        };
        assert_eq!(answer.problem(), problem, "{step} {}", answer.body);
        assert_eq!(answer.json()["reason"], "ForeignBase", "{step}");
    }
}
