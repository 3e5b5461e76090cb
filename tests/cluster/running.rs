//! The controller's binary as a process of a test's own, against an API server, and what is asked of that.
//!
//! Lives here: `Controller`, Experiments and Secrets as documents, and waits for conditions. May use: the harness, the
//! store servers. Never: a Pod.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::release::until;
use crate::servers::Server;

/// A controller that ends with its test.
pub struct Controller {
    child: Child,
    told: Value,
    kept: tempfile::TempDir,
}

impl Controller {
    /// As the cluster's administrator.
    pub fn start(cluster: &Cluster, namespace: &str, config: &Value) -> Self {
        Self::start_as(cluster.kubeconfig(), namespace, config, &["--poll=200ms"])
    }

    /// As whoever a kubeconfig names, with more arguments.
    pub fn start_as(kubeconfig: &Path, namespace: &str, config: &Value, more: &[&str]) -> Self {
        let binary = Command::new(env!("CARGO_BIN_EXE_freshet"));
        Self::start_by(binary, kubeconfig, namespace, config, more)
    }

    /// One that has a file of names of its own in place of the machine's.
    pub fn start_with_hosts(hosts: &Path, cluster: &Cluster, namespace: &str) -> Self {
        let mut command = Command::new("unshare");
        let binds = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        command.args(["--mount", "sh", "-c", binds]);
        command.arg(hosts).arg(env!("CARGO_BIN_EXE_freshet"));
        let more = ["--poll=200ms"];
        Self::start_by(command, cluster.kubeconfig(), namespace, &json!({}), &more)
    }

    fn start_by(
        mut command: Command,
        kubeconfig: &Path,
        namespace: &str,
        config: &Value,
        more: &[&str],
    ) -> Self {
        let kept = tempfile::tempdir().unwrap();
        let file = kept.path().join("config.json");
        std::fs::write(&file, config.to_string()).unwrap();
        let logs = std::fs::File::create(kept.path().join("log")).unwrap();
        let mut child = command
            .env("KUBECONFIG", kubeconfig)
            .args(["controller", "--output=json"])
            .args([
                "--metrics-address=127.0.0.1:0",
                "--health-address=127.0.0.1:0",
            ])
            .args([
                "--watch-namespace",
                namespace,
                "--lease-namespace",
                namespace,
            ])
            .arg("--config")
            .arg(file)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(logs)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut says = BufReader::new(child.stdout.take().unwrap());
        says.read_line(&mut line).unwrap();
        let told = serde_json::from_str(&line);
        Self {
            child,
            told: told.unwrap(),
            kept,
        }
    }

    /// Where its metrics are.
    pub fn address(&self) -> &str {
        self.told["metrics"].as_str().unwrap()
    }

    pub async fn metrics(&self) -> String {
        answer(&format!("http://{}/metrics", self.address())).await
    }

    /// What its liveness probe is told.
    pub async fn livez(&self) -> String {
        let at = self.told["health"].as_str().unwrap();
        answer(&format!("http://{at}/livez?verbose")).await
    }

    /// What it wrote into its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.kept.path().join("log")).unwrap()
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Asks it to end, and waits until it has.
    pub fn end(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        Command::new("kill").arg(pid).status().unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn answer(url: &str) -> String {
    let answer = reqwest::get(url).await.unwrap();
    assert!(answer.status().is_success(), "{url}: {answer:?}");
    answer.text().await.unwrap()
}

/// A configuration that lets Experiments reach a store of this machine.
pub fn allowing(endpoint: &str) -> Value {
    json!({
        "storage": { "allowedEndpoints": [endpoint] },
        "defaults": { "retention": { "drainDelay": "1s" } },
    })
}

pub fn experiment(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "freshet.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": { "name": name, "namespace": namespace },
        "spec": spec,
    })
}

/// The Experiment of a table in a store, with more in its spec.
pub fn of_store(namespace: &str, name: &str, store: &Server, more: Value) -> Value {
    let mut spec = json!({ "table": store.spec(name) });
    let more = more.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(more);
    experiment(namespace, name, &spec)
}

/// The Secret that Experiments of a namespace name, as it opens a store.
pub fn secret(namespace: &str, keys: &BTreeMap<String, String>) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "maze-keys",
            "namespace": namespace,
            "labels": { "freshet.dev/storage": "true" },
        },
        "stringData": keys,
    })
}

/// Waits until a condition has a reason.
pub fn wait_for(cluster: &Cluster, namespace: &str, name: &str, kind: &str, reason: &str) {
    let what = format!("jsonpath={{.status.conditions[?(@.type==\"{kind}\")].reason}}={reason}");
    wait(cluster, namespace, name, &what);
}

/// Waits for something of an Experiment, as in `condition=Fresh`.
pub fn wait(cluster: &Cluster, namespace: &str, name: &str, what: &str) {
    let object = format!("experiment/{name}");
    let what = format!("--for={what}");
    let args = ["wait", "-n", namespace, &object, &what, "--timeout=60s"];
    let output = cluster.kubectl(&args);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        panic!(
            "{what}: {said}{:#}",
            cluster.get(namespace, &object)["status"]
        );
    }
}

/// Changes an Experiment.
pub fn patch(cluster: &Cluster, namespace: &str, name: &str, patch: &Value) {
    let patch = patch.to_string();
    let args = ["patch", "experiment", name, "-n", namespace];
    cluster.kubectl_ok(&[&args[..], &["--type=merge", "-p", &patch]].concat());
}

/// Asks for a merge now, and waits until that was passed on.
pub fn request(cluster: &Cluster, namespace: &str, name: &str, what: &str) {
    let asks = json!({ "metadata": { "annotations": { "freshet.dev/requestedAt": what } } });
    patch(cluster, namespace, name, &asks);
    let handled = format!("jsonpath={{.status.lastHandledRequest}}={what}");
    wait(cluster, namespace, name, &handled);
}

/// Waits until everything is merged and drained, and the status says so.
pub fn settle(cluster: &Cluster, namespace: &str, name: &str) {
    // A request with the words of one before it is none.
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    until(name, || {
        let asked = ASKED.fetch_add(1, Ordering::Relaxed);
        request(cluster, namespace, name, &format!("settle-{asked}"));
        let status = &cluster.get(namespace, &format!("experiment/{name}"))["status"];
        let settled = status["backlog"]["pendingGenerations"] == 0
            && status["reclaim"]["draining"].as_u64() == Some(0);
        settled.then_some(())
    });
}
