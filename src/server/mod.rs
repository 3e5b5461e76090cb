//! The HTTP server: records by source, experiments, health and metrics. Read only.
//!
//! Lives here: routes, the forms of answers and of errors, and the trait through which whoever embeds the server names
//! its experiments (`Catalog`). May use: `table` for reading, `telemetry`. Must never come in: a write to a table, the
//! engine, Kubernetes, or a path of a file in an answer.

mod catalog;

pub use catalog::{Catalog, ExperimentStatus, Fragments, LastMerge, WhyNotNow};
