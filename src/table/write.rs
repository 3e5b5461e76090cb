//! A merge's rows as new, uncommitted fragments, and the deletion files of the base rows that they replace.
//!
//! Lives here: writing a stream of rows so that no file holds more distinct values of a dictionary column than its key
//! type numbers (such a file is written without an error and cannot be read again), reading such columns back, and removing
//! files of an attempt that lost. May use: Lance's writers. Never: a commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, DataType, Schema as ArrowSchema, SchemaRef};
use datafusion::error::DataFusionError;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::transaction::Operation;
use lance::dataset::{InsertBuilder, WriteMode, WriteParams};
use lance_file::writer::FileWriterOptions;
use lance_table::format::Fragment;
use lance_table::io::deletion::deletion_file_path;
use object_store::ObjectStoreExt as _;
use roaring::RoaringTreemap;
use tokio::sync::Mutex;

use super::error::{Error, Result};
use super::mapping::write_schema;

/// A stream of rows in the table's schema.
pub(crate) type Batches = BoxStream<'static, Result<RecordBatch>>;

/// Writes rows as new fragments of the base, uncommitted, and holds about a quarter of `budget` bytes meanwhile.
pub(crate) async fn fragments(
    base: &Arc<Dataset>,
    rows: Batches,
    budget: u64,
) -> Result<Vec<Fragment>> {
    let schema = write_schema(base.schema());
    let dictionaries = dictionary_columns(&schema);
    let source = Arc::new(Mutex::new(Segments::new(rows, dictionaries.clone())));
    let mut written = Vec::new();
    // A file that was written must not outlive a failure: the caller never learns its name.
    let outcome = async {
        while source.lock().await.more().await? {
            written.extend(file(base, &schema, source.clone(), budget).await?);
        }
        if !dictionaries.is_empty() && !written.is_empty() {
            read_back(base, &schema, &dictionaries, &written).await?;
        }
        Ok(())
    }
    .await;
    match outcome {
        Ok(()) => Ok(written),
        Err(e) => {
            remove(base, &written, &[]).await;
            Err(e)
        }
    }
}

/// Writes one segment.
async fn file(
    base: &Arc<Dataset>,
    schema: &SchemaRef,
    source: Arc<Mutex<Segments>>,
    budget: u64,
) -> Result<Vec<Fragment>> {
    let failed = Arc::new(std::sync::Mutex::new(None));
    let told = failed.clone();
    let rows = stream::unfold(source, |source| async {
        let next = source.lock().await.next().await;
        next.map(|batch| (batch, source))
    })
    .map_err(move |e| {
        // Lance wraps what a source says; ours has to come back as it is.
        let text = e.to_string();
        *told
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(e);
        DataFusionError::External(text.into())
    });
    let rows: SendableRecordBatchStream =
        Box::pin(RecordBatchStreamAdapter::new(schema.clone(), rows));
    let params = WriteParams {
        mode: WriteMode::Append,
        allow_external_blob_outside_bases: false,
        file_writer_options: Some(pages(schema.fields().len(), budget)),
        ..Default::default()
    };
    let wrote = InsertBuilder::new(base.clone())
        .with_params(&params)
        .execute_uncommitted_stream(rows)
        .await;
    match wrote.map(|t| t.operation) {
        Ok(Operation::Append { fragments }) => Ok(fragments),
        Ok(_) => Err(Error::Bug(
            "an append was prepared as something else".into(),
        )),
        Err(e) => Err(failed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
            .unwrap_or_else(|| Error::lance("write the merged rows", e))),
    }
}

/// Bytes that Lance gathers of a column before it writes a page, where nothing else is said.
const PAGE_BYTES: u64 = 8 << 20;

/// Pages as large as Lance makes them, unless all columns' together would take more than a quarter of the budget.
fn pages(columns: usize, budget: u64) -> FileWriterOptions {
    let most = (budget / 4).max(2 << 20);
    FileWriterOptions {
        data_cache_bytes: Some(most.min(PAGE_BYTES * columns.max(1) as u64)),
        max_page_bytes: Some(most.min(4 * PAGE_BYTES)),
        ..Default::default()
    }
}

/// A stream cut where one file would hold too many distinct values of a dictionary column.
struct Segments {
    rows: Batches,
    carried: Option<RecordBatch>,
    columns: Vec<Dictionary>,
    seen: Vec<HashSet<Vec<u8>>>,
    ended: bool,
}

impl Segments {
    fn new(rows: Batches, columns: Vec<Dictionary>) -> Self {
        let seen = vec![HashSet::new(); columns.len()];
        Self {
            rows,
            carried: None,
            columns,
            seen,
            ended: false,
        }
    }

    /// Whether another segment has rows.
    async fn more(&mut self) -> Result<bool> {
        self.seen.iter_mut().for_each(HashSet::clear);
        while self.carried.is_none() && !self.ended {
            match self.rows.try_next().await? {
                Some(batch) if batch.num_rows() > 0 => self.carried = Some(batch),
                Some(_) => {}
                None => self.ended = true,
            }
        }
        Ok(self.carried.is_some())
    }

    /// The next batch of this segment.
    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        let batch = match self.carried.take() {
            Some(batch) => batch,
            None => match self.rows.try_next().await {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    self.ended = true;
                    return None;
                }
                Err(e) => return Some(Err(e)),
            },
        };
        let added = match self
            .columns
            .iter()
            .map(|c| c.values_in(&batch))
            .collect::<Result<Vec<_>, _>>()
        {
            Ok(added) => added,
            Err(e) => {
                return Some(Err(Error::Bug(format!(
                    "dictionary values cannot be compared: {e}"
                ))));
            }
        };
        let fits =
            self.columns
                .iter()
                .zip(&self.seen)
                .zip(&added)
                .all(|((column, seen), added)| {
                    seen.is_empty()
                        || seen.len() + added.iter().filter(|v| !seen.contains(*v)).count()
                            <= column.capacity
                });
        if !fits {
            self.carried = Some(batch);
            return None;
        }
        self.seen
            .iter_mut()
            .zip(added)
            .for_each(|(seen, added)| seen.extend(added));
        Some(Ok(batch))
    }
}

/// A dictionary column, perhaps within structs and lists.
#[derive(Debug, Clone)]
struct Dictionary {
    /// The top-level column.
    column: usize,
    name: String,
    /// Distinct values that its key type numbers.
    capacity: usize,
}

fn dictionary_columns(schema: &ArrowSchema) -> Vec<Dictionary> {
    let fields = schema.fields().iter().enumerate();
    fields
        .filter_map(|(column, field)| {
            let capacity = capacity(field.data_type())?;
            Some(Dictionary {
                column,
                name: field.name().clone(),
                capacity,
            })
        })
        .collect()
}

/// The smallest number of values that a dictionary in a type can number; `None` where there is none.
fn capacity(kind: &DataType) -> Option<usize> {
    match kind {
        DataType::Dictionary(key, _) => Some(match key.as_ref() {
            DataType::Int8 => 1 << 7,
            DataType::UInt8 => 1 << 8,
            DataType::Int16 => 1 << 15,
            DataType::UInt16 => 1 << 16,
            _ => 1 << 31,
        }),
        DataType::Struct(fields) => fields.iter().filter_map(|f| capacity(f.data_type())).min(),
        DataType::List(f)
        | DataType::LargeList(f)
        | DataType::FixedSizeList(f, _)
        | DataType::Map(f, _) => capacity(f.data_type()),
        _ => None,
    }
}

impl Dictionary {
    /// The values of its dictionaries in a batch, as comparable bytes.
    fn values_in(&self, batch: &RecordBatch) -> std::result::Result<HashSet<Vec<u8>>, ArrowError> {
        if self.capacity >= 1 << 31 {
            return Ok(HashSet::new());
        }
        let mut out = HashSet::new();
        values_of(batch.column(self.column), &mut out)?;
        Ok(out)
    }
}

fn values_of(array: &ArrayRef, out: &mut HashSet<Vec<u8>>) -> std::result::Result<(), ArrowError> {
    match array.data_type() {
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            // All null: there is no value, and arrow does not number the keys of an empty dictionary.
            if dictionary.values().is_empty() {
                return Ok(());
            }
            let converter = RowConverter::new(vec![SortField::new(
                dictionary.values().data_type().clone(),
            )])?;
            let rows = converter.convert_columns(&[dictionary.values().clone()])?;
            let used: HashSet<usize> = dictionary.normalized_keys().into_iter().collect();
            out.extend(
                used.into_iter()
                    .filter(|at| *at < rows.num_rows())
                    .map(|at| rows.row(at).as_ref().to_vec()),
            );
        }
        DataType::Struct(_) => {
            for child in array.as_struct().columns() {
                values_of(child, out)?;
            }
        }
        DataType::List(_) => values_of(array.as_list::<i32>().values(), out)?,
        DataType::LargeList(_) => values_of(array.as_list::<i64>().values(), out)?,
        DataType::FixedSizeList(..) => values_of(array.as_fixed_size_list().values(), out)?,
        DataType::Map(..) => {
            values_of(array.as_map().keys(), out)?;
            values_of(array.as_map().values(), out)?;
        }
        _ => {}
    }
    Ok(())
}

/// Whether the dictionary columns of new fragments can be read; `true` where the table has none.
///
/// # Errors
/// What the store says, which is no verdict on the fragments.
pub(crate) async fn readable(base: &Arc<Dataset>, new: &[Fragment]) -> Result<bool> {
    let schema = ArrowSchema::from(base.schema());
    let dictionaries = dictionary_columns(&schema);
    if dictionaries.is_empty() || new.is_empty() {
        return Ok(true);
    }
    match scan_dictionaries(base, &dictionaries, new).await {
        Ok(()) => Ok(true),
        Err(e @ lance::Error::IO { .. }) => Err(Error::lance("read back what was written", e)),
        Err(e) => {
            tracing::info!(error = %e, "what was written cannot be read back");
            Ok(false)
        }
    }
}

/// Reads the dictionary columns of new fragments as any reader would.
async fn read_back(
    base: &Arc<Dataset>,
    schema: &ArrowSchema,
    columns: &[Dictionary],
    new: &[Fragment],
) -> Result<()> {
    scan_dictionaries(base, columns, new).await.map_err(|e| {
        let names: Vec<&str> = columns.iter().map(|c| c.name.as_str()).collect();
        tracing::error!(error = %e, ?names, columns = schema.fields().len(), "what was written cannot be read back");
        Error::Unsupported {
            what: "a dictionary column whose values cannot be read back".into(),
            remedy: "give the column a larger key type; nothing was committed".into(),
        }
    })
}

async fn scan_dictionaries(
    base: &Arc<Dataset>,
    columns: &[Dictionary],
    new: &[Fragment],
) -> lance::Result<()> {
    let names: Vec<&str> = columns.iter().map(|c| c.name.as_str()).collect();
    let mut scan = base.scan();
    scan.project(&names)?;
    // New fragments have no id of their own yet; the reader only needs them to differ.
    let first = base
        .manifest()
        .max_fragment_id
        .map_or(0, |id| u64::from(id) + 1);
    let numbered = new
        .iter()
        .zip(first..)
        .map(|(f, id)| Fragment {
            id,
            row_id_meta: None,
            ..f.clone()
        })
        .collect();
    scan.with_fragments(numbered).batch_size(8192);
    let mut rows = scan.try_into_stream().await?;
    while rows.try_next().await?.is_some() {}
    Ok(())
}

/// Base fragments with more of their rows deleted.
#[derive(Default)]
pub(crate) struct Deletions {
    /// Fragments with a new deletion file.
    pub updated: Vec<Fragment>,
    /// Fragments of which no row is left.
    pub removed: Vec<u64>,
}

/// Fragments whose deletion files are written at once.
const AT_ONCE: usize = 16;

/// Writes deletion files for base rows.
pub(crate) async fn deletions(
    base: &Arc<Dataset>,
    addresses: &RoaringTreemap,
) -> Result<Deletions> {
    let mut touched: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (fragment, offsets) in addresses.bitmaps() {
        touched.entry(fragment).or_default().extend(offsets.iter());
    }
    let by_id: HashMap<u64, _> = base
        .get_fragments()
        .into_iter()
        .map(|f| (f.id() as u64, f))
        .collect();
    let work = touched.into_iter().map(|(id, offsets)| {
        let fragment = by_id.get(&u64::from(id)).cloned();
        async move {
            let fragment = fragment
                .ok_or_else(|| Error::Bug(format!("fragment {id} is not in the base version")))?;
            let left = fragment
                .extend_deletions(offsets)
                .await
                .map_err(|e| Error::lance("write a deletion file", e))?;
            Ok::<_, Error>((u64::from(id), left.map(|f| f.metadata().clone())))
        }
    });
    let mut out = Deletions::default();
    let mut done = stream::iter(work).buffer_unordered(AT_ONCE);
    while let Some((id, left)) = done.try_next().await? {
        match left {
            Some(fragment) => out.updated.push(fragment),
            None => out.removed.push(id),
        }
    }
    out.updated.sort_by_key(|f| f.id);
    out.removed.sort_unstable();
    Ok(out)
}

/// Removes the files of an attempt that certainly did not and will not commit. Failures are let be: clean-up of old
/// versions finds what is left.
pub(crate) async fn remove(base: &Dataset, new: &[Fragment], updated: &[Fragment]) {
    let Ok(store) = base.object_store(None).await else {
        return;
    };
    let root = base.branch_location().path;
    let data = new
        .iter()
        .flat_map(|f| &f.files)
        .map(|f| base.data_dir().join(f.path.as_str()));
    let deletions = updated
        .iter()
        .filter_map(|f| Some(deletion_file_path(&root, f.id, f.deletion_file.as_ref()?)));
    for path in data.chain(deletions).collect::<Vec<_>>() {
        if let Err(e) = store.inner.delete(&path).await {
            tracing::debug!(%path, error = %e, "a file of a lost attempt stays for clean-up");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::DictionaryArray;
    use arrow_array::types::Int8Type;
    use arrow_schema::Field;

    fn batch(values: impl Iterator<Item = u32>) -> RecordBatch {
        let values: Vec<String> = values.map(|v| format!("v{v}")).collect();
        let column: DictionaryArray<Int8Type> = values.iter().map(String::as_str).collect();
        let field = Field::new("role", column.data_type().clone(), true);
        RecordBatch::try_new(
            Arc::new(ArrowSchema::new(vec![field])),
            vec![Arc::new(column)],
        )
        .unwrap()
    }

    async fn segment_sizes(batches: Vec<RecordBatch>) -> Vec<usize> {
        let columns = dictionary_columns(&batches[0].schema());
        let mut segments = Segments::new(stream::iter(batches).map(Ok).boxed(), columns);
        let mut sizes = vec![];
        while segments.more().await.unwrap() {
            let mut rows = 0;
            while let Some(batch) = segments.next().await {
                rows += batch.unwrap().num_rows();
            }
            sizes.push(rows);
        }
        sizes
    }

    #[tokio::test]
    async fn a_file_never_holds_more_distinct_values_than_int8_numbers() {
        let sizes = segment_sizes(vec![
            batch(0..100),
            batch(50..128),
            batch(128..130),
            batch(0..128),
        ])
        .await;
        assert_eq!(sizes, [178, 2, 128]);
    }

    #[tokio::test]
    async fn equal_values_of_many_batches_share_one_file() {
        assert_eq!(segment_sizes(vec![batch(0..128); 5]).await, [640]);
    }

    #[test]
    fn a_dictionary_within_a_list_of_structs_counts() {
        let inner = Field::new(
            "d",
            DataType::Dictionary(DataType::UInt8.into(), DataType::Utf8.into()),
            true,
        );
        let item = Field::new("item", DataType::Struct(vec![inner].into()), true);
        assert_eq!(capacity(&DataType::List(Arc::new(item))), Some(256));
        assert_eq!(capacity(&DataType::Utf8), None);
    }
}
