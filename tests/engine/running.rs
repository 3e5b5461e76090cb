//! A running engine over fixtures.
//!
//! Lives here: `Running`, with policies that make it act at once. May use: the engine. Never: a sleep.

use std::sync::Arc;
use std::time::Duration;

use freshet::engine::{Config, Engine, Statuses, TableSpec, TableStatus};
use freshet::plan::{Policy, TableId};
use freshet::table::{Location, Stores, StoresConfig};
use freshet::telemetry::{CountedStores, Metrics};
use tokio::sync::watch;

use crate::fixtures::Fixture;

/// Until what hangs is a failure.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Running {
    pub engine: Engine,
    pub metrics: Arc<Metrics>,
    statuses: watch::Receiver<Statuses>,
}

/// Looks often, tries quarantined generations again at once.
pub fn quick() -> Config {
    Config {
        poll: Duration::from_millis(20),
        stop_grace: Duration::from_millis(1),
        ..Default::default()
    }
}

/// Merges whatever is pending at once; reclaims soon.
pub fn eager() -> Policy {
    Policy {
        target: Duration::from_secs(1),
        merge_at_generations: 1,
        drain_delay: Duration::from_millis(20),
        grace: Duration::from_millis(500),
        ..Default::default()
    }
}

/// Merges nothing for an hour.
pub fn patient() -> Policy {
    Policy {
        target: Duration::from_secs(2 * 3600),
        ..Default::default()
    }
}

pub fn table(name: &str, t: &Fixture, policy: Policy) -> TableSpec {
    TableSpec {
        id: TableId::from(name),
        namespace: "alder".into(),
        location: Location::new(&t.uri),
        policy,
        suspended: false,
        acknowledged: vec![],
        grace_before: None,
    }
}

impl Running {
    pub fn start(config: Config, tables: Vec<TableSpec>) -> Self {
        let metrics = Arc::new(Metrics::new());
        let stores = Stores::new(StoresConfig {
            wrapper: Some(Arc::new(CountedStores::new(metrics.clone()))),
            ..Default::default()
        });
        let engine = Engine::start(config, Arc::new(stores), metrics.clone());
        engine.set_tables(tables);
        Self {
            statuses: engine.statuses(),
            metrics,
            engine,
        }
    }

    /// Waits until a table's status is as wanted.
    pub async fn until(&mut self, name: &str, what: impl Fn(&TableStatus) -> bool) -> TableStatus {
        let id = TableId::from(name);
        let told = self.statuses.clone();
        let waited = tokio::time::timeout(
            PATIENCE,
            self.statuses
                .wait_for(|all| all.get(&id).is_some_and(&what)),
        );
        match waited.await {
            Ok(found) => found.unwrap()[&id].clone(),
            Err(_) => panic!("it did not come to that: {:?}", told.borrow().get(&id)),
        }
    }

    /// Waits until nothing of a table is pending in a look that began after now.
    pub async fn until_fresh(&mut self, name: &str) -> TableStatus {
        let since = jiff::Timestamp::now();
        self.until(name, |s| {
            s.observed_at.is_some_and(|at| at > since) && s.pending_generations == Some(0)
        })
        .await
    }

    /// Waits until a table is known no more.
    pub async fn until_gone(&mut self, name: &str) {
        let id = TableId::from(name);
        let gone = self.statuses.wait_for(|all| !all.contains_key(&id));
        drop(tokio::time::timeout(PATIENCE, gone).await.unwrap().unwrap());
    }

    /// How many requests of an operation were made to stores.
    pub fn requests(&self, operation: &str) -> f64 {
        let text = self.metrics.render();
        let lines = text.lines().filter(|l| {
            l.starts_with("freshet_store_requests_total")
                && l.contains(&format!("operation=\"{operation}\""))
        });
        lines
            .map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }
}
