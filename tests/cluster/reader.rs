//! The reader's binary against a real API server: whom it lets in, what they see, and what it asks of stores for it.
//!
//! Lives here: callers with and without rights, tokens of every kind, what is taken away, and an API server that goes away. May
//! use: the reader's and the controller's process, the fixtures, the store servers. Never: a Pod.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::fixtures::{Fixture, Spec};
use crate::harness::Cluster;
use crate::reading::{
    AUDIENCE, Reader, account, certificate, eventually, may_read, name, openssl, person, token,
};
use crate::running::{Controller, allowing, of_store, secret, wait};
use crate::servers::{Kind, MARK, Server};

/// A store with a table of 100 rows, and an Experiment of it in each of these namespaces, made with the Secret that opens it.
async fn store(cluster: &Cluster, namespaces: &[&str], table: &str) -> (Server, Fixture) {
    cluster.apply_crds();
    let store = Server::start(Kind::S3).await;
    let options = store.writer_options();
    let made = Fixture::create_in(Spec::default(), &store.uri(table), options).await;
    for namespace in namespaces {
        cluster.namespace(namespace);
        cluster.apply(&secret(namespace, &store.secret()));
        cluster.apply(&of_store(namespace, table, &store, json!({})));
    }
    (store, made)
}

fn count(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/experiments/{name}/count")
}

/// How often the API server was asked to review something, by an account.
fn reviews(cluster: &Cluster, namespace: &str, kind: &str) -> usize {
    let account = format!("system:serviceaccount:{namespace}:{}", name(namespace));
    let requests = cluster.requests();
    let of = |r: &&Value| {
        r["user"]["username"] == account.as_str() && r["objectRef"]["resource"] == kind
    };
    requests.iter().filter(of).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_the_cluster_says_may_read_reads_and_nobody_else_learns_what_there_is() {
    let cluster = Cluster::shared();
    let (heath, moor, table) = ("finch-heath", "finch-moor", "larks");
    let (store, _table) = store(cluster, &[heath, moor], table).await;
    person(cluster, heath, "ann", &[heath]);
    person(cluster, heath, "bob", &[]);
    person(cluster, moor, "eve", &[heath, moor]);
    let of = |who| token(cluster, who, AUDIENCE);
    let (ann, bob, eve) = (of((heath, "ann")), of((heath, "bob")), of((moor, "eve")));
    let config = allowing(&store.endpoint(store.at));
    let more = [
        "--watch-namespaces=finch-heath,finch-moor",
        "--namespace=finch-heath",
    ];
    let reader = Reader::start(cluster.kubeconfig(), &config, &more)
        .ready()
        .await;

    let answer = reader.get(&count(heath, table), Some(&ann)).await;
    assert_eq!(
        (answer.status, &answer.json()["count"]),
        (200, &json!(100)),
        "{answer:?}"
    );
    // The short form is the reader's own namespace.
    let short = format!("/api/v1/experiments/{table}/records?limit=3&source=all");
    let answer = reader.get(&short, Some(&ann)).await;
    assert_eq!(
        answer.json()["records"].as_array().unwrap().len(),
        3,
        "{answer:?}"
    );
    let rollouts = format!("/api/v1/rollouts/{table}");
    assert_eq!(reader.get(&rollouts, Some(&ann)).await.status, 200);
    assert_eq!(reader.get(&rollouts, Some(&bob)).await.problem().0, 403);

    // Without a token, or with what is none, nothing is answered, and no look is taken.
    let answer = reader.get(&count(heath, table), None).await;
    assert_eq!(answer.problem(), (401, "token-missing".into()));
    assert_eq!(
        answer.headers["www-authenticate"],
        "Bearer realm=\"freshet\""
    );
    assert!(answer.text.contains("kubectl port-forward"), "{answer:?}");
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    let answer = reader.get(&count(heath, table), Some("garbage")).await;
    assert_eq!(answer.problem(), (401, "token-malformed".into()));
    for audience in ["https://kubernetes.default.svc", "freshet.dev.example"] {
        let other = token(cluster, (heath, "ann"), audience);
        let answer = reader.get(&count(heath, table), Some(&other)).await;
        assert_eq!(
            answer.problem(),
            (401, "token-refused".into()),
            "{audience}"
        );
    }

    // Who may not read gets one answer, whether or not there is something.
    let mut told = vec![];
    for (who, namespace, name) in [
        (&ann, moor, table),
        (&ann, moor, "never-was"),
        (&ann, "finch-never-was", table),
        (&bob, heath, table),
        (&bob, heath, "never-was"),
    ] {
        for path in [
            "",
            "/count",
            "/records",
            "/schema",
            "/backlog",
            "/records/1",
            "/records/1/blobs/v",
        ] {
            let path = format!("/api/v1/namespaces/{namespace}/experiments/{name}{path}");
            let answer = reader.get(&path, Some(who)).await;
            assert_eq!(answer.problem(), (403, "forbidden".into()), "{path}");
            told.push(answer.text);
        }
    }
    told.dedup();
    assert_eq!(told.len(), 1, "{told:?}");
    // Who may, learns that it is not there.
    let answer = reader.get(&count(heath, "never-was"), Some(&ann)).await;
    assert_eq!(answer.problem(), (404, "experiment-not-found".into()));

    // Lists show what their reader may list.
    let (at_heath, at_moor) = (format!("{heath}/{table}"), format!("{moor}/{table}"));
    let all = "/api/v1/experiments";
    let of = |namespace: &str| format!("/api/v1/namespaces/{namespace}/experiments");
    assert_eq!(reader.get(all, Some(&ann)).await.listed(), [&*at_heath]);
    assert_eq!(
        reader.get(&of(heath), Some(&ann)).await.listed(),
        [&*at_heath]
    );
    assert_eq!(reader.get(&of(moor), Some(&ann)).await.problem().0, 403);
    assert_eq!(reader.get(all, Some(&bob)).await.listed(), [""; 0]);
    assert_eq!(
        reader.get(all, Some(&eve)).await.listed(),
        [&*at_heath, &at_moor]
    );
    assert_eq!(reader.get(all, None).await.status, 401);
    assert_eq!(reader.get("/", None).await.status, 401);
    let page = reader.get("/", Some(&bob)).await;
    assert!(page.status == 200 && !page.text.contains(table), "{page:?}");

    // Health and metrics are elsewhere.
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(reader.get(path, None).await.status, 404, "{path}");
    }
    let metrics = reader.metrics().await;
    for want in [
        "freshet_store_requests_total{",
        "freshet_http_requests_total{",
    ] {
        assert!(metrics.contains(want), "{metrics}");
    }
    let log = reader.log();
    for hidden in [MARK, &ann, &bob, &eve] {
        assert!(!log.contains(hidden) && !metrics.contains(hidden), "{log}");
    }
    assert_eq!(reader.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_away_or_given_counts_within_the_time_that_answers_are_kept() {
    let cluster = Cluster::shared();
    let (ns, table) = ("finch-revoked", "larks");
    let (store, _table) = store(cluster, &[ns], table).await;
    for who in ["ann", "bob", "eve"] {
        let reads = if who == "eve" { 0 } else { 1 };
        person(cluster, ns, who, &[ns][..reads]);
    }
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|who| token(cluster, (ns, who), AUDIENCE));
    let kubeconfig = account(cluster, ns);
    let config = allowing(&store.endpoint(store.at));
    let reader = Reader::start(&kubeconfig, &config, &["--watch-namespace", ns])
        .ready()
        .await;
    let path = count(ns, table);
    // Kept: many requests are one question of each kind.
    for _ in 0..20 {
        assert_eq!(reader.get(&path, Some(&ann)).await.status, 200);
    }
    assert_eq!(reader.get(&path, Some("garbage")).await.status, 401);
    eventually("the audit log", async || {
        (reviews(cluster, ns, "tokenreviews") > 0).then_some(())
    })
    .await;
    assert!(reviews(cluster, ns, "tokenreviews") <= 2);
    assert!(reviews(cluster, ns, "subjectaccessreviews") <= 2);
    assert_eq!(reader.get(&path, Some(&bob)).await.status, 200);
    assert_eq!(reader.get(&path, Some(&eve)).await.status, 403);

    cluster.kubectl_ok(&["delete", "serviceaccount", "ann", "-n", ns]);
    cluster.kubectl_ok(&["delete", "rolebinding", &format!("{ns}-bob"), "-n", ns]);
    may_read(cluster, (ns, "eve"), ns);
    for (who, status) in [(&ann, 401), (&bob, 403), (&eve, 200)] {
        eventually("the answer changes", async || {
            (reader.get(&path, Some(who)).await.status == status).then_some(())
        })
        .await;
    }
    assert_eq!(reader.end(), Some(0));
}

/// A token as the cluster signs them, that ends so many seconds from now.
fn signed(cluster: &Cluster, namespace: &str, who: &str, left: i64) -> String {
    let uid = cluster.get(namespace, &format!("serviceaccount/{who}"))["metadata"]["uid"].clone();
    let now = jiff::Timestamp::now().as_second();
    let claims = json!({
        "iss": "https://kubernetes.default.svc",
        "aud": [AUDIENCE],
        "exp": now + left, "iat": now - 7200, "nbf": now - 7200,
        "sub": format!("system:serviceaccount:{namespace}:{who}"),
        "kubernetes.io": { "namespace": namespace, "serviceaccount": { "name": who, "uid": uid } },
    });
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!(
        "{}.{}",
        part(&json!({ "alg": "ES256", "typ": "JWT" })),
        part(&claims)
    );
    let key = cluster.folder().join("pki/service-accounts.key");
    let der = openssl(
        &["dgst", "-sha256", "-sign", key.to_str().unwrap()],
        text.as_bytes(),
    );
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(plain(&der)))
}

/// The two numbers of a signature, 32 bytes each, as tokens have them; OpenSSL wraps each with its length.
fn plain(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut plain = vec![];
    for _ in 0..2 {
        let length = usize::from(rest[1]);
        let number: Vec<u8> = rest[2..2 + length].to_vec();
        let digits = number
            .iter()
            .skip_while(|b| **b == 0)
            .copied()
            .collect::<Vec<_>>();
        plain.resize(plain.len() + 32 - digits.len(), 0);
        plain.extend(digits);
        rest = &rest[2 + length..];
    }
    plain
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_has_expired_is_refused_where_the_same_with_time_left_is_taken() {
    let cluster = Cluster::shared();
    let (ns, table) = ("finch-expired", "larks");
    let (store, _table) = store(cluster, &[ns], table).await;
    person(cluster, ns, "ann", &[ns]);
    let config = allowing(&store.endpoint(store.at));
    let reader = Reader::start(cluster.kubeconfig(), &config, &["--watch-namespace", ns])
        .ready()
        .await;
    let path = count(ns, table);
    let good = signed(cluster, ns, "ann", 3600);
    let answer = reader.get(&path, Some(&good)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    // The API server forgives a minute of clocks that differ.
    let late = signed(cluster, ns, "ann", -3600);
    assert_eq!(
        reader.get(&path, Some(&late)).await.problem(),
        (401, "token-refused".into())
    );
    let (head, signature) = good.rsplit_once('.').unwrap();
    let other = URL_SAFE_NO_PAD.encode([7; 64]);
    assert_ne!(signature, other);
    let forged = reader.get(&path, Some(&format!("{head}.{other}"))).await;
    assert_eq!(forged.problem(), (401, "token-refused".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_api_server_hangs_nobody_is_let_in_beyond_what_it_said_last() {
    let cluster = Cluster::control_plane();
    let (ns, table) = ("finch", "larks");
    let (store, _table) = store(&cluster, &[ns], table).await;
    person(&cluster, ns, "ann", &[ns]);
    person(&cluster, ns, "bob", &[ns]);
    let [ann, bob] = ["ann", "bob"].map(|who| token(&cluster, (ns, who), AUDIENCE));
    let config = allowing(&store.endpoint(store.at));
    let more = ["--watch-namespace", ns];
    let reader = Reader::start(cluster.kubeconfig(), &config, &more)
        .ready()
        .await;
    let path = count(ns, table);
    assert_eq!(reader.get(&path, Some(&ann)).await.status, 200);
    cluster.pause("kube-apiserver");
    // Of one who was never seen nothing is known.
    let answer = reader.get(&path, Some(&bob)).await;
    assert_eq!(answer.problem(), (503, "authorisation-unavailable".into()));
    assert_eq!(answer.headers["retry-after"], "1");
    eventually("what was kept ends", async || {
        let answer = reader.get(&path, Some(&ann)).await;
        assert!(matches!(answer.status, 200 | 503), "{answer:?}");
        (answer.status == 503).then_some(())
    })
    .await;
    for _ in 0..3 {
        let answer = reader.get(&path, Some(&ann)).await;
        assert_eq!(answer.problem(), (503, "authorisation-unavailable".into()));
    }
    // It is no worse than that: it lives, and stays ready.
    reader.until_ready("200").await;
    cluster.resume("kube-apiserver");
    for who in [&ann, &bob] {
        eventually("it answers again", async || {
            (reader.get(&path, Some(who)).await.status == 200).then_some(())
        })
        .await;
    }
    // What was made since is seen.
    cluster.apply(&of_store(ns, "late", &store, json!({})));
    eventually("the watch goes on", async || {
        let listed = reader.get("/api/v1/experiments", Some(&ann)).await;
        listed.text.contains("\"late\"").then_some(())
    })
    .await;
    assert_eq!(reader.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_of_fragments_is_what_the_controller_last_said() {
    let cluster = Cluster::shared();
    let (ns, table) = ("finch-lag", "larks");
    let (store, mut written) = store(cluster, &[ns], table).await;
    person(cluster, ns, "ann", &[ns]);
    let ann = token(cluster, (ns, "ann"), AUDIENCE);
    let config = allowing(&store.endpoint(store.at));
    let more = ["--watch-namespace", ns, "--namespace", ns];
    let reader = Reader::start(cluster.kubeconfig(), &config, &more)
        .ready()
        .await;
    let path = format!("/api/v1/experiments/{table}/records?limit=1");
    let before = reader.get(&path, Some(&ann)).await.json();
    let unknown = json!({
        "seconds": null, "pending_generations": null, "oldest_pending_time": null, "observed_time": null,
    });
    assert_eq!(before["lag"], unknown);
    let controller = Controller::start(cluster, ns, &config);
    wait(cluster, ns, table, "condition=Fresh");
    // Suspended, so that what is pending stays.
    let suspended = json!({ "spec": { "suspend": true } });
    crate::running::patch(cluster, ns, table, &suspended);
    crate::writing::round(&mut written, 1).await;
    let pending = "jsonpath={.status.backlog.pendingGenerations}=1";
    crate::running::request(cluster, ns, table, "look");
    wait(cluster, ns, table, pending);
    let told = eventually("the figures", async || {
        let told = reader.get(&path, Some(&ann)).await.json();
        (told["lag"]["pending_generations"] == 1).then_some(told)
    })
    .await;
    let status = cluster.get(ns, &format!("experiment/{table}"))["status"].clone();
    let time = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(
        time(&told["lag"]["observed_time"]),
        time(&status["backlog"]["observedTime"])
    );
    assert_eq!(
        time(&told["lag"]["oldest_pending_time"]),
        time(&status["backlog"]["oldestPendingTime"])
    );
    assert!(told["lag"]["seconds"].as_f64().unwrap() >= 0.0);
    let one = reader
        .get(&format!("/api/v1/experiments/{table}"), Some(&ann))
        .await
        .json();
    assert_eq!(one["why_not_now"]["reason"], "Suspended");
    // The reader sees for itself what is pending.
    let all = reader
        .get(&format!("{}?source=wal", count(ns, table)), Some(&ann))
        .await
        .json();
    assert_eq!(all["lag"]["pending_generations"], 1);
    assert_eq!(controller.end(), Some(0));
    assert_eq!(reader.end(), Some(0));
}

/// A client that takes certificates of this one alone.
fn trusting(chain: &Path, host: &str, at: std::net::SocketAddr) -> reqwest::Client {
    let pem = std::fs::read(chain).unwrap();
    let root = reqwest::Certificate::from_pem(&pem).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([root]);
    client.resolve(host, at).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_not() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    let ns = "finch-tls";
    cluster.namespace(ns);
    let folder = tempfile::tempdir().unwrap();
    let host = "records.finch.example";
    let [chain, key] = certificate(folder.path(), host);
    let cert = format!("--tls-cert-file={}", chain.display());
    let with_key = format!("--tls-key-file={}", key.display());
    let more = [&*cert, &with_key, "--watch-namespace", ns];
    let reader = Reader::start_with(cluster.kubeconfig(), &json!({}), &[], &more)
        .ready()
        .await;
    let at: std::net::SocketAddr = reader
        .address()
        .strip_prefix("https://")
        .unwrap()
        .parse()
        .unwrap();
    let url = format!("https://{host}:{}/api/v1/experiments", at.port());
    let first = trusting(&chain, host, at);
    assert_eq!(first.get(&url).send().await.unwrap().status(), 401);
    // Not in the clear.
    assert!(
        reqwest::get(format!("http://{at}/api/v1/experiments"))
            .await
            .is_err()
    );

    let other = tempfile::tempdir().unwrap();
    let [new_chain, new_key] = certificate(other.path(), host);
    std::fs::write(&key, "no key").unwrap();
    eventually("it tells of the broken one", async || {
        reader
            .log()
            .contains("the last good certificate is served on")
            .then_some(())
    })
    .await;
    assert_eq!(
        trusting(&chain, host, at)
            .get(&url)
            .send()
            .await
            .unwrap()
            .status(),
        401
    );
    std::fs::copy(&new_chain, &chain).unwrap();
    std::fs::copy(&new_key, &key).unwrap();
    eventually("the new one", async || {
        // Each time a new connection.
        let answer = trusting(&new_chain, host, at).get(&url).send().await.ok()?;
        assert_eq!(answer.status(), 401);
        Some(())
    })
    .await;
    assert!(
        reader
            .log()
            .contains("another certificate is served from now on")
    );
    assert_eq!(reader.end(), Some(0));
}

#[tokio::test]
async fn a_reader_that_is_not_told_how_to_serve_does_not_start() {
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_freshet"));
        command.arg("reader").args(args).output().unwrap()
    };
    for (args, says) in [
        (&[][..], "--plain-http"),
        (&["--tls-cert-file=/nowhere/tls.crt"], "--tls-key-file"),
        (
            &[
                "--tls-cert-file=/nowhere/tls.crt",
                "--tls-key-file=/nowhere/tls.key",
            ],
            "/nowhere/tls.crt",
        ),
        (&["--plain-http", "--audience="], "--audience"),
    ] {
        let done = run(args);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
    }
}
