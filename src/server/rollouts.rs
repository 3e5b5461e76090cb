//! What lance-context's own client of 0.6.7 asks for.
//!
//! Lives here: the routes of `RolloutStore.connect(url, name)`, in that client's forms: nulls left out, `metadata` as the
//! object that its text holds, errors with an `error` member beside the problem's own. They answer from `all`, its own
//! semantics. May use: the reader. Must never come in: a page beyond the bounds of every other, or a write.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::RecordBatch;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use serde_json::value::RawValue;

use super::asked::{Asked, table};
use super::json::cell;
use super::members::{Members, scalar};
use super::point::{BYTES, no_payload};
use super::problem::Problem;
use super::query::number;
use super::records::{JSON, sent, written_aside};
use super::routes::{told, without_credentials};
use super::serve::Shared;
use crate::table::{Ask, Error, KeyText, Page, Payload, Point, ReadError, Source, Table};

pub(super) type Answer = Result<Response, Told>;

/// A problem as that client reads it.
pub(super) struct Told(Problem);

impl<E: Into<Problem>> From<E> for Told {
    fn from(e: E) -> Self {
        Self(e.into())
    }
}

impl IntoResponse for Told {
    fn into_response(self) -> Response {
        self.0.with_error().into_response()
    }
}

/// The column of a rollout's payload.
const PAYLOAD: &str = "binary_payload";

pub(super) async fn store(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    asked.no_parameters()?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    let snapshot = shared.reader.snapshot(&table, Source::Fragments).await?;
    let uri = without_credentials(&status.uri);
    Ok(told(
        &json!({"name": status.name, "uri": uri, "version": snapshot.version}),
    )?)
}

pub(super) async fn list(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    let mut ask = parse(asked.uri.query())?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    ask.columns = Some(all_but_the_payload(&shared, &table).await?);
    let page = shared.reader.read(&table, &ask).await?;
    let limit = shared.reader.limits().page_bytes;
    listed("records", page, limit, write).await
}

/// Rows in one of that client's forms, as the one member of an object.
pub(super) async fn listed(
    member: &'static str,
    page: Page,
    limit: u64,
    write: fn(&mut Vec<u8>, &RecordBatch) -> Result<(), Error>,
) -> Answer {
    let (body, memory) = written_aside(move || {
        let mut body = format!("{{\"{member}\":[").into_bytes();
        let mut between = None;
        // Each batch is given back once it is written.
        for batch in page.batches {
            for row in rows(&batch) {
                body.extend(between.replace(b','));
                write(&mut body, &row)?;
                // There is no bound on the rows, and a truth of one bit has a name of any length.
                if body.len() as u64 > limit {
                    return Err(ReadError::PageTooLarge { limit });
                }
            }
        }
        body.extend(b"]}");
        Ok((body, page.memory))
    })
    .await?;
    Ok(sent(body.into(), JSON, memory))
}

/// A record, or its payload where the path ends so. That client does not escape the slashes of an id: one that ends in
/// `/blob` is a record's where no record has the rest of it, or where its slash is escaped.
pub(super) async fn record(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    asked.no_parameters()?;
    let rest = asked.named("rest").ok_or_else(Problem::no_route)?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    let of = rest.strip_suffix("/blob");
    let of = of.filter(|_| asked.uri.path().ends_with("/blob"));
    if let Some(id) = of {
        let key = KeyText::Plain(id.into());
        let read = shared.reader.payload(&table, Source::All, &key, PAYLOAD);
        match read.await? {
            Payload::Bytes(bytes, _, memory) => return Ok(sent(bytes, BYTES, memory)),
            Payload::Null => return Err(no_payload().into()),
            Payload::Deleted(..) | Payload::Missing => {}
        }
    }
    let key = KeyText::Plain(rest.into());
    let columns = all_but_the_payload(&shared, &table).await?;
    let read = shared.reader.get(&table, Source::All, &key, Some(&columns));
    let page = match read.await? {
        Point::Row(page) => page,
        // What was asked for is a payload.
        Point::Deleted { .. } | Point::Missing if of.is_some() => {
            return Err(Problem::no_record().into());
        }
        Point::Deleted { .. } | Point::Missing => {
            return Ok(told(&json!({ "record": null }))?);
        }
    };
    let (body, memory) = written_aside(move || {
        let mut body = b"{\"record\":".to_vec();
        for row in page.batches.iter().flat_map(rows) {
            write(&mut body, &row)?;
        }
        body.push(b'}');
        Ok::<_, Error>((body, page.memory))
    })
    .await?;
    Ok(sent(body.into(), JSON, memory))
}

/// A record shows no payload: the client asks for it by the record's id.
async fn all_but_the_payload(shared: &Shared, table: &Table) -> Result<Vec<String>, ReadError> {
    let (columns, _) = shared.reader.columns(table).await?;
    let shown = columns.into_iter().filter(|c| c.shown && c.name != PAYLOAD);
    Ok(shown.map(|c| c.name).collect())
}

/// Without a limit that client means every record; the bound of a page's bytes holds all the same.
fn parse(raw: Option<&str>) -> Result<Ask, Problem> {
    let mut ask = Ask {
        source: Source::All,
        limit: usize::MAX,
        ..Default::default()
    };
    let mut seen = HashSet::new();
    for (name, value) in url::form_urlencoded::parse(raw.unwrap_or_default().as_bytes()) {
        if !seen.insert(name.to_string()) {
            let name: String = name.chars().take(64).collect();
            return Err(Problem::parameter(&name, "this parameter is given twice"));
        }
        match name.as_ref() {
            "limit" => ask.limit = number("limit", &value, 0, usize::MAX)?,
            "offset" => ask.offset = number("offset", &value, 0, u64::MAX)?,
            "filters" => ask.exact = filters(&value)?,
            other => {
                let other: String = other.chars().take(64).collect();
                return Err(Problem::parameter(
                    &other,
                    "this parameter is not known; those of this route are limit, offset, filters",
                ));
            }
        }
    }
    Ok(ask)
}

fn filters(value: &str) -> Result<Vec<(String, String)>, Problem> {
    let wrong = || {
        Problem::parameter(
            "filters",
            "filters is a JSON object of columns, each once, with strings, numbers or booleans",
        )
    };
    let members: Members = serde_json::from_str(value).map_err(|_| wrong())?;
    let mut seen = HashSet::new();
    let texts = members.0.into_iter().map(|(column, value)| {
        if !seen.insert(column.clone()) {
            return Err(wrong());
        }
        match scalar(&value) {
            Some(text) => Ok((column, text)),
            None => Err(wrong()),
        }
    });
    texts.collect()
}

fn rows(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> + '_ {
    (0..batch.num_rows()).map(|row| batch.slice(row, 1))
}

/// One row in that client's form.
fn write(out: &mut Vec<u8>, row: &RecordBatch) -> Result<(), Error> {
    let broken = |e: &dyn std::fmt::Display| Error::Bug(format!("a row cannot be written: {e}"));
    let (schema, mut between) = (row.schema(), b'{');
    for (field, column) in schema.fields().iter().zip(row.columns()) {
        let mut text = vec![];
        cell(&mut text, column.as_ref(), 0).map_err(|e| broken(&e))?;
        let quoted = text.starts_with(b"\"");
        let of = column.data_type();
        // A float that is no number has no form there.
        if text == b"null" || quoted && of.is_floating() {
            continue;
        }
        // That client takes whole numbers of any size as numbers.
        if quoted && of.is_integer() {
            text.retain(|b| *b != b'"');
        }
        if quoted && field.name() == "metadata" {
            text = unquoted(text);
        }
        out.push(std::mem::replace(&mut between, b','));
        serde_json::to_writer(&mut *out, field.name()).map_err(|e| broken(&e))?;
        out.push(b':');
        out.extend(text);
    }
    if between == b'{' {
        out.push(b'{');
    }
    out.push(b'}');
    Ok(())
}

/// A JSON string as the JSON that it holds, as it stands there: no number in it loses a digit. Where it holds none, the
/// string.
fn unquoted(text: Vec<u8>) -> Vec<u8> {
    let held = serde_json::from_slice::<String>(&text);
    let json = held.ok().and_then(|held| RawValue::from_string(held).ok());
    json.map_or(text, |json| json.get().as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Decimal128Array, Float64Array, Int64Array};
    use serde_json::Value;

    fn written(row: &RecordBatch) -> String {
        let mut out = vec![];
        write(&mut out, row).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_in_metadata_keep_every_digit_and_what_is_no_json_stays_a_text() {
        let all = r#"{"seed": 123456789012345678901234567890, "rate": 0.10000000000000000000001, "a": [1.50]}"#;
        for (text, want) in [
            (all, all.to_string()),
            ("{\"a\":", json!("{\"a\":").to_string()),
            ("plain", json!("plain").to_string()),
            (" [1e400] ", "[1e400]".to_string()),
        ] {
            let texts: ArrayRef = Arc::new(arrow_array::StringArray::from(vec![text]));
            let row = RecordBatch::try_from_iter([("metadata", texts)]).unwrap();
            let told = written(&row);
            assert_eq!(told, format!("{{\"metadata\":{want}}}"));
        }
    }

    #[test]
    fn numbers_in_filters_keep_every_digit() {
        let filters = filters(r#"{"a": 12345678901234567890.10, "b": "x\u00e9", "c": true}"#);
        let want = [
            ("a", "12345678901234567890.10"),
            ("b", "x\u{e9}"),
            ("c", "true"),
        ];
        assert_eq!(
            filters.unwrap(),
            want.map(|(column, text)| (column.to_string(), text.to_string()))
        );
    }

    #[test]
    fn what_is_given_twice_or_is_no_scalar_is_refused_by_name() {
        for (raw, name) in [
            ("limit=1&limit=1", "limit"),
            ("offset=1&limit=2&offset=1", "offset"),
            ("filters={}&filters={}", "filters"),
            ("filters={\"a\":1,\"a\":1}", "filters"),
            ("filters={\"a\":null}", "filters"),
            ("filters={\"a\":[1]}", "filters"),
            ("filters=[]", "filters"),
            ("other=1&other=2", "other"),
        ] {
            let told = format!("{:?}", parse(Some(raw)).unwrap_err());
            assert!(
                told.contains(&format!("\"parameter\": String(\"{name}\")")),
                "{raw}: {told}"
            );
        }
        assert!(parse(Some("limit=1&offset=2&filters={}")).is_ok());
    }

    #[test]
    fn whole_numbers_of_any_size_and_decimals_are_kept_and_what_is_no_number_is_left_out() {
        let money = Decimal128Array::from(vec![1234]).with_precision_and_scale(10, 2);
        let row = RecordBatch::try_from_iter([
            (
                "seed",
                Arc::new(Int64Array::from(vec![(1 << 60) + 1])) as ArrayRef,
            ),
            ("cost", Arc::new(money.unwrap()) as ArrayRef),
            (
                "loss",
                Arc::new(Float64Array::from(vec![f64::NAN])) as ArrayRef,
            ),
        ])
        .unwrap();
        let own: Value = serde_json::from_str(&written(&row)).unwrap();
        assert_eq!(
            own,
            json!({"seed": 1152921504606846977u64, "cost": "12.34"})
        );
    }
}
