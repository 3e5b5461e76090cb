//! The role `reader`: serves the tables of a cluster's Experiments until it is told to stop.
//!
//! Lives here: putting the parts together, and stopping in order. May use: this room's parts, `server`, `cluster`. Must
//! never come in: signals and exit codes (the command line's), or a lease: any number of replicas serve.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::opener::Opener;
use super::reviewer::Reviewer;
use super::reviews::ClusterReviews;
use super::shelf::Shelf;
use crate::cluster::client::follow;
use crate::cluster::endpoints::Guard;
use crate::cluster::health::{self, Gate, Health};
use crate::cluster::{Cluster, NoCluster, Settings};
use crate::server::tls::{self, Certificate, TlsListener};
use crate::server::{self, Server};
use crate::table::{Stores, StoresConfig};
use crate::telemetry::{CountedStores, Metrics};

/// What the role is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// What whoever runs it decides.
    pub settings: Settings,
    /// The namespaces that it watches; none means all.
    pub namespaces: Vec<String>,
    /// The namespace of the short form; its own where it is not told.
    pub namespace: Option<String>,
    /// Where records are served.
    pub listen: SocketAddr,
    /// Whether that is over TLS.
    pub security: Security,
    /// Whom tokens have to be for.
    pub audience: String,
    /// Where `/metrics` is.
    pub metrics: SocketAddr,
    /// Where `/livez`, `/readyz` and `/healthz` are.
    pub health: SocketAddr,
    /// Bounds of the server.
    pub server: server::Config,
    /// Told once its addresses are known.
    pub up: fn(&Up),
}

/// How connections are kept from others' eyes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Security {
    /// By the certificate and key of these files.
    Tls {
        /// The chain, in PEM.
        certificate: PathBuf,
        /// Its key, in PEM.
        key: PathBuf,
    },
    /// Not at all: something in front of it does, or nobody else is there.
    Plain,
}

/// Where the role listens.
#[derive(Debug, Clone, Copy)]
pub struct Up {
    /// For records.
    pub address: SocketAddr,
    /// Whether over TLS.
    pub tls: bool,
    /// For `/metrics`.
    pub metrics: SocketAddr,
    /// For the probes.
    pub health: SocketAddr,
}

/// Why the role could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No API server to speak to.
    #[error(transparent)]
    NoCluster(#[from] NoCluster),
    /// No certificate to serve with.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// An address cannot be listened on.
    #[error("{0} cannot be listened on: {1}")]
    Address(SocketAddr, std::io::ErrorKind),
    /// A part of it ended by itself.
    #[error("{0} ended, and nothing goes on without it")]
    Ended(&'static str),
}

impl Error {
    /// The kind's name.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::NoCluster(_) => "NoCluster",
            Error::Tls(e) => e.reason(),
            Error::Address(..) => "BadAddress",
            Error::Ended(_) => "Ended",
        }
    }
}

/// Connections are still taken for so long after readiness ended: a Service goes on sending for a moment.
const LINGER: Duration = Duration::from_secs(3);
/// What readiness says until the Experiments were listed.
const UNLISTED: &str = "the Experiments have not been listed yet; the CustomResourceDefinition has to be there, and the service account has to be allowed to list and watch experiments";

/// Serves until `stop` is cancelled.
///
/// # Errors
/// Before anything was started: no cluster, no certificate, a taken address. Later, where a part ended by itself.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), Error> {
    let certificate = match &options.security {
        Security::Tls { certificate, key } => Some(Certificate::read(certificate, key)?),
        Security::Plain => None,
    };
    let metrics = Arc::new(Metrics::new());
    let health = Health::new();
    let cache = health.gate("cache", UNLISTED);
    let records = listen(options.listen).await?;
    let operations = [
        (
            listen(options.metrics).await?,
            health::metrics(metrics.clone()),
        ),
        (
            listen(options.health).await?,
            health::probes(health.clone()),
        ),
    ];
    let (cluster, api) = Cluster::find(metrics.controller().clone()).await?;
    let addresses = operations.each_ref().map(|(l, _)| l.local_addr());
    if let (Ok(address), [Ok(metrics), Ok(health)]) = (records.local_addr(), addresses) {
        let tls = certificate.is_some();
        (options.up)(&Up {
            address,
            tls,
            metrics,
            health,
        });
    }
    let last = CancellationToken::new();
    let mut others = JoinSet::new();
    for (listener, routes) in operations {
        let served = health::serve(listener, routes, last.clone());
        others.spawn(async move { drop(served.await) });
    }
    let own = options.namespace.clone();
    let own = own.unwrap_or_else(|| cluster.namespace().to_owned());
    let shelf = Arc::new(Shelf::new(
        own,
        opener(&options, cluster.clone(), api, metrics.clone()),
        options.namespaces.len().max(1),
    ));
    let mut watches = watch(&options, &cluster, &shelf, &cache);
    let reviews = Arc::new(ClusterReviews(cluster));
    let reviewer = Arc::new(Reviewer::new(reviews, &options.audience));
    let config = server::Config {
        operations: false,
        ..options.server
    };
    let server = Server::new(shelf, metrics, config).authorised_by(reviewer);
    let closing = CancellationToken::new();
    let address = |e: std::io::Error| Error::Address(options.listen, e.kind());
    let mut serving = match certificate {
        Some(certificate) => {
            others.spawn(certificate.clone().follow());
            let listener = TlsListener::new(records, certificate).map_err(address)?;
            tokio::spawn(server.serve(listener, closing.clone()))
        }
        None => tokio::spawn(server.serve(records, closing.clone())),
    };
    let ended = tokio::select! {
        () = stop.cancelled() => Ok(()),
        _ = watches.join_next() => Err(Error::Ended("a watch")),
        _ = &mut serving => return Err(Error::Ended("the server")),
        _ = others.join_next() => Err(Error::Ended("the server of health and metrics")),
    };
    health.ending();
    if ended.is_ok() {
        tokio::time::sleep(LINGER).await;
    }
    closing.cancel();
    // What it came to is told to whoever asked it.
    let _ = serving.await;
    last.cancel();
    ended
}

fn opener(
    options: &Options,
    cluster: Cluster,
    api: Vec<std::net::IpAddr>,
    metrics: Arc<Metrics>,
) -> Opener {
    let access = options.settings.access.clone();
    let stores = Stores::new(StoresConfig {
        allow_local: false,
        door: Some(Arc::new(Guard::new(&api, access.endpoints()))),
        wrapper: Some(Arc::new(CountedStores::new(metrics))),
        ..Default::default()
    });
    Opener::new(cluster, api, access, stores)
}

/// Watches each namespace, or all.
fn watch(options: &Options, cluster: &Cluster, shelf: &Arc<Shelf>, cache: &Gate) -> JoinSet<()> {
    let scopes: Vec<Option<String>> = match &*options.namespaces {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let mut watches = JoinSet::new();
    for (watch, scope) in scopes.into_iter().enumerate() {
        let (shelf, cache, of) = (shelf.clone(), cache.clone(), scope.clone());
        let hear = move |event| {
            if shelf.hear(watch, of.as_deref(), event) {
                cache.open();
            }
            std::future::ready(true)
        };
        watches.spawn(follow(cluster.clone(), scope, hear));
    }
    watches
}

async fn listen(on: SocketAddr) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind(on).await;
    listener.map_err(|e| Error::Address(on, e.kind()))
}
