//! The store's clock: the newest time that a store put on an object, as far as this process has seen.
//!
//! Lives here: `StoreClock`, by which ages of what others wrote are told. It stands still while nobody writes, so waits go
//! by it or by monotonic time since this process saw a thing, whichever is over first (contract 10). May use: jiff.
//! Never: an age by this machine's wall time, which may differ from the store's by any amount. It only bounds: a file with a
//! time that is yet to come has a wrong time and makes nothing else old.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

/// The newest `last_modified` that was seen in one store. Clones share it; tables of one store should.
#[derive(Debug, Clone, Default)]
pub struct StoreClock {
    newest: Arc<Mutex<Option<Timestamp>>>,
}

impl StoreClock {
    /// A clock that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of a time that the store put on an object. One that is yet to come by this machine's clock is passed over:
    /// where the store is ahead of it, the clock lags for that, and waits get longer, never shorter.
    pub fn saw(&self, at: Timestamp) {
        self.saw_at(at, Timestamp::now());
    }

    fn saw_at(&self, at: Timestamp, now: Timestamp) {
        if at > now {
            return;
        }
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = (*newest).max(Some(at));
    }

    /// The newest time seen; `None` before the first.
    pub fn newest(&self) -> Option<Timestamp> {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How old a time of this store is, at least; zero where nothing newer was seen.
    pub fn age(&self, at: Timestamp) -> Duration {
        self.newest()
            .and_then(|newest| Duration::try_from(newest.duration_since(at)).ok())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn an_age_counts_by_the_newest_time_seen_and_never_below_zero() {
        let clock = StoreClock::new();
        assert_eq!(clock.age(at(5)), Duration::ZERO);
        clock.saw(at(20));
        clock.saw(at(10));
        assert_eq!(clock.age(at(5)), Duration::from_secs(15));
        assert_eq!(clock.age(at(50)), Duration::ZERO);
    }

    #[test]
    fn a_time_that_is_yet_to_come_makes_nothing_old() {
        let (clock, now) = (StoreClock::new(), at(100));
        clock.saw_at(at(4_000_000_000), now);
        assert_eq!(clock.age(at(5)), Duration::ZERO);
        clock.saw_at(at(90), now);
        clock.saw_at(at(101), now);
        assert_eq!(clock.age(at(5)), Duration::from_secs(85));
        assert_eq!(clock.age(at(4_000_000_000)), Duration::ZERO);
    }
}
