//! The demo's writers, and their journal.
//!
//! Lives here: making the table, and writing into it through Lance's own MemWAL: inserts, updates, deletes, a generation
//! every few of them. The journal says what each key holds, and never asks the table. May use: lance. Must never come in:
//! a merge.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::RecordBatchIterator;
use lance::Dataset;
use lance::dataset::mem_wal::{DatasetMemWalExt, ShardWriter, ShardWriterConfig};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::rollouts::{self, Row};

/// Rows that the base holds before anybody writes through MemWAL.
const ROLLOUTS_BEFORE: u64 = 20;

/// What was written.
#[derive(Debug, Default)]
pub struct Written {
    /// What every key holds that is there.
    pub rows: HashMap<String, Row>,
    pub inserted: u64,
    pub updated: u64,
    pub deleted: u64,
    pub generations: u64,
}

impl Written {
    /// Adds what another writer wrote; no two share a key.
    pub fn add(&mut self, other: Written) {
        self.rows.extend(other.rows);
        self.inserted += other.inserted;
        self.updated += other.updated;
        self.deleted += other.deleted;
        self.generations += other.generations;
    }
}

/// What all writers have written so far, for the screen.
#[derive(Debug, Default)]
pub struct Counts([AtomicU64; 4]);

impl Counts {
    /// The figures now, on top of `before`.
    pub fn now(&self, before: &Written) -> Written {
        let at = |n: usize| self.0[n].load(Ordering::Relaxed);
        Written {
            rows: HashMap::new(),
            inserted: before.inserted + at(0),
            updated: before.updated + at(1),
            deleted: before.deleted + at(2),
            generations: before.generations + at(3),
        }
    }

    fn add(&self, n: usize, by: usize) {
        self.0[n].fetch_add(by as u64, Ordering::Relaxed);
    }
}

/// Makes the table, with a few rollouts in it, and enables MemWAL.
pub async fn create(uri: &str) -> Result<Written, lance::Error> {
    let mut rng = StdRng::seed_from_u64(7);
    let mut written = Written::default();
    let rows: Vec<Row> = (0..ROLLOUTS_BEFORE)
        .flat_map(|n| rollouts::rollout(&mut rng, "before", n))
        .collect();
    let batch = rollouts::batch(&rows)?;
    let reader = RecordBatchIterator::new(vec![Ok(batch)], rollouts::schema());
    let mut dataset = Dataset::write(reader, uri, None).await?;
    dataset
        .initialize_mem_wal()
        .unsharded()
        .maintained_indexes(Vec::<String>::new())
        .execute()
        .await?;
    written
        .rows
        .extend(rows.into_iter().map(|r| (r.id.clone(), r)));
    Ok(written)
}

/// Writes as the `n`-th writer, into a shard of its own, until it is told to stop; then flushes and closes.
pub async fn write(
    uri: String,
    n: usize,
    counts: Arc<Counts>,
    over: CancellationToken,
) -> Result<Written, lance::Error> {
    let shard = Uuid::from_u128(0xf4e5_0000_0000_4000_8000_0000_0000_0001 + n as u128);
    let config = ShardWriterConfig::new(shard)
        .with_max_wal_flush_interval(Duration::from_millis(5))
        .with_stats_log_interval(None);
    let dataset = Dataset::open(&uri).await?;
    let mut journal = Journal {
        name: format!("w{n}"),
        writer: dataset.mem_wal_writer(shard, config).await?,
        rng: StdRng::seed_from_u64(100 + n as u64),
        written: Written::default(),
        keys: BTreeSet::new(),
        rollouts: 0,
        counts,
    };
    while !over.is_cancelled() {
        journal.turn().await?;
        let pause = Duration::from_millis(journal.rng.random_range(20..120));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = over.cancelled() => {}
        }
    }
    journal.flush().await?;
    journal.writer.close().await?;
    Ok(journal.written)
}

struct Journal {
    name: String,
    writer: ShardWriter,
    rng: StdRng,
    written: Written,
    keys: BTreeSet<String>,
    rollouts: u64,
    counts: Arc<Counts>,
}

impl Journal {
    /// One rollout, some grades, now and then a deletion, and every third time a generation.
    async fn turn(&mut self) -> Result<(), lance::Error> {
        let rows = rollouts::rollout(&mut self.rng, &self.name, self.rollouts);
        self.rollouts += 1;
        self.counts.add(0, rows.len());
        self.written.inserted += rows.len() as u64;
        self.keys.extend(rows.iter().map(|r| r.id.clone()));
        self.put(rows).await?;
        let graded: Vec<Row> = self
            .some(6)
            .iter()
            .filter_map(|id| self.written.rows.get(id).cloned())
            .collect();
        if !graded.is_empty() {
            let graded: Vec<Row> = graded
                .iter()
                .map(|row| rollouts::graded(&mut self.rng, row))
                .collect();
            self.counts.add(1, graded.len());
            self.written.updated += graded.len() as u64;
            self.put(graded).await?;
        }
        if self.rng.random_bool(0.2) {
            let gone = self.some(3);
            self.writer.delete(vec![rollouts::keys(&gone)?]).await?;
            self.counts.add(2, gone.len());
            self.written.deleted += gone.len() as u64;
            for id in gone {
                self.keys.remove(&id);
                self.written.rows.remove(&id);
            }
        }
        if self.rollouts.is_multiple_of(3) {
            self.flush().await?;
        }
        Ok(())
    }

    async fn put(&mut self, rows: Vec<Row>) -> Result<(), lance::Error> {
        self.writer.put(vec![rollouts::batch(&rows)?]).await?;
        let rows = rows.into_iter().map(|r| (r.id.clone(), r));
        self.written.rows.extend(rows);
        Ok(())
    }

    /// Some keys of this writer that are there, each once.
    fn some(&mut self, at_most: usize) -> Vec<String> {
        let mut found = BTreeSet::new();
        for _ in 0..at_most {
            let from = format!(
                "{}-{:06}",
                self.name,
                self.rng.random_range(0..self.rollouts)
            );
            found.extend(self.keys.range(from..).next().cloned());
        }
        found.into_iter().collect()
    }

    async fn flush(&mut self) -> Result<(), lance::Error> {
        let fence = self.writer.force_freeze_active().await?;
        let made = fence.frozen_generation().is_some();
        fence.wait().await?;
        self.written.generations += u64::from(made);
        self.counts.add(3, usize::from(made));
        Ok(())
    }
}
