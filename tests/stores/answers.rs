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

    let wrong: &[(&str, &str)] = match kind {
        Kind::S3 => &[("aws_secret_access_key", "HiddenAlderYewWrong")],
        Kind::Azure => &[("azure_storage_account_key", "HiddenAlderYewWrong0")],
    };
    assert!(wrong[0].1.contains(MARK));
    let done = both(&server, "rollouts.lance", wrong).await;
    told(&done, 4, "CredentialsRejected", "check the key");
    let done = both(&server, "nothing-here.lance", &[]).await;
    told(&done, 3, "TableNotFound", "there is no Lance table");

    let nobody = server.endpoint(free());
    let done = both(&server, "rollouts.lance", &[("endpoint", &nobody)]).await;
    told(&done, 5, "StoreUnreachable", &nobody);

    let proxy = Proxy::before(server.at).await;
    let through = server.endpoint(proxy.at);
    for how in [Break::Cut, Break::Hang] {
        proxy.spring(how).await;
        let done = both(&server, "rollouts.lance", &[("endpoint", &through)]).await;
        told(&done, 5, "StoreUnreachable", "could not be reached");
        proxy.heal().await;
    }
    assert_eq!(t.rows().await, before, "nothing was changed");

    let done = both(&server, "rollouts.lance", &[("endpoint", &through)]).await;
    for done in done {
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_s3_refuses_or_does_not_answer_is_told_with_its_exit_code() {
    every_no_is_told(Kind::S3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_azure_refuses_or_does_not_answer_is_told_with_its_exit_code() {
    every_no_is_told(Kind::Azure).await;
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
