//! The room `plan`: what to do next, and why the rest is not done now.
//!
//! Lives here: one pure function, [`plan`], and the data that it takes and gives. May use: plain data, jiff, uuid. Must
//! never come in: Lance, tokio, I/O, a clock, randomness; the same facts always make the same plan.
//! Per table: `triggers` (when to merge), `chunk` (what), `maintenance` (the rest). Between tables: `order`. For
//! people: `reasons`, `why`. For the engine to remember: `backoff`, `predict`.

pub mod backoff;
mod chunk;
mod clock;
mod maintenance;
mod memory;
mod needs;
mod order;
pub mod predict;
mod reasons;
mod triggers;
mod views;
mod why;
mod work;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use jiff::Timestamp;

pub use backoff::Backoff;
pub use chunk::{LEAST_BYTES, UNKNOWN_BYTES};
pub use maintenance::{LEAST_PATIENCE, OPTIMIZE_SPACING, PATIENCE, RECLAIM_ITEMS};
pub use memory::End;
pub use order::{EQUALLY_URGENT, OVERTAKEN_FOR};
pub use predict::History;
pub use reasons::{Reach, Reason};
pub use views::{
    Anomaly, Budgets, Compaction, Failure, Generation, MergedGeneration, Namespace, Observation,
    Past, PendingGeneration, Policy, Reclaimable, Running, Served, ShardView, TableId, TableView,
    Tail, Trouble,
};
pub use work::{
    Kind, LONGEST_WORK, Plan, SHORTEST_WORK, SLICE, ShardPrefix, Task, Trigger, WhyNotNow, Work,
};

use needs::Needs;
use order::InUse;
use why::Decision;

/// What to do now with `tables`, within `budgets`.
///
/// Pure: the order of `tables` does not matter, and their ids are unique. What is started must show as
/// [`TableView::running`] in the next call, and a work's end as [`Past::ended`].
pub fn plan<'a>(
    tables: impl IntoIterator<Item = &'a TableView>,
    budgets: &Budgets,
    now: Timestamp,
) -> Plan {
    let mut tables: Vec<&TableView> = tables.into_iter().collect();
    tables.sort_by(|a, b| a.id.cmp(&b.id));
    let needs: Vec<Needs> = tables.iter().map(|t| Needs::of(t, budgets, now)).collect();
    let candidates = tables
        .iter()
        .zip(&needs)
        .flat_map(|(table, needs)| needs.candidates(table, now))
        .collect();
    let admission = order::admit(candidates, budgets, InUse::of(&tables, budgets), now);
    let starting: BTreeSet<&TableId> = admission
        .start
        .iter()
        .filter(|work| work.task.kind() == Kind::Merge)
        .map(|work| &work.table)
        .collect();
    let why_not_now = tables
        .iter()
        .zip(&needs)
        .map(|(table, needs)| {
            let key = (table.id.clone(), Kind::Merge);
            let decision = Decision {
                merge: needs.merge.as_ref(),
                starts: starting.contains(&table.id),
                refusal: admission.refused.get(&key).copied(),
            };
            (table.id.clone(), why::why(table, decision, now))
        })
        .collect();
    let wake_at = tables
        .iter()
        .zip(&needs)
        .filter_map(|(table, needs)| needs.wake_at(table, now))
        .chain(admission.changes_at)
        .min();
    Plan {
        start: admission.start,
        why_not_now,
        wake_at,
    }
}
