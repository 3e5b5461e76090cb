//! A proxy before a server, whose connections break or hang when they are told to.
//!
//! Lives here: `Proxy` (toxiproxy, driven through its own API), and `Trap`, which springs it at one write of a store's
//! client. May use: toxiproxy. Never: a break by time or chance.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use lance_io::object_store::WrappingObjectStore;
use object_store::path::Path;
use serde_json::{Value, json};

use crate::fixtures::watched::{Watched, Witness};
use crate::servers::{Guarded, program, start};

/// How a connection goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// Nothing arrives at the server any more.
    Cut,
    /// What is asked arrives; no answer does, and the connection ends.
    LostAnswer,
    /// Nothing arrives and nothing ends.
    Hang,
}

/// A proxy before one server.
#[derive(Clone)]
pub struct Proxy {
    api: SocketAddr,
    /// Where a client connects.
    pub at: SocketAddr,
    client: reqwest::Client,
    _process: Arc<Guarded>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "proxy at {}", self.at)
    }
}

impl Proxy {
    pub async fn before(server: SocketAddr) -> Self {
        let (process, api) = start(|at| {
            let mut command = program("toxiproxy");
            let port = at.port().to_string();
            command.args(["-host", "127.0.0.1", "-port", &port]);
            command
        });
        let mut made = Self {
            api,
            at: api,
            client: reqwest::Client::new(),
            _process: Arc::new(process),
        };
        let wanted =
            json!({ "name": "store", "listen": "127.0.0.1:0", "upstream": server.to_string() });
        let told = made.ask("proxies", wanted).await;
        made.at = told["listen"].as_str().unwrap().parse().unwrap();
        made
    }

    async fn ask(&self, path: &str, body: Value) -> Value {
        let url = format!("http://{}/{path}", self.api);
        let sent = self.client.post(url).body(body.to_string()).send().await;
        let answer = sent.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert!(status.is_success(), "{path}: {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    pub async fn spring(&self, how: Break) {
        let toxic = |kind: &str, stream: &str, attributes: Value| json!({ "name": stream, "type": kind, "stream": stream, "attributes": attributes });
        let one = match how {
            Break::Cut => {
                self.ask("proxies/store", json!({ "enabled": false })).await;
                return;
            }
            // 200 ms after the first byte of an answer is swallowed the connection ends.
            Break::LostAnswer => toxic("timeout", "downstream", json!({ "timeout": 200 })),
            Break::Hang => toxic("timeout", "upstream", json!({ "timeout": 0 })),
        };
        self.ask("proxies/store/toxics", one).await;
    }

    /// Everything works again.
    pub async fn heal(&self) {
        self.ask("reset", json!({})).await;
    }
}

/// Springs a proxy at the first write under a folder of the table, before the write is sent.
#[derive(Debug, Clone)]
pub struct Trap {
    proxy: Proxy,
    armed: Arc<Mutex<Option<(&'static str, Break)>>>,
}

impl Trap {
    pub fn new(proxy: &Proxy) -> Self {
        Self {
            proxy: proxy.clone(),
            armed: Arc::default(),
        }
    }

    /// At the next write under `folder`.
    pub fn arm(&self, folder: &'static str, how: Break) {
        *self.armed.lock().unwrap() = Some((folder, how));
    }

    /// Whether it is still to be sprung.
    pub fn waits(&self) -> bool {
        self.armed.lock().unwrap().is_some()
    }

    /// What a store is wrapped with.
    pub fn wrapper(&self) -> Arc<dyn WrappingObjectStore> {
        Arc::new(Watched(Arc::new(self.clone())))
    }
}

#[async_trait::async_trait]
impl Witness for Trap {
    async fn before_put(&self, path: &Path) {
        let how = {
            let mut armed = self.armed.lock().unwrap();
            let here = armed.is_some_and(|(folder, _)| path.as_ref().contains(folder));
            here.then(|| armed.take()).flatten()
        };
        if let Some((_, how)) = how {
            self.proxy.spring(how).await;
        }
    }
}
