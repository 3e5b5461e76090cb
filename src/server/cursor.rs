//! Cursors: going on with the records of one snapshot, page by page, of any replica.
//!
//! Lives here: `Cursors`, which gives one out with a page that has more after it and judges one that comes back: whose it
//! is, what it was made for, and whether its time is over; all of it before anything is asked of a store. May use: the
//! codec, the experiment's status. Must never come in: state of a walk (a cursor holds all of it), or a longer life than
//! the snapshot's (contract 12): it ends at the time of its manifests' reads + grace − deadline − skew, for every page.

mod codec;
mod keys;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

pub(super) use self::codec::Cursor;
use self::codec::{LONGEST, Of, Refused};
pub use self::keys::{BadKeys, CursorKeys};
use super::catalog::ExperimentStatus;
use super::problem::Problem;
use crate::table::{Ask, LONGEST_GRACE, Page, Source};

/// Gives out cursors and takes them back.
pub(super) struct Cursors {
    keys: CursorKeys,
    /// What is taken off the grace: a request that begins in time ends in time, by whatever clock.
    less: Duration,
    deadline: Duration,
    skew: Duration,
}

/// What is said of going on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum More {
    /// There is nothing more.
    End,
    /// With this, until then.
    Cursor(String, Timestamp),
    /// There is more and no cursor to it: why.
    None(String),
}

impl More {
    /// As members of an answer.
    pub fn tell(&self, members: &mut Map<String, Value>) {
        let (cursor, expires) = match self {
            More::Cursor(text, expires) => (text.as_str().into(), expires.to_string().into()),
            More::End | More::None(_) => (Value::Null, Value::Null),
        };
        members.insert("next_cursor".into(), cursor);
        members.insert("cursor_expires".into(), expires);
        if let More::None(why) = self {
            members.insert("cursor_refused".into(), why.as_str().into());
        }
    }
}

impl Cursors {
    pub fn new(keys: CursorKeys, deadline: Duration, skew: Duration) -> Self {
        Self {
            keys,
            less: deadline.saturating_add(skew),
            deadline,
            skew,
        }
    }

    /// The cursor to what follows a page. One that came for the page gives its own end on to the next.
    pub fn next(
        &self,
        page: &Page,
        before: Option<&Cursor>,
        ask: &Ask,
        status: &ExperimentStatus,
    ) -> More {
        let Some(next) = &page.next else {
            return More::End;
        };
        let expires = match before {
            Some(before) => before.expires,
            None => match self.expires(next.pin.read_at, status) {
                Ok(expires) => expires,
                Err(why) => return More::None(why),
            },
        };
        let cursor = Cursor {
            experiment: of(status),
            asked: asked(ask),
            pin: next.pin.clone(),
            position: next.position,
            expires,
        };
        match cursor.write(&self.keys) {
            Some(text) => More::Cursor(text, expires),
            None => More::None(format!(
                "generations are pending in {} shards, and a cursor that names them all would be longer than {LONGEST} bytes; go on with offset, or read source=fragments",
                next.pin.pending.len()
            )),
        }
    }

    /// When a snapshot that was read at a time may be gone.
    fn expires(&self, read_at: Timestamp, status: &ExperimentStatus) -> Result<Timestamp, String> {
        let grace = status.grace_seconds;
        let grace = grace.and_then(|s| Duration::try_from_secs_f64(s).ok());
        let Some(grace) = grace.map(|g| g.min(LONGEST_GRACE)) else {
            return Err("it is not known yet for how long this experiment keeps what was merged; go on with offset".into());
        };
        let life = grace.checked_sub(self.less).filter(|l| !l.is_zero());
        let life = life.and_then(|l| SignedDuration::try_from(l).ok());
        let expires = life.and_then(|life| {
            let end = read_at.checked_add(life).ok()?;
            // Of whole milliseconds, as it is told and kept.
            Timestamp::from_millisecond(end.as_millisecond()).ok()
        });
        expires.ok_or_else(|| {
            format!(
                "what was merged is kept for {grace:?}, which is no longer than one request may take ({:?}) and clocks may differ ({:?}); raise spec.retention.mergedGenerationGracePeriod, or go on with offset",
                self.deadline, self.skew
            )
        })
    }

    /// Takes a cursor back. Nothing was looked up for it but the experiment.
    pub fn taken(
        &self,
        text: &str,
        ask: &Ask,
        status: &ExperimentStatus,
        now: Timestamp,
    ) -> Result<Cursor, Problem> {
        let cursor = Cursor::read(text, &self.keys).map_err(refused)?;
        let (own, its) = (of(status), &cursor.experiment);
        if (&own.namespace, &own.name) != (&its.namespace, &its.name) {
            return Err(Problem::invalid_cursor(
                "cursor",
                "the cursor is of another experiment",
            ));
        }
        self.made_for(&cursor, ask)?;
        let life = cursor.expires.duration_since(cursor.pin.read_at);
        let possible = SignedDuration::try_from(LONGEST_GRACE).unwrap_or(SignedDuration::MAX);
        let skew = SignedDuration::try_from(self.skew).unwrap_or_default();
        let ahead = cursor.pin.read_at.duration_since(now);
        if !life.is_positive() || life > possible || ahead > skew.max(SignedDuration::from_secs(1))
        {
            return Err(Problem::invalid_cursor(
                "cursor",
                "the cursor's times are none that a server gives",
            ));
        }
        if now >= cursor.expires {
            return Err(Problem::cursor_expired(&cursor.expires.to_string()));
        }
        if own.uid != its.uid {
            return Err(Problem::snapshot_gone(
                "the experiment was deleted and made again since; start again without the cursor",
            ));
        }
        Ok(cursor)
    }

    /// Whether what is asked for is what the cursor was made for, but for `limit`.
    fn made_for(&self, cursor: &Cursor, ask: &Ask) -> Result<(), Problem> {
        let other = |name: &str| {
            Problem::invalid_cursor(
                name,
                format!(
                    "the cursor was made for another {name}: repeat the parameters of the page that it came with, all but limit"
                ),
            )
        };
        let source = cursor.pin.source;
        if source != ask.source {
            let said = Source::as_str(source);
            return Err(Problem::invalid_cursor(
                "source",
                format!(
                    "the cursor was made for source={said}: repeat the parameters of the page that it came with, all but limit"
                ),
            ));
        }
        let now = asked(ask);
        let differs = |of: &[(String, u64)], than: &[(String, u64)]| {
            let found = of.iter().find(|p| !than.contains(p));
            found.map(|(name, _)| name.clone())
        };
        let differing = differs(&now, &cursor.asked).or_else(|| differs(&cursor.asked, &now));
        match differing {
            Some(name) => Err(other(&name)),
            None => Ok(()),
        }
    }
}

/// Which of all experiments it is.
fn of(status: &ExperimentStatus) -> Of {
    Of {
        namespace: status.namespace.clone(),
        name: status.name.clone(),
        uid: status.uid.clone(),
    }
}

/// The parameters that say which rows come and what of them, with digests of their values, in the order of their names.
fn asked(ask: &Ask) -> Vec<(String, u64)> {
    let digest = |name: &str, value: &str| (name.to_string(), xxh3_64(value.as_bytes()));
    let columns = ask.columns.iter().map(|c| digest("columns", &c.join(",")));
    let exact = ask.exact.iter().map(|(c, v)| digest(c, v));
    let condition = ask.condition.iter().map(|c| digest("where", c));
    let order = ask.order.iter().map(|by| match by.descending {
        true => format!("-{}", by.column),
        false => by.column.clone(),
    });
    let order: Vec<String> = order.collect();
    let order = (!order.is_empty()).then(|| digest("order", &order.join(",")));
    let all = columns.chain(exact).chain(condition).chain(order);
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

fn refused(why: Refused) -> Problem {
    match why {
        Refused::Malformed => Problem::invalid_cursor(
            "cursor",
            "this is no cursor: send next_cursor of the page before as it came, and start again without one where it is lost",
        ),
        Refused::Forged => Problem::invalid_cursor(
            "cursor",
            "the cursor was not signed by this server or a replica of it; start again without it",
        ),
        Refused::Format(format) => Problem::cursor_unknown(format!(
            "the cursor is of format {format}, which this release does not read; start again without it"
        )),
        Refused::Key => Problem::cursor_unknown(
            "the cursor is signed with a key that this server does not have; start again without it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursors(deadline: u64, skew: u64) -> Cursors {
        let [deadline, skew] = [deadline, skew].map(Duration::from_secs);
        Cursors::new(CursorKeys::default(), deadline, skew)
    }

    fn status(grace: Option<f64>) -> ExperimentStatus {
        ExperimentStatus {
            grace_seconds: grace,
            ..Default::default()
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_cursor_ends_at_the_read_plus_grace_less_deadline_and_skew() {
        let end = |grace| cursors(30, 10).expires(at(1000), &status(Some(grace)));
        assert_eq!(end(600.0), Ok(at(1560)));
        // Old shard manifests are kept for a day, whatever the grace.
        assert_eq!(end(1e6), Ok(at(1000 + 24 * 3600 - 40)));
        assert!(
            end(40.0)
                .unwrap_err()
                .contains("mergedGenerationGracePeriod")
        );
        assert!(end(f64::NAN).is_err());
        assert!(cursors(30, 10).expires(at(0), &status(None)).is_err());
    }

    #[test]
    fn parameters_are_told_apart_by_name_and_value() {
        let ask = |columns: Option<&str>, exact: &[(&str, &str)]| Ask {
            columns: columns.map(|c| c.split(',').map(str::to_string).collect()),
            exact: exact
                .iter()
                .map(|(c, v)| (c.to_string(), v.to_string()))
                .collect(),
            ..Default::default()
        };
        let all = [
            ask(None, &[]),
            ask(Some("a"), &[]),
            ask(Some("a,b"), &[]),
            ask(None, &[("role", "a")]),
            ask(None, &[("id", "a")]),
            ask(None, &[("role", "a"), ("id", "")]),
        ];
        for (i, one) in all.iter().enumerate() {
            for (j, other) in all.iter().enumerate() {
                assert_eq!(asked(one) == asked(other), i == j);
            }
        }
        assert_eq!(
            asked(&ask(None, &[("role", "a"), ("id", "b")])),
            asked(&ask(None, &[("id", "b"), ("role", "a")]))
        );
    }
}
