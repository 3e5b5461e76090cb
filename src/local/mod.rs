//! The room `local`: the engine and the server in one process, over a folder of manifests.
//!
//! Lives here: `run` (the role), reading and watching manifests, the server's catalog, credentials from files, and the
//! demo. May use: every room but the command line. Must never come in: a cluster, or a rule of its own about Experiments
//! (they are `api`'s).

pub mod demo;
pub mod manifests;

mod catalog;
mod cursor_keys;
mod role;
mod secrets;
mod specs;
mod watch;

pub use role::{Error, Options, Up, run};
