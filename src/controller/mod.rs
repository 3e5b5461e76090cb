//! The Kubernetes shell: watch, observe, plan, act, report; who leads; whether the process is well.
//!
//! Lives here: everything that speaks to an API server, and nothing else does. May use: every room but `local` and
//! `cli`, kube. Must never come in: a decision about a table (`plan`), work on one (`engine`), or anything that is safe
//! only because the Lease is held.

pub mod access;
mod cluster;
pub mod conditions;
mod counted;
mod desk;
mod endpoints;
mod finalize;
pub mod health;
pub mod lease;
mod news;
mod refused;
mod role;
mod row;
mod secrets;
pub mod served;
pub mod settings;
mod specs;
mod status;
mod writes;

pub use cluster::NoCluster;
pub use role::{Error, Options, Up, run};
pub use settings::Settings;
