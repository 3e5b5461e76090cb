//! What the server answers: pages, experiments, problems, metrics.

use std::sync::atomic::Ordering;
use std::time::Duration;

use freshet::server::{ExperimentStatus, Fragments, LastMerge, WhyNotNow};
use freshet::table::StoresConfig;
use freshet::telemetry::Backlog;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::fixtures::{Fixture, Kind, Shape, Spec, shard};
use crate::mergers::Merger;
use crate::recorded::Recorded;
use crate::served::{Served, Tables};

async fn table() -> Fixture {
    let mut t = Fixture::create(Spec {
        shape: Shape::keyed(Kind::Utf8),
        base: (0..60).map(|k| (k, 0)).collect(),
        ..Default::default()
    })
    .await;
    t.put(&[(2, 5), (70, 5)]).await;
    t.delete(&[3]).await;
    t.flush().await;
    t
}

fn catalog(t: &Fixture) -> Tables {
    Tables::new(StoresConfig::default()).with_table("cartpole", &t.uri)
}

fn values(records: &[Value]) -> Vec<(String, i64)> {
    let mut out: Vec<_> = records
        .iter()
        .map(|r| {
            let key = r["episode"].as_str().unwrap().to_string();
            (key, r["value"].as_i64().unwrap())
        })
        .collect();
    out.sort();
    out
}

#[tokio::test]
async fn the_three_sources_answer_before_and_after_a_merge() {
    let t = table().await;
    let served = Served::new(catalog(&t)).await;
    let first = served.records("cartpole", "").await;
    let said = first.json();
    assert_eq!(first.records().len(), 25);
    assert_eq!(said["source"], "fragments");
    assert_eq!((&said["limit"], &said["offset"]), (&json!(25), &json!(0)));
    assert_eq!(said["has_more"], true);
    assert_eq!(said["snapshot"]["shards"], Value::Null);
    assert_eq!(said["lag"]["seconds"], Value::Null, "nobody observed it");
    let wal = served.records("cartpole", "?source=wal").await;
    assert_eq!(
        values(&wal.records()),
        [("key-0000002".into(), 5), ("key-0000070".into(), 5)]
    );
    let said = wal.json();
    assert_eq!(said["generations_read"], 1);
    assert_eq!(said["lag"]["pending_generations"], 1);
    assert!(said["lag"]["oldest_pending_time"].is_string());
    assert_eq!(said["snapshot"]["shards"].as_array().unwrap().len(), 1);
    let all = served.records("cartpole", "?source=all&limit=1000").await;
    let all = values(&all.records());
    assert_eq!(all.len(), 60);
    Merger::open(&t.uri).await.merge_all(8).await;
    for source in ["fragments", "all"] {
        let after = served
            .records("cartpole", &format!("?limit=1000&source={source}"))
            .await;
        assert_eq!(values(&after.records()), all, "{source}");
    }
    let wal = served.records("cartpole", "?source=wal").await;
    assert_eq!(wal.records(), Vec::<Value>::new());
    assert_eq!(wal.json()["has_more"], false);
}

#[tokio::test]
async fn pages_cover_every_row_once() {
    let t = table().await;
    let served = Served::new(catalog(&t)).await;
    for source in ["fragments", "all"] {
        let mut seen = vec![];
        loop {
            let offset = seen.len();
            let page = served
                .records(
                    "cartpole",
                    &format!("?source={source}&limit=7&offset={offset}"),
                )
                .await;
            seen.extend(values(&page.records()));
            if page.json()["has_more"] == false {
                break;
            }
        }
        let whole = served
            .records("cartpole", &format!("?source={source}&limit=1000"))
            .await;
        seen.sort();
        assert_eq!(seen, values(&whole.records()));
    }
    let beyond = served
        .records("cartpole", "?offset=18446744073709551615")
        .await;
    assert_eq!(beyond.records(), Vec::<Value>::new());
}

#[tokio::test]
async fn a_wrong_question_is_refused_before_anything_is_looked_up() {
    let recorded = Recorded::default();
    let config = StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    };
    let t = table().await;
    let served = Served::new(Tables::new(config).with_table("cartpole", &t.uri)).await;
    for query in [
        "?source=bogus",
        "?source=FRAGMENTS",
        "?limit=0",
        "?limit=1001",
        "?limit=x",
        "?offset=-1",
        "?source=all&source=all",
    ] {
        // A name that is not there does not win over a wrong question.
        for name in ["cartpole", "nobody"] {
            let answer = served.records(name, query).await;
            assert_eq!(answer.status, 400, "{query} {answer:?}");
            assert_eq!(answer.problem(), "invalid-parameter");
        }
    }
    let bogus = served.records("cartpole", "?source=bogus").await.body;
    for word in ["bogus", "fragments", "wal", "all"] {
        assert!(bogus.contains(word), "{bogus}");
    }
    assert_eq!(served.tables.asked.load(Ordering::Relaxed), 0);
    assert_eq!(recorded.taken(), Vec::<String>::new());
    assert_eq!(
        served.records("nobody", "?source=wal").await.problem(),
        "experiment-not-found"
    );
    assert_eq!(recorded.taken(), Vec::<String>::new());
}

#[tokio::test]
async fn names_are_never_paths() {
    let t = table().await;
    let served = Served::new(catalog(&t)).await;
    let full: String = t.uri.bytes().map(|b| format!("%{b:02X}")).collect();
    for name in [
        "..",
        "%2e%2e%2fcartpole",
        "..%2f..%2fetc%2fpasswd",
        "cartpole%00",
        "cartpole%2f",
        "%ff%fe",
        "%3Cscript%3E",
        "",
        &full,
        &"a".repeat(4000),
    ] {
        for path in [
            format!("/api/v1/experiments/{name}"),
            format!("/api/v1/experiments/{name}/records"),
        ] {
            let answer = served.get(&path).await;
            assert_eq!(answer.status, 404, "{path} {answer:?}");
            answer.problem();
            assert!(!answer.body.contains("script"), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn a_table_that_is_not_there_is_told_without_its_path() {
    let served =
        Served::new(Tables::new(StoresConfig::default()).with_table("ghost", "/dev/shm/no/such"))
            .await;
    for source in ["fragments", "wal", "all"] {
        let answer = served.records("ghost", &format!("?source={source}")).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (404, "table-not-found")
        );
        assert!(!answer.body.contains("such/"), "{answer:?}");
        assert!(!answer.body.contains("shm"), "{answer:?}");
    }
}

#[tokio::test]
async fn an_unreadable_generation_is_a_503_that_names_it() {
    let t = table().await;
    let served = Served::new(catalog(&t)).await;
    for shard in std::fs::read_dir(t.path().join("_mem_wal")).unwrap() {
        for dir in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            let data = dir.unwrap().path().join("data");
            if data.is_dir() {
                std::fs::remove_dir_all(data).unwrap();
            }
        }
    }
    for source in ["wal", "all"] {
        let answer = served
            .records("cartpole", &format!("?source={source}"))
            .await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (503, "generation-unreadable")
        );
        let said = answer.json();
        assert_eq!(said["generation"], 1);
        assert!(said["shard"].is_string());
        assert!(!answer.body.contains("_gen_"), "{answer:?}");
    }
    assert_eq!(served.records("cartpole", "").await.records().len(), 25);
}

#[tokio::test]
async fn what_is_unknown_of_an_experiment_is_null_and_what_is_known_is_told() {
    let time = |s| Timestamp::from_second(s).unwrap();
    let known = ExperimentStatus {
        name: "pendulum".into(),
        uri: "s3://user:secret@bucket/pendulum?sig=secret".into(),
        pending_generations: Some(0),
        target_seconds: Some(60.0),
        observed_time: Some(time(1_700_000_000)),
        why_not_now: Some(WhyNotNow {
            reason: "Fresh".into(),
            message: "nothing is pending".into(),
        }),
        last_merge: Some(LastMerge {
            time: time(1_699_999_999),
            version: Some(7),
            generations: None,
            rows: Some(12),
            seconds: Some(0.5),
        }),
        fragments: Some(Fragments {
            version: 7,
            rows: None,
            fragments: 3,
        }),
        ..Default::default()
    };
    let tables = Tables::new(StoresConfig::default())
        .with_table("cartpole", "s3://bucket/cartpole")
        .with(known);
    let served = Served::new(tables).await;
    let all = served.get("/api/v1/experiments").await;
    let list = all.json()["experiments"].as_array().unwrap().clone();
    assert_eq!(list.len(), 2);
    for unknown in [
        "pending_generations",
        "pending_rows",
        "lag_seconds",
        "observed_time",
        "why_not_now",
        "last_merge",
        "fragments",
        "merged_rows_per_second",
    ] {
        assert_eq!(list[0].get(unknown), Some(&Value::Null), "{unknown}");
    }
    assert_eq!(list[1]["lag_seconds"], 0.0);
    assert_eq!(list[1]["fragments"]["rows"], Value::Null);
    assert_eq!(list[1]["last_merge"]["time"], "2023-11-14T22:13:19Z");
    assert!(!all.body.contains("secret"), "{}", all.body);
    assert_eq!(
        served.get("/api/v1/experiments/pendulum").await.json(),
        list[1]
    );
    let index = served.get("/").await;
    assert!(
        index
            .head
            .contains("content-security-policy: default-src 'none'")
    );
    assert!(index.body.contains("cartpole") && index.body.contains("unknown"));
}

#[tokio::test]
async fn metrics_never_show_a_zero_for_what_is_unknown() {
    let t = table().await;
    let served = Served::new(catalog(&t)).await;
    served.metrics.set_backlog(&Backlog {
        name: "cartpole".into(),
        pending_generations: Some(1),
        target: Some(Duration::from_secs(60)),
        ..Default::default()
    });
    served.records("cartpole", "").await;
    served.get("/%2e%2e/secret-path").await;
    let text = served.get("/metrics").await;
    assert!(text.head.contains("text/plain; version=0.0.4"));
    let of = |name: &str| -> Vec<&str> {
        let named = |l: &&str| l.starts_with(name) && !l.starts_with('#');
        text.body.lines().filter(named).collect()
    };
    let label = r#"{name="cartpole",namespace=""}"#;
    assert_eq!(
        of("freshet_experiment_"),
        [
            format!("freshet_experiment_pending_generations{label} 1"),
            format!("freshet_experiment_target_seconds{label} 60"),
        ]
    );
    let requests = of("freshet_http_requests_total").join("\n");
    let route = r#"route="/api/v1/experiments/{name}/records""#;
    assert!(requests.contains(route), "{requests}");
    assert!(requests.contains(r#"route="other""#), "{requests}");
    assert!(!text.body.contains("secret-path"));
    served.metrics.forget("", "cartpole");
    let text = served.get("/metrics").await.body;
    assert!(!text.contains("cartpole"), "{text}");
}

#[tokio::test]
async fn a_shard_whose_newest_manifest_is_broken_is_named_and_fragments_goes_on() {
    let mut t = Fixture::create(Spec {
        shards: 2,
        base: (0..20).map(|k| (k, 0)).collect(),
        ..Default::default()
    })
    .await;
    t.put(&[(2, 5), (3, 5)]).await;
    t.flush().await;
    t.close().await;
    let file = t.newest_manifest(1);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, []).unwrap();
    let served = Served::new(catalog(&t)).await;
    for source in ["wal", "all"] {
        let said = served
            .records("cartpole", &format!("?source={source}"))
            .await;
        assert_eq!(
            (said.status, said.problem().as_str()),
            (503, "shard-unreadable")
        );
        let said = said.json();
        assert_eq!(said["shard"], shard(1).to_string());
        assert_eq!(said["reason"], "UnsupportedManifest");
        assert!(
            said["detail"].as_str().unwrap().contains("is empty"),
            "{said}"
        );
    }
    let said = served.records("cartpole", "?source=fragments").await;
    assert_eq!(said.records().len(), 20);
    std::fs::write(&file, whole).unwrap();
    let said = served.records("cartpole", "?source=wal").await;
    assert_eq!(said.records().len(), 2);
}
