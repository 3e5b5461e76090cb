//! Who reads the installed reader: a job in a Pod with a projected token, and a person outside with kubectl and curl.
//!
//! Lives here: both ways in, as `docs/reading.md` tells them. May use: the release, `asks.py`, curl. Never: Freshet's own
//! code, or a way around TLS.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Cluster, IMAGE};
use crate::pods::python;
use crate::reading::{AUDIENCE, certificate};
use crate::release::{HOME, Release};

/// The Deployment, the Service and the account of the reader.
pub const READER: &str = "tide-freshet-reader";
/// The Secret with its certificate.
pub const TLS: &str = "reader-tls";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/asks.py");
/// Who reads, of the Experiment's own namespace.
const JOB: &str = "trainer";

/// The name that the reader is reached by in the cluster.
fn host() -> String {
    format!("{READER}.{HOME}.svc")
}

fn authority(cluster: &Cluster) -> PathBuf {
    cluster.folder().join("reader/tls.crt")
}

/// Puts the reader's certificate there.
pub fn prepare(cluster: &Cluster) {
    let folder = cluster.folder().join("reader");
    std::fs::create_dir(&folder).unwrap();
    let files = certificate(&folder, &host());
    let [chain, key] = files.each_ref().map(|f| f.to_str().unwrap());
    let (chain, key) = (format!("--cert={chain}"), format!("--key={key}"));
    cluster.kubectl_ok(&["create", "secret", "tls", TLS, "-n", HOME, &chain, &key]);
}

fn path((namespace, name): (&str, &str)) -> String {
    format!("/api/v1/namespaces/{namespace}/experiments/{name}/count?source=all")
}

/// Lets the job's account read the records of a namespace, by the chart's own role.
pub fn let_in(cluster: &Cluster, namespace: &str) {
    cluster.kubectl_ok(&["create", "serviceaccount", JOB, "-n", namespace]);
    let who = format!("--serviceaccount={namespace}:{JOB}");
    let role = "--clusterrole=tide-freshet-data-reader";
    cluster.kubectl_ok(&["create", "rolebinding", JOB, "-n", namespace, role, &who]);
}

/// What a job in a Pod of the Experiment's namespace is answered: the status, and the answer.
pub fn from_a_pod(release: &Release, exp: (&str, &str), pod: &str) -> (u16, Value) {
    let cluster = &release.cluster;
    let (python, places) = python();
    let service = cluster.get(HOME, &format!("service/{READER}"));
    let mount = |(n, at): (usize, &PathBuf)| json!({ "name": format!("place-{n}"), "mountPath": at, "readOnly": true });
    let volume = |(n, at): (usize, &PathBuf)| json!({ "name": format!("place-{n}"), "hostPath": { "path": at, "type": "Directory" } });
    let mut mounts: Vec<Value> = places.iter().enumerate().map(mount).collect();
    mounts.push(json!({ "name": "token", "mountPath": "/run/freshet", "readOnly": true }));
    let mut volumes: Vec<Value> = places.iter().enumerate().map(volume).collect();
    volumes.push(json!({ "name": "token", "projected": { "sources": [{
        "serviceAccountToken": { "path": "token", "audience": AUDIENCE, "expirationSeconds": 600 },
    }] } }));
    let url = format!("https://{}{}", host(), path(exp));
    cluster.apply(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": pod, "namespace": exp.0 },
        "spec": {
            "serviceAccountName": JOB,
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            // The cluster of the tests has no DNS.
            "hostAliases": [{ "ip": service["spec"]["clusterIP"], "hostnames": [host()] }],
            "containers": [{
                "name": "asks",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": [python, SCRIPT, url, "/run/freshet/token"],
                "env": [{ "name": "CA", "value": std::fs::read_to_string(authority(cluster)).unwrap() }],
                "securityContext": { "runAsUser": 0 },
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    }));
    let object = format!("pod/{pod}");
    let done = "--for=jsonpath={.status.phase}=Succeeded";
    let wait = ["wait", &object, "-n", exp.0, done, "--timeout=120s"];
    let waited = cluster.kubectl(&wait);
    let said = cluster.kubectl_ok(&["logs", &object, "-n", exp.0]);
    assert!(waited.status.success(), "{said}");
    let (status, text) = said.split_once(' ').unwrap();
    (status.parse().unwrap(), serde_json::from_str(text).unwrap())
}

/// What the account of a namespace is answered outside of the cluster, by `kubectl create token`, `kubectl port-forward` and curl.
pub fn from_outside(release: &Release, of: &str, exp: (&str, &str)) -> (u16, Value) {
    let cluster = &release.cluster;
    let audience = format!("--audience={AUDIENCE}");
    let token = cluster.kubectl_ok(&["create", "token", JOB, "-n", of, &audience]);
    let service = format!("service/{READER}");
    let mut forwards = cluster
        .command("kubectl")
        .args(["port-forward", "-n", HOME, &service, ":443"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut says = BufReader::new(forwards.stdout.take().unwrap());
    says.read_line(&mut line).unwrap();
    // Forwarding from 127.0.0.1:41233 -> 8443
    let port = line
        .split_whitespace()
        .nth(2)
        .and_then(|at| at.rsplit_once(':'));
    let (_, port) = port.unwrap_or_else(|| panic!("{line:?}"));
    let done = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--write-out",
            "\n%{http_code}",
            "--cacert",
        ])
        .arg(authority(cluster))
        .args(["--connect-to", &format!("::127.0.0.1:{port}")])
        .args([
            "--header",
            &format!("Authorization: Bearer {}", token.trim()),
        ])
        .arg(format!("https://{}{}", host(), path(exp)))
        .output()
        .unwrap();
    // It may have ended already.
    let _ = forwards.kill();
    let _ = forwards.wait();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let text = String::from_utf8(done.stdout).unwrap();
    let (text, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(text).unwrap())
}
