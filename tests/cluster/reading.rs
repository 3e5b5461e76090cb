//! The reader's binary as a process of a test's own, its callers, and what they are answered.
//!
//! Lives here: `Reader`, the chart's account for it, tokens, and `Answer`. May use: the harness, OpenSSL's own program. Never:
//! a token that the cluster did not sign, where one is meant to be taken.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use reqwest::header::{AUTHORIZATION, HeaderMap};
use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::release::{CHART, helm_ok, until};

/// Whom tokens are for.
pub const AUDIENCE: &str = "freshet.dev";

/// A reader that ends with its test.
pub struct Reader {
    child: Child,
    told: Value,
    kept: tempfile::TempDir,
}

impl Reader {
    /// As whoever a kubeconfig names, over plain HTTP on an address of this machine, with more arguments.
    pub fn start(kubeconfig: &Path, config: &Value, more: &[&str]) -> Self {
        Self::start_with(kubeconfig, config, &[], &[&["--plain-http"], more].concat())
    }

    /// The same, with an environment and with what says how it is served.
    pub fn start_with(
        kubeconfig: &Path,
        config: &Value,
        env: &[(&str, &str)],
        more: &[&str],
    ) -> Self {
        let kept = tempfile::tempdir().unwrap();
        let file = kept.path().join("config.json");
        std::fs::write(&file, config.to_string()).unwrap();
        let logs = std::fs::File::create(kept.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_freshet"));
        command.args(["reader", "--output=json"]);
        for address in ["listen", "metrics-address", "health-address"] {
            let given = more.iter().any(|m| m.starts_with(&format!("--{address}=")));
            if !given {
                command.arg(format!("--{address}=127.0.0.1:0"));
            }
        }
        let mut child = command
            .env("KUBECONFIG", kubeconfig)
            .envs(env.iter().copied())
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
        let told = serde_json::from_str(&line).unwrap_or_else(|e| {
            let log = std::fs::read_to_string(kept.path().join("log"));
            panic!("it does not start: {e}: {line:?} {log:?}")
        });
        Self { child, told, kept }
    }

    /// Waits until it is ready.
    pub async fn ready(self) -> Self {
        self.until_ready("200").await;
        self
    }

    /// Waits until its readiness is this status.
    pub async fn until_ready(&self, status: &str) {
        let url = format!("http://{}/readyz", self.told["health"].as_str().unwrap());
        eventually(status, async || {
            let answer = reqwest::get(&url).await.ok()?;
            (answer.status().as_str() == status).then_some(())
        })
        .await;
    }

    /// Where records are.
    pub fn address(&self) -> &str {
        self.told["address"].as_str().unwrap()
    }

    /// A GET, with a token or without.
    pub async fn get(&self, path: &str, token: Option<&str>) -> Answer {
        let mut request = reqwest::Client::new().get(format!("{}{path}", self.address()));
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        Answer::of(request.send().await.unwrap()).await
    }

    pub async fn metrics(&self) -> String {
        let url = format!("http://{}/metrics", self.told["metrics"].as_str().unwrap());
        reqwest::get(url).await.unwrap().text().await.unwrap()
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

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub async fn of(answer: reqwest::Response) -> Self {
        Self {
            status: answer.status().as_u16(),
            headers: answer.headers().clone(),
            text: answer.text().await.unwrap(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Status and kind of a problem.
    pub fn problem(&self) -> (u16, String) {
        let kind = self.json()["type"].as_str().unwrap_or_default().to_owned();
        (self.status, kind.replace("urn:freshet:problem:", ""))
    }

    /// The names of a list of experiments, each with its namespace.
    pub fn listed(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{self:?}");
        let json = self.json();
        let all = json["experiments"].as_array().unwrap().iter();
        let name = |e: &Value| {
            let part = |of: &str| e[of].as_str().unwrap().to_owned();
            format!("{}/{}", part("namespace"), part("name"))
        };
        all.map(name).collect()
    }
}

/// Asks again and again until the answer is there. For what tells no event: a process, a cache.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        let patience = crate::servers::PATIENCE;
        assert!(begun.elapsed() < patience, "it does not come: {what}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// The reader's account as the chart makes it in a namespace, which alone it may serve, and a kubeconfig of it.
pub fn account(cluster: &Cluster, namespace: &str) -> PathBuf {
    let args = [
        "template",
        namespace,
        CHART,
        "-n",
        namespace,
        "--kube-version",
        "1.36.3",
        "--show-only",
        "templates/reader/access.yaml",
    ];
    let sets = [
        &*format!("watchNamespaces={{{namespace}}}"),
        "reader.enabled=true,reader.plainHTTP=true",
    ];
    let sets = sets.map(|s| ["--set", s]).concat();
    let rendered = helm_ok(cluster, &[&args[..], &sets].concat());
    let file = cluster.folder().join(format!("{namespace}-reader.yaml"));
    std::fs::write(&file, rendered).unwrap();
    cluster.kubectl_ok(&["apply", "-n", namespace, "-f", file.to_str().unwrap()]);
    let name = name(namespace);
    let token = cluster.kubectl_ok(&["create", "token", &name, "-n", namespace]);
    let config = ["config", "view", "--raw", "-o", "json"];
    let mut config: Value = serde_json::from_str(&cluster.kubectl_ok(&config)).unwrap();
    config["users"][0]["user"] = json!({ "token": token.trim() });
    let kubeconfig = cluster.folder().join(format!("{namespace}.kubeconfig"));
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    kubeconfig
}

/// The name of the reader's account and roles in a namespace.
pub fn name(namespace: &str) -> String {
    format!("{namespace}-freshet-reader")
}

/// A service account of a namespace, which may read the records of some namespaces.
pub fn person(cluster: &Cluster, namespace: &str, name: &str, reads: &[&str]) {
    cluster.kubectl_ok(&["create", "serviceaccount", name, "-n", namespace]);
    for reads in reads {
        may_read(cluster, (namespace, name), reads);
    }
}

/// Lets a service account read the records of a namespace, as the chart's data-reader does.
pub fn may_read(cluster: &Cluster, (namespace, name): (&str, &str), reads: &str) {
    let object = |kind: &str, more: Value| {
        let mut whole = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": { "name": format!("{namespace}-{name}"), "namespace": reads },
        });
        let more = more.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(more);
        cluster.apply(&whole);
    };
    let rule = json!({
        "apiGroups": ["freshet.dev"], "resources": ["experiments/data"], "verbs": ["get", "list"],
    });
    object("Role", json!({ "rules": [rule] }));
    let role = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": format!("{namespace}-{name}"),
    });
    let subject = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
    object(
        "RoleBinding",
        json!({ "roleRef": role, "subjects": [subject] }),
    );
    let who = format!("--as=system:serviceaccount:{namespace}:{name}");
    let what = "experiments.freshet.dev";
    let can = [
        "auth",
        "can-i",
        "get",
        what,
        "--subresource=data",
        "-n",
        reads,
        &who,
    ];
    until("the role counts", || {
        cluster.kubectl(&can).status.success().then_some(())
    });
}

/// A token of a service account, for an audience.
pub fn token(cluster: &Cluster, (namespace, name): (&str, &str), audience: &str) -> String {
    let audience = format!("--audience={audience}");
    let made = cluster.kubectl_ok(&["create", "token", name, "-n", namespace, &audience]);
    made.trim().to_owned()
}

/// OpenSSL to its end, with an input; what it printed.
pub fn openssl(args: &[&str], input: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut child = Command::new("openssl")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "openssl {args:?}: {said}");
    done.stdout
}

/// A certificate and key of this name, signed by themselves, in a folder.
pub fn certificate(folder: &Path, host: &str) -> [PathBuf; 2] {
    let files = ["crt", "key"].map(|end| folder.join(format!("tls.{end}")));
    let [chain, key] = files.each_ref().map(|f| f.to_str().unwrap());
    let (subject, alternative) = (format!("/CN={host}"), format!("subjectAltName=DNS:{host}"));
    let curve = "ec_paramgen_curve:P-256";
    let how = ["req", "-x509", "-newkey", "ec", "-pkeyopt", curve, "-nodes"];
    let what = ["-days", "2", "-subj", &subject, "-addext", &alternative];
    let no_authority = "basicConstraints=critical,CA:FALSE";
    let into = ["-addext", no_authority, "-keyout", key, "-out", chain];
    openssl(&[&how[..], &what, &into].concat(), b"");
    files
}
