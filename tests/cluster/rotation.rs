//! Keys that are rotated under a table that was fresh: the store refuses the old ones from one moment to the next.
//!
//! Lives here: what is said between the store's change and the Secret's, and after both. May use: the controller's process,
//! the fixtures, the store servers. Never: an edit of the Experiment, for nobody who rotates keys makes one.

use serde_json::json;

use crate::fixtures::{Fixture, Spec};
use crate::harness::Cluster;
use crate::running::{Controller, allowing, of_store, secret, settle, wait, wait_for};
use crate::servers::{Kind, MARK, Server};
use crate::writing::round;

const NS: &str = "teal";
const NAME: &str = "reeds";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_keys_are_told_and_taken_up_and_nothing_is_lost_meanwhile() {
    let cluster = Cluster::shared();
    cluster.apply_crds();
    cluster.namespace(NS);
    let mut store = Server::start(Kind::S3).await;
    let (uri, options) = (store.uri(NAME), store.writer_options());
    let mut table = Fixture::create_in(Spec::default(), &uri, options).await;
    round(&mut table, 0).await;
    cluster.apply(&secret(NS, &store.secret()));
    let soon = json!({ "freshness": { "target": "4s" } });
    cluster.apply(&of_store(NS, NAME, &store, soon));
    let controller = Controller::start(cluster, NS, &allowing(&store.endpoint(store.at)));
    wait(cluster, NS, NAME, "condition=Fresh");
    settle(cluster, NS, NAME);

    for turn in 1..3 {
        table.close().await;
        store.rotate();
        for kind in ["Ready", "StorageReachable", "Fresh"] {
            wait_for(cluster, NS, NAME, kind, "CredentialsRejected");
        }
        wait(cluster, NS, NAME, "condition=Fresh=Unknown");
        table.options = store.writer_options();
        round(&mut table, turn).await;
        cluster.apply(&secret(NS, &store.secret()));
        wait(cluster, NS, NAME, "condition=Ready");
        wait(cluster, NS, NAME, "condition=Fresh");
    }
    settle(cluster, NS, NAME);
    let verdict = table.verdict().await;
    assert!(verdict.is_sound(), "{verdict:?}");
    assert!(!controller.log().contains(MARK));
    assert_eq!(controller.end(), Some(0));
}
