//! The base rows that a chunk's keys replace or delete.
//!
//! Lives here: `Found` and the two ways to it, one scan of the base's key columns, or the key's BTree where few keys meet
//! many rows (Lance scans the fragments outside the index's bitmap by itself). May use: Lance's scanner. Never: rows'
//! other columns, or writing.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Expr, col, lit};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::index::DatasetIndexExt;
use roaring::RoaringTreemap;
use tokio::sync::mpsc;

use super::error::{Error, Result};
use super::keys::{KeyCodec, KeySet, Place};
use super::newest::Live;
use super::rowids::RowIds;

/// What was found in the base table.
#[derive(Default)]
pub(crate) struct Found {
    /// Row addresses to delete: rows whose key the chunk writes again or deletes.
    pub addresses: RoaringTreemap,
    /// Tables with stable row ids: the ids that live rows of the chunk take over.
    pub row_ids: RowIds,
}

/// Rows of a key batch; small keys make small batches.
const BATCH_ROWS: usize = 8192;
/// An index look-up asks for at most this many keys at a time.
const KEYS_A_QUERY: usize = 4096;
/// The index is asked where the base has this many times as many rows as there are keys.
const INDEX_FACTOR: u64 = 50;

/// The base whose rows are looked for.
#[derive(Clone, Copy)]
pub(crate) struct Within<'a> {
    pub base: &'a Arc<Dataset>,
    /// Its key columns.
    pub keys: &'a [(String, i32)],
    /// Bytes that the merge may hold.
    pub budget: u64,
}

/// Adds to `found` the base rows that hold a key of `set`.
pub(crate) async fn find(
    within: Within<'_>,
    codec: &KeyCodec,
    set: &KeySet,
    live: &Live,
    found: &mut Found,
    ahead: Option<Ahead>,
) -> Result<()> {
    let Within { base, keys, .. } = within;
    if set.len() == 0 || rows_of(base) == 0 {
        return Ok(());
    }
    let mut search = Search {
        base,
        keys,
        codec,
        set,
        live,
        found,
    };
    if let Some(ahead) = ahead {
        return search.look_through(ahead.0).await;
    }
    if by_index(base, keys, set.len() as u64).await? {
        let positions: Vec<u32> = (0..set.len() as u32).collect();
        for positions in positions.chunks(KEYS_A_QUERY) {
            let wanted = codec
                .decode(positions.iter().map(|at| set.key(*at)))
                .map_err(broken)?;
            let values = (0..wanted[0].len()).map(|at| ScalarValue::try_from_array(&wanted[0], at));
            let values = values.map(|v| v.map(lit)).collect::<Result<Vec<Expr>, _>>();
            let values = values.map_err(|e| Error::Bug(format!("a key is no literal: {e}")))?;
            let wanted = col(quoted(&keys[0].0)).in_list(values, false);
            search
                .look_through(scan(within, Some(wanted)).await?)
                .await?;
        }
        return Ok(());
    }
    search.look_through(scan(within, None).await?).await
}

fn rows_of(base: &Dataset) -> u64 {
    let rows = base
        .fragments()
        .iter()
        .map(|f| f.num_rows().unwrap_or(usize::MAX >> 8));
    rows.sum::<usize>() as u64
}

/// Whether the key's BTree is asked for so many keys.
async fn by_index(base: &Dataset, keys: &[(String, i32)], wanted: u64) -> Result<bool> {
    let few =
        wanted.saturating_mul(INDEX_FACTOR) < rows_of(base) && wanted <= 8 * KEYS_A_QUERY as u64;
    Ok(few && keys.len() == 1 && has_btree(base, keys[0].1).await?)
}

/// The base's keys, on their way while a chunk's generations are still being read.
pub(crate) struct Ahead(Keys);

/// Batches of key columns and row addresses.
type Keys = BoxStream<'static, Result<RecordBatch>>;

/// Batches that are on their way at most.
const AHEAD: usize = 2;

/// Begins to read the base's keys, unless so many keys will be asked of the index.
pub(crate) async fn ahead(within: Within<'_>, wanted: u64) -> Result<Option<Ahead>> {
    let Within { base, keys, .. } = within;
    if keys.is_empty() || rows_of(base) == 0 || by_index(base, keys, wanted).await? {
        return Ok(None);
    }
    Ok(Some(Ahead(on_its_way(scan(within, None).await?))))
}

/// The same batches, read by a task of their own. One that gives up is an error: half of the keys are no answer.
fn on_its_way(mut rows: Keys) -> Keys {
    let (send, receive) = mpsc::channel(AHEAD);
    // Ends when its receiver is gone.
    let task = tokio::spawn(async move {
        while let Some(batch) = rows.next().await {
            if send.send(batch).await.is_err() {
                break;
            }
        }
    });
    let taken = stream::unfold((receive, Some(task)), |(mut receive, mut task)| async {
        if let Some(batch) = receive.recv().await {
            return Some((batch, (receive, task)));
        }
        let gave_up = task.take()?.await.err()?;
        tracing::error!(error = %gave_up, "the scan of the base's keys gave up");
        let what = "Lance gave up while the base's keys were read".into();
        Some((Err(Error::Corrupt { what }), (receive, None)))
    });
    taken.boxed()
}

/// Scans the base's key columns with their row addresses, and row ids where those are stable.
async fn scan(within: Within<'_>, filter: Option<Expr>) -> Result<Keys> {
    let Within { base, keys, budget } = within;
    const DOING: &str = "scan the base's keys";
    let names: Vec<&str> = keys.iter().map(|(name, _)| name.as_str()).collect();
    let mut scan = base.scan();
    scan.project(&names).map_err(|e| Error::lance(DOING, e))?;
    scan.with_row_address()
        .scan_in_order(false)
        .batch_size(BATCH_ROWS)
        .batch_size_bytes((budget / 16).clamp(256 << 10, 4 << 20))
        .io_buffer_size((budget / 4).clamp(4 << 20, 16 << 20));
    scan.fragment_readahead((budget >> 24).clamp(1, 4) as usize)
        .batch_readahead(2);
    if base.manifest().uses_stable_row_ids() {
        scan.with_row_id();
    }
    if let Some(filter) = filter {
        scan.filter_expr(filter);
    }
    let rows = scan
        .try_into_stream()
        .await
        .map_err(|e| Error::lance(DOING, e))?;
    Ok(rows.map_err(|e| Error::lance(DOING, e)).boxed())
}

/// A column reference that keeps case and special characters.
fn quoted(name: &str) -> datafusion::common::Column {
    datafusion::common::Column::from_name(name)
}

fn broken(e: arrow_schema::ArrowError) -> Error {
    Error::Bug(format!("the base's keys cannot be encoded: {e}"))
}

/// Whether a BTree over exactly the key column is there.
async fn has_btree(base: &Dataset, key: i32) -> Result<bool> {
    let indices = base
        .load_indices()
        .await
        .map_err(|e| Error::lance("read the table's indexes", e))?;
    Ok(indices.iter().any(|index| {
        let kind = index
            .index_details
            .as_ref()
            .map(|d| d.type_url.as_str())
            .unwrap_or_default();
        index.fields == [key] && kind.ends_with("BTreeIndexDetails")
    }))
}

struct Search<'a> {
    base: &'a Arc<Dataset>,
    keys: &'a [(String, i32)],
    codec: &'a KeyCodec,
    set: &'a KeySet,
    live: &'a Live,
    found: &'a mut Found,
}

impl Search<'_> {
    async fn look_through(&mut self, mut rows: Keys) -> Result<()> {
        let stable = self.base.manifest().uses_stable_row_ids();
        while let Some(batch) = rows.try_next().await? {
            self.look(&batch, stable)?;
        }
        Ok(())
    }

    fn look(&mut self, batch: &RecordBatch, stable: bool) -> Result<()> {
        let at = |name: &str| {
            batch
                .schema()
                .index_of(name)
                .map_err(|e| Error::Bug(format!("a scan without {name}: {e}")))
        };
        let columns = self
            .keys
            .iter()
            .map(|(name, _)| at(name))
            .collect::<Result<Vec<_>>>()?;
        let keys = self.codec.encode(batch, &columns).map_err(broken)?;
        let addresses = batch.column(at("_rowaddr")?).as_primitive::<UInt64Type>();
        let ids = if stable {
            Some(batch.column(at("_rowid")?).as_primitive::<UInt64Type>())
        } else {
            None
        };
        for row in 0..batch.num_rows() {
            let Some(held) = self.set.position(keys.row(row).as_ref()) else {
                continue;
            };
            self.found.addresses.insert(addresses.value(row));
            if let Some(ids) = ids {
                let Place { generation, offset } = self.set.place(held);
                if self.live[generation as usize].contains(offset) {
                    let place = Place { generation, offset };
                    self.found.row_ids.add(place, self.live, ids.value(row));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> RecordBatch {
        let keys = arrow_array::Int64Array::from(vec![1]);
        RecordBatch::try_from_iter([("id", std::sync::Arc::new(keys) as _)]).unwrap()
    }

    #[tokio::test]
    async fn a_scan_that_panics_half_way_is_an_error_and_no_end() {
        let broken = stream::iter(0..3).map(|n| match n {
            2 => panic!("a broken page"),
            _ => Ok(batch()),
        });
        let read: Vec<_> = on_its_way(broken.boxed()).collect().await;
        let errors: Vec<_> = read
            .iter()
            .map(|b| b.as_ref().err().map(Error::reason))
            .collect();
        assert_eq!(errors, [None, None, Some("Corrupt")]);
        let whole = stream::iter(0..3).map(|_| Ok(batch())).boxed();
        let read: Vec<_> = on_its_way(whole).collect().await;
        assert!(read.len() == 3 && read.iter().all(Result::is_ok));
    }
}
