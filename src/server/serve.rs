//! Running the server: who is let in, for how long, and how it ends.
//!
//! Lives here: `Server` and the way of every request through guard, permit and deadline, measured by its route's
//! template. May use: axum. Must never come in: what an answer says (`routes`).

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::catalog::Catalog;
use super::cursor::{CursorKeys, Cursors};
use super::guard::Guard;
use super::problem::Problem;
use super::{facts, point, records, rollouts, routes};
use crate::table::{ReadLimits, Reader};
use crate::telemetry::Metrics;

/// Bounds of a server.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How long one request may take.
    pub deadline: Duration,
    /// How many requests for data are answered at once.
    pub concurrent: usize,
    /// By how much the clocks of replicas, of the operator and of the store may differ: cursors end so much earlier.
    pub skew: Duration,
    /// Bounds of reads.
    pub read: ReadLimits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            concurrent: 64,
            skew: Duration::from_secs(30),
            read: ReadLimits::default(),
        }
    }
}

/// What handlers share.
pub(super) struct Shared {
    pub catalog: Arc<dyn Catalog>,
    pub metrics: Arc<Metrics>,
    pub reader: Reader,
    pub cursors: Cursors,
    permits: Semaphore,
    deadline: Duration,
    guard: Guard,
}

/// A server that has not begun.
pub struct Server {
    catalog: Arc<dyn Catalog>,
    metrics: Arc<Metrics>,
    config: Config,
    keys: CursorKeys,
}

impl Server {
    /// A server of the experiments of `catalog`.
    pub fn new(catalog: Arc<dyn Catalog>, metrics: Arc<Metrics>, config: Config) -> Self {
        Self {
            catalog,
            metrics,
            config,
            keys: CursorKeys::default(),
        }
    }

    /// Signs cursors, and takes only those that are signed, with one of these keys.
    pub fn with_cursor_keys(mut self, keys: CursorKeys) -> Self {
        self.keys = keys;
        self
    }

    /// Serves until `stop` is cancelled; requests under way are answered, within their deadline.
    ///
    /// # Errors
    /// What the listener says when it is asked for its address or for connections.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> io::Result<()> {
        let loopback = listener.local_addr()?.ip().is_loopback();
        let shared = Arc::new(Shared {
            catalog: self.catalog,
            metrics: self.metrics,
            reader: Reader::new(self.config.read),
            cursors: Cursors::new(self.keys, self.config.deadline, self.config.skew),
            permits: Semaphore::new(self.config.concurrent),
            deadline: self.config.deadline,
            guard: Guard { loopback },
        });
        let ended = stop.clone();
        let serving = axum::serve(listener, router(shared))
            .with_graceful_shutdown(async move { stop.cancelled().await })
            .into_future();
        // A client that keeps its connection busy may not keep the process.
        let patience = async {
            ended.cancelled().await;
            tokio::time::sleep(self.config.deadline).await;
        };
        tokio::select! {
            done = serving => done,
            () = patience => Ok(()),
        }
    }
}

/// A route of experiments, by its two names: in the server's own namespace, and in any that it serves.
macro_rules! places {
    ($end:literal) => {
        [
            concat!("/api/v1/experiments", $end),
            concat!("/api/v1/namespaces/{namespace}/experiments", $end),
        ]
    };
}

/// What is asked of a request before its handler runs.
#[derive(Clone)]
struct Way {
    shared: Arc<Shared>,
    /// The route's template, which metrics are labelled with.
    route: &'static str,
    /// Whether it takes one of the permits: requests for data do, health does not.
    permit: bool,
}

fn router(shared: Arc<Shared>) -> Router {
    let on = |route: &'static str, permit: bool, handler: MethodRouter<Arc<Shared>>| {
        let way = Way {
            shared: shared.clone(),
            route,
            permit,
        };
        (route, handler.layer(from_fn_with_state(way, pass)))
    };
    let unknown = Way {
        shared: shared.clone(),
        route: "other",
        permit: false,
    };
    let any = |handler: MethodRouter<Arc<Shared>>| handler.fallback(routes::wrong_method);
    let routes = [
        on("/", false, any(get(super::index::index))),
        on("/healthz", false, any(get(routes::healthz))),
        on("/readyz", false, any(get(routes::readyz))),
        on("/metrics", false, any(get(routes::metrics))),
        on("/api/v1/rollouts/{name}", true, any(get(rollouts::store))),
        on(
            "/api/v1/rollouts/{name}/records",
            true,
            any(get(rollouts::list)),
        ),
        on(
            "/api/v1/rollouts/{name}/records/{*rest}",
            true,
            any(get(rollouts::record)),
        ),
    ];
    let named = [
        (places!(""), false, get(routes::experiments)),
        (places!("/{name}"), false, get(routes::experiment)),
        (places!("/{name}/records"), true, get(records::records)),
        (places!("/{name}/records/{key}"), true, get(point::record)),
        (
            places!("/{name}/records/{key}/blobs/{column}"),
            true,
            get(point::blob),
        ),
        (places!("/{name}/schema"), true, get(facts::schema)),
        (places!("/{name}/backlog"), true, get(facts::backlog)),
        (places!("/{name}/count"), true, get(facts::count)),
    ];
    let named = named.map(|(routes, permit, handler)| {
        routes.map(|route| on(route, permit, any(handler.clone())))
    });
    let fallback = get(routes::nothing)
        .fallback(routes::nothing)
        .layer(from_fn_with_state(unknown, pass));
    routes
        .into_iter()
        .chain(named.into_iter().flatten())
        .fold(Router::new(), |router, (route, handler)| {
            router.route(route, handler)
        })
        .fallback_service(fallback.with_state(shared.clone()))
        .with_state(shared)
}

/// The way of a request: guard, permit, deadline, handler; measured, and with the headers that every answer has.
async fn pass(State(way): State<Way>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let checked = way
        .shared
        .guard
        .check(request.method(), request.uri(), request.headers());
    let mut response = match checked {
        Err(problem) => problem.into_response(),
        Ok(()) => answered(&way, request, next).await,
    };
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    let never = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(never);
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        let allow = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(header::ALLOW, allow);
    }
    let status = response.status().as_u16();
    way.shared
        .metrics
        .http_request(way.route, method.as_str(), status, begun.elapsed());
    response
}

async fn answered(way: &Way, request: Request, next: Next) -> Response {
    let _permit = match way.permit.then(|| way.shared.permits.try_acquire()) {
        Some(Err(_)) => return Problem::busy().into_response(),
        Some(Ok(permit)) => Some(permit),
        None => None,
    };
    match tokio::time::timeout(way.shared.deadline, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::deadline().into_response(),
    }
}
