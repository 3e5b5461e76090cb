//! Values that a row has to have.
//!
//! Lives here: `value`, which reads a text as a value of a column's type, and `Exact`, a column with its value, as an
//! expression for Lance's scan of the base and as a test of a generation's batch: both compare the same typed value, so
//! a row answers the same before and after its merge. May use: arrow, DataFusion's expressions. Never: SQL text.

use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, RecordBatch, Scalar, StringArray};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{Expr, col, lit};
use lance_core::datatypes::Schema;
use std::sync::Arc;

use super::super::error::{Error, Result};
use super::ReadError;
use super::rows::{shown, unknown};

/// A column and the value that a row has to have in it.
pub(super) struct Exact {
    column: String,
    pub id: i32,
    value: ArrayRef,
}

impl Exact {
    /// Reads columns and the texts of their values.
    pub fn all(
        schema: &Schema,
        texts: &[(String, String)],
    ) -> std::result::Result<Vec<Self>, ReadError> {
        let one = |(column, text): &(String, String)| {
            let mut fields = shown(schema).filter(|f| !f.is_blob());
            let field = fields.find(|f| f.name == *column);
            let field = field.ok_or_else(|| unknown(schema, column))?;
            let value = value(&field.data_type(), text).map_err(|wanted| ReadError::BadValue {
                column: column.clone(),
                wanted,
            })?;
            Ok(Self {
                column: column.clone(),
                id: field.id,
                value,
            })
        };
        texts.iter().map(one).collect()
    }

    /// All of them as one expression.
    pub fn expression(all: &[Self]) -> Result<Option<Expr>> {
        let mut out: Option<Expr> = None;
        for exact in all {
            let value = ScalarValue::try_from_array(&exact.value, 0)
                .map_err(|e| Error::Bug(format!("a value is no literal: {e}")))?;
            let own = col(Column::from_name(&exact.column)).eq(lit(value));
            out = Some(match out {
                Some(before) => before.and(own),
                None => own,
            });
        }
        Ok(out)
    }

    /// Which rows of a batch in the table's schema have it.
    pub fn holds(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let column = batch
            .column_by_name(&self.column)
            .ok_or_else(|| Error::Bug(format!("a batch without the column {}", self.column)))?;
        arrow_ord::cmp::eq(column, &Scalar::new(self.value.clone()))
            .map_err(|e| Error::Bug(format!("a value cannot be compared: {e}")))
    }
}

/// A text as the one value of an array of a type, or how such values are written.
pub(super) fn value(data_type: &DataType, text: &str) -> std::result::Result<ArrayRef, String> {
    use DataType::*;
    let (plain, wanted): (ArrayRef, &str) = match data_type {
        Dictionary(_, values) => return value(values, text),
        Binary | LargeBinary | BinaryView | FixedSizeBinary(_) => {
            let wanted = "bytes are written as base64 with padding";
            let bytes = STANDARD.decode(text).map_err(|_| wanted)?;
            (Arc::new(BinaryArray::from_vec(vec![&bytes])), wanted)
        }
        Utf8 | LargeUtf8 | Utf8View => (string(text), "a text"),
        Boolean => (string(text), "true or false"),
        Timestamp(..) | Date32 | Date64 | Time32(_) | Time64(_) => {
            (string(text), "as in RFC 3339, such as 2026-01-02T03:04:05Z")
        }
        t if t.is_numeric() => (string(text), "a number within the column's type"),
        _ => return Err("only columns of one plain value a row can be compared".into()),
    };
    let options = CastOptions {
        safe: false,
        ..Default::default()
    };
    let cast = cast_with_options(&plain, data_type, &options).map_err(|_| wanted)?;
    match cast.is_null(0) {
        true => Err(wanted.into()),
        false => Ok(cast),
    }
}

fn string(text: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![text]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::TimeUnit;

    #[test]
    fn a_text_is_read_by_the_type_of_its_column_or_refused() {
        let dictionary = DataType::Dictionary(DataType::Int8.into(), DataType::Utf8.into());
        for (data_type, right, wrong) in [
            (DataType::Int8, "-128", "128"),
            (DataType::UInt64, "18446744073709551615", "-1"),
            (DataType::Int64, "-9223372036854775808", "1.5"),
            (DataType::Boolean, "true", "maybe"),
            (DataType::Float32, "0.5", "half"),
            (DataType::Binary, "AAE=", "A"),
            (DataType::FixedSizeBinary(2), "AAE=", "AAEC"),
            (
                DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
                "2026-01-02T03:04:05.5Z",
                "yesterday",
            ),
        ] {
            assert_eq!(value(&data_type, right).unwrap().data_type(), &data_type);
            assert!(value(&data_type, wrong).is_err(), "{data_type} {wrong}");
        }
        assert_eq!(
            value(&dictionary, "tool").unwrap().data_type(),
            &DataType::Utf8
        );
        assert!(value(&DataType::new_list(DataType::Int8, true), "[1]").is_err());
    }
}
