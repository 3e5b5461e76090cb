//! Some rows of a generation, by their offsets.
//!
//! Lives here: `OpenGeneration::take`, for a page that needs a few rows of many generations, and `blob`, for one payload
//! that was asked for. May use: Lance's file reader and dataset. Never: a payload in `take`, where a blob column comes as
//! the description that Lance keeps of it.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::concat::concat_batches;
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::mem_wal::TOMBSTONE;
use lance::dataset::{BlobFile, ProjectionRequest, TakeBuilder};
use lance_core::datatypes::{Field, Schema};
use lance_encoding::decoder::FilterExpression;
use lance_file::versions::reader_projection_from_field_ids;
use lance_io::ReadBatchParams;

use super::super::error::Result;
use super::{OpenGeneration, Source, Starts, any_leads_out};

impl OpenGeneration {
    /// The rows at `offsets`, which have to ascend and to be masked nowhere, with the top-level columns of these names.
    ///
    /// # Errors
    /// `GenerationUnreadable`, and the store's kinds.
    pub async fn take(&self, offsets: &[u32], columns: &[String]) -> Result<RecordBatch> {
        let schema = self
            .schema
            .project(columns)
            .map_err(|e| self.generation.wrap("find its columns", e))?;
        match &self.source {
            Source::Nothing => Err(self.generation.unreadable("rows of it are missing")),
            Source::Table(dataset) => self.take_of_table(dataset, offsets, schema).await,
            Source::File {
                reader,
                ids,
                version,
            } => {
                let projection = reader_projection_from_field_ids(*version, &schema, ids)
                    .map_err(|e| self.generation.wrap("find its columns", e))?;
                let tasks = reader
                    .read_tasks(
                        ReadBatchParams::Indices(UInt32Array::from(offsets.to_vec())),
                        offsets.len() as u32,
                        Some(projection),
                        FilterExpression::no_filter(),
                    )
                    .await
                    .map_err(|e| self.generation.wrap("read its rows", e))?;
                let batches: Vec<RecordBatch> = tasks
                    .map(|task| task.task)
                    .buffered(2)
                    .try_collect()
                    .await
                    .map_err(|e| self.generation.wrap("read its rows", e))?;
                self.whole(batches, offsets.len())
            }
        }
    }

    /// Its column of blobs that is the table's column of this id, or of this name where its ids are positions.
    pub fn blob_field(&self, id: i32, name: &str) -> Option<&Field> {
        let same = |f: &&Field| match self.positional_ids {
            true => f.name == name,
            false => f.id == id,
        };
        let blobs = self.schema.fields.iter().filter(|f| f.is_blob());
        blobs.filter(|f| f.name != TOMBSTONE).find(same)
    }

    /// The blob of the row at `offset` in the table's column `field`, not read yet; `None` where it is null.
    ///
    /// # Errors
    /// `ForeignBase` for one that lies outside the table, before anything is asked for; `GenerationUnreadable`, and the
    /// store's kinds.
    pub async fn blob(&self, offset: u32, field: &Field) -> Result<Option<BlobFile>> {
        // A generation with a column of blobs is opened as a table.
        let (Some(own), Source::Table(dataset)) =
            (self.blob_field(field.id, &field.name), &self.source)
        else {
            return Ok(None);
        };
        let described = self
            .take(&[offset], std::slice::from_ref(&own.name))
            .await?;
        if described
            .column(0)
            .as_struct_opt()
            .is_some_and(any_leads_out)
        {
            return Err(self.generation.foreign());
        }
        let address = Starts::of(&self.generation, dataset)?.address(offset);
        let missing = || self.generation.unreadable("rows of it are missing");
        let found = dataset
            .take_blobs_by_addresses(&[address.ok_or_else(missing)?], &own.name)
            .await
            .map_err(|e| self.generation.wrap("read its rows", e))?;
        found.into_iter().next().ok_or_else(missing)
    }

    async fn take_of_table(
        &self,
        dataset: &Arc<Dataset>,
        offsets: &[u32],
        schema: Schema,
    ) -> Result<RecordBatch> {
        let starts = Starts::of(&self.generation, dataset)?;
        let addresses: Option<Vec<u64>> = offsets.iter().map(|at| starts.address(*at)).collect();
        let addresses =
            addresses.ok_or_else(|| self.generation.unreadable("rows of it are missing"))?;
        let failed = |e| self.generation.wrap("read its rows", e);
        let plan = ProjectionRequest::from_schema(schema)
            .into_projection_plan(dataset.clone())
            .map_err(failed)?;
        let taken = TakeBuilder::try_new_from_addresses(dataset.clone(), addresses, Arc::new(plan))
            .map_err(failed)?
            .execute()
            .await
            .map_err(failed)?;
        self.whole(vec![taken], offsets.len())
    }

    fn whole(&self, batches: Vec<RecordBatch>, rows: usize) -> Result<RecordBatch> {
        let missing = || self.generation.unreadable("rows of it are missing");
        let schema = batches.first().ok_or_else(missing)?.schema();
        let batch = concat_batches(&schema, &batches).map_err(|_| missing())?;
        if batch.num_rows() == rows {
            Ok(batch)
        } else {
            Err(missing())
        }
    }
}
