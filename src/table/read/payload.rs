//! The bytes of one cell.
//!
//! Lives here: `Reader::payload`, for blob columns and for columns of bytes or text, within the bound of one page. May
//! use: Lance's blob files. Never: a blob that lies outside the table (contract 21), or one that was not asked for.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use bytes::Bytes;
use lance::dataset::BlobFile;
use lance_core::datatypes::{BlobKind, Field};

use super::super::base::Table;
use super::super::error::Error;
use super::super::file::Fetch;
use super::super::generation::{OpenGeneration, any_leads_out};
use super::point::Spot;
use super::rows::{Budget, Shape, described, shown, unknown};
use super::{
    KeyText, PageMemory, Picked, ReadError, Reader, SnapshotId, Source, View, may_have_moved,
};

/// What a cell holds.
#[derive(Debug)]
pub enum Payload {
    /// Its bytes, and what they take of the memory of all pages.
    Bytes(Bytes, SnapshotId, PageMemory),
    /// Nothing: the row is there and its cell is null.
    Null,
    /// A pending generation deletes the row: its shard and number.
    Deleted(uuid::Uuid, u64),
    /// The source has no row of this key.
    Missing,
}

impl Reader {
    /// The bytes of a cell, by the row's key and a column of blobs, bytes or text.
    ///
    /// # Errors
    /// As [`Reader::get`]; `UnknownColumn`, `BadValue` for a column of another type, `PayloadTooLarge`.
    pub async fn payload(
        &self,
        table: &Table,
        source: Source,
        key: &KeyText,
        column: &str,
    ) -> Result<Payload, ReadError> {
        match self.cell(table, source, key, column, false).await {
            Err(e) if may_have_moved(&e) => self.cell(table, source, key, column, true).await,
            done => done,
        }
    }

    async fn cell(
        &self,
        table: &Table,
        source: Source,
        key: &KeyText,
        column: &str,
        afresh: bool,
    ) -> Result<Payload, ReadError> {
        let (view, spot) = self.spot(table, source, key, afresh).await?;
        let schema = view.base.schema();
        let field = shown(schema).find(|f| f.name == column);
        let field = field.ok_or_else(|| unknown(schema, column))?;
        if !field.is_blob() && !is_bytes(&field.data_type()) {
            return Err(ReadError::BadValue {
                column: column.into(),
                wanted: "only blobs, bytes and text are sent alone; the record shows this column"
                    .into(),
            });
        }
        let picked = match spot {
            Spot::At(picked) => picked,
            Spot::Deleted(shard, generation) => return Ok(Payload::Deleted(shard, generation)),
            Spot::Nowhere => return Ok(Payload::Missing),
        };
        let mut budget = Budget::new(&self.limits, self.pages.clone());
        let bytes = match field.is_blob() {
            true => blob(table, &view, &picked, field, &mut budget).await?,
            false => {
                let columns = [column.to_string()];
                let shape = Shape::of(schema, Some(&columns))?;
                let batches = picked.read(table, &view, &shape, &mut budget).await?;
                let batch = batches
                    .first()
                    .ok_or_else(|| Error::Bug("a row was not read".into()))?;
                value(batch.column(0))
            }
        };
        Ok(match bytes {
            Some(bytes) => Payload::Bytes(bytes, view.id, budget.memory()),
            None => Payload::Null,
        })
    }
}

fn is_bytes(data_type: &DataType) -> bool {
    use DataType::*;
    matches!(
        data_type,
        Binary | LargeBinary | BinaryView | FixedSizeBinary(_) | Utf8 | LargeUtf8 | Utf8View
    )
}

fn value(column: &ArrayRef) -> Option<Bytes> {
    if column.is_null(0) {
        return None;
    }
    let bytes = match column.data_type() {
        DataType::Binary => column.as_binary::<i32>().value(0),
        DataType::LargeBinary => column.as_binary::<i64>().value(0),
        DataType::BinaryView => column.as_binary_view().value(0),
        DataType::FixedSizeBinary(_) => column.as_fixed_size_binary().value(0),
        DataType::Utf8 => column.as_string::<i32>().value(0).as_bytes(),
        DataType::LargeUtf8 => column.as_string::<i64>().value(0).as_bytes(),
        _ => column.as_string_view().value(0).as_bytes(),
    };
    Some(Bytes::copy_from_slice(bytes))
}

async fn blob(
    table: &Table,
    view: &View,
    picked: &Picked,
    field: &Field,
    budget: &mut Budget,
) -> Result<Option<Bytes>, ReadError> {
    let failed = |e| Error::lance("read a blob", e);
    let foreign = || Error::ForeignBase("a blob outside the table".into());
    let file = match picked.pending.first() {
        None => {
            // Before Lance opens it, which asks where it lies for its size.
            let described = described(&view.base, &picked.base, field).await?;
            if described.as_struct_opt().is_some_and(any_leads_out) {
                return Err(foreign().into());
            }
            let found = view
                .base
                .take_blobs_by_addresses(&picked.base, &field.name)
                .await
                .map_err(failed)?;
            found.into_iter().next().flatten()
        }
        Some(wanted) => {
            let open = OpenGeneration::open(
                &view.base,
                table.store(),
                &wanted.generation,
                &wanted.facts,
                Fetch::RANGES,
            )
            .await?;
            open.blob(wanted.offsets[0], field).await?
        }
    };
    let Some(file) = file else {
        return Ok(None);
    };
    if file.kind() == BlobKind::External {
        return Err(foreign().into());
    }
    budget.take_bytes(file.size())?;
    read(&file).await.map(Some)
}

async fn read(file: &BlobFile) -> Result<Bytes, ReadError> {
    let read = file.read().await;
    Ok(read.map_err(|e| Error::lance("read a blob", e))?)
}
