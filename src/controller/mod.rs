//! The Kubernetes shell: watch, observe, plan, act, report; who leads.
//!
//! Lives here: everything that writes to an API server, and nothing else does. May use: `cluster`, `engine` and what is
//! below them, kube. Must never come in: a decision about a table (`plan`), work on one (`engine`), or anything that is safe
//! only because the Lease is held.

pub mod conditions;
mod desk;
mod finalize;
pub mod lease;
mod news;
mod reports;
mod role;
mod row;
mod specs;
mod status;
mod writes;

pub use role::{Error, Options, Up, run};
