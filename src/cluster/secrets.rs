//! The Secrets that Experiments name: which are read, when they are read again, and what they last said.
//!
//! Lives here: `SecretBook`, a cache with a schedule; pure, every instant is passed in. May use: std. Must never come in:
//! a client, a list of Secrets, a Secret that nobody names, or a value in a message or in `Debug`.

use std::collections::BTreeMap;
use std::time::Duration;

/// The label without which a Secret is none of ours.
pub const LABEL: &str = "freshet.dev/storage";

/// A Secret is read again after this long, give or take a tenth.
const AGAIN: Duration = Duration::from_secs(15 * 60);
/// One that is not there is looked for this often.
const MISSING_AGAIN: Duration = Duration::from_secs(30);
/// However often a store rejects it, it is read at most this often.
const REJECTED_AGAIN: Duration = Duration::from_secs(20);
/// After a read that failed.
const FAILED_AGAIN: Duration = Duration::from_secs(10);

/// An instant of this process's monotonic clock.
pub type Mono = Duration;

/// Namespace and name.
pub type Named = (String, String);

/// What reading a Secret came to.
#[derive(Clone, PartialEq, Eq)]
pub enum Found {
    /// Its keys.
    Keys(BTreeMap<String, String>),
    /// It does not exist, or it is not labelled. Which of the two is not told: who may not read Secrets should not learn
    /// their names here.
    Missing,
    /// The operator may not read it.
    Forbidden,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Found::Keys(_) => "Keys(…)",
            Found::Missing => "Missing",
            Found::Forbidden => "Forbidden",
        })
    }
}

#[derive(Debug)]
struct Entry {
    found: Option<Found>,
    read: Option<Mono>,
    next: Mono,
    reading: bool,
}

/// The Secrets that are named, and what is known of them.
#[derive(Debug, Default)]
pub struct SecretBook {
    entries: BTreeMap<Named, Entry>,
}

impl SecretBook {
    /// What a Secret said when it was last read; `None` before that. Naming it is what makes it be read.
    pub fn get(&mut self, named: &Named, now: Mono) -> Option<Found> {
        let entry = self.entries.entry(named.clone()).or_insert(Entry {
            found: None,
            read: None,
            next: now,
            reading: false,
        });
        entry.found.clone()
    }

    /// Whether one is to be read now: it never was, or its time has come.
    pub fn is_due(&self, named: &Named, now: Mono) -> bool {
        self.entries.get(named).is_none_or(|e| e.next <= now)
    }

    /// Forgets what nobody names.
    pub fn keep(&mut self, named: impl Fn(&Named) -> bool) {
        self.entries.retain(|name, _| named(name));
    }

    /// Something happened to an Experiment that names it: it is read again now.
    pub fn touch(&mut self, named: &Named, now: Mono) {
        if let Some(entry) = self.entries.get_mut(named) {
            entry.next = now;
        }
    }

    /// A store rejected what it said.
    pub fn rejected(&mut self, named: &Named, now: Mono) {
        if let Some(entry) = self.entries.get_mut(named) {
            let soonest = entry.read.map_or(now, |read| read + REJECTED_AGAIN);
            entry.next = entry.next.min(soonest.max(now));
        }
    }

    /// Those that are due, which count as being read from here on.
    pub fn due(&mut self, now: Mono) -> Vec<Named> {
        let due = |e: &Entry| !e.reading && e.next <= now;
        let found = self.entries.iter_mut().filter(|(_, e)| due(e));
        found
            .map(|(name, e)| {
                e.reading = true;
                name.clone()
            })
            .collect()
    }

    /// Takes what a read came to; `None` where the API server did not answer, which leaves what was known. Gives back
    /// whether it is news. `random` is from 0 to 1.
    pub fn read(&mut self, named: &Named, found: Option<Found>, now: Mono, random: f64) -> bool {
        let Some(entry) = self.entries.get_mut(named) else {
            return false;
        };
        entry.reading = false;
        let jittered = |span: Duration| span.mul_f64(0.9 + 0.2 * random);
        let Some(found) = found else {
            entry.next = now + jittered(FAILED_AGAIN);
            return false;
        };
        entry.read = Some(now);
        entry.next = now
            + jittered(match found {
                Found::Keys(_) => AGAIN,
                Found::Missing | Found::Forbidden => MISSING_AGAIN,
            });
        let news = entry.found.as_ref() != Some(&found);
        entry.found = Some(found);
        news
    }

    /// Reads that were under way when leadership ended are nobody's.
    pub fn abandon(&mut self) {
        for entry in self.entries.values_mut() {
            entry.reading = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(s: u64) -> Mono {
        Duration::from_secs(s)
    }

    fn keys(value: &str) -> Option<Found> {
        let pair = ("aws_access_key_id".to_owned(), value.to_owned());
        Some(Found::Keys(BTreeMap::from([pair])))
    }

    fn name() -> Named {
        ("alder".into(), "maze-keys".into())
    }

    #[test]
    fn only_what_is_named_is_read_and_only_when_it_is_due() {
        let mut book = SecretBook::default();
        assert!(book.due(secs(0)).is_empty());
        assert_eq!(book.get(&name(), secs(0)), None);
        assert_eq!(book.due(secs(0)), [name()]);
        assert!(book.due(secs(0)).is_empty());
        assert!(book.read(&name(), keys("a"), secs(1), 0.5));
        assert!(book.due(secs(900)).is_empty());
        assert_eq!(book.due(secs(901)), [name()]);
        assert!(!book.read(&name(), keys("a"), secs(901), 0.5));
        book.keep(|_| false);
        assert!(book.due(secs(9_999)).is_empty());
    }

    #[test]
    fn a_rotated_secret_is_noticed_when_the_store_rejects_the_old_one() {
        let mut book = SecretBook::default();
        book.get(&name(), secs(0));
        book.due(secs(0));
        book.read(&name(), keys("old"), secs(0), 0.5);
        book.rejected(&name(), secs(5));
        assert!(book.due(secs(5)).is_empty());
        assert_eq!(book.due(secs(20)), [name()]);
        assert!(book.read(&name(), keys("new"), secs(20), 0.5));
    }

    #[test]
    fn one_that_is_missing_is_looked_for_within_a_minute_and_one_that_cannot_be_read_stays_known() {
        let mut book = SecretBook::default();
        book.get(&name(), secs(0));
        book.due(secs(0));
        book.read(&name(), Some(Found::Missing), secs(0), 1.0);
        assert_eq!(book.due(secs(60)), [name()]);
        book.read(&name(), keys("a"), secs(60), 0.5);
        book.touch(&name(), secs(61));
        assert_eq!(book.due(secs(61)), [name()]);
        assert!(!book.read(&name(), None, secs(61), 0.5));
        assert_eq!(book.get(&name(), secs(61)), keys("a"));
        assert_eq!(book.due(secs(72)), [name()]);
    }

    #[test]
    fn no_value_is_ever_shown() {
        let shown = format!("{:?}", keys("hidden-value"));
        assert!(!shown.contains("hidden-value"), "{shown}");
    }
}
