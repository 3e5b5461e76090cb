//! A merge: the oldest pending generations of some shards become part of the base table in one commit.
//!
//! Lives here: the order of a merge's steps and its bounds. Read the chunk, choose the newest version of each key, find
//! the base rows that they replace, write the living rows, delete the replaced ones, commit; after any failure look at
//! the watermarks and say what is so. May use: this room's parts. Never: a decision when or how much (`plan`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::BooleanArray;
use arrow_schema::DataType;
use arrow_select::filter::filter_record_batch;
use futures::stream::{self, StreamExt, TryStreamExt};
use lance::Dataset;
use lance_core::datatypes::Schema;
use roaring::RoaringBitmap;

use super::base::{Table, details, key_fields, watermarks};
use super::commit::{Prepared, commit, landed};
use super::error::{Error, Result};
use super::find::{Ahead, Found, Within, ahead, find};
use super::generation::{Facts, Generation, Rows};
use super::keys::KeyCodec;
use super::known::Known;
use super::newest::{Estimate, Live, Part, Reading, Source, choose, estimate, newest_first, open};
use super::rowids::RowIds;
use super::snapshot::{Chunk, Listing, Snapshot};
use super::steps::reach;
use super::write::{self, Batches};

/// A merge's bounds.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that the merge may hold in memory. A chunk that needs more is streamed.
    pub budget_bytes: u64,
    /// When the attempt has to have committed; past it, it never does.
    pub deadline: Instant,
}

impl Limits {
    /// Bounds that end `after` from now.
    pub fn new(budget_bytes: u64, after: Duration) -> Self {
        Self {
            budget_bytes,
            deadline: Instant::now() + after,
        }
    }
}

/// How an attempt ended.
#[derive(Debug)]
pub enum Outcome {
    /// It committed.
    Merged(Merged),
    /// Another hand has merged as much, or more: every watermark is at or past ours.
    Overtaken,
    /// Another commit won and the chunk is not merged whole; take a new snapshot and decide again.
    Lost,
}

/// What a merge did.
#[derive(Debug, Clone, Default)]
pub struct Merged {
    /// The base version that it made.
    pub version: u64,
    /// Generations that it moved.
    pub generations: usize,
    /// Rows written to the base.
    pub rows_written: u64,
    /// Base rows replaced or deleted.
    pub rows_deleted: u64,
    /// Bytes of the data files written.
    pub bytes_written: u64,
    /// Whether the chunk was streamed because it is larger than the budget.
    pub streamed: bool,
    /// Time of its parts: reading, finding, writing, committing.
    pub took: [Duration; 4],
}

impl Table {
    /// Merges a chunk of a snapshot: one marked and fenced commit, or nothing.
    ///
    /// # Errors
    /// `GenerationUnreadable` and `SchemaMismatch` name the generation at fault (its shard waits, others flow on);
    /// `Unsupported`, `DeadlineExceeded` and the store's kinds. Whatever comes back, the table holds the chunk's rows,
    /// deletes and watermarks either all or not at all.
    pub async fn merge(
        &self,
        snapshot: &Snapshot,
        chunk: &Chunk,
        known: &Known,
        limits: &Limits,
    ) -> Result<Outcome> {
        if !snapshot.mem_wal {
            return Err(Error::NotMemWal(self.location().uri.clone()));
        }
        reach("merge.begin").await;
        let resetting = known.resetting(chunk.marks().map(|(shard, _)| shard));
        if !resetting.is_empty() {
            return self
                .start_over(snapshot, chunk, known, limits, &resetting)
                .await;
        }
        self.merge_of(snapshot, chunk, known, limits).await
    }

    /// As [`Table::merge`], of shards whose watermarks in the base are not theirs: they are taken out first.
    async fn start_over(
        &self,
        snapshot: &Snapshot,
        chunk: &Chunk,
        known: &Known,
        limits: &Limits,
        shards: &[uuid::Uuid],
    ) -> Result<Outcome> {
        let reset = self.reset_watermarks(&snapshot.base, shards, limits.deadline);
        match reset.await {
            Ok(()) => {}
            Err(Error::Conflict(_)) => return Ok(Outcome::Lost),
            Err(e) => return Err(e),
        }
        let snapshot = Listing::read(self).await?.with_base(self).await?;
        let through: Vec<_> = chunk.marks().collect();
        match snapshot.chunk(&through) {
            Ok(chunk) => self.merge_of(&snapshot, &chunk, known, limits).await,
            // Another hand merged some of it meanwhile.
            Err(_) => Ok(Outcome::Lost),
        }
    }

    async fn merge_of(
        &self,
        snapshot: &Snapshot,
        chunk: &Chunk,
        known: &Known,
        limits: &Limits,
    ) -> Result<Outcome> {
        let work = Work::new(self, snapshot, chunk, known, limits).await?;
        let mut merged = Merged {
            generations: chunk.len(),
            streamed: matches!(work.reading, Reading::Stream { .. }),
            ..Default::default()
        };
        let attempt = tokio::time::timeout_at(limits.deadline.into(), work.prepare(&mut merged));
        let prepared = attempt.await.map_err(|_| Error::DeadlineExceeded)??;
        reach("merge.commit").await;
        let begun = Instant::now();
        match commit(&prepared, limits.deadline).await {
            Ok(dataset) => {
                reach("merge.committed").await;
                merged.took[3] = begun.elapsed();
                merged.version = dataset.version_id();
                self.saw(dataset).await;
                Ok(Outcome::Merged(merged))
            }
            Err(e) => self.judge(&prepared, e).await,
        }
    }

    /// What a failed commit means: the watermarks say it.
    async fn judge(&self, prepared: &Prepared, e: Error) -> Result<Outcome> {
        let latest = self.latest().await?;
        let marks = details(&latest)
            .await?
            .as_ref()
            .map(watermarks)
            .unwrap_or_default();
        let held =
            |(shard, top): &(uuid::Uuid, u64)| marks.get(shard).is_some_and(|mark| mark >= top);
        // A commit whose answer was lost has landed all the same; only a definite loser's files may go.
        if matches!(e, Error::Conflict(_)) {
            let read = prepared.base.version_id();
            if landed(&latest, read, &prepared.transaction).await == Some(false) {
                write::remove(&prepared.base, &prepared.new, &prepared.updated).await;
            }
        }
        if prepared.marks.iter().all(held) {
            return Ok(Outcome::Overtaken);
        }
        match e {
            Error::Conflict(_) => Ok(Outcome::Lost),
            // Lance refuses a mark that does not rise without a type of its own: a mark that moved says the same.
            _ if prepared.marks.iter().any(held) => Ok(Outcome::Lost),
            e => Err(e),
        }
    }
}

/// One attempt.
struct Work<'a> {
    table: &'a Table,
    base: Arc<Dataset>,
    chunk: &'a Chunk,
    keys: Vec<(String, i32)>,
    facts: Vec<(Generation, Arc<Facts>)>,
    /// Positions in `facts`, newest first.
    order: Vec<usize>,
    acknowledged: Vec<uuid::Uuid>,
    estimate: Estimate,
    reading: Reading,
    budget: u64,
}

impl<'a> Work<'a> {
    async fn new(
        table: &'a Table,
        snapshot: &Snapshot,
        chunk: &'a Chunk,
        known: &Known,
        limits: &Limits,
    ) -> Result<Work<'a>> {
        let base = snapshot.base.clone();
        let keys = key_fields(base.schema());
        check_keys(base.schema(), &keys)?;
        // Rows are written oldest first, so sources are read the other way round.
        let wanted: Vec<Generation> = chunk.generations().cloned().collect();
        let mut facts = known.all(table, &wanted).await?;
        let by_age = newest_first(
            &facts
                .iter()
                .map(|(g, f)| (g, f.as_ref()))
                .collect::<Vec<_>>(),
        );
        let last = facts.len() - 1;
        let order = by_age.into_iter().map(|at| last - at).collect();
        facts.reverse();
        let estimate = estimate(facts.iter().map(|(g, f)| (g, f.as_ref())));
        let budget = match base.manifest().uses_stable_row_ids() {
            true => RowIds::leave(limits.budget_bytes, estimate.rows),
            false => limits.budget_bytes,
        };
        let reading = Reading::of(estimate, budget);
        Ok(Self {
            table,
            base,
            chunk,
            keys,
            facts,
            order,
            acknowledged: known.acknowledged(chunk.marks().map(|(shard, _)| shard)),
            estimate,
            reading,
            budget,
        })
    }

    /// Everything up to the commit.
    async fn prepare(&self, merged: &mut Merged) -> Result<Prepared> {
        let begun = Instant::now();
        let read = open(
            &self.base,
            self.table.store(),
            self.facts.clone(),
            &self.keys,
            self.reading,
        );
        let ahead = ahead(self.within(), self.estimate.rows);
        let (sources, ahead) = futures::try_join!(read, ahead)?;
        reach("merge.read").await;
        merged.took[0] = begun.elapsed();
        let begun = Instant::now();
        let (live, mut found) = if self.keys.is_empty() {
            (vec![], Found::default())
        } else {
            self.choose(&sources, ahead).await?
        };
        reach("merge.found").await;
        merged.took[1] = begun.elapsed();
        merged.rows_deleted = found.addresses.len();
        let begun = Instant::now();
        let row_ids = std::mem::take(&mut found.row_ids);
        let (new, deletions) = futures::future::join(
            self.write(Arc::new(sources), live, row_ids),
            write::deletions(&self.base, &found.addresses),
        )
        .await;
        let (new, deletions) = match (new, deletions) {
            (Ok(new), Ok(deletions)) => (new, deletions),
            (new, deletions) => {
                let (files, e) = (
                    new.as_ref().ok().cloned(),
                    deletions.as_ref().ok().map(|d| d.updated.clone()),
                );
                write::remove(
                    &self.base,
                    &files.unwrap_or_default(),
                    &e.unwrap_or_default(),
                )
                .await;
                return Err(new
                    .err()
                    .or(deletions.err())
                    .unwrap_or(Error::Bug("nothing failed".into())));
            }
        };
        reach("merge.written").await;
        reach("merge.deletions").await;
        merged.took[2] = begun.elapsed();
        merged.rows_written = new.iter().filter_map(|f| f.physical_rows).sum::<usize>() as u64;
        let files = new.iter().flat_map(|f| &f.files);
        merged.bytes_written = files
            .filter_map(|f| f.file_size_bytes.get())
            .map(u64::from)
            .sum();
        Ok(Prepared {
            base: self.base.clone(),
            new,
            updated: deletions.updated,
            removed: deletions.removed,
            addresses: found.addresses,
            marks: self.chunk.marks().collect(),
            key_ids: self.keys.iter().map(|(_, id)| *id).collect(),
            acknowledged: self.acknowledged.clone(),
            transaction: uuid::Uuid::new_v4().to_string(),
        })
    }

    fn within(&self) -> Within<'_> {
        Within {
            base: &self.base,
            keys: &self.keys,
            budget: self.budget,
        }
    }

    /// Chooses the rows that live and finds what they replace, in as many parts as the keys need to fit the budget.
    async fn choose(&self, sources: &[Source], mut ahead: Option<Ahead>) -> Result<(Live, Found)> {
        let types = key_types(self.base.schema(), &self.keys)?;
        let codec = KeyCodec::new(types)
            .map_err(|e| Error::Bug(format!("keys of a hashable type: {e}")))?;
        let key_bytes = self.estimate.rows.saturating_mul(KEY_BYTES);
        let of = key_bytes.div_ceil((self.budget / 4).max(1)).max(1);
        let mut live: Live = vec![RoaringBitmap::new(); sources.len()];
        let mut found = Found::default();
        let mut parts: Vec<Part> = (0..of).rev().map(|part| Part { part, of }).collect();
        while let Some(part) = parts.pop() {
            let limit = self.budget / 2;
            let Some(set) = choose(sources, &self.order, &codec, part, limit, &mut live).await?
            else {
                // Keys are longer than was thought.
                parts.extend(part.halves());
                continue;
            };
            find(self.within(), &codec, &set, &live, &mut found, ahead.take()).await?;
        }
        Ok((live, found))
    }

    /// Writes the living rows, oldest first. With stable row ids, rows that update come before rows that are new, each in
    /// fragments of their own: the first keep their ids, the others get new ones.
    async fn write(
        &self,
        sources: Arc<Vec<Source>>,
        live: Live,
        row_ids: RowIds,
    ) -> Result<Vec<lance_table::format::Fragment>> {
        if self.keys.is_empty() {
            return write::fragments(&self.base, rows_of(sources, None), self.budget).await;
        }
        if !self.base.manifest().uses_stable_row_ids() {
            if live.iter().all(RoaringBitmap::is_empty) {
                return Ok(vec![]);
            }
            return write::fragments(&self.base, rows_of(sources, Some(live)), self.budget).await;
        }
        let updating = row_ids.rows(live.len());
        let fresh: Live = live
            .iter()
            .zip(&updating)
            .map(|(live, updating)| live - updating)
            .collect();
        drop(live);
        let mut new = vec![];
        if !updating.iter().all(RoaringBitmap::is_empty) {
            let rows = rows_of(sources.clone(), Some(updating));
            new = write::fragments(&self.base, rows, self.budget).await?;
            if let Err(e) = row_ids.keep(&mut new) {
                write::remove(&self.base, &new, &[]).await;
                return Err(e);
            }
        }
        drop(row_ids);
        if !fresh.iter().all(RoaringBitmap::is_empty) {
            match write::fragments(&self.base, rows_of(sources, Some(fresh)), self.budget).await {
                Ok(fragments) => new.extend(fragments),
                Err(e) => {
                    write::remove(&self.base, &new, &[]).await;
                    return Err(e);
                }
            }
        }
        Ok(new)
    }
}

/// What a key is taken to need in memory before it is known.
const KEY_BYTES: u64 = 80;

/// The rows of `sources` that are in `live` (all where `None`), oldest generation first, in the table's schema.
fn rows_of(sources: Arc<Vec<Source>>, live: Option<Live>) -> Batches {
    let live = live.map(Arc::new);
    let order = (0..sources.len()).rev();
    stream::iter(order)
        .then(move |at| {
            let (sources, live) = (sources.clone(), live.clone());
            async move {
                if live.as_ref().is_some_and(|live| live[at].is_empty()) {
                    return Ok(stream::empty().boxed());
                }
                let rows = sources[at].rows(false).await?;
                let picked =
                    rows.map(move |rows| pick(rows?, live.as_ref().map(|l| &l[at]), &sources[at]));
                Ok::<_, Error>(picked.boxed())
            }
        })
        .try_flatten()
        .try_filter(|batch| futures::future::ready(batch.num_rows() > 0))
        .boxed()
}

fn pick(
    (batch, offsets): Rows,
    live: Option<&RoaringBitmap>,
    source: &Source,
) -> Result<arrow_array::RecordBatch> {
    let keep: Option<BooleanArray> = match live {
        Some(live) => Some(
            offsets
                .values()
                .iter()
                .map(|o| Some(live.contains(*o)))
                .collect(),
        ),
        // A table without a key has no deletes to apply.
        None => source
            .mapping
            .tombstones(&batch)
            .map(|t| t.iter().map(|dead| Some(dead != Some(true))).collect()),
    };
    let batch = match keep {
        Some(keep) => filter_record_batch(&batch, &keep)
            .map_err(|e| Error::Bug(format!("rows cannot be picked: {e}")))?,
        None => batch,
    };
    source.mapping.apply(batch)
}

pub(super) fn key_types(schema: &Schema, keys: &[(String, i32)]) -> Result<Vec<DataType>> {
    keys.iter()
        .map(|(name, id)| {
            let field = schema.field_by_id(*id);
            field
                .map(|f| f.data_type())
                .ok_or_else(|| Error::Bug(format!("the key column `{name}` has no field")))
        })
        .collect()
}

/// Keys have to be top-level columns, as MemWAL itself asks.
pub(super) fn check_keys(schema: &Schema, keys: &[(String, i32)]) -> Result<()> {
    let nested = keys
        .iter()
        .find(|(_, id)| !schema.fields.iter().any(|f| f.id == *id));
    match nested {
        None => Ok(()),
        Some((name, _)) => Err(Error::Unsupported {
            what: format!("the key column `{name}` inside another column"),
            remedy: "make the key a column of its own".into(),
        }),
    }
}
