//! The stable row ids that rows of a merge take over from the base rows that they replace.
//!
//! Lives here: `RowIds`, four bytes for each row of a generation that updates any (eight where ids have grown past that),
//! and handing them to the fragments written, one fragment at a time. May use: Lance's sequences. Never: finding them.

use lance_table::format::{Fragment, RowIdMeta};
use lance_table::rowids::{RowIdSequence, write_row_ids};
use roaring::RoaringBitmap;

use super::error::{Error, Result};
use super::keys::Place;
use super::newest::Live;

/// Row ids by the place of the row that takes each over.
#[derive(Default)]
pub(crate) struct RowIds(Vec<Ids>);

/// Those of one generation, by offset; the highest value where there is none.
enum Ids {
    Short(Vec<u32>),
    Long(Vec<u64>),
}

impl Default for Ids {
    fn default() -> Self {
        Self::Short(vec![])
    }
}

/// Ids that are handed over at a time.
const AT_A_TIME: usize = 1 << 16;

impl RowIds {
    /// What is left of a merge's budget for all else, half of it at least.
    pub fn leave(budget: u64, rows: u64) -> u64 {
        let ids = rows.saturating_mul(size_of::<u32>() as u64);
        budget - ids.min(budget / 2)
    }

    /// Takes note of the id of a base row whose key the row at `place` has, one of `live`. The first one of a key counts.
    pub fn add(&mut self, place: Place, live: &Live, id: u64) {
        let at = place.generation as usize;
        if self.0.len() < live.len() {
            self.0.resize_with(live.len(), Ids::default);
        }
        let offset = place.offset as usize;
        if self.0[at].len() <= offset {
            let highest = live[at].max().unwrap_or(0).max(place.offset);
            self.0[at].grow(highest as usize + 1);
        }
        self.0[at].add(offset, id);
    }

    /// The rows that take over an id.
    pub fn rows(&self, generations: usize) -> Live {
        let of = |ids: &Ids| ids.iter().map(|(offset, _)| offset).collect();
        let mut rows: Live = self.0.iter().map(of).collect();
        rows.resize_with(generations, RoaringBitmap::new);
        rows
    }

    /// Gives the rows of new fragments their ids: oldest generation first, as they were written.
    ///
    /// # Errors
    /// `Bug` where there are not just as many rows.
    pub fn keep(&self, new: &mut [Fragment]) -> Result<()> {
        let mut ids = self.0.iter().rev().flat_map(Ids::iter).map(|(_, id)| id);
        let mut held = Vec::with_capacity(AT_A_TIME);
        for fragment in new {
            let mut left = fragment.physical_rows.unwrap_or(0);
            let mut sequence = RowIdSequence::new();
            while left > 0 {
                held.clear();
                held.extend(ids.by_ref().take(left.min(AT_A_TIME)));
                if held.is_empty() {
                    return Err(Error::Bug("fewer row ids than rows written".into()));
                }
                left -= held.len();
                sequence.extend(RowIdSequence::from(held.as_slice()));
            }
            fragment.row_id_meta = Some(RowIdMeta::Inline(write_row_ids(&sequence).into()));
        }
        match ids.next() {
            None => Ok(()),
            Some(_) => Err(Error::Bug("more row ids than rows written".into())),
        }
    }
}

impl Ids {
    fn len(&self) -> usize {
        match self {
            Self::Short(ids) => ids.len(),
            Self::Long(ids) => ids.len(),
        }
    }

    fn grow(&mut self, to: usize) {
        let more = to - self.len();
        match self {
            Self::Short(ids) => {
                ids.reserve_exact(more);
                ids.resize(to, u32::MAX);
            }
            Self::Long(ids) => {
                ids.reserve_exact(more);
                ids.resize(to, u64::MAX);
            }
        }
    }

    fn add(&mut self, offset: usize, id: u64) {
        match self {
            Self::Short(ids) => match u32::try_from(id) {
                Ok(id) if id < u32::MAX => {
                    if ids[offset] == u32::MAX {
                        ids[offset] = id;
                    }
                }
                _ => {
                    let long = ids.iter().map(|id| match *id {
                        u32::MAX => u64::MAX,
                        id => u64::from(id),
                    });
                    *self = Self::Long(long.collect());
                    self.add(offset, id);
                }
            },
            Self::Long(ids) => {
                if ids[offset] == u64::MAX {
                    ids[offset] = id;
                }
            }
        }
    }

    fn at(&self, offset: usize) -> Option<u64> {
        match self {
            Self::Short(ids) => Some(ids[offset]).filter(|id| *id < u32::MAX).map(u64::from),
            Self::Long(ids) => Some(ids[offset]).filter(|id| *id < u64::MAX),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        (0..self.len()).filter_map(|offset| Some((offset as u32, self.at(offset)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lance_table::rowids::read_row_ids;

    fn place(generation: u32, offset: u32) -> Place {
        Place { generation, offset }
    }

    fn fragment(rows: usize) -> Fragment {
        Fragment {
            physical_rows: Some(rows),
            ..Fragment::new(0)
        }
    }

    fn kept(new: &[Fragment]) -> Vec<Vec<u64>> {
        let of = |f: &Fragment| match &f.row_id_meta {
            Some(RowIdMeta::Inline(ids)) => read_row_ids(ids).unwrap().iter().collect(),
            _ => vec![],
        };
        new.iter().map(of).collect()
    }

    #[test]
    fn ids_go_to_the_rows_as_they_are_written_however_they_were_found() {
        let live: Live = vec![(0..5).collect(), (0..200_000).collect(), [9].into()];
        let mut ids = RowIds::default();
        let large = u64::from(u32::MAX);
        for offset in (0..200_000u32).rev() {
            ids.add(place(1, offset), &live, u64::from(offset * 7 % 200_003));
        }
        for (offset, id) in [(4, 3), (0, large), (2, large + 9), (4, 8)] {
            ids.add(place(0, offset), &live, id);
        }
        let rows = ids.rows(3);
        assert_eq!(rows[0], [0, 2, 4].into());
        assert_eq!(rows[1], live[1]);
        assert!(rows[2].is_empty());
        let mut new = [fragment(150_000), fragment(50_003)];
        ids.keep(&mut new).unwrap();
        let all: Vec<u64> = (0..200_000u64).map(|o| o * 7 % 200_003).collect();
        let all: Vec<u64> = all.into_iter().chain([large, large + 9, 3]).collect();
        assert_eq!(
            kept(&new),
            [all[..150_000].to_vec(), all[150_000..].to_vec()]
        );
        for rows in [150_002, 150_004] {
            let mut new = [fragment(50_000), fragment(rows)];
            assert_eq!(ids.keep(&mut new).unwrap_err().reason(), "Bug");
        }
    }

    #[test]
    fn ids_that_follow_each_other_are_written_as_one_range() {
        let live: Live = vec![(0..300_000).collect()];
        let mut ids = RowIds::default();
        for offset in 0..300_000 {
            ids.add(place(0, offset), &live, 11 + u64::from(offset));
        }
        let mut new = [fragment(300_000)];
        ids.keep(&mut new).unwrap();
        let Some(RowIdMeta::Inline(written)) = &new[0].row_id_meta else {
            panic!("no ids");
        };
        assert!(written.len() < 32, "{}", written.len());
        assert_eq!(kept(&new), [(11..300_011).collect::<Vec<u64>>()]);
    }
}
