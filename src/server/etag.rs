//! Answers that a caller has already.
//!
//! Lives here: the `ETag` of a snapshot and a question, and whether `If-None-Match` names it. May use: a snapshot's
//! digest. Must never come in: a tag that two different snapshots, questions or releases share.

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use xxhash_rust::xxh3::xxh3_64;

use crate::table::SnapshotId;

/// A tag. It is weak: an answer says when it was read, too, and that moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tag(String);

impl Tag {
    pub fn of(snapshot: &SnapshotId, uri: &Uri) -> Self {
        Self::by(&snapshot.digest, uri)
    }

    /// Of a snapshot with this digest.
    pub fn by(digest: &str, uri: &Uri) -> Self {
        let asked = uri.path_and_query().map_or("", |t| t.as_str());
        let asked = xxh3_64(format!("{} {asked}", env!("CARGO_PKG_VERSION")).as_bytes());
        Self(format!("W/\"{digest}-{asked:016x}\""))
    }

    /// Whether the caller has this answer.
    pub fn is_known(&self, headers: &HeaderMap) -> bool {
        let own = self.0.trim_start_matches("W/");
        let said = headers.get_all(header::IF_NONE_MATCH).iter();
        said.filter_map(|v| v.to_str().ok())
            .flat_map(|v| v.split(','))
            .map(str::trim)
            // `*` names no answer that the caller has, and whether there is one is not known yet.
            .any(|t| t.trim_start_matches("W/") == own)
    }

    /// An answer with this tag: to be asked for again each time, and kept by nobody but the caller.
    pub fn on(&self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        if let Ok(tag) = HeaderValue::from_str(&self.0) {
            headers.insert(header::ETAG, tag);
        }
        let own = HeaderValue::from_static("private, no-cache");
        headers.insert(header::CACHE_CONTROL, own);
        response
    }

    pub fn not_modified(&self) -> Response {
        self.on(StatusCode::NOT_MODIFIED.into_response())
    }
}

/// Whether it is worth looking first: the caller has some answer.
pub(super) fn asks(headers: &HeaderMap) -> bool {
    headers.contains_key(header::IF_NONE_MATCH)
}
