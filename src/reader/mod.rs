//! The reader: the server inside a cluster, for whoever the cluster says may read.
//!
//! Lives here: the catalog of the Experiments that are watched, opening their tables after the checks that the controller
//! makes, and asking the API server who callers are and what they may. May use: `server`, `cluster`, `table`'s opening. Must never come
//! in: a write to a table or to the API server (but the two kinds of review, which are written to be answered), state
//! that another replica would miss.
//!
//! ```text
//! watch ─▶ shelf ◀── server ──▶ reviewer ─▶ TokenReview, SubjectAccessReview
//!            │                     └── kept for seconds
//!            └─▶ opener: grant ─▶ endpoint ─▶ Secret ─▶ table
//! ```

mod kept;
mod opener;
mod reviewer;
mod reviews;
mod role;
mod shelf;
mod token;
mod told;

pub use role::{Error, Options, Security, Up, run};
