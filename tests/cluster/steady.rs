//! While nothing happens, next to nothing is asked: neither of the API server nor of the store.
//!
//! Lives here: converged tables under a controller that looks very often, counted at the API server's audit log and on the
//! way to the store. May use: the controller's process, the fixtures, the tally. Never: the operator's own figures.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use crate::fixtures::{Fixture, Spec};
use crate::harness::Cluster;
use crate::release::{sum, until};
use crate::running::{Controller, allowing, of_store, secret, settle, wait};
use crate::servers::{Kind, Server};
use crate::tally::Tally;
use crate::writing::round;

const NS: &str = "plover";
const SHARDS: usize = 2;
const NAMES: [&str; 3] = ["plums", "pears", "kelp"];
/// Looks at each shard.
const LOOKS: usize = 100;
/// Milliseconds from one to the next.
const POLL: u128 = 100;

/// What the operator asked about a namespace, watches aside: one that ends is begun again whatever happens.
fn asked(cluster: &Cluster) -> Vec<Value> {
    let mut all = cluster.requests();
    all.retain(|r| {
        r["objectRef"]["namespace"] == NS
            && r["userAgent"]
                .as_str()
                .is_none_or(|who| !who.starts_with("kubectl"))
            && r["verb"] != "watch"
    });
    all
}

fn writes(cluster: &Cluster) -> Vec<Value> {
    let mut all = asked(cluster);
    all.retain(|r| {
        r["verb"] != "get" && r["verb"] != "list" && r["objectRef"]["resource"] != "leases"
    });
    all
}

/// Tells kinds of requests for a table apart: to a shard, a listing of the shards, to the base.
fn kind(request: &str) -> &'static str {
    match request {
        r if !r.starts_with("GET ") && !r.starts_with("HEAD ") => "write",
        r if r.contains("_versions") => "base",
        r if r.contains("list-type") => "listing",
        r if r.contains("_mem_wal/") => "shard",
        _ => "other",
    }
}

fn by_kind(asked: &[String], name: &str) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for request in asked.iter().filter(|r| r.contains(name)) {
        *counts.entry(kind(request)).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_looks_at_converged_tables_write_nothing_and_ask_a_store_once_a_shard() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    cluster.namespace(NS);
    let store = Server::start(Kind::S3).await;
    let tally = Tally::start(store.at).await;
    cluster.apply(&secret(NS, &store.secret()));
    let config = allowing(&store.endpoint(tally.at));
    let poll = format!("--poll={POLL}ms");
    let start = || Controller::start_as(cluster.kubeconfig(), NS, &config, &[&poll]);
    let controller = start();
    for name in NAMES {
        let spec = Spec {
            shards: SHARDS,
            ..Spec::default()
        };
        let mut table = Fixture::create_in(spec, &store.uri(name), store.writer_options()).await;
        round(&mut table, 1).await;
        let mut experiment = of_store(NS, name, &store, json!({ "freshness": { "target": "2s" } }));
        experiment["spec"]["table"]["storage"]["endpoint"] = json!(store.endpoint(tally.at));
        cluster.apply(&experiment);
    }
    for name in NAMES {
        wait(cluster, NS, name, "condition=Fresh");
        settle(cluster, NS, name);
    }

    let begun = Instant::now();
    let (before, wrote) = (tally.asked().len(), writes(cluster).len());
    let calls = asked(cluster).len();
    let of_shards = |asked: &[String], name: &str| by_kind(asked, name).get("shard").copied();
    until("a hundred looks", || {
        let now = tally.asked();
        let looked = |name: &&str| of_shards(&now[before..], name) >= Some(LOOKS * SHARDS);
        NAMES.iter().all(looked).then_some(())
    });
    let now = tally.asked();
    // The time between two looks varies by a fifth.
    let most = (begun.elapsed().as_millis() / (POLL * 4 / 5)) as usize + 1;
    assert_eq!(
        writes(cluster).len(),
        wrote,
        "{:#?}",
        writes(cluster).last()
    );
    let mut since = asked(cluster).split_off(calls);
    since.retain(|r| r["objectRef"]["resource"] != "leases");
    assert_eq!(since, [] as [Value; 0]);
    for name in NAMES {
        let counts = by_kind(&now[before..], name);
        let of = |kind| counts.get(kind).copied().unwrap_or(0);
        // Every eighth look lists the shards and asks of each whether it is still the same one; every fourth asks for the
        // base. A look that is under way belongs to neither side of the window.
        let looks = of("shard") / SHARDS;
        assert!(looks <= most + most / 8 + 2, "{name}: {counts:?}, {most}");
        assert!(of("listing") <= looks / 8 + 2, "{name}: {counts:?}");
        assert!(of("base") <= looks / 4 + 2, "{name}: {counts:?}");
        assert_eq!(
            counts.keys().copied().collect::<Vec<_>>(),
            ["base", "listing", "shard"]
        );
    }

    // Another process finds them as they are, and has nothing to say either.
    assert_eq!(controller.end(), Some(0));
    let told = || NAMES.map(|n| cluster.get(NS, &format!("experiment/{n}"))["status"].clone());
    let last = told();
    let next = start();
    let observed = "freshet_experiment_observed_timestamp_seconds{";
    let mut metrics = String::new();
    while metrics.matches(observed).count() < NAMES.len() {
        metrics = next.metrics().await;
    }
    let before = tally.asked().len();
    until("looks of the other process", || {
        (tally.asked().len() > before + 200).then_some(())
    });
    assert_eq!(told(), last);
    let (now, log) = (writes(cluster).len(), next.log());
    assert_eq!(now, wrote, "{last:#?} {log}");
    assert!(sum(&next.metrics().await, "freshet_store_requests_total{") > 0.0);
}
