//! The grace that is in force.
//!
//! Lives here: `Grace`: one that is lowered counts only after the old one has passed, since a reader may have promised a
//! cursor's holder as much the moment before (contract 12). Pure. Must never come in: a clock, or a store.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::plan::TableId;

/// A reader may hear so much later of an edit that lowers the grace, and promise the old one until then.
const HEARD_WITHIN: Duration = Duration::from_secs(60);

/// What is asked for, and what was asked for before and still counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grace {
    asked: Duration,
    /// Longer ones, with the instant until which each counts.
    before: Vec<(Duration, Instant)>,
}

impl Grace {
    /// What is asked for now, where another process may have been asked for `before` until a moment ago.
    pub fn new(asked: Duration, before: Option<Duration>, now: Instant) -> Self {
        let mut grace = Self {
            asked: before.unwrap_or(asked),
            before: vec![],
        };
        grace.ask(asked, now);
        grace
    }

    /// Another is asked for from now on.
    pub fn ask(&mut self, asked: Duration, now: Instant) {
        self.before.retain(|(_, until)| *until > now);
        if asked < self.asked {
            let until = now + self.asked + HEARD_WITHIN;
            self.before.push((self.asked, until));
        }
        self.asked = asked;
    }

    /// Asked for beside what a table of the same name had before.
    pub fn after(mut self, other: Self) -> Self {
        self.before.extend(other.before);
        self
    }

    /// The longest that counts now.
    pub fn in_force(&self, now: Instant) -> Duration {
        let before = self.before.iter().filter(|(_, until)| *until > now);
        before
            .map(|(grace, _)| *grace)
            .fold(self.asked, Duration::max)
    }
}

/// The graces of tables that are gone, until they have passed: they may come again.
#[derive(Debug, Default)]
pub struct Graces(BTreeMap<TableId, Grace>);

impl Graces {
    /// A table went.
    pub fn gone(&mut self, table: TableId, mut grace: Grace, now: Instant) {
        self.0.retain(|_, g| g.in_force(now) > Duration::ZERO);
        grace.ask(Duration::ZERO, now);
        self.0.insert(table, grace);
    }

    /// A table of this name came: what counts for it.
    pub fn again(&mut self, table: &TableId, grace: Grace) -> Grace {
        match self.0.remove(table) {
            Some(before) => grace.after(before),
            None => grace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_raised_grace_counts_at_once() {
        let now = Instant::now();
        let mut grace = Grace::new(MINUTE, None, now);
        grace.ask(HOUR, now);
        assert_eq!(grace.in_force(now), HOUR);
    }

    #[test]
    fn a_lowered_grace_counts_once_the_old_one_has_passed_and_not_before() {
        let now = Instant::now();
        let mut grace = Grace::new(HOUR, None, now);
        grace.ask(MINUTE, now);
        assert_eq!(grace.in_force(now), HOUR);
        assert_eq!(grace.in_force(now + HOUR), HOUR);
        assert_eq!(grace.in_force(now + HOUR + HEARD_WITHIN), MINUTE);
    }

    #[test]
    fn a_grace_that_is_lowered_in_steps_keeps_each_for_as_long_as_it_was() {
        let now = Instant::now();
        let mut grace = Grace::new(2 * HOUR, None, now);
        grace.ask(HOUR, now);
        grace.ask(MINUTE, now + HOUR);
        let at = |passed: Duration| grace.in_force(now + passed);
        assert_eq!(at(HOUR), 2 * HOUR);
        assert_eq!(at(2 * HOUR + 2 * MINUTE), MINUTE);
        // Asked for the same again: nothing begins anew.
        let mut same = grace.clone();
        same.ask(MINUTE, now + HOUR);
        assert_eq!(same, grace);
    }

    #[test]
    fn what_another_process_was_asked_for_counts_as_lowered_now() {
        let now = Instant::now();
        let grace = Grace::new(MINUTE, Some(HOUR), now);
        assert_eq!(grace.in_force(now + HOUR), HOUR);
        assert_eq!(grace.in_force(now + HOUR + HEARD_WITHIN), MINUTE);
        assert_eq!(Grace::new(HOUR, Some(MINUTE), now).in_force(now), HOUR);
    }

    #[test]
    fn a_table_that_went_and_came_again_keeps_what_it_had() {
        let now = Instant::now();
        let mut gone = Grace::new(HOUR, None, now);
        gone.ask(Duration::ZERO, now);
        let grace = Grace::new(MINUTE, None, now).after(gone);
        assert_eq!(grace.in_force(now), HOUR);
        assert_eq!(grace.in_force(now + HOUR + HEARD_WITHIN), MINUTE);
    }
}
