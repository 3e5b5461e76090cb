//! The controller's binary against a real API server: what it says of Experiments, and what it leaves alone.
//!
//! Lives here: what needs no store that answers. May use: the harness, the built binary. Never: a Pod, or a sleep where
//! kubectl can wait.

use serde_json::json;

use crate::harness::Cluster;
use crate::running::{Controller, experiment, wait_for};

#[tokio::test]
async fn an_experiment_without_leave_is_told_so_and_no_store_is_asked() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    let ns = "yew-denied";
    cluster.namespace(ns);
    let controller = Controller::start(cluster, ns, &json!({}));
    let spec = json!({ "table": { "uri": "s3://somebody-elses/prefix" } });
    cluster.apply(&experiment(ns, "thief", &spec));
    wait_for(cluster, ns, "thief", "Ready", "NotAllowed");
    let status = &cluster.get(ns, "experiment/thief")["status"];
    assert_eq!(status["observedGeneration"], 1);
    assert!(
        !controller
            .metrics()
            .await
            .contains("freshet_store_requests_total{")
    );
    assert_eq!(controller.end(), Some(0));
    // The next one may lead at once.
    let lease = cluster.get(ns, "lease/freshet-controller");
    let holder = &lease["spec"]["holderIdentity"];
    assert!(holder.is_null() || holder == "", "{lease}");
}

#[tokio::test]
async fn a_deletion_with_merge_pending_ends_though_its_secret_never_was() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    let ns = "yew-deleted";
    cluster.namespace(ns);
    let _controller = Controller::start(cluster, ns, &json!({}));
    let spec = json!({
        "table": { "uri": "s3://maze-runs/rollouts", "secretRef": { "name": "never-was" } },
        "deletionPolicy": "MergePending",
    });
    cluster.apply(&experiment(ns, "maze", &spec));
    wait_for(cluster, ns, "maze", "Ready", "CredentialsMissing");
    let finalizers = "jsonpath={.metadata.finalizers[0]}=experiments.freshet.dev/finalizer";
    let waits = [
        "wait",
        "-n",
        ns,
        "experiment/maze",
        "--for",
        finalizers,
        "--timeout=60s",
    ];
    cluster.kubectl_ok(&waits);
    cluster.kubectl_ok(&["delete", "-n", ns, "experiment/maze", "--timeout=60s"]);
}

#[tokio::test]
async fn an_endpoint_inside_the_cluster_is_refused_unless_it_is_allowed() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    let ns = "yew-inside";
    cluster.namespace(ns);
    let _controller = Controller::start(cluster, ns, &json!({}));
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "maze-keys", "namespace": ns, "labels": { "freshet.dev/storage": "true" } },
        "stringData": { "aws_access_key_id": "who", "aws_secret_access_key": "what" },
    });
    cluster.apply(&secret);
    let spec = json!({ "table": {
        "uri": "s3://maze-runs/rollouts",
        "secretRef": { "name": "maze-keys" },
        "storage": { "endpoint": "http://169.254.169.254", "allowHTTP": true, "region": "us-east-1" },
    } });
    cluster.apply(&experiment(ns, "maze", &spec));
    wait_for(cluster, ns, "maze", "Ready", "NotAllowed");
}

#[tokio::test]
async fn edits_are_seen_after_etcd_forgot_what_the_watch_had_seen() {
    let cluster = Cluster::control_plane();
    cluster.apply_crds();
    let ns = "yew-compacted";
    cluster.namespace(ns);
    let controller = Controller::start(&cluster, ns, &json!({}));
    let spec = json!({ "table": { "uri": "s3://somebody-elses/prefix" } });
    cluster.apply(&experiment(ns, "before", &spec));
    wait_for(&cluster, ns, "before", "Ready", "NotAllowed");
    // Revisions that the watch is not told of, for they are of other kinds.
    for n in 0..5 {
        cluster.namespace(&format!("elder-{n}"));
    }
    cluster.stop_apiserver();
    cluster.compact_etcd();
    cluster.start_apiserver();
    cluster.apply(&experiment(ns, "after", &spec));
    wait_for(&cluster, ns, "after", "Ready", "NotAllowed");
    assert_eq!(controller.end(), Some(0));
}
