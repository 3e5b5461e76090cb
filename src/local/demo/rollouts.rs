//! Rows of the demo: an agent's rollouts, step by step.
//!
//! Lives here: the schema, `Row`, and their making from a seeded source of chance. May use: arrow. Must never come in: a
//! table.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Float64Array, Int32Array, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use rand::Rng;
use rand::rngs::StdRng;

/// One record: a step of a rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub id: String,
    pub rollout: String,
    pub step: i32,
    pub role: &'static str,
    pub content: String,
    pub reward: Option<f64>,
}

const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];
const VERBS: [&str; 6] = ["opens", "reads", "plans", "calls", "checks", "answers"];
const THINGS: [&str; 6] = [
    "the door",
    "a map",
    "the test",
    "a file",
    "the tool",
    "the question",
];

/// The table's columns; the key is `id`.
pub fn schema() -> SchemaRef {
    let key = HashMap::from([(
        "lance-schema:unenforced-primary-key".to_string(),
        "true".to_string(),
    )]);
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Utf8, false).with_metadata(key),
        Field::new("rollout_id", DataType::Utf8, true),
        Field::new("step", DataType::Int32, true),
        Field::new("role", DataType::Utf8, true),
        Field::new("content", DataType::Utf8, true),
        Field::new("reward", DataType::Float64, true),
    ]))
}

/// A whole rollout of `writer`, its `n`-th.
pub fn rollout(rng: &mut StdRng, writer: &str, n: u64) -> Vec<Row> {
    let steps = rng.random_range(6..24);
    let rollout = format!("{writer}-{n:06}");
    (0..steps)
        .map(|step| Row {
            id: format!("{rollout}-{step:02}"),
            rollout: rollout.clone(),
            step,
            role: ROLES[step as usize % ROLES.len()],
            content: said(rng),
            reward: None,
        })
        .collect()
}

/// The same step, graded anew.
pub fn graded(rng: &mut StdRng, row: &Row) -> Row {
    Row {
        content: said(rng),
        reward: Some(f64::from(rng.random_range(-100..=100)) / 100.0),
        ..row.clone()
    }
}

fn said(rng: &mut StdRng) -> String {
    let verb = VERBS[rng.random_range(0..VERBS.len())];
    let thing = THINGS[rng.random_range(0..THINGS.len())];
    format!(
        "the agent {verb} {thing} ({})",
        rng.random_range(0..1_000_000)
    )
}

/// Rows as Lance takes them.
pub fn batch(rows: &[Row]) -> Result<RecordBatch, ArrowError> {
    let text = |of: fn(&Row) -> &str| Arc::new(StringArray::from_iter_values(rows.iter().map(of)));
    RecordBatch::try_new(
        schema(),
        vec![
            text(|r| &r.id),
            text(|r| &r.rollout),
            Arc::new(Int32Array::from_iter_values(rows.iter().map(|r| r.step))),
            text(|r| r.role),
            text(|r| &r.content),
            Arc::new(rows.iter().map(|r| r.reward).collect::<Float64Array>()),
        ],
    )
}

/// Keys as Lance's delete takes them.
pub fn keys(ids: &[String]) -> Result<RecordBatch, ArrowError> {
    let schema = schema();
    let key = Arc::new(Schema::new(vec![schema.field(0).clone()]));
    RecordBatch::try_new(key, vec![Arc::new(StringArray::from_iter_values(ids))])
}
