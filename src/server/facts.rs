//! What is known of a table without its rows.
//!
//! Lives here: the routes of its columns, its backlog and its counts. May use: the reader. Must never come in: a row.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use super::asked::{Asked, table};
use super::etag::Tag;
use super::query::Takes;
use super::records::{Read, envelope, known, observed_lag, snapshot};
use super::routes::{Answer, told};
use super::serve::Shared;
use crate::table::{Generation, ShardPending, Source};

/// Columns in their order, and the key.
pub(super) async fn schema(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    asked.no_parameters()?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    if let Some(known) = known(&shared, &table, Source::Fragments, &asked).await? {
        return Ok(known);
    }
    let (columns, id) = shared.reader.columns(&table).await?;
    let mut key: Vec<_> = columns.iter().filter(|c| c.key.is_some()).collect();
    key.sort_by_key(|c| c.key);
    let key: Vec<&str> = key.iter().map(|c| c.name.as_str()).collect();
    let tag = Tag::of(&id, &asked.uri);
    let body = json!({"columns": columns, "key": key, "snapshot": snapshot(&id)});
    told(&body).map(|answer| tag.on(answer))
}

/// Rows of a source, exactly.
pub(super) async fn count(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    let ask = asked.query(Takes::Values, Source::Fragments)?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    if let Some(known) = known(&shared, &table, ask.source, &asked).await? {
        return Ok(known);
    }
    let count = shared.reader.count_of(&table, &ask).await?;
    let read = Read {
        snapshot: &count.snapshot,
        generations: count.generations_read,
        oldest_pending: count.oldest_pending,
    };
    let mut body = envelope(ask.source, &read, &status);
    body.insert("count".into(), count.rows.into());
    let tag = Tag::of(&count.snapshot, &asked.uri);
    told(&Value::Object(body)).map(|answer| tag.on(answer))
}

/// What is pending now, shard by shard, by their manifests; and what was last observed of the whole.
pub(super) async fn backlog(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    asked.no_parameters()?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    // Its snapshot is that of every source that looks at the log.
    if let Some(known) = known(&shared, &table, Source::Wal, &asked).await? {
        return Ok(known);
    }
    let (id, shards) = shared.reader.backlog(&table).await?;
    let pending = || shards.iter().flat_map(|s| &s.pending);
    let tag = Tag::of(&id, &asked.uri);
    let body = json!({
        "pending_generations": pending().count(),
        "pending_rows": known_sum(pending(), |g| g.rows),
        "pending_bytes": known_sum(pending(), |g| g.bytes),
        "shards": shards.iter().map(shard).collect::<Vec<_>>(),
        "snapshot": snapshot(&id),
        "lag": observed_lag(&status),
    });
    told(&body).map(|answer| tag.on(answer))
}

/// A sum of what is known of each; unknown where it is of one. Figures are what manifests say, any number, and so a sum
/// stays at the largest.
fn known_sum<'a>(
    of: impl Iterator<Item = &'a Generation>,
    what: impl Fn(&Generation) -> Option<u64>,
) -> Option<u64> {
    let mut all = of.map(what);
    all.try_fold(0u64, |sum, n| Some(sum.saturating_add(n?)))
}

fn shard(shard: &ShardPending) -> Value {
    let generation =
        |g: &Generation| json!({"generation": g.number, "rows": g.rows, "bytes": g.bytes});
    json!({
        "shard": shard.state.shard,
        "watermark": shard.watermark,
        "current_generation": shard.state.manifest.current_generation,
        "pending": shard.pending.iter().map(generation).collect::<Vec<_>>(),
        "merged_and_listed": shard.merged.len(),
    })
}
