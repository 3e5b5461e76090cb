//! The role `controller`: watches Experiments, keeps their tables fresh while it leads, and reports.
//!
//! Lives here: the loop that carries word between the API server, the desk and the engine, and stopping in order. May use:
//! this room's parts, `engine`. Must never come in: a decision (the desk's), signals and exit codes (the command line's).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::watcher::Event;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::desk::{Act, Desk, Wrote};
use super::lease::{Campaign, Elector, Leadership, Timing};
use super::reports::Reports;
use crate::api::ExperimentStatus;
use crate::cluster::client::{Guarded, follow, named};
use crate::cluster::endpoints::{self, Guard, Leads};
use crate::cluster::health::{self, Gate, Health};
use crate::cluster::secrets::{Found, Named};
use crate::cluster::{Cluster, NoCluster, Settings, served};
use crate::engine::{self, Engine, Pace, Statuses};
use crate::plan::TableId;
use crate::table::{Stores, StoresConfig};
use crate::telemetry::{CountedStores, Metrics};

/// What the role is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// What whoever runs it decides.
    pub settings: Settings,
    /// The namespaces that it watches; none means all.
    pub namespaces: Vec<String>,
    /// Where `/metrics` is.
    pub metrics: SocketAddr,
    /// Where `/livez` and `/readyz` are.
    pub health: SocketAddr,
    /// How the engine may spend itself.
    pub engine: engine::Config,
    /// The Lease's namespace; its own where it is not told.
    pub lease_namespace: Option<String>,
    /// The Lease's name.
    pub lease: String,
    /// This process, in the Lease and in events; unlike any other's that is or was.
    pub me: String,
    /// Told once its addresses are known.
    pub up: fn(&Up),
}

/// Where the role listens.
#[derive(Debug, Clone, Copy)]
pub struct Up {
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
            Error::Address(..) => "BadAddress",
            Error::Ended(_) => "Ended",
        }
    }
}

/// Calls to the API server that may be under way at once.
const CALLS: usize = 8;
/// Without anything to hear, the desk is asked this often.
const TICK: Duration = Duration::from_millis(500);
/// What is heard within this is taken together.
const TOGETHER: Duration = Duration::from_millis(50);
/// The loop turns at least once in this, also while an engine winds down.
const STUCK: Duration = Duration::from_secs(60);
/// The served schema is asked for this often until it is as it should be.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Keeps Experiments fresh until `stop` is cancelled.
///
/// # Errors
/// Before anything was started: no cluster, a taken address. Later, where a part without which nothing works ended.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), Error> {
    let metrics = Arc::new(Metrics::new());
    let health = Health::new();
    let crd = health.gate("crd", "the served schema has not been looked at yet");
    let cache = health.gate("cache", "the Experiments have not been listed yet");
    let (at_metrics, at_health) = (
        listen(options.metrics).await?,
        listen(options.health).await?,
    );
    let last = CancellationToken::new();
    let served = [
        (at_metrics, health::metrics(metrics.clone())),
        (at_health, health::probes(health.clone())),
    ];
    let addresses = served.each_ref().map(|(l, _)| l.local_addr());
    let mut servers = JoinSet::new();
    for (listener, routes) in served {
        servers.spawn(health::serve(listener, routes, last.clone()));
    }
    if let [Ok(metrics), Ok(health)] = addresses {
        (options.up)(&Up { metrics, health });
    }
    let (cluster, api) = Cluster::find(metrics.controller().clone()).await?;
    if !served_as_known(&cluster, &crd, &stop).await {
        return Ok(());
    }
    let namespace = options.lease_namespace.as_deref();
    let namespace = namespace.unwrap_or(cluster.namespace()).to_owned();
    let reports = Reports::new(cluster, &options.me);
    let lease = reports.lease(&namespace, &options.lease);
    let elector = Elector::new(options.me.clone(), Timing::default());
    let mut campaign = Campaign::start(lease, elector);
    metrics.controller().begins(CALLS);
    let shell = Shell::new(
        &options,
        reports,
        api.into(),
        metrics,
        campaign.leadership(),
    );
    let ended = tokio::select! {
        ended = shell.run(&options.namespaces, &health, &cache, &stop) => ended,
        () = campaign.ended() => Err(Error::Ended("the election")),
        _ = servers.join_next() => Err(Error::Ended("the server of health and metrics")),
    };
    // Work has ended by now, so that the next leader may begin at once.
    if ended.is_ok() {
        campaign.release().await;
    }
    last.cancel();
    while servers.join_next().await.is_some() {}
    ended
}

async fn listen(on: SocketAddr) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind(on).await;
    listener.map_err(|e| Error::Address(on, e.kind()))
}

/// Waits until the cluster serves every field that is written; false where it was told to stop before.
async fn served_as_known(cluster: &Cluster, gate: &Gate, stop: &CancellationToken) -> bool {
    let mut told = String::new();
    loop {
        let said = match cluster.document().await {
            Ok(document) => match served::check(document.as_ref()) {
                Ok(()) => {
                    gate.open();
                    return true;
                }
                Err(e) => e.to_string(),
            },
            Err(()) => "the API server does not answer".to_owned(),
        };
        if said != told {
            tracing::error!("waits: {said}");
            gate.close(said.clone());
            told = said;
        }
        tokio::select! {
            () = stop.cancelled() => return false,
            () = sleep(ASK_AGAIN) => {}
        }
    }
}

/// What the loop hears.
enum Heard {
    Watched(usize, Box<Event<Guarded>>),
    Secret(Named, Option<Found>),
    Endpoint(String, Leads),
    Wrote(TableId, Option<Box<ExperimentStatus>>, Wrote),
}

struct Shell {
    reports: Reports,
    /// The API server's addresses.
    api: Arc<[std::net::IpAddr]>,
    desk: Desk,
    stores: Arc<Stores>,
    metrics: Arc<Metrics>,
    engine_config: engine::Config,
    engine: Option<(Engine, watch::Receiver<Statuses>)>,
    leadership: Leadership,
    origin: Instant,
    calls: Arc<Semaphore>,
    tasks: JoinSet<()>,
    tell: mpsc::Sender<Heard>,
    hears: mpsc::Receiver<Heard>,
    namespaces: Vec<String>,
    /// The Lease's name.
    lease: String,
}

impl Shell {
    fn new(
        options: &Options,
        reports: Reports,
        api: Arc<[std::net::IpAddr]>,
        metrics: Arc<Metrics>,
        leadership: Leadership,
    ) -> Self {
        let (tell, hears) = mpsc::channel(256);
        let allowed = options.settings.access.endpoints();
        let stores = Stores::new(StoresConfig {
            allow_local: false,
            door: Some(Arc::new(Guard::new(&api, allowed))),
            wrapper: Some(Arc::new(CountedStores::new(metrics.clone()))),
            ..Default::default()
        });
        Self {
            reports,
            api,
            desk: Desk::new(Arc::new(options.settings.clone()), Duration::ZERO),
            stores: Arc::new(stores),
            metrics,
            engine_config: options.engine.clone(),
            engine: None,
            leadership,
            origin: Instant::now(),
            calls: Arc::new(Semaphore::new(CALLS)),
            tasks: JoinSet::new(),
            tell,
            hears,
            namespaces: options.namespaces.clone(),
            lease: options.lease.clone(),
        }
    }

    async fn run(
        mut self,
        namespaces: &[String],
        health: &Health,
        cache: &Gate,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let beat = health.beat("controller", STUCK);
        let mut watches = JoinSet::new();
        let scopes: Vec<Option<String>> = match namespaces {
            [] => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        let mut unlisted: std::collections::BTreeSet<usize> = (0..scopes.len()).collect();
        for (watch, scope) in scopes.into_iter().enumerate() {
            let tell = self.tell.clone();
            let hear = move |event| {
                let tell = tell.clone();
                let heard = Heard::Watched(watch, Box::new(event));
                async move { tell.send(heard).await.is_ok() }
            };
            watches.spawn(follow(self.reports.cluster.clone(), scope, hear));
        }
        // Whether something was heard since the last turn.
        let (mut pace, mut stirred) = (Pace::default(), false);
        let mut tick = interval(TICK);
        let mut leads = self.leadership.changes();
        let ended = loop {
            beat.touch();
            tokio::select! {
                () = stop.cancelled() => break Ok(()),
                _ = watches.join_next() => break Err(Error::Ended("a watch")),
                () = ended(self.engine.as_ref()) => break Err(Error::Ended("the engine")),
                _ = tick.tick() => {}
                () = sleep_until(pace.next().into()), if stirred => {}
                changed = leads.changed() => if changed.is_err() {
                    break Err(Error::Ended("the election"));
                },
                heard = self.hears.recv() => {
                    stirred = true;
                    let mut next = heard;
                    let until = Instant::now() + TOGETHER;
                    while let Some(heard) = next {
                        if let Heard::Watched(watch, event) = &heard
                            && matches!(**event, Event::InitDone)
                        {
                            unlisted.remove(watch);
                        }
                        self.hear(heard);
                        next = match Instant::now() < until {
                            true => self.hears.try_recv().ok(),
                            false => None,
                        };
                    }
                }
            }
            while self.tasks.try_join_next().is_some() {}
            let began = Instant::now();
            if unlisted.is_empty() && pace.may(began.into_std()) {
                cache.open();
                self.turn().await;
                stirred = false;
                pace.turned(began.into_std(), Instant::now().into_std());
            }
        };
        health.ending();
        self.follow_leadership(false).await;
        self.tasks.shutdown().await;
        ended
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn hear(&mut self, heard: Heard) {
        let now = self.now();
        let random = rand::random();
        match heard {
            Heard::Watched(watch, event) => match *event {
                Event::Init => self.desk.lists(watch),
                Event::InitApply(object) | Event::Apply(object) => {
                    let read = object.0.map(|read| read.experiment);
                    self.desk.took(watch, read, now);
                }
                Event::InitDone => {
                    let scope = self.namespaces.get(watch).cloned();
                    let of = |ns: &str| scope.as_deref().is_none_or(|scope| scope == ns);
                    self.desk.listed(watch, of);
                }
                Event::Delete(object) => {
                    let (namespace, name, uid) = named(&object);
                    self.desk.lost(&namespace, &name, uid.as_deref());
                }
            },
            Heard::Secret(named, found) => self.desk.heard_secret(&named, found, now, random),
            Heard::Endpoint(endpoint, leads) => {
                self.desk.heard_endpoint(&endpoint, leads, now, random);
            }
            Heard::Wrote(id, status, wrote) => {
                self.desk
                    .wrote(&id, status.map(|s| *s), &wrote, now, random);
            }
        }
    }

    /// One round: who leads, what the engine says, what is to be done.
    async fn turn(&mut self) {
        self.follow_leadership(self.leadership.holds()).await;
        let now = self.now();
        let Some((engine, statuses)) = &mut self.engine else {
            return;
        };
        if statuses.has_changed().unwrap_or(false) {
            let said = statuses.borrow_and_update().clone();
            self.desk.said(said, now);
        }
        for act in self.desk.acts(Timestamp::now(), now) {
            match act {
                Act::Tables(tables) => engine.set_tables(tables),
                Act::MergeNow(id) => engine.merge_now(id),
                other => {
                    let call = Call {
                        reports: self.reports.clone(),
                        api: self.api.clone(),
                        leadership: self.leadership.clone(),
                        tell: self.tell.clone(),
                    };
                    let calls = self.calls.clone();
                    let queued = self.metrics.controller().queued();
                    self.tasks.spawn(async move {
                        // Closed by nobody.
                        let _permit = calls.acquire_owned().await;
                        let working = queued.begin();
                        working.done(call.make(other).await);
                    });
                }
            }
        }
    }

    /// The engine runs while this process leads, and no longer.
    async fn follow_leadership(&mut self, leads: bool) {
        self.metrics.controller().leads(&self.lease, leads);
        match (leads, self.engine.take()) {
            (true, None) => {
                self.desk.restart(self.origin.elapsed());
                let config = self.engine_config.clone();
                let engine = Engine::start(config, self.stores.clone(), self.metrics.clone());
                let statuses = engine.statuses();
                self.engine = Some((engine, statuses));
            }
            (false, Some((engine, _))) => {
                // Work of a leader may end well; that of one that was has no right to time.
                engine.stop_before(self.leadership.changed_to(false)).await;
                // Whoever leads now tells of the tables.
                self.metrics.keep_only(&std::collections::BTreeSet::new());
            }
            (_, same) => self.engine = same,
        }
    }
}

/// Ends when the engine does by itself.
async fn ended(engine: Option<&(Engine, watch::Receiver<Statuses>)>) {
    match engine {
        Some((engine, _)) => engine.ended().await,
        None => std::future::pending().await,
    }
}

/// One call, and word of what it came to.
struct Call {
    reports: Reports,
    api: Arc<[std::net::IpAddr]>,
    leadership: Leadership,
    tell: mpsc::Sender<Heard>,
}

impl Call {
    /// Whether it came to an answer that stands.
    async fn make(self, act: Act) -> bool {
        let heard = match act {
            // The engine's own; never a call.
            Act::Tables(_) | Act::MergeNow(_) => return true,
            Act::ReadSecret(named) => {
                let found = self.reports.cluster.secret(&named).await;
                Heard::Secret(named, found)
            }
            Act::LookUp(endpoint) => {
                let leads = endpoints::look_up(&endpoint, &self.api).await;
                Heard::Endpoint(endpoint, leads)
            }
            // Only who leads writes; a process that was stopped for long finds out here.
            Act::Write { id, .. } | Act::Finalizers { id, .. } if !self.leadership.holds() => {
                Heard::Wrote(id, None, Wrote::Failed)
            }
            Act::Write {
                id,
                uid,
                status,
                news,
            } => {
                let wrote = self.reports.write(&id, &uid, &status).await;
                if let Wrote::Done(_) = wrote {
                    for news in news {
                        self.reports.tell(&id, &uid, news).await;
                    }
                }
                Heard::Wrote(id, Some(status), wrote)
            }
            Act::Finalizers {
                id,
                uid,
                version,
                list,
                news,
            } => {
                let wrote = self.reports.finalizers(&id, &version, &list).await;
                if let Wrote::Done(_) = wrote {
                    for news in news {
                        self.reports.tell(&id, &uid, news).await;
                    }
                }
                Heard::Wrote(id, None, wrote)
            }
        };
        let well = !matches!(
            heard,
            Heard::Secret(_, None) | Heard::Wrote(_, _, Wrote::Failed)
        );
        // A loop that is gone hears nothing more.
        let _ = self.tell.send(heard).await;
        well
    }
}
