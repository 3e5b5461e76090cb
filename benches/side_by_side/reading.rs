//! Reading: pages, counts and points of every source, with backlogs of several sizes, and their requests.

use std::time::{Duration, Instant};

use freshet::table::{
    KeyText, Location, Point, ReadLimits, Reader, Source, Stores, StoresConfig, Table,
};

use super::fixtures::{Fixture, Spec};
use super::store::Slow;
use super::{Figure, median};

const PAGES: usize = 201;

/// 90,000 rows in 52 fragments.
async fn base() -> Fixture {
    let spec = Spec {
        base: (0..90_000).map(|k| (k, 0)).collect(),
        rows_per_file: 90_000usize.div_ceil(52),
        ..Default::default()
    };
    Fixture::create(spec).await
}

/// Generations of ten rows, most of them updates.
async fn flush(table: &mut Fixture, generations: std::ops::Range<u64>) {
    for g in generations {
        let rows = (0..10).map(|r| ((g * 127 + r) % 100_000, g as i64 + 1));
        table.put(&rows.collect::<Vec<_>>()).await;
        table.flush().await;
    }
}

/// 25 rows of 90,000 in 52 fragments, with 700 generations pending and with none, page by page in turn.
pub async fn page() {
    let mut busy = base().await;
    let quiet = busy.copy();
    flush(&mut busy, 0..700).await;
    busy.close().await;
    let stores = Stores::new(StoresConfig::default());
    let reader = Reader::new(ReadLimits::default());
    let with = Table::open(&stores, &Location::new(&busy.uri))
        .await
        .unwrap();
    let without = Table::open(&stores, &Location::new(&quiet.uri))
        .await
        .unwrap();
    let (mut a, mut b): (Vec<Duration>, Vec<Duration>) = Default::default();
    for at in 0..PAGES {
        let offset = (at * 401) as u64;
        for (table, times) in [(&with, &mut a), (&without, &mut b)] {
            let begun = Instant::now();
            let page = reader
                .page(table, Source::Fragments, 25, offset)
                .await
                .unwrap();
            times.push(begun.elapsed());
            assert_eq!(page.batches.iter().map(|b| b.num_rows()).sum::<usize>(), 25);
        }
    }
    let (a, b) = (median(a), median(b));
    Figure {
        name: "`fragments` page of 25 rows (90,000 rows, 52 fragments): 700 generations pending against none",
        ours: a,
        other: b,
        unit: "ms",
        ratio: a / b,
        goal: Some((1.05, false)),
    }
    .print();
}

/// Pages, counts and points by the number of pending generations, on a local folder and with 20 ms a request.
pub async fn union() {
    let mut table = base().await;
    println!(
        "\n| pending | ms a request | fragments | all | all ÷ fragments | all, deep | all, cold | cold ÷ fragments | count of all | point | requests of an all page | of a point |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    let mut flushed = 0;
    for pending in [0, 1, 10, 100, 400, 700] {
        flush(&mut table, flushed..pending).await;
        flushed = pending;
        for delay in [0, 20] {
            measured(&table, pending, Duration::from_millis(delay)).await;
        }
    }
}

/// The times of one question, asked again and again, in ms; and the requests of each.
async fn times<F: Future<Output = ()>>(
    slow: &Slow,
    turns: usize,
    ask: impl Fn(u64) -> F,
) -> (f64, f64) {
    let mut all = vec![];
    slow.counts.take();
    for turn in 0..turns {
        let begun = Instant::now();
        ask(turn as u64).await;
        all.push(begun.elapsed());
    }
    let (reads, ..) = slow.counts.take();
    (median(all), reads as f64 / turns as f64)
}

async fn measured(table: &Fixture, pending: u64, delay: Duration) {
    let slow = Slow {
        delay,
        ..Default::default()
    };
    let stores = Stores::new(StoresConfig {
        wrapper: Some(std::sync::Arc::new(slow.clone())),
        ..Default::default()
    });
    let turns = if delay.is_zero() { 101 } else { 11 };
    let open = Table::open(&stores, &Location::new(&table.uri))
        .await
        .unwrap();
    let reader = Reader::new(ReadLimits::default());
    let begun = Instant::now();
    page_of(&reader, &open, Source::All, 0).await;
    let cold = begun.elapsed().as_secs_f64() * 1e3;
    let (reader, open) = (&reader, &open);
    let (fragments, _) = times(&slow, turns, |t| {
        page_of(reader, open, Source::Fragments, t * 401)
    })
    .await;
    let (all, requests) = times(&slow, turns, |t| {
        page_of(reader, open, Source::All, t * 401)
    })
    .await;
    let (deep, _) = times(&slow, turns, |t| {
        page_of(reader, open, Source::All, 89_000 + t)
    })
    .await;
    let (count, _) = times(&slow, turns, |_| async {
        reader.count(open, Source::All).await.unwrap();
    })
    .await;
    let (point, of_point) = times(&slow, turns, |t| async move {
        let key = KeyText::Plain((t * 131 % 90_000).to_string());
        let found = reader.get(open, Source::All, &key, None).await.unwrap();
        assert!(matches!(found, Point::Row(_)));
    })
    .await;
    println!(
        "| {pending} | {} | {fragments:.2} ms | {all:.2} ms | {:.2} | {deep:.2} ms | {cold:.0} ms | {:.1} | {count:.3} ms | {point:.2} ms | {requests:.1} | {of_point:.1} |",
        delay.as_millis(),
        all / fragments,
        cold / fragments,
    );
}

async fn page_of(reader: &Reader, table: &Table, source: Source, offset: u64) {
    let page = reader.page(table, source, 25, offset).await.unwrap();
    assert_eq!(page.batches.iter().map(|b| b.num_rows()).sum::<usize>(), 25);
}
