//! A real Prometheus reads the controller's metrics and the shipped rules, and sees alerts fire and resolve.
//!
//! Lives here: Prometheus' process and its API. May use: the controller's process, the store servers, Debian's
//! `prometheus`. Never: a second telling of a rule; how long each one waits is promtool's to prove, in `tests/alerts`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixtures::{Fixture, Spec};
use crate::harness::Cluster;
use crate::running::{Controller, allowing, of_store, patch, secret, wait};
use crate::servers::{self, Guarded, Kind, PATIENCE, Server};
use crate::writing::round;

const RULES: &str = include_str!("../../charts/freshet/files/rules.yaml");
const NS: &str = "tern";

/// The rules as they are shipped, but that `for` and `keep_firing_for` are a second: a test waits for an alert's condition,
/// not for its patience.
fn impatient() -> String {
    let waits = |line: &&str| {
        let key = line.trim_start().split(':').next();
        matches!(key, Some("for" | "keep_firing_for"))
    };
    assert_eq!(RULES.lines().filter(waits).count(), 9, "{RULES}");
    let lines = RULES.lines().map(|line| match waits(&line) {
        true => format!("{}: 1s\n", line.split_once(':').unwrap().0),
        false => format!("{line}\n"),
    });
    lines.collect()
}

/// The metrics that the rules read.
fn series() -> BTreeSet<&'static str> {
    let words = RULES.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    // What is recorded has colons.
    words
        .filter(|w| w.starts_with("freshet_") && !w.contains(':'))
        .collect()
}

struct Prometheus {
    at: SocketAddr,
    _process: Guarded,
    _folder: TempDir,
}

impl Prometheus {
    fn start(scrapes: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("rules.yaml", &impatient());
        // JSON is YAML. The job is the one that the chart's ServiceMonitor sets.
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{
                "job_name": "freshet-controller",
                "static_configs": [{ "targets": [scrapes] }],
            }],
        });
        write("prometheus.yaml", &config.to_string());
        let (process, at) = servers::start(|at| command(folder.path(), at));
        Self {
            at,
            _process: process,
            _folder: folder,
        }
    }

    async fn ask(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let url = format!("http://{}/api/v1/{path}", self.at);
        let url = reqwest::Url::parse_with_params(&url, query).unwrap();
        // It answers 503 while it starts.
        let answer = reqwest::get(url).await.unwrap();
        serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default()
    }

    /// What an expression is now.
    async fn query(&self, expression: &str) -> Vec<Value> {
        let answer = self.ask("query", &[("query", expression)]).await;
        let result = answer["data"]["result"].as_array();
        result.cloned().unwrap_or_default()
    }

    /// The labels of an alert's instances that fire.
    async fn firing(&self, alert: &str) -> Vec<Value> {
        let answer = self.ask("alerts", &[]).await;
        let all = answer["data"]["alerts"].as_array().cloned();
        let fires = |a: &Value| a["labels"]["alertname"] == alert && a["state"] == "firing";
        all.unwrap_or_default().into_iter().filter(fires).collect()
    }
}

fn command(folder: &Path, at: SocketAddr) -> Command {
    let mut command = Command::new("prometheus");
    command
        .arg(format!(
            "--config.file={}",
            folder.join("prometheus.yaml").display()
        ))
        .arg(format!(
            "--storage.tsdb.path={}",
            folder.join("data").display()
        ))
        .arg(format!("--web.listen-address={at}"));
    command
}

/// Asks again and again until it is so; there is no event to wait for.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn none_or<T>(found: Vec<T>) -> Option<Vec<T>> {
    (!found.is_empty()).then_some(found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_sees_a_table_past_its_deadline_and_that_it_is_merged_and_that_it_is_gone()
 {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    cluster.namespace(NS);
    let store = Server::start(Kind::S3).await;
    cluster.apply(&secret(NS, &store.secret()));
    let controller = Controller::start(cluster, NS, &allowing(&store.endpoint(store.at)));
    let prometheus = Prometheus::start(controller.address());

    // One table that may wait for an hour, and one that is late and suspended.
    let mut plums = table(&store, "plums").await;
    let mut kelp = table(&store, "kelp").await;
    for table in [&mut plums, &mut kelp] {
        round(table, 1).await;
    }
    let late = json!({ "suspend": true, "freshness": { "target": "1s" } });
    cluster.apply(&of_store(NS, "plums", &store, late));
    let early = json!({ "freshness": { "target": "1h" } });
    cluster.apply(&of_store(NS, "kelp", &store, early));
    for name in ["plums", "kelp"] {
        let oldest =
            format!("experiment:freshet_oldest_pending_timestamp_seconds:latest{{name='{name}'}}");
        until(name, async || none_or(prometheus.query(&oldest).await)).await;
    }
    for name in series() {
        until(name, async || none_or(prometheus.query(name).await)).await;
    }
    let waits = "time() - freshet_experiment_oldest_pending_timestamp_seconds{name='plums'} > 3";
    until("late", async || none_or(prometheus.query(waits).await)).await;
    assert_eq!(
        prometheus.firing("FreshetPastDeadline").await,
        [] as [Value; 0]
    );

    // It is to be merged, and the store does not let it.
    store.pause();
    patch(
        cluster,
        NS,
        "plums",
        &json!({ "spec": { "suspend": false } }),
    );
    let fires = async || none_or(prometheus.firing("FreshetPastDeadline").await);
    let fired = until("FreshetPastDeadline", fires).await;
    let [alert] = fired.as_slice() else {
        panic!("{fired:#?}");
    };
    assert_eq!(alert["labels"]["namespace"], NS);
    assert_eq!(alert["labels"]["name"], "plums");
    let said = alert["annotations"]["description"].as_str().unwrap();
    assert!(said.contains("tern/plums has waited for"), "{said}");

    store.resume();
    let resolved = async || {
        prometheus
            .firing("FreshetPastDeadline")
            .await
            .is_empty()
            .then_some(())
    };
    until("its end", resolved).await;
    wait(cluster, NS, "plums", "condition=Fresh");
    let verdict = plums.verdict().await;
    assert!(verdict.is_sound(), "{verdict:?}");

    // What is deleted leaves no series; what stays keeps its own.
    let of = |name: &str| {
        format!("{{__name__=~'freshet_experiment_.*',namespace='{NS}',name='{name}'}}")
    };
    let delete = ["delete", "experiment", "plums", "-n", NS, "--timeout=60s"];
    cluster.kubectl_ok(&delete);
    let gone = async || {
        prometheus
            .query(&of("plums"))
            .await
            .is_empty()
            .then_some(())
    };
    until("no series", gone).await;
    assert!(!controller.metrics().await.contains("name=\"plums\""));
    assert!(!prometheus.query(&of("kelp")).await.is_empty());

    assert_eq!(
        prometheus.firing("FreshetControllerDown").await,
        [] as [Value; 0]
    );
    assert_eq!(controller.end(), Some(0));
    let fires = async || none_or(prometheus.firing("FreshetControllerDown").await);
    until("FreshetControllerDown", fires).await;
    until("no series at all", async || {
        prometheus.query(&of("kelp")).await.is_empty().then_some(())
    })
    .await;
}

async fn table(store: &Server, name: &str) -> Fixture {
    Fixture::create_in(Spec::default(), &store.uri(name), store.writer_options()).await
}
