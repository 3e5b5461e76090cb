//! Freshet keeps Lance tables that are written through MemWAL fresh.
//!
//! The rooms, from the bottom up: `api` (the Experiment resource), `table` (everything Lance), `plan` (what to do
//! next, pure), `telemetry` (metrics and logs), `engine` (runs plans), `server` (HTTP, read only), `cluster` (the way to
//! an API server), and the roles: `local` (engine and server over a folder of manifests), `controller` (the engine inside a
//! cluster), `reader` (the server inside a cluster). Arrows point down only; `tests/rooms` keeps them.

pub mod api;
pub mod cluster;
pub mod controller;
pub mod engine;
pub mod local;
pub mod plan;
pub mod reader;
pub mod server;
pub mod table;
pub mod telemetry;
