//! Freshet keeps Lance tables that are written through MemWAL fresh.
//!
//! The rooms, from the bottom up: `api` (the Experiment resource), `table` (everything Lance), `plan` (what to do
//! next, pure), `engine` (runs plans), `server` (HTTP, read only), `local` (engine and server over a folder of
//! manifests), `telemetry` (metrics and logs). Arrows point down only; `tests/rooms` keeps them.

pub mod api;
pub mod controller;
pub mod engine;
pub mod local;
pub mod plan;
pub mod server;
pub mod table;
pub mod telemetry;
