//! The world of reads: real tables, read by source and served over a real socket.
//!
//! Lives here: that every source is what a model outside Lance says, whatever merges and drains run beside, and what the
//! server answers to whom. May use: the library's table room, engine, server and telemetry, the shared fixtures. Never: a sleep,
//! Kubernetes, or a look into the server's memory.

#[path = "../table/faults.rs"]
#[allow(dead_code)]
mod faults;
#[path = "../fixtures/mod.rs"]
mod fixtures;
#[path = "../table/mergers.rs"]
#[allow(dead_code)]
mod mergers;
#[path = "../engine/running.rs"]
#[allow(dead_code)]
mod running;

mod answers;
mod beside;
mod callers;
mod columns;
mod conditions;
mod cursors;
mod dictionaries;
mod doors;
mod floats;
mod ledger;
mod made_again;
mod orders;
mod points;
mod recorded;
mod rollouts;
mod routes;
mod served;
mod sources;
mod undecided;
mod waits;
mod walks;
