//! When a status may be written: conditions at once, counts seldom, and all of them within one budget.
//!
//! Lives here: `Writes`, the process-wide budget, and `urgency`, which says how a new status differs from the written
//! one. Pure: every instant is passed in. May use: `api`'s status. Must never come in: a clock, or a client.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::conditions::Cause;
use crate::api::ExperimentStatus;
use crate::plan::Reason;

/// Writes a second, on average.
const RATE: f64 = 10.0;
/// Writes that may be saved up while nothing happens, so that a cold start or a store that fails is told soon.
const SAVED: f64 = 500.0;
/// The part of the savings below which there is not plenty.
const PLENTY: f64 = 0.9;
/// Savings that are left to conditions.
const FOR_CONDITIONS: f64 = 10.0;
/// Counts of one object are written at most this often.
const COUNTS_EVERY: Duration = Duration::from_secs(60);
/// Words alone are written at most this often.
const WORDS_EVERY: Duration = Duration::from_secs(600);
/// Below this, a count that doubles is no news.
const FEW: u64 = 8;

/// An instant of this process's monotonic clock, since a point that only this process knows.
pub type Mono = Duration;

/// How soon a status must be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// There is nothing new.
    None,
    /// Only messages moved.
    Words,
    /// Figures moved.
    Counts,
    /// Figures doubled or halved.
    Leap,
    /// A condition changed, or the answer to an edit or to a request.
    Conditions,
}

impl Urgency {
    /// Whether something of this urgency, last written at `last`, may be written at `now` as far as its object goes.
    pub fn is_due(self, last: Option<Mono>, now: Mono) -> bool {
        let since = last.map(|last| now.saturating_sub(last));
        let passed = |every| since.is_none_or(|since| since >= every);
        match self {
            Urgency::None => false,
            Urgency::Words => passed(WORDS_EVERY),
            Urgency::Counts => passed(COUNTS_EVERY),
            Urgency::Leap | Urgency::Conditions => true,
        }
    }
}

/// How a status differs from the one that was written.
pub fn urgency(written: &ExperimentStatus, wanted: &ExperimentStatus) -> Urgency {
    if written == wanted {
        return Urgency::None;
    }
    let answers = written.observed_generation != wanted.observed_generation
        || written.last_handled_request != wanted.last_handled_request
        || written.quarantined_count != wanted.quarantined_count;
    if answers || changed(&written.conditions, &wanted.conditions) {
        return Urgency::Conditions;
    }
    // What a work that just ended came to is told once a look has seen it, which begins at once.
    let observing = |s: &ExperimentStatus| {
        let reason = Reason::Observing.as_str();
        s.conditions.iter().any(|c| c.reason == reason)
    };
    if observing(wanted) {
        return Urgency::None;
    }
    // It was written with a condition that changed; nobody should read for long what lasts for a moment.
    if observing(written) {
        return Urgency::Leap;
    }
    let pending = |s: &ExperimentStatus| s.backlog.as_ref().map(|b| b.pending_generations);
    match (pending(written), pending(wanted)) {
        (None, Some(_)) => return Urgency::Leap,
        (Some(a), Some(b)) if a.max(b) >= 2 * a.min(b).max(FEW) => return Urgency::Leap,
        _ => {}
    }
    let figures = |s: &ExperimentStatus| ExperimentStatus {
        conditions: s.conditions.iter().map(without_words).collect(),
        ..s.clone()
    };
    match figures(written) == figures(wanted) {
        true => Urgency::Words,
        false => Urgency::Counts,
    }
}

/// Whether a condition came, went or changed. One reason of a working table for another is none of it.
fn changed(written: &[Condition], wanted: &[Condition]) -> bool {
    written.len() != wanted.len()
        || wanted.iter().any(|new| {
            let old = written.iter().find(|c| c.type_ == new.type_);
            old.is_none_or(|old| {
                old.status != new.status
                    || old.observed_generation != new.observed_generation
                    || (old.reason != new.reason && !(is_daily(old) && is_daily(new)))
            })
        })
}

fn is_daily(condition: &Condition) -> bool {
    Reason::named(&condition.reason).is_some_and(|reason| Cause::Plan(reason).is_daily())
}

fn without_words(condition: &Condition) -> Condition {
    Condition {
        message: String::new(),
        ..condition.clone()
    }
}

/// The process-wide budget.
#[derive(Debug, Clone)]
pub struct Writes {
    saved: f64,
    at: Mono,
}

impl Writes {
    /// A full budget.
    pub fn new(now: Mono) -> Self {
        Self {
            saved: SAVED,
            at: now,
        }
    }

    /// Whether so much is saved up that a write may go to what says little: that an Experiment waits to be looked at. A cold
    /// start of many would spend everything on that, and have nothing left for what the looks find.
    pub fn has_plenty(&self, now: Mono) -> bool {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.saved + passed * RATE >= SAVED * PLENTY
    }

    /// Takes one write out of the budget, if it holds one for this urgency.
    pub fn take(&mut self, urgency: Urgency, now: Mono) -> bool {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.saved = (self.saved + passed * RATE).min(SAVED);
        self.at = self.at.max(now);
        let left = match urgency {
            Urgency::Conditions => 1.0,
            _ => 1.0 + FOR_CONDITIONS,
        };
        let may = self.saved >= left;
        if may {
            self.saved -= 1.0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::BacklogStatus;
    use crate::controller::conditions::{Known, conditions};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn secs(s: u64) -> Mono {
        Duration::from_secs(s)
    }

    fn status(reason: Reason, pending: u64, message: &str) -> ExperimentStatus {
        let now = Timestamp::UNIX_EPOCH;
        let known = Known {
            generation: 1,
            acted: true,
            deleting: false,
            cause: Cause::Plan(reason),
            message: message.into(),
            also: vec![],
            observed: Some(now),
            oldest: None,
            target: secs(60),
        };
        ExperimentStatus {
            observed_generation: 1,
            conditions: conditions(&known, &[], now),
            backlog: Some(BacklogStatus {
                pending_generations: pending,
                pending_rows: None,
                pending_bytes: None,
                oldest_pending_time: None,
                shards: 1,
                observed_time: Time(now),
            }),
            ..Default::default()
        }
    }

    #[test]
    fn what_is_the_same_is_not_written() {
        let same = status(Reason::Fresh, 0, "x");
        assert_eq!(urgency(&same, &same.clone()), Urgency::None);
        assert!(!Urgency::None.is_due(None, secs(9_999)));
    }

    #[test]
    fn a_changed_condition_goes_at_once_and_the_daily_round_of_a_merge_does_not() {
        let fresh = status(Reason::Fresh, 0, "x");
        let merging = status(Reason::Merging, 1, "y");
        let broken = status(Reason::StoreUnreachable, 1, "z");
        assert_eq!(urgency(&fresh, &broken), Urgency::Conditions);
        assert_eq!(urgency(&broken, &merging), Urgency::Conditions);
        assert_eq!(urgency(&fresh, &merging), Urgency::Counts);
        assert!(Urgency::Conditions.is_due(Some(secs(5)), secs(5)));
    }

    #[test]
    fn counts_wait_a_minute_unless_they_double_or_halve() {
        let of = |n| status(Reason::Scheduled, n, "x");
        assert_eq!(urgency(&of(20), &of(30)), Urgency::Counts);
        assert_eq!(urgency(&of(20), &of(40)), Urgency::Leap);
        assert_eq!(urgency(&of(40), &of(20)), Urgency::Leap);
        assert_eq!(urgency(&of(0), &of(1)), Urgency::Counts);
        assert!(!Urgency::Counts.is_due(Some(secs(10)), secs(69)));
        assert!(Urgency::Counts.is_due(Some(secs(10)), secs(70)));
        assert!(Urgency::Leap.is_due(Some(secs(10)), secs(10)));
    }

    #[test]
    fn a_merge_is_told_once_and_not_twice_as_it_ends_and_as_it_is_seen() {
        let before = status(Reason::Merging, 64, "x");
        let ended = status(Reason::Observing, 0, "x");
        let seen = status(Reason::Fresh, 0, "x");
        assert_eq!(urgency(&before, &ended), Urgency::None);
        assert_eq!(urgency(&before, &seen), Urgency::Leap);
        // Where it was written because a condition changed, it does not stay.
        assert_eq!(urgency(&ended, &seen), Urgency::Leap);
        let mut asked = ended;
        asked.last_handled_request = Some("now".into());
        assert_eq!(urgency(&before, &asked), Urgency::Conditions);
    }

    #[test]
    fn a_cold_start_of_many_leaves_the_savings_to_what_is_found() {
        let mut writes = Writes::new(secs(0));
        let mut told = 0;
        while writes.has_plenty(secs(0)) && writes.take(Urgency::Conditions, secs(0)) {
            told += 1;
        }
        assert_eq!(told, 51);
        assert!(!writes.has_plenty(secs(0)));
        assert!(writes.has_plenty(secs(1)));
    }

    #[test]
    fn words_alone_wait_longest() {
        let (a, b) = (status(Reason::Fresh, 0, "a"), status(Reason::Fresh, 0, "b"));
        assert_eq!(urgency(&a, &b), Urgency::Words);
        assert!(!Urgency::Words.is_due(Some(secs(0)), secs(599)));
    }

    #[test]
    fn ten_writes_a_second_go_on_for_ever_and_conditions_go_first() {
        let mut writes = Writes::new(secs(0));
        let mut taken = 0;
        while writes.take(Urgency::Counts, secs(0)) {
            taken += 1;
        }
        assert_eq!(taken, 490);
        assert!(writes.take(Urgency::Conditions, secs(0)));
        while writes.take(Urgency::Conditions, secs(0)) {}
        let mut taken = 0;
        for tenth in 1..=600 {
            let now = Duration::from_millis(tenth * 100);
            while writes.take(Urgency::Conditions, now) {
                taken += 1;
            }
        }
        assert!((599..=600).contains(&taken), "{taken}");
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let mut writes = Writes::new(secs(100));
        while writes.take(Urgency::Conditions, secs(100)) {}
        assert!(!writes.take(Urgency::Conditions, secs(50)));
        assert!(!writes.take(Urgency::Conditions, secs(100)));
    }
}
