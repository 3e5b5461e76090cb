//! Who leads: the rules of an election over one Lease, as a pure state machine.
//!
//! Lives here: `Elector`, which is told what was read and written and when, and says what to write and whether it
//! leads; `campaign` runs it against an API server. May use: jiff. Must never come in: a clock (every instant is passed
//! in), or the belief that a lease fences anything: merges are safe without it, it only keeps two from doing one work.

mod campaign;
mod cluster;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

pub use campaign::{Campaign, Leadership, Leases, Refused};
pub use cluster::ClusterLease;

/// How long things may take. Those of controller-runtime by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait, from the last change of the record that they saw, before they take it.
    pub lease: Duration,
    /// How long after the start of its last successful write a leader stops leading.
    pub renew: Duration,
    /// How often a leader writes, and at most how long a candidate waits before it looks again.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// What a Lease says. Its times are their writer's wall clock: for people, and as a sign of change; never compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; empty where nobody does.
    pub holder: String,
    /// How long its holder asks others to wait.
    pub duration: Duration,
    /// When its holder took it.
    pub acquired: Option<Timestamp>,
    /// When its holder last wrote it.
    pub renewed: Option<Timestamp>,
    /// How often it changed hands.
    pub transitions: i32,
}

/// What to do after a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Somebody else holds it; look again later.
    Wait,
    /// There is no Lease: create one that says this. Whoever comes second is refused.
    Create(Record),
    /// Replace what was read, under the version that was read, by this.
    Replace(Record),
}

/// An instant of this process's monotonic clock, since a point that only this process knows.
pub type Mono = Duration;

/// One participant of an election.
#[derive(Debug, Clone)]
pub struct Elector {
    me: String,
    timing: Timing,
    /// The record as last seen, and when it was first seen like that.
    seen: Option<(Record, Mono)>,
    /// When the last successful write began, while the record names this participant.
    held: Option<Mono>,
}

impl Elector {
    /// A participant under a name that no other ever has: a Pod's name is not enough, it may come again.
    pub fn new(me: impl Into<String>, timing: Timing) -> Self {
        Self {
            me: me.into(),
            timing,
            seen: None,
            held: None,
        }
    }

    /// Its name.
    pub fn me(&self) -> &str {
        &self.me
    }

    /// Its timing.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Takes what was read at `now` and says what to write. `wall` is written for people to read.
    pub fn look(&mut self, now: Mono, wall: Timestamp, found: Option<&Record>) -> Step {
        let Some(found) = found else {
            (self.seen, self.held) = (None, None);
            return Step::Create(self.record(wall, wall, 0));
        };
        if self.seen.as_ref().is_none_or(|(seen, _)| seen != found) {
            self.seen = Some((found.clone(), now));
        }
        if found.holder == self.me {
            let since = found.acquired.unwrap_or(wall);
            return Step::Replace(self.record(since, wall, found.transitions));
        }
        self.held = None;
        match self.expires().is_some_and(|at| now < at) {
            true => Step::Wait,
            false => Step::Replace(self.record(wall, wall, found.transitions.saturating_add(1))),
        }
    }

    /// Takes that the API server accepted a write of `record` that began at `begun`. The term counts from the beginning:
    /// others cannot have seen it earlier.
    pub fn wrote(&mut self, begun: Mono, now: Mono, record: Record) {
        self.held = (record.holder == self.me).then_some(begun);
        self.seen = Some((record, now));
    }

    /// Whether it leads at `now`.
    pub fn leads(&self, now: Mono) -> bool {
        self.deadline().is_some_and(|at| now < at)
    }

    /// When it stops leading unless it writes again; `None` where it does not lead.
    pub fn deadline(&self) -> Option<Mono> {
        self.held.map(|begun| begun + self.timing.renew)
    }

    /// How long to wait before the next look. `random` is from 0 to 1: candidates spread over a quarter of `retry`.
    pub fn pause(&self, now: Mono, random: f64) -> Duration {
        let retry = self.timing.retry;
        let until = |at: Mono| at.saturating_sub(now);
        match (self.deadline(), self.expires()) {
            (Some(deadline), _) if now < deadline => retry.min(until(deadline)),
            // It may be free for longer than that and yet not ours: never a pause of nothing.
            (_, expires) => {
                let spread = retry.mul_f64(0.65 + 0.25 * random.clamp(0.0, 1.0));
                match expires.map(until) {
                    Some(left) if !left.is_zero() => spread.min(left),
                    _ => spread,
                }
            }
        }
    }

    /// What to write in place of `found` to let others have it at once; `None` where it is not this participant's.
    pub fn release(&mut self, wall: Timestamp, found: &Record) -> Option<Record> {
        self.held = None;
        (found.holder == self.me).then(|| Record {
            holder: String::new(),
            duration: Duration::from_secs(1),
            acquired: Some(wall),
            renewed: Some(wall),
            transitions: found.transitions,
        })
    }

    /// When what was seen may be taken; `None` where nobody holds it.
    fn expires(&self) -> Option<Mono> {
        let (record, since) = self.seen.as_ref()?;
        let asked = match record.duration.is_zero() {
            true => self.timing.lease,
            false => record.duration,
        };
        (!record.holder.is_empty()).then(|| *since + asked)
    }

    fn record(&self, acquired: Timestamp, renewed: Timestamp, transitions: i32) -> Record {
        Record {
            holder: self.me.clone(),
            duration: self.timing.lease,
            acquired: Some(acquired),
            renewed: Some(renewed),
            transitions,
        }
    }
}
