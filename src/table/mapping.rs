//! A generation's columns as the table's: by field id, whatever their names were when it was flushed.
//!
//! Lives here: `Mapping`, which finds the key columns and `_tombstone` of a generation and brings its live rows to the
//! table's schema. `_tombstone` is matched by name and all else by id, since it takes the next free id, which a column
//! added later has too. May use: Lance's reconciliation. Never: choosing rows.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema as ArrowSchema, SchemaRef};
use lance::blob::{BlobArrayBuilder, blob_field};
use lance::dataset::mem_wal::{TOMBSTONE, arrow_schema_with_field_ids, reconcile_batches};
use lance_core::datatypes::{LANCE_FIELD_ID_KEY, Schema};

use super::error::{Error, Result};
use super::generation::{Generation, OpenGeneration};

/// How one generation's columns become the table's.
pub(crate) struct Mapping {
    generation: Generation,
    /// The generation's columns with the table's field ids.
    source: ArrowSchema,
    /// The table's columns with their ids, blob columns as the bytes that they are read as.
    target: SchemaRef,
    /// The table's columns as they are written.
    output: SchemaRef,
    keys: Vec<String>,
    key_names: Vec<String>,
    blobs: Vec<usize>,
}

impl Mapping {
    /// Maps `open` to `table`, whose key columns are `keys` (names and field ids).
    ///
    /// # Errors
    /// `SchemaMismatch` where a key column is missing.
    pub fn new(open: &OpenGeneration, table: &Schema, keys: &[(String, i32)]) -> Result<Self> {
        let source = source_ids(open, table);
        let generation = open.generation.clone();
        let wrong = |what: String| Error::SchemaMismatch {
            shard: generation.shard,
            generation: generation.number,
            what,
        };
        let key_names = keys
            .iter()
            .map(|(name, id)| {
                let by_id = source
                    .fields()
                    .iter()
                    .find(|f| id_of(f) == Some(*id) && f.name() != TOMBSTONE);
                by_id
                    .map(|f| f.name().clone())
                    .ok_or_else(|| wrong(format!("it has no key column `{name}`")))
            })
            .collect::<Result<_>>()?;
        let blobs: Vec<usize> = (0..table.fields.len())
            .filter(|at| table.fields[*at].is_blob_v2())
            .collect();
        let target = as_read(&arrow_schema_with_field_ids(table), &blobs);
        let source = as_read_where(&source, |f| {
            open.schema.field(f.name()).is_some_and(|f| f.is_blob_v2())
        });
        Ok(Self {
            generation: open.generation.clone(),
            source,
            target: Arc::new(target),
            output: write_schema(table),
            keys: keys.iter().map(|(name, _)| name.clone()).collect(),
            key_names,
            blobs,
        })
    }

    /// Names, in the generation, of the key columns and of `_tombstone` where it has one.
    pub fn key_columns(&self) -> Vec<String> {
        let tombstone = self
            .source
            .fields()
            .iter()
            .any(|f| f.name() == TOMBSTONE)
            .then(|| TOMBSTONE.to_string());
        self.key_names.iter().cloned().chain(tombstone).collect()
    }

    /// Names, in the generation, of the columns that the table's are made of. Where it has none of them, one that is
    /// cheap to read, so that its rows are still counted.
    pub fn columns(&self) -> Vec<String> {
        let wanted = |f: &&Arc<Field>| {
            let id = id_of(f);
            let same = |t: &Arc<Field>| id.is_some() && id_of(t) == id;
            f.name() != TOMBSTONE && self.target.fields().iter().any(same)
        };
        let names = |f: &Arc<Field>| f.name().clone();
        let mut found: Vec<String> = self
            .source
            .fields()
            .iter()
            .filter(wanted)
            .map(names)
            .collect();
        if found.is_empty() {
            let all = self.source.fields();
            let cheap = all.iter().find(|f| f.data_type().is_primitive());
            found.extend(cheap.or(all.first()).map(names));
        }
        found
    }

    /// Where a batch of the generation holds the key columns.
    pub fn key_positions(&self, batch: &RecordBatch) -> Result<Vec<usize>> {
        let schema = batch.schema();
        self.key_names
            .iter()
            .map(|name| schema.index_of(name).map_err(|e| self.mismatch(e)))
            .collect()
    }

    /// Which rows of a batch are deletes; `None` for none.
    pub fn tombstones(&self, batch: &RecordBatch) -> Option<BooleanArray> {
        batch
            .column_by_name(TOMBSTONE)
            .and_then(|c| c.as_boolean_opt().cloned())
            .filter(|t| t.true_count() > 0)
    }

    /// Brings live rows to the table's schema. A batch has to hold no tombstone: those have nulls in columns that take none.
    pub fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let source = self.source_of(&batch)?;
        let named = relabel(&batch, &source).map_err(|e| self.mismatch(e))?;
        let mut done = reconcile_batches(&source, &self.target, &self.keys, vec![named])
            .map_err(|e| self.mismatch(e))?;
        let batch = done
            .pop()
            .ok_or_else(|| Error::Bug("a batch was lost in reconciliation".into()))?;
        let mut columns = batch.columns().to_vec();
        for at in &self.blobs {
            columns[*at] = blob_array(&columns[*at]).map_err(|e| self.mismatch(e))?;
        }
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(rows));
        let columns = columns
            .iter()
            .zip(self.output.fields())
            .map(|(c, f)| retype(c, f))
            .collect::<Result<_, _>>();
        columns
            .and_then(|c| RecordBatch::try_new_with_options(self.output.clone(), c, &options))
            .map_err(|e| self.mismatch(e))
    }

    /// The source schema in the order of a batch's columns, with the types that the batch really has.
    fn source_of(&self, batch: &RecordBatch) -> Result<ArrowSchema> {
        let schema = batch.schema();
        let fields = schema.fields().iter().map(|f| {
            let known = self
                .source
                .field_with_name(f.name())
                .map_err(|e| self.mismatch(e))?;
            Ok(known.clone())
        });
        Ok(ArrowSchema::new(fields.collect::<Result<Vec<Field>>>()?))
    }

    fn mismatch(&self, e: impl std::fmt::Display) -> Error {
        tracing::warn!(shard = %self.generation.shard, generation = self.generation.number, error = %e, "cannot reconcile");
        Error::SchemaMismatch {
            shard: self.generation.shard,
            generation: self.generation.number,
            what: "its columns cannot be brought to the table's".into(),
        }
    }
}

/// The table's columns as its writer takes them: blob columns as values, not as where they are stored.
pub(crate) fn write_schema(table: &Schema) -> SchemaRef {
    let arrow = ArrowSchema::from(table);
    let fields = arrow
        .fields()
        .iter()
        .zip(&table.fields)
        .map(|(field, own)| match own.is_blob_v2() {
            true => {
                let value = blob_field(field.name(), field.is_nullable());
                Arc::new(
                    value.clone().with_metadata(
                        field
                            .metadata()
                            .clone()
                            .into_iter()
                            .chain(value.metadata().clone())
                            .collect(),
                    ),
                )
            }
            false => field.clone(),
        });
    Arc::new(ArrowSchema::new_with_metadata(
        fields.collect::<Vec<_>>(),
        arrow.metadata().clone(),
    ))
}

/// The generation's Arrow schema with field ids that mean the same as the table's. Lance before 10 numbered a
/// generation's fields by position, so there a column's name says which one it is.
fn source_ids(open: &OpenGeneration, table: &Schema) -> ArrowSchema {
    let own = arrow_schema_with_field_ids(&open.schema);
    let same = |f: &lance_core::datatypes::Field| table.field(&f.name).is_none_or(|t| t.id == f.id);
    // Where every name that both know has one id, the ids are the table's, and follow renames.
    if !open.positional_ids
        || open
            .schema
            .fields
            .iter()
            .filter(|f| f.name != TOMBSTONE)
            .all(same)
    {
        return own;
    }
    let fields = own.fields().iter().map(|f| {
        let same = table.field(f.name()).and_then(|t| {
            let with_ids = arrow_schema_with_field_ids(&Schema {
                fields: vec![t.clone()],
                metadata: Default::default(),
            });
            with_ids.fields().first().cloned()
        });
        same.unwrap_or_else(|| {
            let mut f = f.as_ref().clone();
            f.metadata_mut().remove(LANCE_FIELD_ID_KEY);
            Arc::new(f)
        })
    });
    ArrowSchema::new(fields.collect::<Vec<_>>())
}

fn id_of(field: &Field) -> Option<i32> {
    field
        .metadata()
        .get(LANCE_FIELD_ID_KEY)
        .and_then(|v| v.parse().ok())
        .filter(|id| *id >= 0)
}

fn as_read(schema: &ArrowSchema, blobs: &[usize]) -> ArrowSchema {
    let fields = schema.fields().iter().enumerate();
    ArrowSchema::new(
        fields
            .map(|(at, f)| {
                if blobs.contains(&at) {
                    bytes_of(f)
                } else {
                    f.clone()
                }
            })
            .collect::<Vec<_>>(),
    )
}

fn as_read_where(schema: &ArrowSchema, blob: impl Fn(&Field) -> bool) -> ArrowSchema {
    ArrowSchema::new(
        schema
            .fields()
            .iter()
            .map(|f| if blob(f) { bytes_of(f) } else { f.clone() })
            .collect::<Vec<_>>(),
    )
}

/// A blob column as the bytes that a scan gives for it, with the column's id and nothing else.
fn bytes_of(field: &Field) -> Arc<Field> {
    let id = field
        .metadata()
        .get(LANCE_FIELD_ID_KEY)
        .map(|id| (LANCE_FIELD_ID_KEY.to_string(), id.clone()));
    Arc::new(
        Field::new(field.name(), DataType::LargeBinary, true)
            .with_metadata(id.into_iter().collect()),
    )
}

/// A column under a field whose type differs in labels of nested fields only.
fn retype(
    column: &ArrayRef,
    field: &Field,
) -> std::result::Result<ArrayRef, arrow_schema::ArrowError> {
    if column.data_type() == field.data_type() {
        Ok(column.clone())
    } else {
        relabel_array(column, field.data_type())
    }
}

/// A batch under a schema of the same shape: ids sit inside nested types, so labels have to move at every depth.
fn relabel(
    batch: &RecordBatch,
    schema: &ArrowSchema,
) -> std::result::Result<RecordBatch, arrow_schema::ArrowError> {
    let nullable: Vec<Field> = schema.fields().iter().map(|f| f.as_ref().clone()).collect();
    let columns = batch
        .columns()
        .iter()
        .zip(&nullable)
        .map(|(c, f)| retype(c, f))
        .collect::<Result<Vec<_>, _>>()?;
    let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(ArrowSchema::new(nullable)), columns, &options)
}

fn relabel_array(
    array: &ArrayRef,
    wanted: &DataType,
) -> std::result::Result<ArrayRef, arrow_schema::ArrowError> {
    fn data(
        from: arrow_data::ArrayData,
        wanted: &DataType,
    ) -> std::result::Result<arrow_data::ArrayData, arrow_schema::ArrowError> {
        let kinds: Vec<DataType> = match wanted {
            DataType::Struct(fields) => fields.iter().map(|f| f.data_type().clone()).collect(),
            DataType::List(f)
            | DataType::LargeList(f)
            | DataType::FixedSizeList(f, _)
            | DataType::Map(f, _) => {
                vec![f.data_type().clone()]
            }
            _ => vec![],
        };
        let children = from.child_data().to_vec();
        let children = if kinds.len() == children.len() {
            children
                .into_iter()
                .zip(&kinds)
                .map(|(c, k)| data(c, k))
                .collect::<Result<_, _>>()?
        } else {
            children
        };
        from.into_builder()
            .data_type(wanted.clone())
            .child_data(children)
            .build()
    }
    if std::mem::discriminant(array.data_type()) != std::mem::discriminant(wanted) {
        return arrow_cast::cast(array, wanted);
    }
    data(array.to_data(), wanted).map(arrow_array::make_array)
}

/// Bytes as the blob values that the writer takes.
fn blob_array(bytes: &ArrayRef) -> std::result::Result<ArrayRef, lance::Error> {
    let bytes = bytes.as_binary::<i64>();
    let mut out = BlobArrayBuilder::new(bytes.len());
    for at in 0..bytes.len() {
        if bytes.is_null(at) {
            out.push_null()?
        } else {
            out.push_bytes(bytes.value(at))?
        }
    }
    out.finish()
}
