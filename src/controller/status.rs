//! The status of an Experiment, from what the engine knows of its table.
//!
//! Lives here: the pure mapping from the engine's status and the last written one to the next. What is not known now
//! stays as it was last known (contract 16), and what did not move keeps its time, so that nothing is written while
//! nothing happens. May use: `api`, `engine`'s status. Must never come in: a clock, or a zero for the unknown.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::conditions::{Known, conditions, shortened};
use crate::api::{
    BacklogStatus, Effective, ExperimentStatus, FragmentsStatus, GoDuration, LastMerge,
    QUARANTINED_LISTED, QuarantinedGeneration, ReclaimStatus,
};
use crate::engine;

/// The longest message of a quarantined generation, in bytes.
const LONGEST_NOTE: usize = 512;
/// The longest request that is answered, in characters.
pub const LONGEST_REQUEST: usize = 256;

/// What goes into a status beside the conditions.
#[derive(Debug, Clone, Copy)]
pub struct Figures<'a> {
    /// What the engine knows; `None` where it does not have the table.
    pub engine: Option<&'a engine::TableStatus>,
    /// What is in force; `None` where the spec cannot be read.
    pub effective: Option<&'a Effective>,
    /// The request that was handled last.
    pub handled: Option<&'a str>,
}

/// The next status after `before`.
pub fn status(
    before: &ExperimentStatus,
    known: &Known,
    figures: Figures<'_>,
    now: Timestamp,
) -> ExperimentStatus {
    let mut next = before.clone();
    next.conditions = conditions(known, &before.conditions, now);
    if known.acted {
        next.observed_generation = known.generation;
    }
    next.effective = effective(before, &figures);
    if let Some(handled) = figures.handled {
        next.last_handled_request = Some(handled.to_owned());
    }
    if let Some(seen) = figures.engine {
        next.backlog = backlog(before.backlog.as_ref(), seen);
        if let Some((version, rows, fragments)) = seen.base {
            next.fragments = Some(FragmentsStatus {
                version,
                rows: Some(rows),
                fragments,
            });
        }
        if let Some(merge) = &seen.last_merge {
            next.last_merge = Some(last_merge(merge));
        }
        if let Some(left) = seen.leftovers {
            let before = before.reclaim.as_ref().and_then(|r| r.last_time.clone());
            next.reclaim = Some(ReclaimStatus {
                draining: left.draining,
                waiting: left.waiting,
                last_time: seen.last_reclaim.map(time).or(before),
                unknown_directories: (left.unknown > 0)
                    .then(|| u32::try_from(left.unknown).unwrap_or(u32::MAX)),
            });
        }
        if seen.observed_at.is_some() {
            let listed = seen.quarantined.iter().take(QUARANTINED_LISTED);
            next.quarantined = listed.map(quarantined).collect();
            next.quarantined_count = Some(seen.quarantined.len() as u32);
        }
    }
    next
}

/// Every tunable in force. A grace that was lowered is told as what it was until the old one has passed: whoever takes
/// over knows by that what readers may have promised.
fn effective(before: &ExperimentStatus, figures: &Figures) -> Option<Effective> {
    let mut now = figures.effective?.clone();
    let before = before.effective.as_ref();
    let before = || before.map(|e| e.retention.merged_generation_grace_period);
    let in_force = match figures.engine {
        Some(engine) => Some(engine.grace.into()),
        None => before(),
    };
    let grace = &mut now.retention.merged_generation_grace_period;
    *grace = in_force.map_or(*grace, |in_force| in_force.max(*grace));
    Some(now)
}

fn backlog(before: Option<&BacklogStatus>, seen: &engine::TableStatus) -> Option<BacklogStatus> {
    let (Some(pending), Some(at), Some(shards)) =
        (seen.pending_generations, seen.observed_at, seen.shards)
    else {
        return before.cloned();
    };
    let mut next = BacklogStatus {
        pending_generations: pending,
        pending_rows: seen.pending_rows,
        pending_bytes: seen.pending_bytes,
        oldest_pending_time: seen.oldest_pending.map(time),
        shards: u32::try_from(shards).unwrap_or(u32::MAX),
        observed_time: time(at),
    };
    if let Some(before) = before {
        let same = BacklogStatus {
            observed_time: before.observed_time.clone(),
            ..next.clone()
        };
        if same == *before {
            next = same;
        }
    }
    Some(next)
}

fn last_merge(merge: &engine::LastMerge) -> LastMerge {
    let millis = u64::try_from(merge.took.as_millis()).unwrap_or(u64::MAX);
    LastMerge {
        time: time(merge.time),
        version: merge.version,
        generations: merge.generations,
        rows: Some(merge.rows),
        bytes: Some(merge.bytes),
        duration: GoDuration::from_millis(millis),
    }
}

fn quarantined(q: &engine::QuarantinedGeneration) -> QuarantinedGeneration {
    let mut message = shortened(q.message.clone());
    while message.len() > LONGEST_NOTE {
        message.pop();
    }
    QuarantinedGeneration {
        shard: q.shard.to_string(),
        generation: q.generation,
        reason: q.reason.to_owned(),
        message,
        since: time(q.since),
    }
}

/// A time as Kubernetes keeps it: whole seconds. Else what is read back would differ from what was written.
fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::controller::conditions::Cause;
    use crate::plan::Reason;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_250 + second * 1000).unwrap()
    }

    fn seen() -> engine::TableStatus {
        engine::TableStatus {
            observed_at: Some(at(0)),
            pending_generations: Some(3),
            pending_rows: Some(30),
            oldest_pending: Some(at(-9)),
            shards: Some(2),
            base: Some((7, 100, 4)),
            ..engine::TableStatus::unseen("alder", "s3://maze/runs")
        }
    }

    fn known() -> Known {
        Known {
            generation: 2,
            acted: true,
            deleting: false,
            cause: Cause::Plan(Reason::Scheduled),
            message: "x".into(),
            also: vec![],
            observed: Some(at(0)),
            oldest: None,
            target: Duration::from_secs(60),
        }
    }

    fn next(before: &ExperimentStatus, seen: Option<&engine::TableStatus>) -> ExperimentStatus {
        let figures = Figures {
            engine: seen,
            effective: None,
            handled: None,
        };
        status(before, &known(), figures, at(1))
    }

    #[test]
    fn nothing_moves_while_nothing_happens() {
        let first = next(&ExperimentStatus::default(), Some(&seen()));
        let mut later = seen();
        later.observed_at = Some(at(500));
        assert_eq!(next(&first, Some(&later)), first);
        // What the API server gives back is what was written.
        let read: ExperimentStatus =
            serde_json::from_value(serde_json::to_value(&first).unwrap()).unwrap();
        assert_eq!(read, first);
    }

    #[test]
    fn what_is_unknown_now_stays_as_it_was_last_known() {
        let mut merged = seen();
        merged.last_merge = Some(engine::LastMerge {
            time: at(0),
            version: 7,
            generations: 2,
            rows: 20,
            bytes: 200,
            took: Duration::from_millis(1500),
        });
        let first = next(&ExperimentStatus::default(), Some(&merged));
        let mut blind = seen();
        (blind.pending_generations, blind.observed_at) = (None, None);
        (blind.base, blind.shards) = (None, None);
        let after = next(&first, Some(&blind));
        assert_eq!(after, first);
        assert_eq!(next(&first, None), first);
        assert_eq!(after.last_merge.unwrap().duration.to_string(), "1s500ms");
    }

    #[test]
    fn what_merges_leave_behind_is_told_and_when_it_went_stays() {
        let mut merged = seen();
        merged.leftovers = Some(engine::Leftovers {
            draining: 3,
            waiting: 2,
            unknown: 0,
        });
        merged.last_reclaim = Some(at(0));
        let first = next(&ExperimentStatus::default(), Some(&merged));
        let told = first.reclaim.clone().unwrap();
        assert_eq!((told.draining, told.waiting), (3, 2));
        assert_eq!(told.unknown_directories, None);
        // Another process has deleted nothing yet, and has not looked either.
        let mut other = seen();
        assert_eq!(next(&first, Some(&other)).reclaim, first.reclaim);
        other.leftovers = merged.leftovers;
        assert_eq!(next(&first, Some(&other)).reclaim, first.reclaim);
    }

    #[test]
    fn a_status_stays_small_whatever_the_table_holds() {
        let mut huge = seen();
        huge.pending_generations = Some(1_000_000);
        huge.quarantined = (0..1000)
            .map(|n| engine::QuarantinedGeneration {
                shard: uuid::Uuid::from_u128(n),
                generation: n as u64,
                path: "p".repeat(100),
                reason: "GenerationUnreadable",
                message: "ö".repeat(2000),
                since: at(0),
            })
            .collect();
        let status = next(&ExperimentStatus::default(), Some(&huge));
        assert_eq!(status.quarantined.len(), 10);
        assert_eq!(status.quarantined_count, Some(1000));
        assert!(
            status
                .quarantined
                .iter()
                .all(|q| q.message.len() <= LONGEST_NOTE)
        );
        assert!(serde_json::to_vec(&status).unwrap().len() < 16 * 1024);
    }

    #[test]
    fn an_edit_is_answered_only_once_it_was_acted_on() {
        let mut waiting = known();
        waiting.acted = false;
        let figures = Figures {
            engine: None,
            effective: None,
            handled: None,
        };
        let first = status(&ExperimentStatus::default(), &waiting, figures, at(1));
        assert_eq!(first.observed_generation, -1);
        assert_eq!(next(&first, None).observed_generation, 2);
    }
}
