//! Values as callers write them.
//!
//! Lives here: `value`, which reads a text as a value of a column's type: as records show such a value, or, of numbers
//! and times, in another form that means the same and nothing less. May use: arrow's casts and its forms of values.
//! Never: a value that is rounded, cut or guessed.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, Int64Array, StringArray};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, TimeUnit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;

/// A text as the one value of an array of a type, or how such values are written.
pub(super) fn value(data_type: &DataType, text: &str) -> Result<ArrayRef, String> {
    use DataType::*;
    match data_type {
        Dictionary(_, values) => value(values, text),
        Binary | LargeBinary | BinaryView => bytes(data_type, text, String::new()),
        FixedSizeBinary(size) => bytes(data_type, text, format!(", {size} of them")),
        Utf8 | LargeUtf8 | Utf8View => cast(string(text), data_type, "a text"),
        Boolean => match text {
            "true" | "false" => Ok(Arc::new(BooleanArray::from(vec![text == "true"]))),
            _ => Err("true or false".into()),
        },
        Timestamp(unit, _) => timestamp(data_type, *unit, text),
        Date32 | Date64 => same(data_type, text, "a date such as 2026-01-02"),
        Time32(_) | Time64(_) => same(
            data_type,
            text,
            "a time such as 03:04:05.25, no finer than the column's unit",
        ),
        Float16 | Float32 | Float64 => float(data_type, text),
        t if t.is_integer() => same(
            data_type,
            text,
            "a whole number within the column's type, such as 42 or -7",
        ),
        t if t.is_decimal() => same(
            data_type,
            text,
            "a decimal number such as 12.34, with no more digits than the column keeps",
        ),
        _ => Err("only columns of one plain value a row can be compared".into()),
    }
}

fn string(text: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![text]))
}

fn cast(plain: ArrayRef, data_type: &DataType, wanted: &str) -> Result<ArrayRef, String> {
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

fn bytes(data_type: &DataType, text: &str, many: String) -> Result<ArrayRef, String> {
    let wanted = format!("bytes{many}, as base64 with padding");
    let bytes = STANDARD.decode(text).map_err(|_| &wanted);
    let plain = BinaryArray::from_vec(vec![bytes?.as_slice()]);
    cast(Arc::new(plain), data_type, &wanted)
}

/// A value that is shown as it was written. Arrow's own reading takes much more: an empty decimal, rounded digits.
fn same(data_type: &DataType, text: &str, wanted: &str) -> Result<ArrayRef, String> {
    let value = cast(string(text), data_type, wanted)?;
    let options = FormatOptions::new();
    let shown = ArrayFormatter::try_new(value.as_ref(), &options)
        .and_then(|f| f.value(0).try_to_string())
        .map_err(|_| wanted)?;
    // A date with a time of its own shows midnight.
    let shown = match data_type {
        DataType::Date64 if !text.contains('T') => shown.trim_end_matches("T00:00:00"),
        _ => &shown,
    };
    match bare(data_type, text) == bare(data_type, shown) {
        true => Ok(value),
        false => Err(wanted.into()),
    }
}

/// Without the zeros that a fraction ends in.
fn bare<'a>(data_type: &DataType, text: &'a str) -> &'a str {
    let fraction = text.split_once('.').map(|(_, fraction)| fraction);
    let digits = |f: &str| !f.is_empty() && f.bytes().all(|b| b.is_ascii_digit());
    match fraction.filter(|f| !data_type.is_integer() && digits(f)) {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.'),
        None => text,
    }
}

/// A number as JSON writes it, or one of the words by which records show the others.
fn float(data_type: &DataType, text: &str) -> Result<ArrayRef, String> {
    const WANTED: &str =
        "a number within the column's type, such as 0.5 or 1e-7, or NaN, Infinity, -Infinity";
    let word = matches!(text, "NaN" | "Infinity" | "-Infinity");
    if !word && !is_number(text) {
        return Err(WANTED.into());
    }
    let value = cast(string(text), data_type, WANTED)?;
    let as_double = cast(value.clone(), &DataType::Float64, WANTED)?;
    let double = arrow_array::cast::AsArray::as_primitive::<arrow_array::types::Float64Type>(
        as_double.as_ref(),
    );
    match word || double.value(0).is_finite() {
        true => Ok(value),
        false => Err(WANTED.into()),
    }
}

/// Whether a text is a number by the grammar of JSON.
fn is_number(text: &str) -> bool {
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (number, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)))
}

/// RFC 3339 with an offset, or, of a time outside its years, the bare number of the unit.
fn timestamp(data_type: &DataType, unit: TimeUnit, text: &str) -> Result<ArrayRef, String> {
    const WANTED: &str = "a time with an offset as in RFC 3339, such as 2026-01-02T03:04:05Z, no finer than the column's unit";
    let each: i128 = match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    };
    let nanoseconds = match text.parse::<i64>() {
        Ok(n) if n.to_string() == text => {
            let all = i128::from(n) * each;
            Some(all).filter(|all| Timestamp::from_nanosecond(*all).is_err())
        }
        Ok(_) => None,
        Err(_) => text
            .parse::<Timestamp>()
            .ok()
            .filter(|at| is_rfc_3339(text) || at.to_string() == text)
            .map(Timestamp::as_nanosecond),
    };
    let whole = nanoseconds.filter(|n| n % each == 0).map(|n| n / each);
    let number = whole.and_then(|n| i64::try_from(n).ok()).ok_or(WANTED)?;
    cast(Arc::new(Int64Array::from(vec![number])), data_type, WANTED)
}

/// Whether a text has the form of RFC 3339, which others stretch: with a space, without seconds, with a leap second.
fn is_rfc_3339(text: &str) -> bool {
    let is = |text: &str, form: &str| {
        let like = |(c, f): (u8, u8)| match f {
            b'0' => c.is_ascii_digit(),
            _ => c == f,
        };
        text.len() == form.len() && text.bytes().zip(form.bytes()).all(like)
    };
    let Some((time, rest)) = text.split_at_checked("2026-01-02T03:04:05".len()) else {
        return false;
    };
    let digits = rest.strip_prefix('.').map(|rest| {
        let fraction = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest.split_at(fraction)
    });
    let (fraction, offset) = match digits {
        Some(("", _)) => return false,
        Some((fraction, offset)) => (fraction, offset),
        None => ("", rest),
    };
    is(time, "0000-00-00T00:00:00")
        && !time.ends_with("60")
        && fraction.len() <= 9
        && (offset == "Z" || is(offset, "+00:00") || is(offset, "-00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read and what is refused, type by type.
    fn judged(data_type: &DataType, right: &[&str], wrong: &[&str]) {
        for text in right {
            let value =
                value(data_type, text).unwrap_or_else(|e| panic!("{data_type} {text}: {e}"));
            assert_eq!(value.data_type(), data_type);
        }
        for text in wrong {
            assert!(value(data_type, text).is_err(), "{data_type} {text:?}");
        }
    }

    #[test]
    fn whole_numbers_are_read_within_their_type_and_in_one_form() {
        let never = ["", "-", "+5", " 5", "5 ", "007", "1.0", "1e2", "0x1", "-0"];
        judged(&DataType::Int8, &["-128", "0"], &["128"]);
        judged(&DataType::UInt64, &["18446744073709551615"], &["-1"]);
        let least = "-9223372036854775808";
        judged(&DataType::Int64, &[least, "42"], &never);
        judged(&DataType::UInt8, &["42"], &never);
    }

    #[test]
    fn decimals_are_read_whole_or_refused() {
        let never = [
            "", "-", ".", "+1", ".5", "5.", "1e2", "1.234", " 1", "x", "00.1", "-.",
        ];
        for data_type in [
            DataType::Decimal128(10, 2),
            DataType::Decimal256(10, 2),
            DataType::Decimal64(10, 2),
        ] {
            judged(&data_type, &["12.34", "-12.3", "12", "12.340", "0"], &never);
            judged(&data_type, &[], &["123456789.00"]);
        }
        let shown = value(&DataType::Decimal128(10, 2), "12.3").unwrap();
        let decimal = arrow_array::cast::AsArray::as_primitive::<arrow_array::types::Decimal128Type>(
            shown.as_ref(),
        );
        assert_eq!(decimal.value(0), 1230);
    }

    #[test]
    fn floats_are_numbers_of_json_and_the_three_words_of_records() {
        let never = [
            "", "-", "nan", "inf", "1.", ".5", "+1", "half", "01", "1e", "0x1", " 1",
        ];
        let right = ["0.5", "-0", "1e-7", "1E+2", "NaN", "Infinity", "-Infinity"];
        for data_type in [DataType::Float16, DataType::Float32, DataType::Float64] {
            judged(&data_type, &right, &never);
        }
        judged(&DataType::Float64, &["1e300"], &["1e309"]);
        judged(&DataType::Float32, &[], &["1e39"]);
        judged(&DataType::Float16, &[], &["1e6"]);
    }

    #[test]
    fn times_have_an_offset_and_lose_nothing() {
        let never = [
            "",
            "yesterday",
            "2026-01-02",
            "2026-01-02T03:04:05",
            "2026-01-02 03:04:05Z",
            "5",
            "2026-01-02t03:04:05z",
            "2026-01-02T03:04Z",
            "2026-02-30T03:04:05Z",
            "2026-1-2T03:04:05Z",
            "2026-12-31T23:59:60Z",
            "2026-01-02T03:04:05.Z",
            "2026-01-02T03:04:05+01",
            "+5",
        ];
        for zone in [None, Some("UTC".into())] {
            let micro = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
            let right = ["2026-01-02T03:04:05.5Z", "2026-01-02T03:04:05.000001+05:30"];
            judged(&micro, &right, &never);
            judged(&micro, &[], &["2026-01-02T03:04:05.0000001Z"]);
            // Outside the years of RFC 3339, as records show it.
            judged(&micro, &["-9223372036854775808"], &[]);
            let second = DataType::Timestamp(TimeUnit::Second, zone);
            judged(
                &second,
                &["2026-01-02T03:04:05.000Z"],
                &["2026-01-02T03:04:05.5Z"],
            );
        }
        let dates = [
            "",
            "-",
            "2026-1-2",
            "2026-02-30",
            "20260102",
            "5",
            "2026-01-02 ",
        ];
        judged(&DataType::Date32, &["2026-01-02"], &dates);
        judged(
            &DataType::Date64,
            &["2026-01-02", "2026-01-02T00:00:00"],
            &dates,
        );
        let time = DataType::Time64(TimeUnit::Microsecond);
        let never = [
            "",
            "3:04:05",
            "03:04:05 AM",
            "25:00:00",
            "03:04:05.0000001",
            "5",
        ];
        judged(
            &time,
            &["03:04:05", "03:04:05.5", "03:04:05.000001"],
            &never,
        );
    }

    #[test]
    fn bytes_truths_and_texts_are_read_by_the_type_of_their_column() {
        judged(
            &DataType::Boolean,
            &["true", "false"],
            &["", "t", "1", "True", "maybe"],
        );
        judged(
            &DataType::Binary,
            &["AAE=", ""],
            &["A", "AAF=", "AAE", "_w=="],
        );
        judged(&DataType::FixedSizeBinary(2), &["AAE="], &["AAEC"]);
        judged(&DataType::LargeUtf8, &["", " x"], &[]);
        let dictionary = DataType::Dictionary(DataType::Int8.into(), DataType::Utf8.into());
        let tool = value(&dictionary, "tool").unwrap();
        assert_eq!(tool.data_type(), &DataType::Utf8);
        judged(&DataType::new_list(DataType::Int8, true), &[], &["[1]"]);
    }
}
