//! Many bad Experiments beside three good ones: each is refused with its field, and the good ones never notice.
//!
//! Lives here: the API server's and the controller's answers to what `bad_specs` makes. May use: the harness, the
//! controller's process, the store servers. Never: a list of what is bad.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::bad_specs::{By, Maker, SLIP};
use crate::fixtures::{Fixture, Spec};
use crate::harness::Cluster;
use crate::release::until;
use crate::running::{Controller, allowing, of_store, secret, settle, wait, wait_for};
use crate::servers::{Kind, MARK, Server};
use crate::writing::round;

const NS: &str = "shrike";
const GOOD: [&str; 3] = ["plums", "pears", "kelp"];
const BAD: usize = 500;

/// The API server by plain HTTP: a program for each of many requests takes long.
struct Proxy {
    child: Child,
    url: String,
}

impl Proxy {
    fn start(cluster: &Cluster) -> Self {
        let mut kubectl = cluster.command("kubectl");
        kubectl.args(["proxy", "--port=0"]).stdout(Stdio::piped());
        let mut child = kubectl.spawn().unwrap();
        let mut line = String::new();
        let mut says = BufReader::new(child.stdout.take().unwrap());
        says.read_line(&mut line).unwrap();
        let at = line.trim().rsplit(' ').next().unwrap();
        let url = format!("http://{at}/apis/freshet.dev/v1alpha1/namespaces/{NS}/experiments");
        Self { child, url }
    }

    /// Creates one as `kubectl create` does; the answer's code and body.
    async fn create(&self, document: &Value) -> (u16, Value) {
        let url = format!("{}?fieldValidation=Strict", self.url);
        self.send(reqwest::Client::new().post(url), document).await
    }

    async fn patch_status(&self, name: &str, status: &Value) -> (u16, Value) {
        let url = format!("{}/{name}/status?fieldValidation=Strict", self.url);
        let patch = reqwest::Client::new().patch(url);
        let body = json!({ "status": status });
        self.send(
            patch.header("content-type", "application/merge-patch+json"),
            &body,
        )
        .await
    }

    async fn send(&self, request: reqwest::RequestBuilder, body: &Value) -> (u16, Value) {
        let typed = request.try_clone().unwrap().build().unwrap();
        let request = match typed.headers().contains_key("content-type") {
            true => request,
            false => request.header("content-type", "application/json"),
        };
        let answer = request.body(body.to_string()).send().await.unwrap();
        let code = answer.status().as_u16();
        (
            code,
            serde_json::from_str(&answer.text().await.unwrap()).unwrap(),
        )
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often the statuses of the good ones were written.
fn writes(cluster: &Cluster) -> usize {
    let requests = cluster.requests();
    let of = |r: &&Value| {
        let at = &r["objectRef"];
        at["namespace"] == NS
            && at["subresource"] == "status"
            && GOOD.iter().any(|name| at["name"] == *name)
    };
    requests.iter().filter(of).count()
}

fn condition<'a>(experiment: &'a Value, kind: &str) -> &'a Value {
    let all = experiment["status"]["conditions"].as_array();
    let found = all.into_iter().flatten().find(|c| c["type"] == kind);
    found.unwrap_or(&Value::Null)
}

/// Statuses that nobody should write.
fn garbage() -> Vec<(Value, Option<&'static str>)> {
    let merge = json!({ "time": "2026-01-01T00:00:00Z", "version": 1, "generations": 1, "duration": "-1s" });
    let condition = json!({ "type": "Ready", "status": "Perhaps", "reason": "X", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    vec![
        (json!("fine"), Some("status")),
        (
            json!({ "observedGeneration": -7 }),
            Some("status.observedGeneration"),
        ),
        (
            json!({ "conditions": [condition] }),
            Some("status.conditions[0].status"),
        ),
        (json!({ "conditions": "none" }), Some("status.conditions")),
        (
            json!({ "backlog": { "shards": 1 } }),
            Some("status.backlog.observedTime"),
        ),
        (
            json!({ "lastMerge": merge }),
            Some("status.lastMerge.duration"),
        ),
        (json!({ "moon": "full" }), Some("status.moon")),
        // The schema takes these.
        (json!({ "observedGeneration": 999, "conditions": [] }), None),
        (json!({ "quarantinedCount": 1u64 << 40 }), None),
        (
            json!({ "backlog": { "shards": 1u64 << 40, "pendingGenerations": 1, "observedTime": "2026-01-01T00:00:00Z" } }),
            None,
        ),
        (json!(null), None),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_bad_experiments_are_each_told_why_and_three_good_ones_never_notice() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    cluster.namespace(NS);
    let store = Server::start(Kind::S3).await;
    cluster.apply(&secret(NS, &store.secret()));
    let mut unlabelled = secret(NS, &store.secret());
    unlabelled["metadata"] = json!({ "name": "unlabelled", "namespace": NS });
    cluster.apply(&unlabelled);
    let endpoint = store.endpoint(store.at);
    let mut controller = Controller::start(cluster, NS, &allowing(&endpoint));
    let mut tables = vec![];
    for name in GOOD {
        let (uri, options) = (store.uri(name), store.writer_options());
        let mut table = Fixture::create_in(Spec::default(), &uri, options).await;
        round(&mut table, 1).await;
        let soon = json!({ "freshness": { "target": "2s" } });
        cluster.apply(&of_store(NS, name, &store, soon));
        tables.push(table);
    }
    for name in GOOD {
        wait(cluster, NS, name, "condition=Fresh");
        settle(cluster, NS, name);
    }
    let before = writes(cluster);

    let seed = std::env::var("FRESHET_SEED").map_or(41, |s| s.parse().unwrap());
    let mut maker = Maker::new(seed, NS, endpoint);
    let proxy = Proxy::start(cluster);
    let (mut wrong, mut accepted) = (vec![], vec![]);
    for _ in 0..BAD {
        let bad = maker.next();
        let (code, answer) = proxy.create(&bad.document).await;
        let said = answer["message"].as_str().unwrap_or_default();
        let name = bad.document["metadata"]["name"].as_str().unwrap();
        let told = match bad.by {
            By::Server => {
                (400..500).contains(&code) && said.contains(&bad.names) && !said.contains(SLIP)
            }
            By::Condition => code == 201,
        };
        if !told {
            let spec = &bad.document["spec"];
            wrong.push(format!(
                "{name}: {code}, not {:?} {}: {said:.600}\n{spec}",
                bad.by, bad.names
            ));
        }
        if code == 201 {
            accepted.push((name.to_owned(), bad.names));
        }
    }
    assert!(
        wrong.is_empty(),
        "seed {seed}: {} wrong\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(
        accepted.len() > BAD / 10 && accepted.len() < BAD / 2,
        "{}",
        accepted.len()
    );

    let told = |seen: &Value, names: &str| {
        let ready = condition(seen, "Ready");
        let said = ready["message"].as_str().unwrap_or_default();
        ready["status"] == "False" && said.contains(names) && !said.contains(MARK)
    };
    let of_this = ["get", "experiments", "-n", NS, "-o", "json"];
    until("every condition", || {
        let all: Value = serde_json::from_str(&cluster.kubectl_ok(&of_this)).unwrap();
        let of = |name: &str| {
            let all = all["items"].as_array().unwrap();
            all.iter()
                .find(|e| e["metadata"]["name"] == name)
                .unwrap()
                .clone()
        };
        // The last one tells which where it does not come.
        let silent = accepted
            .iter()
            .find(|(name, names)| !told(&of(name), names));
        if let Some((name, names)) = silent {
            eprintln!(
                "{name} is not told of {names} yet: {}",
                condition(&of(name), "Ready")
            );
        }
        silent.is_none().then_some(())
    });
    assert_eq!(
        writes(cluster),
        before,
        "statuses of the good ones were written"
    );

    a_garbled_status_is_refused_or_mended(cluster, &proxy, &accepted).await;
    assert_eq!(
        writes(cluster),
        before,
        "statuses of the good ones were written"
    );
    // They are cared for as before, by the same process.
    assert!(controller.runs());
    for (name, table) in GOOD.into_iter().zip(&mut tables) {
        let merged = || {
            let seen = cluster.get(NS, &format!("experiment/{name}"));
            seen["status"]["lastMerge"]["time"].clone()
        };
        // Until then the status still tells of the first round, with nothing pending.
        let before = merged();
        round(table, 2).await;
        until(name, || (merged() != before).then_some(()));
        settle(cluster, NS, name);
        let verdict = table.verdict().await;
        assert!(verdict.is_sound(), "{name}: {verdict:?}");
    }
    for marked in [MARK, SLIP] {
        assert!(!controller.log().contains(marked));
    }
    assert_eq!(controller.end(), Some(0));
}

async fn a_garbled_status_is_refused_or_mended(
    cluster: &Cluster,
    proxy: &Proxy,
    accepted: &[(String, String)],
) {
    let (name, names) = &accepted[0];
    for (status, refused) in garbage() {
        let (code, answer) = proxy.patch_status(name, &status).await;
        let said = answer["message"].as_str().unwrap_or_default();
        if let Some(field) = refused {
            assert!(
                (400..500).contains(&code) && said.contains(field),
                "{status}: {code}: {said}"
            );
            continue;
        }
        assert_eq!(code, 200, "{status}: {said}");
        let mended = |seen: &Value| {
            let ready = condition(seen, "Ready");
            ready["message"]
                .as_str()
                .is_some_and(|said| said.contains(names))
                && seen["status"]["observedGeneration"] == 1
                && seen["status"]["quarantinedCount"].is_null()
                && seen["status"]["backlog"].is_null()
        };
        until(&status.to_string(), || {
            mended(&cluster.get(NS, &format!("experiment/{name}"))).then_some(())
        });
    }
    wait_for(cluster, NS, GOOD[0], "Ready", "Ready");
}
