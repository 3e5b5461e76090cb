//! The way to an API server, and what may be touched there and in stores: what every role inside a cluster shares.
//!
//! Lives here: the client and the watch, Secrets by name, the grants and allowed endpoints of whoever runs it, the file
//! that says them, and the process's health. May use: `api`, `table`'s door, `telemetry`, kube. Must never come in: a
//! write to an Experiment, a decision about a table's work, an answer to a user.

pub mod access;
pub mod client;
mod counted;
pub mod endpoints;
pub mod health;
pub mod permit;
mod refused;
pub mod secrets;
pub mod served;
pub mod settings;

pub use client::{Cluster, NoCluster};
pub use settings::Settings;
