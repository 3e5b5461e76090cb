//! The chart's rights: what is granted is used, what is asked for is granted, and what is taken away is named.
//!
//! Lives here: roles as sets of rights, the same of the audit log, and a controller under the chart's account with one right
//! less. May use: the harness, the controller's process. Never: a second list of the rights.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::release::{CHART, helm_ok, until};
use crate::running::{Controller, allowing, of_store, request, secret, wait, wait_for};
use crate::servers::{Kind, Server};

const NS: &str = "heron";
const CONTROLLER: &str = "heron-freshet-controller";
const FINALIZER: &str = "jsonpath={.metadata.finalizers[0]}=experiments.freshet.dev/finalizer";

/// Group, resource with its subresource, verb.
type Right = (String, String, String);

fn words(list: &Value) -> impl Iterator<Item = String> {
    let words = list.as_array().unwrap().iter();
    words.map(|w| w.as_str().unwrap().to_owned())
}

/// What roles grant.
pub fn granted(roles: &[Value]) -> BTreeSet<Right> {
    let mut all = BTreeSet::new();
    for rule in roles.iter().flat_map(|r| r["rules"].as_array().unwrap()) {
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                let of = |verb| (group.clone(), resource.clone(), verb);
                all.extend(words(&rule["verbs"]).map(of));
            }
        }
    }
    all
}

/// What an account asked of the API server, and what of it was refused for good: an API server that has just come back has
/// not read all roles yet, and grants a little later what it refused.
pub fn asked(cluster: &Cluster, account: &str) -> (BTreeSet<Right>, Vec<Value>) {
    let requests = cluster.requests();
    let of = |r: &&Value| r["user"]["username"] == account && !r["objectRef"].is_null();
    let (mut used, mut refused) = (BTreeSet::new(), vec![]);
    for request in requests.iter().filter(of) {
        let at = &request["objectRef"];
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = match at["subresource"].as_str() {
            Some(sub) => format!("{}/{sub}", word(&at["resource"])),
            None => word(&at["resource"]),
        };
        used.insert((word(&at["apiGroup"]), resource, word(&request["verb"])));
        let parts = ["apiGroup", "resource", "subresource", "namespace", "name"];
        let same = |r: &Value| {
            r["verb"] == request["verb"] && parts.iter().all(|p| r["objectRef"][p] == at[p])
        };
        match request["responseStatus"]["code"] == 403 {
            true => refused.push(request.clone()),
            false => refused.retain(|r| !same(r)),
        }
    }
    (used, refused)
}

/// The chart's account and roles as it makes them, and nothing that runs; a kubeconfig of the account.
fn roles(cluster: &Cluster) -> ([Value; 2], PathBuf) {
    let args = [
        "template",
        NS,
        CHART,
        "-n",
        NS,
        "--kube-version",
        "1.36.3",
        "--set",
    ];
    let narrow = format!("watchNamespaces={{{NS}}},crds.enabled=false");
    let parts = ["rbac", "serviceaccount"].map(|p| format!("templates/{p}.yaml"));
    let shown: Vec<&str> = parts.iter().flat_map(|p| ["--show-only", p]).collect();
    let rendered = helm_ok(cluster, &[&args[..], &[&narrow], &shown].concat());
    let file = cluster.folder().join("rights.yaml");
    std::fs::write(&file, rendered).unwrap();
    cluster.kubectl_ok(&["apply", "-n", NS, "-f", file.to_str().unwrap()]);

    let token = cluster.kubectl_ok(&["create", "token", CONTROLLER, "-n", NS]);
    let config = ["config", "view", "--raw", "-o", "json"];
    let mut config: Value = serde_json::from_str(&cluster.kubectl_ok(&config)).unwrap();
    config["users"][0]["user"] = json!({ "token": token.trim() });
    let kubeconfig = cluster.folder().join("rights.kubeconfig");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let lease = format!("{CONTROLLER}-lease");
    let made = [CONTROLLER, &lease].map(|name| {
        let mut role = cluster.get(NS, &format!("role/{name}"));
        let meta = json!({ "name": name, "namespace": NS });
        role["metadata"] = meta;
        role
    });
    (made, kubeconfig)
}

/// A role without one right.
pub fn without(role: &Value, (group, resource, verb): &Right) -> Value {
    let mut less = role.clone();
    let rules = less["rules"].as_array_mut().unwrap();
    for rule in rules.iter_mut() {
        let about =
            |field: &str, what: &str| rule[field].as_array().unwrap().contains(&json!(what));
        if about("apiGroups", group) && about("resources", resource) {
            rule["verbs"].as_array_mut().unwrap().retain(|v| v != verb);
        }
    }
    rules.retain(|rule| rule["verbs"] != json!([]));
    less
}

/// Puts a role there, and waits until the API server goes by them.
pub fn put(
    cluster: &Cluster,
    namespace: &str,
    account: &str,
    role: &Value,
    (group, resource, verb): &Right,
    may: bool,
) {
    let said = cluster.kubectl_in(role, &["replace", "-f", "-"]);
    assert!(said.status.success(), "{said:?}");
    let (kind, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let mut what = format!("{kind}.{group}").trim_end_matches('.').to_owned();
    if kind == "leases" && verb != "create" {
        what += &format!("/{account}");
    }
    let (who, sub) = (
        format!("--as=system:serviceaccount:{namespace}:{account}"),
        format!("--subresource={sub}"),
    );
    let args = ["auth", "can-i", verb, &what, &sub, "-n", namespace, &who];
    until(&what, || {
        (cluster.kubectl(&args).status.success() == may).then_some(())
    });
}

/// Everything that needs a right, seen to be done: it is looked at with its Secret, held by the finalizer, told of by
/// events, one of them twice, and let go.
fn is_served(cluster: &Cluster, name: &str) {
    wait_for(cluster, NS, name, "Ready", "TableNotFound");
    wait(cluster, NS, name, FINALIZER);
    for what in ["once", "again", "and again"] {
        request(cluster, NS, name, what);
    }
    let delete = ["delete", "experiment", name, "-n", NS, "--timeout=60s"];
    cluster.kubectl_ok(&delete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_of_the_chart_is_needed_and_a_missing_one_is_named_and_waited_for() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    cluster.namespace(NS);
    let (roles, kubeconfig) = roles(cluster);
    let store = Server::start(Kind::S3).await;
    cluster.apply(&secret(NS, &store.secret()));
    let config = allowing(&store.endpoint(store.at));
    let lease = format!("--lease-name={CONTROLLER}");
    let start = || Controller::start_as(&kubeconfig, NS, &config, &["--poll=200ms", &lease]);
    let late = || json!({ "deletionPolicy": "MergePending", "deletion": { "timeout": "1s" } });

    // With all of them nothing is refused, and none is left over.
    let rights = granted(&roles);
    cluster.apply(&of_store(NS, "whole", &store, late()));
    let whole = start();
    is_served(cluster, "whole");
    let account = format!("system:serviceaccount:{NS}:{CONTROLLER}");
    until("every right is used", || {
        (asked(cluster, &account).0 == rights).then_some(())
    });
    let (used, refused) = asked(cluster, &account);
    assert_eq!(used, rights);
    assert_eq!(refused, [] as [Value; 0]);
    assert!(!whole.log().contains("may not"), "{}", whole.log());
    assert_eq!(whole.end(), Some(0));

    for (n, right) in rights.iter().enumerate() {
        let (group, resource, verb) = right;
        let name = format!("less-{n}");
        if (&**resource, &**verb) == ("leases", "create") {
            cluster.kubectl_ok(&["delete", "lease", CONTROLLER, "-n", NS]);
        }
        let role = roles
            .iter()
            .find(|role| granted(std::slice::from_ref(role)).contains(right));
        let role = role.unwrap();
        put(cluster, NS, CONTROLLER, &without(role, right), right, false);
        cluster.apply(&of_store(NS, &name, &store, late()));
        let mut controller = start();
        let (kind, sub) = resource.split_once('/').unwrap_or((resource, ""));
        let mut what = format!("{kind}.{group}").trim_end_matches('.').to_owned();
        if !sub.is_empty() {
            what += &format!("/{sub}");
        }
        let missing = format!("may not {verb} {what} in the namespace {NS}; grant it");
        if (&**resource, &**verb) == ("events", "patch") {
            // The first of a kind is created.
            for asks in ["first", "second", "third"] {
                request(cluster, NS, &name, asks);
            }
        }
        until(&missing, || {
            controller.log().contains(&missing).then_some(())
        });
        if resource == "secrets" {
            wait_for(cluster, NS, &name, "Ready", "CredentialsMissing");
        }
        // It neither ends nor hangs, and nobody has to start it again.
        assert!(controller.runs(), "{missing}");
        controller.livez().await;
        put(cluster, NS, CONTROLLER, role, right, true);
        request(cluster, NS, &name, "granted");
        let there = format!("may {verb} {what} in the namespace {NS} again");
        until(&there, || controller.log().contains(&there).then_some(()));
        wait_for(cluster, NS, &name, "Ready", "TableNotFound");
        wait(cluster, NS, &name, FINALIZER);
        let told = controller.log();
        assert_eq!(told.matches(&missing).count(), 1, "{told}");
        assert_eq!(controller.end(), Some(0));
    }
}
