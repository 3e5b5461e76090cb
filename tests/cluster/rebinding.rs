//! A store's name that leads elsewhere after it was looked at.
//!
//! Lives here: a controller that sees a file of names of the test's own. May use: the controller's process, the store
//! servers. Never: the machine's own file.

use std::io::ErrorKind;
use std::net::TcpListener;

use serde_json::json;

use crate::fixtures::{Fixture, Spec};
use crate::harness::Cluster;
use crate::release::until;
use crate::running::{Controller, of_store, secret, wait, wait_for};
use crate::servers::{Kind, Server};
use crate::writing::round;

const NS: &str = "dunlin";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_led_to_a_store_and_leads_to_the_operators_machine_later_is_not_connected_to() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    cluster.namespace(NS);
    let store = Server::start_on(cluster.gateway().parse().unwrap(), Kind::S3).await;
    let inside = TcpListener::bind(("127.0.0.1", store.at.port())).unwrap();
    inside.set_nonblocking(true).unwrap();
    let hosts = tempfile::NamedTempFile::new().unwrap();
    let leads_to = |address: &str| {
        let lines = format!("127.0.0.1 localhost\n{address} shelf.test\n");
        std::fs::write(hosts.path(), lines).unwrap();
    };
    leads_to(&store.at.ip().to_string());
    cluster.apply(&secret(NS, &store.secret()));
    let mut controller = Controller::start_with_hosts(hosts.path(), cluster, NS);

    let (uri, options) = (store.uri("plums"), store.writer_options());
    let mut table = Fixture::create_in(Spec::default(), &uri, options).await;
    round(&mut table, 1).await;
    let soon = json!({ "freshness": { "target": "2s" } });
    let mut experiment = of_store(NS, "plums", &store, soon);
    let endpoint = format!("http://shelf.test:{}", store.at.port());
    experiment["spec"]["table"]["storage"]["endpoint"] = json!(endpoint);
    cluster.apply(&experiment);
    wait_for(cluster, NS, "plums", "Ready", "Ready");
    wait(cluster, NS, "plums", "condition=Fresh");

    // What is open goes with the store; what is opened from now on goes by the name.
    leads_to("127.0.0.1");
    drop(store);
    let refused = "leads to the operator's own machine";
    until(refused, || controller.log().contains(refused).then_some(()));
    wait_for(cluster, NS, "plums", "StorageReachable", "StoreUnreachable");
    let nobody = inside.accept().map(|(_, peer)| peer);
    assert_eq!(nobody.unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(controller.runs());
}
