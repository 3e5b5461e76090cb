//! What Freshet tells machines about itself: metrics and logs.
//!
//! Lives here: the metrics registry with a plain API for those who measure (`Metrics`), the counter that wraps object
//! stores (`CountedStores`), and the set-up of logs. May use: prometheus, tracing, object_store's traits. Must never come
//! in: another room, a decision, or a 0 for what is unknown (contract 16).

mod conventional;
mod logs;
mod metrics;
mod reference;
mod requests;

pub use conventional::{ControllerMetrics, Queued, Working};
pub use logs::{Format, LogError, init};
pub use metrics::{Backlog, MergeResult, Metrics};
pub use reference::{Definition, METRICS, reference};
pub use requests::CountedStores;
