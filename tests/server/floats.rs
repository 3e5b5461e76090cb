//! Floats are found by one rule in the base, by its indexes, and in generations.
//!
//! Lives here: that 0 and -0 are the same and NaN is found by NaN, before a merge, after it, and with an index. May use:
//! the fixtures, the reader under test. Never: Lance's own view.

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use freshet::table::{Ask, ReadLimits, Reader, Source, Table};
use lance_index::IndexType;

use crate::fixtures::{Fixture, Kind, Shape, Spec};
use crate::mergers::Merger;
use crate::sources::open;

const COLUMNS: [&str; 3] = ["loss", "score", "indexed"];

/// How each value is asked for, and which values it finds.
type Wanted = (&'static str, fn(f64) -> bool);
const WANTED: [Wanted; 6] = [
    ("0", |f| f == 0.0),
    ("0.0", |f| f == 0.0),
    ("-0.0", |f| f == 0.0),
    ("NaN", f64::is_nan),
    ("0.1", |f| (f - 0.1).abs() < 1e-6),
    ("Infinity", |_| false),
];

/// The values of a column, as a whole unfiltered page shows them.
async fn values(reader: &Reader, table: &Table, source: Source, column: &str) -> Vec<Option<f64>> {
    let whole = reader.page(table, source, 1 << 20, 0).await.unwrap();
    let mut out = vec![];
    for batch in &whole.batches {
        let column = batch.column_by_name(column).unwrap();
        let column = arrow_cast::cast(column, &arrow_schema::DataType::Float64).unwrap();
        out.extend(column.as_primitive::<Float64Type>().iter());
    }
    out
}

async fn look(reader: &Reader, table: &Table) {
    for source in Source::ALL {
        for column in COLUMNS {
            let all = values(reader, table, source, column).await;
            for (text, is) in WANTED {
                let want = all.iter().flatten().filter(|f| is(**f)).count() as u64;
                let ask = Ask {
                    source,
                    exact: vec![(column.to_string(), text.to_string())],
                    ..Default::default()
                };
                let count = reader.count_of(table, &ask).await.unwrap();
                assert_eq!(count.rows, want, "{source:?} {column} = {text}");
            }
        }
    }
}

#[tokio::test]
async fn zero_and_nan_are_found_alike_before_and_after_a_merge_and_by_an_index() {
    let mut t = Fixture::create(Spec {
        shape: Shape::keyed(Kind::Int64)
            .with("loss", Kind::Float32)
            .with("score", Kind::Float64)
            .with("indexed", Kind::Float64),
        rows_per_file: 30,
        ..Default::default()
    })
    .await;
    t.index("indexed", IndexType::BTree).await;
    for n in 0..3 {
        let rows: Vec<_> = (0..40).map(|k| (k * 5 + n, n as i64)).collect();
        t.put(&rows).await;
        t.flush().await;
    }
    let (table, reader) = (open(&t).await, Reader::new(ReadLimits::default()));
    let pending = values(&reader, &table, Source::Wal, "score").await;
    let bits: std::collections::BTreeSet<_> =
        pending.iter().flatten().map(|f| f.to_bits()).collect();
    assert_eq!(bits.len(), 5, "every float is pending");
    look(&reader, &table).await;
    Merger::open(&t.uri).await.merge_all(9).await;
    look(&reader, &table).await;
    Merger::open(&t.uri).await.optimize_indexes().await.unwrap();
    look(&reader, &table).await;
}
