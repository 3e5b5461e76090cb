//! A point read past a generation that cannot be read: only where newer ones decide the key.
//!
//! Lives here: each way in which a newer generation does, or does not. May use: the fixtures, the reader under test.
//! Never: an answer that a generation might contradict.

use std::fs;
use std::path::PathBuf;

use freshet::table::{
    Error, KeyText, Payload, Point, ReadError, ReadLimits, Reader, Source, Table,
};

use crate::fixtures::{Fixture, Kind, Shape, Spec, shard};
use crate::sources::open;

/// What is broken of a generation.
#[derive(Debug, Clone, Copy)]
enum Broken {
    /// Its rows; when it was flushed can still be told.
    Data,
    /// All of it.
    Whole,
}

fn generation(t: &Fixture, at: usize, number: u64) -> PathBuf {
    let log = t.path().join("_mem_wal").join(shard(at).to_string());
    let mut dirs = fs::read_dir(log).unwrap().map(|e| e.unwrap().path());
    let ends = format!("_gen_{number}");
    dirs.find(|d| d.to_string_lossy().ends_with(&ends)).unwrap()
}

fn break_it(t: &Fixture, at: usize, number: u64, how: Broken) {
    let dir = generation(t, at, number);
    match how {
        Broken::Data => fs::remove_dir_all(dir.join("data")).unwrap(),
        Broken::Whole => fs::remove_dir_all(dir).unwrap(),
    }
}

/// What a point read of a number's row says: its value, `deleted`, `missing`, or which generation cannot be read.
async fn said(reader: &Reader, table: &Table, source: Source, number: u64) -> String {
    let key = KeyText::Plain(format!("{}", number as i64 - 50));
    let columns = ["value".to_string()];
    match reader.get(table, source, &key, Some(&columns)).await {
        Ok(Point::Row(page)) => crate::ledger::lines(&page).concat(),
        Ok(Point::Deleted { generation, .. }) => format!("deleted by {generation}"),
        Ok(Point::Missing) => "missing".into(),
        Err(ReadError::Table(Error::GenerationUnreadable { generation, .. })) => {
            format!("unreadable {generation}")
        }
        Err(e) => panic!("{e}"),
    }
}

async fn looked(t: &Fixture, wants: &[(u64, &str)]) {
    let table = open(t).await;
    // One that has read nothing, and the same again.
    let reader = Reader::new(ReadLimits::default());
    for _ in 0..2 {
        for source in [Source::Wal, Source::All] {
            for (number, want) in wants {
                let said = said(&reader, &table, source, *number).await;
                assert_eq!(said, *want, "{source:?} {number}");
            }
            let e = reader.page(&table, source, 25, 0).await.unwrap_err();
            assert_eq!(e.reason(), "GenerationUnreadable");
        }
    }
}

async fn table(shards: usize) -> Fixture {
    Fixture::create(Spec {
        shape: Shape::keyed(Kind::Int64),
        shards,
        ..Default::default()
    })
    .await
}

#[tokio::test]
async fn a_newer_generation_of_the_shard_decides_and_an_older_one_does_not() {
    for how in [Broken::Data, Broken::Whole] {
        let mut t = table(1).await;
        t.put(&[(1, 1), (2, 1), (3, 1)]).await;
        t.flush().await;
        t.put(&[(1, 2), (2, 2), (5, 2)]).await;
        t.flush().await;
        t.put(&[(1, 3), (4, 3)]).await;
        t.delete(&[2]).await;
        t.flush().await;
        t.close().await;
        break_it(&t, 0, 2, how);
        looked(
            &t,
            &[
                (1, "3"),
                (4, "3"),
                (2, "deleted by 3"),
                // Older than what cannot be read, in it alone, in the base, and nowhere.
                (3, "unreadable 2"),
                (5, "unreadable 2"),
                (6, "unreadable 2"),
                (900, "unreadable 2"),
            ],
        )
        .await;
    }
}

#[tokio::test]
async fn of_two_that_cannot_be_read_the_newer_one_is_in_the_way() {
    let mut t = table(1).await;
    for n in 1..=4 {
        t.put(&[(n, n as i64)]).await;
        t.flush().await;
    }
    t.close().await;
    break_it(&t, 0, 1, Broken::Whole);
    break_it(&t, 0, 3, Broken::Data);
    looked(&t, &[(4, "4"), (2, "unreadable 3"), (1, "unreadable 3")]).await;
}

/// Keys of even numbers live in the first shard, those of odd ones in the second; but a key may have lived in another.
#[tokio::test]
async fn another_shards_generation_is_in_the_way_unless_it_is_known_to_be_older() {
    for (how, want) in [(Broken::Data, "2"), (Broken::Whole, "unreadable 1")] {
        let mut t = table(2).await;
        t.put(&[(1, 1)]).await;
        t.flush_shard(1).await;
        t.put(&[(2, 2)]).await;
        t.flush_shard(0).await;
        t.close().await;
        break_it(&t, 1, 1, how);
        // Flushed before the one that decides; where nobody can tell when, it might be newer.
        looked(&t, &[(2, want), (4, "unreadable 1"), (1, "unreadable 1")]).await;
    }
    for how in [Broken::Data, Broken::Whole] {
        let mut t = table(2).await;
        t.put(&[(2, 2)]).await;
        t.flush_shard(0).await;
        t.put(&[(1, 1)]).await;
        t.flush_shard(1).await;
        t.close().await;
        break_it(&t, 1, 1, how);
        // Flushed after the one that holds the key.
        looked(&t, &[(2, "unreadable 1"), (1, "unreadable 1")]).await;
    }
    // Its own shard's later generation is older than the one that decides: so is it, whenever it was flushed.
    let mut t = table(2).await;
    for n in [1, 3] {
        t.put(&[(n, 1)]).await;
        t.flush_shard(1).await;
    }
    t.put(&[(2, 2)]).await;
    t.flush_shard(0).await;
    t.close().await;
    break_it(&t, 1, 1, Broken::Whole);
    looked(&t, &[(2, "2"), (3, "1"), (1, "unreadable 1")]).await;
}

#[tokio::test]
async fn a_payload_is_sent_where_its_row_is_decided() {
    let mut t = Fixture::create(Spec {
        shape: Shape::keyed(Kind::Int64).with("note", Kind::Utf8),
        ..Default::default()
    })
    .await;
    for n in 1..=2 {
        t.put(&[(n, 1)]).await;
        t.flush().await;
    }
    t.close().await;
    break_it(&t, 0, 1, Broken::Data);
    let (table, reader) = (open(&t).await, Reader::new(ReadLimits::default()));
    let key = |n: i64| KeyText::Plain((n - 50).to_string());
    let sent = reader.payload(&table, Source::All, &key(2), "note").await;
    assert!(matches!(sent, Ok(Payload::Bytes(..))), "{sent:?}");
    let e = reader.payload(&table, Source::All, &key(1), "note").await;
    assert_eq!(e.unwrap_err().reason(), "GenerationUnreadable");
}
