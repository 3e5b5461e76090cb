//! The room `engine`: does what is planned, and keeps account of it.
//!
//! Lives here: `sweep` (one run over one table, for a person or a Job). May use: `plan`, `table`, `telemetry`, tokio.
//! Must never come in: Kubernetes, HTTP, manifests, or a decision that `plan` should take.

mod sweep;

pub use sweep::{Blocked, Caps, Lanes, Quarantined, Sweep, SweepError, Swept, Taken, Wish};
