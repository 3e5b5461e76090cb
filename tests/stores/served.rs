//! `freshet local` over tables in stores: manifests with Secrets, tables kept fresh and served, and no secret anywhere.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::life::{more, pending};
use crate::process::start;
use crate::servers::{Kind, MARK, PATIENCE, Server};

/// An Experiment's manifest and its Secret's files.
fn declare(server: &Server, dir: &Path) {
    let spec = server.spec("rollouts.lance");
    let body = json!({
        "apiVersion": "freshet.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": { "name": "maze" },
        "spec": {
            "table": serde_json::to_value(&spec).unwrap(),
            "freshness": { "target": "2s", "mergeAt": { "generations": 1 } },
        },
    });
    std::fs::create_dir_all(dir.join("manifests")).unwrap();
    std::fs::write(dir.join("manifests/maze.yaml"), body.to_string()).unwrap();
    let secret = dir.join("secrets/maze-keys");
    std::fs::create_dir_all(&secret).unwrap();
    for (key, value) in server.secret() {
        std::fs::write(secret.join(key), value).unwrap();
    }
}

async fn get(address: &str, path: &str) -> String {
    let answer = reqwest::get(format!("{address}{path}")).await.unwrap();
    let text = answer.text().await.unwrap();
    assert!(!text.contains(MARK), "a secret is served at {path}: {text}");
    text
}

/// Asks until the experiment is as wanted.
async fn until(address: &str, what: impl Fn(&Value) -> bool) {
    let begun = Instant::now();
    loop {
        let text = get(address, "/api/v1/experiments/maze").await;
        let seen: Value = serde_json::from_str(&text).unwrap();
        if what(&seen) {
            return;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "it did not come to that: {text}"
        );
        tokio::task::yield_now().await;
    }
}

async fn kept_fresh(kind: Kind) {
    let server = Server::start(kind).await;
    let mut t = pending(&server, "rollouts.lance").await;
    let dir = tempfile::tempdir().unwrap();
    declare(&server, dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let args = ["local", "-o", "json", "--listen", "127.0.0.1:0", "-f"];
    let mut args: Vec<String> = args.map(String::from).to_vec();
    args.extend([path("manifests"), "--secrets".into(), path("secrets")]);
    let local = start(args, vec![]).await;
    let up: Value = serde_json::from_str(&local.said).unwrap();
    let address = up["address"].as_str().unwrap().to_string();
    more(&mut t, 10).await;
    let since = jiff::Timestamp::now();
    until(&address, |e| {
        let observed = e["observed_time"].as_str();
        observed.is_some_and(|at| at.parse::<jiff::Timestamp>().unwrap() > since)
            && e["pending_generations"] == json!(0)
    })
    .await;
    assert_eq!(t.verdict().await, Default::default());
    let page = get(
        &address,
        "/api/v1/experiments/maze/records?source=all&limit=5",
    )
    .await;
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["records"].as_array().unwrap().len(), 5, "{page}");
    let metrics = get(&address, "/metrics").await;
    assert!(metrics.contains("freshet_store_requests_total"));
    let log = local.end();
    assert!(!log.contains(MARK), "a secret is logged: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_on_s3_that_a_manifest_declares_is_kept_fresh_and_served() {
    kept_fresh(Kind::S3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_on_azure_that_a_manifest_declares_is_kept_fresh_and_served() {
    kept_fresh(Kind::Azure).await;
}
