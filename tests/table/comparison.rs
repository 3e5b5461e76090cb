//! Every result of a merge equals the plain one: generation after generation, by `merge_insert`.
//!
//! Lives here: random tables of every kind of key, index and storage, merged by the reference and by Freshet (in memory, and
//! streamed in parts), compared row by row and by index. May use: fixtures, reference, mergers. Never: a sample of columns.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{Expr, lit};
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::mem_wal::DatasetMemWalExt;
use lance_file::version::LanceFileVersion;
use lance_index::IndexType;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::fixtures::{Fixture, Kind, Shape, Spec, canonical};
use crate::mergers::Merger;
use crate::reference;

/// When the key's BTree is made, if it is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Tree {
    None,
    Fresh,
    /// Fragments came after it.
    Stale,
    /// Rows were deleted before it.
    Late,
}

/// Every row of the newest version, all columns by name, sorted.
async fn lines(uri: &str) -> Vec<String> {
    let dataset = Dataset::open(uri).await.unwrap();
    let mut names: Vec<String> = dataset
        .schema()
        .fields
        .iter()
        .map(|f| f.name.clone())
        .collect();
    names.sort();
    let mut rows = dataset
        .scan()
        .project(&names)
        .unwrap()
        .try_into_stream()
        .await
        .unwrap();
    let mut out = vec![names.join(" | ")];
    while let Some(batch) = rows.try_next().await.unwrap() {
        out.extend(canonical(&batch));
    }
    out.sort();
    out
}

async fn marks(uri: &str) -> BTreeMap<uuid::Uuid, u64> {
    let dataset = Dataset::open(uri).await.unwrap();
    let details = dataset.mem_wal_index_details().await.unwrap().unwrap();
    details
        .compacted_sstables
        .iter()
        .map(|c| (c.shard_id, c.generation))
        .collect()
}

/// Rows that a filter finds, whichever way Lance takes.
async fn found(dataset: &Dataset, filter: Expr, use_index: bool) -> Vec<String> {
    let mut scan = dataset.scan();
    scan.filter_expr(filter).use_scalar_index(use_index);
    let batch = scan.try_into_batch().await.unwrap();
    let mut lines = canonical(&batch);
    lines.sort();
    lines
}

/// Queries by every scalar index give what a plain scan gives.
async fn indexes_agree(t: &Fixture, keys: &[u64]) {
    let dataset = t.dataset().await;
    let column = |name: &str| Expr::Column(Column::from_name(name));
    for values in keys.chunks(7) {
        let first = &t.spec.shape.key_columns(values)[0];
        let list: Vec<Expr> = (0..values.len())
            .map(|at| lit(ScalarValue::try_from_array(first, at).unwrap()))
            .collect();
        let filter = column(&t.spec.shape.keys[0].0).in_list(list, false);
        let plain = found(&dataset, filter.clone(), false).await;
        assert_eq!(found(&dataset, filter, true).await, plain);
    }
    for value in -1..8i64 {
        let filter = match value {
            -1 => column("value").is_null(),
            v => column("value").eq(lit(v)),
        };
        let plain = found(&dataset, filter.clone(), false).await;
        assert_eq!(found(&dataset, filter, true).await, plain);
    }
}

/// A table with a random history: some base rows deleted, then generations of puts, deletes and both.
async fn table(spec: Spec, tree: Tree, dice: &mut StdRng) -> Fixture {
    let keys = spec.shape.limit().min(60);
    let mut t = Fixture::without_mem_wal(spec).await;
    let keyed = !t.spec.shape.keys.is_empty();
    if tree == Tree::Fresh || tree == Tree::Stale {
        t.index_key().await;
    }
    if !t.spec.base.is_empty() && keyed {
        // A deletion vector in some fragment.
        let gone: Vec<u64> = t
            .spec
            .base
            .iter()
            .filter(|r| r.1 == 0)
            .map(|r| r.0)
            .collect();
        t.dataset().await.delete("value = 0").await.unwrap();
        t.model.delete(&gone);
    }
    if tree == Tree::Late {
        t.index_key().await;
    }
    if keyed && !t.spec.base.is_empty() {
        t.index("value", IndexType::BTree).await;
    }
    if tree == Tree::Stale {
        let rows: Vec<(u64, i64)> = (keys..keys + 5)
            .filter(|k| *k < t.spec.shape.limit())
            .map(|k| (k, 1))
            .collect();
        if !rows.is_empty() {
            let batch = t.spec.shape.batch(&rows);
            let reader = arrow_array::RecordBatchIterator::new([Ok(batch.clone())], batch.schema());
            t.dataset().await.append(reader, None).await.unwrap();
            t.model.put(&rows);
        }
    }
    t.enable_mem_wal().await;
    for generation in 0..dice.random_range(3..6) {
        write(&mut t, generation, keys, keyed, dice).await;
        t.flush().await;
    }
    t.close().await;
    t
}

async fn write(t: &mut Fixture, generation: i64, keys: u64, keyed: bool, dice: &mut StdRng) {
    // One generation in five only deletes.
    if keyed && dice.random_range(0..5) == 0 {
        let gone: Vec<u64> = (0..4).map(|_| dice.random_range(0..keys)).collect();
        return t.delete(&gone).await;
    }
    for _ in 0..dice.random_range(1..4) {
        let rows: BTreeSet<u64> = (0..12).map(|_| dice.random_range(0..keys)).collect();
        let null = dice.random_range(0..6) == 0;
        let rows: Vec<(u64, i64)> = rows
            .into_iter()
            .map(|k| (k, if null { -1 } else { generation }))
            .collect();
        t.put(&rows).await;
        if keyed && dice.random_range(0..2) == 0 {
            let gone: Vec<u64> = (0..3).map(|_| dice.random_range(0..keys)).collect();
            t.delete(&gone).await;
        }
    }
}

/// Merges copies of a table by the reference and by Freshet, and compares.
async fn compare(t: &Fixture, dice: &mut StdRng) {
    let plain = t.copy();
    reference::merge_all(&plain.uri).await;
    let expected = lines(&plain.uri).await;
    let keyed = !t.spec.shape.keys.is_empty();
    let keys: Vec<u64> = t.model.ever.iter().copied().collect();
    for budget in [64 << 20, 2 << 10] {
        let ours = t.copy();
        let before = match keyed {
            true => ours.lineage("_rowid").await,
            false => BTreeMap::new(),
        };
        let most = dice.random_range(1..6);
        Merger::open(&ours.uri)
            .await
            .with_budget(budget)
            .merge_all(most)
            .await;
        assert_eq!(
            lines(&ours.uri).await,
            expected,
            "{:?}, budget {budget}, {most} at a time",
            t.spec
        );
        if keyed {
            assert_eq!(marks(&ours.uri).await, marks(&plain.uri).await);
            assert_eq!(ours.verdict().await, Default::default());
            indexes_agree(&ours, &keys).await;
        }
        if t.spec.stable_row_ids {
            let after = ours.lineage("_rowid").await;
            let distinct: BTreeSet<u64> = after.values().copied().collect();
            assert_eq!(distinct.len(), after.len(), "two rows with one id");
            for (key, id) in &after {
                // A key that was deleted and came again may have a new one.
                if let Some(old) = before.get(key).filter(|_| most == 5) {
                    assert_eq!(old, id, "{key} got another row id");
                }
            }
        }
    }
}

async fn check(shape: Shape, tree: Tree, change: impl Fn(&mut Spec), seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    let rows = shape.limit().min(40);
    let mut spec = Spec {
        base: (0..rows).map(|k| (k, (k % 4) as i64)).collect(),
        rows_per_file: 11,
        shape,
        ..Default::default()
    };
    change(&mut spec);
    let t = table(spec, tree, &mut dice).await;
    compare(&t, &mut dice).await;
}

async fn check_key(kind: Kind) {
    for (seed, tree) in [Tree::None, Tree::Fresh, Tree::Stale, Tree::Late]
        .into_iter()
        .enumerate()
    {
        check(Shape::keyed(kind), tree, |_| {}, seed as u64).await;
    }
}

macro_rules! keys {
    ($($name:ident: $kind:expr;)*) => {
        $(#[tokio::test]
        async fn $name() {
            check_key($kind).await;
        })*
    };
}

keys! {
    a_merge_of_int8_keys_equals_the_plain_one: Kind::Int8;
    a_merge_of_int16_keys_equals_the_plain_one: Kind::Int16;
    a_merge_of_int32_keys_equals_the_plain_one: Kind::Int32;
    a_merge_of_int64_keys_equals_the_plain_one: Kind::Int64;
    a_merge_of_uint8_keys_equals_the_plain_one: Kind::UInt8;
    a_merge_of_uint16_keys_equals_the_plain_one: Kind::UInt16;
    a_merge_of_uint32_keys_equals_the_plain_one: Kind::UInt32;
    a_merge_of_uint64_keys_equals_the_plain_one: Kind::UInt64;
    a_merge_of_bool_keys_equals_the_plain_one: Kind::Bool;
    a_merge_of_utf8_keys_equals_the_plain_one: Kind::Utf8;
    a_merge_of_large_utf8_keys_equals_the_plain_one: Kind::LargeUtf8;
    a_merge_of_binary_keys_equals_the_plain_one: Kind::Binary;
    a_merge_of_large_binary_keys_equals_the_plain_one: Kind::LargeBinary;
}

#[tokio::test]
async fn a_merge_of_composite_keys_equals_the_plain_one() {
    let shapes = [
        Shape::composite(&[Kind::Int16, Kind::Utf8]),
        Shape::composite(&[Kind::Utf8, Kind::Binary, Kind::Int64]),
        Shape::composite(&[Kind::Bool, Kind::UInt32]),
    ];
    for (seed, shape) in shapes.into_iter().enumerate() {
        check(shape.clone(), Tree::None, |_| {}, seed as u64).await;
        check(shape, Tree::Fresh, |_| {}, 100 + seed as u64).await;
    }
}

fn rich() -> Shape {
    Shape::keyed(Kind::Utf8)
        .with("role", Kind::Role(100))
        .with("tags", Kind::Tags)
        .with("info", Kind::Info)
        .with("steps", Kind::Steps)
        .with("vector", Kind::Vector)
        .with("flag", Kind::Bool)
}

#[tokio::test]
async fn a_merge_in_each_storage_version_equals_the_plain_one() {
    // Null structs and lists of them need 2.1.
    let flat = Shape::keyed(Kind::Utf8)
        .with("role", Kind::Role(100))
        .with("tags", Kind::Tags);
    check(
        flat,
        Tree::Fresh,
        |s| s.storage = LanceFileVersion::V2_0,
        20,
    )
    .await;
    check(
        rich(),
        Tree::Fresh,
        |s| s.storage = LanceFileVersion::V2_1,
        21,
    )
    .await;
    check(
        rich(),
        Tree::Stale,
        |s| s.storage = LanceFileVersion::V2_2,
        22,
    )
    .await;
}

#[tokio::test]
async fn a_merge_of_nested_dictionary_and_list_columns_equals_the_plain_one() {
    for seed in 30..34 {
        check(rich(), Tree::None, |_| {}, seed).await;
    }
}

#[tokio::test]
async fn a_merge_with_stable_row_ids_equals_the_plain_one_and_keeps_the_ids_of_updated_rows() {
    for (seed, tree) in [
        (40, Tree::None),
        (41, Tree::Fresh),
        (42, Tree::Stale),
        (43, Tree::Late),
        (44, Tree::Stale),
    ] {
        check(rich(), tree, |s| s.stable_row_ids = true, seed).await;
        check(
            Shape::keyed(Kind::Int64),
            tree,
            |s| s.stable_row_ids = true,
            seed,
        )
        .await;
    }
}

#[tokio::test]
async fn a_merge_of_several_shards_equals_the_plain_one() {
    for seed in 50..53 {
        check(
            Shape::keyed(Kind::Int64),
            Tree::Fresh,
            |s| s.shards = 3,
            seed,
        )
        .await;
    }
}

#[tokio::test]
async fn a_merge_into_an_empty_base_equals_the_plain_one() {
    for (seed, stable) in [(60, false), (61, true)] {
        let change = |s: &mut Spec| {
            s.base.clear();
            s.stable_row_ids = stable;
        };
        check(rich(), Tree::None, change, seed).await;
    }
}

#[tokio::test]
async fn a_merge_into_a_table_without_a_key_appends_every_row_once() {
    for seed in 70..73 {
        check(Shape::append_only(), Tree::None, |_| {}, seed).await;
    }
}

#[tokio::test]
async fn a_merge_of_nothing_but_deletes_of_known_and_unknown_keys_equals_the_plain_one() {
    for tree in [Tree::None, Tree::Fresh] {
        let mut t = Fixture::create(Spec {
            btree: tree == Tree::Fresh,
            rows_per_file: 30,
            ..Default::default()
        })
        .await;
        t.delete(&[1, 2, 3, 1000, 1001]).await;
        t.flush().await;
        // A whole fragment goes.
        t.delete(&(30..60).collect::<Vec<_>>()).await;
        t.flush().await;
        t.delete(&[5000]).await;
        t.flush().await;
        t.close().await;
        compare(&t, &mut StdRng::seed_from_u64(0)).await;
    }
}

#[tokio::test]
async fn a_key_that_comes_deleted_and_comes_again_in_one_chunk_is_there_once() {
    let mut t = Fixture::create(Spec::default()).await;
    for round in 1..6 {
        t.put(&[(7, round), (700, round)]).await;
        t.flush().await;
        t.delete(&[7, 700]).await;
        if round % 2 == 0 {
            t.flush().await;
        }
    }
    t.put(&[(7, 99)]).await;
    t.close().await;
    compare(&t, &mut StdRng::seed_from_u64(0)).await;
}

/// Merges copies of a table both ways and compares what is in them, whatever their columns are by now.
pub async fn compare_lines(t: &Fixture) {
    let plain = t.copy();
    reference::merge_all(&plain.uri).await;
    let expected = lines(&plain.uri).await;
    for (budget, most) in [(64 << 20, 9), (64 << 20, 1), (2 << 10, 9)] {
        let ours = t.copy();
        Merger::open(&ours.uri)
            .await
            .with_budget(budget)
            .merge_all(most)
            .await;
        assert_eq!(
            lines(&ours.uri).await,
            expected,
            "budget {budget}, {most} at a time"
        );
    }
}
