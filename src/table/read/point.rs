//! One row, by its key.
//!
//! Lives here: reading a key as the table's key columns, and `Reader::get`: what is pending decides first, since it is
//! newer than the base, and the base is asked only for a key of which nothing is pending. May use: key bytes, `find`.
//! Never: a row that a newer pending version hides, or an answer past a generation that cannot be read.

use std::sync::Arc;
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
use super::super::keys::{KeySet, Place};
use super::super::merge::{check_keys, key_types};
use super::super::newest::newest_first;
use super::pending::{Chosen, codec};
use super::rows::{Budget, Shape};
use super::texts::value;
use super::{Page, Picked, ReadError, Reader, SCAN_BYTES, Source, View, may_have_moved};

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
            _ => {
                self.view(table, Source::Wal, Instant::now(), afresh)
                    .await?
            }
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
