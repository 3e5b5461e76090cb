//! Keeps a loop's turns to a share of the time.
//!
//! Lives here: `Pace`. May use: nothing but `std`. Must never come in: what a turn does.

use std::time::{Duration, Instant};

/// After a turn, the loop rests for so many times as long as the turn took: a turn that looks at every table costs more the
/// more tables there are, and they are heard of more often, too.
const REST: u32 = 4;
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(2);

/// When a loop may turn again.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    next: Instant,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            next: Instant::now(),
        }
    }
}

impl Pace {
    /// From when on it may turn again.
    pub fn next(self) -> Instant {
        self.next
    }

    /// Whether it may turn at `now`.
    pub fn may(self, now: Instant) -> bool {
        now >= self.next
    }

    /// A turn that began at `began` ended at `now`.
    pub fn turned(&mut self, began: Instant, now: Instant) {
        let took = now.saturating_duration_since(began);
        self.next = now + (took * REST).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_of_many_tables_leaves_most_of_the_time_to_others() {
        let began = Instant::now();
        let mut pace = Pace::default();
        let ended = began + Duration::from_millis(20);
        pace.turned(began, ended);
        assert!(!pace.may(ended + Duration::from_millis(79)));
        assert!(pace.may(ended + Duration::from_millis(80)));
        pace.turned(began, began + Duration::from_secs(60));
        assert!(pace.may(began + Duration::from_secs(62)));
    }
}
