//! The whole life of a table in a store: written, looked at, merged, drained, reclaimed, compacted, read.

use std::sync::atomic::{AtomicBool, Ordering};

use freshet::table::{ReadLimits, Reader, Source, StoresConfig};

use crate::fixtures::{Fixture, Spec};
use crate::mergers::Merger;
use crate::servers::{Kind, Server};

/// A table of two shards in a store, with generations pending in both.
pub async fn pending(server: &Server, name: &str) -> Fixture {
    let spec = Spec {
        shards: 2,
        btree: true,
        ..Default::default()
    };
    let options = server.writer_options();
    let mut t = Fixture::create_in(spec, &server.uri(name), options).await;
    more(&mut t, 1).await;
    t
}

/// Three rounds of updates, inserts and deletes, each a generation a shard.
pub async fn more(t: &mut Fixture, from: i64) {
    for round in from..from + 3 {
        let rows: Vec<(u64, i64)> = (0..20)
            .map(|n| ((n * 7 + round as u64 * 5) % 130, round))
            .collect();
        t.put(&rows).await;
        t.delete(&[round as u64 * 3, round as u64 * 3 + 1]).await;
        t.flush().await;
    }
}

/// A merger of a table, as another process would be.
pub async fn merger(server: &Server, name: &str) -> Merger {
    let opened = Merger::open_at(&server.location(name), StoresConfig::default()).await;
    opened.unwrap()
}

async fn count(m: &Merger, source: Source) -> u64 {
    let reader = Reader::new(ReadLimits::default());
    reader.count(&m.table, source).await.unwrap()
}

async fn the_whole_life(kind: Kind) {
    let server = Server::start(kind).await;
    let mut t = pending(&server, "deep/rollouts.lance").await;
    let mut m = merger(&server, "deep/rollouts.lance").await;
    let (seen, _) = m.observe().await;
    assert_eq!(seen.pending_generations(), Some(6));
    assert!(seen.oldest().is_some(), "the store tells times");
    let all = t.model.rows.len() as u64;
    assert_eq!(count(&m, Source::Fragments).await, 100);
    assert_eq!(count(&m, Source::All).await, all);

    assert_eq!(m.merge_all(2).await, 2);
    assert_eq!(t.verdict().await, Default::default());
    assert_eq!(m.drain_all().await.unwrap(), 6);
    assert_eq!(m.reclaim_all().await.unwrap(), 6);
    assert!(m.compact().await.unwrap(), "fragments were compacted");
    assert!(m.optimize_indexes().await.unwrap(), "the index was updated");
    assert!(m.clean_versions().await.unwrap() > 0);
    assert_eq!(t.verdict().await, Default::default());

    more(&mut t, 20).await;
    let reader = Reader::new(ReadLimits::default());
    for source in [Source::Fragments, Source::Wal, Source::All] {
        let page = reader.page(&m.table, source, 10, 5).await.unwrap();
        let rows: usize = page.batches.iter().map(|b| b.num_rows()).sum();
        assert!(rows == 10 && page.has_more, "{source:?}: {rows} rows");
    }
    let all = t.model.rows.len() as u64;
    assert_eq!(count(&m, Source::All).await, all);
    m.merge_all(64).await;
    assert_eq!(count(&m, Source::Fragments).await, all);
    assert_eq!(count(&m, Source::Wal).await, 0);
    t.close().await;
    m.merge_all(64).await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_on_s3_lives_its_whole_life() {
    the_whole_life(Kind::S3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_on_azure_lives_its_whole_life() {
    the_whole_life(Kind::Azure).await;
}

async fn a_writer_goes_on(kind: Kind) {
    let server = Server::start(kind).await;
    let mut t = pending(&server, "rollouts.lance").await;
    let mut m = merger(&server, "rollouts.lance").await;
    let done = AtomicBool::new(false);
    let writing = async {
        for round in 0..4 {
            more(&mut t, 30 + 3 * round).await;
        }
        done.store(true, Ordering::Release);
    };
    let merging = async {
        let mut merged = 0;
        while !done.load(Ordering::Acquire) {
            merged += m.merge_all(3).await;
            m.drain_all().await.unwrap();
            m.reclaim_all().await.unwrap();
        }
        merged
    };
    let ((), merged) = tokio::join!(writing, merging);
    assert!(merged > 0, "nothing was merged while the writer wrote");
    m.merge_all(64).await;
    m.drain_all().await.unwrap();
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_on_s3_is_not_disturbed_by_merges() {
    a_writer_goes_on(Kind::S3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_on_azure_is_not_disturbed_by_merges() {
    a_writer_goes_on(Kind::Azure).await;
}
