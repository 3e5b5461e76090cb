//! Generations that cannot be merged, and when each is tried again.
//!
//! Lives here: the book of one table's quarantine. A generation is tried again on a slow schedule, and at once when the
//! table's schema moves, since that may have been what was wrong. May use: jiff. Must never come in: a repair.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::status::QuarantinedGeneration;

/// One entry of the book.
#[derive(Debug, Clone)]
struct Case {
    told: QuarantinedGeneration,
    wait: Duration,
    retry_at: Timestamp,
    schema: Option<u64>,
}

/// The quarantine of one table: the lowest such generation of each shard.
#[derive(Debug, Default)]
pub struct Quarantine {
    cases: BTreeMap<Uuid, Case>,
}

impl Quarantine {
    /// Puts a generation in, or in again: its next try waits twice as long then.
    pub fn put(
        &mut self,
        told: QuarantinedGeneration,
        schema: Option<u64>,
        now: Timestamp,
        waits: [Duration; 2],
    ) {
        let before = self.cases.get(&told.shard);
        let again = before.filter(|c| c.told.path == told.path);
        let wait = again.map_or(waits[0], |c| c.wait.saturating_mul(2).min(waits[1]));
        let since = again.map_or(now, |c| c.told.since);
        let case = Case {
            told: QuarantinedGeneration { since, ..told },
            wait,
            retry_at: later(now, wait),
            schema,
        };
        self.cases.insert(case.told.shard, case);
    }

    /// Forgets what is pending no more.
    pub fn keep(&mut self, pending: impl Fn(&QuarantinedGeneration) -> bool) {
        self.cases.retain(|_, case| pending(&case.told));
    }

    /// The generation that stops a shard now; none while it is being tried again.
    pub fn stops(&self, shard: Uuid, schema: Option<u64>, now: Timestamp) -> Option<u64> {
        let case = self.cases.get(&shard)?;
        let moved = schema.is_some() && case.schema.is_some() && schema != case.schema;
        // A try that is further away than its wait was set by a clock that went back since.
        let waits = now < case.retry_at && case.retry_at <= later(now, case.wait);
        (waits && !moved).then_some(case.told.generation)
    }

    /// What is in quarantine.
    pub fn told(&self) -> Vec<QuarantinedGeneration> {
        self.cases.values().map(|c| c.told.clone()).collect()
    }
}

fn later(at: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span)
        .ok()
        .and_then(|span| at.checked_add(span).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(15)];

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn told(path: &str) -> QuarantinedGeneration {
        QuarantinedGeneration {
            shard: Uuid::nil(),
            generation: 4,
            path: path.into(),
            reason: "GenerationUnreadable",
            message: String::new(),
            since: at(0),
        }
    }

    #[test]
    fn a_generation_stops_its_shard_until_it_is_tried_again_and_then_for_longer() {
        let mut book = Quarantine::default();
        book.put(told("a"), Some(1), at(0), WAITS);
        assert_eq!(book.stops(Uuid::nil(), Some(1), at(9)), Some(4));
        assert_eq!(book.stops(Uuid::nil(), Some(1), at(10)), None);
        assert_eq!(book.stops(Uuid::from_u128(1), Some(1), at(0)), None);
        book.put(told("a"), Some(1), at(10), WAITS);
        assert_eq!(book.stops(Uuid::nil(), Some(1), at(24)), Some(4));
        assert_eq!(book.stops(Uuid::nil(), Some(1), at(25)), None);
        assert_eq!(book.told()[0].since, at(0));
    }

    #[test]
    fn a_clock_that_went_back_holds_no_generation_for_longer_than_its_wait() {
        let mut book = Quarantine::default();
        book.put(told("a"), None, at(3600), WAITS);
        assert_eq!(book.stops(Uuid::nil(), None, at(3600)), Some(4));
        assert_eq!(book.stops(Uuid::nil(), None, at(0)), None);
    }

    #[test]
    fn another_directory_under_the_same_number_is_another_case() {
        let mut book = Quarantine::default();
        book.put(told("a"), None, at(0), WAITS);
        book.put(told("b"), None, at(5), WAITS);
        assert_eq!(book.told()[0].since, at(5));
        assert_eq!(book.stops(Uuid::nil(), None, at(15)), None);
    }

    #[test]
    fn a_schema_that_moved_lets_it_be_tried_at_once() {
        let mut book = Quarantine::default();
        book.put(told("a"), Some(1), at(0), WAITS);
        assert_eq!(book.stops(Uuid::nil(), Some(2), at(1)), None);
    }
}
