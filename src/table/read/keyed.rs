//! The keys of one pending generation.
//!
//! Lives here: `Keys`, read from a generation's key columns and `_tombstone`, and held for as long as it is pending: a
//! generation is immutable, so each is read once. May use: generations, mappings, key bytes. Never: another column.

use std::sync::Arc;

use futures::TryStreamExt;
use lance::Dataset;
use lance_core::datatypes::Schema;
use roaring::RoaringBitmap;
use tokio::sync::Semaphore;

use super::super::base::Table;
use super::super::error::{Error, Result};
use super::super::file::Fetch;
use super::super::generation::{Facts, Generation, OpenGeneration, facts};
use super::super::keys::KeyCodec;
use super::super::mapping::Mapping;
use super::pending::Wanted;

/// KiB of the files of all generations that are read at once, so far as their manifests tell.
pub(super) const FILES_KIB: u32 = 64 << 10;
/// What a generation and its facts are taken to hold.
const GENERATION_BYTES: u64 = 4096;

/// The keys of one generation and which of its rows are deletes.
pub(super) struct Keys {
    pub generation: Generation,
    pub facts: Arc<Facts>,
    bytes: Vec<u8>,
    /// Where each row's key ends in `bytes`; empty where the table has no key.
    ends: Vec<usize>,
    pub offsets: Vec<u32>,
    pub dead: RoaringBitmap,
}

impl Keys {
    /// The key of the row at a position in `offsets`.
    pub fn key(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.bytes[start..self.ends[row]]
    }

    /// The offset of the newest row with a key, and whether that row deletes it.
    pub fn newest(&self, key: &[u8]) -> Option<(u32, bool)> {
        let rows = (0..self.offsets.len()).filter(|row| self.key(*row) == key);
        let offset = rows.map(|row| self.offsets[row]).max()?;
        Some((offset, self.dead.contains(offset)))
    }

    /// Some of its rows, by their offsets, ascending.
    pub fn wanted(&self, offsets: Vec<u32>) -> Wanted {
        Wanted {
            generation: self.generation.clone(),
            facts: self.facts.clone(),
            offsets,
        }
    }

    /// Bytes held.
    pub fn size(&self) -> u64 {
        self.bytes.capacity() as u64
            + self.ends.capacity() as u64 * 8
            + self.offsets.capacity() as u64 * 4
            + self.dead.serialized_size() as u64
            + GENERATION_BYTES
    }

    /// Reads them.
    pub async fn read(
        table: &Table,
        base: &Dataset,
        generation: Generation,
        key: &[(String, i32)],
        codec: Option<&KeyCodec>,
        files: &Semaphore,
    ) -> Result<Self> {
        let facts = Arc::new(facts(table.store(), table.path(), &generation).await?);
        let kib = (facts.data_bytes >> 10).clamp(1, u64::from(FILES_KIB)) as u32;
        // The semaphore is never closed; without a permit the files would only be held all the same.
        let _permit = files.acquire_many(kib).await.ok();
        let open =
            OpenGeneration::open(base, table.store(), &generation, &facts, Fetch::Whole).await?;
        let mapping = Mapping::new(&open, base.schema(), key)?;
        let mut columns = mapping.key_columns();
        if columns.is_empty() {
            columns.extend(smallest(&open.schema));
        }
        let mut keys = Self {
            generation,
            facts,
            bytes: vec![],
            ends: vec![],
            offsets: vec![],
            dead: RoaringBitmap::new(),
        };
        let mut rows = open.rows(Some(&columns), 8192, 4 << 20).await?;
        while let Some((batch, offsets)) = rows.try_next().await? {
            if let Some(dead) = mapping.tombstones(&batch) {
                let dead = offsets.values().iter().zip(dead.iter());
                keys.dead
                    .extend(dead.filter(|(_, d)| *d == Some(true)).map(|(o, _)| *o));
            }
            if let Some(codec) = codec {
                let encoded = codec
                    .encode(&batch, &mapping.key_positions(&batch)?)
                    .map_err(|e| keys.of_another_type(e))?;
                for row in encoded.iter() {
                    keys.bytes.extend_from_slice(row.as_ref());
                    keys.ends.push(keys.bytes.len());
                }
            }
            keys.offsets.extend(offsets.values());
        }
        Ok(keys)
    }

    fn of_another_type(&self, e: arrow_schema::ArrowError) -> Error {
        tracing::warn!(error = %e, "keys cannot be encoded");
        Error::SchemaMismatch {
            shard: self.generation.shard,
            generation: self.generation.number,
            what: "its keys are of another type".into(),
        }
    }
}

/// The column that is cheapest to read, for a generation whose rows only have to be counted.
fn smallest(schema: &Schema) -> Option<String> {
    let plain = |f: &&lance_core::datatypes::Field| f.data_type().is_primitive();
    let fields = &schema.fields;
    fields
        .iter()
        .find(plain)
        .or(fields.first())
        .map(|f| f.name.clone())
}
