//! One process's work on a table, and time that passes in the store.
//!
//! Lives here: `Desk` (sessions, tracker and memories of one process) and the ageing of files. May use: the library's table
//! room. Never: a decision of `plan`, or real waiting.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use freshet::table::{
    CompactMemory, CompactPolicy, Compacted, Limits, Location, Observation, Outcome, ReclaimMemory,
    ReclaimPolicy, Reclaimed, Stores, StoresConfig, Table, Tracker, Upkeep, steps,
};
use lance::Dataset;
use tokio::sync::{Notify, mpsc};

use crate::fixtures::{Fixture, shard};

/// Long enough for any work of a test.
pub const LONG: Duration = Duration::from_secs(600);
/// The grace that tests go by.
pub const GRACE: Duration = Duration::from_secs(600);
pub const MINUTE: Duration = Duration::from_secs(60);

/// One process at work on a table; another one shares nothing with it but storage.
pub struct Desk {
    pub table: Table,
    pub tracker: Tracker,
    pub memory: ReclaimMemory,
    pub compaction: CompactMemory,
}

impl Desk {
    pub async fn open(uri: &str) -> Self {
        Self::with(uri, StoresConfig::default()).await
    }

    pub async fn with(uri: &str, config: StoresConfig) -> Self {
        let table = Table::open(&Stores::new(config), &Location::new(uri))
            .await
            .unwrap();
        Self {
            table,
            tracker: Tracker::new(),
            memory: ReclaimMemory::default(),
            compaction: CompactMemory::default(),
        }
    }

    pub async fn observe(&mut self) -> Observation {
        self.tracker.refresh();
        self.tracker.observe(&self.table).await.unwrap().0
    }

    /// Merges all that is pending, at most `at_most` generations of a shard in a commit; how many commits it took.
    pub async fn merge(&mut self, at_most: usize) -> usize {
        let mut commits = 0;
        loop {
            self.tracker.refresh();
            let (_, snapshot) = self.tracker.observe(&self.table).await.unwrap();
            let oldest = snapshot.shards.iter().filter_map(|s| {
                let last = s.pending.iter().take(at_most).next_back()?;
                Some((s.state.shard, last.number))
            });
            let through: Vec<_> = oldest.collect();
            if through.is_empty() {
                return commits;
            }
            let (chunk, known) = (snapshot.chunk(&through).unwrap(), self.tracker.known());
            let limits = Limits::new(64 << 20, LONG);
            let outcome = self
                .table
                .merge(&snapshot, &chunk, &known, &limits)
                .await
                .unwrap();
            commits += usize::from(matches!(outcome, Outcome::Merged(_)));
        }
    }

    /// Takes every merged generation out of its shard's manifest; how many they were.
    pub async fn drain(&mut self) -> usize {
        let mut gone = 0;
        for view in self.observe().await.shards {
            let drained = self.table.drain(view.shard, view.watermark).await.unwrap();
            gone += drained.generations.len();
        }
        gone
    }

    /// Reclaims as of now.
    pub async fn reclaim(&mut self) -> Reclaimed {
        self.reclaim_after(Duration::ZERO).await
    }

    /// Reclaims as if so much time had passed in this process; the store's clock stands where it stands.
    pub async fn reclaim_after(&mut self, passed: Duration) -> Reclaimed {
        let observation = self.observe().await;
        let policy = ReclaimPolicy::new(GRACE, LONG);
        let now = Instant::now() + passed;
        let done = self
            .table
            .reclaim_at(&observation, &policy, &mut self.memory, now);
        done.await.unwrap()
    }

    /// One slice of compaction.
    pub async fn compact(&mut self, policy: &CompactPolicy) -> Upkeep<Compacted> {
        self.table
            .compact(policy, &mut self.compaction)
            .await
            .unwrap()
    }
}

/// Where work stops at a step until it is let go on.
pub struct Gate {
    reached: mpsc::UnboundedReceiver<()>,
    open: Arc<Notify>,
}

impl Gate {
    /// Ends when work is at the step.
    pub async fn reached(&mut self) {
        self.reached
            .recv()
            .await
            .expect("the work ended before the step");
    }

    /// Lets it go on, this time and every other.
    pub fn open(mut self) {
        self.reached.close();
        self.open.notify_one();
    }
}

/// A hook that stops work when it first comes to `step`, and the gate that lets it go on.
pub fn gate(step: &'static str) -> (steps::Hook, Gate) {
    let (tell, reached) = mpsc::unbounded_channel();
    let open = Arc::new(Notify::new());
    let wait = open.clone();
    let hook: steps::Hook = Arc::new(move |at| {
        let (stop, wait) = (at == step && tell.send(()).is_ok(), wait.clone());
        Box::pin(async move {
            if stop {
                wait.notified().await;
            }
        })
    });
    (hook, Gate { reached, open })
}

/// A policy that rewrites whatever has a neighbour.
pub fn eager() -> CompactPolicy {
    CompactPolicy {
        min_fragments: 2,
        ..CompactPolicy::new(1 << 20, LONG)
    }
}

/// A table with one shard whose first three generations are merged and drained, and what is left of them.
pub async fn drained(fixture: &mut Fixture) -> Vec<String> {
    for value in 1..=3 {
        fixture
            .put(&[(1, value), (200 + value as u64, value)])
            .await;
        fixture.flush().await;
    }
    let mut desk = Desk::open(&fixture.uri).await;
    assert_eq!(desk.merge(2).await, 2);
    assert_eq!(desk.drain().await, 3);
    let left = generations(fixture);
    assert_eq!(left.len(), 3);
    left
}

/// The directory of the first shard.
pub fn shard_dir(fixture: &Fixture) -> PathBuf {
    fixture.path().join("_mem_wal").join(shard(0).to_string())
}

/// The names of generation directories in the first shard, sorted by number.
pub fn generations(fixture: &Fixture) -> Vec<String> {
    let mut names: Vec<String> = names(&shard_dir(fixture))
        .into_iter()
        .filter(|name| name.contains("_gen_"))
        .collect();
    let number = |name: &String| name.rsplit('_').next().unwrap().parse::<u64>().unwrap();
    names.sort_by_key(number);
    names
}

/// What lies in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return vec![];
    };
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Every file under a directory.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut out = vec![];
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => out.extend(files(&entry.path())),
            false => out.push(entry.path()),
        }
    }
    out.sort();
    out
}

/// Lets time pass in the store: everything in the table gets older by `by`.
pub fn age(fixture: &Fixture, by: Duration) {
    age_dir(fixture.path(), by);
}

/// Lets a directory's files get older by `by`.
pub fn age_dir(dir: &Path, by: Duration) {
    for path in files(dir) {
        let file = File::options().write(true).open(&path).unwrap();
        let written = file.metadata().unwrap().modified().unwrap();
        file.set_modified(written - by).unwrap();
    }
}

/// The store's clock moves on: somebody flushes a generation.
pub async fn tick(fixture: &mut Fixture) {
    fixture.put(&[(900, 1)]).await;
    fixture.flush().await;
}

/// Takes the base back to what it was at a version.
pub async fn restore(fixture: &Fixture, version: u64) {
    let dataset: Dataset = fixture.dataset().await;
    let mut old = dataset.checkout_version(version).await.unwrap();
    old.restore().await.unwrap();
}

/// Dates a file in the year 2096, as a clock that was set wrong or a copy does.
pub fn date_2096(file: &Path) {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let file = File::options().write(true).open(file).unwrap();
    file.set_modified(at).unwrap();
}
