//! The role `local`: engine and server in one process, until it is told to stop.
//!
//! Lives here: starting both, following the manifests, and stopping in order. May use: this room's parts, `engine`,
//! `server`, `telemetry`. Must never come in: signals and exit codes (the command line's).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::catalog::Book;
use super::cursor_keys::KeyFile;
use super::secrets::{self, Stamp};
use super::specs::{Ready, ready};
use super::watch::{Said, Watch};
use crate::api::{Defaults, Experiment, TableIdentity};
use crate::engine::{Config, Engine};
use crate::server::{self, Server};
use crate::table::{Stores, StoresConfig};
use crate::telemetry::{CountedStores, Metrics};

/// What the role is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Manifests: files and directories.
    pub files: Vec<PathBuf>,
    /// Experiments beside those of the manifests.
    pub tables: Vec<Experiment>,
    /// Where Secrets lie as files, if anywhere.
    pub secrets: Option<PathBuf>,
    /// The file of the keys that cursors are signed with; none for unsigned ones.
    pub cursor_keys: Option<PathBuf>,
    /// Where the server listens.
    pub listen: SocketAddr,
    /// How the engine may spend itself.
    pub engine: Config,
    /// What manifests leave out.
    pub defaults: Defaults,
    /// Told once the server is up.
    pub up: fn(&Up),
}

/// That the role is up.
#[derive(Debug, Clone, Copy)]
pub struct Up {
    /// Experiments that it began with.
    pub experiments: usize,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Why the role could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Manifests are wrong at the start; every mistake, with file and line.
    #[error("{0}")]
    Manifests(String),
    /// The file of cursor keys is wrong at the start.
    #[error("--cursor-key-file: {0}")]
    CursorKeys(String),
    /// The address is taken.
    #[error(
        "{0} is taken by another process; choose another with --listen, as in --listen 127.0.0.1:0 for any free one"
    )]
    AddressInUse(SocketAddr),
    /// The address cannot be listened on.
    #[error("{0} cannot be listened on: {1}")]
    Address(SocketAddr, std::io::ErrorKind),
    /// The server ended by itself.
    #[error("the server ended: {0}")]
    Server(std::io::Error),
    /// The engine ended by itself.
    #[error(
        "the engine ended by itself, and no table is kept fresh without it; start it again, and report what the log says"
    )]
    Engine,
}

impl Error {
    /// The kind's name.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Manifests(_) => "BadManifests",
            Error::CursorKeys(_) => "BadCursorKeys",
            Error::AddressInUse(_) => "AddressInUse",
            Error::Address(..) => "BadAddress",
            Error::Server(_) => "ServerEnded",
            Error::Engine => "EngineEnded",
        }
    }
}

/// Manifests are looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Engine and server have one clock, which may be set while they run.
pub(super) const SKEW: Duration = Duration::from_secs(5);

/// Listens on an address.
///
/// # Errors
/// `AddressInUse` and `Address`.
pub async fn listen(on: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(on).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => Error::AddressInUse(on),
        kind => Error::Address(on, kind),
    })
}

/// Keeps the experiments of the manifests fresh and serves them, until `stop` is cancelled.
///
/// # Errors
/// Before anything was started: wrong manifests, a taken address. Later mistakes in manifests are told and survived.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), Error> {
    let mut follower = Follower::new(&options);
    let first = follower.first()?;
    follower.ready = first.clone();
    let mut keys = match options.cursor_keys.as_deref().map(KeyFile::open) {
        Some(Ok(keys)) => Some(keys),
        Some(Err(why)) => return Err(Error::CursorKeys(why)),
        None => None,
    };
    let listener = listen(options.listen).await?;
    let address = listener.local_addr().map_err(Error::Server)?;
    let metrics = Arc::new(Metrics::new());
    let stores = Arc::new(Stores::new(StoresConfig {
        wrapper: Some(Arc::new(CountedStores::new(metrics.clone()))),
        ..Default::default()
    }));
    let engine = Engine::start(options.engine.clone(), stores.clone(), metrics.clone());
    let book = Arc::new(Book::new(stores, engine.statuses()));
    engine.set_tables(first.iter().map(|r| r.spec.clone()).collect());
    book.set(&first);
    (options.up)(&Up {
        experiments: first.len(),
        address,
    });
    let config = server::Config {
        skew: SKEW,
        ..Default::default()
    };
    let server = Server::new(book.clone(), metrics, config)
        .with_cursor_keys(keys.as_ref().map(KeyFile::keys).unwrap_or_default());
    let mut serving = tokio::spawn(server.serve(listener, stop.clone()));
    let mut tick = tokio::time::interval(LOOK_EVERY);
    let ended = loop {
        tokio::select! {
            () = stop.cancelled() => break Ok(()),
            () = engine.ended() => break Err(Error::Engine),
            served = &mut serving => break match served {
                Ok(Ok(())) => Ok(()),
                Ok(Err(e)) => Err(Error::Server(e)),
                Err(_) => Err(Error::Server(std::io::Error::other("it panicked"))),
            },
            _ = tick.tick() => {
                if let Some(all) = follower.next() {
                    // Readers first: what they promise from now on is what is asked for.
                    book.set(&all);
                    engine.set_tables(all.iter().map(|r| r.spec.clone()).collect());
                }
                if let Some(keys) = &mut keys {
                    keys.look();
                }
            }
        }
    };
    stop.cancel();
    engine.stop().await;
    ended
}

/// Turns manifests into experiments, again and again.
struct Follower {
    watch: Watch,
    options: Options,
    /// Experiments as the manifests last said.
    read: Vec<Experiment>,
    /// Experiments as they were last taken up.
    ready: Vec<Ready>,
    /// The state of the Secrets' files when they were last read.
    secrets: Stamp,
    /// Credentials' problems that were told already, by experiment.
    told: BTreeMap<String, String>,
}

impl Follower {
    fn new(options: &Options) -> Self {
        Self {
            watch: Watch::new(options.files.clone()),
            options: options.clone(),
            read: vec![],
            ready: vec![],
            secrets: secrets::stamp(options.secrets.as_deref()),
            told: BTreeMap::new(),
        }
    }

    /// What is there at the start. Anything wrong is an error now: somebody is looking.
    fn first(&mut self) -> Result<Vec<Ready>, Error> {
        let Some(said) = self.watch.changed(true) else {
            return Ok(vec![]);
        };
        notes(&said);
        let wrong = said.problems;
        if !wrong.is_empty() {
            let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
            return Err(Error::Manifests(lines.join("\n")));
        }
        self.read = said.experiments;
        let all = self.each().into_iter().map(|(name, ready)| {
            ready.map_err(|why| Error::Manifests(format!("the experiment {name}: {why}")))
        });
        all.collect()
    }

    /// What there is now, if anything moved: manifests, or the files of Secrets.
    fn next(&mut self) -> Option<Vec<Ready>> {
        let said = self.watch.changed(false);
        let secrets = secrets::stamp(self.options.secrets.as_deref());
        if said.is_none() && secrets == self.secrets {
            return None;
        }
        self.secrets = secrets;
        if let Some(said) = said {
            notes(&said);
            for problem in &said.problems {
                tracing::error!("{problem}");
            }
            for file in &said.kept {
                tracing::warn!(file = %file.display(), "the last good state of this file is kept until it is mended");
            }
            self.read = said.experiments;
        }
        let mut all = Vec::new();
        for (name, ready) in self.each() {
            match ready {
                Ok(ready) => {
                    self.told.remove(&name);
                    all.push(ready);
                }
                Err(why) => {
                    // It alone waits, with what it had before; the others go on.
                    let named = |r: &Ready| *r.spec.id.0 == *name;
                    if !all.iter().any(named) {
                        all.extend(self.ready.iter().find(|r| named(r)).cloned());
                    }
                    if self.told.insert(name.clone(), why.clone()).as_ref() != Some(&why) {
                        tracing::error!(experiment = name, "it stays as it was: {why}");
                    }
                }
            }
        }
        if all == self.ready {
            return None;
        }
        tracing::info!(experiments = all.len(), "experiments read again");
        self.ready = all.clone();
        Some(all)
    }

    /// Every experiment by its name, ready or with what it lacks.
    fn each(&self) -> Vec<(String, Result<Ready, String>)> {
        let secrets = self.options.secrets.as_deref();
        let (mut names, mut tables) = (BTreeSet::new(), BTreeSet::new());
        let all = self.options.tables.iter().chain(&self.read);
        all.map(|e| {
            let name = e.metadata.name.clone().unwrap_or_default();
            if !names.insert(name.clone()) {
                let why = "it is named twice, by --table and by a manifest; rename one";
                return (name, Err(why.into()));
            }
            let table = TableIdentity::of(&e.spec.table).ok();
            if table.is_some_and(|table| !tables.insert(table)) {
                let why = "its table is named twice, by --table and by a manifest; remove one";
                return (name, Err(why.into()));
            }
            let made = ready(e, &self.options.defaults, secrets);
            (name, made)
        })
        .collect()
    }
}

fn notes(said: &Said) {
    for note in &said.notes {
        tracing::info!("{note}");
    }
}
