//! A way to a store that counts what is asked on it.
//!
//! Lives here: `Tally`, which passes bytes on and reads each request's first line. May use: tokio. Never: an answer of its
//! own.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const METHODS: [&str; 5] = ["GET", "HEAD", "PUT", "POST", "DELETE"];

type Asked = Arc<Mutex<Vec<String>>>;

/// It listens as long as it lives.
pub struct Tally {
    pub at: SocketAddr,
    asked: Asked,
    task: JoinHandle<()>,
}

impl Tally {
    pub async fn start(store: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let asked = Asked::default();
        let told = asked.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(store).await.unwrap();
                let (from_client, mut to_client) = client.into_split();
                let (mut from_server, to_server) = server.into_split();
                tokio::spawn(count(from_client, to_server, told.clone()));
                // Who hangs up ends it.
                tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
            }
        });
        Self { at, asked, task }
    }

    /// The requests so far, each as its method and target.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn count(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, asked: Asked) {
    let mut line = Vec::new();
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        for byte in &bytes[..read] {
            match byte {
                b'\n' => note(&std::mem::take(&mut line), &asked),
                byte => line.push(*byte),
            }
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            break;
        }
    }
}

fn note(line: &[u8], asked: &Asked) {
    let Ok(line) = std::str::from_utf8(line) else {
        return;
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    if let [method, target, "HTTP/1.1"] = words[..]
        && METHODS.contains(&method)
    {
        asked.lock().unwrap().push(format!("{method} {target}"));
    }
}
