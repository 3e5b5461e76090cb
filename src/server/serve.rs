//! Running the server: who is let in, for how long, and how it ends.
//!
//! Lives here: `Server` and the way of every request through guard, authority, permit and deadline, measured by its route's
//! template. May use: axum. Must never come in: what an answer says (`routes`).

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::serve::Listener;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::authority::{Authoriser, Caller, Open, Refused, Share, Shares, Sight};
use super::catalog::Catalog;
use super::cursor::{CursorKeys, Cursors};
use super::guard::Guard;
use super::problem::{Problem, StoreRefused};
use super::{facts, generic, point, records, rollouts, routes, wait};
use crate::table::{ReadLimits, Reader};
use crate::telemetry::Metrics;

/// Bounds of a server.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How long one request may take.
    pub deadline: Duration,
    /// How many requests for data are answered at once.
    pub concurrent: usize,
    /// How many requests may wait for a table at once.
    pub waiting: usize,
    /// How many of them one caller may have, where callers have names.
    pub waiting_per_caller: usize,
    /// How many requests for data one caller may have under way, where callers have names.
    pub per_caller: usize,
    /// Whether health and metrics are told here, to whoever asks; else they have an address of their own.
    pub operations: bool,
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
            waiting: 1024,
            waiting_per_caller: 256,
            per_caller: 16,
            operations: true,
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
    pub authority: Arc<dyn Authoriser>,
    data: Turns,
    waits: Turns,
    pub cursors: Cursors,
    deadline: Duration,
    guard: Guard,
}

/// A server that has not begun.
pub struct Server {
    catalog: Arc<dyn Catalog>,
    authority: Arc<dyn Authoriser>,
    metrics: Arc<Metrics>,
    config: Config,
    keys: CursorKeys,
}

impl Server {
    /// A server of the experiments of `catalog`, open to whoever reaches it.
    pub fn new(catalog: Arc<dyn Catalog>, metrics: Arc<Metrics>, config: Config) -> Self {
        Self {
            catalog,
            authority: Arc::new(Open),
            metrics,
            config,
            keys: CursorKeys::default(),
        }
    }

    /// Lets in only whom `authority` does.
    pub fn authorised_by(mut self, authority: Arc<dyn Authoriser>) -> Self {
        self.authority = authority;
        self
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
    pub async fn serve<L>(self, listener: L, stop: CancellationToken) -> io::Result<()>
    where
        L: Listener<Addr = SocketAddr>,
    {
        let loopback = listener.local_addr()?.ip().is_loopback();
        // A token says more than a name, and a website has none.
        let loopback = loopback && !self.authority.names_callers();
        let shared = Arc::new(Shared {
            catalog: self.catalog,
            metrics: self.metrics,
            reader: Reader::new(self.config.read),
            authority: self.authority,
            data: Turns::new(self.config.concurrent, self.config.per_caller),
            waits: Turns::new(self.config.waiting, self.config.waiting_per_caller),
            cursors: Cursors::new(self.keys, self.config.deadline, self.config.skew),
            deadline: self.config.deadline,
            guard: Guard { loopback },
        });
        let ended = stop.clone();
        let serving = axum::serve(listener, router(shared, self.config.operations))
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
    turn: Turn,
    /// What the caller has to be allowed to see; nothing for what says nothing of experiments.
    sees: Sees,
}

/// What bounds how many requests there are at once, and for how long.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Answered from memory.
    Free,
    /// Reads a table.
    Data,
    /// Waits for a table, by a deadline of its own.
    Wait,
}

/// What a route shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sees {
    Nothing,
    /// The experiments of the path's namespace. Where it names none, those that the caller may list, which the handler
    /// finds out.
    Lists,
    Records,
}

fn router(shared: Arc<Shared>, operations: bool) -> Router {
    let on = |route: &'static str, turn, sees, handler: MethodRouter<Arc<Shared>>| {
        let way = Way {
            shared: shared.clone(),
            route,
            turn,
            sees,
        };
        (route, handler.layer(from_fn_with_state(way, pass)))
    };
    let unknown = Way {
        shared: shared.clone(),
        route: "other",
        turn: Turn::Free,
        sees: Sees::Nothing,
    };
    let any = |handler: MethodRouter<Arc<Shared>>| handler.fallback(routes::wrong_method);
    let told = [
        on(
            "/healthz",
            Turn::Free,
            Sees::Nothing,
            any(get(routes::healthz)),
        ),
        on(
            "/readyz",
            Turn::Free,
            Sees::Nothing,
            any(get(routes::readyz)),
        ),
        on(
            "/metrics",
            Turn::Free,
            Sees::Nothing,
            any(get(routes::metrics)),
        ),
    ];
    let records = |route, handler| on(route, Turn::Data, Sees::Records, any(handler));
    let routes = [
        on("/", Turn::Free, Sees::Lists, any(get(super::index::index))),
        records("/api/v1/generic/{name}", get(generic::store)),
        records("/api/v1/generic/{name}/rows", get(generic::list)),
        records("/api/v1/generic/{name}/rows/{*rest}", get(generic::row)),
        records("/api/v1/rollouts/{name}", get(rollouts::store)),
        records("/api/v1/rollouts/{name}/records", get(rollouts::list)),
        records(
            "/api/v1/rollouts/{name}/records/{*rest}",
            get(rollouts::record),
        ),
    ];
    let named = [
        (places!(""), Turn::Free, get(routes::experiments)),
        (places!("/{name}"), Turn::Free, get(routes::experiment)),
        (
            places!("/{name}/records"),
            Turn::Data,
            get(records::records),
        ),
        (
            places!("/{name}/records/{key}"),
            Turn::Data,
            get(point::record),
        ),
        (
            places!("/{name}/records/{key}/blobs/{column}"),
            Turn::Data,
            get(point::blob),
        ),
        (places!("/{name}/schema"), Turn::Data, get(facts::schema)),
        (places!("/{name}/backlog"), Turn::Data, get(facts::backlog)),
        (places!("/{name}/count"), Turn::Data, get(facts::count)),
        (places!("/{name}/wait"), Turn::Wait, get(wait::wait)),
    ];
    let named = named.map(|(routes, turn, handler)| {
        let sees = |route: &str| match route.ends_with("/experiments") {
            true => Sees::Lists,
            false => Sees::Records,
        };
        routes.map(|route| on(route, turn, sees(route), any(handler.clone())))
    });
    let fallback = get(routes::nothing)
        .fallback(routes::nothing)
        .layer(from_fn_with_state(unknown, pass));
    let told = told.into_iter().filter(|_| operations);
    told.chain(routes)
        .chain(named.into_iter().flatten())
        .fold(Router::new(), |router, (route, handler)| {
            router.route(route, handler)
        })
        .fallback_service(fallback.with_state(shared.clone()))
        .with_state(shared)
}

/// The way of a request: guard, authority, permit, deadline, handler; measured, and with the headers that every answer has.
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
    let shared = &way.shared;
    let (mut parts, body) = request.into_parts();
    let of = Names::of(&mut parts, shared).await;
    // A caller who hangs up ends it; what the API server does not answer has a bound of its own.
    let caller = match way.admit(&parts.headers, &of).await {
        Ok(caller) => caller,
        Err(refused) => return Problem::from(refused).into_response(),
    };
    let (turns, within) = match way.turn {
        Turn::Free => (None, shared.deadline),
        Turn::Data => (Some(&shared.data), shared.deadline),
        Turn::Wait => (Some(&shared.waits), shared.deadline + wait::LONGEST),
    };
    let _turn = match turns.map(|turns| turns.take(&caller)).transpose() {
        Ok(turn) => turn,
        Err(problem) => return problem.into_response(),
    };
    parts.extensions.insert(caller);
    let request = Request::from_parts(parts, body);
    let response = match tokio::time::timeout(within, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::deadline().into_response(),
    };
    if let (Some(StoreRefused), Some(name)) = (response.extensions().get(), &of.name) {
        shared.catalog.refused(of.namespace.as_deref(), name);
    }
    response
}

/// How many requests of one kind there may be at once, in all and of one caller.
struct Turns {
    permits: Semaphore,
    shares: Shares,
}

/// One of them, until it is dropped.
struct Taken<'a> {
    _permit: SemaphorePermit<'a>,
    _share: Option<Share>,
}

impl Turns {
    fn new(most: usize, of_one: usize) -> Self {
        Self {
            permits: Semaphore::new(most),
            shares: Shares::new(of_one),
        }
    }

    fn take(&self, caller: &Caller) -> Result<Taken<'_>, Problem> {
        let _share = self.shares.take(caller)?;
        match self.permits.try_acquire() {
            Ok(_permit) => Ok(Taken { _permit, _share }),
            Err(_) => Err(Problem::busy()),
        }
    }
}

/// The names in a path.
struct Names {
    /// The namespace that is meant, where one is.
    namespace: Option<String>,
    /// Whether the path itself names it.
    named: bool,
    name: Option<String>,
}

impl Names {
    async fn of(parts: &mut Parts, shared: &Arc<Shared>) -> Self {
        let names = Path::<HashMap<String, String>>::from_request_parts(parts, shared).await;
        let mut names = names.map(|Path(names)| names).unwrap_or_default();
        let own = || shared.catalog.namespace().map(str::to_owned);
        let namespace = names.remove("namespace");
        Self {
            named: namespace.is_some(),
            namespace: namespace.or_else(own),
            name: names.remove("name"),
        }
    }
}

impl Way {
    /// Finds out who asks, and whether they may see what the path names, before anything of it is looked up.
    async fn admit(&self, headers: &HeaderMap, of: &Names) -> Result<Caller, Refused> {
        let authority = &self.shared.authority;
        if self.sees == Sees::Nothing || !authority.names_callers() {
            return Ok(Caller::Anybody);
        }
        let caller = authority.caller(headers).await?;
        let namespace = of.namespace.as_deref().unwrap_or_default();
        let sight = match (self.sees, &of.name) {
            (Sees::Records, Some(name)) => Sight::Records { namespace, name },
            (Sees::Lists, _) if of.named => Sight::List(Some(namespace)),
            (Sees::Lists, _) => return Ok(caller),
            // A name that is no text is nobody's.
            _ => return Err(Refused::Forbidden),
        };
        match authority.may(&caller, sight).await? {
            true => Ok(caller),
            false => Err(Refused::Forbidden),
        }
    }
}
