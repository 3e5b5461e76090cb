//! A store that counts what is asked of it.
//!
//! Lives here: `Counts`, and a configuration whose stores are counted. May use: the watched store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use freshet::table::StoresConfig;

use crate::fixtures::watched::{Operation, Watched, Witness};

/// Requests that were made.
#[derive(Debug, Default)]
pub struct Counts {
    reads: AtomicUsize,
    writes: AtomicUsize,
}

impl Counts {
    /// How many requests read and how many wrote since this was asked last.
    pub fn take(&self) -> (usize, usize) {
        (
            self.reads.swap(0, Ordering::SeqCst),
            self.writes.swap(0, Ordering::SeqCst),
        )
    }
}

impl Witness for Counts {
    fn sees(&self, operation: Operation, _: &str) {
        let count = match operation.writes() {
            true => &self.writes,
            false => &self.reads,
        };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// A configuration whose stores count, and the counts.
pub fn counting() -> (StoresConfig, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let config = StoresConfig {
        wrapper: Some(Arc::new(Watched(counts.clone()))),
        ..Default::default()
    };
    (config, counts)
}
