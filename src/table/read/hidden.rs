//! Which base rows a reader sees, and where the n-th of them lies.
//!
//! Lives here: `Hidden` (addresses of base rows whose key a pending generation holds) and `Fragments`, which turns
//! positions into addresses by counting. May use: Lance's fragments. Never: rows, or pending generations themselves.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lance::Dataset;
use lance_table::format::Fragment;
use roaring::{RoaringBitmap, RoaringTreemap};

use super::super::error::{Error, Result};

/// Base rows that are not shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Hidden {
    pub addresses: RoaringTreemap,
}

impl Hidden {
    /// None.
    pub fn nothing() -> Self {
        Self::default()
    }
}

/// The fragments of one base version, with the rows that a reader sees of each.
#[derive(Debug)]
pub(super) struct Fragments {
    parts: Vec<Part>,
    /// Where each fragment's part is, by its id.
    at: HashMap<u32, usize>,
}

#[derive(Debug)]
struct Part {
    id: u32,
    /// Rows shown in the parts before this one.
    before: u64,
    /// Rows shown in this one.
    rows: u64,
    hidden: RoaringBitmap,
}

/// Fragments whose size is asked for at once, where the manifest does not say it.
const AT_ONCE: usize = 16;

async fn count(base: &Dataset, fragment: &Fragment) -> Result<(u32, u64)> {
    let id = fragment.id as u32;
    if let Some(rows) = fragment.num_rows() {
        return Ok((id, rows as u64));
    }
    let rows = match base.get_fragment(id as usize) {
        Some(fragment) => fragment.count_rows(None).await,
        None => Ok(0),
    };
    Ok((
        id,
        rows.map_err(|e| Error::lance("count a fragment's rows", e))? as u64,
    ))
}

impl Fragments {
    /// Counts the rows of each fragment: from the manifest, where it says so.
    pub async fn of(base: &Dataset, hidden: &Hidden) -> Result<Self> {
        let counts: Vec<_> = base
            .fragments()
            .iter()
            .map(|fragment| count(base, fragment).boxed())
            .collect();
        let counted: Vec<_> = stream::iter(counts).buffered(AT_ONCE).try_collect().await?;
        let mut by_fragment: BTreeMap<u32, &RoaringBitmap> = hidden.addresses.bitmaps().collect();
        let mut before = 0;
        let mut parts = Vec::with_capacity(counted.len());
        for (id, rows) in counted {
            let hidden = by_fragment.remove(&id).cloned().unwrap_or_default();
            let rows = rows.saturating_sub(hidden.len());
            parts.push(Part {
                id,
                before,
                rows,
                hidden,
            });
            before += rows;
        }
        let at = parts.iter().enumerate().map(|(at, p)| (p.id, at)).collect();
        Ok(Self { parts, at })
    }

    /// Rows shown in all.
    pub fn rows(&self) -> u64 {
        self.parts.last().map_or(0, |p| p.before + p.rows)
    }

    /// Which of these rows of a fragment are shown, their deletion apart.
    pub fn shown(&self, fragment: u32, rows: &RoaringBitmap) -> RoaringBitmap {
        match self.at.get(&fragment) {
            Some(at) => rows - &self.parts[*at].hidden,
            None => RoaringBitmap::new(),
        }
    }

    /// Whether the row at an address is shown, its deletion apart.
    pub fn shows(&self, address: u64) -> bool {
        let part = self.at.get(&((address >> 32) as u32));
        part.is_some_and(|at| !self.parts[*at].hidden.contains(address as u32))
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.parts
            .iter()
            .map(|p| 80 + p.hidden.serialized_size() as u64)
            .sum()
    }

    /// The addresses of the rows shown at these positions.
    pub async fn addresses(&self, base: &Dataset, wanted: Range<u64>) -> Result<Vec<u64>> {
        let mut out = Vec::with_capacity((wanted.end - wanted.start) as usize);
        let first = self
            .parts
            .partition_point(|p| p.before + p.rows <= wanted.start);
        for part in &self.parts[first..] {
            if part.before >= wanted.end {
                break;
            }
            let from = wanted.start.max(part.before) - part.before;
            let to = wanted.end.min(part.before + part.rows) - part.before;
            if from >= to {
                continue;
            }
            let unseen = part.unseen(base).await?;
            let offsets = shown(&unseen, from as u32, (to - from) as usize);
            out.extend(offsets.map(|offset| u64::from(part.id) << 32 | u64::from(offset)));
        }
        Ok(out)
    }
}

impl Part {
    /// Offsets that are deleted or hidden.
    async fn unseen(&self, base: &Dataset) -> Result<RoaringBitmap> {
        let fragment = base.get_fragment(self.id as usize).ok_or_else(|| {
            Error::Bug(format!("fragment {} is not in its base version", self.id))
        })?;
        let deleted = fragment
            .get_deletion_vector()
            .await
            .map_err(|e| Error::lance("read a deletion file", e))?;
        let deleted: Option<Arc<_>> = deleted.filter(|d| !d.is_empty());
        Ok(match deleted {
            Some(deleted) => &self.hidden | RoaringBitmap::from(deleted.as_ref()),
            None => self.hidden.clone(),
        })
    }
}

/// The first `count` offsets after the first `skip` of those that are not in `unseen`.
fn shown(unseen: &RoaringBitmap, skip: u32, count: usize) -> impl Iterator<Item = u32> + '_ {
    // Of the offsets up to x, x + 1 - rank(x) are seen: the first x for which that is more than `skip` is looked for.
    let (mut low, mut high) = (u64::from(skip), u64::from(skip) + unseen.len());
    while low < high {
        let middle = (low + high) / 2;
        let offset = u32::try_from(middle).unwrap_or(u32::MAX);
        if middle + 1 - unseen.rank(offset) > u64::from(skip) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    (low..=u64::from(u32::MAX))
        .map(|offset| offset as u32)
        .filter(|offset| !unseen.contains(*offset))
        .take(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_nth_shown_offset_is_found_as_by_walking(
            unseen in prop::collection::btree_set(0u32..200, 0..150),
            skip in 0u32..100,
            count in 0usize..20,
        ) {
            let walked: Vec<u32> = (0u32..).filter(|o| !unseen.contains(o)).skip(skip as usize).take(count).collect();
            let bitmap: RoaringBitmap = unseen.into_iter().collect();
            prop_assert_eq!(shown(&bitmap, skip, count).collect::<Vec<_>>(), walked);
        }
    }
}
