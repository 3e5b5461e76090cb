//! The engine on real tables: what it merges, what stops it, and what it leaves alone.
//!
//! Lives here: tests that start an `Engine` and wait for what its statuses say. May use: the fixtures. Never: a clock as a
//! verdict.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod life;
mod running;
