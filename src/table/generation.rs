//! One flushed generation: what storage says of it, and its rows.
//!
//! Lives here: `Generation` (as a shard's manifest lists it), `Facts` (from its own manifest: one request, kept for good
//! because a generation is immutable), and `OpenGeneration`, which streams its rows with their offsets. May use: Lance's
//! file reader and dataset. Never: what rows mean (which version of a key wins is the merge's or the reader's business).

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch, UInt32Array, cast::AsArray, types::UInt64Type};
use arrow_select::filter::filter_record_batch;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use lance::Dataset;
use lance::dataset::mem_wal::util::shard_base_path;
use lance_core::datatypes::{BlobHandling, Field, Schema};
use lance_core::utils::deletion::DeletionVector;
use lance_encoding::decoder::FilterExpression;
use lance_file::reader::FileReader;
use lance_file::version::ConcreteFileVersion;
use lance_file::versions::reader_projection_from_field_ids;
use lance_index::mem_wal::SsTable;
use lance_io::ReadBatchParams;
use lance_io::object_store::ObjectStore;
use lance_table::format::DataFile;
use lance_table::io::deletion::read_deletion_file;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStoreExt as _};
use uuid::Uuid;

use super::error::{Error, Result, is_io};
use super::file::{Fetch, open_file};
use super::marks::nanoseconds;
use super::shard::timestamp;
use super::survey::generation_number;

mod blobs;
mod manifest;
mod take;

pub(crate) use blobs::any_leads_out;
use manifest::{decode, open_dataset};

/// A generation as its shard's manifest lists it. The path identifies it: numbers recur.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation {
    /// The shard that it belongs to.
    pub shard: Uuid,
    /// Its number; higher is newer within the shard.
    pub number: u64,
    /// Its directory's name under the shard's.
    pub path: String,
    /// Rows that it holds, masked duplicates and tombstones among them; `None` where the writer did not say.
    pub rows: Option<u64>,
    /// Payload bytes in the writer's memory; `None` where the writer did not say.
    pub bytes: Option<u64>,
}

impl Generation {
    /// A generation as the manifest of `shard` lists it.
    pub(crate) fn listed(shard: Uuid, sstable: &SsTable) -> Self {
        Self {
            shard,
            number: sstable.generation,
            path: sstable.path.clone(),
            rows: sstable.physical_rows,
            bytes: sstable.in_memory_bytes,
        }
    }

    /// Its directory in the table's store.
    pub(crate) fn dir(&self, table: &Path) -> Path {
        shard_base_path(table, &self.shard).join(self.path.as_str())
    }

    /// Whether its path is a name that Lance gives to this generation: a manifest is input, and nothing else is opened,
    /// drained or deleted because it lists it (contract 21).
    pub(crate) fn is_named(&self) -> bool {
        generation_number(&self.path) == Some(self.number)
    }

    pub(crate) fn unreadable(&self, what: impl Into<String>) -> Error {
        Error::GenerationUnreadable {
            shard: self.shard,
            generation: self.number,
            what: what.into(),
        }
    }
}

/// What a generation's own manifest says.
#[derive(Debug, Clone)]
pub struct Facts {
    /// When the store says that it was flushed.
    pub flushed_at: Timestamp,
    /// The same by its writer's clock.
    pub written_at: Timestamp,
    /// Rows in its data file, masked ones and tombstones among them.
    pub physical_rows: u64,
    /// Rows that its deletion vector masks.
    pub masked_rows: u64,
    /// Bytes of its data files; 0 where the manifest does not say.
    pub data_bytes: u64,
    /// The manifest itself, so that opening the generation needs no second look.
    manifest: Bytes,
}

#[cfg(test)]
impl Facts {
    /// Facts of a generation of no rows.
    pub(crate) fn of(flushed_at: Timestamp, manifest: Bytes) -> Self {
        Self {
            flushed_at,
            written_at: flushed_at,
            physical_rows: 0,
            masked_rows: 0,
            data_bytes: 0,
            manifest,
        }
    }
}

/// A generation holds one version, the first.
const VERSION: u64 = 1;

/// Reads a generation's manifest: one request.
///
/// # Errors
/// `GenerationUnreadable` where the manifest is missing or broken; the store's kinds otherwise.
pub(crate) async fn facts(
    store: &ObjectStore,
    table: &Path,
    generation: &Generation,
) -> Result<Facts> {
    if !generation.is_named() {
        return Err(generation.unreadable("its directory has no name of a generation"));
    }
    let path = lance_table::io::commit::ManifestNamingScheme::V2
        .manifest_path(&generation.dir(table), VERSION);
    let got = match store.inner.get(&path).await {
        Ok(got) => got,
        Err(StoreError::NotFound { .. }) => {
            return Err(generation.unreadable("its manifest is not there"));
        }
        Err(e) => return Err(Error::store("read a generation's manifest", e)),
    };
    let flushed_at = timestamp(got.meta.last_modified);
    let bytes = got
        .bytes()
        .await
        .map_err(|e| Error::store("read a generation's manifest", e))?;
    let manifest = decode(generation, &bytes)?;
    let sum = |f: fn(&lance_table::format::Fragment) -> u64| {
        let all = manifest.fragments.iter().map(f);
        all.fold(0, u64::saturating_add)
    };
    Ok(Facts {
        flushed_at,
        written_at: nanoseconds(manifest.timestamp_nanos),
        physical_rows: sum(|f| f.physical_rows.unwrap_or(0) as u64),
        masked_rows: sum(|f| {
            f.deletion_file
                .as_ref()
                .and_then(|d| d.num_deleted_rows)
                .unwrap_or(0) as u64
        }),
        data_bytes: sum(|f| {
            f.files
                .iter()
                .filter_map(|d| d.file_size_bytes.get())
                .map(u64::from)
                .fold(0, u64::saturating_add)
        }),
        manifest: bytes,
    })
}

/// A generation that is open for reading.
pub(crate) struct OpenGeneration {
    pub generation: Generation,
    /// Its own schema: Lance field ids are those of the table when it was flushed.
    pub schema: Schema,
    /// Whether it was written by a Lance before 10, which numbers fields by position.
    pub positional_ids: bool,
    source: Source,
    masked: Option<Arc<DeletionVector>>,
}

enum Source {
    /// No rows.
    Nothing,
    /// One data file that holds every column.
    File {
        reader: Box<FileReader>,
        ids: BTreeMap<u32, u32>,
        version: ConcreteFileVersion,
    },
    /// Anything else, read as the dataset that it is.
    Table(Arc<Dataset>),
}

/// Rows and their positions in the generation, ascending: offsets in its fragment, counted on over further ones.
pub(crate) type Rows = (RecordBatch, UInt32Array);

impl OpenGeneration {
    /// Opens a generation. A data file that is fetched whole is kept until [`Self::forget`].
    pub async fn open(
        base: &Dataset,
        store: &Arc<ObjectStore>,
        generation: &Generation,
        facts: &Facts,
        fetch: Fetch,
    ) -> Result<Self> {
        let manifest = decode(generation, &facts.manifest)?;
        let table = base.branch_location().path;
        if !manifest.base_paths.is_empty() {
            return Err(generation.foreign());
        }
        if let Some(name) = nested_blob(&manifest.schema) {
            let what = format!(
                "a blob lies inside its column `{name}`; make the blob a column of its own, nothing was fetched"
            );
            return Err(generation.refused("Unsupported", what));
        }
        let positional_ids = manifest.writer_version.as_ref().is_some_and(|w| {
            w.library == "lance"
                && w.version
                    .split('.')
                    .next()
                    .and_then(|v| v.parse::<u32>().ok())
                    .is_some_and(|v| v < 10)
        });
        let mut open = Self {
            generation: generation.clone(),
            schema: manifest.schema.clone(),
            positional_ids,
            source: Source::Nothing,
            masked: None,
        };
        let [fragment] = manifest.fragments.as_slice() else {
            if !manifest.fragments.is_empty() {
                open.source = Source::Table(Arc::new(open_dataset(base, generation).await?));
            }
            return Ok(open);
        };
        let direct =
            matches!(fragment.files.as_slice(), [f] if is_plain(f)) && fragment.overlays.is_empty();
        if !direct || open.schema.fields_pre_order().any(|f| f.is_blob()) {
            open.source = Source::Table(Arc::new(open_dataset(base, generation).await?));
            return Ok(open);
        }
        let file = &fragment.files[0];
        let dir = generation.dir(&table);
        let masked = async {
            let Some(deletions) = &fragment.deletion_file else {
                return Ok(None);
            };
            let read = read_deletion_file(fragment.id, deletions, &dir, store).await;
            read.map(|v| Some(Arc::new(v)))
                .map_err(|e| generation.wrap("read its deletion vector", e))
        };
        let path = dir.clone().join("data").join(file.path.as_str());
        let reader = open_file(store, &path, file, generation, fetch);
        let (masked, reader) = futures::try_join!(masked, reader)?;
        let pairs = file.fields.iter().zip(file.column_indices.iter());
        let ids = pairs
            .filter(|(_, column)| **column >= 0)
            .map(|(id, column)| (*id as u32, *column as u32))
            .collect();
        let version = file
            .file_version()
            .map_err(|e| generation.wrap("read its file version", e))?;
        open.source = Source::File {
            reader: Box::new(reader),
            ids,
            version,
        };
        open.masked = masked;
        Ok(open)
    }

    /// Streams the rows that its deletion vector does not mask, tombstones among them, oldest offset first. `columns`
    /// picks top-level columns by name (`None`: all); `batch_bytes` bounds a batch, `batch_rows` too.
    pub async fn rows(
        &self,
        columns: Option<&[String]>,
        batch_rows: u32,
        batch_bytes: u64,
    ) -> Result<BoxStream<'static, Result<Rows>>> {
        let schema = match columns {
            None => self.schema.clone(),
            Some(names) => self
                .schema
                .project(names)
                .map_err(|e| self.generation.wrap("find the key columns", e))?,
        };
        match &self.source {
            Source::Nothing => Ok(stream::empty().boxed()),
            Source::File {
                reader,
                ids,
                version,
            } => {
                let projection = reader_projection_from_field_ids(*version, &schema, ids)
                    .map_err(|e| self.generation.wrap("find its columns", e))?;
                let tasks = reader
                    .read_tasks(
                        ReadBatchParams::RangeFull,
                        batch_rows,
                        Some(projection),
                        FilterExpression::no_filter(),
                    )
                    .await
                    .map_err(|e| self.generation.wrap("read its rows", e))?;
                let (generation, masked) = (self.generation.clone(), self.masked.clone());
                let failed = self.generation.clone();
                let batches = tasks
                    .map(|task| task.task)
                    .buffered(2)
                    .map_err(move |e| failed.wrap("read its rows", e))
                    .scan(0u32, move |next, batch| {
                        let start = *next;
                        if let Ok(batch) = &batch {
                            *next += batch.num_rows() as u32;
                        }
                        let out =
                            batch.and_then(|b| unmask(&generation, b, start, masked.as_deref()));
                        futures::future::ready(Some(out))
                    });
                let _ = batch_bytes;
                Ok(batches.boxed())
            }
            Source::Table(dataset) => {
                self.table_rows(dataset, &schema, batch_rows, batch_bytes)
                    .await
            }
        }
    }

    async fn table_rows(
        &self,
        dataset: &Arc<Dataset>,
        schema: &Schema,
        batch_rows: u32,
        batch_bytes: u64,
    ) -> Result<BoxStream<'static, Result<Rows>>> {
        let names: Vec<&str> = schema.fields.iter().map(|f| f.name.as_str()).collect();
        blobs::refuse_foreign(&self.generation, dataset, schema).await?;
        let mut scan = dataset.scan();
        scan.blob_handling(BlobHandling::AllBinary);
        scan.project(&names)
            .map_err(|e| self.generation.wrap("find its columns", e))?;
        scan.with_row_address()
            .scan_in_order(true)
            .batch_size(batch_rows as usize)
            .batch_size_bytes(batch_bytes);
        scan.batch_readahead(1)
            .fragment_readahead(1)
            .io_buffer_size(batch_bytes.max(4 << 20));
        let rows = scan
            .try_into_stream()
            .await
            .map_err(|e| self.generation.wrap("read its rows", e))?;
        let generation = self.generation.clone();
        let starts = Starts::of(&generation, dataset)?;
        Ok(rows
            .map(move |batch| {
                let batch = batch.map_err(|e| generation.wrap("read its rows", e))?;
                split_address(&generation, &starts, batch)
            })
            .boxed())
    }
}

impl OpenGeneration {
    /// Lets go of its files; it has no rows from then on.
    pub fn forget(&mut self) {
        self.source = Source::Nothing;
    }
}

impl Generation {
    fn foreign(&self) -> Error {
        let what = "it refers to data outside the table, of which nothing was asked for; write its rows again with their data";
        self.refused("ForeignBase", what.into())
    }

    fn refused(&self, reason: &'static str, what: String) -> Error {
        Error::GenerationRefused {
            shard: self.shard,
            generation: self.number,
            reason,
            what,
        }
    }

    /// A Lance error met while reading this generation: the store's kinds stay, all else is the generation's fault.
    pub(crate) fn wrap(&self, doing: &'static str, e: lance::Error) -> Error {
        if !super::error::is_not_found(&e) {
            match Error::lance(doing, e) {
                Error::Lance { source, .. } if !is_io(&source) => {
                    tracing::warn!(shard = %self.shard, generation = self.number, error = %source, "cannot {doing}");
                    return self.unreadable(format!("Lance failed to {doing}"));
                }
                Error::Lance { .. } => return Error::StoreUnreachable("read a generation"),
                e => return e,
            }
        }
        self.unreadable("a file of it is not there")
    }
}

/// The top-level column that has a blob somewhere below it, if any.
fn nested_blob(schema: &Schema) -> Option<&str> {
    fn below(field: &Field) -> bool {
        field
            .children
            .iter()
            .any(|child| child.is_blob() || below(child))
    }
    let outer = schema.fields.iter().find(|f| !f.is_blob() && below(f));
    outer.map(|f| f.name.as_str())
}

fn is_plain(file: &DataFile) -> bool {
    file.base_id.is_none() && file.file_major_version >= 2 && !file.column_indices.is_empty()
}

/// Takes masked rows out of a batch that starts at offset `start`.
fn unmask(
    generation: &Generation,
    batch: RecordBatch,
    start: u32,
    masked: Option<&DeletionVector>,
) -> Result<Rows> {
    let offsets = UInt32Array::from_iter_values(start..start + batch.num_rows() as u32);
    let Some(masked) = masked.filter(|m| !m.is_empty()) else {
        return Ok((batch, offsets));
    };
    let keep = BooleanArray::from_iter(offsets.values().iter().map(|o| Some(!masked.contains(*o))));
    let broken = |_| generation.unreadable("its deletion vector does not fit its rows");
    let kept = arrow_select::filter::filter(&offsets, &keep).map_err(broken)?;
    Ok((
        filter_record_batch(&batch, &keep).map_err(broken)?,
        kept.as_primitive().clone(),
    ))
}

/// Where the rows of each fragment begin, counted over all of them: by that position rows are told apart.
pub(super) struct Starts(Vec<(u64, u32)>);

impl Starts {
    pub(super) fn of(generation: &Generation, dataset: &Dataset) -> Result<Self> {
        let mut next = 0u32;
        let mut starts = Vec::new();
        for fragment in dataset.fragments().iter() {
            starts.push((fragment.id, next));
            let rows = fragment.physical_rows.and_then(|n| u32::try_from(n).ok());
            next = rows.and_then(|n| next.checked_add(n)).ok_or_else(|| {
                generation.unreadable("its fragments do not say how many rows they hold")
            })?;
        }
        Ok(Self(starts))
    }

    /// The position of the row at an address.
    fn position(&self, address: u64) -> Option<u32> {
        let (_, start) = self.0.iter().find(|(id, _)| *id == address >> 32)?;
        start.checked_add(address as u32)
    }

    /// The address of the row at a position.
    pub(super) fn address(&self, position: u32) -> Option<u64> {
        let after = self.0.partition_point(|(_, start)| *start <= position);
        let (id, start) = self.0.get(after.checked_sub(1)?)?;
        Some(id << 32 | u64::from(position - start))
    }
}

/// Splits `_rowaddr` off a scanned batch, as positions in the generation.
fn split_address(generation: &Generation, starts: &Starts, mut batch: RecordBatch) -> Result<Rows> {
    let at = batch
        .schema()
        .index_of("_rowaddr")
        .map_err(|_| generation.unreadable("it shows no row addresses"))?;
    let addresses = batch.remove_column(at);
    let addresses = addresses.as_primitive::<UInt64Type>().values().iter();
    let offsets: Option<Vec<u32>> = addresses.map(|a| starts.position(*a)).collect();
    let offsets = offsets.ok_or_else(|| generation.unreadable("its row addresses are wrong"))?;
    Ok((batch, UInt32Array::from(offsets)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::{DataType, Field, Schema as ArrowSchema};

    #[test]
    fn a_blob_inside_another_column_is_seen_at_every_depth() {
        let blob = lance::blob::blob_field("payload", true);
        let of = |field: Field| Schema::try_from(&ArrowSchema::new(vec![field])).unwrap();
        let within = Field::new("step", DataType::Struct(vec![blob.clone()].into()), true);
        let list = Field::new("steps", DataType::List(Arc::new(within.clone())), true);
        assert_eq!(nested_blob(&of(blob)), None);
        assert_eq!(nested_blob(&of(within)), Some("step"));
        assert_eq!(nested_blob(&of(list)), Some("steps"));
    }
}
