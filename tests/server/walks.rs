//! Walks by cursor beside a running engine, a clean-up of old versions and writers.
//!
//! Lives here: hundreds of seeded walks over two replicas while everything that moves rows or deletes files runs: each is
//! one snapshot, the same rows in the same order as one read of it, nothing lost, nothing repeated. May use: the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use freshet::plan::{Compaction, Policy};
use freshet::server::{Config, CursorKeys};
use freshet::table::{StoresConfig, Tracker, VersionsMemory, VersionsPolicy};
use lance_file::version::LanceFileVersion;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::fixtures::{Fixture, Kind, Shape, Spec};
use crate::running::{Running, quick, table};
use crate::served::{Answer, Served, Tables};
use crate::sources::open;

const KEYS: &str = "elm AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\noak QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ=\n";
const GRACE: Duration = Duration::from_secs(8);
/// Cursors live as long as the grace less this.
const DEADLINE: Duration = Duration::from_secs(3);
const SHARDS: u64 = 2;
/// Keys of a table with a key; all are written anew at each round, save those that it deletes.
const KEYS_OF: u64 = 90;
/// Rows that a round adds to a table without a key, of each shard.
const ADDED: u64 = 9;

/// What rounds write: by its number alone it is known what a table holds after each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Keyed,
    Bag,
}

impl Kept {
    fn shape(self) -> Shape {
        match self {
            Kept::Keyed => Shape::keyed(Kind::Int64),
            Kept::Bag => Shape::append_only(),
        }
        .with("role", Kind::Role(5))
    }

    fn base(self) -> Vec<(u64, i64)> {
        (0..KEYS_OF).map(|k| (k, 0)).collect()
    }

    /// What a round of a shard writes, and what it deletes.
    fn round(self, shard: u64, round: u64) -> (Vec<(u64, i64)>, Vec<u64>) {
        match self {
            Kept::Keyed => {
                let own = (0..KEYS_OF).filter(|k| k % SHARDS == shard);
                let (gone, there): (Vec<u64>, Vec<u64>) =
                    own.partition(|k| (k + round).is_multiple_of(7));
                (there.into_iter().map(|k| (k, round as i64)).collect(), gone)
            }
            Kept::Bag => {
                let rows = (0..ADDED).map(|i| 1000 * round + SHARDS * i + shard);
                (rows.map(|k| (k, round as i64)).collect(), vec![])
            }
        }
    }

    /// Checks that rows are what a source of one snapshot holds of a shard.
    fn check(self, source: &str, shard: u64, role: Option<&str>, rows: &BTreeSet<(u64, i64)>) {
        let passes = |row: &(u64, i64)| role.is_none_or(|r| role_of(*row).as_deref() == Some(r));
        let only = |rows: Vec<(u64, i64)>| -> BTreeSet<(u64, i64)> {
            rows.into_iter().filter(passes).collect()
        };
        let base = || {
            only(
                self.base()
                    .into_iter()
                    .filter(|r| r.0 % SHARDS == shard)
                    .collect(),
            )
        };
        match self {
            Kept::Keyed => {
                // One moment: every row of one round, and all of them.
                let rounds: BTreeSet<i64> = rows.iter().map(|r| r.1).collect();
                assert!(rounds.len() <= 1, "{source}: rows of rounds {rounds:?}");
                match rounds.first() {
                    Some(0) => assert_eq!(*rows, base(), "{source}"),
                    Some(r) => assert_eq!(*rows, only(self.round(shard, *r as u64).0), "{source}"),
                    None => assert!(source == "wal" || role.is_some(), "{source} is empty"),
                }
            }
            Kept::Bag => {
                // Rounds without a gap, each whole, from the base on unless only what is pending is shown.
                let last = rows.iter().map(|r| r.1).max().unwrap_or(0);
                let first = match source {
                    "wal" => rows.iter().map(|r| r.1).min().unwrap_or(1),
                    _ => 1,
                };
                let mut want: BTreeSet<(u64, i64)> = match source {
                    "wal" => BTreeSet::new(),
                    _ => base(),
                };
                for round in first..=last {
                    want.extend(only(self.round(shard, round as u64).0));
                }
                assert_eq!(*rows, want, "{source}");
            }
        }
    }
}

/// The role of a row, as the fixture makes it.
fn role_of((key, value): (u64, i64)) -> Option<String> {
    let n = (key * 31 + value as u64 * 17) % 100_003;
    (n % 11 != 10).then(|| format!("role-{}", n % 5))
}

fn row(kept: Kept, record: &Value) -> (u64, i64) {
    // As the fixture makes it of the row's number; records show large ones as texts.
    let whole = |column: &str| -> i128 {
        let shown = &record[column];
        let text = shown.as_str().map_or(shown.to_string(), str::to_string);
        text.parse().unwrap()
    };
    let number = match kept {
        Kept::Keyed => match whole("episode") {
            k if k == i128::from(i64::MIN) => 0,
            k => k + 50,
        },
        Kept::Bag => i128::from(u64::MAX) - whole("number"),
    };
    (number as u64, record["value"].as_i64().unwrap())
}

/// The policy of an engine that merges, drains, reclaims and compacts all the time.
fn busy() -> Policy {
    Policy {
        target: Duration::from_secs(1),
        merge_at_generations: 2,
        max_generations_per_merge: 3,
        drain_delay: Duration::from_millis(20),
        grace: GRACE,
        compaction: Compaction {
            enabled: true,
            min_fragments: 3,
            target_rows_per_fragment: 200,
        },
        ..Default::default()
    }
}

/// What all walks of a table came to.
#[derive(Default)]
struct Tally {
    whole: AtomicU64,
    pages: AtomicU64,
    expired: AtomicU64,
    /// Base versions that were removed meanwhile.
    versions: AtomicU64,
    /// Whether files of every sort were deleted by now: walks go on until then.
    deleted: AtomicBool,
}

struct Walker {
    kept: Kept,
    served: Arc<[Served; 2]>,
    tally: Arc<Tally>,
}

impl Walker {
    async fn get(&self, rng: &mut StdRng, query: &str) -> Answer {
        let at = rng.random_range(0..2);
        self.tally.pages.fetch_add(1, Ordering::Relaxed);
        self.served[at].records("maze", query).await
    }

    /// A page of a walk; `None` where the walk's time was over.
    async fn page(&self, rng: &mut StdRng, query: &str) -> Option<Answer> {
        let answer = self.get(rng, query).await;
        if answer.status == 410 {
            let expired = answer.json()["expired"].as_str().map(str::to_string);
            let expired: jiff::Timestamp = expired
                .unwrap_or_else(|| panic!("{answer:?}"))
                .parse()
                .unwrap();
            assert!(
                jiff::Timestamp::now() >= expired,
                "before its time: {answer:?}"
            );
            self.tally.expired.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        assert_eq!(answer.status, 200, "{query}: {answer:?}");
        Some(answer)
    }

    /// One walk; whether it came to its end.
    async fn walk(&self, seed: u64) -> bool {
        let mut rng = StdRng::seed_from_u64(seed);
        let source = ["fragments", "wal", "all"][rng.random_range(0..3)];
        let role = rng
            .random_bool(0.4)
            .then(|| format!("role-{}", rng.random_range(0..5)));
        let filter = role
            .as_ref()
            .map(|r| format!("&role={r}"))
            .unwrap_or_default();
        let limit = rng.random_range(6..60);
        let asked = format!("?source={source}{filter}");
        let Some(first) = self.page(&mut rng, &format!("{asked}&limit={limit}")).await else {
            panic!("a first page has no time to be over");
        };
        let mut rows = first.records();
        let mut next = first.json()["next_cursor"].as_str().map(str::to_string);
        assert_eq!(
            next.is_some(),
            first.json()["has_more"] == true,
            "{first:?}"
        );
        // One read of the rest, to compare with.
        let mut whole = rows.clone();
        let mut rest = next.clone();
        while let Some(cursor) = rest {
            let query = format!("{asked}&limit=1000&cursor={cursor}");
            let Some(answer) = self.page(&mut rng, &query).await else {
                return false;
            };
            whole.extend(answer.records());
            rest = answer.json()["next_cursor"].as_str().map(str::to_string);
        }
        while let Some(cursor) = next {
            let query = format!("{asked}&limit={limit}&cursor={cursor}");
            let Some(answer) = self.page(&mut rng, &query).await else {
                return false;
            };
            let said = answer.json();
            assert_eq!(said["snapshot"], first.json()["snapshot"]);
            assert_eq!(said["offset"], rows.len());
            rows.extend(answer.records());
            next = said["next_cursor"].as_str().map(str::to_string);
        }
        assert_eq!(rows, whole, "{asked} by {limit}");
        let mut shards: BTreeMap<u64, BTreeSet<(u64, i64)>> =
            (0..SHARDS).map(|s| (s, BTreeSet::new())).collect();
        for record in &rows {
            let row = row(self.kept, record);
            let fresh = shards.get_mut(&(row.0 % SHARDS)).unwrap().insert(row);
            assert!(fresh, "{asked}: {row:?} is there twice");
        }
        for (shard, rows) in &shards {
            self.kept.check(source, *shard, role.as_deref(), rows);
        }
        self.tally.whole.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Removes old base versions as soon as the grace allows it.
async fn clean(table: freshet::table::Table, tally: Arc<Tally>, ended: Arc<AtomicBool>) {
    let (mut tracker, mut memory) = (Tracker::new(), VersionsMemory::default());
    while !ended.load(Ordering::Relaxed) {
        tracker.refresh();
        let (observation, _) = tracker.observe(&table).await.unwrap();
        let policy = VersionsPolicy::new(GRACE, GRACE, Duration::ZERO, Duration::from_secs(60));
        let done = table
            .clean_versions(&observation, &policy, &mut memory)
            .await;
        let gone = done.unwrap().versions;
        tally.versions.fetch_add(gone, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

async fn beside_everything(kept: Kept, spec: Spec, seed: u64, walks: u64) {
    let mut t = Fixture::create(Spec {
        shape: kept.shape(),
        base: kept.base(),
        rows_per_file: 25,
        shards: SHARDS as usize,
        ..spec
    })
    .await;
    let mut engine = Running::start(quick(), vec![table("maze", &t, busy())]);
    engine.until("maze", |s| s.observed_at.is_some()).await;
    let config = Config {
        deadline: DEADLINE,
        skew: Duration::ZERO,
        ..Default::default()
    };
    let replica = || {
        let tables = Tables::new(StoresConfig::default());
        let tables = tables.with_kept("maze", &t.uri, GRACE.as_secs_f64());
        Served::signing(tables, config, CursorKeys::parse(KEYS).unwrap())
    };
    let served = Arc::new([replica().await, replica().await]);
    let (tally, ended) = (Arc::<Tally>::default(), Arc::new(AtomicBool::new(false)));
    let walking: Vec<_> = (0..3u64)
        .map(|at| {
            let walker = Walker {
                kept,
                served: served.clone(),
                tally: tally.clone(),
            };
            tokio::spawn(async move {
                let (mut done, mut n) = (0, 0);
                while done < walks || !walker.tally.deleted.load(Ordering::Relaxed) {
                    let whole = walker.walk(seed * 1_000_000 + at * 100_000 + n).await;
                    (done, n) = (done + u64::from(whole), n + 1);
                }
            })
        })
        .collect();
    let cleaning = tokio::spawn(clean(open(&t).await, tally.clone(), ended.clone()));
    let mut round = 0;
    while !walking.iter().all(|w| w.is_finished()) {
        round += 1;
        for shard in 0..SHARDS {
            let (rows, gone) = kept.round(shard, round);
            t.put(&rows).await;
            if !gone.is_empty() {
                t.delete(&gone).await;
            }
            t.flush_shard(shard as usize).await;
        }
        // As fast as merges follow, so that there is something of everything.
        let behind =
            |s: &freshet::engine::TableStatus| s.pending_generations.is_some_and(|n| n <= 6);
        let status = engine.until("maze", behind).await;
        let versions = tally.versions.load(Ordering::Relaxed);
        let deleted = status.reclaimed > 0 && versions > 0;
        tally.deleted.fetch_or(deleted, Ordering::Relaxed);
    }
    for walk in walking {
        walk.await.unwrap();
    }
    ended.store(true, Ordering::Relaxed);
    cleaning.await.unwrap();
    let status = engine.until_fresh("maze").await;
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    println!(
        "{} walks, {} pages, {} expired; {round} rounds, {} generations merged, {} directories reclaimed, {} versions removed",
        count(&tally.whole),
        count(&tally.pages),
        count(&tally.expired),
        status.merged_generations,
        status.reclaimed,
        count(&tally.versions)
    );
    assert!(count(&tally.whole) >= 3 * walks);
    assert!(t.verdict().await.is_sound());
    engine.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn walks_over_a_table_with_a_key_are_whole_beside_engine_clean_up_and_writers() {
    beside_everything(Kept::Keyed, Spec::default(), 1, 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn walks_over_a_table_without_a_key_are_whole_beside_engine_clean_up_and_writers() {
    beside_everything(Kept::Bag, Spec::default(), 2, 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn walks_over_a_table_with_stable_row_ids_and_an_index_are_whole_beside_everything() {
    let spec = Spec {
        stable_row_ids: true,
        storage: LanceFileVersion::V2_2,
        btree: true,
        ..Default::default()
    };
    beside_everything(Kept::Keyed, spec, 3, 30).await;
}
