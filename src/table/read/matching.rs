//! Which rows of a source have given values.
//!
//! Lives here: walking a source in its order, reading only the columns that are compared: the base by Lance's scan, some
//! fragments at a time (its indexes are used), then generation by generation, and no further than a page needs. May use:
//! exact values, mappings. Never: another order than that of an unfiltered page, or a column that is not compared.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, BooleanArray, RecordBatch, UInt32Array};
use arrow_select::filter::{filter, filter_record_batch};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lance::Dataset;
use lance_core::datatypes::Schema;
use lance_table::format::Fragment;
use roaring::RoaringTreemap;

use super::super::base::{Table, key_fields};
use super::super::error::{Error, Result};
use super::super::file::Fetch;
use super::super::generation::OpenGeneration;
use super::super::mapping::Mapping;
use super::exact::Exact;
use super::pending::Live;
use super::rows::part;
use super::{Picked, ReadError, View};

/// Fragments that are looked through first; how many next goes up, so that a page near the start costs little.
const FIRST: usize = 4;
/// Fragments that are looked through together at most.
const MOST: usize = 256;
/// Generations that are looked through at once.
const AT_ONCE: usize = 16;

/// Rows that are counted off until a page is full.
struct Window {
    start: u64,
    end: u64,
    seen: u64,
}

impl Window {
    /// Whether the next matching row is one of the page's.
    fn takes(&mut self) -> bool {
        let at = self.seen;
        self.seen += 1;
        (self.start..self.end).contains(&at)
    }

    /// Whether it is known that there are more.
    fn is_over(&self) -> bool {
        self.seen > self.end
    }
}

/// `limit` rows with these values after the first `offset`.
pub(super) async fn pick(
    table: &Table,
    view: &View,
    exact: &[Exact],
    limit: usize,
    offset: u64,
) -> std::result::Result<Picked, ReadError> {
    let mut window = Window {
        start: offset,
        end: offset.saturating_add(limit as u64),
        seen: 0,
    };
    walk(table, view, exact, &mut window).await
}

/// How many rows have these values.
pub(super) async fn count(
    table: &Table,
    view: &View,
    exact: &[Exact],
) -> std::result::Result<u64, ReadError> {
    let mut window = Window {
        start: u64::MAX,
        end: u64::MAX,
        seen: 0,
    };
    walk(table, view, exact, &mut window).await?;
    Ok(window.seen)
}

async fn walk(
    table: &Table,
    view: &View,
    exact: &[Exact],
    window: &mut Window,
) -> std::result::Result<Picked, ReadError> {
    let mut picked = Picked::default();
    of_base(view, exact, window, &mut picked).await?;
    if let Some(chosen) = &view.chosen {
        let looks: Vec<_> = chosen
            .parts
            .iter()
            .map(|part| of_generation(table, &view.base, part, exact).boxed())
            .collect();
        let mut looks = stream::iter(looks).buffered(AT_ONCE);
        let mut at = 0;
        while !window.is_over() {
            let Some(offsets) = looks.try_next().await? else {
                break;
            };
            let offsets: Vec<u32> = offsets.into_iter().filter(|_| window.takes()).collect();
            if !offsets.is_empty() {
                picked.pending.push(chosen.parts[at].wanted(offsets));
            }
            at += 1;
        }
    }
    picked.more = window.is_over();
    Ok(picked)
}

async fn of_base(
    view: &View,
    exact: &[Exact],
    window: &mut Window,
    picked: &mut Picked,
) -> Result<()> {
    let (Some(shown), Some(wanted)) = (&view.fragments, Exact::expression(exact)?) else {
        return Ok(());
    };
    let fragments = view.base.fragments();
    let (mut at, mut together) = (0, FIRST);
    while at < fragments.len() && !window.is_over() {
        let group = &fragments[at..fragments.len().min(at + together)];
        let mut scan = view.base.scan();
        scan.project::<&str>(&[])
            .map_err(|e| Error::lance("look through the base", e))?;
        scan.with_row_address()
            .scan_in_order(false)
            .with_fragments(group.to_vec())
            .filter_expr(wanted.clone());
        let found = addresses(scan).await?;
        for address in in_order(group, &found) {
            if !shown.hides(address) && window.takes() {
                picked.base.push(address);
            }
        }
        at += group.len();
        together = (together * 2).min(MOST);
    }
    Ok(())
}

async fn addresses(scan: lance::dataset::scanner::Scanner) -> Result<RoaringTreemap> {
    let failed = |e| Error::lance("look through the base", e);
    let mut rows = scan.try_into_stream().await.map_err(failed)?;
    let mut found = RoaringTreemap::new();
    while let Some(batch) = rows.try_next().await.map_err(failed)? {
        let addresses = batch
            .column_by_name("_rowaddr")
            .ok_or_else(|| Error::Bug("a scan without row addresses".into()))?;
        found.extend(addresses.as_primitive::<UInt64Type>().values().iter());
    }
    Ok(found)
}

/// Addresses in the order of the fragments that hold them, which is not that of their numbers after a compaction.
fn in_order<'a>(
    group: &'a [Fragment],
    found: &'a RoaringTreemap,
) -> impl Iterator<Item = u64> + 'a {
    let of = |f: &'a Fragment| {
        let id = f.id as u32;
        let rows = found.bitmaps().find(|(high, _)| *high == id);
        let rows = rows.into_iter().flat_map(|(_, rows)| rows.iter());
        rows.map(move |offset| u64::from(id) << 32 | u64::from(offset))
    };
    group.iter().flat_map(of)
}

/// Offsets of living rows of a generation that have these values, ascending.
async fn of_generation(
    table: &Table,
    base: &Arc<Dataset>,
    live: &Live,
    exact: &[Exact],
) -> Result<Vec<u32>> {
    if live.rows.is_empty() {
        return Ok(vec![]);
    }
    let (generation, facts) = (&live.keys.generation, &live.keys.facts);
    let open = OpenGeneration::open(base, table.store(), generation, facts, Fetch::Whole).await?;
    let keys = key_fields(base.schema());
    let mapping = Mapping::new(&open, &compared(base.schema(), exact, &keys), &keys)?;
    let mut rows = open.rows(Some(&mapping.columns()), 8192, 4 << 20).await?;
    let mut out = vec![];
    while let Some((batch, offsets)) = rows.try_next().await? {
        let (batch, offsets) = living(live, batch, offsets)?;
        let batch = mapping.apply(batch)?;
        let held = exact
            .iter()
            .map(|e| e.holds(&batch))
            .collect::<Result<Vec<_>>>()?;
        let has = |row: usize| held.iter().all(|h| h.is_valid(row) && h.value(row));
        let offsets = offsets.values().iter().enumerate();
        out.extend(offsets.filter(|(row, _)| has(*row)).map(|(_, o)| *o));
    }
    Ok(out)
}

/// The columns of a table that are compared, and its key, by which Lance reconciles.
fn compared(schema: &Schema, exact: &[Exact], keys: &[(String, i32)]) -> Schema {
    let ids = exact.iter().map(|e| e.id).chain(keys.iter().map(|k| k.1));
    part(schema, &ids.collect::<BTreeSet<i32>>())
}

fn living(
    live: &Live,
    batch: RecordBatch,
    offsets: UInt32Array,
) -> Result<(RecordBatch, UInt32Array)> {
    let lives = offsets.values().iter().map(|o| live.rows.contains(*o));
    let lives = BooleanArray::from(lives.collect::<Vec<bool>>());
    let broken = |e| Error::Bug(format!("rows cannot be taken from a batch: {e}"));
    let batch = filter_record_batch(&batch, &lives).map_err(broken)?;
    let offsets = filter(&offsets, &lives).map_err(broken)?;
    Ok((batch, offsets.as_primitive().clone()))
}
