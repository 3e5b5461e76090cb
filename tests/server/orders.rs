//! Rows in the order of columns: every source is the sort of its own rows, page by page, whatever is merged.

use std::cmp::Ordering;

use freshet::table::StoresConfig;
use serde_json::Value;

use crate::fixtures::{Fixture, Kind, Shape, Spec};
use crate::mergers::Merger;
use crate::served::{Served, Tables};

async fn table() -> Fixture {
    let shape = Shape::keyed(Kind::Utf8)
        .with("ratio", Kind::Float64)
        .with("role", Kind::Role(5))
        .with("tags", Kind::Tags);
    let mut t = Fixture::create(Spec {
        shape,
        shards: 2,
        rows_per_file: 9,
        base: (0..60).map(|k| (k, (k as i64 * 7) % 9 - 1)).collect(),
        ..Default::default()
    })
    .await;
    for round in 0..4u64 {
        let rows: Vec<_> = (0..9)
            .map(|k| (round * 5 + k * 7, (round * k) as i64 % 7 - 1))
            .collect();
        t.put(&rows).await;
        t.delete(&[round + 3, 80 + round]).await;
        t.flush().await;
    }
    t
}

/// Nulls last, of floats NaN last before them and both zeros alike; records show NaN as a text.
fn compare(a: &Value, b: &Value, descending: bool) -> Ordering {
    let (none, nothing) = (a.is_null(), b.is_null());
    if none || nothing {
        return none.cmp(&nothing);
    }
    let order = match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.partial_cmp(&b).unwrap(),
        (None, None) => a.as_str().cmp(&b.as_str()),
        (number, _) => match number {
            Some(_) => Ordering::Less,
            None => Ordering::Greater,
        },
    };
    if descending { order.reverse() } else { order }
}

fn sorted(mut rows: Vec<Value>, order: &str) -> Vec<Value> {
    rows.sort_by(|a, b| {
        let mut columns = order
            .split(',')
            .map(|column| match column.strip_prefix('-') {
                Some(column) => compare(&a[column], &b[column], true),
                None => compare(&a[column], &b[column], false),
            });
        columns.find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    });
    rows
}

async fn check(t: &Fixture) {
    let tables = Tables::new(StoresConfig::default()).with_table("sorted", &t.uri);
    let served = Served::new(tables).await;
    for source in ["fragments", "wal", "all"] {
        let more = format!("?source={source}&limit=1000");
        let whole = served.records("sorted", &more).await.records();
        for order in [
            "episode",
            "-episode",
            "value",
            "-value",
            "ratio",
            "-ratio",
            "role,-value",
            "-role,episode",
            "value,ratio,role,episode",
        ] {
            let want = sorted(whole.clone(), order);
            let mut found = vec![];
            loop {
                let page = format!(
                    "?source={source}&order={order}&limit=11&offset={}",
                    found.len()
                );
                let page = served.records("sorted", &page).await;
                found.extend(page.records());
                if page.json()["has_more"] == false {
                    break;
                }
            }
            assert_eq!(found, want, "{source} {order}");
        }
        let few = format!(
            "?source={source}&limit=1000&order=-value&where=value%3E2&columns=episode,value"
        );
        let few = served.records("sorted", &few).await.records();
        let want: Vec<_> = sorted(whole, "-value")
            .into_iter()
            .filter(|r| r["value"].as_i64().is_some_and(|v| v > 2))
            .map(|r| serde_json::json!({"episode": r["episode"], "value": r["value"]}))
            .collect();
        assert_eq!(few, want, "{source}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_source_is_in_the_order_of_its_columns_before_and_after_merges() {
    let t = table().await;
    check(&t).await;
    let mut merger = Merger::open(&t.uri).await;
    merger.try_merge(3).await.unwrap();
    check(&t).await;
    merger.merge_all(9).await;
    check(&t).await;
}

#[tokio::test]
async fn what_has_no_order_and_what_lies_too_deep_is_refused_by_name() {
    let t = table().await;
    let tables = Tables::new(StoresConfig::default()).with_table("sorted", &t.uri);
    let served = Served::new(tables).await;
    for (query, parameter) in [
        ("order=tags", "order"),
        ("order=nothing", "nothing"),
        ("order=value&offset=99990", "offset"),
        ("order=value&offset=18446744073709551615", "offset"),
    ] {
        let answer = served.records("sorted", &format!("?{query}")).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (400, "invalid-parameter"),
            "{answer:?}"
        );
        assert_eq!(answer.json()["parameter"], parameter);
    }
}
