//! The demo: writers roll out into a table of their own, and the engine merges behind them.
//!
//! Lives here: the order of the demo, from an empty folder to its summary. `rollouts` makes rows, `writers` puts them
//! through Lance's MemWAL, `check` compares the table with the writers' journal, `screen` shows it live. May use: every
//! room but the command line. Must never come in: a way to merge that is not the engine's.

mod check;
mod rollouts;
mod screen;
mod writers;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::catalog::Book;
use super::role::{self, SKEW, listen};
use super::specs::{Ready, ready};
use crate::api::{
    Defaults, Experiment, ExperimentSpec, FreshnessSpec, GoDuration, MergeAtSpec, RetentionSpec,
    TableSpec,
};
use crate::engine::{Config, Engine, Statuses, TableStatus};
use crate::server::{self, Server};
use crate::table::{Stores, StoresConfig};
use crate::telemetry::{CountedStores, Metrics};
use screen::{Screen, tell};
use writers::Written;

/// What the demo is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the table is made; a folder that is removed at the end where none is named.
    pub dir: Option<PathBuf>,
    /// Where the server listens.
    pub listen: SocketAddr,
    /// Writers, one shard each.
    pub writers: usize,
    /// Ends by itself after so many seconds of writing.
    pub seconds: Option<u64>,
    /// Shows nothing on the way, and the summary as one JSON document.
    pub json: bool,
}

/// Why the demo could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server's address.
    #[error(transparent)]
    Role(#[from] role::Error),
    /// The folder holds something that is not the demo's.
    #[error("{} exists and no demo made it; name another folder with --dir", .0.display())]
    NotOurs(PathBuf),
    /// The folder cannot be used.
    #[error("{} cannot be used: {source}; name another folder with --dir", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A writer failed.
    #[error("a writer of the demo failed: {0}")]
    Writer(lance::Error),
    /// The table does not hold what the writers wrote, or could not be read.
    #[error("{0}")]
    Wrong(String),
}

impl Error {
    /// The kind's name.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Role(e) => e.reason(),
            Error::NotOurs(_) => "NotOurs",
            Error::Folder { .. } => "BadFolder",
            Error::Writer(_) => "WriterFailed",
            Error::Wrong(_) => "WrongRows",
        }
    }
}

/// The experiment's name.
const NAME: &str = "rollouts";
/// Marks a folder as the demo's own, so that the next one may use it again.
const MARK: &str = ".freshet-demo";
/// How long the last merges may take once the writers are done.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the demo until its time is over or `stop` is cancelled, and prints a summary.
///
/// # Errors
/// What could not be set up, and `Wrong` where rows were lost, doubled or changed.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), Error> {
    let listener = listen(options.listen).await?;
    let address = listener.local_addr().map_err(role::Error::Server)?;
    let folder = Folder::make(options.dir.as_deref())?;
    let uri = folder.table();
    let mut written = writers::create(&uri).await.map_err(Error::Writer)?;

    let metrics = Arc::new(Metrics::new());
    let stores = Arc::new(Stores::new(StoresConfig {
        wrapper: Some(Arc::new(CountedStores::new(metrics.clone()))),
        ..Default::default()
    }));
    let config = Config {
        poll: Duration::from_millis(300),
        ..Default::default()
    };
    let engine = Engine::start(config, stores.clone(), metrics.clone());
    let book = Arc::new(Book::new(stores, engine.statuses()));
    let experiment = experiment(&uri).map_err(Error::Wrong)?;
    engine.set_tables(vec![experiment.spec.clone()]);
    book.set(std::slice::from_ref(&experiment));
    let served = CancellationToken::new();
    let config = server::Config {
        deadline: Duration::from_secs(15),
        skew: SKEW,
        ..Default::default()
    };
    let server = Server::new(book, metrics, config);
    let serving = tokio::spawn(server.serve(listener, served.clone()));

    let mut show = Show {
        screen: Screen::new(&options, &uri, address),
        statuses: engine.statuses(),
        max_lag: Duration::ZERO,
    };
    let begun = Instant::now();
    let wrote = show.roll_out(&options, &uri, &stop, &mut written).await;
    let wrote_for = begun.elapsed();
    let fresh = match &wrote {
        Ok(()) => {
            engine.merge_now(experiment.spec.id.clone());
            show.until_fresh(&written).await
        }
        Err(_) => false,
    };
    let last = show.status();
    let max_lag = show.max_lag;
    show.screen.end();
    let compared = match (&wrote, fresh) {
        (Ok(()), true) => Some(check::compare(&uri, &written.rows).await),
        _ => None,
    };
    engine.stop().await;
    served.cancel();
    // Whoever still reads has had its answer, or is told that the demo is over.
    serving.abort();
    wrote.map_err(Error::Writer)?;
    let summary = Summary {
        written: &written,
        took: wrote_for,
        last: last.as_ref(),
        max_lag,
        compared: compared.as_ref().and_then(|c| c.as_ref().ok()),
    };
    match options.json {
        true => tell(format_args!("{:#}", summary.document())),
        false => tell(summary.text()),
    }
    verdict(fresh, compared)
}

/// The demo's table under short times, so that there is something to see.
fn experiment(uri: &str) -> Result<Ready, String> {
    let short = |secs| Some(GoDuration::from_secs(secs));
    let spec = ExperimentSpec {
        table: TableSpec {
            uri: uri.to_string(),
            ..Default::default()
        },
        freshness: Some(FreshnessSpec {
            target: short(4),
            merge_at: Some(MergeAtSpec {
                generations: Some(48),
                bytes: None,
            }),
        }),
        retention: Some(RetentionSpec {
            drain_delay: short(2),
            // Long enough to leaf through the records with a cursor.
            merged_generation_grace_period: short(60),
            versions: None,
        }),
        ..Default::default()
    };
    ready(&Experiment::new(NAME, spec), &Defaults::default(), None)
}

/// The demo on its way.
struct Show {
    screen: Screen,
    statuses: watch::Receiver<Statuses>,
    max_lag: Duration,
}

impl Show {
    fn status(&self) -> Option<TableStatus> {
        let all = self.statuses.borrow();
        all.values().next().cloned()
    }

    /// Writes until time is over, somebody stops it, or a writer fails.
    async fn roll_out(
        &mut self,
        options: &Options,
        uri: &str,
        stop: &CancellationToken,
        written: &mut Written,
    ) -> Result<(), lance::Error> {
        let over = stop.child_token();
        let counts = Arc::new(writers::Counts::default());
        let all: Vec<_> = (0..options.writers.max(1))
            .map(|n| writers::write(uri.to_string(), n, counts.clone(), over.clone()))
            .collect();
        let mut all = Box::pin(futures::future::try_join_all(all));
        let end = options
            .seconds
            .map(|s| Instant::now() + Duration::from_secs(s));
        let mut tick = tokio::time::interval(screen::EVERY);
        let done = loop {
            tokio::select! {
                done = &mut all => break done?,
                _ = tick.tick() => {
                    if end.is_some_and(|end| Instant::now() >= end) {
                        over.cancel();
                    }
                    self.draw(&counts.now(written), false);
                }
            }
        };
        done.into_iter().for_each(|w| written.add(w));
        Ok(())
    }

    /// Waits until the engine has merged all that was written. Says whether it has.
    async fn until_fresh(&mut self, written: &Written) -> bool {
        let since = Timestamp::now();
        let patience = Instant::now() + PATIENCE;
        let mut tick = tokio::time::interval(screen::EVERY);
        while Instant::now() < patience {
            tick.tick().await;
            self.draw(written, true);
            let fresh = self.status().is_some_and(|s| {
                s.observed_at.is_some_and(|at| at > since) && s.pending_generations == Some(0)
            });
            if fresh {
                return true;
            }
        }
        false
    }

    fn draw(&mut self, written: &Written, ending: bool) {
        let status = self.status();
        let oldest = status.as_ref().and_then(|s| s.oldest_pending);
        let lag = oldest.map_or(Duration::ZERO, |oldest| {
            Duration::try_from(Timestamp::now().duration_since(oldest)).unwrap_or_default()
        });
        self.max_lag = self.max_lag.max(lag);
        self.screen
            .draw(NAME, status.as_ref(), lag, written, ending);
    }
}

/// What the demo came to.
struct Summary<'a> {
    written: &'a Written,
    took: Duration,
    last: Option<&'a TableStatus>,
    max_lag: Duration,
    compared: Option<&'a check::Compared>,
}

impl Summary<'_> {
    fn merged(&self) -> (u64, u64) {
        self.last.map_or((0, 0), |s| {
            (
                s.merged_generations,
                s.base.map_or(0, |(version, ..)| version),
            )
        })
    }

    fn text(&self) -> String {
        let (w, (merged, version)) = (self.written, self.merged());
        let mut text = format!(
            "wrote {} rows in {:.0} s ({} inserted, {} updated, {} deleted), flushed in {} generations\nmerged {merged} generations, base version {version}, longest lag {:.1} s",
            w.inserted + w.updated,
            self.took.as_secs_f64(),
            w.inserted,
            w.updated,
            w.deleted,
            w.generations,
            self.max_lag.as_secs_f64()
        );
        if let Some(c) = self.compared {
            text.push_str(&format!(
                "\nchecked {} rows against the writers' journal: {} lost, {} doubled, {} changed, {} resurrected",
                c.rows, c.lost, c.doubled, c.changed, c.resurrected
            ));
        }
        text
    }

    fn document(&self) -> serde_json::Value {
        let (w, (merged, version)) = (self.written, self.merged());
        let checked = self.compared.map(|c| {
            json!({ "rows": c.rows, "lost": c.lost, "doubled": c.doubled, "changed": c.changed, "resurrected": c.resurrected })
        });
        json!({
            "seconds": self.took.as_secs_f64(),
            "written": { "inserted": w.inserted, "updated": w.updated, "deleted": w.deleted, "generations": w.generations },
            "merged": { "generations": merged, "version": version },
            "longestLagSeconds": self.max_lag.as_secs_f64(),
            "checked": checked,
        })
    }
}

fn verdict(fresh: bool, compared: Option<Result<check::Compared, String>>) -> Result<(), Error> {
    match compared {
        Some(Ok(c)) if c.is_right() => Ok(()),
        Some(Ok(_)) => Err(Error::Wrong(
            "the table differs from the writers' journal, as said above; please report it".into(),
        )),
        Some(Err(e)) => Err(Error::Wrong(e)),
        None if fresh => Ok(()),
        None => Err(Error::Wrong(format!(
            "the last merges did not end within {} s; run with -v to see why",
            PATIENCE.as_secs()
        ))),
    }
}

/// Where the table lies.
struct Folder {
    path: PathBuf,
    ours: bool,
}

impl Folder {
    fn make(dir: Option<&Path>) -> Result<Self, Error> {
        let path = match dir {
            Some(dir) => std::path::absolute(dir),
            None => Ok(std::env::temp_dir().join(format!("freshet-demo-{}", std::process::id()))),
        };
        let path = path.map_err(|source| Error::Folder {
            path: dir.unwrap_or(Path::new(".")).into(),
            source,
        })?;
        let folder = Self {
            ours: dir.is_none(),
            path,
        };
        folder.prepare()?;
        Ok(folder)
    }

    /// An empty place for the table.
    fn prepare(&self) -> Result<(), Error> {
        let unusable = |source| Error::Folder {
            path: self.path.clone(),
            source,
        };
        std::fs::create_dir_all(&self.path).map_err(unusable)?;
        let (mark, table) = (self.path.join(MARK), PathBuf::from(self.table()));
        // The folder of a table is no place for another.
        let versions = self.path.join("_versions");
        if versions.exists() {
            return Err(Error::NotOurs(versions));
        }
        if table.exists() {
            if !mark.exists() {
                return Err(Error::NotOurs(table));
            }
            std::fs::remove_dir_all(&table).map_err(unusable)?;
        }
        let said = "made by `freshet demo`; its table may be replaced\n";
        std::fs::write(mark, said).map_err(unusable)
    }

    fn table(&self) -> String {
        let table = self.path.join(format!("{NAME}.lance"));
        table.to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.ours
            && let Err(e) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!(folder = %self.path.display(), "cannot be removed: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_no_demo_made_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let table = dir.path().join("rollouts.lance");
        std::fs::create_dir(&table).unwrap();
        assert!(matches!(
            Folder::make(Some(dir.path())),
            Err(Error::NotOurs(_))
        ));
        assert!(table.exists());
    }

    #[test]
    fn no_demo_is_made_inside_of_a_table() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("_versions")).unwrap();
        assert!(matches!(
            Folder::make(Some(dir.path())),
            Err(Error::NotOurs(_))
        ));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_of_an_earlier_demo_is_used_again_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let first = Folder::make(Some(dir.path())).unwrap();
        std::fs::create_dir(first.table()).unwrap();
        drop(first);
        let again = Folder::make(Some(dir.path())).unwrap();
        assert!(!Path::new(&again.table()).exists());
        drop(again);
        assert!(dir.path().join(MARK).exists());
    }

    #[test]
    fn a_folder_of_its_own_is_removed_at_the_end() {
        let folder = Folder::make(None).unwrap();
        let path = folder.path.clone();
        assert!(path.exists());
        drop(folder);
        assert!(!path.exists());
    }
}
