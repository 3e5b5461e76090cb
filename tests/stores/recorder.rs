//! A server that serves nobody and remembers who asked.
//!
//! Lives here: `Recorder`. May use: tokio. Never: an answer that a client could take for a store's.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// It listens as long as it lives.
pub struct Recorder {
    pub at: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Recorder {
    pub async fn start() -> Self {
        Self::answering("HTTP/1.1 403 Forbidden\r\n").await
    }

    /// Sends everybody to another address.
    pub async fn redirecting(to: SocketAddr) -> Self {
        let location = format!("location: http://{to}/latest/meta-data\r\n");
        Self::answering(&format!("HTTP/1.1 307 Temporary Redirect\r\n{location}")).await
    }

    async fn answering(head: &str) -> Self {
        let no = format!("{head}content-length: 0\r\nconnection: close\r\n\r\n");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(vec![]));
        let told = asked.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let (told, no) = (told.clone(), no.clone());
                tokio::spawn(async move {
                    let mut first = vec![0; 4096];
                    let read = connection.read(&mut first).await.unwrap_or(0);
                    let text = String::from_utf8_lossy(&first[..read]).into_owned();
                    told.lock().unwrap().push(text);
                    // Who hangs up first has no need of the answer.
                    let _ = connection.write_all(no.as_bytes()).await;
                });
            }
        });
        Self { at, asked, task }
    }

    /// What was asked so far, each request's beginning.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}
