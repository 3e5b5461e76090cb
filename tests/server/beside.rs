//! Reads beside a writer, merges and drains.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use freshet::table::{Ask, Page, ReadLimits, Reader, Source};

use crate::fixtures::{Fixture, Spec};
use crate::mergers::Merger;
use crate::recorded::Recorded;
use crate::sources::{open, recorded_table};

fn rows(page: &Page) -> Vec<(i64, i64)> {
    let mut out = vec![];
    for batch in &page.batches {
        let keys = batch.column(0).as_primitive::<Int64Type>();
        let values = batch.column(1).as_primitive::<Int64Type>();
        out.extend(
            keys.values()
                .iter()
                .copied()
                .zip(values.values().iter().copied()),
        );
    }
    out
}

/// The writer counts every key up at once: in any one moment all keys have one value, and it never falls.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_page_of_all_is_one_moment_while_merges_and_drains_run() {
    let mut t = Fixture::create(Spec {
        base: (1..60).map(|k| (k, 0)).collect(),
        ..Default::default()
    })
    .await;
    let ended = Arc::new(AtomicBool::new(false));
    let merging = tokio::spawn({
        let (uri, ended) = (t.uri.clone(), ended.clone());
        async move {
            let mut merger = Merger::open(&uri).await;
            while !ended.load(Ordering::Relaxed) {
                merger.merge_all(3).await;
                merger.drain_all().await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    let reading = tokio::spawn({
        let (table, ended) = (open(&t).await, ended.clone());
        async move {
            let reader = Reader::new(ReadLimits::default());
            let (mut pages, mut before) = (0, 0);
            while !ended.load(Ordering::Relaxed) || pages == 0 {
                let page = reader.page(&table, Source::All, 1000, 0).await.unwrap();
                let rows = rows(&page);
                let keys: BTreeMap<i64, i64> = rows.iter().copied().collect();
                assert_eq!(keys.len(), rows.len(), "a key is there twice");
                assert_eq!(keys.len(), 59, "a key is missing");
                let value = rows[0].1;
                assert!(rows.iter().all(|r| r.1 == value), "two moments: {rows:?}");
                assert!(value >= before, "{value} after {before}");
                before = value;
                pages += 1;
            }
            pages
        }
    });
    for value in 1..40 {
        t.put(&(1..60).map(|k| (k, value)).collect::<Vec<_>>())
            .await;
        t.flush().await;
    }
    ended.store(true, Ordering::Relaxed);
    merging.await.unwrap();
    assert!(reading.await.unwrap() > 0);
}

/// Deletes the first generation, as a reclaim does.
fn take_away(t: &Fixture) {
    for shard in std::fs::read_dir(t.path().join("_mem_wal")).unwrap() {
        for dir in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            let dir = dir.unwrap();
            if dir.file_name().to_string_lossy().contains("_gen_1") {
                std::fs::remove_dir_all(dir.path()).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_filtered_read_whose_generation_is_reclaimed_under_it_looks_again() {
    for counts in [true, false] {
        let mut t = Fixture::create(Spec::default()).await;
        t.put(&[(1, 7), (500, 7)]).await;
        t.flush().await;
        t.put(&[(2, 7)]).await;
        t.flush().await;
        let recorded = Recorded::default();
        let table = recorded_table(&t, &recorded).await;
        let reader = Reader::new(ReadLimits::default());
        // What is read by the filtered read alone is waited for.
        reader.count(&table, Source::All).await.unwrap();
        let ask = Ask {
            source: Source::All,
            limit: 1000,
            exact: vec![("value".to_string(), "7".to_string())],
            ..Default::default()
        };
        let work = async {
            match counts {
                true => {
                    let count = reader.count_of(&table, &ask).await.unwrap();
                    (count.rows, count.generations_read)
                }
                false => {
                    let page = reader.read(&table, &ask).await.unwrap();
                    (rows(&page).len() as u64, page.generations_read)
                }
            }
        };
        let beside = async {
            let mut merger = Merger::open(&t.uri).await;
            merger.merge_all(8).await;
            merger.drain_all().await.unwrap();
            take_away(&t);
        };
        let found = recorded.held("_gen_1/data/", work, beside).await;
        assert_eq!(found, (3, 0), "counts: {counts}");
    }
}

#[tokio::test]
async fn a_read_whose_generations_were_reclaimed_looks_again() {
    let mut t = Fixture::create(Spec::default()).await;
    t.put(&[(1, 1), (500, 1)]).await;
    t.flush().await;
    let (table, reader) = (open(&t).await, Reader::new(ReadLimits::default()));
    let before = reader.page(&table, Source::All, 1000, 0).await.unwrap();
    let mut merger = Merger::open(&t.uri).await;
    merger.merge_all(8).await;
    merger.drain_all().await.unwrap();
    take_away(&t);
    let after = reader.page(&table, Source::All, 1000, 0).await.unwrap();
    assert_eq!(after.generations_read, 0);
    assert_eq!(rows(&after).len(), rows(&before).len());
}
