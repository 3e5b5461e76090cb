//! The rows of a page in the order of columns.
//!
//! Lives here: `Order`, and choosing a page's rows by it: the columns of the order and of the filter are read of every row,
//! only the first rows up to the page's end are held, then only the page's rows are read whole. Rows that are alike keep the
//! snapshot's order. May use: filters, mappings. Never: all rows at once, or another rule before a merge than after it.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, RecordBatch};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{DataType, SortOptions};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lance::Dataset;
use lance_core::datatypes::{Field, Schema};

use super::super::base::{Table, key_fields};
use super::super::error::{Error, Result};
use super::super::file::Fetch;
use super::super::generation::OpenGeneration;
use super::super::mapping::Mapping;
use super::filter::Filter;
use super::matching::living;
use super::pending::Live;
use super::rows::{Budget, part, shown, unknown};
use super::{Ask, Picked, ReadError, View};

/// Rows from the first to the end of a page: so many are held while the others go by.
pub const ORDERED_ROWS: u64 = 100_000;
/// Columns of an order.
pub const ORDER_COLUMNS: usize = 4;
/// Generations that are looked through at once.
const AT_ONCE: usize = 16;
/// Rows of a generation that are compared at once.
const ROWS: u32 = 8192;
/// Bytes of a generation's rows that are read ahead.
const BYTES: u64 = 4 << 20;

/// A column that rows are ordered by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderBy {
    /// Its name.
    pub column: String,
    /// Whether the largest come first. Nulls come last either way.
    pub descending: bool,
}

/// What rows are ordered by: columns of plain values.
pub(super) struct Order {
    columns: Vec<(String, i32, SortField)>,
}

impl Order {
    /// Checks that the columns are there and have an order.
    ///
    /// # Errors
    /// `UnknownColumn`, `BadOrder`.
    pub fn of(schema: &Schema, by: &[OrderBy]) -> std::result::Result<Self, ReadError> {
        let column = |by: &OrderBy| {
            let mut fields = shown(schema);
            let field = fields.find(|f| f.name == by.column);
            let field = field.ok_or_else(|| unknown(schema, &by.column))?;
            let options = SortOptions {
                descending: by.descending,
                nulls_first: false,
            };
            match plain(field) {
                Some(kind) => Ok((
                    field.name.clone(),
                    field.id,
                    SortField::new_with_options(kind, options),
                )),
                None => Err(ReadError::BadOrder {
                    column: field.name.clone(),
                }),
            }
        };
        Ok(Self {
            columns: by
                .iter()
                .map(column)
                .collect::<std::result::Result<_, _>>()?,
        })
    }

    fn converter(&self) -> Result<RowConverter> {
        let fields = self.columns.iter().map(|(_, _, field)| field.clone());
        RowConverter::new(fields.collect())
            .map_err(|e| Error::Bug(format!("columns without an order: {e}")))
    }

    /// The values that each row of a batch is ordered by.
    fn keys(&self, converter: &RowConverter, batch: &RecordBatch) -> Result<arrow_row::Rows> {
        let broken = |e| Error::Bug(format!("rows cannot be ordered: {e}"));
        let columns = self.columns.iter().map(|(name, _, _)| {
            let column = batch.column_by_name(name);
            column
                .ok_or_else(|| Error::Bug(format!("a batch without the column {name}")))
                .and_then(|c| one_zero(c).map_err(broken))
        });
        let columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
        converter.convert_columns(&columns).map_err(broken)
    }
}

/// The type that a column's values are ordered as, where they have an order.
fn plain(field: &Field) -> Option<DataType> {
    let kind = ordered_as(&field.data_type());
    (!field.is_blob() && !kind.is_nested()).then_some(kind)
}

fn ordered_as(kind: &DataType) -> DataType {
    match kind {
        DataType::Dictionary(_, values) => ordered_as(values),
        DataType::Float16 => DataType::Float32,
        other => other.clone(),
    }
}

/// Plain values, of floats 0 and -0 as one and every NaN as one: the same rule as for exact values.
fn one_zero(column: &ArrayRef) -> std::result::Result<ArrayRef, arrow_schema::ArrowError> {
    fn floats<T: ArrowPrimitiveType>(column: &ArrayRef, zero: T::Native, nan: T::Native) -> ArrayRef
    where
        T::Native: PartialOrd,
    {
        let one = |f: T::Native| match f.partial_cmp(&f) {
            None => nan,
            Some(_) if f == zero => zero,
            Some(_) => f,
        };
        Arc::new(column.as_primitive::<T>().unary::<_, T>(one))
    }
    let column = &arrow_cast::cast(column, &ordered_as(column.data_type()))?;
    Ok(match column.data_type() {
        DataType::Float32 => floats::<Float32Type>(column, 0.0, f32::NAN),
        DataType::Float64 => floats::<Float64Type>(column, 0.0, f64::NAN),
        _ => column.clone(),
    })
}

/// Where a row lies; ordered as the snapshot orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The fragment's place among the base's, its id, and the offset in it.
    Base(u32, u32, u32),
    /// The generation's place among the pending ones, and the offset in it.
    Pending(u32, u32),
}

/// The first rows of all that went by.
struct Top {
    most: usize,
    seen: u64,
    bytes: u64,
    counted: u64,
    heap: BinaryHeap<(Box<[u8]>, Place)>,
}

impl Top {
    fn new(most: usize) -> Self {
        Self {
            most,
            seen: 0,
            bytes: 0,
            counted: 0,
            heap: BinaryHeap::new(),
        }
    }

    fn add(&mut self, key: &[u8], place: Place) {
        self.seen += 1;
        if self.heap.len() >= self.most {
            let later = |(last, at): &(Box<[u8]>, Place)| (key, place) >= (last.as_ref(), *at);
            if self.heap.peek().is_none_or(later) {
                return;
            }
            if let Some((last, _)) = self.heap.pop() {
                self.bytes -= Self::weight(&last);
            }
        }
        self.bytes += Self::weight(key);
        self.heap.push((key.into(), place));
    }

    fn weight(key: &[u8]) -> u64 {
        key.len() as u64 + 40
    }

    /// Counts what is held within a page's bounds.
    fn within(&mut self, budget: &mut Budget) -> std::result::Result<(), ReadError> {
        let more = self.bytes.saturating_sub(self.counted);
        if more > 0 {
            budget.places(more.div_ceil(8))?;
            self.counted += more;
        }
        Ok(())
    }
}

/// The rows of a page, and for each its place among those that are picked.
pub(super) async fn pick(
    table: &Table,
    view: &View,
    filter: &Filter,
    order: &Order,
    ask: &Ask,
    budget: &mut Budget,
) -> std::result::Result<(Picked, Vec<usize>), ReadError> {
    let end = ask.offset.saturating_add(ask.limit as u64);
    if end > ORDERED_ROWS {
        return Err(ReadError::TooDeep {
            limit: ORDERED_ROWS,
        });
    }
    let mut top = Top::new(end as usize);
    of_base(view, filter, order, &mut top, budget).await?;
    of_generations(table, view, filter, order, &mut top, budget).await?;
    let more = top.seen > end;
    let rows = top.heap.into_sorted_vec();
    let places: Vec<Place> = rows
        .into_iter()
        .skip(ask.offset as usize)
        .map(|(_, place)| place)
        .collect();
    let mut sorted: Vec<(Place, usize)> = places.into_iter().zip(0..).collect();
    sorted.sort_unstable();
    let mut picked = Picked {
        more,
        ..Default::default()
    };
    let mut pending: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut sequence = vec![0; sorted.len()];
    for (at, (place, nth)) in sorted.iter().enumerate() {
        sequence[*nth] = at;
        match place {
            Place::Base(_, fragment, offset) => {
                let address = u64::from(*fragment) << 32 | u64::from(*offset);
                picked.base.push(address);
            }
            Place::Pending(part, offset) => pending.entry(*part).or_default().push(*offset),
        }
    }
    if let Some(chosen) = &view.chosen {
        let parts = pending.into_iter();
        picked.pending = parts
            .map(|(part, offsets)| chosen.parts[part as usize].wanted(offsets))
            .collect();
    }
    Ok((picked, sequence))
}

/// Rows that were read in the order in which they lie, in the order of the page: slices, nothing is copied.
pub(super) fn arrange(batches: &[RecordBatch], sequence: &[usize]) -> Vec<RecordBatch> {
    let each = batches.iter().enumerate();
    let rows: Vec<(usize, usize)> = each
        .flat_map(|(at, b)| (0..b.num_rows()).map(move |row| (at, row)))
        .collect();
    let mut out = vec![];
    let mut run: Option<(usize, usize, usize)> = None;
    for at in sequence {
        let Some((batch, row)) = rows.get(*at).copied() else {
            continue;
        };
        run = match run {
            Some((b, start, length)) if b == batch && start + length == row => {
                Some((b, start, length + 1))
            }
            before => {
                out.extend(before.map(|(b, start, length)| batches[b].slice(start, length)));
                Some((batch, row, 1))
            }
        };
    }
    out.extend(run.map(|(b, start, length)| batches[b].slice(start, length)));
    out
}

async fn of_base(
    view: &View,
    filter: &Filter,
    order: &Order,
    top: &mut Top,
    budget: &mut Budget,
) -> std::result::Result<(), ReadError> {
    let Some(shown) = &view.fragments else {
        return Ok(());
    };
    let failed = |e| Error::lance("order the base", e);
    let all = view.base.fragments();
    let ranks = all.iter().zip(0u32..).map(|(f, at)| (f.id as u32, at));
    let ranks: BTreeMap<u32, u32> = ranks.collect();
    let columns: Vec<&str> = order.columns.iter().map(|(n, _, _)| n.as_str()).collect();
    let mut scan = view.base.scan();
    scan.project(&columns).map_err(failed)?;
    scan.with_row_address().scan_in_order(false);
    if let Some(wanted) = filter.expression()? {
        scan.use_scalar_index(filter.by_index()).filter_expr(wanted);
    }
    let converter = order.converter()?;
    let mut rows = scan.try_into_stream().await.map_err(failed)?;
    while let Some(batch) = rows.try_next().await.map_err(failed)? {
        let addresses = batch
            .column_by_name("_rowaddr")
            .ok_or_else(|| Error::Bug("a scan without row addresses".into()))?;
        let keys = order.keys(&converter, &batch)?;
        let addresses = addresses.as_primitive::<UInt64Type>().values();
        for (key, address) in keys.iter().zip(addresses) {
            let (fragment, offset) = ((address >> 32) as u32, *address as u32);
            if let Some(rank) = ranks.get(&fragment).filter(|_| shown.shows(*address)) {
                top.add(key.data(), Place::Base(*rank, fragment, offset));
            }
        }
        top.within(budget)?;
    }
    Ok(())
}

async fn of_generations(
    table: &Table,
    view: &View,
    filter: &Filter,
    order: &Order,
    top: &mut Top,
    budget: &mut Budget,
) -> std::result::Result<(), ReadError> {
    let Some(chosen) = &view.chosen else {
        return Ok(());
    };
    let looks: Vec<_> = chosen
        .parts
        .iter()
        .zip(0u32..)
        .filter(|(live, _)| !live.rows.is_empty())
        .map(|(live, at)| {
            let most = top.most;
            let base = &view.base;
            async move {
                // The first of each are enough to find the first of all.
                let mut own = Top::new(most);
                let add = |key: &[u8], offset| own.add(key, Place::Pending(at, offset));
                of_generation(table, base, live, filter, order, add).await?;
                Ok::<_, Error>(own)
            }
            .boxed()
        })
        .collect();
    let mut looks = stream::iter(looks).buffer_unordered(AT_ONCE);
    while let Some(own) = looks.try_next().await? {
        let left = own.seen - own.heap.len() as u64;
        for (key, place) in own.heap {
            top.add(&key, place);
        }
        top.seen += left;
        top.within(budget)?;
    }
    Ok(())
}

async fn of_generation(
    table: &Table,
    base: &Arc<Dataset>,
    live: &Live,
    filter: &Filter,
    order: &Order,
    mut each: impl FnMut(&[u8], u32),
) -> Result<()> {
    let converter = order.converter()?;
    let (generation, facts) = (&live.keys.generation, &live.keys.facts);
    let open = OpenGeneration::open(base, table.store(), generation, facts, Fetch::Whole).await?;
    let keys = key_fields(base.schema());
    let mut ids = filter.ids();
    ids.extend(order.columns.iter().map(|(_, id, _)| *id));
    ids.extend(keys.iter().map(|k| k.1));
    let mapping = Mapping::new(&open, &part(base.schema(), &ids), &keys)?;
    let mut rows = open.rows(Some(&mapping.columns()), ROWS, BYTES).await?;
    while let Some((batch, offsets)) = rows.try_next().await? {
        let (batch, offsets) = living(live, batch, offsets)?;
        let batch = mapping.apply(batch)?;
        let passes = filter.passes(&batch)?;
        let keys = order.keys(&converter, &batch)?;
        for ((key, offset), passes) in keys.iter().zip(offsets.values()).zip(passes) {
            if passes {
                each(key.data(), *offset);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow_array::{Float64Array, Int64Array};
    use arrow_schema::{Field as ArrowField, Schema as ArrowSchema};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_zeros_and_every_nan_are_one() {
        let column: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN]));
        let one = one_zero(&column).unwrap();
        let bits: Vec<u64> = one
            .as_primitive::<Float64Type>()
            .values()
            .iter()
            .map(|f| f.to_bits())
            .collect();
        assert_eq!(bits, [0, 0, f64::NAN.to_bits(), f64::NAN.to_bits()]);
    }

    fn batch(values: &[i64]) -> RecordBatch {
        let schema = ArrowSchema::new(vec![ArrowField::new("v", DataType::Int64, false)]);
        RecordBatch::try_new(
            Arc::new(schema),
            vec![Arc::new(Int64Array::from(values.to_vec()))],
        )
        .unwrap()
    }

    proptest! {
        #[test]
        fn the_first_of_many_are_those_of_a_sort(keys in prop::collection::vec(0u8..20, 0..80), most in 0usize..30) {
            let mut top = Top::new(most);
            for (key, at) in keys.iter().zip(0..) {
                top.add(&[*key], Place::Pending(0, at));
            }
            let mut sorted: Vec<(u8, u32)> = keys.iter().copied().zip(0..).collect();
            sorted.sort();
            sorted.truncate(most);
            let held = top.heap.into_sorted_vec();
            let held: Vec<(u8, u32)> = held.into_iter().map(|(k, p)| match p {
                Place::Pending(_, at) => (k[0], at),
                Place::Base(..) => (k[0], u32::MAX),
            }).collect();
            prop_assert_eq!(held, sorted);
            prop_assert_eq!(top.seen, keys.len() as u64);
        }

        #[test]
        fn rows_are_arranged_as_the_sequence_says(sizes in prop::collection::vec(0usize..5, 1..6), seed in any::<u64>()) {
            let rows: usize = sizes.iter().sum();
            let mut next = 0;
            let batches: Vec<_> = sizes.iter().map(|n| {
                let values: Vec<i64> = (next..next + *n as i64).collect();
                next += *n as i64;
                batch(&values)
            }).collect();
            let mut sequence: Vec<usize> = (0..rows).collect();
            sequence.sort_by_key(|n| (*n as u64 + 1).wrapping_mul(seed | 1));
            let got: Vec<usize> = arrange(&batches, &sequence).iter().flat_map(|b| {
                b.column(0).as_primitive::<arrow_array::types::Int64Type>().values().iter().map(|v| *v as usize).collect::<Vec<_>>()
            }).collect();
            prop_assert_eq!(got, sequence);
        }
    }
}
