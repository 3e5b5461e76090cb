//! What a cluster does to the operator's Pods by itself: it evicts them, and kills what outgrows its limit.
//!
//! Lives here: eviction by the API that drains use, and a memory limit that is too small for a merge. May use: the release.
//! Never: what writes meanwhile, and the verdict over it, which are the operator's test.

use serde_json::{Value, json};

use crate::release::{CONTROLLER, HOME, Release, pod, process, until};

/// Evicts who leads, as `kubectl drain` does; whoever leads afterwards.
pub fn the_leader_is_evicted(release: &mut Release) -> String {
    let first = release.leader();
    release.note_logs();
    let evicts = |name: &str| {
        let path = format!("/api/v1/namespaces/{HOME}/pods/{name}/eviction");
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "name": name, "namespace": HOME },
        });
        let args = ["create", "--raw", &path, "-f", "-"];
        release.cluster.kubectl_in(&eviction, &args)
    };
    let evicted = evicts(pod(&first));
    assert!(evicted.status.success(), "{evicted:?}");
    let second = release.leader_after(&first);
    assert_ne!(pod(&first), pod(&second));
    second
}

/// The memory of a Pod's process that no file backs, in bytes.
fn anonymous(pod: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process(pod))).unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    let kib = line.split_whitespace().nth(1).unwrap();
    1024 * kib.parse::<u64>().unwrap()
}

fn pods(release: &Release) -> Vec<Value> {
    let all = ["get", "pods", "-n", HOME, "-o", "json"];
    let all: Value = serde_json::from_str(&release.cluster.kubectl_ok(&all)).unwrap();
    all["items"].as_array().unwrap().clone()
}

/// Gives the Pods a limit that is enough to stand by and too little to merge, until one of them was killed for it; then the
/// limit that they had.
pub fn the_leader_outgrows_its_limit(release: &mut Release) {
    let leader = release.leader();
    let standby = pods(release)
        .iter()
        .map(|p| p["metadata"]["name"].as_str().unwrap().to_owned())
        .find(|name| name != pod(&leader))
        .unwrap();
    let (least, most) = (anonymous(&standby), anonymous(pod(&leader)));
    let limit = format!("memory={}", least + (most - least) / 3);
    release.note_logs();
    let deployment = format!("deployment/{CONTROLLER}");
    let limited = [format!("--limits={limit}"), format!("--requests={limit}")];
    let set = ["set", "resources", &deployment, "-n", HOME];
    let [limits, requests] = &limited;
    let set = [&set[..], &[limits, requests]].concat();
    release.cluster.kubectl_ok(&set);
    until("a Pod is killed by its limit", || {
        let killed = pods(release).iter().any(|p| {
            let container = &p["status"]["containerStatuses"][0];
            ["state", "lastState"]
                .iter()
                .any(|at| container[*at]["terminated"]["reason"] == "OOMKilled")
        });
        killed.then_some(())
    });
    let undo = ["rollout", "undo", &deployment, "-n", HOME];
    release.cluster.kubectl_ok(&undo);
}
