//! The experiments, health and metrics.
//!
//! Lives here: the answers that need no store. May use: the catalog, metrics. Must never come in: a request to a store,
//! or a value made up for an unknown one.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::asked::Asked;
use super::catalog::ExperimentStatus;
use super::problem::Problem;
use super::serve::Shared;

pub(super) type Answer = Result<Response, Problem>;

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
pub(super) fn without_credentials(uri: &str) -> String {
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

pub(super) fn told(body: &impl Serialize) -> Answer {
    match serde_json::to_vec(body) {
        Ok(body) => Ok(as_json(body)),
        Err(e) => Err(crate::table::Error::Bug(format!("an answer cannot be written: {e}")).into()),
    }
}

pub(super) async fn experiments(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    asked.no_parameters()?;
    let all = asked.experiments(&shared).await?;
    let all: Vec<Told> = all.into_iter().map(Told::new).collect();
    told(&json!({ "experiments": all }))
}

pub(super) async fn experiment(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    asked.no_parameters()?;
    told(&Told::new(asked.experiment(&shared)?))
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
