//! The world of stores: tables in real object-store servers, and what becomes of work when the way to them breaks.
//!
//! Lives here: versitygw (S3) and Azurite (Azure Blob), one or both for each test on ports of its own, toxiproxy in front
//! where a connection has to break. May use: the library, the built binary, the fixtures, mergers of the table world.
//! Never: a store outside this machine, or a sleep.

// This world uses a part of each.
#[allow(dead_code)]
#[path = "../table/faults.rs"]
mod faults;
#[path = "../fixtures/mod.rs"]
mod fixtures;
#[allow(dead_code)]
#[path = "../table/mergers.rs"]
mod mergers;

mod answers;
mod cuts;
mod identity;
mod life;
mod process;
mod proxy;
mod races;
mod recorder;
mod redirects;
mod served;
mod servers;
