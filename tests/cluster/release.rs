//! The operator as its users install and see it: the chart by helm, Pods, Experiments by kubectl, and a store beside.
//!
//! Lives here: helm, and `Release`, an installed operator with an S3 server that Pods and this machine reach. May use: the
//! harness, the store servers. Never: a judgement of what is right, which is a test's.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Cluster, IMAGE};
use crate::servers::{Kind, PATIENCE, Server};
use crate::visitors::{self, READER, TLS};

pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/freshet");
/// The release's namespace.
pub const HOME: &str = "operators";
/// The Deployment, the Lease and the account of the release.
pub const CONTROLLER: &str = "tide-freshet-controller";
/// The Secret that opens the tables, in each namespace.
pub const KEYS: &str = "maze-keys";

fn helm(cluster: &Cluster, args: &[&str]) -> Output {
    let folder = cluster.folder().join("helm");
    let mut command = cluster.command("helm");
    for part in ["CACHE", "CONFIG", "DATA"] {
        command.env(format!("HELM_{part}_HOME"), folder.join(part));
    }
    command.args(args).output().unwrap()
}

pub fn helm_ok(cluster: &Cluster, args: &[&str]) -> String {
    let output = helm(cluster, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "helm {args:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Asks again and again until the answer is there. For what tells no event: a store, a process.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// An installed operator.
pub struct Release {
    pub cluster: Cluster,
    pub store: Server,
    /// The logs of its Pods, also of those that are gone: what each file said when it was last looked at.
    logs: BTreeMap<String, String>,
}

impl Release {
    /// A cluster with a node, a store beside it, and the chart with two replicas.
    pub async fn install() -> Self {
        let cluster = Cluster::with_node();
        let store = Server::start_on(cluster.gateway().parse().unwrap(), Kind::S3).await;
        cluster.namespace(HOME);
        let restricted = "pod-security.kubernetes.io/enforce=restricted";
        cluster.kubectl_ok(&["label", "namespace", HOME, restricted]);
        visitors::prepare(&cluster);
        let made = Self {
            cluster,
            store,
            logs: BTreeMap::new(),
        };
        made.helm("install", &[]);
        made
    }

    /// Installs or upgrades, and waits until its Pods are ready.
    pub fn helm(&self, verb: &str, more: &[&str]) {
        let (repository, tag) = IMAGE.rsplit_once(':').unwrap();
        let image = format!("image.repository={repository},image.tag={tag},image.pullPolicy=Never");
        let endpoint = self.store.endpoint(self.store.at);
        let store = format!("storage.allowedEndpoints={{{endpoint}}}");
        let paced = "engine.pollInterval=200ms,defaults.retention.drainDelay=1s";
        let small = "resources.requests.memory=256Mi,resources.requests.cpu=50m";
        let reads = format!("reader.enabled=true,reader.tls.existingSecret={TLS}");
        let little = "reader.resources.requests.memory=64Mi,reader.resources.requests.cpu=20m";
        let mut args = vec![verb, "tide", CHART, "-n", HOME, "--wait", "--timeout=3m"];
        for set in [&image, &store, paced, small, &reads, little]
            .into_iter()
            .chain(more.iter().copied())
        {
            args.extend(["--set", set]);
        }
        helm_ok(&self.cluster, &args);
    }

    pub fn uninstall(&self) {
        helm_ok(&self.cluster, &["uninstall", "tide", "-n", HOME, "--wait"]);
    }

    /// Puts the Secret of a namespace there, or changes it.
    pub fn secret(&self, namespace: &str, keys: &BTreeMap<String, String>) {
        self.cluster.apply(&json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": KEYS,
                "namespace": namespace,
                "labels": { "freshet.dev/storage": "true" },
            },
            "stringData": keys,
        }));
    }

    /// Makes the Experiment of the table of its name, with more in its spec.
    pub fn experiment(&self, namespace: &str, name: &str, more: Value) {
        let mut spec = json!({ "table": serde_json::to_value(self.store.spec(name)).unwrap() });
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.cluster.apply(&json!({
            "apiVersion": "freshet.dev/v1alpha1",
            "kind": "Experiment",
            "metadata": { "name": name, "namespace": namespace },
            "spec": spec,
        }));
    }

    pub fn get(&self, (namespace, name): (&str, &str)) -> Value {
        self.cluster.get(namespace, &format!("experiment/{name}"))
    }

    /// Waits for something of an Experiment, as in `condition=Fresh`.
    pub fn wait(&self, (namespace, name): (&str, &str), what: &str) {
        let object = format!("experiment/{name}");
        let what = format!("--for={what}");
        let args = ["wait", "-n", namespace, &object, &what, "--timeout=120s"];
        let output = self.cluster.kubectl(&args);
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            panic!("{what}: {said}{:#}", self.get((namespace, name))["status"]);
        }
    }

    /// Waits until a condition has a status and a reason.
    pub fn wait_for(&self, exp: (&str, &str), kind: &str, status: &str, reason: &str) {
        let of = |field| format!("jsonpath={{.status.conditions[?(@.type==\"{kind}\")].{field}}}");
        self.wait(exp, &format!("{}={reason}", of("reason")));
        self.wait(exp, &format!("{}={status}", of("status")));
    }

    /// Waits until a field has a value, as in `.status.lastHandledRequest`.
    pub fn wait_field(&self, exp: (&str, &str), path: &str, value: &str) {
        self.wait(exp, &format!("jsonpath={{{path}}}={value}"));
    }

    pub fn patch(&self, (namespace, name): (&str, &str), spec: Value) {
        let patch = json!({ "spec": spec }).to_string();
        let args = [
            "patch",
            "experiment",
            name,
            "-n",
            namespace,
            "--type=merge",
            "-p",
            &patch,
        ];
        self.cluster.kubectl_ok(&args);
    }

    /// Asks for a merge now, and waits until that was passed on.
    pub fn request(&self, (namespace, name): (&str, &str), what: &str) {
        let asks = format!("freshet.dev/requestedAt={what}");
        let args = [
            "annotate",
            "experiment",
            name,
            "-n",
            namespace,
            "--overwrite",
            &asks,
        ];
        self.cluster.kubectl_ok(&args);
        self.wait_field((namespace, name), ".status.lastHandledRequest", what);
    }

    /// What `freshet backlog` says of a table, from this machine.
    pub fn backlog(&self, table: &str) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_freshet"))
            .args(["backlog", "--output=json"])
            .args(self.store.flags(table, &[]))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn pending(&self, table: &str) -> u64 {
        self.backlog(table)["pending"]["generations"]
            .as_u64()
            .unwrap()
    }

    // -- Pods ---------------------------------------------------------------------------------------------------------

    /// Follows an object until one line of what is shown of it is the awaited one.
    fn follow(&self, object: &str, show: &str, is: impl Fn(&str) -> bool) -> String {
        let show = format!("jsonpath={{{show}}}{{\"\\n\"}}");
        let mut kubectl = self.cluster.command("kubectl");
        let mut child = kubectl
            .args([
                "get",
                "-n",
                HOME,
                object,
                "--watch",
                "--request-timeout=120s",
            ])
            .args(["-o", &show])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let found = says.lines().map(|line| line.unwrap()).find(|line| is(line));
        // It may have ended already.
        let _ = child.kill();
        let _ = child.wait();
        found.unwrap_or_else(|| panic!("{object} is never as awaited"))
    }

    /// Who leads, once it is another than `not`: as the Lease names it.
    pub fn leader_after(&self, not: &str) -> String {
        let lease = format!("lease/{CONTROLLER}");
        let is = |line: &str| !line.is_empty() && line != not;
        self.follow(&lease, ".spec.holderIdentity", is)
    }

    /// Who leads now.
    pub fn leader(&self) -> String {
        self.leader_after("")
    }

    /// Waits until both replicas are ready.
    pub fn ready(&self) {
        let deployment = format!("deployment/{CONTROLLER}");
        let status = [
            "rollout",
            "status",
            &deployment,
            "-n",
            HOME,
            "--timeout=120s",
        ];
        self.cluster.kubectl_ok(&status);
        let all = "--for=jsonpath={.status.readyReplicas}=2";
        self.cluster
            .kubectl_ok(&["wait", &deployment, "-n", HOME, all, "--timeout=120s"]);
    }

    /// A Pod's metrics.
    pub fn metrics(&self, pod: &str) -> String {
        let path = format!("/api/v1/namespaces/{HOME}/pods/{pod}:8080/proxy/metrics");
        self.cluster.kubectl_ok(&["get", "--raw", &path])
    }

    /// Notes what the Pods' logs say; what is noted stays when a Pod goes.
    pub fn note_logs(&mut self) {
        let folder = self.cluster.folder().join("root/var/log/pods");
        for file in files(&folder) {
            let name = file.to_string_lossy().into_owned();
            // A Pod may go meanwhile.
            let text = std::fs::read_to_string(&file);
            let own = [CONTROLLER, READER].iter().any(|of| name.contains(of));
            if let (true, Ok(text)) = (own, text) {
                self.logs.insert(name, text);
            }
        }
    }

    /// All logs that were noted.
    pub fn logs(&self) -> impl Iterator<Item = &str> {
        self.logs.values().map(String::as_str)
    }

    /// How often the operator wrote to the API server, its Lease aside.
    pub fn writes(&self) -> usize {
        let account = format!("system:serviceaccount:{HOME}:{CONTROLLER}");
        let requests = self.cluster.requests();
        let writes = requests.iter().filter(|r| {
            r["user"]["username"] == account.as_str()
                && !matches!(r["verb"].as_str(), Some("get" | "list" | "watch"))
                && r["objectRef"]["resource"] != "leases"
        });
        writes.count()
    }
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

/// A Pod, of a name as the Lease has it.
pub fn pod(identity: &str) -> &str {
    identity.rsplit_once('_').unwrap().0
}

/// The process of the operator in a Pod, as this machine numbers it: what runs in a cluster is seen from outside.
pub fn process(pod: &str) -> u32 {
    let named = format!("POD_NAME={pod}");
    let of_it = |pid: u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut words = environ.split(|byte| *byte == 0);
        words.any(|word| word == named.as_bytes()).then_some(pid)
    };
    let all = std::fs::read_dir("/proc").unwrap();
    let all = all.filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    all.filter_map(of_it).next().unwrap()
}

/// The sum of a metric's samples that begin like this.
pub fn sum(metrics: &str, begins: &str) -> f64 {
    let samples = metrics.lines().filter(|line| line.starts_with(begins));
    let values = samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap());
    values.sum()
}
