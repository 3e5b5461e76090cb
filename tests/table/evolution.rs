//! Tables whose columns change between generations: each column is what its field id says, whatever its name was.
//!
//! Lives here: columns added, renamed, dropped, dropped and added anew, names swapped, between flushes. May use: fixtures,
//! the reference. Never: the model, which knows one shape.

use std::sync::Arc;

use arrow_schema::{Field, Schema};
use lance::dataset::{ColumnAlteration, NewColumnTransform};

use crate::comparison::compare_lines;
use crate::fixtures::{Fixture, Kind, Shape, Spec};

async fn add(t: &mut Fixture, name: &str, kind: Kind) {
    t.close().await;
    let schema = Schema::new(vec![Field::new(name, kind.data_type(), true)]);
    let nulls = NewColumnTransform::AllNulls(Arc::new(schema));
    t.dataset()
        .await
        .add_columns(nulls, None, None)
        .await
        .unwrap();
    t.spec.shape = t.spec.shape.clone().with(name, kind);
}

async fn rename(t: &mut Fixture, from: &str, to: &str) {
    t.close().await;
    let change = ColumnAlteration::new(from.into()).rename(to.into());
    t.dataset().await.alter_columns(&[change]).await.unwrap();
    let others = t.spec.shape.others.iter_mut();
    others.filter(|o| o.0 == from).for_each(|o| o.0 = to.into());
}

async fn drop_column(t: &mut Fixture, name: &str) {
    t.close().await;
    t.dataset().await.drop_columns(&[name]).await.unwrap();
    t.spec.shape.others.retain(|o| o.0 != name);
}

async fn start() -> Fixture {
    let shape = Shape::keyed(Kind::Int64)
        .with("note", Kind::Utf8)
        .with("info", Kind::Info);
    let mut t = Fixture::create(Spec {
        shape,
        rows_per_file: 40,
        ..Default::default()
    })
    .await;
    t.put(&[(1, 1), (200, 1)]).await;
    t.delete(&[2]).await;
    t.flush().await;
    t
}

async fn more(t: &mut Fixture, value: i64) {
    t.put(&[(1, value), (3, value), (200 + value as u64, value)])
        .await;
    t.delete(&[4 + value as u64]).await;
    t.flush().await;
}

#[tokio::test]
async fn a_column_added_between_generations_is_null_in_older_rows_and_kept_in_newer_ones() {
    let mut t = start().await;
    // The new column takes the field id that `_tombstone` has in the first generation.
    add(&mut t, "flag", Kind::Bool).await;
    more(&mut t, 2).await;
    add(&mut t, "tags", Kind::Tags).await;
    more(&mut t, 3).await;
    t.close().await;
    compare_lines(&t).await;
}

#[tokio::test]
async fn a_column_added_while_its_generation_waits_is_null_in_its_rows() {
    let mut t = start().await;
    more(&mut t, 2).await;
    add(&mut t, "flag", Kind::Bool).await;
    t.close().await;
    compare_lines(&t).await;
}

#[tokio::test]
async fn a_renamed_column_keeps_its_values() {
    let mut t = start().await;
    rename(&mut t, "note", "remark").await;
    more(&mut t, 2).await;
    t.close().await;
    compare_lines(&t).await;
}

#[tokio::test]
async fn two_columns_that_swapped_their_names_keep_their_values() {
    let mut t = start().await;
    add(&mut t, "other", Kind::Utf8).await;
    more(&mut t, 2).await;
    rename(&mut t, "note", "swap").await;
    rename(&mut t, "other", "note").await;
    rename(&mut t, "swap", "other").await;
    more(&mut t, 3).await;
    t.close().await;
    compare_lines(&t).await;
}

#[tokio::test]
async fn a_dropped_column_is_left_out_and_its_name_can_come_again_as_another() {
    let mut t = start().await;
    drop_column(&mut t, "note").await;
    more(&mut t, 2).await;
    add(&mut t, "note", Kind::Utf8).await;
    more(&mut t, 3).await;
    t.close().await;
    compare_lines(&t).await;
}

#[tokio::test]
async fn a_nested_column_dropped_between_generations_is_left_out() {
    let mut t = start().await;
    drop_column(&mut t, "info").await;
    more(&mut t, 2).await;
    t.close().await;
    compare_lines(&t).await;
}
