//! Whether the process lives, whether it is ready, and the address where that and its metrics are told.
//!
//! Lives here: `Health` (heartbeats of loops, gates of readiness) and the routes `/livez`, `/readyz` and `/metrics`. May
//! use: axum, telemetry, tokio's clock. Must never come in: a question to the API server or to a store: a process that
//! is killed because they are away comes back to the same and has lost its work.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::telemetry::Metrics;

/// How long answers under way may take once the process ends.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is known of this process's health. Cloned freely: all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Health {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Each loop's last heartbeat, and how old it may become.
    beats: BTreeMap<&'static str, (Instant, Duration)>,
    /// Each gate, and what it still waits for; `None` where it is open.
    gates: BTreeMap<&'static str, Option<String>>,
    ending: bool,
}

/// The heartbeat of one loop. A loop whose task is gone stops beating, and that is what `/livez` tells.
#[derive(Debug)]
pub struct Beat {
    name: &'static str,
    health: Health,
}

/// One thing that readiness waits for.
#[derive(Debug, Clone)]
pub struct Gate {
    name: &'static str,
    health: Health,
}

impl Health {
    /// A process in which nothing has begun: it lives, and it is ready as it waits for nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// A loop begins that turns at least once in `limit`, whatever the API server and the stores do.
    pub fn beat(&self, name: &'static str, limit: Duration) -> Beat {
        self.inner().beats.insert(name, (Instant::now(), limit));
        Beat {
            name,
            health: self.clone(),
        }
    }

    /// Something that has to be there before the process is ready; `why` says what it waits for, for people.
    pub fn gate(&self, name: &'static str, why: impl Into<String>) -> Gate {
        let gate = Gate {
            name,
            health: self.clone(),
        };
        gate.close(why);
        gate
    }

    /// The process ends: it is not ready from here on, and it lives.
    pub fn ending(&self) {
        self.inner().ending = true;
    }

    /// Loops that have not turned for longer than they may, each with the time since.
    pub fn stuck(&self, now: Instant) -> Vec<(&'static str, Duration)> {
        let beats = self.inner();
        let of = |(name, (last, limit)): (&&'static str, &(Instant, Duration))| {
            let since = now.saturating_duration_since(*last);
            (since > *limit).then_some((*name, since))
        };
        beats.beats.iter().filter_map(of).collect()
    }

    /// What readiness waits for, each with why.
    pub fn waits(&self) -> Vec<(&'static str, String)> {
        let inner = self.inner();
        let ending = inner.ending.then(|| ("ending", "the process ends".into()));
        let closed = |(name, why): (&&'static str, &Option<String>)| Some((*name, why.clone()?));
        ending
            .into_iter()
            .chain(inner.gates.iter().filter_map(closed))
            .collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beat {
    /// The loop turned.
    pub fn touch(&self) {
        self.touch_at(Instant::now());
    }

    fn touch_at(&self, now: Instant) {
        if let Some((last, _)) = self.health.inner().beats.get_mut(self.name) {
            *last = now;
        }
    }

    /// The loop ended as it should.
    pub fn retire(self) {
        self.health.inner().beats.remove(self.name);
    }
}

impl Gate {
    /// It is there.
    pub fn open(&self) {
        self.health.inner().gates.insert(self.name, None);
    }

    /// It is not there; `why` says what it waits for.
    pub fn close(&self, why: impl Into<String>) {
        let why = Some(why.into());
        self.health.inner().gates.insert(self.name, why);
    }
}

/// `/livez` and `/readyz`.
pub fn probes(health: Health) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(health)
}

/// `/metrics`.
pub fn metrics(metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/metrics", get(rendered))
        .with_state(metrics)
}

/// Serves routes until `stop` is cancelled. Cancel it last: probes are answered while the process ends.
///
/// # Errors
/// What the listener says when it is asked for connections.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let ended = stop.clone();
    let serving = axum::serve(listener, routes)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .into_future();
    tokio::select! {
        done = serving => done,
        () = async { ended.cancelled().await; tokio::time::sleep(PATIENCE).await } => Ok(()),
    }
}

async fn livez(State(health): State<Health>) -> Response {
    let mut said = String::new();
    for (name, since) in health.stuck(Instant::now()) {
        // Writing to a string does not fail.
        let _ = writeln!(said, "{name}: has not turned for {} s", since.as_secs());
    }
    told(said)
}

async fn readyz(State(health): State<Health>) -> Response {
    let mut said = String::new();
    for (name, why) in health.waits() {
        // Writing to a string does not fail.
        let _ = writeln!(said, "{name}: {why}");
    }
    told(said)
}

/// Nothing to say is good.
fn told(said: String) -> Response {
    match said.is_empty() {
        true => "ok\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, said).into_response(),
    }
}

async fn rendered(State(metrics): State<Arc<Metrics>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, metrics.render()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(at: &str, path: &str) -> (u16, String) {
        let answer = reqwest::get(format!("http://{at}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    async fn served(health: &Health) -> (String, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let routes = probes(health.clone()).merge(metrics(Arc::new(Metrics::new())));
        tokio::spawn(serve(listener, routes, stop.clone()));
        (at.to_string(), stop)
    }

    #[tokio::test]
    async fn readiness_names_what_it_waits_for_and_is_given_up_first() {
        let health = Health::new();
        let (at, _stop) = served(&health).await;
        assert_eq!(get(&at, "/readyz").await, (200, "ok\n".into()));
        let gate = health.gate("crd", "the CustomResourceDefinition is not served");
        let want = "crd: the CustomResourceDefinition is not served\n";
        assert_eq!(get(&at, "/readyz").await, (503, want.into()));
        gate.open();
        assert_eq!(get(&at, "/readyz").await.0, 200);
        health.ending();
        assert_eq!(get(&at, "/readyz").await.0, 503);
        assert_eq!(get(&at, "/livez").await, (200, "ok\n".into()));
    }

    #[tokio::test]
    async fn metrics_are_told_in_prometheus_own_format() {
        let (at, _stop) = served(&Health::new()).await;
        let (status, text) = get(&at, "/metrics").await;
        assert_eq!(status, 200);
        assert!(text.contains("freshet_build_info{"), "{text}");
    }

    #[test]
    fn a_loop_that_does_not_turn_is_named() {
        let (health, limit) = (Health::new(), Duration::from_secs(30));
        let poller = health.beat("poller", limit);
        let watch = health.beat("watch", 2 * limit);
        let begun = Instant::now();
        let stuck = |after: u64| -> Vec<&str> {
            let at = begun + Duration::from_secs(after);
            health.stuck(at).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(stuck(29), [""; 0]);
        assert_eq!(stuck(31), ["poller"]);
        poller.touch_at(begun + limit);
        assert_eq!(stuck(31), [""; 0]);
        // A task that panicked drops its beat, and is missed.
        drop(watch);
        assert_eq!(stuck(61), ["poller", "watch"]);
        poller.retire();
        assert_eq!(stuck(61), ["watch"]);
    }
}
