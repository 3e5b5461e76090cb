//! Rows as JSON.
//!
//! Lives here: the form of every Arrow type (`docs/reading.md` has the table), written straight into the answer, columns
//! in the table's order. May use: arrow. Must never come in: a number that a reader of JSON would change, so integers
//! beyond 2^53 and decimals are strings.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowDictionaryKeyType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, RunEndIndexType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrowPrimitiveType, OffsetSizeTrait, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{ArrowError, DataType, TimeUnit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;

/// The largest integer up to which every reader of JSON keeps integers exactly.
const EXACT: i128 = (1 << 53) - 1;

/// Writes the rows of batches as the elements of a JSON array, without its brackets.
pub(super) fn rows(out: &mut Vec<u8>, batches: &[RecordBatch]) -> Result<(), ArrowError> {
    let mut first = true;
    for batch in batches {
        let schema = batch.schema();
        for row in 0..batch.num_rows() {
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            out.push(b'{');
            for (at, (field, column)) in schema.fields().iter().zip(batch.columns()).enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                text(out, field.name());
                out.push(b':');
                value(out, column.as_ref(), row)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

/// A JSON string.
fn text(out: &mut Vec<u8>, s: &str) {
    // Writing a string to memory cannot fail; were it to, an empty string is still JSON.
    match serde_json::to_vec(s) {
        Ok(bytes) => out.extend(bytes),
        Err(_) => out.extend(b"\"\""),
    }
}

fn integer(out: &mut Vec<u8>, n: i128) {
    if (-EXACT..=EXACT).contains(&n) {
        out.extend(n.to_string().bytes());
    } else {
        out.extend(format!("\"{n}\"").bytes());
    }
}

/// A float that is written with the fewest digits that read back as itself.
fn float(out: &mut Vec<u8>, f: f64, shortest: String) {
    let said = if f.is_nan() {
        "\"NaN\""
    } else if f == f64::INFINITY {
        "\"Infinity\""
    } else if f == f64::NEG_INFINITY {
        "\"-Infinity\""
    } else {
        shortest.as_str()
    };
    out.extend(said.bytes());
}

fn number<T: ArrowPrimitiveType>(out: &mut Vec<u8>, array: &dyn Array, row: usize)
where
    i128: From<T::Native>,
{
    integer(out, array.as_primitive::<T>().value(row).into());
}

fn binary(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    out.extend(STANDARD.encode(bytes).bytes());
    out.push(b'"');
}

/// Writes one value of a column.
pub(super) fn cell(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<(), ArrowError> {
    value(out, array, row)
}

fn value(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<(), ArrowError> {
    // Unions and run-ends have no validity of their own: their children say it.
    if array.is_null(row) {
        out.extend(b"null");
        return Ok(());
    }
    match array.data_type() {
        DataType::Null => out.extend(b"null"),
        DataType::Boolean => {
            let b: &[u8] = if array.as_boolean().value(row) {
                b"true"
            } else {
                b"false"
            };
            out.extend(b);
        }
        DataType::Int8 => number::<Int8Type>(out, array, row),
        DataType::Int16 => number::<Int16Type>(out, array, row),
        DataType::Int32 => number::<Int32Type>(out, array, row),
        DataType::Int64 => number::<Int64Type>(out, array, row),
        DataType::UInt8 => number::<UInt8Type>(out, array, row),
        DataType::UInt16 => number::<UInt16Type>(out, array, row),
        DataType::UInt32 => number::<UInt32Type>(out, array, row),
        DataType::UInt64 => number::<UInt64Type>(out, array, row),
        DataType::Float16 => {
            let f = array.as_primitive::<Float16Type>().value(row).to_f32();
            float(out, f.into(), format!("{f:?}"));
        }
        DataType::Float32 => {
            let f = array.as_primitive::<Float32Type>().value(row);
            float(out, f.into(), format!("{f:?}"));
        }
        DataType::Float64 => {
            let f = array.as_primitive::<Float64Type>().value(row);
            float(out, f, format!("{f:?}"));
        }
        DataType::Utf8 => text(out, array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => text(out, array.as_string::<i64>().value(row)),
        DataType::Utf8View => text(out, array.as_string_view().value(row)),
        DataType::Binary => binary(out, array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => binary(out, array.as_binary::<i64>().value(row)),
        DataType::BinaryView => binary(out, array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => binary(out, array.as_fixed_size_binary().value(row)),
        DataType::Timestamp(unit, _) => timestamp(out, array, row, *unit),
        DataType::List(_) => list::<i32>(out, array, row)?,
        DataType::LargeList(_) => list::<i64>(out, array, row)?,
        DataType::FixedSizeList(..) => {
            elements(out, array.as_fixed_size_list().value(row).as_ref())?
        }
        DataType::ListView(_) => elements(out, array.as_list_view::<i32>().value(row).as_ref())?,
        DataType::LargeListView(_) => {
            elements(out, array.as_list_view::<i64>().value(row).as_ref())?
        }
        DataType::Struct(fields) => {
            out.push(b'{');
            let columns = array.as_struct().columns();
            for (at, (field, column)) in fields.iter().zip(columns).enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                text(out, field.name());
                out.push(b':');
                value(out, column.as_ref(), row)?;
            }
            out.push(b'}');
        }
        DataType::Map(..) => elements(out, &array.as_map().value(row))?,
        DataType::Dictionary(key, _) => dictionary(out, array, row, key)?,
        DataType::RunEndEncoded(ends, _) => run(out, array, row, ends.data_type())?,
        DataType::Union(..) => {
            let union = array.as_union();
            let child = union.child(union.type_id(row));
            value(out, child.as_ref(), union.value_offset(row))?;
        }
        // Dates, times, durations, intervals and decimals: strings.
        _ => shown(out, array, row)?,
    }
    Ok(())
}

fn list<O: OffsetSizeTrait>(
    out: &mut Vec<u8>,
    array: &dyn Array,
    row: usize,
) -> Result<(), ArrowError> {
    elements(out, array.as_list::<O>().value(row).as_ref())
}

fn elements(out: &mut Vec<u8>, array: &dyn Array) -> Result<(), ArrowError> {
    out.push(b'[');
    for at in 0..array.len() {
        if at > 0 {
            out.push(b',');
        }
        value(out, array, at)?;
    }
    out.push(b']');
    Ok(())
}

/// RFC 3339, in UTC; a time outside the years that it can write is the bare number of its unit, as a string.
fn timestamp(out: &mut Vec<u8>, array: &dyn Array, row: usize, unit: TimeUnit) {
    fn of<T: ArrowPrimitiveType<Native = i64>>(array: &dyn Array, row: usize) -> i64 {
        array.as_primitive::<T>().value(row)
    }
    let (n, each) = match unit {
        TimeUnit::Second => (of::<TimestampSecondType>(array, row), 1_000_000_000),
        TimeUnit::Millisecond => (of::<TimestampMillisecondType>(array, row), 1_000_000),
        TimeUnit::Microsecond => (of::<TimestampMicrosecondType>(array, row), 1000),
        TimeUnit::Nanosecond => (of::<TimestampNanosecondType>(array, row), 1),
    };
    match Timestamp::from_nanosecond(i128::from(n) * each) {
        Ok(t) => text(out, &t.to_string()),
        Err(_) => text(out, &n.to_string()),
    }
}

fn dictionary(
    out: &mut Vec<u8>,
    array: &dyn Array,
    row: usize,
    key: &DataType,
) -> Result<(), ArrowError> {
    fn of<K: ArrowDictionaryKeyType>(
        out: &mut Vec<u8>,
        array: &dyn Array,
        row: usize,
    ) -> Result<(), ArrowError> {
        let dictionary = array.as_dictionary::<K>();
        match dictionary.key(row) {
            Some(at) if at < dictionary.values().len() => {
                value(out, dictionary.values().as_ref(), at)
            }
            _ => {
                out.extend(b"null");
                Ok(())
            }
        }
    }
    match key {
        DataType::Int8 => of::<Int8Type>(out, array, row),
        DataType::Int16 => of::<Int16Type>(out, array, row),
        DataType::Int32 => of::<Int32Type>(out, array, row),
        DataType::Int64 => of::<Int64Type>(out, array, row),
        DataType::UInt8 => of::<UInt8Type>(out, array, row),
        DataType::UInt16 => of::<UInt16Type>(out, array, row),
        DataType::UInt32 => of::<UInt32Type>(out, array, row),
        _ => of::<UInt64Type>(out, array, row),
    }
}

fn run(
    out: &mut Vec<u8>,
    array: &dyn Array,
    row: usize,
    ends: &DataType,
) -> Result<(), ArrowError> {
    fn of<R: RunEndIndexType>(
        out: &mut Vec<u8>,
        array: &dyn Array,
        row: usize,
    ) -> Result<(), ArrowError> {
        let Some(run) = array.as_any().downcast_ref::<arrow_array::RunArray<R>>() else {
            return Err(ArrowError::CastError("not a run array".into()));
        };
        value(out, run.values().as_ref(), run.get_physical_index(row))
    }
    match ends {
        DataType::Int16 => of::<Int16Type>(out, array, row),
        DataType::Int64 => of::<Int64Type>(out, array, row),
        _ => of::<Int32Type>(out, array, row),
    }
}

fn shown(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<(), ArrowError> {
    let options = FormatOptions::new().with_display_error(true);
    let formatter = ArrayFormatter::try_new(array, &options)?;
    text(out, &formatter.value(row).to_string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::builder::{MapBuilder, StringBuilder, StringDictionaryBuilder};
    use arrow_array::types::{
        Date32Type, Decimal128Type, DurationSecondType, Time64MicrosecondType,
    };
    use arrow_array::{
        BinaryArray, BooleanArray, FixedSizeListArray, Int32Array, Int64Array, ListArray,
        PrimitiveArray, StringArray, StructArray, new_null_array,
    };
    use arrow_schema::{Field, Schema};
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn one<T: ArrowPrimitiveType>(values: Vec<T::Native>) -> PrimitiveArray<T> {
        PrimitiveArray::from_iter_values(values)
    }

    fn all(array: &dyn Array) -> Value {
        let mut out = vec![];
        elements(&mut out, array).unwrap();
        serde_json::from_slice(&out)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out)))
    }

    #[test]
    fn integers_that_readers_of_json_would_change_are_strings() {
        let edge = (1i64 << 53) - 1;
        assert_eq!(
            all(&Int64Array::from(vec![0, -7, edge, edge + 1, i64::MIN])),
            json!([
                0,
                -7,
                9007199254740991i64,
                "9007199254740992",
                "-9223372036854775808"
            ])
        );
        assert_eq!(
            all(&one::<UInt64Type>(vec![u64::MAX])),
            json!(["18446744073709551615"])
        );
    }

    #[test]
    fn floats_keep_their_shortest_form_and_what_json_cannot_say_is_a_string() {
        let f = one::<Float32Type>(vec![0.1, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0]);
        assert_eq!(all(&f), json!([0.1, "NaN", "Infinity", "-Infinity", 1.0]));
        let f = one::<Float64Type>(vec![1e300, 5e-324, -0.0]);
        assert_eq!(all(&f), json!([1e300, 5e-324, -0.0]));
    }

    #[test]
    fn bytes_are_base64_and_decimals_are_strings() {
        assert_eq!(
            all(&BinaryArray::from_vec(vec![b"", b"\xff\0a"])),
            json!(["", "/wBh"])
        );
        let d = one::<Decimal128Type>(vec![-12345]).with_precision_and_scale(10, 2);
        assert_eq!(all(&d.unwrap()), json!(["-123.45"]));
    }

    #[test]
    fn times_are_rfc_3339() {
        let t = one::<TimestampMicrosecondType>(vec![1_700_000_000_250_000, i64::MAX]);
        assert_eq!(
            all(&t),
            json!(["2023-11-14T22:13:20.25Z", "9223372036854775807"])
        );
        let zoned = one::<TimestampSecondType>(vec![0]).with_timezone("+02:00");
        assert_eq!(all(&zoned), json!(["1970-01-01T00:00:00Z"]));
        assert_eq!(all(&one::<Date32Type>(vec![19_000])), json!(["2022-01-08"]));
        assert_eq!(
            all(&one::<Time64MicrosecondType>(vec![1_500_000])),
            json!(["00:00:01.500"])
        );
        assert_eq!(all(&one::<DurationSecondType>(vec![90])), json!(["PT90S"]));
    }

    #[test]
    fn dictionaries_are_decoded_with_their_nulls() {
        let mut b = StringDictionaryBuilder::<Int8Type>::new();
        b.append_value("assistant");
        b.append_null();
        b.append_value("tool");
        b.append_value("assistant");
        assert_eq!(
            all(&b.finish()),
            json!(["assistant", null, "tool", "assistant"])
        );
    }

    #[test]
    fn nested_values_keep_their_shape() {
        let vectors = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
            vec![Some(vec![Some(0.5), None]), None],
            2,
        );
        assert_eq!(all(&vectors), json!([[0.5, null], null]));
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
            Some(vec![]),
            Some(vec![Some(1), Some(2)]),
        ]);
        let inner = StructArray::from(vec![
            (
                Arc::new(Field::new("z", lists.data_type().clone(), true)),
                Arc::new(lists) as _,
            ),
            (
                Arc::new(Field::new("a\"", DataType::Utf8, true)),
                Arc::new(StringArray::from(vec![Some("\u{202e}x\0<script>"), None])) as _,
            ),
        ]);
        assert_eq!(
            all(&inner),
            json!([{"z": [], "a\"": "\u{202e}x\0<script>"}, {"z": [1, 2], "a\"": null}])
        );
        let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        map.keys().append_value("k");
        map.values().append_value("v");
        map.append(true).unwrap();
        assert_eq!(all(&map.finish()), json!([[{"keys": "k", "values": "v"}]]));
    }

    #[test]
    fn rows_keep_the_order_of_the_columns() {
        let schema = Schema::new(vec![
            Field::new("z", DataType::Int32, true),
            Field::new("a", DataType::Boolean, true),
            Field::new("n", DataType::Null, true),
        ]);
        let columns: Vec<Arc<dyn Array>> = vec![
            Arc::new(Int32Array::from(vec![1, 2])),
            Arc::new(BooleanArray::from(vec![Some(true), None])),
            new_null_array(&DataType::Null, 2),
        ];
        let batch = RecordBatch::try_new(Arc::new(schema), columns).unwrap();
        let mut out = vec![];
        rows(&mut out, &[batch]).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            r#"{"z":1,"a":true,"n":null},{"z":2,"a":null,"n":null}"#
        );
    }
}
