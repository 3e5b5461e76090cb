//! The newest version of every key in a chunk.
//!
//! Lives here: opening a chunk's generations side by side (their rows kept in memory where the budget allows), and
//! deciding for each generation which of its rows live: the newest version of a key wins, a delete keeps none. May use:
//! generations, mappings, key sets. Never: the base table (`find`), or a commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::Array;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use lance::Dataset;
use lance_io::object_store::ObjectStore;
use roaring::RoaringBitmap;
use uuid::Uuid;

use super::error::{Error, Result};
use super::file::Fetch;
use super::generation::{Facts, Generation, OpenGeneration, Rows};
use super::keys::{Added, KeyCodec, KeySet, Place, hash};
use super::mapping::Mapping;

/// Generations opened at once.
const AT_ONCE: usize = 64;
/// Rows of a batch that is read.
const BATCH_ROWS: u32 = 8192;
/// Bytes of a batch.
const BATCH_BYTES: u64 = 4 << 20;

/// A generation of a chunk, open.
pub(crate) struct Source {
    pub open: OpenGeneration,
    pub mapping: Mapping,
    batch: Batch,
    /// All its rows, where they are held in memory.
    held: Option<Vec<Rows>>,
}

impl Source {
    /// Its rows, tombstones among them; only the key columns where `keys_only` and they are not held already.
    pub async fn rows(&self, keys_only: bool) -> Result<BoxStream<'static, Result<Rows>>> {
        match &self.held {
            Some(rows) => Ok(stream::iter(rows.clone()).map(Ok).boxed()),
            None => {
                let columns = keys_only.then(|| self.mapping.key_columns());
                let Batch { rows, bytes } = self.batch;
                self.open.rows(columns.as_deref(), rows, bytes).await
            }
        }
    }
}

/// How large a batch of a generation's rows may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Batch {
    rows: u32,
    bytes: u64,
}

impl Batch {
    /// Batches of rows that are held: they count by what they all take, not one by one.
    const HELD: Self = Self {
        rows: BATCH_ROWS,
        bytes: BATCH_BYTES,
    };

    /// Batches of rows that are streamed: several are under way at once, as they were read and as they are written.
    fn streamed(budget: u64, generation: &Generation, facts: &Facts) -> Self {
        let bytes = (budget / 16).clamp(256 << 10, BATCH_BYTES);
        let all = generation.bytes.unwrap_or(0).max(facts.data_bytes);
        let row = (all / facts.physical_rows.max(1)).max(1);
        let rows = (bytes / row).clamp(16, u64::from(BATCH_ROWS)) as u32;
        Self { rows, bytes }
    }
}

/// How a chunk's rows are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// All at once, and kept, up to this many bytes in all.
    Hold { bytes: u64 },
    /// As they are asked for, by a merge of this budget.
    Stream { budget: u64 },
}

impl Reading {
    /// A chunk that takes half the budget at most is held; the other half is for the keys and for what is written.
    pub fn of(chunk: Estimate, budget: u64) -> Self {
        match chunk.bytes <= budget / 2 {
            true => Self::Hold { bytes: budget / 2 },
            false => Self::Stream { budget },
        }
    }

    /// How data files are read.
    fn fetch(self) -> Fetch {
        match self {
            Self::Hold { .. } => Fetch::Whole,
            Self::Stream { budget } => Fetch::Ranges {
                bytes: (budget / 4).clamp(4 << 20, 32 << 20),
            },
        }
    }
}

/// What a chunk costs to hold, by what is known of it before it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Estimate {
    /// Rows of all its generations.
    pub rows: u64,
    /// Bytes of all its rows in memory.
    pub bytes: u64,
}

/// Encoded data grows when it is read: where the writer did not say by how much, this is assumed.
const GROWTH: u64 = 4;
/// What a row costs beyond its data while it is held.
const ROW_OVERHEAD: u64 = 64;

/// What a generation's rows are thought to hold. Its figures are what files say: any number.
fn held(generation: &Generation, facts: &Facts) -> u64 {
    let growth = if generation.bytes.is_some() {
        1
    } else {
        GROWTH
    };
    let data = facts.data_bytes.saturating_mul(growth);
    let rows = facts.physical_rows.saturating_mul(ROW_OVERHEAD);
    generation.bytes.unwrap_or(0).max(data).saturating_add(rows)
}

/// Estimates a chunk.
pub(crate) fn estimate<'a>(
    chunk: impl IntoIterator<Item = (&'a Generation, &'a Facts)>,
) -> Estimate {
    chunk.into_iter().fold(
        Estimate { rows: 0, bytes: 0 },
        |sum, (generation, facts)| Estimate {
            rows: sum.rows.saturating_add(facts.physical_rows),
            bytes: sum.bytes.saturating_add(held(generation, facts)),
        },
    )
}

/// Opens the generations of a chunk, newest first as given. A chunk that turns out larger than may be held is streamed.
pub(crate) async fn open(
    base: &Arc<Dataset>,
    store: &Arc<ObjectStore>,
    chunk: Vec<(Generation, Arc<Facts>)>,
    keys: &[(String, i32)],
    reading: Reading,
) -> Result<Vec<Source>> {
    let held = Arc::new(AtomicU64::new(0));
    let tasks = chunk.iter().cloned().map(|(generation, facts)| {
        let (base, store, keys) = (base.clone(), store.clone(), keys.to_vec());
        let (of, held) = (generation.clone(), held.clone());
        // A task of its own, so that decoding uses every core.
        let task = async move {
            let fetch = reading.fetch();
            let mut open = OpenGeneration::open(&base, &store, &generation, &facts, fetch).await?;
            let mapping = Mapping::new(&open, base.schema(), &keys)?;
            let (held, batch) = match reading {
                Reading::Hold { bytes } => {
                    let rows = hold_rows(&mut open, &held, bytes).await?;
                    (Some(rows), Batch::HELD)
                }
                Reading::Stream { budget } => (None, Batch::streamed(budget, &generation, &facts)),
            };
            Ok::<_, Error>(Source {
                open,
                mapping,
                batch,
                held,
            })
        };
        Abort {
            of,
            task: tokio::spawn(task),
        }
    });
    let at_once = match reading {
        Reading::Hold { .. } => AT_ONCE,
        Reading::Stream { .. } => 4,
    };
    let sources: Vec<Source> = stream::iter(tasks).buffered(at_once).try_collect().await?;
    match reading {
        Reading::Hold { bytes } if held.load(Ordering::Relaxed) > bytes => {
            drop(sources);
            tracing::debug!(bytes, "the chunk is larger than it said; it is streamed");
            let reading = Reading::Stream { budget: bytes * 2 };
            Box::pin(self::open(base, store, chunk, keys, reading)).await
        }
        _ => Ok(sources),
    }
}

/// Reads a generation's rows as long as all that is held stays within `hold`, and lets go of its files.
async fn hold_rows(open: &mut OpenGeneration, held: &AtomicU64, hold: u64) -> Result<Vec<Rows>> {
    let mut kept = Vec::new();
    if held.load(Ordering::Relaxed) <= hold {
        let mut rows = open.rows(None, BATCH_ROWS, BATCH_BYTES).await?;
        while let Some(batch) = rows.try_next().await? {
            let bytes = batch.0.get_array_memory_size() as u64;
            kept.push(batch);
            if held.fetch_add(bytes, Ordering::Relaxed) + bytes > hold {
                break;
            }
        }
    }
    open.forget();
    Ok(kept)
}

/// A spawned task that ends with the one who waits for it. Lance panics on some broken files: that is a fact about the
/// generation.
struct Abort<T> {
    of: Generation,
    task: tokio::task::JoinHandle<Result<T>>,
}

impl<T> Future for Abort<T> {
    type Output = Result<T>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        let done = std::pin::Pin::new(&mut self.task).poll(cx);
        done.map(|done| match done {
            Ok(done) => done,
            Err(e) if e.is_panic() => Err(self.of.unreadable("Lance gave up while it was read")),
            Err(_) => Err(Error::Bug(
                "a task that read a generation was cancelled".into(),
            )),
        })
    }
}

impl<T> Drop for Abort<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Which rows of each generation live, in the order of the sources.
pub(crate) type Live = Vec<RoaringBitmap>;

/// One part of a chunk's keys: those whose hash falls on `part` of `of`. All keys where `of` is 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub part: u64,
    pub of: u64,
}

/// Positions of generations, newest first: within a shard by number, between shards by the time of their flush. MemWAL
/// asks that a key always maps to one shard; where a writer's successor took another, what was flushed later wins.
/// `oldest_first` holds each shard's generations in the order of their numbers.
pub(crate) fn newest_first(oldest_first: &[(&Generation, &Facts)]) -> Vec<usize> {
    let times = oldest_first.iter().map(|(g, f)| (*g, f.flushed_at));
    newest_first_by(&times.collect::<Vec<_>>())
}

/// As [`newest_first`], by the times of their flushes.
pub(crate) fn newest_first_by(oldest_first: &[(&Generation, Timestamp)]) -> Vec<usize> {
    let mut shards: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
    for (at, (generation, _)) in oldest_first.iter().enumerate() {
        shards.entry(generation.shard).or_default().push(at);
    }
    let mut order = Vec::with_capacity(oldest_first.len());
    while let Some(next) = shards
        .values_mut()
        .filter(|left| !left.is_empty())
        .max_by_key(|left| left.last().map(|at| oldest_first[*at].1))
    {
        order.extend(next.pop());
    }
    order
}

impl Part {
    /// The two parts that it falls into.
    pub fn halves(self) -> [Self; 2] {
        let of = self.of * 2;
        let second = self.part + self.of;
        [self.part, second].map(|part| Self { part, of })
    }
}

/// Parts are not halved further: keys that collide to here would not part.
const MOST_PARTS: u64 = 1 << 20;

/// Adds to `live` the rows that live among the keys of one part, and gives back those keys; `None` where they take more
/// than `limit` bytes. What was added until then stays right: choosing again adds the same.
/// `order` names the sources newest first.
pub(crate) async fn choose(
    sources: &[Source],
    order: &[usize],
    codec: &KeyCodec,
    part: Part,
    limit: u64,
    live: &mut Live,
) -> Result<Option<KeySet>> {
    let mut set = KeySet::default();
    for at in order.iter().copied() {
        let source = &sources[at];
        let mut rows = source.rows(true).await?;
        while let Some((batch, offsets)) = rows.try_next().await? {
            let columns = source.mapping.key_positions(&batch)?;
            let dead = source.mapping.tombstones(&batch);
            let broken = |e: arrow_schema::ArrowError| {
                tracing::warn!(error = %e, "keys cannot be encoded");
                let g = &source.open.generation;
                Error::SchemaMismatch {
                    shard: g.shard,
                    generation: g.number,
                    what: "its keys are of another type".into(),
                }
            };
            let keys = codec.encode(&batch, &columns).map_err(broken)?;
            for row in 0..batch.num_rows() {
                let key = keys.row(row);
                if part.of > 1 && hash(key.as_ref()) % part.of != part.part {
                    continue;
                }
                let offset = offsets.value(row);
                let lives = !dead
                    .as_ref()
                    .is_some_and(|d| d.is_valid(row) && d.value(row));
                match set.add(
                    key.as_ref(),
                    Place {
                        generation: at as u32,
                        offset,
                    },
                ) {
                    Added::Older => continue,
                    Added::Instead(before) => {
                        live[at].remove(before.offset);
                    }
                    Added::Newest => {}
                }
                if lives {
                    live[at].insert(offset);
                }
            }
            if set.size() as u64 > limit && set.len() > 1 && part.of < MOST_PARTS {
                return Ok(None);
            }
        }
    }
    Ok(Some(set))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use jiff::Timestamp;

    #[test]
    fn what_was_flushed_later_is_newer_between_shards_and_a_number_is_within_one() {
        let made = |shard: u128, number: u64, second: i64| {
            let generation = Generation {
                shard: Uuid::from_u128(shard),
                number,
                path: format!("{number}"),
                rows: None,
                bytes: None,
            };
            (
                generation,
                Facts::of(Timestamp::from_second(second).unwrap(), Bytes::new()),
            )
        };
        // Shard 1's clock went back between its two generations.
        let all = [
            made(1, 1, 50),
            made(1, 2, 40),
            made(2, 1, 45),
            made(2, 2, 60),
        ];
        let all: Vec<_> = all.iter().map(|(g, f)| (g, f)).collect();
        assert_eq!(newest_first(&all), [3, 2, 1, 0]);
    }
}
