//! Who goes first, and who fits.
//!
//! Lives here: the order between tables and the admission into slots and bytes. May use: this room's views and work.
//! Must never come in: what a table needs; candidates arrive complete.
//! The order: earliest deadline first; among those equally urgent the namespace that got least, then the cheaper merge
//! per generation removed. All that are overdue are equally urgent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use super::clock::after;
use super::views::{Budgets, Namespace, Running, Served, TableId, TableView};
use super::work::{Kind, Work};

/// Deadlines in the same span of this length are equally urgent.
pub const EQUALLY_URGENT: Duration = Duration::from_secs(2);
/// Work that lacks bytes lets smaller work overtake it for this long; then nothing that comes after it starts until it
/// has its bytes.
pub const OVERTAKEN_FOR: Duration = Duration::from_secs(15);

/// Work that could start now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The work.
    pub work: Work,
    /// When it becomes overdue.
    pub urgent_by: Timestamp,
    /// Whether it comes after everything else until it is overdue.
    pub yields: bool,
    /// Predicted nanoseconds per generation removed, of a merge; else 0.
    pub cost: u128,
}

/// Why a candidate did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// All slots are taken.
    Slots,
    /// Too few bytes are free.
    Bytes {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Other work on the same table was admitted before it.
    Permit,
}

/// What was decided.
#[derive(Debug, Default)]
pub struct Admission {
    /// Work to start, in order.
    pub start: Vec<Work>,
    /// Candidates that did not start.
    pub refused: BTreeMap<(TableId, Kind), Refusal>,
    /// When the order of those that wait changes next.
    pub changes_at: Option<Timestamp>,
}

/// What running work holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InUse {
    /// Bytes.
    pub bytes: u64,
    /// Slots for merges and upkeep.
    pub slots: usize,
    /// Those of them that upkeep holds.
    pub upkeep: usize,
    /// Slots for drains and reclaims.
    pub light: usize,
}

impl InUse {
    /// What runs on `tables` and elsewhere.
    pub fn of(tables: &[&TableView], budgets: &Budgets) -> Self {
        let mut sum = Self::default();
        let listed = tables.iter().flat_map(|table| &table.running);
        for Running { kind, bytes, .. } in listed.chain(&budgets.elsewhere) {
            sum.add(*kind, *bytes);
        }
        sum
    }

    fn add(&mut self, kind: Kind, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.slots += usize::from(kind.commits());
        self.upkeep += usize::from(kind.is_upkeep());
        self.light += usize::from(!kind.commits());
    }

    /// Whether `work` fits; one larger than the whole budget does when no other work holds bytes.
    fn refuses(&self, work: &Work, budgets: &Budgets) -> Option<Refusal> {
        let kind = work.task.kind();
        if !kind.commits() {
            return (self.light >= budgets.light_slots).then_some(Refusal::Slots);
        }
        // Half of the slots, but at least one, may hold upkeep: the others are always there for merges.
        let upkeep_full = kind.is_upkeep() && self.upkeep >= (budgets.slots / 2).max(1);
        if self.slots >= budgets.slots || upkeep_full {
            return Some(Refusal::Slots);
        }
        let free = budgets.bytes.saturating_sub(self.bytes);
        let alone = self.bytes == 0;
        (work.bytes > free && !alone).then_some(Refusal::Bytes {
            needed: work.bytes,
            free,
        })
    }
}

/// How urgent a candidate is. The order of the variants is the order of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    Overdue,
    Span(i64),
    Yielding,
}

/// The span of [`EQUALLY_URGENT`] that `at` falls into.
fn span_of(at: Timestamp) -> i64 {
    at.as_second()
        .div_euclid(EQUALLY_URGENT.as_secs().cast_signed())
}

fn urgency(candidate: &Candidate, now: Timestamp) -> Urgency {
    if candidate.urgent_by <= now {
        Urgency::Overdue
    } else if candidate.yields {
        Urgency::Yielding
    } else {
        Urgency::Span(span_of(candidate.urgent_by))
    }
}

/// The order within one namespace and one urgency.
type Rank = (i64, u128, Timestamp, TableId, Kind);

fn rank(candidate: &Candidate) -> Rank {
    (
        span_of(candidate.urgent_by),
        candidate.cost,
        candidate.urgent_by,
        candidate.work.table.clone(),
        candidate.work.task.kind(),
    )
}

/// Starts what fits, in order. `in_use` is what runs already.
pub fn admit(
    candidates: Vec<Candidate>,
    budgets: &Budgets,
    in_use: InUse,
    now: Timestamp,
) -> Admission {
    let mut door = Door {
        budgets,
        in_use,
        now,
        served: budgets.served.clone(),
        committed: BTreeSet::new(),
        closed: false,
        admission: Admission::default(),
    };
    let mut by_urgency: BTreeMap<Urgency, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        let urgency = urgency(&candidate, now);
        by_urgency.entry(urgency).or_default().push(candidate);
    }
    for (_, equals) in by_urgency {
        door.take_turns(equals);
    }
    door.admission
}

struct Door<'a> {
    budgets: &'a Budgets,
    in_use: InUse,
    now: Timestamp,
    served: Served,
    /// Tables whose commit permit was given away here.
    committed: BTreeSet<TableId>,
    /// Whether bytes are kept for work that has been overtaken for long enough.
    closed: bool,
    admission: Admission,
}

impl Door<'_> {
    /// Lets equally urgent candidates in, the namespace that got least always first.
    fn take_turns(&mut self, mut equals: Vec<Candidate>) {
        equals.sort_by_cached_key(rank);
        let mut lines: BTreeMap<Namespace, VecDeque<Candidate>> = BTreeMap::new();
        for candidate in equals {
            let line = lines.entry(candidate.work.namespace.clone()).or_default();
            line.push_back(candidate);
        }
        let mut turns: BTreeSet<(u64, Rank, Namespace)> = lines
            .iter()
            .filter_map(|(namespace, line)| self.turn(namespace, line))
            .collect();
        while let Some((_, _, namespace)) = turns.pop_first() {
            let Some(line) = lines.get_mut(&namespace) else {
                continue;
            };
            if let Some(candidate) = line.pop_front() {
                self.decide(candidate);
            }
            turns.extend(self.turn(&namespace, line));
        }
    }

    fn turn(
        &self,
        namespace: &Namespace,
        line: &VecDeque<Candidate>,
    ) -> Option<(u64, Rank, Namespace)> {
        let first = line.front()?;
        Some((self.served.of(namespace), rank(first), namespace.clone()))
    }

    fn decide(&mut self, candidate: Candidate) {
        let Candidate {
            work, urgent_by, ..
        } = candidate;
        let kind = work.task.kind();
        if let Some(refusal) = self.refusal(&work) {
            if matches!(refusal, Refusal::Bytes { .. }) {
                self.closed |= after(work.due, OVERTAKEN_FOR) <= self.now;
            }
            if urgent_by > self.now && refusal != Refusal::Permit {
                let changes = &mut self.admission.changes_at;
                *changes = Some(changes.map_or(urgent_by, |at| at.min(urgent_by)));
            }
            let key = (work.table, kind);
            self.admission.refused.insert(key, refusal);
            return;
        }
        self.in_use.add(kind, work.bytes);
        if kind.commits() {
            self.served.charge(&work.namespace, work.bytes);
            self.committed.insert(work.table.clone());
        }
        self.admission.start.push(work);
    }

    fn refusal(&self, work: &Work) -> Option<Refusal> {
        let commits = work.task.kind().commits();
        if commits && self.committed.contains(&work.table) {
            return Some(Refusal::Permit);
        }
        if commits && self.closed {
            return Some(Refusal::Bytes {
                needed: work.bytes,
                free: self.budgets.bytes.saturating_sub(self.in_use.bytes),
            });
        }
        self.in_use.refuses(work, self.budgets)
    }
}
