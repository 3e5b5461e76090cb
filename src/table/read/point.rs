//! One row, by its key.
//!
//! Lives here: reading a key as the table's key columns, and `Reader::get`: what is pending decides first, since it is
//! newer than the base, and the base is asked only for a key of which nothing is pending. May use: key bytes, `find`.
//! Never: a row that a newer pending version hides, or an answer past a generation that cannot be read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Field, Schema as ArrowSchema};
use jiff::Timestamp;
use lance::Dataset;
use lance_core::datatypes::Schema;
use uuid::Uuid;

use super::super::base::{Table, key_fields};
use super::super::error::Error;
use super::super::find::{Found, Within, find};
use super::super::generation::{Generation, facts};
use super::super::keys::{KeySet, Place};
use super::super::merge::{check_keys, key_types};
use super::super::newest::{newest_first, newest_first_by};
use super::keyed::Keys;
use super::pending::{Chosen, codec};
use super::rows::{Budget, Shape};
use super::texts::value;
use super::{
    Page, Picked, ReadError, Reader, SCAN_BYTES, SnapshotId, Source, View, may_have_moved,
};

/// A key as it was written, before the table's columns are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyText {
    /// The text of the only key column.
    Plain(String),
    /// The texts of all key columns, in key order.
    Columns(Vec<String>),
}

/// What became of a key.
#[derive(Debug)]
pub enum Point {
    /// Its row, alone on a page.
    Row(Page),
    /// A pending generation deletes it.
    Deleted {
        /// The generation's shard.
        shard: Uuid,
        /// Its number.
        generation: u64,
    },
    /// The source does not hold it.
    Missing,
}

/// Where the newest version of a key lies.
pub(super) enum Spot {
    At(Picked),
    Deleted(Uuid, u64),
    Nowhere,
}

impl Reader {
    /// The row with a key, as a source shows it.
    ///
    /// # Errors
    /// As [`Reader::read`]; `BadKey` where the key is none of this table's.
    pub async fn get(
        &self,
        table: &Table,
        source: Source,
        key: &KeyText,
        columns: Option<&[String]>,
    ) -> Result<Point, ReadError> {
        match self.got(table, source, key, columns, false).await {
            Err(e) if may_have_moved(&e) => self.got(table, source, key, columns, true).await,
            done => done,
        }
    }

    async fn got(
        &self,
        table: &Table,
        source: Source,
        key: &KeyText,
        columns: Option<&[String]>,
        afresh: bool,
    ) -> Result<Point, ReadError> {
        let (view, spot) = self.spot(table, source, key, afresh).await?;
        let picked = match spot {
            Spot::At(picked) => picked,
            Spot::Deleted(shard, generation) => return Ok(Point::Deleted { shard, generation }),
            Spot::Nowhere => return Ok(Point::Missing),
        };
        let shape = Shape::of(view.base.schema(), columns)?;
        let mut budget = Budget::new(&self.limits, self.pages.clone());
        let batches = picked.read(table, &view, &shape, &mut budget).await?;
        Ok(Point::Row(view.page(batches, false, budget)))
    }

    /// Where a source holds the newest version of a key.
    pub(super) async fn spot(
        &self,
        table: &Table,
        source: Source,
        key: &KeyText,
        afresh: bool,
    ) -> Result<(View, Spot), ReadError> {
        // A key needs no base row to be hidden: what is pending of it is looked up first.
        let view = match source {
            Source::Fragments => {
                let read_at = Timestamp::now();
                View::of_base(table.latest().await?, read_at)
            }
            _ => match self.view(table, Source::Wal, Instant::now(), afresh).await {
                Ok(view) => view,
                Err(e) => return self.past(table, key, e).await,
            },
        };
        let key = encoded(view.base.schema(), key)?;
        if let Some(chosen) = view.chosen.clone() {
            let wanted = key.clone();
            let looking = tokio::task::spawn_blocking(move || newest(&chosen, &wanted));
            let found = looking
                .await
                .map_err(|e| Error::Bug(format!("looking for a key ended badly: {e}")))?;
            match found {
                Spot::Nowhere => {}
                found => return Ok((view, found)),
            }
        }
        let spot = match source {
            Source::Wal => Spot::Nowhere,
            Source::Fragments | Source::All => in_base(&view.base, &key).await?,
        };
        Ok((view, spot))
    }
}

impl Reader {
    /// Where a key's newest version lies though a pending generation cannot be read: only where newer ones decide it.
    async fn past(
        &self,
        table: &Table,
        key: &KeyText,
        error: ReadError,
    ) -> Result<(View, Spot), ReadError> {
        if !matches!(&error, ReadError::Table(e) if e.poisoned().is_some()) {
            return Err(error);
        }
        let remembered = self.remembered(table.location());
        let snapshot = remembered.seen.look(table, Instant::now(), false).await?;
        let mut held = remembered.held.lock().await;
        let read = held.readable(table, &snapshot, &self.limits).await;
        remembered.bytes.store(held.bytes(), Ordering::Relaxed);
        drop(held);
        self.make_room(table.location());
        let (keys, unreadable) = read?;
        if unreadable.is_empty() {
            return Err(error);
        }
        let key = encoded(snapshot.base.schema(), key)?;
        let mut others = vec![];
        for (generation, e) in unreadable {
            // One whose time nobody can tell may be as new as any: only what its own shard flushed later is newer.
            let at = match facts(table.store(), table.path(), &generation).await {
                Ok(facts) => facts.flushed_at,
                Err(_) => Timestamp::MAX,
            };
            others.push((generation, at, e));
        }
        // None of their rows is asked for but the one.
        let chosen = Chosen::new(&keys, vec![Default::default(); keys.len()]);
        let deciding = tokio::task::spawn_blocking(move || decided(&keys, others, &key));
        let spot = deciding
            .await
            .map_err(|e| Error::Bug(format!("looking for a key ended badly: {e}")))??;
        let id = SnapshotId::of(&snapshot);
        let view = View {
            id,
            chosen: Some(Arc::new(chosen)),
            ..View::of_base(snapshot.base, snapshot.read_at)
        };
        Ok((view, spot))
    }
}

/// What the newest generations say of a key, up to the first that cannot be read.
fn decided(
    keys: &[Arc<Keys>],
    unreadable: Vec<(Generation, Timestamp, Error)>,
    key: &[u8],
) -> Result<Spot, Error> {
    let readable = keys
        .iter()
        .map(|k| (&k.generation, k.facts.flushed_at, Some(k)));
    let others = unreadable.iter().map(|(g, at, _)| (g, *at, None));
    let mut all: Vec<_> = readable.chain(others).collect();
    all.sort_by_key(|(g, ..)| (g.shard, g.number));
    let ages: Vec<_> = all.iter().map(|(g, at, _)| (*g, *at)).collect();
    for at in newest_first_by(&ages) {
        let (generation, _, keys) = all[at];
        let Some(keys) = keys else {
            let path = generation.path.clone();
            let mut faults = unreadable.into_iter();
            let fault = faults.find(|(g, ..)| g.path == path);
            return Err(fault.map_or_else(|| Error::Bug("no such fault".into()), |f| f.2));
        };
        match keys.newest(key) {
            None => {}
            Some((_, true)) => return Ok(Spot::Deleted(generation.shard, generation.number)),
            Some((offset, false)) => {
                return Ok(Spot::At(Picked {
                    pending: vec![keys.wanted(vec![offset])],
                    ..Default::default()
                }));
            }
        }
    }
    Ok(Spot::Nowhere)
}

/// What the pending generations say of a key.
fn newest(chosen: &Chosen, key: &[u8]) -> Spot {
    let mut holding = vec![];
    for part in &chosen.parts {
        let rows = (0..part.keys.offsets.len()).filter(|row| part.keys.key(*row) == key);
        let offsets: Vec<u32> = rows.map(|row| part.keys.offsets[row]).collect();
        if let Some(offset) = offsets.iter().find(|o| part.rows.contains(**o)) {
            return Spot::At(Picked {
                pending: vec![part.wanted(vec![*offset])],
                ..Default::default()
            });
        }
        if !offsets.is_empty() {
            holding.push((&part.keys.generation, part.keys.facts.as_ref()));
        }
    }
    match newest_first(&holding).first() {
        Some(at) => Spot::Deleted(holding[*at].0.shard, holding[*at].0.number),
        None => Spot::Nowhere,
    }
}

async fn in_base(base: &Arc<Dataset>, key: &[u8]) -> Result<Spot, ReadError> {
    let keys = key_fields(base.schema());
    let Some(codec) = codec(base.schema(), &keys)? else {
        return Ok(Spot::Nowhere);
    };
    let place = Place {
        generation: 0,
        offset: 0,
    };
    let mut set = KeySet::default();
    set.add(key, place);
    let within = Within {
        base,
        keys: &keys,
        budget: SCAN_BYTES,
    };
    let mut found = Found::default();
    // No row of a generation counts as living here: row ids are not asked for.
    let live = vec![Default::default()];
    find(within, &codec, &set, &live, &mut found, None).await?;
    Ok(match found.addresses.min() {
        Some(address) => Spot::At(Picked {
            base: vec![address],
            ..Default::default()
        }),
        None => Spot::Nowhere,
    })
}

/// The bytes of a key of a table.
fn encoded(schema: &Schema, key: &KeyText) -> Result<Vec<u8>, ReadError> {
    let keys = key_fields(schema);
    check_keys(schema, &keys)?;
    let Some(codec) = codec(schema, &keys)? else {
        return Err(ReadError::BadKey {
            what: "the table has no key, so no row can be asked for by one; page over the records"
                .into(),
        });
    };
    let types = key_types(schema, &keys)?;
    let names = keys.iter().map(|k| k.0.as_str()).collect::<Vec<_>>();
    let texts = match key {
        KeyText::Plain(text) => std::slice::from_ref(text),
        KeyText::Columns(texts) => texts,
    };
    if texts.len() != keys.len() {
        return Err(ReadError::BadKey {
            what: format!(
                "the key has {} columns ({}), and {} were given; write it as base64url of a JSON array of their values",
                keys.len(),
                names.join(", "),
                texts.len(),
            ),
        });
    }
    let mut columns: Vec<ArrayRef> = vec![];
    let mut fields = vec![];
    for ((name, data_type), text) in names.iter().zip(&types).zip(texts) {
        let column = value(data_type, text).map_err(|wanted| ReadError::BadKey {
            what: format!("no key of the column `{name}` is written so: {wanted}"),
        })?;
        fields.push(Field::new(*name, column.data_type().clone(), true));
        columns.push(column);
    }
    let broken = |e| Error::Bug(format!("a key cannot be encoded: {e}"));
    let batch =
        RecordBatch::try_new(Arc::new(ArrowSchema::new(fields)), columns).map_err(broken)?;
    let positions: Vec<usize> = (0..types.len()).collect();
    let rows = codec.encode(&batch, &positions).map_err(broken)?;
    Ok(rows.row(0).as_ref().to_vec())
}
