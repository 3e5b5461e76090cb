//! Point reads, exact values and chosen columns are what the pages say.
//!
//! Lives here: `closer`, which looks at every source in the midst of any operations, and the cases that need a table of
//! their own. May use: the fixtures, the reader under test. Never: Lance's own view.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::DataType;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use freshet::table::{Ask, KeyText, Point, ReadError, ReadLimits, Reader, Source, Table};

use crate::fixtures::{Fixture, Kind, Shape, Spec, canonical};
use crate::ledger::{Ledger, lines};
use crate::mergers::Merger;
use crate::recorded::Recorded;
use crate::sources::open;

fn text(column: &ArrayRef, row: usize) -> String {
    match column.data_type() {
        DataType::Binary => STANDARD.encode(column.as_binary::<i32>().value(row)),
        DataType::LargeBinary => STANDARD.encode(column.as_binary::<i64>().value(row)),
        _ => {
            let options = FormatOptions::new();
            let shown = ArrayFormatter::try_new(column, &options).unwrap();
            shown.value(row).to_string()
        }
    }
}

/// The key of some rows as a caller writes it.
fn key(columns: &[ArrayRef], row: usize) -> KeyText {
    KeyText::Columns(columns.iter().map(|c| text(c, row)).collect())
}

async fn got(reader: &Reader, table: &Table, source: Source, key: &KeyText) -> Option<String> {
    match reader.get(table, source, key, None).await.unwrap() {
        Point::Row(page) => Some(lines(&page).concat()),
        Point::Deleted { .. } | Point::Missing => None,
    }
}

/// Points, values and columns of every source; the sources themselves are checked against the model.
pub async fn closer(reader: &Reader, table: &Table, shape: &Shape) {
    for source in Source::ALL {
        points(reader, table, source, shape).await;
        values(reader, table, source, 40).await;
    }
}

/// Every row of a source is found by its key, as the source shows it; and no key is found that it does not show.
async fn points(reader: &Reader, table: &Table, source: Source, shape: &Shape) {
    if shape.keys.is_empty() {
        return;
    }
    let whole = reader.page(table, source, 1 << 20, 0).await.unwrap();
    let mut shown = std::collections::BTreeMap::new();
    for batch in &whole.batches {
        let columns: Vec<ArrayRef> = batch.columns()[..shape.keys.len()].to_vec();
        for (row, line) in canonical(batch).into_iter().enumerate() {
            shown.insert(
                format!("{:?}", key(&columns, row)),
                (key(&columns, row), line),
            );
        }
    }
    for (key, line) in shown.values().step_by(shown.len() / 8 + 1) {
        let found = got(reader, table, source, key).await;
        assert_eq!(found.as_ref(), Some(line), "{source:?} {key:?}");
    }
    let numbers: Vec<u64> = (0..shape.limit().min(150)).step_by(11).collect();
    let columns = shape.key_columns(&numbers);
    for row in 0..numbers.len() {
        let key = key(&columns, row);
        let found = got(reader, table, source, &key).await;
        let want = shown.get(&format!("{key:?}")).map(|(_, line)| line);
        assert_eq!(found.as_ref(), want, "{source:?} {key:?}");
    }
}

fn values_of(batch: &RecordBatch) -> Vec<Option<i64>> {
    let column = batch.column_by_name("value").unwrap();
    column.as_primitive::<Int64Type>().iter().collect()
}

/// The rows with one value, page by page and counted, are those of the whole source, in its order; and so is one column.
async fn values(reader: &Reader, table: &Table, source: Source, limit: usize) {
    let whole = reader.page(table, source, 1 << 20, 0).await.unwrap();
    let all: Vec<(Option<i64>, String)> = whole
        .batches
        .iter()
        .flat_map(|b| values_of(b).into_iter().zip(canonical(b)))
        .collect();
    let middle = all.get(all.len() / 2).and_then(|r| r.0);
    for value in [middle.unwrap_or(0), 0, 987_654] {
        let want: Vec<&String> = all
            .iter()
            .filter(|r| r.0 == Some(value))
            .map(|r| &r.1)
            .collect();
        let exact = vec![("value".to_string(), value.to_string())];
        let mut found = vec![];
        loop {
            let ask = Ask {
                source,
                limit,
                offset: found.len() as u64,
                exact: exact.clone(),
                ..Default::default()
            };
            let page = reader.read(table, &ask).await.unwrap();
            found.extend(lines(&page));
            assert!(found.len() <= want.len());
            if !page.has_more {
                break;
            }
        }
        assert_eq!(found.iter().collect::<Vec<_>>(), want, "{source:?} {value}");
        let ask = Ask {
            source,
            exact,
            ..Default::default()
        };
        let count = reader.count_of(table, &ask).await.unwrap();
        assert_eq!(count.rows, want.len() as u64, "{source:?} {value}");
    }
    let ask = Ask {
        source,
        limit: 1 << 20,
        columns: Some(vec!["value".into()]),
        ..Default::default()
    };
    let page = reader.read(table, &ask).await.unwrap();
    let narrow: Vec<_> = page.batches.iter().flat_map(values_of).collect();
    assert!(page.batches.iter().all(|b| b.num_columns() == 1));
    assert_eq!(narrow, all.iter().map(|r| r.0).collect::<Vec<_>>());
}

async fn pending() -> (Fixture, Ledger) {
    let mut t = Fixture::create(Spec {
        shape: Shape::keyed(Kind::Int64).with("role", Kind::Role(3)),
        base: (0..100).map(|k| (k, 0)).collect(),
        rows_per_file: 17,
        ..Default::default()
    })
    .await;
    let mut ledger = Ledger::default();
    ledger.put(&mut t, &[(1, 7), (500, 7)]).await;
    ledger.flush(&mut t).await;
    ledger.delete(&mut t, &[1, 2]).await;
    ledger.flush(&mut t).await;
    ledger.put(&mut t, &[(3, 9)]).await;
    ledger.flush(&mut t).await;
    (t, ledger)
}

/// The key of a number of the fixture, whose integer keys begin below 0.
fn number(key: i64) -> KeyText {
    KeyText::Plain((key - 50).to_string())
}

#[tokio::test]
async fn a_key_that_a_pending_generation_deletes_is_told_with_that_generation() {
    let (t, _) = pending().await;
    let (table, reader) = (open(&t).await, Reader::new(ReadLimits::default()));
    for source in [Source::Wal, Source::All] {
        for key in [1, 2] {
            let point = reader.get(&table, source, &number(key), None).await;
            let Point::Deleted { generation, .. } = point.unwrap() else {
                panic!("{source:?} {key} is deleted");
            };
            assert_eq!(generation, 2);
        }
    }
    let base = got(&reader, &table, Source::Fragments, &number(2)).await;
    assert!(base.is_some(), "the base still shows it");
}

#[tokio::test]
async fn a_warm_point_read_of_a_pending_key_asks_for_its_own_generation_only() {
    let (t, _) = pending().await;
    let recorded = Recorded::default();
    let stores = freshet::table::Stores::new(freshet::table::StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    });
    let location = freshet::table::Location::new(&t.uri);
    let table = Table::open(&stores, &location).await.unwrap();
    let reader = Reader::new(ReadLimits::default());
    got(&reader, &table, Source::All, &number(500)).await;
    recorded.taken();
    assert!(
        got(&reader, &table, Source::All, &number(500))
            .await
            .is_some()
    );
    let asked = recorded.taken();
    let generations: std::collections::BTreeSet<_> = asked
        .iter()
        .filter_map(|a| {
            a.split_once("_gen_")
                .map(|(_, rest)| rest.split('/').next())
        })
        .collect();
    assert_eq!(generations.len(), 1, "{asked:#?}");
    assert!(
        !asked
            .iter()
            .any(|a| !a.contains("_mem_wal") && a.contains("/data/"))
    );
}

#[tokio::test]
async fn a_key_or_a_value_of_another_type_is_refused_by_name() {
    let (t, _) = pending().await;
    let (table, reader) = (open(&t).await, Reader::new(ReadLimits::default()));
    for key in [
        KeyText::Plain("x".into()),
        KeyText::Plain("1.5".into()),
        KeyText::Columns(vec![]),
        KeyText::Columns(vec!["1".into(), "2".into()]),
    ] {
        let e = reader
            .get(&table, Source::All, &key, None)
            .await
            .unwrap_err();
        assert_eq!(e.reason(), "BadKey", "{e}");
        assert!(e.to_string().contains("episode"), "{e}");
    }
    let with = |column: &str, text: &str| Ask {
        limit: 5,
        exact: vec![(column.into(), text.into())],
        ..Default::default()
    };
    let e = reader.read(&table, &with("nobody", "1")).await.unwrap_err();
    assert_eq!(e.reason(), "UnknownColumn");
    assert!(e.to_string().contains("episode, value, role"), "{e}");
    let e = reader
        .read(&table, &with("value", "many"))
        .await
        .unwrap_err();
    assert_eq!(e.reason(), "BadValue");
    let bag = Fixture::create(Spec {
        shape: Shape::append_only(),
        ..Default::default()
    })
    .await;
    let table = open(&bag).await;
    let e = reader.get(&table, Source::All, &number(1), None).await;
    let Err(e @ ReadError::BadKey { .. }) = e else {
        panic!("a table without a key has no points");
    };
    assert!(e.to_string().contains("no key"), "{e}");
}

#[tokio::test]
async fn a_dictionary_column_is_compared_by_its_values_before_and_after_a_merge() {
    let (t, _) = pending().await;
    let (table, reader) = (open(&t).await, Reader::new(ReadLimits::default()));
    let whole = reader.page(&table, Source::All, 1000, 0).await.unwrap();
    let mut roles = std::collections::BTreeMap::new();
    for batch in &whole.batches {
        let column = batch.column_by_name("role").unwrap();
        for row in (0..batch.num_rows()).filter(|r| column.is_valid(*r)) {
            *roles.entry(text(column, row)).or_insert(0u64) += 1;
        }
    }
    assert!(roles.len() > 1, "{roles:?}");
    let check = async || {
        for (role, rows) in &roles {
            let ask = Ask {
                source: Source::All,
                exact: vec![("role".to_string(), role.clone())],
                ..Default::default()
            };
            let count = reader.count_of(&table, &ask).await.unwrap();
            assert_eq!(count.rows, *rows, "{role}");
        }
    };
    check().await;
    Merger::open(&t.uri).await.merge_all(8).await;
    check().await;
}

#[tokio::test]
async fn a_filtered_page_near_the_start_opens_no_generation() {
    let (t, _) = pending().await;
    let recorded = Recorded::default();
    let stores = freshet::table::Stores::new(freshet::table::StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    });
    let location = freshet::table::Location::new(&t.uri);
    let table = Table::open(&stores, &location).await.unwrap();
    let reader = Reader::new(ReadLimits::default());
    let ask = Ask {
        source: Source::All,
        limit: 5,
        exact: vec![("value".into(), "0".into())],
        ..Default::default()
    };
    reader.read(&table, &ask).await.unwrap();
    recorded.taken();
    let page = reader.read(&table, &ask).await.unwrap();
    assert!(page.has_more);
    let asked = recorded.taken();
    assert!(!asked.iter().any(|a| a.contains("_gen_")), "{asked:#?}");
}

#[tokio::test]
async fn a_digest_is_that_of_what_was_seen_and_not_of_when() {
    let (mut t, mut ledger) = pending().await;
    let (table, reader) = (open(&t).await, Reader::new(ReadLimits::default()));
    let look = async || {
        let mut digests = vec![];
        for source in Source::ALL {
            let id = reader.snapshot(&table, source).await.unwrap();
            let page = reader.page(&table, source, 1, 0).await.unwrap();
            assert_eq!(page.snapshot.digest, id.digest, "{source:?}");
            digests.push(id.digest);
        }
        digests
    };
    let first = look().await;
    assert_eq!(look().await, first);
    assert_ne!(first[0], first[2]);
    ledger.put(&mut t, &[(4, 4)]).await;
    ledger.flush(&mut t).await;
    let flushed = look().await;
    assert_eq!(flushed[0], first[0], "a flush does not move the base");
    assert_ne!(flushed[2], first[2]);
    Merger::open(&t.uri).await.merge_all(8).await;
    let merged = look().await;
    assert_ne!(merged[0], flushed[0]);
    assert_ne!(merged[2], flushed[2]);
}
