//! A blob that a generation's row names outside its table is not fetched (contract 21).
//!
//! Lives here: one table with a blob column and one generation, whose rows a stranger wrote. May use: Lance as other clients
//! use it. Never: a blob of the table's own.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch, RecordBatchIterator};
use arrow_schema::{DataType, Field, Schema};
use lance::Dataset;
use lance::blob::{BlobArrayBuilder, blob_field};
use lance::dataset::WriteParams;
use lance::dataset::mem_wal::DatasetMemWalExt;
use lance_file::version::LanceFileVersion;

use crate::disk::Tree;
use crate::fixtures::{flush, shard, writer_config};
use crate::mergers::Merger;

enum Payload<'a> {
    Bytes(&'a [u8]),
    Uri(&'a str),
}

fn batch(id: i64, payload: &Payload) -> RecordBatch {
    let key = [("lance-schema:unenforced-primary-key", "true")];
    let key: HashMap<_, _> = key.map(|(k, v)| (k.to_string(), v.to_string())).into();
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int64, false).with_metadata(key),
        blob_field("payload", true),
    ]);
    let mut blobs = BlobArrayBuilder::new(1);
    match payload {
        Payload::Bytes(bytes) => blobs.push_bytes(bytes).unwrap(),
        Payload::Uri(uri) => blobs.push_uri(*uri).unwrap(),
    }
    let columns = vec![
        Arc::new(Int64Array::from(vec![id])) as _,
        blobs.finish().unwrap(),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

async fn write(to: &Path, batch: RecordBatch) -> lance::Result<Dataset> {
    let schema = batch.schema();
    let params = WriteParams {
        data_storage_version: Some(LanceFileVersion::V2_2),
        allow_external_blob_outside_bases: true,
        ..Default::default()
    };
    let rows = RecordBatchIterator::new([Ok(batch)], schema);
    Dataset::write(rows, to.to_str().unwrap(), Some(params)).await
}

/// Puts one text in the place of another in the one data file that has it.
fn overwrite(dataset: &Path, from: &str, to: &str) {
    let files = Tree::of(dataset).find("/data/");
    let [file] = files.as_slice() else {
        panic!("{files:?}");
    };
    let mut bytes = fs::read(file).unwrap();
    let mut places = bytes.windows(from.len());
    let at = places.position(|w| w == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    fs::write(file, bytes).unwrap();
}

#[tokio::test]
async fn a_blob_that_lies_outside_its_table_is_refused_however_it_is_named() {
    let beside = tempfile::tempdir().unwrap();
    let secret = beside.path().join("secret");
    fs::write(&secret, b"nobody's business").unwrap();
    let here = std::env::current_dir().unwrap();
    let up = "../".repeat(here.components().count() - 1);
    let secret = secret.to_str().unwrap().trim_start_matches('/');
    for uri in [
        // Relative to wherever the process was started.
        "Cargo.toml".to_string(),
        format!("{up}{secret}"),
        format!("file:/{secret}"),
        format!("file:///{secret}"),
        format!("/{secret}"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let table = dir.path().join("t.lance");
        let mut dataset = write(&table, batch(1, &Payload::Bytes(b"own")))
            .await
            .unwrap();
        let start = dataset.initialize_mem_wal().unsharded();
        start
            .maintained_indexes(Vec::<String>::new())
            .execute()
            .await
            .unwrap();
        let writer = dataset
            .mem_wal_writer(shard(0), writer_config(shard(0), 100))
            .await
            .unwrap();
        let own = batch(2, &Payload::Bytes(b"own too"));
        writer.put(vec![own]).await.unwrap();
        flush(&writer).await.unwrap();
        writer.close().await.unwrap();
        let of = table.join("_mem_wal").join(shard(0).to_string());
        let dirs = fs::read_dir(of).unwrap().map(|e| e.unwrap().path());
        let mut generations = dirs.filter(|d| d.to_string_lossy().ends_with("_gen_1"));
        let generation = generations.next().unwrap();
        fs::remove_dir_all(&generation).unwrap();
        // Lance writes no relative address: a stranger puts it into the file in place of one as long.
        let stand_in = format!("file:///{}", "x".repeat(uri.len() - 8));
        let whole = batch(2, &Payload::Uri(&stand_in));
        write(&generation, whole).await.unwrap();
        overwrite(&generation, &stand_in, &uri);
        let before = Tree::of(&table);
        let mut m = Merger::open(table.to_str().unwrap()).await;
        let refused = m.try_merge(9).await.map_err(|e| e.reason());
        assert!(matches!(refused, Err("ForeignBase")), "{uri}: {refused:?}");
        assert_eq!(Tree::of(&table), before, "{uri}");
    }
}
