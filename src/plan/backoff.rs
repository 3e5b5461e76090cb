//! How long a table is left alone after failures in a row.
//!
//! Lives here: exponential backoff with full jitter, as plain data. May use: jiff. Must never come in: a clock or a
//! source of randomness; both are passed in, so that a plan made twice from the same facts is the same plan.

use std::time::Duration;

use jiff::Timestamp;

use super::clock;

/// The ceiling of the first delay.
pub const BASE: Duration = Duration::from_secs(1);
/// The ceiling that no delay goes above.
pub const CAP: Duration = Duration::from_secs(600);

/// The longest delay after `failures` failures in a row: zero for none, then 1 s, 2 s, 4 s, … up to [`CAP`].
pub fn ceiling(failures: u32) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    let factor = 1u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
    BASE.saturating_mul(factor).min(CAP)
}

/// The delay after `failures` failures in a row: `random` (0 to 1, clamped; not a number counts as 1) of the ceiling.
pub fn delay(failures: u32, random: f64) -> Duration {
    let random = if random.is_nan() {
        1.0
    } else {
        random.clamp(0.0, 1.0)
    };
    ceiling(failures).mul_f64(random)
}

/// What is remembered of a table's failures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    /// Failures since the last success.
    pub failures: u32,
    /// No work before this instant.
    pub until: Option<Timestamp>,
}

impl Backoff {
    /// Counts one more failure at `now`; `random` is between 0 and 1.
    pub fn failed(self, now: Timestamp, random: f64) -> Self {
        let failures = self.failures.saturating_add(1);
        Self {
            failures,
            until: Some(clock::after(now, delay(failures, random))),
        }
    }

    /// Forgets every failure.
    pub fn succeeded(self) -> Self {
        Self::default()
    }

    /// The instant to wait for, if it is still to come. One that is further away than any delay was set by a clock that
    /// went back since, and is not waited for.
    pub fn waits_until(&self, now: Timestamp) -> Option<Timestamp> {
        let longest = clock::after(now, ceiling(self.failures));
        self.until.filter(|until| now < *until && *until <= longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_doubles_from_one_second_up_to_ten_minutes() {
        let seconds: Vec<u64> = (0..13).map(|n| ceiling(n).as_secs()).collect();
        assert_eq!(
            seconds,
            [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
        );
        assert_eq!(ceiling(u32::MAX), CAP);
    }

    #[test]
    fn jitter_spans_the_whole_delay_and_never_leaves_it() {
        assert_eq!(delay(4, 0.0), Duration::ZERO);
        assert_eq!(delay(4, 0.5), Duration::from_secs(4));
        assert_eq!(delay(4, 1.0), Duration::from_secs(8));
        assert_eq!(delay(4, 7.0), Duration::from_secs(8));
        assert_eq!(delay(4, f64::NAN), Duration::from_secs(8));
    }

    #[test]
    fn a_success_starts_the_count_again() {
        let now = Timestamp::UNIX_EPOCH;
        let thrice = (0..3).fold(Backoff::default(), |b, _| b.failed(now, 1.0));
        assert_eq!(
            thrice.waits_until(now),
            Some(clock::after(now, Duration::from_secs(4)))
        );
        let again = thrice.succeeded().failed(now, 1.0);
        assert_eq!(again.failures, 1);
        assert_eq!(again.until, Some(clock::after(now, BASE)));
    }

    #[test]
    fn a_backoff_from_a_clock_that_went_back_an_hour_is_not_waited_for() {
        let now = Timestamp::UNIX_EPOCH;
        let ahead = clock::after(now, Duration::from_secs(3600));
        let once = Backoff::default().failed(ahead, 1.0);
        assert_eq!(once.waits_until(ahead), Some(clock::after(ahead, BASE)));
        assert_eq!(once.waits_until(now), None);
    }

    #[test]
    fn a_backoff_that_has_passed_is_not_waited_for() {
        let now = Timestamp::UNIX_EPOCH;
        let once = Backoff::default().failed(now, 1.0);
        assert_eq!(once.waits_until(clock::after(now, BASE)), None);
    }
}
