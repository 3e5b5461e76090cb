//! Values that a row has to have.
//!
//! Lives here: `Exact`, a column with its value, as an expression for Lance's scan of the base and as a test of a
//! generation's batch: both compare the same typed value by one rule, so a row answers the same before and after its
//! merge. Of floats 0 and -0 are the same, and NaN is found by NaN, whatever its bits. May use: arrow, DataFusion's
//! expressions. Never: SQL text.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, RecordBatch, Scalar};
use arrow_schema::{ArrowError, DataType};
use datafusion::common::{Column, DataFusionError, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, Expr, Volatility, cast, col, create_udf, lit};
use lance_core::datatypes::Schema;

use super::super::error::{Error, Result};
use super::ReadError;
use super::rows::{shown, unknown};
use super::texts::value;

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
            let own = exact.own()?;
            out = Some(match out {
                Some(before) => before.and(own),
                None => own,
            });
        }
        Ok(out)
    }

    fn own(&self) -> Result<Expr> {
        let column = col(Column::from_name(&self.column));
        let equals = |value: &ArrayRef| {
            let value = ScalarValue::try_from_array(value, 0)
                .map_err(|e| Error::Bug(format!("a value is no literal: {e}")))?;
            Ok::<_, Error>(column.clone().eq(lit(value)))
        };
        match Float::of(&self.value) {
            None | Some(Float::Other) => equals(&self.value),
            // Two comparisons, so that an index answers them.
            Some(Float::Zero) => {
                let zero = |text| value(self.value.data_type(), text).map_err(Error::Bug);
                Ok(equals(&zero("0")?)?.or(equals(&zero("-0")?)?))
            }
            Some(Float::NaN) => {
                let (wanted, of) = (self.value.clone(), self.value.data_type().clone());
                let same = move |given: &[ColumnarValue]| {
                    let given = ColumnarValue::values_to_arrays(given)?;
                    let [column] = given.as_slice() else {
                        return Err(DataFusionError::Internal("one column is compared".into()));
                    };
                    Ok(ColumnarValue::Array(Arc::new(equal(column, &wanted)?)))
                };
                let same = create_udf(
                    "is_nan",
                    vec![of.clone()],
                    DataType::Boolean,
                    Volatility::Immutable,
                    Arc::new(same),
                );
                Ok(same.call(vec![cast(column, of)]))
            }
        }
    }

    /// Which rows of a batch in the table's schema have it.
    pub fn holds(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let column = batch
            .column_by_name(&self.column)
            .ok_or_else(|| Error::Bug(format!("a batch without the column {}", self.column)))?;
        equal(column, &self.value)
            .map_err(|e| Error::Bug(format!("a value cannot be compared: {e}")))
    }
}

/// The floats that engines compare in more than one way.
enum Float {
    Zero,
    NaN,
    Other,
}

impl Float {
    fn of(value: &ArrayRef) -> Option<Self> {
        let float = match value.data_type() {
            DataType::Float16 => value.as_primitive::<Float16Type>().value(0).to_f64(),
            DataType::Float32 => value.as_primitive::<Float32Type>().value(0).into(),
            DataType::Float64 => value.as_primitive::<Float64Type>().value(0),
            _ => return None,
        };
        Some(match float {
            0.0 => Self::Zero,
            f if f.is_nan() => Self::NaN,
            _ => Self::Other,
        })
    }
}

/// Which values of a column are this one. Arrow compares floats by their bits, so those are compared here.
fn equal(column: &ArrayRef, value: &ArrayRef) -> std::result::Result<BooleanArray, ArrowError> {
    fn floats<T: ArrowPrimitiveType>(column: &ArrayRef, value: &ArrayRef) -> BooleanArray
    where
        T::Native: PartialOrd,
    {
        let wanted = value.as_primitive::<T>().value(0);
        // NaN alone is not itself.
        let nan = |f: T::Native| f.partial_cmp(&f).is_none();
        let same = |f: T::Native| f == wanted || nan(f) && nan(wanted);
        BooleanArray::from_unary(column.as_primitive::<T>(), same)
    }
    let column = match (column.data_type(), value.data_type()) {
        (DataType::Dictionary(..), float) if float.is_floating() => {
            &arrow_cast::cast(column, float)?
        }
        _ => column,
    };
    match value.data_type() {
        DataType::Float16 => Ok(floats::<Float16Type>(column, value)),
        DataType::Float32 => Ok(floats::<Float32Type>(column, value)),
        DataType::Float64 => Ok(floats::<Float64Type>(column, value)),
        _ => arrow_ord::cmp::eq(column, &Scalar::new(value.clone())),
    }
}
