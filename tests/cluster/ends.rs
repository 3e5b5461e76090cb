//! The cluster itself: it is real, it can be hurt, and it leaves nothing behind.
//!
//! Lives here: what every other test takes for granted of the harness. May use: the harness, /proc. Never: the product.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::Cluster;

/// Until what hangs is a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is still there of a cluster: processes that name its folder, its folder, its cgroups, its end of the link.
fn left(folder: &Path, gateway: &str) -> Vec<String> {
    let mut left: Vec<String> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(folder.to_str().unwrap()))
        .collect();
    let addresses = Command::new("ip").args(["-o", "address"]).output().unwrap();
    let addresses = String::from_utf8(addresses.stdout).unwrap();
    let link = format!(" {gateway}/");
    left.extend(
        addresses
            .lines()
            .filter(|l| l.contains(&link))
            .map(str::to_owned),
    );
    if folder.exists() {
        left.push(folder.display().to_string());
    }
    left.extend(cgroups(folder));
    left
}

/// The cgroups of a cluster, in whichever hierarchies.
fn cgroups(folder: &Path) -> Vec<String> {
    let name = folder.file_name().unwrap();
    let top = Path::new("/sys/fs/cgroup");
    let mut places = vec![top.join(name)];
    places.extend(
        std::fs::read_dir(top)
            .into_iter()
            .flatten()
            .map(|e| e.unwrap().path().join(name)),
    );
    places.retain(|p| p.exists());
    places.iter().map(|p| p.display().to_string()).collect()
}

#[test]
fn a_panicking_test_leaves_nothing_of_its_cluster_behind() {
    let mut seen = None;
    let test = std::panic::AssertUnwindSafe(|| {
        let cluster = Cluster::control_plane();
        seen = Some((cluster.folder().to_owned(), cluster.gateway().to_owned()));
        assert!(!left(cluster.folder(), cluster.gateway()).is_empty());
        cluster.stop("no such program");
    });
    std::panic::catch_unwind(test).unwrap_err();
    let (folder, gateway) = seen.unwrap();
    assert_eq!(left(&folder, &gateway), Vec::<String>::new());
}

#[test]
fn a_killed_cluster_dies_whole_and_the_next_one_clears_its_folder_away() {
    let cluster = Cluster::control_plane();
    let (folder, gateway) = (cluster.folder().to_owned(), cluster.gateway().to_owned());
    cluster.kill();
    drop(cluster);
    // The kernel ends what is inside; nobody is left who could say when.
    let begun = Instant::now();
    let folder_alone = [folder.display().to_string()];
    while left(&folder, &gateway) != folder_alone {
        assert!(begun.elapsed() < PATIENCE, "{:?}", left(&folder, &gateway));
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(Cluster::control_plane());
    assert_eq!(left(&folder, &gateway), Vec::<String>::new());
}

#[test]
fn clusters_live_side_by_side_and_one_can_be_hurt() {
    let (hurt, other) = (Cluster::control_plane(), Cluster::shared());
    assert_ne!(hurt.address(), other.address());
    let note = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "note", "namespace": "default"},
        "data": {"said": "once"},
    });
    hurt.apply(&note);
    assert!(
        !other
            .kubectl(&["get", "configmap", "note"])
            .status
            .success()
    );

    // Every request is on record, save those of Kubernetes itself.
    let requests = hurt.requests();
    let of_note = |r: &&Value| r["objectRef"]["name"] == "note" && r["verb"] == "patch";
    let writes: Vec<_> = requests.iter().filter(of_note).collect();
    assert_eq!(writes.len(), 1, "{writes:#?}");
    assert_eq!(writes[0]["user"]["username"], "admin");
    for request in &requests {
        assert_eq!(request["user"]["username"], "admin", "{request:#}");
    }

    hurt.stop_apiserver();
    let refused = hurt.kubectl(&["get", "configmap", "note"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("refused"), "{words}");
    hurt.compact_etcd();
    hurt.start_apiserver();
    assert_eq!(hurt.get("default", "configmap/note")["data"], note["data"]);

    // What was compacted away is told as gone to a watch that asks for it.
    let watch = "/api/v1/namespaces?watch=1&resourceVersion=1&timeoutSeconds=1";
    let gone = hurt.kubectl(&["get", "--raw", watch]);
    let answer = [gone.stdout, gone.stderr].concat();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains("too old resource version"), "{answer}");

    // A paused server keeps its connections and says nothing.
    hurt.pause("kube-apiserver");
    let hung = hurt.kubectl(&["get", "configmap", "note", "--request-timeout=1s"]);
    assert!(!hung.status.success());
    hurt.resume("kube-apiserver");
    assert_eq!(hurt.get("default", "configmap/note")["data"], note["data"]);
}
