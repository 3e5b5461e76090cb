//! A store that remembers what was asked of it.
//!
//! Lives here: `Recorded`, which keeps every request's operation and path, and holds one of them while something else
//! happens. May use: the watched store.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lance_io::object_store::WrappingObjectStore;
use object_store::path::Path;
use tokio::sync::Notify;

use crate::fixtures::watched::{Operation, Watched, Witness};

/// Requests, in their order.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    requests: Arc<Mutex<Vec<String>>>,
    gate: Arc<Mutex<Option<Gate>>>,
}

/// Where the next request for a path with this in it waits.
#[derive(Debug, Clone)]
struct Gate {
    part: &'static str,
    reached: Arc<Notify>,
    go_on: Arc<Notify>,
}

impl Recorded {
    /// What a store is wrapped with.
    pub fn wrapper(&self) -> Arc<dyn WrappingObjectStore> {
        Arc::new(Watched(Arc::new(self.clone())))
    }

    /// The requests since the last call.
    pub fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    /// Runs `work`; its first reading of a path with `part` in it waits until `beside` has ended.
    pub async fn held<T>(
        &self,
        part: &'static str,
        work: impl Future<Output = T>,
        beside: impl Future<Output = ()>,
    ) -> T {
        let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        *self.gate.lock().unwrap() = Some(Gate {
            part,
            reached: reached.clone(),
            go_on: go_on.clone(),
        });
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            _ = &mut work => panic!("{part} was not read"),
            () = reached.notified() => {}
        }
        beside.await;
        go_on.notify_one();
        work.await
    }
}

#[async_trait]
impl Witness for Recorded {
    fn sees(&self, operation: Operation, path: &str) {
        let request = format!("{operation} {path}");
        self.requests.lock().unwrap().push(request);
    }

    async fn before_get(&self, at: &Path) {
        let gate = {
            let mut gate = self.gate.lock().unwrap();
            let here = gate.as_ref().is_some_and(|g| at.as_ref().contains(g.part));
            here.then(|| gate.take()).flatten()
        };
        if let Some(gate) = gate {
            gate.reached.notify_one();
            gate.go_on.notified().await;
        }
    }
}
