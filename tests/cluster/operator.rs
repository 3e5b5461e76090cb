//! The operator on a real cluster, from its installation to its end, over real tables in a real store.
//!
//! Lives here: what users do and what befalls them, in one cluster, for a node takes long to start. Every table is written
//! by Lance's own MemWAL writer on this machine and judged row by row against what it wrote. May use: the release, the
//! fixtures. Never: a sleep where an event can be awaited.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use crate::fixtures::{Fixture, Spec};
use crate::pods::Writers;
use crate::release::{CONTROLLER, HOME, KEYS, Release, pod, process, sum, until};
use crate::rights;
use crate::servers::MARK;
use crate::storms;
use crate::visitors::{self, READER};
use crate::writing::{Writing, round};

const PLUMS: (&str, &str) = ("orchard", "plums");
const PEARS: (&str, &str) = ("orchard", "pears");
const FERNS: (&str, &str) = ("meadow", "ferns");
const KELP: (&str, &str) = ("meadow", "kelp");
/// Flushes while a table is suspended.
const MANY: u64 = 16;

async fn table(release: &Release, name: &str, spec: Spec) -> Fixture {
    let (uri, options) = (release.store.uri(name), release.store.writer_options());
    Fixture::create_in(spec, &uri, options).await
}

/// Waits until everything is merged, and judges the table.
async fn judge(release: &Release, name: &str, table: &Fixture) {
    until(name, || (release.pending(name) == 0).then_some(()));
    let verdict = table.verdict().await;
    assert!(verdict.is_sound(), "{name}: {verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_stay_fresh_whatever_befalls_the_operator_the_cluster_and_the_store() {
    let begun = Instant::now();
    // A failure says what went before it.
    let step = |what: &str| eprintln!("{:>4} s  {what}", begun.elapsed().as_secs());
    step("installs");
    let mut release = Release::install().await;
    release.ready();
    step("Experiments become fresh");
    let [plums, pears, mut kelp] = become_fresh(&release).await;
    step("columns");
    columns(&release);
    step("records are read");
    records_are_read(&release, &plums);

    let mut writers = [Writing::start(plums, 100), Writing::start(pears, 100)];
    step("writers in Pods");
    let ferns = Writers::start(&release, FERNS);
    release.experiment(FERNS.0, FERNS.1, json!({ "freshness": { "target": "4s" } }));
    release.wait(FERNS, "condition=Ready");
    step("the leader is killed");
    the_leader_is_killed(&mut release, &mut writers).await;
    step("the leader is evicted");
    storms::the_leader_is_evicted(&mut release);
    goes_on(&release, &mut writers).await;
    release.ready();
    step("the leader outgrows its limit");
    storms::the_leader_outgrows_its_limit(&mut release);
    goes_on(&release, &mut writers).await;
    release.ready();
    step("the operator is upgraded");
    the_operator_is_upgraded(&mut release, &mut writers).await;
    step("the API server goes and comes back");
    the_api_server_goes_and_comes_back(&mut release, &mut writers).await;
    step("the writers end");
    let [plums, pears] = writers;
    let (mut plums, mut pears) = (plums.end().await, pears.end().await);
    judge(&release, PLUMS.1, &plums).await;
    judge(&release, PEARS.1, &pears).await;
    let truth = ferns.end(&release);
    until(FERNS.1, || (release.pending(FERNS.1) == 0).then_some(()));
    ferns.judge(&truth);
    release.wait(FERNS, "condition=Fresh");

    step("records are read again");
    let read = visitors::from_outside(&release, PLUMS.0, PLUMS);
    assert_eq!(read.1["count"], plums.model.rows.len(), "{read:?}");

    step("suspend and resume");
    suspend_and_resume(&release, &mut pears).await;
    step("an edit and a request");
    edit_and_request(&release, &mut plums).await;
    step("nothing happens");
    nothing_is_written_while_nothing_happens(&release).await;
    step("the store hangs");
    the_store_hangs_and_comes_back(&release, &mut plums).await;
    step("deletions");
    delete(&release, &mut plums, &mut kelp).await;

    step("rights");
    uses_every_right(&release);
    step("secrets");
    release.note_logs();
    hides_secrets(&release);
    step("uninstalls");
    release.uninstall();
    for namespace in [PLUMS.0, KELP.0, HOME] {
        let delete = ["delete", "namespace", namespace, "--timeout=120s"];
        release.cluster.kubectl_ok(&delete);
    }
    step("the last verdicts");
    for (name, table) in [("plums", &plums), ("pears", &pears), ("kelp", &kelp)] {
        judge(&release, name, table).await;
    }
}

/// Three tables of two namespaces; one Secret is wrong at first.
async fn become_fresh(release: &Release) -> [Fixture; 3] {
    let two = Spec {
        shards: 2,
        btree: true,
        ..Spec::default()
    };
    let mut tables = [
        table(release, PLUMS.1, Spec::default()).await,
        table(release, PEARS.1, two).await,
        table(release, KELP.1, Spec::default()).await,
    ];
    for table in &mut tables {
        for n in 0..3 {
            round(table, n).await;
        }
    }
    let right = release.store.secret();
    let mut wrong = right.clone();
    wrong.insert("aws_secret_access_key".into(), format!("{MARK}Wrong"));
    for (namespace, keys) in [(PLUMS.0, &right), (KELP.0, &wrong)] {
        release.cluster.namespace(namespace);
        release.secret(namespace, keys);
    }
    let soon = json!({ "freshness": { "target": "4s" } });
    for (namespace, name) in [PLUMS, PEARS, KELP] {
        release.experiment(namespace, name, soon.clone());
    }
    release.wait_for(KELP, "Ready", "False", "CredentialsRejected");
    release.wait_for(KELP, "StorageReachable", "False", "CredentialsRejected");
    release.wait_for(KELP, "Fresh", "Unknown", "CredentialsRejected");
    for exp in [PLUMS, PEARS] {
        release.wait(exp, "condition=Fresh");
        release.wait(exp, "condition=Ready");
        release.wait(exp, "condition=StorageReachable");
    }
    assert_eq!(release.pending(KELP.1), 3);
    // Nobody touches the Experiment.
    release.secret(KELP.0, &right);
    release.wait(KELP, "condition=Fresh");
    release.wait(KELP, "condition=Ready");
    for ((_, name), table) in [PLUMS, PEARS, KELP].into_iter().zip(&tables) {
        judge(release, name, table).await;
    }
    tables
}

fn columns(release: &Release) {
    release.wait_field(PLUMS, ".status.backlog.pendingGenerations", "0");
    release.wait_for(PLUMS, "Fresh", "True", "Fresh");
    let row = |more: &[&str]| {
        let args = [&["get", "exp", "plums", "-n", "orchard"], more].concat();
        let said = release.cluster.kubectl_ok(&args);
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let lines: Vec<_> = said.lines().map(words).collect();
        (lines[0].join(" "), lines[1].clone())
    };
    let narrow = "NAME READY FRESH REASON PENDING OLDEST LAST-MERGE AGE";
    let (header, cells) = row(&[]);
    assert_eq!(header, narrow);
    assert_eq!(cells[..5], ["plums", "True", "True", "Fresh", "0"]);
    let (header, cells) = row(&["-o", "wide"]);
    assert_eq!(header, format!("{narrow} URI SHARDS BYTES"));
    assert!(cells.contains(&release.store.uri("plums")), "{cells:?}");
}

/// Records through the reader's Service, by who may read them and who may not.
fn records_are_read(release: &Release, plums: &Fixture) {
    visitors::let_in(&release.cluster, PLUMS.0);
    let rows = plums.model.rows.len();
    for (status, answer) in [
        visitors::from_a_pod(release, PLUMS, "asks"),
        visitors::from_outside(release, PLUMS.0, PLUMS),
    ] {
        assert_eq!((status, &answer["count"]), (200, &json!(rows)), "{answer}");
    }
    // Nobody let this account into the other namespace.
    let (status, answer) = visitors::from_outside(release, PLUMS.0, KELP);
    assert_eq!((status, &answer["status"]), (403, &json!(403)), "{answer}");
}

/// What of a table is merged, and what there is to merge: generations of all shards together.
fn merged(release: &Release, name: &str) -> (u64, u64) {
    let seen = release.backlog(name);
    let sum = |field: &str| -> u64 {
        let shards = seen["shards"].as_array().unwrap().iter();
        shards.map(|s| s[field].as_u64().unwrap_or(0)).sum()
    };
    (sum("watermark"), sum("watermark") + sum("pending"))
}

/// Waits until what is flushed after this moment is merged, by whoever leads.
async fn goes_on(release: &Release, writers: &mut [Writing; 2]) {
    for ((_, name), writer) in [PLUMS, PEARS].into_iter().zip(writers) {
        writer.flushes(5).await;
        let (_, flushed) = merged(release, name);
        until(name, || (merged(release, name).0 >= flushed).then_some(()));
    }
}

async fn the_leader_is_killed(release: &mut Release, writers: &mut [Writing; 2]) {
    goes_on(release, writers).await;
    // Its Pod is deleted without grace.
    let first = release.leader();
    release.note_logs();
    let force = [
        "delete",
        "pod",
        pod(&first),
        "-n",
        HOME,
        "--force",
        "--grace-period=0",
    ];
    release.cluster.kubectl_ok(&force);
    let second = release.leader_after(&first);
    assert_ne!(pod(&first), pod(&second));
    goes_on(release, writers).await;
    release.ready();
    // Its process dies, as by an out-of-memory killer.
    let pid = process(pod(&second)).to_string();
    let kill = std::process::Command::new("kill")
        .args(["-s", "KILL", &pid])
        .status();
    assert!(kill.unwrap().success());
    let third = release.leader_after(&second);
    goes_on(release, writers).await;
    release.note_logs();
    release.ready();
    let metrics = release.metrics(pod(&third));
    assert!(sum(&metrics, "freshet_merges_total{result=\"merged\"}") > 0.0);
}

async fn the_operator_is_upgraded(release: &mut Release, writers: &mut [Writing; 2]) {
    let before = release.leader();
    release.note_logs();
    release.helm("upgrade", &["engine.slots=3"]);
    release.leader_after(&before);
    goes_on(release, writers).await;
}

async fn the_api_server_goes_and_comes_back(release: &mut Release, writers: &mut [Writing; 2]) {
    let steps_down = |release: &mut Release| {
        release.note_logs();
        let logs = release.logs();
        logs.map(|log| log.matches("no longer leads").count())
            .sum::<usize>()
    };
    let before = steps_down(release);
    release.cluster.stop_apiserver();
    until("nobody leads", || {
        (steps_down(release) > before).then_some(())
    });
    for writer in writers.iter_mut() {
        writer.flushes(3).await;
    }
    release.cluster.start_apiserver();
    goes_on(release, writers).await;
}

/// Waits until a status tells of so many generations. The answer to a request brings all figures with it.
fn tells(release: &Release, exp: (&str, &str), pending: u64) {
    let mut asked = 0;
    until("the figures", || {
        asked += 1;
        release.request(exp, &format!("tells-{pending}-{asked}"));
        let told = &release.get(exp)["status"]["backlog"]["pendingGenerations"];
        (*told == pending).then_some(())
    });
}

async fn suspend_and_resume(release: &Release, pears: &mut Fixture) {
    release.patch(PEARS, json!({ "suspend": true }));
    release.wait_for(PEARS, "Ready", "True", "Suspended");
    for n in 0..MANY {
        round(pears, 1000 + n).await;
    }
    let pending = 2 * MANY;
    // Asking for a merge does not undo it.
    tells(release, PEARS, pending);
    release.wait(PEARS, "condition=Fresh=False");
    assert_eq!(release.pending(PEARS.1), pending);
    release.patch(PEARS, json!({ "suspend": false }));
    release.wait(PEARS, "condition=Fresh");
    tells(release, PEARS, 0);
    judge(release, PEARS.1, pears).await;
}

async fn edit_and_request(release: &Release, plums: &mut Fixture) {
    release.patch(PLUMS, json!({ "freshness": { "target": "1h" } }));
    release.wait_field(PLUMS, ".status.effective.freshness.target", "1h");
    let seen = release.get(PLUMS);
    assert_eq!(
        seen["status"]["observedGeneration"],
        seen["metadata"]["generation"]
    );
    // Far from its deadline, it is merged because somebody asks.
    round(plums, 2000).await;
    assert_eq!(release.pending(PLUMS.1), 1);
    release.request(PLUMS, "before-the-paper");
    judge(release, PLUMS.1, plums).await;
}

/// A status tells everything that there is to tell once it tells the base's version and no backlog.
fn settled(release: &Release, (namespace, name): (&str, &str)) {
    let mut asked = 0;
    until(name, || {
        asked += 1;
        release.request((namespace, name), &format!("settle-{asked}"));
        let (told, seen) = (release.get((namespace, name)), release.backlog(name));
        let told = &told["status"];
        let same = told["fragments"]["version"] == seen["base"]["version"]
            && told["backlog"]["pendingGenerations"] == 0
            && told["reclaim"]["draining"].as_u64().unwrap_or(0) == 0;
        same.then_some(())
    });
}

async fn nothing_is_written_while_nothing_happens(release: &Release) {
    for exp in [PLUMS, PEARS, KELP, FERNS] {
        settled(release, exp);
    }
    let leader = release.leader();
    let looks = || {
        sum(
            &release.metrics(pod(&leader)),
            "freshet_store_requests_total{",
        )
    };
    let (writes, before) = (release.writes(), looks());
    until("three hundred requests to the store", || {
        (looks() > before + 300.0).then_some(())
    });
    assert_eq!(
        release.writes(),
        writes,
        "{:#?}",
        release.cluster.requests().last()
    );
}

async fn the_store_hangs_and_comes_back(release: &Release, plums: &mut Fixture) {
    release.store.pause();
    for exp in [PLUMS, PEARS, KELP] {
        release.wait_for(exp, "StorageReachable", "False", "StoreUnreachable");
        release.wait_for(exp, "Fresh", "Unknown", "StoreUnreachable");
    }
    release.store.resume();
    for exp in [PLUMS, PEARS, KELP] {
        release.wait(exp, "condition=StorageReachable");
        release.wait(exp, "condition=Fresh");
    }
    round(plums, 3000).await;
    release.request(PLUMS, "after-the-storm");
    judge(release, PLUMS.1, plums).await;
}

async fn delete(release: &Release, plums: &mut Fixture, kelp: &mut Fixture) {
    let delete = |(namespace, name): (&str, &str)| {
        let args = [
            "delete",
            "experiment",
            name,
            "-n",
            namespace,
            "--timeout=120s",
        ];
        release.cluster.kubectl_ok(&args);
    };
    // By default, what is pending stays. A store tells times in whole seconds, so that a flush right after a request may count
    // as one before it: nothing is merged meanwhile.
    release.patch(PLUMS, json!({ "suspend": true }));
    release.wait_for(PLUMS, "Ready", "True", "Suspended");
    round(plums, 4000).await;
    delete(PLUMS);
    assert_eq!(release.pending(PLUMS.1), 1);
    let merges = json!({ "freshness": { "target": "1h" }, "deletionPolicy": "MergePending" });
    release.experiment(PLUMS.0, PLUMS.1, merges.clone());
    release.patch(KELP, merges);
    for exp in [PLUMS, KELP] {
        let put = "jsonpath={.metadata.finalizers[0]}=experiments.freshet.dev/finalizer";
        release.wait(exp, put);
        release.wait(exp, "condition=Fresh");
    }
    round(kelp, 4000).await;
    assert_eq!((release.pending(PLUMS.1), release.pending(KELP.1)), (1, 1));
    for (exp, table) in [(PLUMS, &*plums), (KELP, &*kelp)] {
        delete(exp);
        assert_eq!(release.pending(exp.1), 0);
        judge(release, exp.1, table).await;
    }
}

/// Over all of this, nothing was refused, and no right was there for nothing.
fn uses_every_right(release: &Release) {
    let cluster = &release.cluster;
    let lease = format!("role/{CONTROLLER}-lease");
    let roles = [format!("clusterrole/{CONTROLLER}"), lease].map(|role| cluster.get(HOME, &role));
    let account = format!("system:serviceaccount:{HOME}:{CONTROLLER}");
    let (used, refused) = rights::asked(cluster, &account);
    assert_eq!(used, rights::granted(&roles));
    assert_eq!(refused, [] as [Value; 0]);
    let reader = [
        format!("clusterrole/{READER}"),
        "clusterrole/system:auth-delegator".into(),
    ];
    let reader = reader.map(|role| cluster.get(HOME, &role));
    let account = format!("system:serviceaccount:{HOME}:{READER}");
    let (used, refused) = rights::asked(cluster, &account);
    assert_eq!(used, rights::granted(&reader));
    assert_eq!(refused, [] as [Value; 0]);
}

/// Whatever the operator said, to whomever: no part of a secret is in it.
fn hides_secrets(release: &Release) {
    let everything = |what| ["get", what, "-A", "-o", "json"];
    let events = release.cluster.kubectl_ok(&everything("events"));
    let told: Value = serde_json::from_str(&events).unwrap();
    let mut reasons = BTreeMap::<&str, u32>::new();
    for event in told["items"].as_array().unwrap() {
        *reasons
            .entry(event["reason"].as_str().unwrap())
            .or_default() += 1;
    }
    for reason in [
        "CredentialsRejected",
        "StoreUnreachable",
        "MergeRequested",
        "DeletedMerged",
    ] {
        assert!(reasons.contains_key(reason), "{reasons:?}");
    }
    let experiments = release.cluster.kubectl_ok(&everything("experiments"));
    let metrics = release.metrics(pod(&release.leader()));
    assert!(release.logs().any(|log| !log.is_empty()));
    let outputs = release.logs().chain([&*events, &experiments, &metrics]);
    for said in outputs {
        assert!(!said.contains(MARK), "{said}");
    }
    // The mark is what a Secret holds.
    let secret = release.cluster.get(KELP.0, &format!("secret/{KEYS}"));
    assert!(secret["data"]["aws_secret_access_key"].is_string());
}
