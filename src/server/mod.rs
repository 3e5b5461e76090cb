//! The HTTP server: records by source, experiments, health and metrics. Read only.
//!
//! Lives here: routes, the forms of answers and of errors, and the trait through which whoever embeds the server names
//! its experiments (`Catalog`). May use: `table` for reading, `telemetry`. Must never come in: a write to a table, the
//! engine, Kubernetes, or a path of a file in an answer.
//!
//! ```text
//! request ─▶ guard ─▶ permit ─▶ deadline ─▶ query judged ─▶ catalog ─▶ table::Reader ─▶ JSON
//!               └── 4xx    └── 503     └── 504     └── 400      └── 404        └── problem+json
//! ```

mod asked;
mod catalog;
mod cursor;
mod etag;
mod facts;
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

pub use catalog::{Catalog, ExperimentStatus, Fragments, LastMerge, WhyNotNow};
pub use cursor::{BadKeys, CursorKeys};
pub use problem::PREFIX as PROBLEM_PREFIX;
pub use query::{DEFAULT_LIMIT, MAX_LIMIT};
pub use serve::{Config, Server};
