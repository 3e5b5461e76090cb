//! Errors as people and programs read them: `application/problem+json`.
//!
//! Lives here: `Problem`, its closed set of types, and the reading of the table room's errors into them. May use: the
//! table room's error types. Must never come in: a path, a store's answer, or a message of a library: details are
//! sentences of ours.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::catalog::Unopened;
use crate::table::{Error, ReadError};

/// What types of problems start with; what follows is the kind, from a closed set.
pub const PREFIX: &str = "urn:freshet:problem:";

/// Seconds after which a request that met a busy or unreachable part may be tried again.
const RETRY_SECONDS: &str = "1";

/// The kind of a problem with the credentials of a table.
const STORE_REFUSED: &str = "store-refused";

/// On an answer that says that a store refused the credentials of a table: whoever gave them should look at them again.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreRefused;

/// An answer that says why there is no other.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    pub status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    more: Map<String, Value>,
    retry: bool,
}

impl Problem {
    pub fn new(
        status: StatusCode,
        kind: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            status,
            kind,
            title,
            detail: detail.into(),
            more: Map::new(),
            retry: false,
        }
    }

    /// With a member of its own.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.into(), value.into());
        self
    }

    /// With the hint that another try may go well.
    pub fn retry(mut self) -> Self {
        self.retry = true;
        self
    }

    /// With the member by which lance-context's client knows an error.
    pub fn with_error(self) -> Self {
        let code = self.kind.to_uppercase().replace('-', "_");
        let error = json!({"code": code, "message": self.detail});
        self.with("error", error)
    }

    pub fn parameter(name: &str, detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid-parameter",
            "A parameter is wrong",
            detail,
        )
        .with("parameter", name)
    }

    /// `parameter` is what does not fit: the cursor itself, or what it was not made for.
    pub fn invalid_cursor(parameter: &str, detail: impl Into<String>) -> Self {
        let (kind, title) = ("invalid-cursor", "The cursor cannot be used");
        Self::new(StatusCode::BAD_REQUEST, kind, title, detail).with("parameter", parameter)
    }

    pub fn cursor_unknown(detail: impl Into<String>) -> Self {
        let (kind, title) = ("cursor-unknown", "The cursor is of another server");
        Self::new(StatusCode::BAD_REQUEST, kind, title, detail).with("parameter", "cursor")
    }

    pub fn cursor_expired(expired: &str) -> Self {
        Self::new(
            StatusCode::GONE,
            "cursor-expired",
            "The cursor has expired",
            format!("the cursor was good until {expired}; start again without it"),
        )
        .with("expired", expired)
    }

    pub fn snapshot_gone(detail: impl Into<String>) -> Self {
        let (kind, title) = ("snapshot-gone", "The snapshot is gone");
        Self::new(StatusCode::GONE, kind, title, detail)
    }

    pub fn no_experiment() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "experiment-not-found",
            "No such experiment",
            "there is no experiment of this name; /api/v1/experiments lists those there are",
        )
    }

    pub fn not_ready() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not-ready",
            "Not known yet",
            "the experiments have not been read yet; try again",
        )
        .retry()
    }

    pub fn no_route() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "route-not-found",
            "No such route",
            "there is nothing at this path; see /api/v1/experiments",
        )
    }

    pub fn no_record() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "record-not-found",
            "No such record",
            "the source holds no record of this key; source=all holds every record that there is",
        )
    }

    pub fn deleted(shard: uuid::Uuid, generation: u64) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "record-deleted",
            "The record is deleted",
            format!(
                "generation {generation} of shard {shard}, which is not merged yet, deletes the record"
            ),
        )
        .with("shard", shard.to_string())
        .with("generation", generation)
    }

    pub fn deadline() -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "deadline-exceeded",
            "The request took too long",
            "the answer was not ready in time; ask for fewer rows, or for source=fragments",
        )
        .retry()
    }

    pub fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "Too many requests at once",
            "as many requests as this server answers at once are under way; try again in a moment",
        )
        .retry()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = self.more;
        body.insert("type".into(), format!("{PREFIX}{}", self.kind).into());
        body.insert("title".into(), self.title.into());
        body.insert("status".into(), json!(self.status.as_u16()));
        body.insert("detail".into(), self.detail.into());
        let mut response = (self.status, Value::Object(body).to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if self.retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let by = HeaderValue::from_static("Bearer realm=\"freshet\"");
            headers.insert(header::WWW_AUTHENTICATE, by);
        }
        if self.kind == STORE_REFUSED {
            response.extensions_mut().insert(StoreRefused);
        }
        response
    }
}

impl From<Unopened> for Problem {
    fn from(e: Unopened) -> Self {
        let unavailable =
            |kind, title, detail| Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, title, detail);
        match e {
            Unopened::Table(e) => e.into(),
            Unopened::NotAllowed(why) => Self::new(
                StatusCode::FORBIDDEN,
                "table-not-allowed",
                "The experiment's table may not be opened",
                why,
            ),
            Unopened::Credentials(why) => unavailable(
                "credentials-missing",
                "The experiment's credentials are missing",
                why,
            ),
            Unopened::Unreachable(why) => unavailable(
                "store-unreachable",
                "The store does not answer",
                why,
            )
            .retry(),
            Unopened::Unreadable => unavailable(
                "spec-invalid",
                "The experiment cannot be read",
                "the object cannot be read as an Experiment of this release; its condition Ready says why".into(),
            ),
            Unopened::NotYet => unavailable(
                "not-ready",
                "Not known yet",
                "the cluster's API server was not heard yet on what opens this table; try again".into(),
            )
            .retry(),
        }
    }
}

impl From<ReadError> for Problem {
    fn from(e: ReadError) -> Self {
        let unavailable = |kind, title| {
            Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, title, e.to_string()).retry()
        };
        match &e {
            ReadError::Table(_) => {}
            ReadError::UnknownColumn { column, .. } => {
                return Self::parameter(column, e.to_string());
            }
            ReadError::BadValue { column, .. } => return Self::parameter(column, e.to_string()),
            ReadError::BadCondition { .. } => return Self::parameter("where", e.to_string()),
            ReadError::BadOrder { .. } => return Self::parameter("order", e.to_string()),
            ReadError::TooDeep { limit } => {
                return Self::parameter("offset", e.to_string()).with("limit", *limit);
            }
            ReadError::SnapshotGone { .. } => return Self::snapshot_gone(e.to_string()),
            ReadError::BadKey { .. } => return Self::parameter("key", e.to_string()),
            ReadError::PayloadTooLarge { limit, .. } => {
                return Self::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "payload-too-large",
                    "The payload is too large",
                    e.to_string(),
                )
                .with("limit_bytes", *limit);
            }
            ReadError::Busy { limit } => {
                return unavailable("busy", "Too many rows are under way")
                    .with("limit_bytes", *limit);
            }
            ReadError::TooManyPending { pending, limit } => {
                return unavailable("too-many-pending", "Too many generations are pending")
                    .with("pending", *pending)
                    .with("limit", *limit);
            }
            ReadError::KeysTooLarge { limit } => {
                return unavailable("keys-too-large", "Too many keys are pending")
                    .with("limit_bytes", *limit);
            }
            ReadError::PageTooLarge { limit } => {
                return Self::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "page-too-large",
                    "The page is too large",
                    e.to_string(),
                )
                .with("limit_bytes", *limit);
            }
        }
        match e {
            ReadError::Table(e) => e.into(),
            _ => internal(e.reason()),
        }
    }
}

impl From<Error> for Problem {
    fn from(e: Error) -> Self {
        let unavailable = |kind, title, detail: &str| {
            Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, title, detail)
                .with("reason", e.reason())
        };
        match &e {
            Error::TableNotFound(_) => Self::new(
                StatusCode::NOT_FOUND,
                "table-not-found",
                "The experiment has no table yet",
                "there is no Lance table at the experiment's place; a writer may create it later, or the place is wrong",
            ),
            // These messages are sentences of the table room's own, with a shard and a number in them and no path.
            Error::GenerationUnreadable {
                shard, generation, ..
            }
            | Error::SchemaMismatch {
                shard, generation, ..
            }
            | Error::GenerationRefused {
                shard, generation, ..
            } => unavailable(
                "generation-unreadable",
                "A pending generation cannot be read",
                &format!("{e}; source=fragments goes on without it"),
            )
            .with("shard", shard.to_string())
            .with("generation", *generation),
            Error::UnsupportedManifest { shard, .. } => unavailable(
                "shard-unreadable",
                "A shard's manifest cannot be used",
                &format!("{e}; source=fragments goes on without it"),
            )
            .with("shard", shard.to_string()),
            Error::CredentialsRejected(_) => unavailable(
                STORE_REFUSED,
                "The store refused the credentials",
                "the store refused the credentials of this experiment; check the key, its rights and its expiry",
            ),
            Error::StoreUnreachable(_)
            | Error::StoreRedirects { .. }
            | Error::Conflict(_)
            | Error::DeadlineExceeded => unavailable(
                "store-unreachable",
                "The store does not answer",
                "the experiment's store could not be reached; try again",
            )
            .retry(),
            Error::NotALanceTable(..)
            | Error::NotMemWal(_)
            | Error::Unsupported { .. }
            | Error::ForeignBase(_)
            | Error::BadOption { .. } => unavailable(
                "table-unsupported",
                "The experiment's table is refused",
                "the table is of a kind that is refused; the experiment's status says why",
            ),
            Error::Corrupt { .. } => unavailable(
                "table-corrupt",
                "The experiment's table cannot be read",
                "a part of the table cannot be read; restore a good version",
            ),
            Error::OverBudget { .. } => unavailable(
                "over-budget",
                "The read needs too much memory",
                "the read needs more memory than reads may take; ask for fewer rows",
            ),
            _ => {
                tracing::error!(reason = e.reason(), error = %e, "a read failed");
                internal(e.reason())
            }
        }
    }
}

fn internal(reason: &'static str) -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "The server failed",
        "the read failed in a way that should not be; the server's log says more",
    )
    .with("reason", reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_uri_and_no_message_of_a_library_is_told() {
        let secret = "s3://bucket/secret-path";
        for e in [
            Error::TableNotFound(secret.into()),
            Error::NotALanceTable(secret.into(), secret.into()),
            Error::Unsupported {
                what: secret.into(),
                remedy: "none".into(),
            },
            Error::ForeignBase(secret.into()),
            Error::Corrupt {
                what: secret.into(),
            },
            Error::Bug(secret.into()),
        ] {
            let problem = Problem::from(e);
            let told = format!("{} {:?}", problem.detail, problem.more);
            assert!(!told.contains("secret"), "{told}");
        }
    }

    #[test]
    fn an_unreadable_generation_is_named() {
        let problem = Problem::from(Error::GenerationUnreadable {
            shard: uuid::Uuid::from_u128(7),
            generation: 12,
            what: "its data file is not there".into(),
        });
        assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(problem.more["generation"], 12);
    }
}
