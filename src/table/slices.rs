//! What of a table's fragments is worth rewriting, in pieces small enough for one slice.
//!
//! Lives here: `Piece` and `pieces`, pure: runs of neighbours that Lance's planner found are cut so that no fragment is
//! rewritten for the sake of a few small ones, and none that was found unreadable together is tried again. May use: plain
//! numbers. Never: I/O, or Lance's planner itself (`compact`).

use std::collections::BTreeSet;

/// One fragment, as far as cutting needs it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Piece {
    pub id: u64,
    /// Live rows.
    pub rows: u64,
    /// Bytes of its data files.
    pub bytes: u64,
    /// Deleted rows, as a share of all.
    pub deleted: f32,
}

/// How runs are cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Fewer neighbours than this are left alone.
    pub min_fragments: usize,
    /// A fragment with a larger share of deleted rows is rewritten whatever its neighbours are.
    pub deleted_share: f32,
    /// Bytes that one piece of work may read.
    pub bytes: u64,
}

/// The most groups that are remembered as unreadable together.
const REMEMBERED: usize = 64;

/// Groups of fragments whose rows cannot be read from one file.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    groups: Vec<BTreeSet<u64>>,
}

impl Unreadable {
    pub fn remember(&mut self, ids: impl IntoIterator<Item = u64>) {
        let group: BTreeSet<u64> = ids.into_iter().collect();
        // A smaller group says more.
        self.groups.retain(|g| !g.is_superset(&group));
        if !self.is_full() {
            self.groups.push(group);
        }
    }

    /// Whether so many groups were unreadable that trying others is a waste.
    pub fn is_full(&self) -> bool {
        self.groups.len() >= REMEMBERED
    }

    fn holds(&self, run: &[Piece]) -> bool {
        let ids: BTreeSet<u64> = run.iter().map(|p| p.id).collect();
        self.groups.iter().any(|g| g.is_subset(&ids))
    }
}

/// The pieces of a run of neighbours that are worth rewriting, each to become as few files as Lance makes of it.
pub(crate) fn pieces(run: &[Piece], cut: &Cut, unreadable: &Unreadable) -> Vec<Vec<Piece>> {
    let mut out = Vec::new();
    worth(run, cut, &mut out);
    let mut fitting = Vec::new();
    for run in out {
        bounded(run, cut, &mut fitting);
    }
    let mut readable = Vec::new();
    for run in fitting {
        apart(run, unreadable, &mut readable);
    }
    readable.retain(|run| run.len() > 1 || run.iter().any(|p| p.deleted > cut.deleted_share));
    readable
}

/// A run is worth its cost where no fragment outweighs all others: then each row is rewritten only when what it lies with
/// has at least doubled.
fn worth<'a>(run: &'a [Piece], cut: &Cut, out: &mut Vec<&'a [Piece]>) {
    let largest = run.iter().enumerate().max_by_key(|(_, p)| p.rows);
    let Some((at, largest)) = largest else {
        return;
    };
    let rest: u64 = run.iter().map(|p| p.rows).sum::<u64>() - largest.rows;
    let enough = run.len() >= cut.min_fragments.max(2);
    if enough && (largest.rows <= rest || largest.deleted > cut.deleted_share) {
        out.push(run);
        return;
    }
    if !enough {
        let holed = run
            .iter()
            .enumerate()
            .filter(|(_, p)| p.deleted > cut.deleted_share);
        out.extend(holed.map(|(at, _)| &run[at..=at]));
        return;
    }
    worth(&run[..at], cut, out);
    worth(&run[at + 1..], cut, out);
}

/// Cuts a run where it would read more bytes than a piece may.
fn bounded<'a>(run: &'a [Piece], cut: &Cut, out: &mut Vec<&'a [Piece]>) {
    let (mut from, mut bytes) = (0, 0u64);
    for (at, piece) in run.iter().enumerate() {
        if bytes.saturating_add(piece.bytes) > cut.bytes && at - from > 1 {
            out.push(&run[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes = bytes.saturating_add(piece.bytes);
    }
    out.push(&run[from..]);
}

/// Halves a run that holds a group that was found unreadable, until it does not.
fn apart(run: &[Piece], unreadable: &Unreadable, out: &mut Vec<Vec<Piece>>) {
    if run.len() > 1 && unreadable.holds(run) {
        let (left, right) = run.split_at(run.len() / 2);
        apart(left, unreadable, out);
        apart(right, unreadable, out);
    } else {
        out.push(run.to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut {
        min_fragments: 3,
        deleted_share: 0.2,
        bytes: 1000,
    };

    fn run(rows: &[u64]) -> Vec<Piece> {
        let piece = |(at, rows): (usize, &u64)| Piece {
            id: at as u64,
            rows: *rows,
            bytes: *rows,
            deleted: 0.0,
        };
        rows.iter().enumerate().map(piece).collect()
    }

    fn ids(run: &[Piece], cut: &Cut, unreadable: &Unreadable) -> Vec<Vec<u64>> {
        let ids = |piece: Vec<Piece>| piece.iter().map(|p| p.id).collect();
        pieces(run, cut, unreadable).into_iter().map(ids).collect()
    }

    #[test]
    fn small_neighbours_are_rewritten_together() {
        assert_eq!(
            ids(&run(&[5, 5, 5]), &CUT, &Unreadable::default()),
            [[0, 1, 2]]
        );
    }

    #[test]
    fn a_large_fragment_is_not_rewritten_for_a_few_small_ones() {
        let cut = ids(&run(&[500, 5, 5, 5, 5]), &CUT, &Unreadable::default());
        assert_eq!(cut, [[1, 2, 3, 4]]);
        assert!(ids(&run(&[500, 5, 5]), &CUT, &Unreadable::default()).is_empty());
    }

    #[test]
    fn a_fragment_of_mostly_deleted_rows_goes_alone_if_need_be() {
        let mut holed = run(&[500, 5]);
        holed[0].deleted = 0.5;
        assert_eq!(ids(&holed, &CUT, &Unreadable::default()), [[0]]);
    }

    #[test]
    fn a_piece_reads_no_more_bytes_than_it_may() {
        let cut = ids(&run(&[400, 400, 400, 400]), &CUT, &Unreadable::default());
        assert_eq!(cut, [[0, 1], [2, 3]]);
    }

    #[test]
    fn fragments_that_were_unreadable_together_are_not_tried_together_again() {
        let mut unreadable = Unreadable::default();
        unreadable.remember([1, 2]);
        // Halves: 0..3 holds the group, so it is halved again.
        let cut = ids(&run(&[5, 5, 5, 5, 5, 5]), &CUT, &unreadable);
        assert_eq!(cut, [[3, 4, 5]]);
        assert!(ids(&run(&[5, 5, 5]), &CUT, &unreadable).is_empty());
    }

    #[test]
    fn what_is_remembered_of_unreadable_groups_is_bounded() {
        let mut unreadable = Unreadable::default();
        for at in 0..1000 {
            unreadable.remember([at, at + 1]);
        }
        assert_eq!(unreadable.groups.len(), REMEMBERED);
        assert!(unreadable.is_full());
    }
}
