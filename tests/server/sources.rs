//! Every source is what the model says, after any operations.

use freshet::table::{
    Location, ReadError, ReadLimits, Reader, Source, Stores, StoresConfig, Table,
};
use lance_file::version::LanceFileVersion;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::fixtures::{Fixture, Kind, Shape, Spec};
use crate::ledger::{Ledger, check, lines, walk};
use crate::mergers::Merger;
use crate::points::closer;
use crate::recorded::Recorded;

pub async fn open(t: &Fixture) -> Table {
    Table::open(
        &Stores::new(StoresConfig::default()),
        &Location::new(&t.uri),
    )
    .await
    .unwrap()
}

/// A table whose requests are remembered.
pub async fn recorded_table(t: &Fixture, recorded: &Recorded) -> Table {
    let stores = Stores::new(StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    });
    Table::open(&stores, &Location::new(&t.uri)).await.unwrap()
}

/// Random puts, deletes, flushes, merges and drains; every source is checked after each flush, merge and drain.
async fn life(spec: Spec, seed: u64, steps: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let keyed = !spec.shape.keys.is_empty();
    let most = spec.shape.limit().min(150);
    // A walk has a few dozen pages, however large the base.
    let longest = 40 + spec.base.len() / 10;
    let mut t = Fixture::create(spec).await;
    let (mut ledger, mut fresh) = (Ledger::default(), 1_000u64);
    let mut merger = Merger::open(&t.uri).await;
    // One reader for the whole life: what it remembers has to stay right. Another that has just begun sees the same.
    let (table, reader) = (open(&t).await, Reader::new(ReadLimits::default()));
    for step in 0..steps {
        let looks = match rng.random_range(0..10) {
            0..=3 => {
                let rows: Vec<(u64, i64)> = (0..rng.random_range(1..20))
                    .map(|_| match keyed {
                        true => (rng.random_range(0..most), step as i64),
                        false => {
                            fresh += 1;
                            (fresh, step as i64)
                        }
                    })
                    .collect();
                ledger.put(&mut t, &rows).await;
                rng.random_bool(0.6)
            }
            4 if keyed => {
                let keys: Vec<u64> = (0..rng.random_range(1..8))
                    .map(|_| rng.random_range(0..most))
                    .collect();
                ledger.delete(&mut t, &keys).await;
                rng.random_bool(0.6)
            }
            5..=7 => {
                merger.try_merge(rng.random_range(1..4)).await.unwrap();
                true
            }
            8 => {
                merger.drain_all().await.unwrap();
                true
            }
            _ => true,
        };
        if looks {
            ledger.flush(&mut t).await;
            let limit = rng.random_range(longest / 40..longest);
            check(&reader, &table, &t, &ledger, limit).await;
            if step % 12 == 11 {
                closer(&reader, &table, &t.spec.shape).await;
            }
        }
    }
    ledger.flush(&mut t).await;
    check(
        &Reader::new(ReadLimits::default()),
        &open(&t).await,
        &t,
        &ledger,
        7,
    )
    .await;
}

fn small_files(shape: Shape) -> Spec {
    Spec {
        shape,
        base: (0..100).map(|k| (k, 0)).collect(),
        rows_per_file: 17,
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_source_equals_the_model_for_an_integer_key() {
    for seed in 0..3 {
        life(small_files(Shape::keyed(Kind::Int64)), seed, 30).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_source_equals_the_model_for_a_text_key_and_nested_columns() {
    let shape = Shape::keyed(Kind::Utf8)
        .with("role", Kind::Role(5))
        .with("tags", Kind::Tags)
        .with("info", Kind::Info)
        .with("steps", Kind::Steps)
        .with("vector", Kind::Vector);
    for seed in 10..12 {
        life(small_files(shape.clone()), seed, 25).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_source_equals_the_model_for_a_composite_key_in_three_shards() {
    let shape = Shape::composite(&[Kind::Int16, Kind::Utf8, Kind::Binary]);
    for seed in 20..23 {
        let spec = Spec {
            shards: 3,
            ..small_files(shape.clone())
        };
        life(spec, seed, 30).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_source_equals_the_model_with_a_btree_and_with_stable_row_ids() {
    for seed in 30..32 {
        let spec = Spec {
            btree: true,
            stable_row_ids: true,
            storage: LanceFileVersion::V2_2,
            // Enough rows for a few keys to be looked up through the index.
            base: (0..4_000).map(|k| (k, 0)).collect(),
            rows_per_file: 1_500,
            ..Default::default()
        };
        life(spec, seed, 8).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_source_equals_the_model_without_a_key() {
    for seed in 40..43 {
        let spec = Spec {
            shards: 2,
            ..small_files(Shape::append_only())
        };
        life(spec, seed, 25).await;
    }
}

#[tokio::test]
async fn pages_keep_their_places_when_a_merge_of_new_rows_commits() {
    let mut t = Fixture::create(small_files(Shape::keyed(Kind::Int64))).await;
    for g in 0..4u64 {
        let rows: Vec<_> = (0..10).map(|i| (1_000 + g * 10 + i, 1)).collect();
        t.put(&rows).await;
        t.flush().await;
    }
    let (table, reader) = (open(&t).await, Reader::new(ReadLimits::default()));
    let before = walk(&reader, &table, Source::All, 9).await;
    Merger::open(&t.uri).await.try_merge(2).await.unwrap();
    assert_eq!(walk(&reader, &table, Source::All, 9).await, before);
}

#[tokio::test]
async fn fragments_ask_for_nothing_under_the_log_whatever_is_pending() {
    let mut t = Fixture::create(Spec::default()).await;
    t.put(&[(1, 1), (700, 1)]).await;
    t.flush().await;
    let recorded = Recorded::default();
    let stores = Stores::new(StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    });
    let table = Table::open(&stores, &Location::new(&t.uri)).await.unwrap();
    let reader = Reader::new(ReadLimits::default());
    reader.page(&table, Source::Fragments, 25, 0).await.unwrap();
    reader.count(&table, Source::Fragments).await.unwrap();
    Merger::open(&t.uri).await.merge_all(8).await;
    let page = reader.page(&table, Source::Fragments, 1000, 0).await;
    assert_eq!(lines(&page.unwrap()).len(), 101);
    let asked = recorded.taken();
    assert!(asked.len() > 3, "{asked:?}");
    let log: Vec<_> = asked.iter().filter(|a| a.contains("_mem_wal")).collect();
    assert!(log.is_empty(), "{log:?}");
    // The same look at what is pending does ask there, so that the count above means something.
    reader.page(&table, Source::Wal, 25, 0).await.unwrap();
    assert!(recorded.taken().iter().any(|a| a.contains("_mem_wal")));
}

#[tokio::test]
async fn a_page_of_all_that_was_asked_for_before_asks_little_again() {
    let mut t = Fixture::create(Spec::default()).await;
    for g in 0..30u64 {
        t.put(&[(g, 1), (1_000 + g, 1)]).await;
        t.flush().await;
    }
    let recorded = Recorded::default();
    let stores = Stores::new(StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    });
    let table = Table::open(&stores, &Location::new(&t.uri)).await.unwrap();
    let reader = Reader::new(ReadLimits::default());
    let first = reader.page(&table, Source::All, 25, 0).await.unwrap();
    recorded.taken();
    let again = reader.page(&table, Source::All, 25, 0).await.unwrap();
    assert_eq!(lines(&first), lines(&again));
    let asked = recorded.taken();
    assert!(
        !asked.iter().any(|a| a.contains("_gen_")),
        "no generation is opened for a page of base rows: {asked:?}"
    );
    assert!(asked.len() <= 1 + 4 + 2, "{asked:#?}");
}

/// How often each generation's data file was read.
fn data_reads(asked: &[String]) -> Vec<usize> {
    let mut reads = std::collections::BTreeMap::new();
    for a in asked.iter().filter(|a| a.contains("_gen_")) {
        if let Some((generation, _)) = a.split_once("/data/") {
            *reads.entry(generation.to_string()).or_insert(0) += 1;
        }
    }
    reads.into_values().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_ask_at_once_read_the_keys_once_and_a_new_generation_adds_its_own_only() {
    let mut t = Fixture::create(Spec::default()).await;
    for g in 0..12u64 {
        t.put(&[(g, 1), (1_000 + g, 1)]).await;
        t.flush().await;
    }
    let recorded = Recorded::default();
    let stores = Stores::new(StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    });
    let table = Table::open(&stores, &Location::new(&t.uri)).await.unwrap();
    let reader = Reader::new(ReadLimits::default());
    let asking = (0..16).map(|_| reader.count(&table, Source::All));
    let counts = futures::future::try_join_all(asking).await.unwrap();
    assert_eq!(counts, [112; 16]);
    assert_eq!(data_reads(&recorded.taken()), [1; 12]);
    t.put(&[(5, 2), (2_000, 2)]).await;
    t.flush().await;
    assert_eq!(reader.count(&table, Source::All).await.unwrap(), 113);
    assert_eq!(data_reads(&recorded.taken()), [1]);
}

#[tokio::test]
async fn pages_that_are_kept_take_from_what_all_pages_may_hold() {
    let t = Fixture::create(Spec::default()).await;
    let table = open(&t).await;
    let reader = Reader::new(ReadLimits {
        pages_bytes: 64 << 10,
        ..Default::default()
    });
    let mut kept = vec![];
    let e = loop {
        match reader.page(&table, Source::Fragments, 25, 0).await {
            Ok(page) => kept.push(page),
            Err(e) => break e,
        }
        assert!(kept.len() <= 64, "each page takes a KiB at least");
    };
    assert_eq!(e.reason(), "Busy");
    let taken: u64 = kept.iter().map(|p| p.memory.bytes()).sum();
    let one = kept[0].memory.bytes();
    assert!(taken <= 64 << 10 && taken + one > 64 << 10, "{taken}");
    kept.clear();
    reader.page(&table, Source::Fragments, 25, 0).await.unwrap();
}

#[tokio::test]
async fn an_unreadable_pending_generation_is_named_and_fragments_go_on() {
    let mut t = Fixture::create(Spec::default()).await;
    t.put(&[(1, 1)]).await;
    t.flush().await;
    t.put(&[(2, 2)]).await;
    t.flush().await;
    let table = open(&t).await;
    let snapshot = freshet::table::Snapshot::take(&table).await.unwrap();
    let second = snapshot.pending().last().unwrap().clone();
    let dir = t
        .path()
        .join("_mem_wal")
        .join(second.shard.to_string())
        .join(&second.path);
    std::fs::remove_dir_all(dir).unwrap();
    let reader = Reader::new(ReadLimits::default());
    for source in [Source::Wal, Source::All] {
        let e = reader.page(&table, source, 25, 0).await.unwrap_err();
        let ReadError::Table(e) = e else {
            panic!("{e}");
        };
        assert_eq!(e.poisoned(), Some((second.shard, second.number)), "{e}");
    }
    let page = reader.page(&table, Source::Fragments, 25, 0).await.unwrap();
    assert!(page.has_more);
}

#[tokio::test]
async fn bounds_are_said_by_name_and_with_a_remedy() {
    let mut t = Fixture::create(Spec::default()).await;
    for g in 0..5 {
        t.put(&[(g, 1)]).await;
        t.flush().await;
    }
    let table = open(&t).await;
    let few = Reader::new(ReadLimits {
        generations: 4,
        ..Default::default()
    });
    let e = few.page(&table, Source::All, 25, 0).await.unwrap_err();
    assert_eq!(e.reason(), "TooManyPending");
    assert!(e.to_string().contains("source=fragments"), "{e}");
    few.page(&table, Source::Fragments, 25, 0).await.unwrap();
    let narrow = Reader::new(ReadLimits {
        key_bytes: 5_000,
        ..Default::default()
    });
    let e = narrow.page(&table, Source::Wal, 25, 0).await.unwrap_err();
    assert_eq!(e.reason(), "KeysTooLarge");
    let short = Reader::new(ReadLimits {
        page_bytes: 64,
        ..Default::default()
    });
    let e = short.page(&table, Source::Fragments, 25, 0).await;
    assert_eq!(e.unwrap_err().reason(), "PageTooLarge");
}

#[tokio::test]
async fn a_page_of_more_rows_than_its_budget_is_refused_before_a_row_is_looked_for() {
    let mut t = Fixture::create(Spec {
        base: (0..20_000).map(|k| (k, 1)).collect(),
        ..Default::default()
    })
    .await;
    t.put(&[(30_000, 1)]).await;
    t.flush().await;
    let recorded = Recorded::default();
    let table = recorded_table(&t, &recorded).await;
    let reader = Reader::new(ReadLimits {
        page_bytes: 64 << 10,
        ..Default::default()
    });
    let all = |exact: &[(&str, &str)]| freshet::table::Ask {
        source: Source::All,
        limit: usize::MAX,
        columns: Some(vec!["value".into()]),
        exact: exact
            .iter()
            .map(|(c, v)| (c.to_string(), v.to_string()))
            .collect(),
        ..Default::default()
    };
    reader.count(&table, Source::All).await.unwrap();
    recorded.taken();
    let e = reader.read(&table, &all(&[])).await.unwrap_err();
    assert_eq!(e.reason(), "PageTooLarge");
    let data: Vec<_> = recorded
        .taken()
        .into_iter()
        .filter(|a| a.contains("/data/"))
        .collect();
    assert!(data.is_empty(), "{data:?}");
    let e = reader
        .read(&table, &all(&[("value", "1")]))
        .await
        .unwrap_err();
    assert_eq!(e.reason(), "PageTooLarge");
    let few = freshet::table::Ask {
        limit: 100,
        ..all(&[("value", "1")])
    };
    let page = reader.read(&table, &few).await.unwrap();
    assert_eq!(lines(&page).len(), 100);
    let count = reader.count_of(&table, &few).await.unwrap();
    assert_eq!(count.rows, 20_001);
}
