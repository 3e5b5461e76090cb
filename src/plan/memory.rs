//! What a table's view remembers of looks and works.
//!
//! Lives here: how a view changes when a look or a work starts, ends or fails; the one place that knows. May use: this
//! room's views and work. Must never come in: the decision what to do next; that is the plan's.

use jiff::Timestamp;

use super::clock;
use super::reasons::Reason;
use super::views::{Failure, Observation, Running, TableView, Trouble};
use super::work::{Kind, Task, Work};

/// How a work ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// It did what it was to do, or somebody else had done it.
    Done,
    /// There was nothing to do, on the base version that the work saw. Not asked for again until that version moves.
    NothingToDo {
        /// That version.
        base_version: u64,
    },
    /// It was stopped before it committed, through no fault of the table's: it is planned again as if it had not been.
    Stopped,
    /// It failed.
    Failed {
        /// Why.
        reason: Reason,
        /// Names, numbers and times for people: at most a sentence.
        detail: String,
        /// Between 0 and 1, for the jitter of the next try.
        random: f64,
    },
}

impl TableView {
    /// A look succeeded.
    pub fn looked(&mut self, observation: Observation) {
        self.observation = Some(observation);
        self.look_trouble = Trouble::default();
    }

    /// A look failed at `now`; the last good one is kept. `random` is between 0 and 1.
    pub fn look_failed(&mut self, reason: Reason, detail: String, now: Timestamp, random: f64) {
        fail(&mut self.look_trouble, reason, detail, now, random);
    }

    /// `work` of a plan was started at `now`.
    pub fn work_started(&mut self, work: &Work, now: Timestamp) {
        let kind = work.task.kind();
        self.running.push(Running {
            kind,
            bytes: work.bytes,
            started: now,
        });
        match kind {
            Kind::Merge => self.past.merge_started = Some(now),
            Kind::Compact => self.past.compact_started = Some(now),
            Kind::OptimizeIndexes => self.past.optimize_started = Some(now),
            Kind::CleanVersions => self.past.clean_started = Some(now),
            Kind::Drain | Kind::Reclaim => {}
        }
    }

    /// `work` ended at `now`, however: what it held is free again, and the table is to be looked at anew.
    pub fn work_ended(&mut self, work: &Work, end: End, now: Timestamp) {
        let kind = work.task.kind();
        let Some(place) = self.running.iter().position(|r| r.kind == kind) else {
            return;
        };
        let Running { started, .. } = self.running.remove(place);
        self.past.ended = Some(now);
        let trouble = match kind {
            Kind::Merge => &mut self.merge_trouble,
            _ => &mut self.aside_trouble,
        };
        match end {
            End::Stopped => return,
            End::Failed {
                reason,
                detail,
                random,
            } => return fail(trouble, reason, detail, now, random),
            End::NothingToDo { base_version } => {
                *trouble = Trouble::default();
                match kind {
                    Kind::Compact => self.past.compact_settled = Some(base_version),
                    Kind::OptimizeIndexes => self.past.optimize_settled = Some(base_version),
                    _ => {}
                }
                return;
            }
            End::Done => *trouble = Trouble::default(),
        }
        let took = clock::between(started, now);
        match &work.task {
            Task::Merge { shards, cut } => {
                let generations = shards.iter().map(|s| s.count).sum();
                self.past.merge_cut = cut.then_some(started);
                self.history = self.history.merged(generations, work.bytes, took);
            }
            task if task.kind().is_upkeep() => self.history = self.history.kept_up(took),
            _ => {}
        }
    }
}

fn fail(trouble: &mut Trouble, reason: Reason, detail: String, now: Timestamp, random: f64) {
    trouble.backoff = trouble.backoff.failed(now, random);
    trouble.failure = Some(Failure {
        reason,
        at: now,
        detail,
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{Budgets, Policy, ShardView, backoff, plan};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// A table with one pending generation and 50 small fragments, and the merge that is due on it.
    fn merging() -> (TableView, Work) {
        let mut view = TableView::new("maze".into(), "alder".into(), Policy::default(), at(0));
        let mut shard = ShardView::new(uuid::Uuid::nil());
        shard.pending = vec![crate::plan::PendingGeneration {
            generation: crate::plan::Generation(1),
            path: "00_gen_1".into(),
            rows: None,
            bytes: Some(9),
            commit_bytes: 0,
            flushed_at: None,
            first_seen: at(0),
        }];
        view.looked(Observation {
            observed_at: at(0),
            base_version: 3,
            shards: vec![shard],
            anomalies: Vec::new(),
            small_fragments: 50,
            unindexed_rows: 0,
            old_versions_due: None,
        });
        let budgets = Budgets::new(1 << 30, 1, 1);
        let work = plan(std::slice::from_ref(&view), &budgets, at(60)).start[0].clone();
        view.work_started(&work, at(60));
        (view, work)
    }

    fn failed() -> End {
        End::Failed {
            reason: Reason::DiskFull,
            detail: "no space".into(),
            random: 1.0,
        }
    }

    #[test]
    fn whatever_becomes_of_a_work_it_holds_nothing_any_more() {
        let nothing = End::NothingToDo { base_version: 3 };
        for end in [End::Done, End::Stopped, nothing, failed()] {
            let (mut view, work) = merging();
            assert_eq!(view.running.len(), 1);
            view.work_ended(&work, end, at(61));
            assert_eq!(view.running, []);
            assert_eq!(view.past.ended, Some(at(61)));
            assert_eq!(view.workable(), None);
        }
    }

    #[test]
    fn failures_of_looks_merges_and_other_work_are_counted_apart() {
        let (mut view, work) = merging();
        view.work_ended(&work, failed(), at(61));
        view.look_failed(Reason::StoreUnreachable, String::new(), at(62), 1.0);
        let seen = view.observation.clone().unwrap();
        view.looked(seen);
        assert_eq!(view.look_trouble, Trouble::default());
        assert_eq!(view.aside_trouble, Trouble::default());
        assert_eq!(view.merge_trouble.backoff.failures, 1);
        assert_eq!(view.merge_trouble.backoff.until, Some(at(62)));
        assert_eq!(backoff::ceiling(1), Duration::from_secs(1));
    }

    #[test]
    fn only_work_that_was_done_teaches_how_long_work_takes() {
        let (view, work) = merging();
        for (end, learns) in [(End::Done, true), (End::Stopped, false), (failed(), false)] {
            let mut view = view.clone();
            let before = view.history;
            view.work_ended(&work, end, at(90));
            assert_eq!(view.history != before, learns);
        }
    }
}
