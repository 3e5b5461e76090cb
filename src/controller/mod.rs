//! The Kubernetes shell: watch, observe, plan, act, report; who leads; whether the process is well.
//!
//! Lives here: everything that speaks to an API server, and nothing else does. May use: every room but `local` and
//! `cli`, kube. Must never come in: a decision about a table (`plan`), work on one (`engine`), or anything that is safe
//! only because the Lease is held.

pub mod access;
pub mod conditions;
pub mod desk;
pub mod endpoints;
pub mod finalize;
pub mod health;
pub mod lease;
pub mod news;
pub mod row;
pub mod secrets;
pub mod served;
pub mod settings;
pub mod specs;
pub mod status;
pub mod writes;

pub use settings::Settings;
