//! The HTTP server: records by source, experiments, health and metrics. Read only.
//!
//! Lives here: routes, the forms of answers and of errors, and the traits through which whoever embeds the server names
//! its experiments (`Catalog`) and lets callers in (`Authoriser`). May use: `table` for reading, `telemetry`. Must never come in: a write to a table, the
//! engine, Kubernetes, or a path of a file in an answer.
//!
//! ```text
//! request ─▶ guard ─▶ authority ─▶ permit ─▶ deadline ─▶ query judged ─▶ catalog ─▶ table::Reader ─▶ JSON
//!               └── 4xx   └── 401, 403  └── 503     └── 504     └── 400      └── 404        └── problem+json
//! ```

mod asked;
mod authority;
mod catalog;
mod cursor;
mod etag;
mod facts;
mod generic;
mod guard;
mod index;
mod json;
mod key;
mod members;
mod point;
mod problem;
mod query;
mod records;
mod rollouts;
mod routes;
mod serve;
pub mod tls;
mod wait;

pub use authority::{Authoriser, Caller, Identity, Open, Refused, Sight};
pub use catalog::{Catalog, ExperimentStatus, Fragments, LastMerge, Unopened, WhyNotNow};
pub use cursor::{BadKeys, CursorKeys};
pub use problem::PREFIX as PROBLEM_PREFIX;
pub use query::{DEFAULT_LIMIT, MAX_LIMIT};
pub use serve::{Config, Server};
