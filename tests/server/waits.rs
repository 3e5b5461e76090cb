//! Waiting until `fragments` shows what was flushed.
//!
//! Lives here: that the answer comes no sooner and no later than the base holds it, whatever merges run and whatever a
//! watermark says. May use: the fixtures, the server under test. Never: a time as a verdict.

use std::fs;

use freshet::server::Config;
use freshet::table::StoresConfig;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::fixtures::{Fixture, Spec, shard};
use crate::mergers::Merger;
use crate::recorded::Recorded;
use crate::served::{Answer, Served, Tables};

/// Two shards, three generations each, nothing merged.
async fn pending() -> Fixture {
    let mut t = Fixture::create(Spec {
        shards: 2,
        ..Default::default()
    })
    .await;
    for round in 1..=3u64 {
        let rows: Vec<_> = (0..8).map(|k| (500 + 10 * round + k, 1)).collect();
        t.put(&rows).await;
        t.flush().await;
    }
    t
}

async fn served(t: &Fixture) -> Served {
    Served::new(Tables::new(StoresConfig::default()).with_table("cartpole", &t.uri)).await
}

impl Served {
    async fn wait(&self, query: &str) -> Answer {
        self.get(&format!("/api/v1/experiments/cartpole/wait{query}"))
            .await
    }

    async fn rows(&self, source: &str) -> u64 {
        let target = format!("/api/v1/experiments/cartpole/count?source={source}");
        self.get(&target).await.json()["count"].as_u64().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fragments_shows_what_was_flushed_before_once_the_wait_is_answered() {
    let t = pending().await;
    let served = served(&t).await;
    let flushed = served.rows("all").await;
    assert!(served.rows("fragments").await < flushed);
    let waiting = async {
        let answer = served.wait("?timeout=5m").await;
        (answer, served.rows("fragments").await)
    };
    let merging = async {
        let mut merger = Merger::open(&t.uri).await;
        while merger.try_merge(1).await.unwrap().is_some() {}
    };
    let ((answer, shown), ()) = tokio::join!(waiting, merging);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(shown, flushed);
    let shards = answer.json()["shards"].as_array().unwrap().clone();
    assert_eq!(shards.len(), 2);
    for shard in shards {
        assert_eq!(
            (&shard["generation"], &shard["watermark"], &shard["pending"]),
            (&json!(3), &json!(3), &json!(0))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_that_is_not_flushed_yet_is_waited_for_by_name() {
    let mut t = pending().await;
    let served = served(&t).await;
    Merger::open(&t.uri).await.merge_all(9).await;
    let all = served.wait("?timeout=0s").await;
    assert_eq!(all.status, 200, "nothing is pending: {all:?}");
    let target = format!("?timeout=5m&for={}:4", shard(0));
    let asked = format!("?timeout=0s&for={}:4", shard(0));
    assert_eq!(served.wait(&asked).await.status, 504);
    let (answer, ()) = tokio::join!(served.wait(&target), async {
        let rows: Vec<_> = (0..8).map(|k| (900 + k, 4)).collect();
        t.put(&rows).await;
        t.flush().await;
        Merger::open(&t.uri).await.merge_all(9).await;
    });
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["shards"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_wait_that_is_too_short_says_what_is_left_and_how_to_ask_again() {
    let t = pending().await;
    let served = served(&t).await;
    let mut merger = Merger::open(&t.uri).await;
    merger.try_merge(1).await.unwrap();
    let late = served.wait("?timeout=0s").await;
    assert_eq!(
        (late.status, late.problem().as_str()),
        (504, "not-merged-yet")
    );
    assert!(late.head.contains("retry-after: 1"), "{late:?}");
    let again = late.json()["for"].as_str().unwrap().to_string();
    assert_eq!(again.matches(':').count(), 2, "{again}");
    merger.merge_all(9).await;
    let done = served.wait(&format!("?timeout=0s&for={again}")).await;
    assert_eq!(done.status, 200, "{done:?}");
}

#[tokio::test]
async fn a_watermark_of_a_shard_that_was_made_again_is_not_waited_for() {
    let mut t = Fixture::create(Spec::default()).await;
    for n in 1..=2 {
        t.put(&[(500 + n, 1)]).await;
        t.flush().await;
    }
    t.close().await;
    Merger::open(&t.uri).await.merge_all(9).await;
    fs::remove_dir_all(t.path().join("_mem_wal")).unwrap();
    t.put(&[(700, 7)]).await;
    t.flush().await;
    let answer = served(&t).await.wait("?timeout=0s").await;
    assert_eq!(answer.status, 504, "{answer:?}");
    let shard = &answer.json()["shards"][0];
    assert_eq!(
        (&shard["generation"], &shard["watermark"], &shard["pending"]),
        (&json!(1), &json!(2), &json!(1))
    );
}

#[tokio::test]
async fn a_wait_reads_no_generation_and_is_judged_before_any_request() {
    let t = pending().await;
    let recorded = Recorded::default();
    let config = StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    };
    let served = Served::new(Tables::new(config).with_table("cartpole", &t.uri)).await;
    for query in [
        "?timeout=11m",
        "?timeout=x",
        "?for=../../x:1",
        "?source=all",
    ] {
        let answer = served.wait(query).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (400, "invalid-parameter")
        );
    }
    assert!(recorded.taken().is_empty());
    assert_eq!(served.wait("?timeout=0s").await.status, 504);
    let requests = recorded.taken();
    let opened: Vec<_> = requests.iter().filter(|r| r.contains("_gen_")).collect();
    assert!(!requests.is_empty() && opened.is_empty(), "{requests:?}");
}

#[tokio::test]
async fn a_caller_that_hangs_up_waits_no_more() {
    let t = pending().await;
    let config = Config {
        waiting: 1,
        ..Default::default()
    };
    let tables = Tables::new(StoresConfig::default()).with_table("cartpole", &t.uri);
    let served = Served::with(tables, config).await;
    let mut caller = TcpStream::connect(served.address).await.unwrap();
    let request = format!(
        "GET /api/v1/experiments/cartpole/wait?timeout=10m HTTP/1.1\r\nhost: {}\r\n\r\n",
        served.address
    );
    caller.write_all(request.as_bytes()).await.unwrap();
    while served.wait("?timeout=0s").await.status != 503 {}
    drop(caller);
    while served.wait("?timeout=0s").await.status == 503 {}
    assert_eq!(served.wait("?timeout=0s").await.problem(), "not-merged-yet");
}
