//! The chart on a real API server: accepted whole, restricted, with the rights that it says, and gone without the data.
//!
//! Lives here: installing, upgrading and uninstalling by helm, and what the API server says of it. May use: the harness.
//! Never: a Pod that has to run; there is no node.

use serde_json::json;

use crate::harness::Cluster;
use crate::release::{CHART, helm_ok};

/// Whether the release's controller may do this.
fn may(cluster: &Cluster, what: &[&str]) -> bool {
    let account = "--as=system:serviceaccount:operators:tide-freshet-controller";
    let asked = [&["auth", "can-i", account], what].concat();
    cluster.kubectl(&asked).status.success()
}

/// What the controller needs, and what it must not be able to do.
fn rights() -> Vec<(Vec<&'static str>, bool)> {
    let in_orchard = |verb, what| vec![verb, what, "-n", "orchard"];
    let own = |verb, what| vec![verb, what, "-n", "operators"];
    vec![
        (in_orchard("list", "experiments.freshet.dev"), true),
        (in_orchard("watch", "experiments.freshet.dev"), true),
        (in_orchard("patch", "experiments.freshet.dev"), true),
        (in_orchard("get", "secrets"), true),
        (in_orchard("create", "events.events.k8s.io"), true),
        (in_orchard("patch", "events.events.k8s.io"), true),
        (own("get", "leases/tide-freshet-controller"), true),
        (own("update", "leases/tide-freshet-controller"), true),
        (own("create", "leases"), true),
        (own("update", "leases/another"), false),
        (own("list", "leases"), false),
        (in_orchard("get", "leases"), false),
        (in_orchard("list", "secrets"), false),
        (in_orchard("watch", "secrets"), false),
        (in_orchard("get", "experiments.freshet.dev"), false),
        (in_orchard("delete", "experiments.freshet.dev"), false),
        (in_orchard("create", "experiments.freshet.dev"), false),
        (in_orchard("create", "pods"), false),
        (in_orchard("get", "configmaps"), false),
    ]
}

#[test]
fn the_chart_installs_upgrades_and_uninstalls_and_keeps_every_experiment() {
    let cluster = Cluster::control_plane();
    for namespace in ["operators", "orchard", "meadow"] {
        cluster.namespace(namespace);
    }
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl_ok(&["label", "namespace", "operators", restricted]);
    let release = ["tide", CHART, "-n", "operators"];

    helm_ok(&cluster, &[&["install"], &release[..]].concat());
    // The API server made Pods of it under the strictest rules.
    let pods = ["wait", "--for=create", "pod", "-n", "operators"];
    let of_it = ["-l", "app.kubernetes.io/instance=tide", "--timeout=60s"];
    cluster.kubectl_ok(&[&pods[..], &of_it].concat());
    for (what, allowed) in rights() {
        assert_eq!(may(&cluster, &what), allowed, "{what:?}");
    }
    let everywhere = ["list", "experiments.freshet.dev", "--all-namespaces"];
    assert!(may(&cluster, &everywhere));

    cluster.apply(&json!({
        "apiVersion": "freshet.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": "plums", "namespace": "orchard"},
        "spec": {"table": {"uri": "s3://orchard/plots/plums"}},
    }));
    let before = cluster.get("orchard", "experiment/plums");

    let narrow = ["--set", "watchNamespaces={orchard}", "--set", "replicas=1"];
    helm_ok(
        &cluster,
        &[&["upgrade"], &release[..], &narrow[..]].concat(),
    );
    for (what, allowed) in rights() {
        assert_eq!(may(&cluster, &what), allowed, "narrowed: {what:?}");
    }
    assert!(!may(&cluster, &everywhere));
    assert!(!may(&cluster, &["get", "secrets", "-n", "meadow"]));

    helm_ok(
        &cluster,
        &["uninstall", "tide", "-n", "operators", "--wait"],
    );
    assert_eq!(cluster.get("orchard", "experiment/plums"), before);
    let left = ["get", "deployments,roles,rolebindings", "-A", "-o", "name"];
    let left = [&left[..], &["-l", "app.kubernetes.io/instance=tide"]].concat();
    assert_eq!(cluster.kubectl_ok(&left), "");
    let left = ["get", "clusterroles,clusterrolebindings", "-o", "name"];
    let left = [&left[..], &["-l", "app.kubernetes.io/instance=tide"]].concat();
    assert_eq!(cluster.kubectl_ok(&left), "");
    // With the operator gone, a namespace and its Experiments still go.
    cluster.kubectl_ok(&["delete", "namespace", "orchard", "--timeout=120s"]);

    // The definition that stayed is taken up again by the release of the same name.
    helm_ok(&cluster, &[&["install"], &release[..]].concat());
}

#[test]
fn every_switch_of_the_chart_is_accepted_by_the_api_server() {
    let cluster = Cluster::shared();
    cluster.namespace("switches");
    let network =
        "networkPolicy.enabled=true,networkPolicy.metricsFrom[0].podSelector.matchLabels.app=x";
    let grants = "storage.grants[0].namespaces={a},storage.grants[0].uriPrefixes={s3://abc/}";
    for set in ["replicas=3", "watchNamespaces={switches}", network, grants] {
        let args = ["template", "eddy", CHART, "-n", "switches"];
        // The definition is the other test's: here it is another's.
        let set = format!("crds.enabled=false,{set}");
        let more = ["--kube-version", "1.36.3", "--set", &set];
        let rendered = helm_ok(cluster, &[&args[..], &more].concat());
        let file = cluster.folder().join("rendered.yaml");
        std::fs::write(&file, rendered).unwrap();
        let file = file.to_str().unwrap();
        let how = ["apply", "--dry-run=server", "--validate=strict", "-f", file];
        cluster.kubectl_ok(&how);
    }
}
