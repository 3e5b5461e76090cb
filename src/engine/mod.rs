//! The room `engine`: does what is planned, and keeps account of it.
//!
//! Lives here: `Engine` (one task that looks at tables, asks `plan`, and starts work) and `sweep` (one run over one
//! table, for a person or a Job). May use: `api`, `plan`, `table`, `telemetry`, tokio. Must never come in: Kubernetes,
//! HTTP, manifests, or a decision that `plan` should take.
//!
//! ```text
//! look ──▶ views ──▶ plan ──▶ start: work under a ticket ──▶ ended ──▶ look
//!  ▲ poll                      (bytes, slots, permit: what runs)          │
//!  └──────────────────────────────────────────────────────────────────────┘
//! ```

mod config;
mod dispatch;
mod entry;
mod experiment;
mod grace;
mod look;
mod pace;
mod quarantine;
mod status;
mod sweep;
mod tell;
mod ticket;
mod views;
mod work;

pub use config::{Config, LOOK_WITHIN, TableSpec};
pub use dispatch::Engine;
pub use pace::Pace;
pub use status::{LastMerge, Leftovers, QuarantinedGeneration, Statuses, TableStatus};
pub use sweep::{Blocked, Caps, Lanes, Quarantined, Sweep, SweepError, Swept, Taken, Wish};
