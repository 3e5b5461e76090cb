//! Reading: the `fragments` page with a backlog and without one.

use std::time::{Duration, Instant};

use freshet::table::{Location, ReadLimits, Reader, Source, Stores, StoresConfig, Table};

use super::fixtures::{Fixture, Spec};
use super::{Figure, median};

const PAGES: usize = 201;

/// 25 rows of 90,000 in 52 fragments, with 700 generations pending and with none, page by page in turn.
pub async fn page() {
    let spec = Spec {
        base: (0..90_000).map(|k| (k, 0)).collect(),
        rows_per_file: 90_000usize.div_ceil(52),
        ..Default::default()
    };
    let mut busy = Fixture::create(spec).await;
    let quiet = busy.copy();
    for g in 0..700u64 {
        busy.put(
            &(0..10)
                .map(|r| ((g * 127 + r) % 100_000, g as i64 + 1))
                .collect::<Vec<_>>(),
        )
        .await;
        busy.flush().await;
    }
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
