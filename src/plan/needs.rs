//! What one table needs, and what of it could start.
//!
//! Lives here: the needs of one table side by side, the candidates they make, and when the next of them comes up. May
//! use: this room's triggers, maintenance and order. Must never come in: other tables, slots, bytes.

use std::time::Duration;

use jiff::Timestamp;

use super::backoff::Backoff;
use super::clock;
use super::maintenance::{self, Light, Need, Upkeep};
use super::order::Candidate;
use super::triggers::{self, MergeNeed};
use super::views::{Budgets, TableView};
use super::why;
use super::work::{self, Kind, Task, Trigger, Work};

/// How long a drain or a reclaim is thought to take.
const LIGHT_WORK: Duration = Duration::from_secs(5);

/// What one table needs, whether or not it may have it now.
pub struct Needs {
    /// The next merge, due or not.
    pub merge: Option<MergeNeed>,
    upkeep: Option<Upkeep>,
    upkeep_next: Option<Timestamp>,
    drain: Need<Light>,
    reclaim: Need<Light>,
    tail_named_at: Option<Timestamp>,
}

impl Needs {
    /// The needs of `table`: none where nothing may be planned from what is known of it.
    pub fn of(table: &TableView, budgets: &Budgets, now: Timestamp) -> Self {
        let Some(observation) = table.workable() else {
            return Self {
                merge: None,
                upkeep: None,
                upkeep_next: None,
                drain: Need::None,
                reclaim: Need::None,
                tail_named_at: None,
            };
        };
        let (upkeep, upkeep_next) = maintenance::upkeep(table, observation, budgets.bytes, now);
        Self {
            merge: triggers::next_merge(table, observation, budgets),
            upkeep,
            upkeep_next,
            drain: maintenance::drain(table, observation, now),
            reclaim: maintenance::reclaim(observation, now),
            tail_named_at: why::tail_named_at(table, observation, now),
        }
    }

    /// What could start now if there were room for all.
    pub fn candidates(&self, table: &TableView, now: Timestamp) -> Vec<Candidate> {
        let mut all = Vec::new();
        let permit = table.permit_holder().is_none();
        if permit && table.merge_trouble.backoff.waits_until(now).is_none() {
            let merge = self.merge.as_ref().filter(|merge| merge.due <= now);
            all.extend(merge.map(|merge| merge_candidate(table, merge, now)));
        }
        if table.aside_trouble.backoff.waits_until(now).is_some() {
            return all;
        }
        if permit {
            let upkeep = self.upkeep.as_ref().filter(|u| self.lets(table, u, now));
            all.extend(upkeep.map(|upkeep| upkeep_candidate(table, upkeep, now)));
        }
        for (need, kind) in [(&self.drain, Kind::Drain), (&self.reclaim, Kind::Reclaim)] {
            if let (Need::Now(light), false) = (need, table.runs(kind)) {
                all.push(light_candidate(table, light, now));
            }
        }
        all
    }

    /// Whether upkeep may compete: it is its turn, or it is likely to end before the table's merge is due or tried
    /// again.
    fn lets(&self, table: &TableView, upkeep: &Upkeep, now: Timestamp) -> bool {
        let done = clock::after(now, table.history.upkeep());
        let retry = table.merge_trouble.backoff.waits_until(now);
        let retry = retry.unwrap_or(Timestamp::MIN);
        let ends_in_time = |merge: &MergeNeed| done <= merge.due.max(retry);
        upkeep.turn_at <= now || self.merge.as_ref().is_none_or(ends_in_time)
    }

    /// When something of the table becomes due, if nothing changes until then.
    pub fn wake_at(&self, table: &TableView, now: Timestamp) -> Option<Timestamp> {
        let merge = self.merge.as_ref().map(|merge| merge.due);
        // What is due already wakes nobody, but is tried again when a backoff ends.
        let due = |need: &Need<Light>| matches!(need, Need::Now(_)).then_some(now);
        let aside = [
            self.upkeep.as_ref().map(|upkeep| upkeep.turn_at),
            self.upkeep_next,
            self.drain.later(),
            self.reclaim.later(),
            due(&self.drain),
            due(&self.reclaim),
        ];
        next(&[merge], &table.merge_trouble.backoff, now)
            .into_iter()
            .chain(next(&aside, &table.aside_trouble.backoff, now))
            .chain(self.tail_named_at)
            .min()
    }
}

/// The first of `instants` that is still to come; the end of the backoff, if there is one to wait for and anything to
/// do after it.
fn next(instants: &[Option<Timestamp>], backoff: &Backoff, now: Timestamp) -> Option<Timestamp> {
    let mut instants = instants.iter().flatten().copied();
    match backoff.waits_until(now) {
        Some(retry) => instants.next().map(|_| retry),
        None => instants.filter(|at| *at > now).min(),
    }
}

fn merge_candidate(table: &TableView, merge: &MergeNeed, now: Timestamp) -> Candidate {
    let task = Task::Merge {
        shards: merge.chunk.shards.clone(),
        cut: merge.chunk.cut,
    };
    Candidate {
        work: Work {
            table: table.id.clone(),
            namespace: table.namespace.clone(),
            task,
            trigger: merge.trigger,
            due: merge.due,
            deadline: work::deadline(now, merge.predicted),
            predicted: merge.predicted,
            bytes: merge.chunk.reserved(),
        },
        urgent_by: merge.deadline,
        yields: false,
        cost: merge.predicted.as_nanos() / u128::from(merge.chunk.generations.max(1)),
    }
}

fn upkeep_candidate(table: &TableView, upkeep: &Upkeep, now: Timestamp) -> Candidate {
    let predicted = table.history.upkeep();
    Candidate {
        work: Work {
            table: table.id.clone(),
            namespace: table.namespace.clone(),
            task: upkeep.task.clone(),
            trigger: upkeep.trigger,
            due: upkeep.turn_at.min(now),
            deadline: work::deadline(now, predicted),
            predicted,
            bytes: upkeep.bytes,
        },
        urgent_by: upkeep.turn_at,
        yields: true,
        cost: 0,
    }
}

fn light_candidate(table: &TableView, light: &Light, now: Timestamp) -> Candidate {
    Candidate {
        work: Work {
            table: table.id.clone(),
            namespace: table.namespace.clone(),
            task: light.task.clone(),
            trigger: Trigger::Age,
            due: light.due,
            deadline: work::deadline(now, LIGHT_WORK),
            predicted: LIGHT_WORK,
            bytes: 0,
        },
        urgent_by: light.due,
        yields: false,
        cost: 0,
    }
}
