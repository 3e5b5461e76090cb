//! What each source ought to show, kept outside Lance.
//!
//! Lives here: `Ledger`: the writes of every generation by its number, from which `wal` follows for any set of pending
//! ones; and the walk over a source page by page. May use: the fixtures, the reader under test. Never: Lance's own view.

use std::collections::BTreeMap;

use freshet::table::{Page, Reader, Snapshot, Source, Table};
use uuid::Uuid;

use crate::fixtures::{Fixture, Model, Shape, canonical, shard};

/// A write: a key and its new value, or none where it was deleted.
pub type Write = (u64, Option<i64>);

/// The writes of every generation.
#[derive(Default)]
pub struct Ledger {
    open: BTreeMap<usize, Vec<Write>>,
    generations: BTreeMap<(Uuid, u64), Vec<Write>>,
}

impl Ledger {
    pub async fn put(&mut self, t: &mut Fixture, rows: &[(u64, i64)]) {
        t.put(rows).await;
        for (key, value) in rows {
            let open = self.open.entry(t.shard_of(*key)).or_default();
            open.push((*key, Some(*value)));
        }
    }

    pub async fn delete(&mut self, t: &mut Fixture, keys: &[u64]) {
        t.delete(keys).await;
        for key in keys {
            let open = self.open.entry(t.shard_of(*key)).or_default();
            open.push((*key, None));
        }
    }

    pub async fn flush(&mut self, t: &mut Fixture) {
        for (at, writes) in std::mem::take(&mut self.open) {
            let number = t.flush_shard(at).await.expect("rows to flush");
            self.generations.insert((shard(at), number), writes);
        }
    }

    /// What `wal` ought to show for the pending generations of a snapshot.
    pub fn pending(&self, snapshot: &Snapshot) -> Model {
        let mut newest: BTreeMap<u64, Option<i64>> = BTreeMap::new();
        for generation in snapshot.pending() {
            let writes = &self.generations[&(generation.shard, generation.number)];
            newest.extend(writes.iter().copied());
        }
        let rows = newest.into_iter().filter_map(|(k, v)| Some((k, v?)));
        Model {
            rows: rows.collect(),
            ..Default::default()
        }
    }
}

/// A source, page by page, as text; checks that pages promise what comes.
pub async fn walk(reader: &Reader, table: &Table, source: Source, limit: usize) -> Vec<String> {
    let mut out: Vec<String> = vec![];
    loop {
        let page = reader
            .page(table, source, limit, out.len() as u64)
            .await
            .unwrap();
        let rows = lines(&page);
        assert!(
            rows.len() == limit || !page.has_more,
            "a short page that is not the last"
        );
        out.extend(rows);
        if !page.has_more {
            return out;
        }
    }
}

/// A page's rows as text.
pub fn lines(page: &Page) -> Vec<String> {
    page.batches.iter().flat_map(canonical).collect()
}

/// A model's rows as text, sorted.
pub fn expected(model: &Model, shape: &Shape) -> Vec<String> {
    // In parts, so that a dictionary column's values fit each.
    let all = model.list();
    let parts = all.chunks(64).map(|rows| shape.batch(rows));
    let mut rows: Vec<String> = parts.flat_map(|b| canonical(&b)).collect();
    rows.sort();
    rows
}

/// Checks every source against the model, the ledger and an ordinary reader, by walks of several page sizes and by counts.
pub async fn check(reader: &Reader, table: &Table, t: &Fixture, ledger: &Ledger, limit: usize) {
    let snapshot = Snapshot::take(table).await.unwrap();
    let base: Vec<String> = t.rows().await.0.into_values().flatten().collect();
    let wants = [
        (Source::Fragments, base),
        (
            Source::Wal,
            expected(&ledger.pending(&snapshot), &t.spec.shape),
        ),
        (Source::All, expected(&t.model, &t.spec.shape)),
    ];
    for (source, mut want) in wants {
        want.sort();
        let walked = walk(reader, table, source, limit).await;
        let whole = walk(reader, table, source, 1 << 20).await;
        assert_eq!(walked, whole, "{source:?} by pages of {limit}");
        let mut got = walked;
        got.sort();
        assert_eq!(got, want, "{source:?}");
        let count = reader.count(table, source).await.unwrap();
        assert_eq!(count, want.len() as u64, "{source:?}");
    }
}
