//! What columns a table has.
//!
//! Lives here: `Column`, as answers tell it. May use: the base's schema. Never: a row.

use arrow_schema::DataType;
use jiff::Timestamp;
use serde::Serialize;

use super::super::base::{Table, key_fields};
use super::rows::shown;
use super::{ReadError, Reader, SnapshotId};

/// What lance-context writes into the metadata of a column that its lists leave out.
const LARGE: &str = "lance-context:blob";

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    #[serde(rename = "type")]
    pub data_type: String,
    /// Whether it may hold nulls.
    pub nullable: bool,
    /// Its place in the key, from 0; `None` where it is not part of it.
    pub key: Option<usize>,
    /// Whether it holds blobs: records show their sizes, and a route of its own sends one.
    pub blob: bool,
    /// Its Arrow type.
    #[serde(skip)]
    pub arrow: DataType,
    /// Whether lance-context declares it as one that no list shows.
    #[serde(skip)]
    pub large: bool,
    /// Whether records show it: one with a blob somewhere inside it is left out.
    pub shown: bool,
}

impl Reader {
    /// The columns of a table's newest base version. Makes no request under `_mem_wal/`.
    ///
    /// # Errors
    /// What the table says.
    pub async fn columns(&self, table: &Table) -> Result<(Vec<Column>, SnapshotId), ReadError> {
        let read_at = Timestamp::now();
        let base = table.latest().await?;
        let schema = base.schema();
        let keys = key_fields(schema);
        let columns = schema.fields.iter().map(|f| Column {
            name: f.name.clone(),
            data_type: match f.is_blob() {
                true => "Blob".into(),
                false => f.data_type().to_string(),
            },
            nullable: f.nullable,
            key: keys.iter().position(|(_, id)| *id == f.id),
            blob: f.is_blob(),
            arrow: f.data_type(),
            large: f.metadata.get(LARGE).is_some_and(|v| v == "true"),
            shown: shown(schema).any(|s| s.id == f.id),
        });
        Ok((columns.collect(), SnapshotId::of_base(&base, read_at)))
    }
}
