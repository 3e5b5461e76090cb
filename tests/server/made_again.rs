//! A shard whose directory was removed and made again under its id (contract 3): what it flushed up to its old watermark
//! is nowhere else, and every read shows it, behind that mark and past it.
//!
//! Lives here: what a reader shows of it that never saw the table before, and one that was there all along; and that what
//! is merged and still listed is not taken for it. May use: the fixtures, the reader under test. Never: a wait.

use std::fs;

use freshet::table::AnomalyKind::WatermarkAhead;
use freshet::table::{KeyText, Point, ReadLimits, Reader, Source, Table};

use crate::fixtures::{Fixture, Shape, Spec, copy_dir};
use crate::ledger::{expected, walk};
use crate::mergers::Merger;
use crate::sources::open;

const PENDING: [Source; 2] = [Source::Wal, Source::All];

/// Two merged generations, undrained.
async fn merged(shape: Shape) -> Fixture {
    let mut t = Fixture::create(Spec {
        shape,
        ..Default::default()
    })
    .await;
    for n in 1..=2 {
        t.put(&[(500 + n, 1), (600 + n, 1)]).await;
        t.flush().await;
    }
    t.close().await;
    Merger::open(&t.uri).await.merge_all(9).await;
    t
}

/// Removes the log and writes so many generations anew under the same id: what `wal` ought to show then.
async fn make_again(t: &mut Fixture, generations: u64) -> Vec<String> {
    fs::remove_dir_all(t.path().join("_mem_wal")).unwrap();
    let mut model = crate::fixtures::Model::default();
    for n in 0..generations {
        let rows = [(700 + n, 7), (800 + n, 7)];
        t.put(&rows).await;
        model.put(&rows);
        t.flush().await;
    }
    expected(&model, &t.spec.shape)
}

fn reader() -> Reader {
    Reader::new(ReadLimits::default())
}

async fn rows(reader: &Reader, table: &Table, source: Source) -> Vec<String> {
    let mut rows = walk(reader, table, source, 50).await;
    rows.sort();
    rows
}

/// Each as (table, reader): one that sees the table for the first time, and one that saw it before.
async fn made_again(generations: u64) -> (Fixture, Vec<String>, [(Table, Reader); 2]) {
    let mut t = merged(Spec::default().shape).await;
    let (table, before) = (open(&t).await, reader());
    before.count(&table, Source::All).await.unwrap();
    let wal = make_again(&mut t, generations).await;
    let first = (open(&t).await, reader());
    (t, wal, [(table, before), first])
}

#[tokio::test]
async fn all_shows_every_row_of_a_shard_made_again_behind_its_mark_and_past_it() {
    for generations in [1, 2, 3, 6] {
        let (t, _, readers) = made_again(generations).await;
        let want = expected(&t.model, &t.spec.shape);
        // With fewer manifests than it had, the shard is seen anew by whoever trusts those no more, seconds later.
        for (table, reader) in readers.iter().skip(usize::from(generations < 3)) {
            let got = rows(reader, table, Source::All).await;
            assert_eq!(got, want, "{generations}");
        }
    }
}

#[tokio::test]
async fn wal_shows_every_row_of_a_shard_made_again_behind_its_mark_and_past_it() {
    for generations in [1, 2, 3, 6] {
        let (_t, want, readers) = made_again(generations).await;
        // With fewer manifests than it had, the shard is seen anew by whoever trusts those no more, seconds later.
        for (table, reader) in readers.iter().skip(usize::from(generations < 3)) {
            let got = rows(reader, table, Source::Wal).await;
            assert_eq!(got, want, "{generations}");
        }
    }
}

#[tokio::test]
async fn a_key_below_the_old_mark_of_a_shard_made_again_is_found() {
    let (_t, _, readers) = made_again(3).await;
    // Integer keys of the fixture begin below 0.
    let key = KeyText::Plain((700 - 50).to_string());
    for (table, reader) in &readers {
        for source in PENDING {
            let point = reader.get(table, source, &key, None).await.unwrap();
            assert!(matches!(point, Point::Row(_)), "{source:?} {point:?}");
        }
    }
}

#[tokio::test]
async fn a_shard_made_again_is_counted_whole_and_so_is_its_backlog() {
    let (t, wal, readers) = made_again(3).await;
    for (table, reader) in &readers {
        let counted = reader.count(table, Source::Wal).await.unwrap();
        assert_eq!(counted, wal.len() as u64);
        let counted = reader.count(table, Source::All).await.unwrap();
        assert_eq!(counted, t.model.list().len() as u64);
        let (id, shards) = reader.backlog(table).await.unwrap();
        assert_eq!(shards[0].pending.len(), 3);
        assert_eq!(shards[0].watermark, 2);
        assert_eq!(id.shards.unwrap()[0].pending_generations, 3);
    }
}

#[tokio::test]
async fn the_digest_of_a_shard_made_again_is_that_of_all_that_it_shows() {
    let (_t, _, [(table, before), (other, first)]) = made_again(3).await;
    for source in PENDING {
        let a = before.snapshot(&table, source).await.unwrap();
        let b = first.snapshot(&other, source).await.unwrap();
        let page = first.page(&other, source, 1, 0).await.unwrap();
        assert_eq!((&a.digest, &a.shards), (&b.digest, &b.shards));
        assert_eq!(page.snapshot.digest, b.digest);
        assert_eq!(page.generations_read, 3);
    }
}

#[tokio::test]
async fn a_shard_made_again_is_shown_as_pending_until_a_person_had_it_merged() {
    let (t, wal, readers) = made_again(3).await;
    for (table, reader) in &readers {
        assert_eq!(rows(reader, table, Source::Wal).await, wal);
    }
    let mut person = Merger::open(&t.uri).await;
    person.tracker.acknowledge([WatermarkAhead]);
    person.merge_all(9).await;
    let want = expected(&t.model, &t.spec.shape);
    for (table, reader) in readers.iter().chain(&[(open(&t).await, reader())]) {
        assert_eq!(reader.count(table, Source::Wal).await.unwrap(), 0);
        assert_eq!(rows(reader, table, Source::All).await, want);
    }
}

#[tokio::test]
async fn what_is_merged_and_still_listed_is_no_part_of_wal() {
    let mut t = merged(Spec::default().shape).await;
    let (table, before) = (open(&t).await, reader());
    for n in 0..4 {
        for reader in [&before, &reader()] {
            assert_eq!(reader.count(&table, Source::Wal).await.unwrap(), 0);
        }
        t.put(&[(3 + n, 3)]).await;
        t.flush().await;
        Merger::open(&t.uri).await.merge_all(1).await;
    }
    // A copy whose generations come last, by the times of its files.
    let copy = t.copy();
    let (log, aside) = (copy.path().join("_mem_wal"), copy.path().join("../aside"));
    fs::rename(&log, &aside).unwrap();
    copy_dir(&aside, &log);
    let table = open(&copy).await;
    assert_eq!(reader().count(&table, Source::Wal).await.unwrap(), 0);
}

#[tokio::test]
async fn where_no_version_is_left_that_says_whether_it_is_merged_nothing_is_hidden_or_doubled() {
    let t = merged(Spec::default().shape).await;
    Merger::open(&t.uri).await.clean_versions().await.unwrap();
    let table = open(&t).await;
    let want = expected(&t.model, &t.spec.shape);
    assert_eq!(rows(&reader(), &table, Source::All).await, want);

    let t = merged(Shape::append_only()).await;
    let (table, before) = (open(&t).await, reader());
    let want = expected(&t.model, &t.spec.shape);
    assert_eq!(rows(&before, &table, Source::All).await, want);
    let mut merger = Merger::open(&t.uri).await;
    merger.clean_versions().await.unwrap();
    let first = reader();
    for source in PENDING {
        let e = first.page(&table, source, 25, 0).await.unwrap_err();
        assert_eq!(e.reason(), "UnsupportedManifest");
        let said = e.to_string();
        assert!(said.contains(&crate::fixtures::shard(0).to_string()), "{e}");
    }
    assert_eq!(rows(&first, &table, Source::Fragments).await, want);
    // It was found out before the versions went.
    assert_eq!(rows(&before, &table, Source::All).await, want);
    merger.drain_all().await.unwrap();
    assert_eq!(rows(&first, &table, Source::All).await, want);
}

#[tokio::test]
async fn a_table_without_a_key_shows_a_shard_made_again_past_its_mark() {
    let mut t = merged(Shape::append_only()).await;
    let want = make_again(&mut t, 3).await;
    let table = open(&t).await;
    assert_eq!(rows(&reader(), &table, Source::Wal).await, want);
    let want = expected(&t.model, &t.spec.shape);
    assert_eq!(rows(&reader(), &table, Source::All).await, want);
}
