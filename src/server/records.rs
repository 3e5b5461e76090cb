//! Records, page by page, and what every answer says of where it was read.
//!
//! Lives here: the records route, the envelope of answers with rows (snapshot, generations read, lag), and sending a body
//! while it takes its part of the memory. May use: the reader, the forms of rows. Must never come in: a look at a store
//! before the query was judged, or a value made up for an unknown one.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::asked::{Asked, table};
use super::catalog::{ExperimentStatus, lag};
use super::cursor::{Cursor, More};
use super::etag::{self, Tag};
use super::query::Takes;
use super::routes::Answer;
use super::serve::Shared;
use crate::table::{Ask, Error, Page, PageMemory, SnapshotId, Source, Table};

pub(super) async fn records(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    let ask = asked.query(Takes::Pages, Source::Fragments)?;
    let status = asked.experiment(&shared)?;
    let from = match asked.cursor() {
        Some(text) => Some(
            shared
                .cursors
                .taken(&text, &ask, &status, Timestamp::now())?,
        ),
        None => None,
    };
    // What a cursor leads to never changes: nothing is looked at to know it.
    if let Some(known) = from.as_ref().and_then(|from| unchanged(from, &asked)) {
        return Ok(known);
    }
    let table = table(&shared, &status).await?;
    let page = match &from {
        Some(from) => {
            shared
                .reader
                .resume(&table, &from.pin, from.position, &ask)
                .await?
        }
        None => {
            if let Some(known) = known(&shared, &table, ask.source, &asked).await? {
                return Ok(known);
            }
            shared.reader.read(&table, &ask).await?
        }
    };
    let more = shared.cursors.next(&page, from.as_ref(), &ask, &status);
    if let (More::Cursor(..), Some(next)) = (&more, &page.next) {
        shared.reader.keep(&table, next);
    }
    let offset = from.map_or(ask.offset, |from| from.position.rows);
    let tag = Tag::of(&page.snapshot, &asked.uri);
    let ask = Ask { offset, ..ask };
    let (body, memory) = written_aside(move || written(&ask, page, &status, &more)).await?;
    Ok(tag.on(sent(body.into(), JSON, memory)))
}

/// 304, where the caller has the page that a cursor leads to already.
fn unchanged(from: &Cursor, asked: &Asked) -> Option<Response> {
    let tag = Tag::by(&format!("{:032x}", from.pin.digest), &asked.uri);
    tag.is_known(&asked.headers).then(|| tag.not_modified())
}

/// Writes rows, which takes a while where they are large: not on a thread that serves others.
pub(super) async fn written_aside<E: From<Error> + Send + 'static>(
    write: impl FnOnce() -> Result<(Vec<u8>, PageMemory), E> + Send + 'static,
) -> Result<(Vec<u8>, PageMemory), E> {
    let writing = tokio::task::spawn_blocking(write).await;
    writing.map_err(|e| Error::Bug(format!("writing a page ended badly: {e}")))?
}

/// 304, where the caller has the answer already: found out by manifests alone.
pub(super) async fn known(
    shared: &Shared,
    table: &Table,
    source: Source,
    asked: &Asked,
) -> Result<Option<Response>, super::problem::Problem> {
    if !etag::asks(&asked.headers) {
        return Ok(None);
    }
    let snapshot = shared.reader.snapshot(table, source).await?;
    let tag = Tag::of(&snapshot, &asked.uri);
    Ok(tag.is_known(&asked.headers).then(|| tag.not_modified()))
}

/// A page as JSON, and the memory that it takes part of.
fn written(
    ask: &Ask,
    page: Page,
    status: &ExperimentStatus,
    more: &More,
) -> Result<(Vec<u8>, PageMemory), Error> {
    let mut body = b"{\"records\":[".to_vec();
    super::json::rows(&mut body, &page.batches)
        .map_err(|e| Error::Bug(format!("a row cannot be written: {e}")))?;
    body.extend(b"],");
    let mut members = envelope(ask.source, &Read::of(&page), status);
    members.insert("has_more".into(), page.has_more.into());
    members.insert("limit".into(), ask.limit.into());
    members.insert("offset".into(), ask.offset.into());
    more.tell(&mut members);
    // The members' own braces: what follows the records are the members of one more object.
    let rest = Value::Object(members).to_string();
    body.extend(rest.as_bytes().get(1..).unwrap_or(b"}"));
    Ok((body, page.memory))
}

pub(super) const JSON: &str = "application/json";
/// Bytes that are handed to a connection at once.
const PART: usize = 64 << 10;

/// An answer that takes its part of the memory until its last bytes are handed on: slow clients count.
pub(super) fn sent(body: Bytes, kind: &'static str, memory: PageMemory) -> Response {
    let length = HeaderValue::from(body.len());
    let parts = stream::unfold((body, memory), |(mut rest, memory)| async move {
        let part = rest.split_to(rest.len().min(PART));
        (!part.is_empty()).then_some((Ok::<_, Infallible>(part), (rest, memory)))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_LENGTH, length),
    ];
    (headers, Body::from_stream(parts)).into_response()
}

/// What was read for an answer.
pub(super) struct Read<'a> {
    pub snapshot: &'a SnapshotId,
    pub generations: usize,
    pub oldest_pending: Option<Timestamp>,
}

impl<'a> Read<'a> {
    pub fn of(page: &'a Page) -> Self {
        Self {
            snapshot: &page.snapshot,
            generations: page.generations_read,
            oldest_pending: page.oldest_pending,
        }
    }
}

/// The members of every answer with something read in it.
pub(super) fn envelope(
    source: Source,
    read: &Read,
    status: &ExperimentStatus,
) -> Map<String, Value> {
    let lag = match source {
        Source::Fragments => observed_lag(status),
        Source::Wal | Source::All => seen_lag(read),
    };
    let members = [
        ("source", source.as_str().into()),
        ("snapshot", snapshot(read.snapshot)),
        ("generations_read", read.generations.into()),
        ("lag", lag),
    ];
    members
        .map(|(name, value)| (name.into(), value))
        .into_iter()
        .collect()
}

pub(super) fn snapshot(id: &SnapshotId) -> Value {
    let shards = id.shards.as_ref().map(|shards| {
        shards
            .iter()
            .map(|s| {
                json!({
                    "shard": s.shard,
                    "manifest_version": s.manifest_version,
                    "pending_generations": s.pending_generations,
                })
            })
            .collect::<Vec<_>>()
    });
    json!({
        "version": id.version,
        "e_tag": id.e_tag,
        "shards": shards,
        "across_shards": id.across_shards,
        "digest": id.digest,
        "read_at": id.read_at,
    })
}

/// How far `fragments` lags, as last observed: nothing is looked at for it.
pub(super) fn observed_lag(status: &ExperimentStatus) -> Value {
    json!({
        "seconds": status.lag_seconds(Timestamp::now()),
        "pending_generations": status.pending_generations,
        "oldest_pending_time": status.oldest_pending_time,
        "observed_time": status.observed_time,
    })
}

/// How far `fragments` lagged when the snapshot was taken.
fn seen_lag(read: &Read) -> Value {
    let seconds = match read.oldest_pending {
        Some(oldest) => lag(oldest, read.snapshot.read_at),
        None => 0.0,
    };
    json!({
        "seconds": seconds,
        "pending_generations": read.generations,
        "oldest_pending_time": read.oldest_pending,
        "observed_time": read.snapshot.read_at,
    })
}
