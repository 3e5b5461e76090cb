//! Which rows of a source have given values.
//!
//! Lives here: walking a source in its order, reading only the columns that are compared: the base by Lance's scan, some
//! fragments at a time (its indexes are used), then generation by generation, and no further than a page needs. May use:
//! exact values, mappings. Never: another order than that of an unfiltered page, or a column that is not compared.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{BooleanArray, RecordBatch, UInt32Array};
use arrow_select::filter::{filter, filter_record_batch};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lance::Dataset;
use lance_core::datatypes::Schema;
use lance_table::format::Fragment;
use roaring::{RoaringBitmap, RoaringTreemap};

use super::super::base::{Table, key_fields};
use super::super::error::{Error, Result};
use super::super::file::Fetch;
use super::super::generation::OpenGeneration;
use super::super::mapping::Mapping;
use super::filter::Filter;
use super::pending::Live;
use super::rows::{Budget, part};
use super::{Picked, Place, Position, ReadError, View};

/// Fragments that are looked through first; how many next goes up, so that a page near the start costs little and one
/// at the end asks an index only a few times.
const FIRST: usize = 4;
/// Rows that are looked through together: a bit for each of them is held.
const MOST_ROWS: u64 = 64 << 20;
/// Generations that are looked through at once.
const AT_ONCE: usize = 16;

/// Rows that are counted off until a page is full.
struct Window {
    start: u64,
    end: u64,
    seen: u64,
}

impl Window {
    /// Which of so many matching rows more are the page's.
    fn next(&mut self, rows: u64) -> Range<usize> {
        let before = self.seen;
        self.seen += rows;
        let within = |at: u64| (at.clamp(before, self.seen) - before) as usize;
        within(self.start)..within(self.end)
    }

    /// Whether it is known that there are more.
    fn is_over(&self) -> bool {
        self.seen > self.end
    }
}

/// The rows of a page that pass.
pub(super) async fn pick(
    table: &Table,
    view: &View,
    filter: &Filter,
    limit: usize,
    from: Position,
    budget: &mut Budget,
) -> std::result::Result<Picked, ReadError> {
    // With a place to begin at, what comes before it needs no counting off.
    let start = if from.place.is_some() { 0 } else { from.rows };
    let mut window = Window {
        start,
        end: start.saturating_add(limit as u64),
        seen: 0,
    };
    walk(table, view, filter, &mut window, from.place, Some(budget)).await
}

/// How many rows pass.
pub(super) async fn count(
    table: &Table,
    view: &View,
    filter: &Filter,
) -> std::result::Result<u64, ReadError> {
    let mut window = Window {
        start: u64::MAX,
        end: u64::MAX,
        seen: 0,
    };
    walk(table, view, filter, &mut window, None, None).await?;
    Ok(window.seen)
}

/// Walks over the source, from its start or from a place, until the window is over; without a budget no row is picked.
async fn walk(
    table: &Table,
    view: &View,
    filter: &Filter,
    window: &mut Window,
    from: Option<Place>,
    mut budget: Option<&mut Budget>,
) -> std::result::Result<Picked, ReadError> {
    let mut picked = Picked::default();
    let in_base = from.is_none_or(|p| !p.pending);
    if in_base {
        of_base(
            view,
            filter,
            window,
            from,
            &mut picked,
            budget.as_deref_mut(),
        )
        .await?;
    }
    if let Some(chosen) = &view.chosen {
        let first = from.filter(|p| p.pending);
        let mut at = first.map_or(0, |p| p.part as usize).min(chosen.parts.len());
        let looks: Vec<_> = chosen.parts[at..]
            .iter()
            .map(|part| of_generation(table, &view.base, part, filter).boxed())
            .collect();
        let mut looks = stream::iter(looks).buffered(AT_ONCE);
        while !window.is_over() {
            let Some(mut offsets) = looks.try_next().await? else {
                break;
            };
            if let Some(first) = first.filter(|p| p.part as usize == at) {
                offsets.retain(|offset| *offset >= first.row);
            }
            let taken = window.next(offsets.len() as u64);
            if let Some(budget) = budget.as_deref_mut().filter(|_| !taken.is_empty()) {
                budget.places(taken.len() as u64)?;
                let offsets = offsets[taken].to_vec();
                picked.next = offsets.last().map(|last| after(true, at, *last));
                picked.pending.push(chosen.parts[at].wanted(offsets));
            }
            at += 1;
        }
    }
    picked.more = window.is_over();
    Ok(picked)
}

/// The place after a row.
fn after(pending: bool, part: usize, row: u32) -> Place {
    Place {
        pending,
        part: u32::try_from(part).unwrap_or(u32::MAX),
        row: row.saturating_add(1),
    }
}

async fn of_base(
    view: &View,
    filter: &Filter,
    window: &mut Window,
    from: Option<Place>,
    picked: &mut Picked,
    mut budget: Option<&mut Budget>,
) -> std::result::Result<(), ReadError> {
    let (Some(shown), Some(wanted)) = (&view.fragments, filter.expression()?) else {
        return Ok(());
    };
    let fragments = view.base.fragments();
    let mut together = match budget {
        Some(_) => FIRST,
        None => fragments.len(),
    };
    let mut at = from.map_or(0, |p| p.part as usize);
    while at < fragments.len() && !window.is_over() {
        let group = together_within(&fragments[at..], together);
        let mut scan = view.base.scan();
        scan.project::<&str>(&[])
            .map_err(|e| Error::lance("look through the base", e))?;
        scan.with_row_address()
            .scan_in_order(false)
            .with_fragments(group.to_vec())
            .use_scalar_index(filter.by_index())
            .filter_expr(wanted.clone());
        let found = addresses(scan).await?;
        let found: HashMap<u32, &RoaringBitmap> = found.bitmaps().collect();
        // In the order of the fragments, which is not that of their numbers after a compaction.
        for (part, id) in group.iter().map(|f| f.id as u32).enumerate() {
            let Some(rows) = found.get(&id) else {
                continue;
            };
            let mut rows = shown.shown(id, rows);
            if let Some(first) = from.filter(|p| p.part as usize == at + part) {
                rows.remove_range(..first.row);
            }
            let taken = window.next(rows.len());
            if let Some(budget) = budget.as_deref_mut().filter(|_| !taken.is_empty()) {
                budget.places(taken.len() as u64)?;
                let offsets = rows.iter().skip(taken.start).take(taken.len());
                let address = |offset| u64::from(id) << 32 | u64::from(offset);
                picked.base.extend(offsets.map(address));
                // An address ends in the row's offset.
                let last = picked.base.last().map(|address| *address as u32);
                picked.next = last.map(|row| after(false, at + part, row));
            }
        }
        at += group.len();
        together = together.saturating_mul(2);
    }
    Ok(())
}

/// The first so many fragments, or fewer, where those have too many rows; one at least.
fn together_within(fragments: &[Fragment], most: usize) -> &[Fragment] {
    let mut rows = 0u64;
    let fits = fragments.iter().take(most).take_while(|f| {
        rows = rows.saturating_add(f.physical_rows.unwrap_or(0) as u64);
        rows <= MOST_ROWS
    });
    let many = fits.count().max(1);
    &fragments[..many.min(fragments.len())]
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

/// Offsets of living rows of a generation that pass, ascending.
async fn of_generation(
    table: &Table,
    base: &Arc<Dataset>,
    live: &Live,
    filter: &Filter,
) -> Result<Vec<u32>> {
    if live.rows.is_empty() {
        return Ok(vec![]);
    }
    let (generation, facts) = (&live.keys.generation, &live.keys.facts);
    let open = OpenGeneration::open(base, table.store(), generation, facts, Fetch::Whole).await?;
    let keys = key_fields(base.schema());
    let mapping = Mapping::new(&open, &compared(base.schema(), filter, &keys), &keys)?;
    let mut rows = open.rows(Some(&mapping.columns()), 8192, 4 << 20).await?;
    let mut out = vec![];
    while let Some((batch, offsets)) = rows.try_next().await? {
        let (batch, offsets) = living(live, batch, offsets)?;
        let batch = mapping.apply(batch)?;
        let passes = filter.passes(&batch)?;
        let offsets = offsets.values().iter().zip(passes);
        out.extend(offsets.filter(|(_, passes)| *passes).map(|(o, _)| *o));
    }
    Ok(out)
}

/// The columns of a table that are compared, and its key, by which Lance reconciles.
fn compared(schema: &Schema, filter: &Filter, keys: &[(String, i32)]) -> Schema {
    let mut ids = filter.ids();
    ids.extend(keys.iter().map(|k| k.1));
    part(schema, &ids)
}

pub(super) fn living(
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
