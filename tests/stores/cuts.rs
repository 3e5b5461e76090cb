//! The way to the store breaks in the middle of a merge: before anything is written, at the data, at the commit, and after
//! it, when the answer is lost. Nothing is lost or doubled, and the next round heals it.

use freshet::table::{Error, Outcome, StoresConfig};

use crate::fixtures::Fixture;
use crate::life::{more, pending};
use crate::mergers::Merger;
use crate::proxy::{Break, Proxy, Trap};
use crate::servers::{Kind, Server};

/// A merger behind the proxy that gives up soon.
async fn behind(server: &Server, proxy: &Proxy, trap: &Trap) -> Merger {
    let mut location = server.location_through("rollouts.lance", proxy.at);
    let soon = [
        ("client_max_retries", "0"),
        ("client_retry_timeout", "1"),
        ("timeout", "2 seconds"),
    ];
    let soon = soon.map(|(k, v)| (k.to_string(), v.to_string()));
    location = location.with_options(soon.into());
    let config = StoresConfig {
        wrapper: Some(trap.wrapper()),
        ..Default::default()
    };
    Merger::open_at(&location, config).await.unwrap()
}

/// Whether the base moved while the way was broken, as the attempt says and as the table shows.
async fn broken_at(
    t: &Fixture,
    m: &mut Merger,
    proxy: &Proxy,
    trap: &Trap,
    folder: &'static str,
    how: Break,
) {
    let before = t.dataset().await.version().version;
    trap.arm(folder, how);
    let attempt = m.try_merge(64).await;
    assert!(
        !trap.waits(),
        "{folder}, {how:?}: nothing was written there"
    );
    proxy.heal().await;
    let moved = t.dataset().await.version().version > before;
    match attempt {
        Ok(Some(Outcome::Merged(_))) => assert!(moved, "{folder}, {how:?}: told as done"),
        Ok(other) => panic!("{folder}, {how:?}: {other:?}"),
        Err(Error::StoreUnreachable(_)) => {}
        Err(e) => panic!("{folder}, {how:?}: {e:?}"),
    }
    let may_land = folder == "_versions/" && how == Break::LostAnswer;
    assert_eq!(moved, may_land, "{folder}, {how:?}");
}

async fn every_break_heals(kind: Kind) {
    let server = Server::start(kind).await;
    let mut t = pending(&server, "rollouts.lance").await;
    let proxy = Proxy::before(server.at).await;
    let trap = Trap::new(&proxy);
    let mut m = behind(&server, &proxy, &trap).await;
    let breaks = [
        ("rollouts.lance/data/", Break::Cut),
        ("rollouts.lance/data/", Break::LostAnswer),
        ("_versions/", Break::Cut),
        ("_versions/", Break::Hang),
        ("_versions/", Break::LostAnswer),
    ];
    for (round, (folder, how)) in breaks.into_iter().enumerate() {
        broken_at(&t, &mut m, &proxy, &trap, folder, how).await;
        m.merge_all(64).await;
        m.drain_all().await.unwrap();
        assert_eq!(t.verdict().await, Default::default(), "{folder}, {how:?}");
        let (seen, _) = m.observe().await;
        assert_eq!(seen.pending_generations(), Some(0), "{folder}, {how:?}");
        assert!(seen.anomalies.is_empty(), "{:?}", seen.anomalies);
        more(&mut t, 60 + 3 * round as i64).await;
    }
    // A drain whose answer is lost is a drain.
    m.merge_all(64).await;
    trap.arm("/manifest/", Break::LostAnswer);
    let drained = m.drain_all().await;
    assert!(!trap.waits() && drained.is_err(), "{drained:?}");
    proxy.heal().await;
    m.drain_all().await.unwrap();
    m.reclaim_all().await.unwrap();
    more(&mut t, 90).await;
    m.merge_all(64).await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_anywhere_in_a_merge_loses_and_doubles_nothing() {
    tokio::join!(every_break_heals(Kind::S3), every_break_heals(Kind::Azure));
}
