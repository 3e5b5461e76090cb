//! Indexes through merges, upkeep and compaction: they answer as a plain scan does, and draining waits for them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use freshet::table::{Upkeep, steps};
use lance::Dataset;
use lance::index::DatasetIndexExt;
use lance::index::vector::VectorIndexParams;
use lance_index::IndexType;
use lance_index::scalar::{FullTextSearchQuery, InvertedIndexParams};

use crate::desk::{Desk, eager, gate};
use crate::fixtures::{Fixture, Kind, Shape, Spec};

async fn indexed(stable_row_ids: bool) -> Fixture {
    let shape = Shape::keyed(Kind::Int64)
        .with("note", Kind::Utf8)
        .with("state", Kind::Vector);
    let mut t = Fixture::without_mem_wal(Spec {
        shape,
        base: (0..600).map(|k| (k, 0)).collect(),
        rows_per_file: 150,
        stable_row_ids,
        btree: true,
        ..Default::default()
    })
    .await;
    let mut dataset = t.dataset().await;
    let text = InvertedIndexParams::default();
    let made = dataset.create_index(
        &["note"],
        IndexType::Inverted,
        Some("words".into()),
        &text,
        true,
    );
    made.await.unwrap();
    let vector = VectorIndexParams::ivf_flat(2, "l2".try_into().unwrap());
    let made = dataset.create_index(
        &["state"],
        IndexType::Vector,
        Some("near".into()),
        &vector,
        true,
    );
    made.await.unwrap();
    t.enable_mem_wal().await;
    t
}

async fn ids(scan: &mut lance::dataset::scanner::Scanner) -> BTreeSet<i64> {
    let rows = scan
        .project(&["episode"])
        .unwrap()
        .try_into_batch()
        .await
        .unwrap();
    let ids = rows
        .column_by_name("episode")
        .unwrap()
        .as_primitive::<Int64Type>();
    assert_eq!(
        ids.len(),
        ids.values().iter().collect::<BTreeSet<_>>().len(),
        "a row twice"
    );
    ids.values().iter().copied().collect()
}

/// Asks each index and a plain scan the same questions.
async fn answers_agree(dataset: &Dataset, when: &str) {
    let all = dataset.scan().try_into_batch().await.unwrap();
    let notes = all
        .column_by_name("note")
        .unwrap()
        .as_string::<i32>()
        .clone();
    let keys = all
        .column_by_name("episode")
        .unwrap()
        .as_primitive::<Int64Type>()
        .clone();
    let states = all
        .column_by_name("state")
        .unwrap()
        .as_fixed_size_list()
        .clone();
    for at in (0..all.num_rows()).step_by(37) {
        let key = keys.value(at);
        if key == i64::MIN {
            // No literal of Lance's filters says it.
            continue;
        }
        let by_key = ids(dataset.scan().filter(&format!("episode = {key}")).unwrap()).await;
        assert_eq!(by_key, BTreeSet::from([key]), "{when}: the key");

        let word = notes.value(at).rsplit('-').next().unwrap().to_string();
        if word.len() == 7 {
            let same = (0..all.num_rows()).filter(|i| notes.value(*i).ends_with(&word));
            let expected: BTreeSet<i64> = same.map(|i| keys.value(i)).collect();
            let query = FullTextSearchQuery::new(word.clone());
            let found = ids(dataset.scan().full_text_search(query).unwrap()).await;
            assert_eq!(found, expected, "{when}: the word {word}");
        }
        let state = states.value(at);
        let expected: BTreeSet<i64> = (0..all.num_rows())
            .filter(|i| {
                states.value(*i).as_primitive::<Float32Type>()
                    == state.as_primitive::<Float32Type>()
            })
            .map(|i| keys.value(i))
            .collect();
        let mut scan = dataset.scan();
        scan.nearest("state", state.as_primitive::<Float32Type>(), expected.len())
            .unwrap();
        scan.nprobes(2);
        assert_eq!(
            ids(&mut scan).await,
            expected,
            "{when}: the nearest of {key}"
        );
    }
    for gone in [13, 14] {
        let found = ids(dataset.scan().filter(&format!("episode = {gone}")).unwrap()).await;
        assert!(found.is_empty(), "{when}: a deleted key");
    }
}

#[tokio::test]
async fn indexes_answer_the_same_after_compaction_and_upkeep() {
    for stable_row_ids in [false, true] {
        let mut t = indexed(stable_row_ids).await;
        let mut desk = Desk::open(&t.uri).await;
        for round in 1..=4i64 {
            let first = round as u64 * 100;
            let rows: Vec<_> = (first..first + 60)
                .chain(first + 900..first + 930)
                .map(|k| (k, round))
                .collect();
            t.put(&rows).await;
            // The keys 13 and 14, by their numbers.
            t.delete(&[63, 64, first + 5]).await;
            t.flush().await;
            desk.merge(1).await;
            answers_agree(&t.dataset().await, "after a merge").await;
            if round == 2 {
                assert!(matches!(desk.compact(&eager()).await, Upkeep::Done(_)));
                answers_agree(&t.dataset().await, "after a compaction").await;
            }
            let deadline = Instant::now() + Duration::from_secs(600);
            let upkeep = desk.table.optimize_indexes(deadline).await.unwrap();
            let Upkeep::Done(made) = upkeep else {
                panic!("{upkeep:?}")
            };
            assert_eq!(made.indexes.len(), 3);
            assert!(desk.table.stale_indexes().await.unwrap().is_empty());
            answers_agree(&t.dataset().await, "after upkeep").await;
        }
        while let Upkeep::Done(_) = desk.compact(&eager()).await {
            answers_agree(&t.dataset().await, "after the last compactions").await;
        }
        assert_eq!(t.verdict().await, Default::default());
    }
}

#[tokio::test]
async fn upkeep_adds_parts_to_an_index_and_makes_one_of_eight() {
    let mut t = indexed(false).await;
    let mut desk = Desk::open(&t.uri).await;
    t.delete(&[63, 64]).await;
    let mut most = 0;
    for round in 1..=10 {
        t.put(&[(round, 1), (800 + round, 1)]).await;
        t.flush().await;
        desk.merge(8).await;
        let deadline = Instant::now() + Duration::from_secs(600);
        desk.table.optimize_indexes(deadline).await.unwrap();
        let indices = t.dataset().await.load_indices().await.unwrap();
        let parts = |name: &str| indices.iter().filter(|i| i.name == name).count();
        most = most.max(parts("words")).max(parts("near"));
        assert!(parts("words") <= 8 && parts("near") <= 8 && parts("episode_idx") <= 8);
    }
    assert!(most > 1, "upkeep adds parts");
    answers_agree(&t.dataset().await, "after ten upkeeps").await;
}

#[tokio::test]
async fn draining_waits_for_search_indexes_and_upkeep_lets_it_go_on() {
    let mut t = indexed(false).await;
    let mut desk = Desk::open(&t.uri).await;
    // Upkeep makes the table say how far its indexes are.
    t.put(&[(1, 1)]).await;
    t.flush().await;
    desk.merge(8).await;
    let deadline = || Instant::now() + Duration::from_secs(600);
    desk.table.optimize_indexes(deadline()).await.unwrap();
    assert_eq!(desk.drain().await, 1);
    t.put(&[(2, 2)]).await;
    t.flush().await;
    desk.merge(8).await;
    assert_eq!(
        desk.drain().await,
        0,
        "the words and vectors of key 2 are in no index"
    );
    let stale = desk.table.stale_indexes().await.unwrap();
    assert_eq!(stale.iter().map(|s| s.rows).collect::<Vec<_>>(), [1, 1, 1]);
    desk.table.optimize_indexes(deadline()).await.unwrap();
    assert_eq!(desk.drain().await, 1);
}

#[tokio::test]
async fn upkeep_that_a_merge_overtakes_covers_what_is_there_and_no_more() {
    let mut t = indexed(false).await;
    let mut desk = Desk::open(&t.uri).await;
    t.put(&[(1, 1)]).await;
    t.flush().await;
    desk.merge(8).await;
    t.put(&[(2, 2), (1, 3)]).await;
    t.delete(&[63, 64]).await;
    t.flush().await;
    let mut other = Desk::open(&t.uri).await;
    let (hook, mut gate) = gate("indexes.commit");
    let deadline = Instant::now() + Duration::from_secs(600);
    let work = steps::with_hook(hook, desk.table.optimize_indexes(deadline));
    let (made, ()) = tokio::join!(work, async {
        gate.reached().await;
        assert_eq!(other.merge(8).await, 1);
        gate.open();
    });
    made.unwrap();
    answers_agree(&t.dataset().await, "after both").await;
    let deadline = Instant::now() + Duration::from_secs(600);
    desk.table.optimize_indexes(deadline).await.unwrap();
    answers_agree(&t.dataset().await, "after the next upkeep").await;
    assert_eq!(t.verdict().await, Default::default());
}
