//! A server on a real socket, and a client that says exactly what it is told to.
//!
//! Lives here: `Tables`, a catalog over tables that counts what it is asked; `Served`, a running server; `Answer`. May
//! use: tokio's sockets. Never: an HTTP library, whose good manners would hide what the server refuses.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use freshet::server::{
    Authoriser, Catalog, Config, CursorKeys, ExperimentStatus, Open, Server, Unopened,
};
use freshet::table::{Location, Stores, StoresConfig, Table};
use freshet::telemetry::Metrics;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Experiments by name. A table is opened when it is first asked for.
pub struct Tables {
    pub experiments: BTreeMap<String, ExperimentStatus>,
    pub stores: Stores,
    pub asked: AtomicUsize,
}

impl Tables {
    pub fn new(config: StoresConfig) -> Self {
        Self {
            experiments: BTreeMap::new(),
            stores: Stores::new(config),
            asked: AtomicUsize::new(0),
        }
    }

    pub fn with(mut self, status: ExperimentStatus) -> Self {
        self.experiments.insert(status.name.clone(), status);
        self
    }

    /// A table whose files are kept for readers for so many seconds.
    pub fn with_kept(self, name: &str, uri: &str, grace: f64) -> Self {
        self.with(ExperimentStatus {
            name: name.into(),
            namespace: "alder".into(),
            uri: uri.into(),
            grace_seconds: Some(grace),
            ..Default::default()
        })
    }

    pub fn with_table(self, name: &str, uri: &str) -> Self {
        self.with(ExperimentStatus {
            name: name.into(),
            uri: uri.into(),
            ..Default::default()
        })
    }
}

#[async_trait]
impl Catalog for Tables {
    fn list(&self) -> Vec<ExperimentStatus> {
        self.experiments.values().cloned().collect()
    }

    fn get(&self, namespace: Option<&str>, name: &str) -> Option<ExperimentStatus> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let found = self.experiments.get(name);
        let found = found.filter(|e| namespace.is_none_or(|n| n == e.namespace));
        found.cloned()
    }

    async fn table(&self, of: &ExperimentStatus) -> Result<Option<Arc<Table>>, Unopened> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.experiments.get(&of.name) {
            None => Ok(None),
            Some(e) => {
                let table = Table::open(&self.stores, &Location::new(&e.uri)).await?;
                Ok(Some(Arc::new(table)))
            }
        }
    }
}

/// A running server.
pub struct Served {
    pub address: SocketAddr,
    pub metrics: Arc<Metrics>,
    pub tables: Arc<Tables>,
    pub stop: CancellationToken,
    pub task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Served {
    pub async fn new(tables: Tables) -> Self {
        Self::with(tables, Config::default()).await
    }

    pub async fn with(tables: Tables, config: Config) -> Self {
        Self::made(tables, config, Arc::new(Open), CursorKeys::default()).await
    }

    /// One that lets in whom `authority` does.
    pub async fn for_callers(
        tables: Tables,
        config: Config,
        authority: Arc<dyn Authoriser>,
    ) -> Self {
        Self::made(tables, config, authority, CursorKeys::default()).await
    }

    /// One whose cursors are signed.
    pub async fn signing(tables: Tables, config: Config, keys: CursorKeys) -> Self {
        Self::made(tables, config, Arc::new(Open), keys).await
    }

    async fn made(
        tables: Tables,
        config: Config,
        authority: Arc<dyn Authoriser>,
        keys: CursorKeys,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (metrics, tables) = (Arc::new(Metrics::new()), Arc::new(tables));
        let stop = CancellationToken::new();
        let server = Server::new(tables.clone(), metrics.clone(), config).with_cursor_keys(keys);
        let server = server.authorised_by(authority);
        let task = tokio::spawn(server.serve(listener, stop.clone()));
        Self {
            address,
            metrics,
            tables,
            stop,
            task,
        }
    }

    /// GET of a path and query.
    pub async fn get(&self, target: &str) -> Answer {
        self.say(&format!(
            "GET {target} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            self.address
        ))
        .await
    }

    /// The records of an experiment, with this query.
    pub async fn records(&self, name: &str, query: &str) -> Answer {
        self.get(&format!("/api/v1/experiments/{name}/records{query}"))
            .await
    }

    /// Sends these bytes and reads what comes until the server closes.
    pub async fn say(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // The server may close before it has read all of a request that it refuses.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut bytes = vec![];
        let _ = stream.read_to_end(&mut bytes).await;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
        Answer {
            status: status.unwrap_or(0),
            head: head.to_lowercase(),
            body: body.to_string(),
        }
    }
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and headers, in lower case.
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub fn records(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()["records"].as_array().unwrap().clone()
    }

    /// The kind of a problem, after checking that it has the form of one.
    pub fn problem(&self) -> String {
        assert!(
            self.head.contains("content-type: application/problem+json"),
            "{self:?}"
        );
        let json = self.json();
        assert_eq!(json["status"], self.status);
        assert!(json["title"].is_string() && json["detail"].is_string());
        let kind = json["type"].as_str().unwrap();
        kind.strip_prefix(freshet::server::PROBLEM_PREFIX)
            .unwrap()
            .to_string()
    }
}
