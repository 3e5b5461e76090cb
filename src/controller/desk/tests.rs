//! The desk, told what a cluster, its stores and the engine would tell, with a clock of the test's own.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::api::{
    DeletionPolicy, ExperimentSpec, REQUESTED_AT, SecretRef, StorageSpec, TableSpec as Table,
};
use crate::cluster::access::{Access, Grant};
use crate::controller::specs::FINALIZER;
use crate::engine::TableStatus;
use crate::plan::WhyNotNow;

const DAY: i64 = 1_800_000_000;

struct World {
    desk: Desk,
    now: Mono,
}

fn granted(endpoints: &[&str]) -> Settings {
    let grant = Grant {
        namespaces: vec!["alder".into()],
        uri_prefixes: vec!["s3://runs/alder/".into()],
        endpoint: None,
    };
    let endpoints = endpoints.iter().map(|e| e.to_string()).collect();
    Settings {
        access: Access::new(vec![grant], endpoints).unwrap(),
        ..Settings::default()
    }
}

fn experiment(namespace: &str, name: &str, uri: &str) -> Experiment {
    let spec = ExperimentSpec {
        table: Table {
            uri: uri.into(),
            ..Default::default()
        },
        ..Default::default()
    };
    let mut made = Experiment::new(name, spec);
    made.metadata.namespace = Some(namespace.into());
    made.metadata.uid = Some(format!("uid-{namespace}-{name}"));
    made.metadata.generation = Some(1);
    made.metadata.resource_version = Some("100".into());
    made.metadata.creation_timestamp = Some(Time(Timestamp::from_second(DAY).unwrap()));
    made
}

fn with_secret(mut e: Experiment, secret: &str) -> Experiment {
    e.spec.table.secret_ref = Some(SecretRef {
        name: secret.into(),
    });
    e
}

fn keys() -> Found {
    Found::Keys(BTreeMap::from([
        ("aws_access_key_id".into(), "who".into()),
        ("aws_secret_access_key".into(), "planted-marker".into()),
    ]))
}

fn seen(reason: Reason, pending: u64, at: Timestamp) -> TableStatus {
    TableStatus {
        observed_at: Some(at),
        pending_generations: Some(pending),
        pending_rows: Some(pending),
        pending_bytes: Some(pending),
        shards: Some(1),
        base: Some((1, 1, 1)),
        why: Some(WhyNotNow {
            reason,
            message: reason.explain().into(),
            also: vec![],
        }),
        ..TableStatus::unseen("alder", "s3://runs/alder/one")
    }
}

impl World {
    fn new(settings: Settings) -> Self {
        Self {
            desk: Desk::new(Arc::new(settings), Mono::ZERO),
            now: Mono::ZERO,
        }
    }

    fn wall(&self) -> Timestamp {
        let past = SignedDuration::try_from(self.now).unwrap();
        Timestamp::from_second(DAY).unwrap() + past
    }

    fn after(&mut self, seconds: u64) -> Vec<Act> {
        self.now += Duration::from_secs(seconds);
        self.desk.acts(self.wall(), self.now)
    }

    fn took(&mut self, e: &Experiment) {
        self.desk.took(0, Ok(e.clone()), self.now);
    }

    fn said(&mut self, of: &[(&str, TableStatus)]) {
        let map = of.iter().map(|(id, s)| (TableId::from(*id), s.clone()));
        self.desk.said(Arc::new(map.collect()), self.now);
    }

    /// Answers every write as an API server does.
    fn accept(&mut self, acts: &[Act]) -> Vec<(TableId, ExperimentStatus)> {
        let mut written = vec![];
        for act in acts {
            match act {
                Act::Write { id, status, .. } => {
                    let status = (**status).clone();
                    let done = Wrote::Done(Some(101));
                    self.desk
                        .wrote(id, Some(status.clone()), &done, self.now, 0.5);
                    written.push((id.clone(), status));
                }
                Act::Finalizers { id, .. } => {
                    self.desk
                        .wrote(id, None, &Wrote::Done(Some(101)), self.now, 0.5);
                }
                _ => {}
            }
        }
        written
    }
}

fn tables(acts: &[Act]) -> Option<Vec<String>> {
    acts.iter().find_map(|act| match act {
        Act::Tables(all) => Some(all.iter().map(|t| t.id.0.to_string()).collect()),
        _ => None,
    })
}

fn condition(status: &ExperimentStatus, kind: &str) -> (String, String) {
    let found = status.conditions.iter().find(|c| c.type_ == kind).unwrap();
    (found.status.clone(), found.reason.clone())
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.into(), reason.into())
}

#[test]
fn a_granted_experiment_is_worked_on_reported_once_and_then_costs_nothing() {
    let mut world = World::new(granted(&[]));
    world.took(&experiment("alder", "one", "s3://runs/alder/one"));
    let acts = world.after(0);
    assert_eq!(tables(&acts), Some(vec!["alder/one".to_owned()]));
    assert_eq!(acts.len(), 1, "{acts:?}");
    world.said(&[("alder/one", seen(Reason::Fresh, 0, world.wall()))]);
    let acts = world.after(1);
    let written = world.accept(&acts);
    assert_eq!(written.len(), 1);
    let status = &written[0].1;
    assert_eq!(status.observed_generation, 1);
    assert_eq!(condition(status, "Ready"), pair("True", "Ready"));
    assert_eq!(condition(status, "Fresh"), pair("True", "Fresh"));
    for _ in 0..100 {
        let wall = world.wall();
        world.said(&[("alder/one", seen(Reason::Fresh, 0, wall))]);
        // The API server sends the object again, as it was written.
        let mut again = experiment("alder", "one", "s3://runs/alder/one");
        again.metadata.resource_version = Some("101".into());
        again.status = Some(status.clone());
        world.took(&again);
        assert_eq!(world.after(30), []);
    }
}

#[test]
fn another_namespaces_prefix_is_refused_before_anything_is_read() {
    let mut world = World::new(granted(&[]));
    world.took(&experiment("birch", "thief", "s3://runs/alder/one"));
    let acts = world.after(0);
    assert_eq!(tables(&acts), Some(vec![]));
    assert!(
        !acts
            .iter()
            .any(|a| matches!(a, Act::ReadSecret(_) | Act::LookUp(_)))
    );
    let written = world.accept(&acts);
    let status = &written[0].1;
    assert_eq!(condition(status, "Ready"), pair("False", "NotAllowed"));
    assert_eq!(condition(status, "Fresh").0, "Unknown");
}

#[test]
fn a_secret_is_read_once_and_its_value_is_nowhere_but_in_the_table() {
    let mut world = World::new(granted(&[]));
    let mine = with_secret(experiment("birch", "own", "s3://else/where"), "maze-keys");
    world.took(&mine);
    let named = ("birch".to_owned(), "maze-keys".to_owned());
    let acts = world.after(0);
    assert!(acts.contains(&Act::ReadSecret(named.clone())));
    world
        .desk
        .heard_secret(&named, Some(keys()), world.now, 0.5);
    let acts = world.after(1);
    assert_eq!(tables(&acts), Some(vec!["birch/own".to_owned()]));
    assert!(!format!("{acts:?}{:?}", world.desk).contains("planted-marker"));
}

#[test]
fn a_secret_that_is_missing_is_waited_for_and_found_again_within_a_minute() {
    let mut world = World::new(granted(&[]));
    world.took(&with_secret(
        experiment("birch", "own", "s3://else/where"),
        "maze-keys",
    ));
    let named = ("birch".to_owned(), "maze-keys".to_owned());
    world.after(0);
    world
        .desk
        .heard_secret(&named, Some(Found::Missing), world.now, 0.5);
    let acts = world.after(1);
    let status = &world.accept(&acts)[0].1;
    assert_eq!(
        condition(status, "Ready"),
        pair("False", "CredentialsMissing")
    );
    assert!(!status.conditions.iter().any(|c| c.type_ == "Stalled"));
    let acts = world.after(59);
    assert!(acts.contains(&Act::ReadSecret(named.clone())));
    world
        .desk
        .heard_secret(&named, Some(keys()), world.now, 0.5);
    assert_eq!(tables(&world.after(1)), Some(vec!["birch/own".to_owned()]));
}

#[test]
fn an_endpoint_is_looked_up_before_a_request_and_refused_where_it_leads_inside() {
    let mut world = World::new(granted(&["http://minio.storage.svc:9000"]));
    let at = |name: &str, endpoint: &str| {
        let mut e = with_secret(experiment("birch", name, "s3://else/where"), "maze-keys");
        e.spec.table.storage = Some(StorageSpec {
            endpoint: Some(endpoint.into()),
            ..Default::default()
        });
        e
    };
    world.took(&at("bad", "http://inside.example"));
    world.took(&at("good", "http://minio.storage.svc:9000"));
    let acts = world.after(0);
    assert!(acts.contains(&Act::LookUp("http://inside.example".into())));
    assert_eq!(
        acts.iter().filter(|a| matches!(a, Act::LookUp(_))).count(),
        1
    );
    let leads = Leads::Inside("a cloud's metadata service");
    world
        .desk
        .heard_endpoint("http://inside.example", leads, world.now, 0.5);
    let named = ("birch".to_owned(), "maze-keys".to_owned());
    world
        .desk
        .heard_secret(&named, Some(keys()), world.now, 0.5);
    let acts = world.after(1);
    assert_eq!(tables(&acts), Some(vec!["birch/good".to_owned()]));
    let status = &world.accept(&acts)[0].1;
    assert_eq!(condition(status, "Ready"), pair("False", "NotAllowed"));
}

#[test]
fn of_two_experiments_of_one_table_the_older_has_it_and_the_other_takes_over() {
    let mut world = World::new(granted(&[]));
    let mut young = experiment("alder", "a-young", "s3://runs/alder/one");
    young.metadata.creation_timestamp = Some(Time(Timestamp::from_second(DAY + 9).unwrap()));
    world.took(&young);
    world.took(&experiment("alder", "old", "s3://runs/alder/one"));
    let acts = world.after(0);
    assert_eq!(tables(&acts), Some(vec!["alder/old".to_owned()]));
    let status = &world.accept(&acts)[0].1;
    assert_eq!(condition(status, "Ready"), pair("False", "AlreadyClaimed"));
    let said = &status.conditions[0].message;
    assert!(said.contains("Experiment old "), "{said}");
    world.desk.lost("alder", "old", Some("uid-alder-old"));
    assert_eq!(
        tables(&world.after(1)),
        Some(vec!["alder/a-young".to_owned()])
    );
}

#[test]
fn whoever_cannot_open_a_table_keeps_nobody_from_it() {
    let mut world = World::new(granted(&[]));
    let old = with_secret(experiment("birch", "old", "s3://runs/alder/one"), "wrong");
    world.took(&old);
    let mut young = experiment("alder", "young", "s3://runs/alder/one");
    young.metadata.creation_timestamp = Some(Time(Timestamp::from_second(DAY + 9).unwrap()));
    world.took(&young);
    let named = ("birch".to_owned(), "wrong".to_owned());
    let acts = world.after(0);
    // The other's name is nobody's business in another namespace.
    let told = world.accept(&acts);
    assert!(!told[0].1.conditions[0].message.contains("birch"));
    world
        .desk
        .heard_secret(&named, Some(keys()), world.now, 0.5);
    let acts = world.after(1);
    assert_eq!(tables(&acts), Some(vec!["birch/old".to_owned()]));
    let mut rejected = seen(Reason::CredentialsRejected, 0, world.wall());
    rejected.observed_at = None;
    world.said(&[("birch/old", rejected)]);
    let both = vec!["alder/young".to_owned(), "birch/old".to_owned()];
    assert_eq!(tables(&world.after(1)), Some(both));
}

#[test]
fn a_request_is_passed_on_once_and_answered() {
    let mut world = World::new(granted(&[]));
    let mut asks = experiment("alder", "one", "s3://runs/alder/one");
    asks.metadata.annotations = Some(BTreeMap::from([(REQUESTED_AT.into(), "now-1".into())]));
    world.took(&asks);
    let id = TableId::from("alder/one");
    let acts = world.after(0);
    assert_eq!(
        acts.iter()
            .filter(|a| **a == Act::MergeNow(id.clone()))
            .count(),
        1
    );
    world.said(&[("alder/one", seen(Reason::Fresh, 0, world.wall()))]);
    let acts = world.after(1);
    assert!(!acts.contains(&Act::MergeNow(id.clone())));
    let written = world.accept(&acts);
    assert_eq!(written[0].1.last_handled_request.as_deref(), Some("now-1"));
    // A process that comes later does not do it again.
    let mut later = World::new(granted(&[]));
    asks.status = Some(written[0].1.clone());
    later.took(&asks);
    assert!(!later.after(0).contains(&Act::MergeNow(id)));
}

#[test]
fn an_object_that_cannot_be_read_is_told_and_stops_nobody() {
    let mut world = World::new(granted(&[]));
    let bad = experiment("alder", "bad", "s3://runs/alder/bad");
    let error = "planted-marker".to_owned();
    let metadata = bad.metadata.clone();
    world
        .desk
        .took(0, Err(InvalidObject { error, metadata }), world.now);
    world.took(&experiment("alder", "one", "s3://runs/alder/one"));
    let acts = world.after(0);
    assert_eq!(tables(&acts), Some(vec!["alder/one".to_owned()]));
    let written = world.accept(&acts);
    assert_eq!(
        condition(&written[0].1, "Stalled"),
        pair("True", "InvalidSpec")
    );
    assert!(!format!("{written:?}").contains("planted-marker"));
    let again = |a: &Act| matches!(a, Act::Write { id, .. } if id.name() == "bad");
    assert!(!world.after(60).iter().any(again));
}

#[test]
fn a_deletion_with_merge_pending_merges_and_then_lets_go() {
    let mut world = World::new(granted(&[]));
    let mut e = experiment("alder", "one", "s3://runs/alder/one");
    e.spec.deletion_policy = DeletionPolicy::MergePending;
    world.took(&e);
    let list = |acts: &[Act]| {
        acts.iter().find_map(|a| match a {
            Act::Finalizers { list, news, .. } => Some((list.clone(), news.len())),
            _ => None,
        })
    };
    let acts = world.after(0);
    assert_eq!(list(&acts), Some((vec![FINALIZER.to_owned()], 0)));
    world.accept(&acts);
    e.metadata.finalizers = Some(vec![FINALIZER.into()]);
    e.metadata.deletion_timestamp = Some(Time(world.wall()));
    world.took(&e);
    world.said(&[("alder/one", seen(Reason::Scheduled, 3, world.wall()))]);
    let acts = world.after(1);
    assert!(acts.contains(&Act::MergeNow(TableId::from("alder/one"))));
    assert_eq!(list(&acts), None);
    world.accept(&acts);
    world.said(&[("alder/one", seen(Reason::Fresh, 0, world.wall()))]);
    assert_eq!(list(&world.after(1)), Some((vec![], 1)));
}

#[test]
fn a_deletion_ends_without_its_secret() {
    let mut world = World::new(granted(&[]));
    let mut e = with_secret(experiment("birch", "own", "s3://else/where"), "gone");
    e.spec.deletion_policy = DeletionPolicy::MergePending;
    e.metadata.finalizers = Some(vec![FINALIZER.into()]);
    e.metadata.deletion_timestamp = Some(Time(world.wall()));
    world.took(&e);
    world.after(0);
    let named = ("birch".to_owned(), "gone".to_owned());
    world
        .desk
        .heard_secret(&named, Some(Found::Missing), world.now, 0.5);
    let acts = world.after(1);
    let freed = |a: &Act| matches!(a, Act::Finalizers { list, .. } if list.is_empty());
    assert!(acts.iter().any(freed), "{acts:?}");
}

#[test]
fn what_a_watch_does_not_list_again_is_gone() {
    let mut world = World::new(granted(&[]));
    world.took(&experiment("alder", "one", "s3://runs/alder/one"));
    world.took(&experiment("alder", "two", "s3://runs/alder/two"));
    world.after(0);
    world.desk.lists(0);
    world.took(&experiment("alder", "two", "s3://runs/alder/two"));
    world.desk.listed(0, |_| true);
    assert_eq!(tables(&world.after(1)), Some(vec!["alder/two".to_owned()]));
}

#[test]
fn an_object_of_the_same_name_is_another_one() {
    let mut world = World::new(granted(&[]));
    let mut e = experiment("alder", "one", "s3://runs/alder/one");
    world.took(&e);
    world.after(0);
    world.said(&[("alder/one", seen(Reason::Fresh, 0, world.wall()))]);
    let acts = world.after(1);
    world.accept(&acts);
    e.metadata.uid = Some("another".into());
    world.took(&e);
    world.desk.lost("alder", "one", Some("uid-alder-one"));
    assert_eq!(world.desk.rows.len(), 1);
    let acts = world.after(1);
    let uid = acts.iter().find_map(|a| match a {
        Act::Write { uid, .. } => Some(uid.as_str()),
        _ => None,
    });
    assert_eq!(uid, Some("another"));
}

#[test]
fn a_thousand_new_experiments_are_reported_within_a_minute() {
    let mut world = World::new(granted(&[]));
    let name = |n: u64| format!("e{n:04}");
    for n in 0..1000 {
        let uri = format!("s3://runs/alder/{}", name(n));
        world.took(&experiment("alder", &name(n), &uri));
    }
    world.after(0);
    let wall = world.wall();
    let all: BTreeMap<TableId, TableStatus> = (0..1000)
        .map(|n| (specs::id("alder", &name(n)), seen(Reason::Fresh, 0, wall)))
        .collect();
    world.desk.said(Arc::new(all), world.now);
    let mut written = 0;
    for _ in 0..60 {
        let acts = world.after(1);
        written += world.accept(&acts).len();
    }
    assert_eq!(written, 1000);
    assert_eq!(world.after(1), []);
}

#[test]
fn writes_that_fail_are_tried_again_later_and_later() {
    let mut world = World::new(granted(&[]));
    world.took(&experiment("birch", "thief", "s3://runs/alder/one"));
    let id = TableId::from("birch/thief");
    let mut tries = vec![];
    for second in 0..200 {
        let acts = world.after(1);
        if acts.iter().any(|a| matches!(a, Act::Write { .. })) {
            tries.push(second);
            world.desk.wrote(&id, None, &Wrote::Failed, world.now, 1.0);
        }
    }
    assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
}
