//! What the commands answer where a store says no, has nothing, or does not answer: exit code and words.

use crate::life::pending;
use crate::process::{Done, freshet};
use crate::proxy::{Break, Proxy};
use crate::servers::{Kind, MARK, Server, free};

/// Both commands, with options in place of the right ones.
async fn both(server: &Server, name: &str, instead: &[(&str, &str)]) -> [Done; 2] {
    let run = |command: &str| {
        let flags = [vec![command.to_string()], server.flags(name, instead)].concat();
        freshet(flags, vec![])
    };
    let (backlog, merge) = tokio::join!(run("backlog"), run("merge"));
    [backlog, merge]
}

/// Both end with a code and a reason, and their message is one line.
fn told(done: &[Done; 2], code: i32, reason: &str, words: &str) {
    for done in done {
        assert_eq!(done.code, Some(code), "{done:?}");
        assert!(done.err.contains(reason), "{reason}: {done:?}");
        assert!(done.err.contains(words), "{words}: {done:?}");
        let lines = done
            .err
            .lines()
            .filter(|l| l.starts_with("freshet: ") || l.starts_with("error"));
        assert!(lines.count() <= 1, "{done:?}");
    }
}

async fn every_no_is_told(kind: Kind) {
    let server = Server::start(kind).await;
    let t = pending(&server, "rollouts.lance").await;
    let before = t.rows().await;
    let wrong = [match kind {
        Kind::S3 => ("aws_secret_access_key", "HiddenAlderYewWrong"),
        Kind::Azure => ("azure_storage_account_key", "HiddenAlderYewWrong0"),
    }];
    assert!(wrong[0].1.contains(MARK));
    let (cut, hangs) = (
        Proxy::before(server.at).await,
        Proxy::before(server.at).await,
    );
    cut.spring(Break::Cut).await;
    hangs.spring(Break::Hang).await;
    let ends = [free(), cut.at, hangs.at].map(|at| server.endpoint(at));
    let [nobody, through_cut, through_hang] = ends.each_ref().map(|e| [("endpoint", e.as_str())]);
    // All at once: most of it is waiting.
    let (refused, nothing, nobody, severed, hung) = tokio::join!(
        both(&server, "rollouts.lance", &wrong),
        both(&server, "nothing-here.lance", &[]),
        both(&server, "rollouts.lance", &nobody),
        both(&server, "rollouts.lance", &through_cut),
        both(&server, "rollouts.lance", &through_hang),
    );
    told(&refused, 4, "CredentialsRejected", "check the key");
    told(&nothing, 3, "TableNotFound", "there is no Lance table");
    for (done, end) in [nobody, severed, hung].iter().zip(&ends) {
        told(done, 5, "StoreUnreachable", end);
    }
    assert_eq!(t.rows().await, before, "nothing was changed");

    for proxy in [cut, hangs] {
        proxy.heal().await;
        let end = server.endpoint(proxy.at);
        for done in both(&server, "rollouts.lance", &[("endpoint", &end)]).await {
            assert_eq!(done.code, Some(0), "{done:?}");
        }
    }
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_store_refuses_or_does_not_answer_is_told_with_its_exit_code() {
    tokio::join!(every_no_is_told(Kind::S3), every_no_is_told(Kind::Azure));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_does_not_exist_is_told_as_a_table_that_is_not_there() {
    for kind in [Kind::S3, Kind::Azure] {
        let server = Server::start(kind).await;
        let mut flags = server.flags("rollouts.lance", &[]);
        flags[1] = flags[1].replace("maze-runs", "no-such-maze");
        let done = freshet([vec!["backlog".to_string()], flags].concat(), vec![]).await;
        assert_eq!(done.code, Some(3), "{kind:?}: {done:?}");
        assert!(done.err.contains("no-such-maze"), "{done:?}");
    }
}
