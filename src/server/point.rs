//! One record by its key, and one payload of it.
//!
//! Lives here: the routes of a record and of a blob. Both read `all` where no source is named: whoever asks for one key
//! wants its newest version. May use: the reader. Must never come in: a type or a file name that a row chose.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::Value;

use super::asked::{Asked, table};
use super::etag::Tag;
use super::problem::Problem;
use super::query::Takes;
use super::records::{JSON, Read, envelope, known, sent, written_aside};
use super::routes::Answer;
use super::serve::Shared;
use crate::table::{Error, Payload, Point, Source};

pub(super) async fn record(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    let ask = asked.query(Takes::Columns, Source::All)?;
    let key = asked.key()?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    if let Some(known) = known(&shared, &table, ask.source, &asked).await? {
        return Ok(known);
    }
    let columns = ask.columns.as_deref();
    let page = match shared.reader.get(&table, ask.source, &key, columns).await? {
        Point::Row(page) => page,
        Point::Deleted { shard, generation } => return Err(Problem::deleted(shard, generation)),
        Point::Missing => return Err(Problem::no_record()),
    };
    let tag = Tag::of(&page.snapshot, &asked.uri);
    let (body, memory) = written_aside(move || {
        let mut body = b"{\"record\":".to_vec();
        super::json::rows(&mut body, &page.batches)
            .map_err(|e| Error::Bug(format!("a row cannot be written: {e}")))?;
        body.push(b',');
        let rest = Value::Object(envelope(ask.source, &Read::of(&page), &status)).to_string();
        body.extend(rest.as_bytes().get(1..).unwrap_or(b"}"));
        Ok::<_, Error>((body, page.memory))
    })
    .await?;
    Ok(tag.on(sent(body.into(), JSON, memory)))
}

pub(super) const BYTES: &str = "application/octet-stream";

pub(super) async fn blob(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    let ask = asked.query(Takes::Source, Source::All)?;
    let key = asked.key()?;
    let column = asked.named("column").ok_or_else(Problem::no_route)?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    if let Some(known) = known(&shared, &table, ask.source, &asked).await? {
        return Ok(known);
    }
    let read = shared.reader.payload(&table, ask.source, &key, column);
    let (bytes, snapshot, memory) = match read.await? {
        Payload::Bytes(bytes, snapshot, memory) => (bytes, snapshot, memory),
        Payload::Null => return Err(no_payload()),
        Payload::Deleted(shard, generation) => return Err(Problem::deleted(shard, generation)),
        Payload::Missing => return Err(Problem::no_record()),
    };
    let tag = Tag::of(&snapshot, &asked.uri);
    Ok(tag.on(attached(sent(bytes, BYTES, memory), column)))
}

pub(super) fn no_payload() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "payload-not-found",
        "The record has no such payload",
        "the record is there and its cell in this column is null",
    )
}

/// As a file to be saved, never as a page: no browser runs what a row holds.
fn attached(mut response: Response, column: &str) -> Response {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name: String = column.chars().filter(|c| safe(*c)).take(64).collect();
    let name = match name.is_empty() {
        true => "payload".into(),
        false => name,
    };
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}.bin\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    let nothing = HeaderValue::from_static("default-src 'none'; sandbox");
    headers.insert(header::CONTENT_SECURITY_POLICY, nothing);
    response
}
