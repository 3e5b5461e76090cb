//! A server whose callers have names: who reaches a handler, what they see of a list, and their share.
//!
//! Lives here: an authoriser that takes the header `Authorization` for a name, and every route there is. May use: the server
//! on a real socket. Never: a token, which is the embedding role's business.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use axum::http::{HeaderMap, header};
use freshet::server::{Authoriser, Caller, Config, ExperimentStatus, Identity, Refused, Sight};
use freshet::table::StoresConfig;

use crate::fixtures::{Fixture, Spec};
use crate::served::{Answer, Served, Tables};

/// Names and the namespaces that each may see.
struct Names {
    may: BTreeSet<(&'static str, &'static str)>,
}

#[async_trait]
impl Authoriser for Names {
    async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Refused> {
        let name = headers.get(header::AUTHORIZATION);
        match name.map(|name| name.to_str().unwrap()) {
            None => Err(Refused::NoToken),
            Some("away") => Err(Refused::Unavailable),
            Some("nobody") => Err(Refused::Unknown),
            Some(name) => Ok(Caller::Known(Arc::new(Identity {
                user: name.into(),
                ..Default::default()
            }))),
        }
    }

    async fn may(&self, caller: &Caller, what: Sight<'_>) -> Result<bool, Refused> {
        let Caller::Known(who) = caller else {
            return Ok(false);
        };
        let namespace = match what {
            Sight::List(namespace) => namespace.unwrap_or("*"),
            Sight::Records { namespace, .. } => namespace,
        };
        if who.user == "unsure" && namespace != "*" {
            return Err(Refused::Busy);
        }
        Ok(self.may.contains(&(&*who.user, namespace)))
    }
}

fn names() -> Arc<Names> {
    Arc::new(Names {
        may: [
            ("ann", "alder"),
            ("eve", "*"),
            ("eve", "alder"),
            ("unsure", "alder"),
        ]
        .into(),
    })
}

fn experiment(namespace: &str, name: &str, uri: &str) -> ExperimentStatus {
    ExperimentStatus {
        name: name.into(),
        namespace: namespace.into(),
        uri: uri.into(),
        ..Default::default()
    }
}

async fn served(config: Config) -> (Served, Fixture) {
    let table = Fixture::create(Spec::default()).await;
    let tables = Tables::new(StoresConfig::default())
        .with(experiment("alder", "maze", &table.uri))
        .with(experiment("birch", "pole", &table.uri));
    (Served::for_callers(tables, config, names()).await, table)
}

async fn get(served: &Served, target: &str, who: &str) -> Answer {
    let who = match who {
        "" => String::new(),
        who => format!("authorization: {who}\r\n"),
    };
    let head = format!("GET {target} HTTP/1.1\r\nhost: records.example\r\n");
    served
        .say(&format!("{head}{who}connection: close\r\n\r\n"))
        .await
}

const ROUTES: [&str; 12] = [
    "",
    "/records",
    "/records?source=all",
    "/records/7",
    "/records/7/blobs/v",
    "/schema",
    "/backlog",
    "/count",
    "/wait",
    "/records?bogus=1",
    "/count?source=bogus",
    "/schema?x=1",
];

fn routes() -> impl Iterator<Item = String> {
    let of = |end: &&str| format!("/api/v1/namespaces/alder/experiments/maze{end}");
    ROUTES.iter().map(of)
}

#[tokio::test]
async fn without_a_name_no_route_reaches_its_handler() {
    let (served, _table) = served(Config::default()).await;
    let short = ["", "/count", "/records"].map(|end| format!("/api/v1/experiments/maze{end}"));
    let rollouts = ["", "/records", "/records/7", "/records/7/blob"];
    let rollouts = rollouts.map(|end| format!("/api/v1/rollouts/maze{end}"));
    let generic = ["", "/rows", "/rows/7"].map(|end| format!("/api/v1/generic/maze{end}"));
    let lists = [
        "/",
        "/api/v1/experiments",
        "/api/v1/namespaces/alder/experiments",
    ];
    let lists = lists.map(str::to_owned);
    for target in routes()
        .chain(short)
        .chain(rollouts)
        .chain(generic)
        .chain(lists)
    {
        for (who, status, kind) in [
            ("", 401, "token-missing"),
            ("nobody", 401, "token-refused"),
            ("away", 503, "authorisation-unavailable"),
        ] {
            let answer = get(&served, &target, who).await;
            assert_eq!(
                (answer.status, &*answer.problem()),
                (status, kind),
                "{target}"
            );
            let challenged = answer
                .head
                .contains("www-authenticate: bearer realm=\"freshet\"");
            assert_eq!(challenged, status == 401, "{answer:?}");
            assert_eq!(
                answer.head.contains("retry-after: 1"),
                status == 503,
                "{answer:?}"
            );
            assert!(answer.json()["error"]["code"].is_string(), "{answer:?}");
        }
    }
    assert_eq!(served.tables.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn who_may_not_see_it_gets_one_answer_and_nothing_is_looked_up() {
    let (served, _table) = served(Config::default()).await;
    let mut told = BTreeSet::new();
    for (who, namespace, name) in [
        ("ann", "birch", "pole"),
        ("ann", "birch", "never-was"),
        ("ann", "never-was", "pole"),
        ("bob", "alder", "maze"),
        ("bob", "alder", "never-was"),
    ] {
        for end in ROUTES {
            let target = format!("/api/v1/namespaces/{namespace}/experiments/{name}{end}");
            let answer = get(&served, &target, who).await;
            assert_eq!(
                (answer.status, &*answer.problem()),
                (403, "forbidden"),
                "{target}"
            );
            told.insert(answer.body);
        }
    }
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(served.tables.asked.load(Ordering::SeqCst), 0);
    let of = |name| format!("/api/v1/namespaces/alder/experiments/{name}/count");
    assert_eq!(get(&served, &of("maze"), "ann").await.status, 200);
    assert_eq!(
        get(&served, &of("never-was"), "ann").await.problem(),
        "experiment-not-found"
    );
    // One of another namespace is not there either.
    assert_eq!(
        get(&served, &of("pole"), "ann").await.problem(),
        "experiment-not-found"
    );
}

#[tokio::test]
async fn a_list_shows_what_its_caller_may_list() {
    let (served, _table) = served(Config::default()).await;
    let listed = async |target: &str, who: &str| {
        let answer = get(&served, target, who).await;
        let json = answer.json();
        let all = json["experiments"].as_array().cloned().unwrap_or_default();
        let all = all.iter().map(|e| e["name"].as_str().unwrap().to_owned());
        (answer.status, all.collect::<Vec<_>>())
    };
    let (all, alder) = (
        "/api/v1/experiments",
        "/api/v1/namespaces/alder/experiments",
    );
    assert_eq!(listed(all, "ann").await, (200, vec!["maze".into()]));
    assert_eq!(listed(all, "bob").await, (200, vec![]));
    assert_eq!(
        listed(all, "eve").await,
        (200, vec!["maze".into(), "pole".into()])
    );
    assert_eq!(listed(alder, "ann").await, (200, vec!["maze".into()]));
    assert_eq!(listed(alder, "bob").await.0, 403);
    // What cannot be found out is never a shorter list.
    assert_eq!(listed(all, "unsure").await.0, 503);
    let page = get(&served, "/", "ann").await;
    assert!(
        page.body.contains("maze") && !page.body.contains("pole"),
        "{page:?}"
    );
}

#[tokio::test]
async fn a_caller_beyond_its_share_is_told_to_wait_and_others_are_answered() {
    let none = Config {
        per_caller: 0,
        ..Default::default()
    };
    let (served, _table) = served(none).await;
    let target = "/api/v1/namespaces/alder/experiments/maze/count";
    let answer = get(&served, target, "ann").await;
    assert_eq!(
        (answer.status, &*answer.problem()),
        (429, "too-many-requests")
    );
    assert!(answer.head.contains("retry-after: 1"), "{answer:?}");
    // Lists cost nothing and take no share.
    assert_eq!(get(&served, "/api/v1/experiments", "ann").await.status, 200);
}

#[tokio::test]
async fn health_and_metrics_are_not_told_to_callers_where_they_have_an_address_of_their_own() {
    let config = Config {
        operations: false,
        ..Default::default()
    };
    let (served, _table) = served(config).await;
    for target in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(
            get(&served, target, "").await.problem(),
            "route-not-found",
            "{target}"
        );
    }
}

#[tokio::test]
async fn only_reading_is_answered_before_anybody_is_asked_who_it_is() {
    let (served, _table) = served(Config::default()).await;
    let ask =
        "POST /api/v1/experiments/maze/records HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert_eq!(served.say(ask).await.status, 405);
}
