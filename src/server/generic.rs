//! What lance-context's own client of 0.6.7 asks for of a table with columns of its user's own.
//!
//! Lives here: the routes of `GenericStore.connect(url, name)` in that client's forms: the schema as it declares one, rows as
//! objects without their nulls, whole numbers as numbers, timestamps as microseconds, single floats as the doubles that they
//! are. They answer from `all`, its own semantics; `filter` is a condition as everywhere. May use: the reader, what both
//! kinds of stores share (`rollouts`). Must never come in: a page beyond the bounds of every other, or a write.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, TimeUnit};
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::asked::{Asked, table};
use super::json::cell;
use super::problem::Problem;
use super::query::{columns, condition, number};
use super::records::{JSON, sent, written_aside};
use super::rollouts::{Answer, listed};
use super::routes::{told, without_credentials};
use super::serve::Shared;
use crate::table::{Ask, Column, Error, KeyText, Point, Source, Table};

/// The key of every such store.
const ID: &str = "id";

pub(super) async fn store(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    asked.no_parameters()?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    let (columns, snapshot) = shared.reader.columns(&table).await?;
    is_store(&columns)?;
    let declared = columns
        .iter()
        .filter_map(|c| Some(json!([c.name, spec(c)?])));
    Ok(told(&json!({
        "name": status.name,
        "uri": without_credentials(&status.uri),
        "version": snapshot.version,
        "schema": {"columns": declared.collect::<Vec<_>>()},
    }))?)
}

pub(super) async fn list(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    let mut ask = parse(asked.uri.query())?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    ask.columns = Some(small(&shared, &table).await?);
    let page = shared.reader.read(&table, &ask).await?;
    let limit = shared.reader.limits().page_bytes;
    listed("rows", page, limit, write).await
}

pub(super) async fn row(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    let wanted = wanted(asked.uri.query())?;
    let id = asked.named("rest").ok_or_else(Problem::no_route)?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    let columns = match wanted {
        Some(mut columns) => {
            columns.push(ID.into());
            columns
        }
        None => small(&shared, &table).await?,
    };
    let key = KeyText::Plain(id.into());
    let read = shared.reader.get(&table, Source::All, &key, Some(&columns));
    let page = match read.await? {
        Point::Row(page) => page,
        Point::Deleted { .. } | Point::Missing => return Err(Problem::no_record().into()),
    };
    let (body, memory) = written_aside(move || {
        let mut body = vec![];
        for batch in &page.batches {
            write(&mut body, batch)?;
        }
        Ok::<_, Error>((body, page.memory))
    })
    .await?;
    Ok(sent(body.into(), JSON, memory))
}

/// The columns that a list shows: not those that the store declares as large.
async fn small(shared: &Shared, table: &Table) -> Result<Vec<String>, Problem> {
    let (columns, _) = shared.reader.columns(table).await?;
    is_store(&columns)?;
    let shown = columns.into_iter().filter(|c| c.shown && !is_large(c));
    Ok(shown.map(|c| c.name).collect())
}

fn is_store(columns: &[Column]) -> Result<(), Problem> {
    let key: Vec<_> = columns.iter().filter(|c| c.key.is_some()).collect();
    match key.as_slice() {
        [id] if id.name == ID && is_text(&id.arrow) => Ok(()),
        _ => Err(Problem::new(
            StatusCode::NOT_FOUND,
            "no-generic-store",
            "The experiment is no generic store",
            "its table's key is not one column of text named id, which every GenericStore has; read it by /api/v1/experiments",
        )),
    }
}

fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8)
}

/// Payloads that the store declares to be read by themselves, and blobs, which no list of ours shows either.
fn is_large(column: &Column) -> bool {
    column.blob || column.large
}

/// A column as that client declares it; `None` where it could not have.
fn spec(column: &Column) -> Option<Value> {
    let mut spec = kind(&column.arrow, column.large)?;
    spec["nullable"] = column.nullable.into();
    Some(spec)
}

fn kind(of: &DataType, large: bool) -> Option<Value> {
    Some(match of {
        DataType::Utf8 => json!({"type": "string", "large": false}),
        DataType::LargeUtf8 => json!({"type": "string", "large": true}),
        DataType::Int32 => json!({"type": "int32"}),
        DataType::Int64 => json!({"type": "int64"}),
        DataType::Float32 => json!({"type": "float32"}),
        DataType::Float64 => json!({"type": "float64"}),
        DataType::Boolean => json!({"type": "bool"}),
        DataType::Timestamp(TimeUnit::Microsecond, _) => json!({"type": "timestamp"}),
        DataType::LargeBinary => json!({"type": "binary", "blob": large}),
        DataType::FixedSizeList(item, dim) if *item.data_type() == DataType::Float32 => {
            json!({"type": "vector", "dim": dim})
        }
        DataType::List(item) => {
            let item = kind(item.data_type(), false)?;
            json!({"type": "list", "item": item})
        }
        _ => return None,
    })
}

fn given(raw: Option<&str>, known: &[&str]) -> Result<Vec<(String, String)>, Problem> {
    let pairs = url::form_urlencoded::parse(raw.unwrap_or_default().as_bytes());
    let pairs: Vec<(String, String)> = pairs.into_owned().collect();
    for (at, (name, _)) in pairs.iter().enumerate() {
        let shown: String = name.chars().take(64).collect();
        if !known.contains(&name.as_str()) {
            let known = known.join(", ");
            return Err(Problem::parameter(
                &shown,
                format!("this parameter is not known; those of this route are {known}"),
            ));
        }
        if pairs[..at].iter().any(|(before, _)| before == name) {
            return Err(Problem::parameter(&shown, "this parameter is given twice"));
        }
    }
    Ok(pairs)
}

/// Without a limit that client means every row; the bound of a page's bytes holds all the same.
fn parse(raw: Option<&str>) -> Result<Ask, Problem> {
    let mut ask = Ask {
        source: Source::All,
        limit: usize::MAX,
        ..Default::default()
    };
    for (name, value) in given(raw, &["limit", "offset", "filter"])? {
        match name.as_str() {
            "limit" => ask.limit = number("limit", &value, 0, usize::MAX)?,
            "offset" => ask.offset = number("offset", &value, 0, u64::MAX)?,
            _ => ask.condition = Some(condition("filter", &value)?),
        }
    }
    Ok(ask)
}

fn wanted(raw: Option<&str>) -> Result<Option<Vec<String>>, Problem> {
    let given = given(raw, &["columns"])?;
    given.first().map(|(_, value)| columns(value)).transpose()
}

/// One row in that client's form.
fn write(out: &mut Vec<u8>, row: &RecordBatch) -> Result<(), Error> {
    let broken = |e: &dyn std::fmt::Display| Error::Bug(format!("a row cannot be written: {e}"));
    let (schema, mut between) = (row.schema(), b'{');
    for (field, column) in schema.fields().iter().zip(row.columns()) {
        if column.is_null(0) {
            continue;
        }
        out.push(std::mem::replace(&mut between, b','));
        serde_json::to_writer(&mut *out, field.name()).map_err(|e| broken(&e))?;
        out.push(b':');
        value(out, column, 0).map_err(|e| broken(&e))?;
    }
    if between == b'{' {
        out.push(b'{');
    }
    out.push(b'}');
    Ok(())
}

fn value(out: &mut Vec<u8>, of: &ArrayRef, row: usize) -> Result<(), arrow_schema::ArrowError> {
    if of.is_null(row) {
        out.extend(b"null");
        return Ok(());
    }
    match of.data_type() {
        DataType::Int32 => digits(out, of.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => digits(out, of.as_primitive::<Int64Type>().value(row)),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            digits(
                out,
                of.as_primitive::<TimestampMicrosecondType>().value(row),
            );
        }
        DataType::Float32 => double(out, of.as_primitive::<Float32Type>().value(row).into()),
        DataType::Float64 => double(out, of.as_primitive::<Float64Type>().value(row)),
        DataType::List(_) => values(out, &of.as_list::<i32>().value(row))?,
        DataType::FixedSizeList(..) => values(out, &of.as_fixed_size_list().value(row))?,
        _ => cell(out, of.as_ref(), row)?,
    }
    Ok(())
}

fn values(out: &mut Vec<u8>, of: &ArrayRef) -> Result<(), arrow_schema::ArrowError> {
    out.push(b'[');
    for row in 0..of.len() {
        if row > 0 {
            out.push(b',');
        }
        value(out, of, row)?;
    }
    out.push(b']');
    Ok(())
}

fn digits(out: &mut Vec<u8>, n: i64) {
    out.extend(n.to_string().bytes());
}

/// What is no number has no form in JSON there.
fn double(out: &mut Vec<u8>, f: f64) {
    match f.is_finite() {
        true => out.extend(format!("{f:?}").bytes()),
        false => out.extend(b"null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Float32Array, Int64Array, StringArray, TimestampMicrosecondArray};

    #[test]
    fn numbers_and_times_have_that_clients_forms_and_nulls_are_left_out() {
        let row = RecordBatch::try_from_iter([
            ("id", Arc::new(StringArray::from(vec!["a"])) as ArrayRef),
            ("n", Arc::new(Int64Array::from(vec![(1 << 60) + 1]))),
            ("none", Arc::new(Int64Array::from(vec![None]))),
            ("g", Arc::new(Float32Array::from(vec![0.1]))),
            ("t", Arc::new(TimestampMicrosecondArray::from(vec![-5]))),
        ])
        .unwrap();
        let mut out = vec![];
        write(&mut out, &row).unwrap();
        let told = String::from_utf8(out).unwrap();
        assert_eq!(
            told,
            r#"{"id":"a","n":1152921504606846977,"g":0.10000000149011612,"t":-5}"#
        );
    }

    #[test]
    fn what_is_given_twice_or_is_not_known_is_refused_by_name() {
        for (raw, name) in [
            ("limit=1&limit=1", "limit"),
            ("filter=", "filter"),
            ("where=a", "where"),
        ] {
            let told = format!("{:?}", parse(Some(raw)).unwrap_err());
            assert!(told.contains(&format!("String(\"{name}\")")), "{told}");
        }
        assert!(wanted(Some("columns=a,,b")).is_err());
        assert!(wanted(Some("columns=a&columns=b")).is_err());
        assert_eq!(wanted(None).unwrap(), None);
    }
}
