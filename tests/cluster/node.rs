//! The node: Pods run, of an image that holds the built binary.
//!
//! Lives here: what the tests of the operator in Pods take for granted. May use: the harness. Never: the operator.

use std::net::TcpListener;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Cluster, IMAGE};

/// A Job that runs the binary once, as the strictest of Pod Security's levels wants it.
fn job(name: &str, args: &[&str]) -> Value {
    let container = json!({
        "name": "freshet",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": args,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    });
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "harbour"},
        "spec": {"backoffLimit": 0, "template": {"spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        }}},
    })
}

#[test]
fn a_job_runs_the_built_binary_with_no_rights_and_reaches_this_machine() {
    let cluster = Cluster::with_node();
    cluster.apply(&json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "harbour", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }));
    cluster.apply(&job("prints", &["crds", "--stdout"]));
    cluster.kubectl_ok(&[
        "wait",
        "--for=condition=Complete",
        "job/prints",
        "-n",
        "harbour",
        "--timeout=120s",
    ]);
    let printed = cluster.kubectl_ok(&["logs", "-n", "harbour", "job/prints"]);
    let here = Command::new(env!("CARGO_BIN_EXE_freshet"))
        .args(["crds", "--stdout"])
        .output()
        .unwrap();
    assert_eq!(printed, String::from_utf8(here.stdout).unwrap());

    // A server of this machine, at its address on the link, is reached from a Pod.
    let server = TcpListener::bind((cluster.gateway(), 0)).unwrap();
    let endpoint = format!("http://{}", server.local_addr().unwrap());
    let endpoint = format!("endpoint={endpoint}");
    let mut asks = vec!["backlog", "--table", "s3://orchard/plums"];
    let keys = ["aws_access_key_id=plum", "aws_secret_access_key=stone"];
    for option in [
        &endpoint,
        "allowHTTP=true",
        "region=north",
        keys[0],
        keys[1],
    ] {
        asks.extend(["--storage", option]);
    }
    cluster.apply(&job("asks", &asks));
    let (_, peer) = server.accept().unwrap();
    assert_eq!(peer.ip().to_string(), cluster.address());
}
