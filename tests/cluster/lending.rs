//! What the reader opens tables with: grants, endpoints and Secrets, before any request to a store, and the rights that takes.
//!
//! Lives here: tables that may not be opened, Secrets for readers, rotated keys, and an account with one right less. May use: the
//! reader's process, the fixtures, the store servers, a tally of requests. Never: a Pod.

use serde_json::{Value, json};

use crate::fixtures::{Fixture, Spec};
use crate::harness::Cluster;
use crate::reading::{AUDIENCE, Reader, account, eventually, name, person, token};
use crate::release::until;
use crate::rights::granted;
use crate::running::{allowing, experiment, of_store, secret};
use crate::servers::{Kind, MARK, Server};
use crate::tally::Tally;

fn count(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/experiments/{name}/count")
}

/// A spec of a store's table, reached by way of a tally, without a Secret.
fn by_way_of(tally: &Tally, store: &Server, table: &str) -> Value {
    let mut spec = json!({ "table": store.spec(table) });
    spec["table"]["storage"]["endpoint"] = json!(store.endpoint(tally.at));
    spec["table"].as_object_mut().unwrap().remove("secretRef");
    spec
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anothers_prefix_is_refused_without_one_request_to_the_store() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    let (a, b) = ("wren-a", "wren-b");
    let store = Server::start(Kind::S3).await;
    let uri = store.uri("wren-b/larks");
    let _table = Fixture::create_in(Spec::default(), &uri, store.writer_options()).await;
    let tally = Tally::start(store.at).await;
    let spec = by_way_of(&tally, &store, "wren-b/larks");
    for namespace in [a, b] {
        cluster.namespace(namespace);
        cluster.apply(&experiment(namespace, "larks", &spec));
    }
    // Each may read what is declared in its own namespace.
    person(cluster, a, "ann", &[a]);
    person(cluster, b, "bob", &[b]);
    let [ann, bob] = [(a, "ann"), (b, "bob")].map(|who| token(cluster, who, AUDIENCE));
    let config = json!({ "storage": { "grants": [{
        "namespaces": [b],
        "uriPrefixes": [format!("{}/", store.uri("wren-b"))],
        "endpoint": store.endpoint(tally.at),
    }] } });
    let keys = store.secret();
    let env = [
        ("AWS_ACCESS_KEY_ID", &*keys["aws_access_key_id"]),
        ("AWS_SECRET_ACCESS_KEY", &*keys["aws_secret_access_key"]),
        ("AWS_REGION", "us-east-1"),
    ];
    let more = ["--plain-http", "--watch-namespaces=wren-a,wren-b"];
    let reader = Reader::start_with(cluster.kubeconfig(), &config, &env, &more)
        .ready()
        .await;
    for path in [
        "/count",
        "/records",
        "/records?source=all",
        "/schema",
        "/backlog",
        "/records/1",
    ] {
        let path = format!("/api/v1/namespaces/{a}/experiments/larks{path}");
        let answer = reader.get(&path, Some(&ann)).await;
        assert_eq!(
            answer.problem(),
            (403, "table-not-allowed".into()),
            "{path}"
        );
    }
    // An edit of the Secret's name brings none.
    let mut unlabelled = secret(a, &keys);
    unlabelled["metadata"]["labels"] = json!({});
    unlabelled["metadata"]["name"] = json!("unlabelled");
    cluster.apply(&unlabelled);
    let mut named = spec.clone();
    named["table"]["secretRef"] = json!({ "name": "unlabelled" });
    cluster.apply(&experiment(a, "named", &named));
    eventually("it is told", async || {
        let answer = reader.get(&count(a, "named"), Some(&ann)).await;
        // The endpoint is granted by name, so that the Secret is what is missing.
        (answer.problem() == (503, "credentials-missing".into())).then_some(())
    })
    .await;
    assert_eq!(tally.asked(), [""; 0]);
    // The same place is open to whom it is granted.
    let answer = reader.get(&count(b, "larks"), Some(&bob)).await;
    assert_eq!(answer.json()["count"], 100, "{answer:?}");
    assert!(!tally.asked().is_empty());
    // The label is what makes it usable, and that is seen without a restart.
    cluster.apply(&{
        let mut labelled = unlabelled.clone();
        labelled["metadata"]["labels"] = json!({ "freshet.dev/storage": "true" });
        labelled
    });
    eventually("the label is seen", async || {
        (reader.get(&count(a, "named"), Some(&ann)).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(reader.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_inside_is_refused_without_one_request_unless_it_is_allowed() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    let ns = "wren-inside";
    cluster.namespace(ns);
    let store = Server::start(Kind::S3).await;
    let _table =
        Fixture::create_in(Spec::default(), &store.uri("larks"), store.writer_options()).await;
    let tally = Tally::start(store.at).await;
    let mut spec = by_way_of(&tally, &store, "larks");
    spec["table"]["secretRef"] = json!({ "name": "maze-keys" });
    cluster.apply(&secret(ns, &store.secret()));
    cluster.apply(&experiment(ns, "larks", &spec));
    person(cluster, ns, "ann", &[ns]);
    let ann = token(cluster, (ns, "ann"), AUDIENCE);
    let more = ["--watch-namespace", ns];
    let reader = Reader::start(cluster.kubeconfig(), &json!({}), &more)
        .ready()
        .await;
    let answer = reader.get(&count(ns, "larks"), Some(&ann)).await;
    assert_eq!(answer.problem(), (403, "table-not-allowed".into()));
    assert!(
        answer.text.contains("the operator's own machine"),
        "{answer:?}"
    );
    assert_eq!(tally.asked(), [""; 0]);
    assert_eq!(reader.end(), Some(0));
    let config = allowing(&store.endpoint(tally.at));
    let reader = Reader::start(cluster.kubeconfig(), &config, &more)
        .ready()
        .await;
    assert_eq!(
        reader.get(&count(ns, "larks"), Some(&ann)).await.status,
        200
    );
}

/// The names of the Secrets that an account got.
fn got(cluster: &Cluster, namespace: &str) -> Vec<String> {
    let account = format!("system:serviceaccount:{namespace}:{}", name(namespace));
    let requests = cluster.requests();
    let of = requests.iter().filter(|r| {
        r["user"]["username"] == account.as_str() && r["objectRef"]["resource"] == "secrets"
    });
    let mut names: Vec<String> = of
        .map(|r| {
            assert_eq!(r["verb"], "get", "{r}");
            r["objectRef"]["name"].as_str().unwrap().to_owned()
        })
        .collect();
    names.dedup();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_open_with_the_secret_for_readers_alone() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    let ns = "wren-keys";
    cluster.namespace(ns);
    let store = Server::start(Kind::S3).await;
    let _table =
        Fixture::create_in(Spec::default(), &store.uri("larks"), store.writer_options()).await;
    // The main one opens nothing.
    let mut wrong = store.secret();
    wrong.insert("aws_secret_access_key".into(), format!("{MARK}Wrong"));
    cluster.apply(&secret(ns, &wrong));
    let for_readers = |store: &Server| {
        let mut made = secret(ns, &store.secret());
        made["metadata"]["name"] = json!("reads");
        made
    };
    cluster.apply(&for_readers(&store));
    let mut spec = json!({ "table": store.spec("larks") });
    spec["table"]["readSecretRef"] = json!({ "name": "reads" });
    cluster.apply(&experiment(ns, "larks", &spec));
    person(cluster, ns, "ann", &[ns]);
    let ann = token(cluster, (ns, "ann"), AUDIENCE);
    let kubeconfig = account(cluster, ns);
    let config = allowing(&store.endpoint(store.at));
    let reader = Reader::start(&kubeconfig, &config, &["--watch-namespace", ns])
        .ready()
        .await;
    let path = count(ns, "larks");
    eventually("the table is read", async || {
        let answer = reader.get(&path, Some(&ann)).await;
        assert!(matches!(answer.status, 200 | 503), "{answer:?}");
        assert!(!answer.text.contains(MARK), "{answer:?}");
        (answer.status == 200).then_some(())
    })
    .await;
    assert_eq!(got(cluster, ns), ["reads"]);
    assert!(!reader.log().contains(MARK));
    assert_eq!(reader.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_of_the_readers_account_is_needed_and_a_missing_one_is_named_and_waited_for() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    let ns = "wren-rights";
    cluster.namespace(ns);
    let store = Server::start(Kind::S3).await;
    let _table =
        Fixture::create_in(Spec::default(), &store.uri("larks"), store.writer_options()).await;
    cluster.apply(&secret(ns, &store.secret()));
    cluster.apply(&of_store(ns, "larks", &store, json!({})));
    person(cluster, ns, "ann", &[ns]);
    let ann = token(cluster, (ns, "ann"), AUDIENCE);
    let kubeconfig = account(cluster, ns);
    let config = allowing(&store.endpoint(store.at));
    let start = || Reader::start(&kubeconfig, &config, &["--watch-namespace", ns]);
    let path = count(ns, "larks");
    let reads = async |reader: &Reader| {
        eventually("it reads", async || {
            (reader.get(&path, Some(&ann)).await.status == 200).then_some(())
        })
        .await;
    };

    // With all of them nothing is refused, and none is left over.
    let whole = start().ready().await;
    reads(&whole).await;
    let mut role = cluster.get(ns, &format!("role/{}", name(ns)));
    role["metadata"] = json!({ "name": name(ns), "namespace": ns });
    let mut rights = granted(std::slice::from_ref(&role));
    let reviews = [
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
    ];
    rights.extend(
        reviews.map(|(group, kind)| (group.to_owned(), kind.to_owned(), "create".to_owned())),
    );
    let who = format!("system:serviceaccount:{ns}:{}", name(ns));
    until("every right is used", || {
        (crate::rights::asked(cluster, &who).0 == rights).then_some(())
    });
    let (used, refused) = crate::rights::asked(cluster, &who);
    assert_eq!(used, rights);
    assert_eq!(refused, [] as [Value; 0]);
    assert!(!whole.log().contains("may not"), "{}", whole.log());
    assert_eq!(whole.end(), Some(0));

    for (group, resource, verb) in granted(std::slice::from_ref(&role)) {
        let right = (group.clone(), resource.clone(), verb.clone());
        crate::rights::put(
            cluster,
            ns,
            &name(ns),
            &crate::rights::without(&role, &right),
            &right,
            false,
        );
        let mut reader = start();
        let what = format!("{resource}.{group}");
        let missing = format!(
            "may not {verb} {} in the namespace {ns}; grant it",
            what.trim_end_matches('.')
        );
        eventually(&missing, async || {
            if resource == "secrets" {
                let answer = reader.get(&path, Some(&ann)).await;
                // Before the Experiments are listed nothing is known of them.
                assert_eq!(answer.status, 503, "{answer:?}");
            }
            reader.log().contains(&missing).then_some(())
        })
        .await;
        if verb == "list" {
            let answer = reader.get(&path, Some(&ann)).await;
            assert_eq!(answer.problem(), (503, "not-ready".into()));
            reader.until_ready("503").await;
        }
        assert!(reader.runs(), "{missing}");
        crate::rights::put(cluster, ns, &name(ns), &role, &right, true);
        let reader = reader.ready().await;
        reads(&reader).await;
        let told = reader.log();
        assert_eq!(told.matches(&missing).count(), 1, "{told}");
        assert_eq!(reader.end(), Some(0));
    }

    // Who may not ask for reviews lets in nobody.
    let binding = format!("{}-auth-delegator", name(ns));
    let kept = cluster.kubectl_ok(&["get", "clusterrolebinding", &binding, "-o", "json"]);
    let mut kept: Value = serde_json::from_str(&kept).unwrap();
    kept["metadata"] = json!({ "name": binding });
    cluster.kubectl_ok(&["delete", "clusterrolebinding", &binding]);
    let reader = start().ready().await;
    eventually("nobody is let in", async || {
        let answer = reader.get(&path, Some(&ann)).await;
        // The API server goes by what is gone for a moment.
        (answer.status == 503).then(|| {
            assert_eq!(answer.problem().1, "authorisation-unavailable");
        })
    })
    .await;
    let missing = "may not create tokenreviews.authentication.k8s.io in all namespaces; grant it";
    assert!(reader.log().contains(missing), "{}", reader.log());
    cluster.apply(&kept);
    reads(&reader).await;
    assert_eq!(reader.end(), Some(0));
}
