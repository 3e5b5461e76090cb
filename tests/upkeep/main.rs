//! The world of upkeep: what happens to tables besides merges, on real tables written by Lance's own MemWAL writer.
//!
//! Lives here: reclaim, compaction, index upkeep, old versions and tails, each shown by what is left on disk and by what an
//! ordinary reader sees. May use: the library's table room, the shared fixtures. Never: Kubernetes, HTTP, a sleep.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod compaction;
mod counting;
mod desk;
mod idle;
mod indexes;
mod orphans;
mod reclaim;
mod tails;
mod versions;
