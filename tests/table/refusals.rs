//! Tables and generations that are refused by name, with nothing of them changed.
//!
//! Lives here: contracts 9 and 21 as far as the table room shows them. May use: fixtures, Lance as other clients use it.
//! Never: a check of a message's words; reasons are closed.

use std::fs;
use std::sync::Arc;

use arrow_array::{BooleanArray, Int64Array, RecordBatch, RecordBatchIterator};
use arrow_schema::{DataType, Field, Schema};
use freshet::table::{Error, Outcome};
use lance::Dataset;
use lance::dataset::WriteParams;
use lance_file::version::LanceFileVersion;

use crate::disk::Tree;
use crate::fixtures::{Fixture, Kind, Shape, Spec, shard};
use crate::mergers::Merger;

async fn refused(uri: &str) -> &'static str {
    match Merger::try_open(uri).await {
        Ok(_) => "opened",
        Err(e) => e.reason(),
    }
}

#[tokio::test]
async fn a_table_that_is_not_there_and_a_folder_that_is_none_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let there = dir.path().to_str().unwrap();
    assert_eq!(
        refused(&format!("{there}/none.lance")).await,
        "TableNotFound"
    );
    fs::write(dir.path().join("file.txt"), "no table").unwrap();
    assert_eq!(refused(there).await, "NotALanceTable");
}

#[tokio::test]
async fn a_table_without_mem_wal_is_named_and_left_alone() {
    let t = Fixture::without_mem_wal(Spec::default()).await;
    let before = Tree::of(t.path());
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(m.try_merge(1).await.unwrap_err().reason(), "NotMemWal");
    assert_eq!(Tree::of(t.path()), before);
}

#[tokio::test]
async fn a_branch_is_refused() {
    let t = Fixture::create(Spec::default()).await;
    let mut dataset = t.dataset().await;
    let version = dataset.version_id();
    dataset.create_branch("side", version, None).await.unwrap();
    assert_eq!(
        refused(&format!("{}/tree/side", t.uri)).await,
        "Unsupported"
    );
}

#[tokio::test]
async fn a_table_with_a_column_named_tombstone_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let uri = dir.path().join("t.lance").to_str().unwrap().to_string();
    let schema = Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("_tombstone", DataType::Boolean, true),
    ]));
    let columns = vec![
        Arc::new(Int64Array::from(vec![1])) as _,
        Arc::new(BooleanArray::from(vec![true])) as _,
    ];
    let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
    Dataset::write(RecordBatchIterator::new([Ok(batch)], schema), &uri, None)
        .await
        .unwrap();
    assert_eq!(refused(&uri).await, "Unsupported");
}

#[tokio::test]
async fn a_table_in_legacy_storage_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let uri = dir.path().join("t.lance").to_str().unwrap().to_string();
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
    let batch =
        RecordBatch::try_new(schema.clone(), vec![Arc::new(Int64Array::from(vec![1]))]).unwrap();
    let params = WriteParams {
        data_storage_version: Some(LanceFileVersion::Legacy),
        ..Default::default()
    };
    Dataset::write(
        RecordBatchIterator::new([Ok(batch)], schema),
        &uri,
        Some(params),
    )
    .await
    .unwrap();
    assert_eq!(refused(&uri).await, "Unsupported");
}

#[tokio::test]
async fn a_table_whose_data_lies_elsewhere_is_refused_with_nothing_of_it_read() {
    let t = Fixture::create(Spec::default()).await;
    let mut dataset = t.dataset().await;
    let version = dataset.version_id();
    let clone = format!("{}.clone", t.uri);
    dataset.shallow_clone(&clone, version, None).await.unwrap();
    // Nothing of the other place can be read: it is gone.
    fs::rename(&t.uri, format!("{}.gone", t.uri)).unwrap();
    assert_eq!(refused(&clone).await, "ForeignBase");
}

/// What a merge says of a table whose second shard's generation was harmed, and that the first shard flows on.
async fn harmed(harm: impl Fn(&Tree)) -> Error {
    let mut t = Fixture::create(Spec {
        shards: 2,
        ..Default::default()
    })
    .await;
    t.put(&[(2, 1), (3, 1), (5, 1)]).await;
    t.delete(&[7]).await;
    t.put(&[(9, 2), (9, 3)]).await;
    t.flush().await;
    t.close().await;
    harm(&Tree::of(
        &t.path().join("_mem_wal").join(shard(1).to_string()),
    ));
    let before = Tree::of(t.path());
    let mut m = Merger::open(&t.uri).await;
    let (_, snapshot) = m.observe().await;
    let (limits, known) = (m.limits(), m.tracker.known());
    let both = snapshot.chunk(&[(shard(0), 1), (shard(1), 1)]).unwrap();
    let e = m
        .table
        .merge(&snapshot, &both, &known, &limits)
        .await
        .unwrap_err();
    assert_eq!(Tree::of(t.path()), before, "something was changed");
    let one = snapshot.chunk(&[(shard(0), 1)]).unwrap();
    let outcome = m
        .table
        .merge(&snapshot, &one, &known, &limits)
        .await
        .unwrap();
    assert!(matches!(outcome, Outcome::Merged(_)));
    e
}

fn the(tree: &Tree, part: &str, end: &str) -> std::path::PathBuf {
    let found = tree
        .find(part)
        .into_iter()
        .find(|p| p.to_str().unwrap().ends_with(end));
    found.unwrap_or_else(|| panic!("no {part}…{end} in {tree:?}"))
}

fn truncate(path: &std::path::Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

#[tokio::test]
async fn a_generation_whose_data_file_is_missing_is_named_and_other_shards_flow_on() {
    let e = harmed(|t| fs::remove_file(the(t, "_gen_1/data/", ".lance")).unwrap()).await;
    assert_eq!(e.poisoned(), Some((shard(1), 1)), "{e}");
}

#[tokio::test]
async fn a_generation_whose_data_file_is_truncated_is_named_and_other_shards_flow_on() {
    let e = harmed(|t| truncate(&the(t, "_gen_1/data/", ".lance"))).await;
    assert_eq!(e.poisoned(), Some((shard(1), 1)), "{e}");
}

#[tokio::test]
async fn a_generation_whose_data_file_is_empty_is_named_and_other_shards_flow_on() {
    let e = harmed(|t| fs::write(the(t, "_gen_1/data/", ".lance"), "").unwrap()).await;
    assert_eq!(e.poisoned(), Some((shard(1), 1)), "{e}");
}

#[tokio::test]
async fn a_generation_whose_data_file_holds_other_bytes_is_named_and_other_shards_flow_on() {
    let e = harmed(|t| {
        let path = the(t, "_gen_1/data/", ".lance");
        let size = fs::metadata(&path).unwrap().len() as usize;
        fs::write(&path, vec![0xA5; size]).unwrap();
    })
    .await;
    assert_eq!(e.poisoned(), Some((shard(1), 1)), "{e}");
}

#[tokio::test]
async fn a_generation_whose_manifest_is_missing_is_named_and_other_shards_flow_on() {
    let e = harmed(|t| fs::remove_file(the(t, "_gen_1/_versions/", ".manifest")).unwrap()).await;
    assert_eq!(e.poisoned(), Some((shard(1), 1)), "{e}");
}

#[tokio::test]
async fn a_generation_whose_manifest_is_truncated_is_named_and_other_shards_flow_on() {
    let e = harmed(|t| truncate(&the(t, "_gen_1/_versions/", ".manifest"))).await;
    assert_eq!(e.poisoned(), Some((shard(1), 1)), "{e}");
}

#[tokio::test]
async fn a_generation_whose_deletion_vector_is_missing_is_named_and_other_shards_flow_on() {
    let e = harmed(|t| fs::remove_file(the(t, "_gen_1/_deletions/", "")).unwrap()).await;
    assert_eq!(e.poisoned(), Some((shard(1), 1)), "{e}");
}

#[tokio::test]
async fn a_dictionary_column_with_more_values_than_its_keys_number_merges_into_files_that_can_be_read()
 {
    for budget in [64 << 20, 16 << 10] {
        let shape = Shape::keyed(Kind::Int64).with("role", Kind::Role(1000));
        let mut t = Fixture::create(Spec {
            shape,
            ..Default::default()
        })
        .await;
        for generation in 0..6u64 {
            let rows: Vec<_> = (0..100)
                .map(|i| (generation * 100 + i, generation as i64 + 1))
                .collect();
            t.put(&rows).await;
            t.flush().await;
        }
        let mut m = Merger::open(&t.uri).await.with_budget(budget);
        assert_eq!(m.merge_all(6).await, 1);
        assert_eq!(t.verdict().await, Default::default());
    }
}
