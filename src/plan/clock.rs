//! Arithmetic on instants that never panics.
//!
//! Lives here: adding a span to an instant and taking it away, saturating at the ends of what an instant can hold.
//! May use: jiff. Must never come in: a clock; every instant of this room is passed in.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The instant `span` later than `at`; the last representable instant when there is none.
pub(crate) fn after(at: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span)
        .ok()
        .and_then(|span| at.checked_add(span).ok())
        .unwrap_or(Timestamp::MAX)
}

/// The instant `span` earlier than `at`; the first representable instant when there is none.
pub(crate) fn before(at: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span)
        .ok()
        .and_then(|span| at.checked_sub(span).ok())
        .unwrap_or(Timestamp::MIN)
}

/// The time from `earlier` to `later`; zero when it would be negative.
pub(crate) fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or(Duration::ZERO)
}
