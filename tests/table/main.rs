//! The world of tables: real ones, written through MemWAL, on a local disk.
//!
//! Lives here: what the table room promises, shown on tables and judged by a model outside Lance. May use: the library's
//! table room, the shared fixtures. Never: Kubernetes, HTTP, a sleep.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod again;
mod anomalies;
mod basics;
mod blobs;
mod broken;
mod comparison;
mod contracts;
mod disk;
mod evolution;
mod faults;
mod hostile;
mod keyless;
mod lineage;
mod mergers;
mod pauses;
mod reference;
mod refusals;
mod schedule;
mod schedules;
