//! What each route answers: a record, a payload, columns, backlog, counts; and that nothing is sent that is known.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use freshet::server::ExperimentStatus;
use freshet::table::StoresConfig;
use serde_json::{Value, json};

use crate::fixtures::{Fixture, Kind, Shape, Spec};
use crate::mergers::Merger;
use crate::recorded::Recorded;
use crate::served::{Answer, Served, Tables};

async fn table(shape: Shape) -> Fixture {
    let mut t = Fixture::create(Spec {
        shape,
        base: (0..60).map(|k| (k, 0)).collect(),
        ..Default::default()
    })
    .await;
    t.put(&[(2, 5), (70, 5)]).await;
    t.delete(&[3]).await;
    t.flush().await;
    t
}

async fn served(t: &Fixture, config: StoresConfig) -> Served {
    Served::new(Tables::new(config).with(ExperimentStatus {
        name: "cartpole".into(),
        namespace: "lab".into(),
        uri: t.uri.clone(),
        ..Default::default()
    }))
    .await
}

fn form(json: Value) -> String {
    URL_SAFE_NO_PAD.encode(json.to_string())
}

impl Served {
    async fn of(&self, end: &str) -> Answer {
        self.get(&format!("/api/v1/experiments/cartpole/{end}"))
            .await
    }
}

#[tokio::test]
async fn a_record_is_its_newest_version_and_a_deleted_one_is_told_apart_from_none() {
    let t = table(Shape::keyed(Kind::Utf8)).await;
    let served = served(&t, StoresConfig::default()).await;
    let newest = served.of("records/key-0000002").await.json();
    assert_eq!(
        newest["record"],
        json!({"episode": "key-0000002", "value": 5})
    );
    assert_eq!(
        (&newest["source"], &newest["generations_read"]),
        (&json!("all"), &json!(1))
    );
    let base = served
        .of("records/key-0000002?source=fragments&columns=value")
        .await;
    assert_eq!(base.json()["record"], json!({"value": 0}));
    let same = served
        .of(&format!("records/{}", form(json!(["key-0000002"]))))
        .await;
    assert_eq!(same.json()["record"], newest["record"]);
    let deleted = served.of("records/key-0000003").await;
    assert_eq!(
        (deleted.status, deleted.problem().as_str()),
        (404, "record-deleted")
    );
    assert_eq!(deleted.json()["generation"], 1);
    for (key, query) in [("key-0000999", ""), ("key-0000005", "?source=wal")] {
        let none = served.of(&format!("records/{key}{query}")).await;
        assert_eq!(
            (none.status, none.problem().as_str()),
            (404, "record-not-found")
        );
    }
    Merger::open(&t.uri).await.merge_all(8).await;
    assert_eq!(
        served.of("records/key-0000002").await.json()["record"],
        newest["record"]
    );
    assert_eq!(
        served.of("records/key-0000003").await.problem(),
        "record-not-found"
    );
}

#[tokio::test]
async fn a_composite_key_has_one_form_and_any_other_is_refused_with_it() {
    let shape = Shape::composite(&[Kind::Int16, Kind::Utf8, Kind::Bool]);
    let t = table(shape).await;
    let served = served(&t, StoresConfig::default()).await;
    let all = served
        .records("cartpole", "?source=all&limit=1000")
        .await
        .records();
    for row in all.iter().step_by(7) {
        let key = json!([row["part0"], row["part1"], row["part2"]]);
        let found = served.of(&format!("records/{}", form(key))).await;
        assert_eq!(&found.json()["record"], row);
    }
    for key in [
        "1",
        &form(json!([1])),
        &form(json!([1, null, true])),
        &form(json!(["x", "y", true])),
    ] {
        let answer = served.of(&format!("records/{key}")).await;
        assert_eq!(
            (answer.status, &answer.json()["parameter"]),
            (400, &json!("key")),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn counts_columns_and_backlog_are_told() {
    let t = table(Shape::keyed(Kind::Utf8)).await;
    let served = served(&t, StoresConfig::default()).await;
    for (query, rows) in [("", 60), ("?source=wal", 2), ("?source=all", 60)] {
        assert_eq!(
            served.of(&format!("count{query}")).await.json()["count"],
            rows,
            "{query}"
        );
    }
    let schema = served.of("schema").await.json();
    assert_eq!(schema["key"], json!(["episode"]));
    assert_eq!(schema["columns"][1]["type"], "Int64");
    let backlog = served.of("backlog").await.json();
    assert_eq!(backlog["pending_generations"], 1);
    assert_eq!(backlog["shards"][0]["pending"][0]["generation"], 1);
    assert_eq!(backlog["shards"][0]["watermark"], 0);
    Merger::open(&t.uri).await.merge_all(8).await;
    let backlog = served.of("backlog").await.json();
    assert_eq!(
        (
            &backlog["pending_generations"],
            &backlog["shards"][0]["watermark"]
        ),
        (&json!(0), &json!(1))
    );
}

#[tokio::test]
async fn an_experiment_is_found_in_its_own_namespace_only() {
    let t = table(Shape::keyed(Kind::Utf8)).await;
    let served = served(&t, StoresConfig::default()).await;
    let ends = [
        "",
        "/records",
        "/records/key-0000002",
        "/schema",
        "/backlog",
        "/count",
    ];
    for end in ends {
        let own = served
            .get(&format!("/api/v1/namespaces/lab/experiments/cartpole{end}"))
            .await;
        assert_eq!(own.status, 200, "{end} {own:?}");
        let other = served
            .get(&format!(
                "/api/v1/namespaces/other/experiments/cartpole{end}"
            ))
            .await;
        assert_eq!(
            (other.status, other.problem().as_str()),
            (404, "experiment-not-found"),
            "{end}"
        );
    }
    let list = |namespace: &'static str| {
        let served = &served;
        async move {
            let answer = served
                .get(&format!("/api/v1/namespaces/{namespace}/experiments"))
                .await;
            answer.json()["experiments"].as_array().unwrap().len()
        }
    };
    assert_eq!((list("lab").await, list("other").await), (1, 0));
}

#[tokio::test]
async fn exact_values_of_lance_contexts_columns_filter_pages_and_counts() {
    let shape = Shape::keyed(Kind::Utf8).with("role", Kind::Role(3));
    let t = table(shape).await;
    let served = served(&t, StoresConfig::default()).await;
    let all = served
        .records("cartpole", "?source=all&limit=1000")
        .await
        .records();
    let role = all.iter().find_map(|r| r["role"].as_str()).unwrap();
    let want: Vec<_> = all.iter().filter(|r| r["role"] == role).cloned().collect();
    assert!(want.len() > 1 && want.len() < all.len());
    let found = served
        .records("cartpole", &format!("?source=all&limit=1000&role={role}"))
        .await;
    assert_eq!(found.records(), want);
    let count = served
        .of(&format!("count?source=all&role={role}"))
        .await
        .json();
    assert_eq!(count["count"], want.len());
    let missing = served.records("cartpole", "?dataset=x").await;
    assert_eq!(
        (missing.status, &missing.json()["parameter"]),
        (400, &json!("dataset"))
    );
    let detail = missing.json()["detail"].to_string();
    assert!(detail.contains("episode, value, role"), "{detail}");
}

#[tokio::test]
async fn what_the_caller_has_is_not_read_again() {
    let mut t = table(Shape::keyed(Kind::Utf8)).await;
    let recorded = Recorded::default();
    let config = StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    };
    let served = served(&t, config).await;
    let tag = |answer: &Answer| {
        let lines = answer.head.lines();
        let tag = lines.filter_map(|l| l.strip_prefix("etag: ")).next();
        // Headers are read in lower case here; a tag's own digits are, too.
        tag.expect("an etag").replacen("w/", "W/", 1)
    };
    let again = async |end: &str, tag: &str| {
        let request = format!(
            "GET /api/v1/experiments/cartpole/{end} HTTP/1.1\r\nhost: {}\r\nif-none-match: \"x\", {tag}\r\nconnection: close\r\n\r\n",
            served.address
        );
        served.say(&request).await
    };
    for end in [
        "records",
        "records?source=all",
        "records/key-0000002",
        "count?source=wal",
        "schema",
        "backlog",
    ] {
        let first = served.of(end).await;
        assert_eq!(first.status, 200);
        recorded.taken();
        let known = again(end, &tag(&first)).await;
        assert_eq!((known.status, known.body.as_str()), (304, ""), "{end}");
        let data: Vec<_> = recorded
            .taken()
            .into_iter()
            .filter(|a| a.contains("/data/"))
            .collect();
        assert!(data.is_empty(), "{end} {data:?}");
        let other = again("records?limit=3", &tag(&first)).await;
        assert_eq!(other.status, 200, "another question");
    }
    let (base, all) = (
        served.of("records").await,
        served.of("records?source=all").await,
    );
    let backlog = served.of("backlog").await;
    t.put(&[(9, 9)]).await;
    t.flush().await;
    assert_eq!(
        again("records", &tag(&base)).await.status,
        304,
        "a flush does not move the base"
    );
    assert_eq!(again("records?source=all", &tag(&all)).await.status, 200);
    assert_eq!(again("backlog", &tag(&backlog)).await.status, 200);
}

#[tokio::test]
async fn a_cell_of_bytes_is_an_attachment_that_no_browser_runs() {
    let t = table(
        Shape::keyed(Kind::Utf8)
            .with("note", Kind::Utf8)
            .with("role", Kind::Vector),
    )
    .await;
    let served = served(&t, StoresConfig::default()).await;
    let all = served
        .records("cartpole", "?source=all&limit=1000")
        .await
        .records();
    let row = all.iter().find(|r| r["note"].is_string()).unwrap();
    let key = row["episode"].as_str().unwrap();
    let cell = served.of(&format!("records/{key}/blobs/note")).await;
    assert_eq!(
        (cell.status, cell.body.as_str()),
        (200, row["note"].as_str().unwrap())
    );
    for header in [
        "content-disposition: attachment; filename=\"note.bin\"",
        "x-content-type-options: nosniff",
        "content-type: application/octet-stream",
        "content-security-policy: default-src 'none'; sandbox",
    ] {
        assert!(cell.head.contains(header), "{header} {cell:?}");
    }
    for (column, status) in [("role", 400), ("nobody", 400)] {
        let answer = served.of(&format!("records/{key}/blobs/{column}")).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let deleted = served.of("records/key-0000003/blobs/note").await;
    assert_eq!(deleted.problem(), "record-deleted");
}

#[tokio::test]
async fn a_point_read_past_an_unreadable_generation_is_a_503_that_names_it() {
    let t = table(Shape::keyed(Kind::Utf8)).await;
    for shard in std::fs::read_dir(t.path().join("_mem_wal")).unwrap() {
        for dir in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            let dir = dir.unwrap().path();
            if dir.to_string_lossy().contains("_gen_") {
                std::fs::remove_dir_all(dir).unwrap();
            }
        }
    }
    let served = served(&t, StoresConfig::default()).await;
    for end in [
        "records/key-0000005",
        "count?source=all",
        "count?source=wal",
    ] {
        let answer = served.of(end).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (503, "generation-unreadable"),
            "{end}"
        );
        assert_eq!(answer.json()["generation"], 1);
    }
    assert_eq!(
        served
            .of("records/key-0000005?source=fragments")
            .await
            .status,
        200
    );
}
