//! Conditions in SQL: every source keeps the rows that the same question, asked of the rows outside Lance, keeps, before and
//! after they are merged, by an index and without; and what is refused, and how.

use freshet::table::StoresConfig;
use lance_index::IndexType;
use serde_json::Value;
use url::form_urlencoded::byte_serialize;

use crate::fixtures::{Fixture, Kind, Shape, Spec};
use crate::mergers::Merger;
use crate::recorded::Recorded;
use crate::served::{Answer, Served, Tables};

type Test = fn(&Value) -> bool;

/// Conditions, and what they mean of a row as records show it.
const CONDITIONS: [(&str, Test); 22] = [
    ("value > 3", |r| r["value"].as_i64().is_some_and(|v| v > 3)),
    ("value IS NULL", |r| r["value"].is_null()),
    ("NOT (value = 3)", |r| {
        r["value"].as_i64().is_some_and(|v| v != 3)
    }),
    ("value IS DISTINCT FROM 3", |r| {
        r["value"].as_i64() != Some(3)
    }),
    ("value BETWEEN 2 AND 4 AND episode <> 'key-0000007'", |r| {
        (2..=4).contains(&r["value"].as_i64().unwrap_or(-1)) && r["episode"] != "key-0000007"
    }),
    ("value IN (1, 5) OR value IS NULL", |r| {
        r["value"].as_i64().is_none_or(|v| v == 1 || v == 5)
    }),
    ("(value + 1) * 2 - value > 5", |r| {
        r["value"].as_i64().is_some_and(|v| (v + 1) * 2 - v > 5)
    }),
    ("value % 2 = 0", |r| {
        r["value"].as_i64().is_some_and(|v| v % 2 == 0)
    }),
    ("episode = 'key-0000012'", |r| r["episode"] == "key-0000012"),
    ("episode >= 'key-0000030'", |r| {
        text(&r["episode"]) >= "key-0000030"
    }),
    ("episode LIKE 'key-000000_'", |r| {
        let key = text(&r["episode"]);
        key.len() == 11 && key.starts_with("key-000000")
    }),
    ("episode ILIKE '%KEY%5'", |r| {
        text(&r["episode"]).contains("key") && text(&r["episode"]).ends_with('5')
    }),
    (r#"episode = 'it''s "quoted" — ünïcode'"#, |r| {
        text(&r["episode"]).starts_with("it's")
    }),
    ("regexp_like(episode, '^key-0+[1-3][0-9]$')", |r| {
        let end = text(&r["episode"])
            .trim_start_matches("key-")
            .trim_start_matches('0');
        end.len() == 2 && matches!(end.as_bytes()[0], b'1'..=b'3')
    }),
    (
        "length(episode) = 0 or starts_with(lower(episode), 'it')",
        |r| text(&r["episode"]).is_empty() || text(&r["episode"]).starts_with("it"),
    ),
    ("info.step > 500", |r| {
        r["info"]["step"].as_i64().is_some_and(|s| s > 500)
    }),
    ("`info`.`text` = 'info 31'", |r| {
        r["info"]["text"] == "info 31"
    }),
    ("ratio = 0", |r| r["ratio"].as_f64() == Some(0.0)),
    ("ratio > 0.05 AND ratio < 1", |r| {
        r["ratio"].as_f64().is_some_and(|f| f > 0.05)
    }),
    ("role IS NOT NULL AND role <> ''", |r| {
        r["role"].as_str().is_some_and(|s| !s.is_empty())
    }),
    ("array_length(tags) > 1", |r| {
        r["tags"].as_array().is_some_and(|t| t.len() > 1)
    }),
    (
        "coalesce(value, 0 - 1) < 0 or episode || '!' = 'key-0000004!'",
        |r| r["value"].is_null() || r["episode"] == "key-0000004",
    ),
];

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

async fn rich() -> Fixture {
    let shape = Shape::keyed(Kind::Utf8)
        .with("info", Kind::Info)
        .with("ratio", Kind::Float64)
        .with("role", Kind::Role(5))
        .with("tags", Kind::Tags);
    let mut t = Fixture::create(Spec {
        shape,
        shards: 2,
        base: (0..40).map(|k| (k, k as i64 % 7 - 1)).collect(),
        ..Default::default()
    })
    .await;
    for round in 0..3u64 {
        let rows: Vec<_> = (0..8)
            .map(|k| (round * 5 + k * 6, (round + k) as i64 % 7 - 1))
            .collect();
        t.put(&rows).await;
        t.delete(&[round + 3, 60 + round]).await;
        t.flush().await;
    }
    t
}

async fn served(t: &Fixture, config: StoresConfig) -> Served {
    Served::new(Tables::new(config).with_table("rich", &t.uri)).await
}

impl Served {
    async fn asked(&self, route: &str, condition: &str, more: &str) -> Answer {
        let condition: String = byte_serialize(condition.as_bytes()).collect();
        let target = format!("/api/v1/experiments/rich/{route}?where={condition}{more}");
        self.get(&target).await
    }
}

async fn compare(served: &Served, hits: &mut [usize; CONDITIONS.len()]) {
    for source in ["fragments", "wal", "all"] {
        let more = format!("?source={source}&limit=1000");
        let whole = served.records("rich", &more).await.records();
        for (at, (condition, holds)) in CONDITIONS.iter().enumerate() {
            let want: Vec<&Value> = whole.iter().filter(|r| holds(r)).collect();
            hits[at] += want.len();
            let mut found = vec![];
            loop {
                let page = format!("&source={source}&limit=7&offset={}", found.len());
                let page = served.asked("records", condition, &page).await;
                found.extend(page.records());
                if page.json()["has_more"] == false {
                    break;
                }
            }
            assert_eq!(
                found.iter().collect::<Vec<_>>(),
                want,
                "{source} {condition}"
            );
            let of = format!("&source={source}");
            let count = served.asked("count", condition, &of).await.json();
            assert_eq!(count["count"], want.len(), "{source} {condition}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_keeps_the_same_rows_before_and_after_a_merge_and_by_an_index() {
    let t = rich().await;
    let mut hits = [0; CONDITIONS.len()];
    let first = served(&t, StoresConfig::default()).await;
    let mut refused = vec![];
    for (condition, _) in CONDITIONS {
        let answer = first.asked("count", condition, "").await;
        if answer.status != 200 {
            refused.push(format!("{condition}: {}", answer.body));
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
    compare(&served(&t, StoresConfig::default()).await, &mut hits).await;
    for (hit, (condition, _)) in hits.iter().zip(CONDITIONS) {
        assert!(*hit > 0, "{condition} keeps no row at all");
    }
    let mut merger = Merger::open(&t.uri).await;
    merger.try_merge(2).await.unwrap();
    compare(&served(&t, StoresConfig::default()).await, &mut hits).await;
    for column in ["episode", "value", "ratio"] {
        t.index(column, IndexType::BTree).await;
    }
    compare(&served(&t, StoresConfig::default()).await, &mut hits).await;
    merger.merge_all(9).await;
    compare(&served(&t, StoresConfig::default()).await, &mut hits).await;
}

#[tokio::test]
async fn a_condition_goes_with_values_and_columns() {
    let t = rich().await;
    let served = served(&t, StoresConfig::default()).await;
    let whole = served
        .records("rich", "?source=all&limit=1000")
        .await
        .records();
    let role = whole.iter().find_map(|r| r["role"].as_str()).unwrap();
    let want = whole.iter().filter(|r| r["role"] == role);
    let want: Vec<_> = want
        .filter(|r| r["value"].as_i64().is_some_and(|v| v > 1))
        .map(|r| &r["episode"])
        .collect();
    let more = format!("&source=all&limit=1000&columns=episode&role={role}");
    let found = served.asked("records", "value > 1", &more).await.records();
    let found: Vec<_> = found.iter().map(|r| &r["episode"]).collect();
    assert!(!want.is_empty());
    assert_eq!(found, want);
}

#[tokio::test]
async fn what_is_no_condition_on_the_tables_rows_is_refused_by_name() {
    let t = rich().await;
    let served = served(&t, StoresConfig::default()).await;
    let deep = format!("{}value > 1{}", "(".repeat(200), ")".repeat(200));
    let long = vec!["value > 1"; 200].join(" and ");
    let sums = format!("value {}> 1", "+ 1 ".repeat(100));
    let nots = format!("{} true", "not ".repeat(200));
    let mut taken = vec![];
    for condition in [
        "value >",
        "value > 1 ORDER BY value",
        "value > 1 GROUP BY value",
        "value > 1; drop table x",
        "value > 1) or (true",
        "value",
        "1 + 1",
        "'text'",
        "value = 'text'",
        "value > 'text'",
        "episode + 1 > 2",
        "value LIKE 'x%'",
        "value = \"3\"",
        "value IN (SELECT 1)",
        "EXISTS (SELECT 1)",
        "(SELECT true)",
        "value = $1",
        "value = ?",
        "value || '' = '4'",
        "episode = N'x'",
        "episode = E'x'",
        "now() > TIMESTAMP '2026-01-01'",
        "random() > 0.5",
        "sleep(10) is null",
        "repeat(episode, 1000000000) = ''",
        "sum(value) > 1",
        "lower(episode) OVER () = 'x'",
        "lower(DISTINCT episode) = 'x'",
        "lower() = 'x'",
        "x.lower(episode) = 'x'",
        "regexp_like(episode, episode)",
        "regexp_like(episode, '(')",
        "regexp_like(episode, '((a{1,1000}){1,1000}){1,1000}')",
        "value / 0 > 1",
        "1 / value > 1",
        "value % (0) = 1",
        "CAST(episode AS INT) = 1",
        "episode::int = 1",
        "TRY_CAST(episode AS JSON) = 1",
        "TRY_CAST(value AS DECIMAL(99, 1)) = 1",
        "CASE WHEN true THEN true END",
        "value = ANY (ARRAY[1])",
        "info.nothing = 1",
        "info.step.more = 1",
        "info = 1",
        "tags = 1",
        "tags[0] = 'x'",
        "{fn lower(episode)} = 'x'",
        "episode LIKE 'x' ESCAPE 'ab'",
        "*",
        "",
        "\u{0}",
        &deep,
        &long,
        &sums,
        &nots,
    ] {
        for source in ["fragments", "all"] {
            let of = format!("&source={source}");
            let answer = served.asked("records", condition, &of).await;
            if answer.status != 400 || answer.json()["parameter"] != "where" {
                taken.push(format!("{condition}: {answer:?}"));
            }
        }
    }
    assert!(taken.is_empty(), "{taken:#?}");
    for column in ["nothing", "VALUE", "_rowid", "`a b`", "value.x"] {
        let answer = served.asked("records", &format!("{column} > 1"), "").await;
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    let unknown = served.asked("records", "nothing > 1", "").await.json();
    let said = unknown["detail"].as_str().unwrap();
    assert!(
        said.contains("`nothing`") && said.contains("episode, value"),
        "{said}"
    );
}

#[tokio::test]
async fn a_condition_reads_the_columns_that_it_names_and_a_bad_one_no_rows() {
    let t = rich().await;
    let recorded = Recorded::default();
    let config = StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    };
    let served = served(&t, config).await;
    served.records("rich", "?source=all").await.records();
    recorded.taken();
    let bad = served.asked("records", "value >", "&source=all").await;
    assert_eq!(bad.status, 400);
    let requests = recorded.taken();
    let data: Vec<_> = requests.iter().filter(|r| r.ends_with(".lance")).collect();
    assert!(data.is_empty(), "{requests:?}");
}
