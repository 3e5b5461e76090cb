//! The rows of a page, once it is known which they are.
//!
//! Lives here: taking rows of the base by address and of generations by offset, in the table's schema, with blob columns
//! as their sizes, within a budget of bytes. May use: Lance's take, mappings. Never: a blob's payload, or choosing rows.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StructArray, UInt64Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field as ArrowField, Fields, Schema as ArrowSchema};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lance::Dataset;
use lance::dataset::{ProjectionRequest, TakeBuilder};
use lance_core::datatypes::{Field, Schema};
use lance_io::object_store::ObjectStore;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::base::key_fields;
use super::super::error::{Error, Result};
use super::super::file::Fetch;
use super::super::generation::OpenGeneration;
use super::super::mapping::Mapping;
use super::pending::Wanted;
use super::{PageMemory, ReadError, ReadLimits};

/// Rows that are taken first; how many are taken next goes by their size.
const FIRST: usize = 64;
/// Generations opened at once for a page.
const AT_ONCE: usize = 8;

/// Bytes that say where one row of a page lies.
const PLACE: u64 = 8;
/// So many of them are too few to count.
const PLACES_FREE: u64 = 16 << 10;

/// What a page may still hold, by its own bound and by that of all pages.
pub(super) struct Budget {
    limit: u64,
    used: u64,
    /// Bytes that say where the rows lie, and what they take of all pages until the rows are read.
    places: (u64, Option<OwnedSemaphorePermit>),
    rows: u64,
    all: u64,
    pages: Arc<Semaphore>,
    memory: Option<OwnedSemaphorePermit>,
}

impl Budget {
    pub fn new(limits: &ReadLimits, pages: Arc<Semaphore>) -> Self {
        Self {
            limit: limits.page_bytes,
            used: 0,
            places: (0, None),
            rows: 0,
            all: limits.pages_bytes,
            pages,
            memory: None,
        }
    }

    /// What was taken, for as long as the page is there.
    pub fn memory(self) -> PageMemory {
        PageMemory(self.memory)
    }

    fn take(&mut self, batch: &RecordBatch) -> std::result::Result<(), ReadError> {
        let bytes = batch.get_array_memory_size() as u64;
        self.rows += batch.num_rows() as u64;
        if self.places.0 + self.used + bytes > self.limit {
            return Err(ReadError::PageTooLarge { limit: self.limit });
        }
        self.hold(bytes)
    }

    /// Takes what it needs to say where so many more rows lie, before they are looked up.
    pub fn places(&mut self, rows: u64) -> std::result::Result<(), ReadError> {
        let bytes = rows.saturating_mul(PLACE).saturating_add(self.places.0);
        if bytes > self.limit.max(PLACES_FREE) {
            return Err(ReadError::PageTooLarge { limit: self.limit });
        }
        self.places.0 = bytes;
        let more =
            (bytes.saturating_sub(PLACES_FREE) >> 10).saturating_sub(permits(&self.places.1));
        if more > 0 {
            let more = self.acquire(more)?;
            join(&mut self.places.1, more);
        }
        Ok(())
    }

    /// Takes what one payload needs, before it is read.
    pub fn take_bytes(&mut self, size: u64) -> std::result::Result<(), ReadError> {
        if size > self.limit {
            let limit = self.limit;
            return Err(ReadError::PayloadTooLarge { size, limit });
        }
        self.hold(size)
    }

    fn hold(&mut self, bytes: u64) -> std::result::Result<(), ReadError> {
        self.used += bytes;
        let more = self.acquire((bytes >> 10) + 1)?;
        join(&mut self.memory, more);
        Ok(())
    }

    fn acquire(&self, kib: u64) -> std::result::Result<OwnedSemaphorePermit, ReadError> {
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        let more = self.pages.clone().try_acquire_many_owned(kib);
        more.map_err(|_| ReadError::Busy { limit: self.all })
    }

    /// Rows that are taken together next: a quarter of what is left, by the size of those so far.
    fn next(&self) -> usize {
        if self.rows == 0 {
            return FIRST;
        }
        let each = (self.used / self.rows).max(1);
        let left = self.limit.saturating_sub(self.used + self.places.0);
        (left / 4 / each).clamp(1, 4096) as usize
    }
}

fn permits(held: &Option<OwnedSemaphorePermit>) -> u64 {
    held.as_ref().map_or(0, |p| p.num_permits() as u64)
}

fn join(held: &mut Option<OwnedSemaphorePermit>, more: OwnedSemaphorePermit) {
    match held {
        Some(held) => held.merge(more),
        None => *held = Some(more),
    }
}

/// Base rows at addresses, in their order.
pub(super) async fn of_base(
    base: &Arc<Dataset>,
    addresses: &[u64],
    shape: &Shape,
    budget: &mut Budget,
) -> std::result::Result<Vec<RecordBatch>, ReadError> {
    let plan = ProjectionRequest::from_schema(shape.read(base.schema()))
        .into_projection_plan(base.clone())
        .map_err(|e| Error::lance("find the table's columns", e))?;
    let plan = Arc::new(plan);
    let mut out = vec![];
    let mut rest = addresses;
    let mut most = usize::MAX;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(budget.next().min(most).min(rest.len()));
        let take = TakeBuilder::try_new_from_addresses(base.clone(), now.to_vec(), plan.clone())
            .map_err(|e| Error::lance("read rows of the base", e))?;
        let batch = match take.execute().await {
            Ok(batch) => batch,
            // Files bring dictionaries of their own, and the values of all may be more than one key type numbers.
            Err(lance::Error::Arrow { .. }) if now.len() > 1 => {
                most = now.len() / 2;
                continue;
            }
            Err(e) => return Err(Error::lance("read rows of the base", e).into()),
        };
        if batch.num_rows() != now.len() {
            return Err(Error::Bug("rows of the base were not found again".into()).into());
        }
        let batch = shape.sized(batch)?;
        budget.take(&batch)?;
        out.push(batch);
        rest = later;
    }
    Ok(out)
}

/// What Lance keeps of the blobs of a column at addresses in the base; no blob is asked for.
pub(super) async fn described(
    base: &Arc<Dataset>,
    addresses: &[u64],
    field: &Field,
) -> Result<ArrayRef> {
    let failed = |e| Error::lance("read where a blob is", e);
    let schema = part(base.schema(), &BTreeSet::from([field.id]));
    let plan = ProjectionRequest::from_schema(schema)
        .into_projection_plan(base.clone())
        .map_err(failed)?;
    let take =
        TakeBuilder::try_new_from_addresses(base.clone(), addresses.to_vec(), Arc::new(plan));
    let batch = take.map_err(failed)?.execute().await.map_err(failed)?;
    Ok(batch.column(0).clone())
}

/// Rows of generations, in the order asked for.
pub(super) async fn of_generations(
    base: &Arc<Dataset>,
    store: &Arc<ObjectStore>,
    wanted: &[Wanted],
    shape: &Shape,
    budget: &mut Budget,
) -> std::result::Result<Vec<RecordBatch>, ReadError> {
    let keys = key_fields(base.schema());
    let opening: Vec<_> = wanted
        .iter()
        .map(|wanted| opened(base, store, wanted).boxed())
        .collect();
    let mut opened = stream::iter(opening).buffered(AT_ONCE);
    let mut out = vec![];
    while let Some((open, offsets)) = opened.try_next().await? {
        let plain = shape.plain(base.schema(), &keys);
        let mapping = Mapping::new(&open, &plain, &keys)?;
        let names = mapping.columns();
        let mut rest = offsets;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(budget.next().min(rest.len()));
            let batch = mapping.apply(open.take(now, &names).await?)?;
            let batch = shape.with_sizes(batch, &open, now).await?;
            budget.take(&batch)?;
            out.push(batch);
            rest = later;
        }
    }
    Ok(out)
}

async fn opened<'a>(
    base: &Arc<Dataset>,
    store: &Arc<ObjectStore>,
    wanted: &'a Wanted,
) -> Result<(OpenGeneration, &'a [u32])> {
    let open = OpenGeneration::open(
        base,
        store,
        &wanted.generation,
        &wanted.facts,
        Fetch::RANGES,
    )
    .await?;
    Ok((open, &wanted.offsets))
}

/// The columns of a table that have a form in an answer.
pub(super) fn shown(schema: &Schema) -> impl Iterator<Item = &Field> {
    schema.fields.iter().filter(|f| f.is_blob() || !has_blob(f))
}

pub(super) fn unknown(schema: &Schema, column: &str) -> ReadError {
    ReadError::UnknownColumn {
        column: column.chars().take(64).collect(),
        columns: shown(schema).map(|f| f.name.clone()).collect(),
    }
}

/// Some columns of a schema, in its order.
pub(super) fn part(schema: &Schema, ids: &BTreeSet<i32>) -> Schema {
    let fields = schema.fields.iter().filter(|f| ids.contains(&f.id));
    Schema {
        fields: fields.cloned().collect(),
        metadata: schema.metadata.clone(),
    }
}

/// Whether a blob is in a column, at any depth.
fn has_blob(field: &Field) -> bool {
    field.is_blob() || field.children.iter().any(has_blob)
}

fn size_type() -> DataType {
    DataType::Struct(Fields::from(vec![ArrowField::new(
        "size",
        DataType::UInt64,
        true,
    )]))
}

/// The columns of an answer. A column with a blob inside it is left out: only columns that are blobs have a form.
pub(super) struct Shape {
    /// The table's columns that are shown, in order: name, field id, and whether the column is a blob.
    columns: Vec<(String, i32, bool)>,
}

impl Shape {
    pub fn of(schema: &Schema, columns: Option<&[String]>) -> std::result::Result<Self, ReadError> {
        for column in columns.unwrap_or_default() {
            if !shown(schema).any(|f| f.name == *column) {
                return Err(unknown(schema, column));
            }
        }
        let wanted = |f: &&Field| columns.is_none_or(|c| c.contains(&f.name));
        Ok(Self {
            columns: shown(schema)
                .filter(wanted)
                .map(|f| (f.name.clone(), f.id, f.is_blob()))
                .collect(),
        })
    }

    /// The table's schema with the columns that are shown.
    fn read(&self, schema: &Schema) -> Schema {
        part(schema, &self.columns.iter().map(|(_, id, _)| *id).collect())
    }

    /// The table's schema with the columns that are shown and are no blobs, and the key, by which Lance reconciles.
    fn plain(&self, schema: &Schema, keys: &[(String, i32)]) -> Schema {
        let plain = self.columns.iter().filter(|(_, _, blob)| !blob);
        let ids = plain.map(|(_, id, _)| *id);
        part(schema, &ids.chain(keys.iter().map(|(_, id)| *id)).collect())
    }

    /// A batch of the base with each blob's description as its size.
    fn sized(&self, batch: RecordBatch) -> Result<RecordBatch> {
        if !self.columns.iter().any(|(_, _, blob)| *blob) {
            return Ok(batch);
        }
        let columns = self.columns.iter().map(|(name, _, blob)| {
            let column = batch
                .column_by_name(name)
                .ok_or_else(|| Error::Bug(format!("a page without the column {name}")))?;
            Ok((
                name,
                if *blob {
                    sizes(column)?
                } else {
                    column.clone()
                },
            ))
        });
        assemble(&batch, columns.collect::<Result<_>>()?)
    }

    /// A batch of a generation, without its blobs, with their sizes put in.
    async fn with_sizes(
        &self,
        batch: RecordBatch,
        open: &OpenGeneration,
        offsets: &[u32],
    ) -> Result<RecordBatch> {
        let mut columns = vec![];
        for (name, id, blob) in &self.columns {
            let column = match blob {
                true => self.sizes_of(open, *id, name, offsets).await?,
                false => batch
                    .column_by_name(name)
                    .cloned()
                    .ok_or_else(|| Error::Bug(format!("a page without the column {name}")))?,
            };
            columns.push((name, column));
        }
        assemble(&batch, columns)
    }

    async fn sizes_of(
        &self,
        open: &OpenGeneration,
        id: i32,
        name: &str,
        offsets: &[u32],
    ) -> Result<ArrayRef> {
        match open.blob_field(id, name) {
            Some(field) => {
                let described = open
                    .take(offsets, std::slice::from_ref(&field.name))
                    .await?;
                sizes(described.column(0))
            }
            None => Ok(arrow_array::new_null_array(&size_type(), offsets.len())),
        }
    }
}

fn assemble(batch: &RecordBatch, columns: Vec<(&String, ArrayRef)>) -> Result<RecordBatch> {
    let schema = batch.schema();
    let fields = columns.iter().map(|(name, column)| {
        let metadata = schema
            .field_with_name(name)
            .map(|f| f.metadata().clone())
            .unwrap_or_default();
        ArrowField::new(*name, column.data_type().clone(), true).with_metadata(metadata)
    });
    let schema = Arc::new(ArrowSchema::new(fields.collect::<Vec<_>>()));
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    RecordBatch::try_new_with_options(schema, columns, &options)
        .map_err(|e| Error::Bug(format!("a page's columns do not fit together: {e}")))
}

/// Lance's descriptions of blobs as sizes alone. Version 2 says by its kind that a blob is null, the first version by a
/// place other than 0 with no bytes at it.
fn sizes(described: &ArrayRef) -> Result<ArrayRef> {
    let wrong = || Error::Bug("a blob column came without its description".into());
    let parts = described.as_struct_opt().ok_or_else(wrong)?;
    let numbers = |name| -> Result<UInt64Array> {
        let column = parts.column_by_name(name).ok_or_else(wrong)?;
        Ok(column.as_primitive_opt().ok_or_else(wrong)?.clone())
    };
    let (places, sizes) = (numbers("position")?, numbers("size")?);
    let kind = parts.column_by_name("kind");
    let there = |at: usize| {
        parts.is_valid(at)
            && match kind {
                Some(kind) => kind.is_valid(at),
                None => {
                    places.is_valid(at)
                        && sizes.is_valid(at)
                        && (sizes.value(at) > 0 || places.value(at) == 0)
                }
            }
    };
    let valid: NullBuffer = (0..parts.len()).map(there).collect::<Vec<bool>>().into();
    let DataType::Struct(fields) = size_type() else {
        return Err(wrong());
    };
    Ok(Arc::new(StructArray::new(
        fields,
        vec![Arc::new(sizes)],
        Some(valid),
    )))
}
