//! What lance-context's own client of 0.6.7 asks for.
//!
//! Lives here: the routes of `RolloutStore.connect(url, name)`, in that client's forms: nulls left out, `metadata` as the
//! object that its text holds, errors with an `error` member beside the problem's own. They answer from `all`, its own
//! semantics. May use: the reader. Must never come in: a page beyond the bounds of every other, or a write.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::DataType;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Number, Value, json};

use super::asked::{Asked, table};
use super::point::no_payload;
use super::problem::Problem;
use super::query::number;
use super::records::{JSON, sent};
use super::routes::{told, without_credentials};
use super::serve::Shared;
use crate::table::{Ask, Error, KeyText, Payload, Point, ReadError, Source, Table};

type Answer = Result<Response, Told>;

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
    let mut body = b"{\"records\":[".to_vec();
    for (at, row) in rows(&page.batches).enumerate() {
        if at > 0 {
            body.push(b',');
        }
        body.extend(written(&row)?);
    }
    body.extend(b"]}");
    Ok(sent(body.into(), JSON, page.memory))
}

/// A record, or its payload where the path ends so: that client does not escape the slashes of an id.
pub(super) async fn record(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    asked.no_parameters()?;
    let rest = asked.named("rest").ok_or_else(Problem::no_route)?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    if let Some(id) = rest.strip_suffix("/blob") {
        let key = KeyText::Plain(id.into());
        let read = shared.reader.payload(&table, Source::All, &key, PAYLOAD);
        return match read.await? {
            Payload::Bytes(bytes, _, memory) => Ok(sent(bytes, "application/octet-stream", memory)),
            Payload::Null => Err(no_payload().into()),
            Payload::Deleted(..) | Payload::Missing => Err(Problem::no_record().into()),
        };
    }
    let key = KeyText::Plain(rest.into());
    let columns = all_but_the_payload(&shared, &table).await?;
    let mut body = b"{\"record\":".to_vec();
    let read = shared.reader.get(&table, Source::All, &key, Some(&columns));
    let memory = match read.await? {
        Point::Row(page) => {
            for row in rows(&page.batches) {
                body.extend(written(&row)?);
            }
            page.memory
        }
        Point::Deleted { .. } | Point::Missing => {
            body.extend(b"null");
            Default::default()
        }
    };
    body.push(b'}');
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
    for (name, value) in url::form_urlencoded::parse(raw.unwrap_or_default().as_bytes()) {
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
            "filters is a JSON object of columns with strings, numbers or booleans",
        )
    };
    let all: Map<String, Value> = serde_json::from_str(value).map_err(|_| wrong())?;
    let texts = all.into_iter().map(|(column, value)| match value {
        Value::String(text) => Ok((column, text)),
        Value::Number(number) => Ok((column, number.to_string())),
        Value::Bool(truth) => Ok((column, truth.to_string())),
        _ => Err(wrong()),
    });
    texts.collect()
}

fn rows(batches: &[RecordBatch]) -> impl Iterator<Item = RecordBatch> + '_ {
    batches
        .iter()
        .flat_map(|b| (0..b.num_rows()).map(|row| b.slice(row, 1)))
}

/// One row in that client's form.
fn written(row: &RecordBatch) -> Result<Vec<u8>, ReadError> {
    let broken = |e: &dyn std::fmt::Display| Error::Bug(format!("a row cannot be written: {e}"));
    let mut text = vec![];
    super::json::rows(&mut text, std::slice::from_ref(row)).map_err(|e| broken(&e))?;
    let mut own: Map<String, Value> = serde_json::from_slice(&text).map_err(|e| broken(&e))?;
    let of = |name: &str, kind: fn(&DataType) -> bool| {
        let field = row.schema().field_with_name(name).cloned();
        field.is_ok_and(|f| kind(f.data_type()))
    };
    for (name, value) in &mut own {
        // That client takes whole numbers of any size as numbers.
        if of(name, DataType::is_integer)
            && let Some(number) = value.as_str().and_then(|t| t.parse::<Number>().ok())
        {
            *value = Value::Number(number);
        }
    }
    // A float that is no number has no form there.
    own.retain(|name, value| {
        !(value.is_null() || value.is_string() && of(name, DataType::is_floating))
    });
    if let Some(Value::String(text)) = own.get("metadata")
        && let Ok(parsed) = serde_json::from_str::<Value>(text)
    {
        own.insert("metadata".into(), parsed);
    }
    serde_json::to_vec(&own).map_err(|e| broken(&e).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Decimal128Array, Float64Array, Int64Array};

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
        let text = String::from_utf8(written(&row).unwrap()).unwrap();
        let own: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            own,
            json!({"seed": 1152921504606846977u64, "cost": "12.34"})
        );
    }
}
