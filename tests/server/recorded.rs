//! A store that remembers what was asked of it.
//!
//! Lives here: `Recorded`, which keeps every request's operation and path. May use: the watched store.

use std::sync::{Arc, Mutex};

use lance_io::object_store::WrappingObjectStore;

use crate::fixtures::watched::{Operation, Watched, Witness};

/// Requests, in their order.
#[derive(Debug, Clone, Default)]
pub struct Recorded(Arc<Mutex<Vec<String>>>);

impl Recorded {
    /// What a store is wrapped with.
    pub fn wrapper(&self) -> Arc<dyn WrappingObjectStore> {
        Arc::new(Watched(Arc::new(self.clone())))
    }

    /// The requests since the last call.
    pub fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Witness for Recorded {
    fn sees(&self, operation: Operation, path: &str) {
        self.0.lock().unwrap().push(format!("{operation} {path}"));
    }
}
