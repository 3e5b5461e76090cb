//! The built binary on real tables: exit codes, what is said, signals, and SIGKILL at every step.
//!
//! Lives here: tests that drive `freshet` as a process. May use: the fixtures. Never: Freshet as a library, save for the
//! names of its steps.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod commands;
mod killed;
mod memory;
mod process;
