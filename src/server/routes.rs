//! What each route answers.
//!
//! Lives here: one handler a route and the members of its answer. May use: the catalog, the reader, the forms of rows and
//! problems. Must never come in: a look at a store before the query was judged, or a value made up for an unknown one.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::catalog::{ExperimentStatus, lag};
use super::problem::Problem;
use super::query::Query;
use super::serve::Shared;
use crate::table::{Page, PageMemory, SnapshotId, Source};

type Answer = Result<Response, Problem>;
type Name = Result<Path<String>, PathRejection>;

/// The longest name that is looked up.
const NAME_BYTES: usize = 253;

pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    match shared.catalog.ready() {
        true => "ok\n".into_response(),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the experiments have not been read yet\n",
        )
            .into_response(),
    }
}

pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let mut response = shared.metrics.render().into_response();
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    );
    response
}

pub(super) async fn nothing() -> Problem {
    Problem::no_route()
}

pub(super) async fn wrong_method() -> Problem {
    // The guard refuses every method but GET and HEAD before a handler is chosen.
    Problem::no_route()
}

#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    status: ExperimentStatus,
    lag_seconds: Option<f64>,
}

impl Told {
    fn new(status: ExperimentStatus) -> Self {
        let lag_seconds = status.lag_seconds(Timestamp::now());
        Self {
            status: ExperimentStatus {
                uri: without_credentials(&status.uri),
                ..status
            },
            lag_seconds,
        }
    }
}

/// A URI with neither user, password, query nor fragment. The catalog should have none in it; this makes sure.
fn without_credentials(uri: &str) -> String {
    match url::Url::parse(uri) {
        Ok(mut url) if url.has_host() => {
            url.set_query(None);
            url.set_fragment(None);
            let bare = url.set_username("").and_then(|()| url.set_password(None));
            match bare {
                // `az://container@account…` is no credential, but a host form of ours never has a user.
                Ok(()) => url.to_string(),
                Err(()) => String::new(),
            }
        }
        _ => uri.to_string(),
    }
}

fn as_json(body: Vec<u8>) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

fn told(body: &impl Serialize) -> Answer {
    match serde_json::to_vec(body) {
        Ok(body) => Ok(as_json(body)),
        Err(e) => Err(crate::table::Error::Bug(format!("an answer cannot be written: {e}")).into()),
    }
}

fn no_parameters(raw: Option<&str>) -> Result<(), Problem> {
    match raw.filter(|q| !q.is_empty()) {
        None => Ok(()),
        Some(_) => Err(Problem::parameter("", "this route takes no parameters")),
    }
}

fn named(name: Name) -> Result<String, Problem> {
    match name {
        Ok(Path(name)) if name.len() <= NAME_BYTES => Ok(name),
        _ => Err(Problem::no_experiment()),
    }
}

pub(super) async fn experiments(
    State(shared): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
) -> Answer {
    no_parameters(query.as_deref())?;
    let all: Vec<Told> = shared.catalog.list().into_iter().map(Told::new).collect();
    told(&json!({ "experiments": all }))
}

pub(super) async fn experiment(
    State(shared): State<Arc<Shared>>,
    name: Name,
    RawQuery(query): RawQuery,
) -> Answer {
    no_parameters(query.as_deref())?;
    let status = shared.catalog.get(&named(name)?);
    told(&Told::new(status.ok_or_else(Problem::no_experiment)?))
}

pub(super) async fn records(
    State(shared): State<Arc<Shared>>,
    name: Name,
    RawQuery(query): RawQuery,
) -> Answer {
    let query = Query::parse(query.as_deref())?;
    let name = named(name)?;
    let status = shared
        .catalog
        .get(&name)
        .ok_or_else(Problem::no_experiment)?;
    let table = shared.catalog.table(&name).await?;
    let table = table.ok_or_else(Problem::no_experiment)?;
    let page = shared
        .reader
        .page(&table, query.source, query.limit, query.offset)
        .await?;
    // Writing a large page takes a while: not on a thread that serves others.
    let writing = tokio::task::spawn_blocking(move || written(&query, page, &status));
    let (body, memory) = writing
        .await
        .map_err(|e| crate::table::Error::Bug(format!("writing a page ended badly: {e}")))??;
    Ok(sent(body.into(), memory))
}

/// A page as JSON, and the memory that it takes part of.
fn written(
    query: &Query,
    page: Page,
    status: &ExperimentStatus,
) -> Result<(Vec<u8>, PageMemory), crate::table::Error> {
    let mut body = b"{\"records\":[".to_vec();
    super::json::rows(&mut body, &page.batches)
        .map_err(|e| crate::table::Error::Bug(format!("a row cannot be written: {e}")))?;
    body.extend(b"],");
    // The envelope's own braces: what follows the records are the members of one more object.
    let rest = envelope(query, &page, status).to_string();
    body.extend(rest.as_bytes().get(1..).unwrap_or(b"}"));
    Ok((body, page.memory))
}

/// Bytes that are handed to a connection at once.
const PART: usize = 64 << 10;

/// An answer that takes its part of the memory until its last bytes are handed on: slow clients count.
fn sent(body: Bytes, memory: PageMemory) -> Response {
    let length = HeaderValue::from(body.len());
    let parts = stream::unfold((body, memory), |(mut rest, memory)| async move {
        let part = rest.split_to(rest.len().min(PART));
        (!part.is_empty()).then_some((Ok::<_, Infallible>(part), (rest, memory)))
    });
    let kind = HeaderValue::from_static("application/json");
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_LENGTH, length),
    ];
    (headers, Body::from_stream(parts)).into_response()
}

fn envelope(query: &Query, page: &Page, status: &ExperimentStatus) -> Value {
    json!({
        "has_more": page.has_more,
        "limit": query.limit,
        "offset": query.offset,
        "source": query.source.as_str(),
        "snapshot": snapshot(&page.snapshot),
        "generations_read": page.generations_read,
        "lag": match query.source {
            Source::Fragments => observed_lag(status),
            Source::Wal | Source::All => seen_lag(page),
        },
    })
}

fn snapshot(id: &SnapshotId) -> Value {
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
        "read_at": id.read_at,
    })
}

/// How far `fragments` lags, as last observed: nothing is looked at for it.
fn observed_lag(status: &ExperimentStatus) -> Value {
    json!({
        "seconds": status.lag_seconds(Timestamp::now()),
        "pending_generations": status.pending_generations,
        "oldest_pending_time": status.oldest_pending_time,
        "observed_time": status.observed_time,
    })
}

/// How far `fragments` lags, as this read saw it.
fn seen_lag(page: &Page) -> Value {
    let seconds = match page.oldest_pending {
        Some(oldest) => lag(oldest, Timestamp::now()),
        None => 0.0,
    };
    json!({
        "seconds": seconds,
        "pending_generations": page.generations_read,
        "oldest_pending_time": page.oldest_pending,
        "observed_time": page.snapshot.read_at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_a_uri_are_not_told() {
        for (uri, said) in [
            ("s3://bucket/table", "s3://bucket/table"),
            (
                "s3://key:secret@bucket/table?x=secret#secret",
                "s3://bucket/table",
            ),
            ("tables/one", "tables/one"),
        ] {
            assert_eq!(without_credentials(uri), said);
        }
    }
}
