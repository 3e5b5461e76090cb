//! Old base versions: which may go, and their removal.
//!
//! Lives here: `VersionsMemory` and `Table::clean_versions`. A version is old by the time its successor was made, by the
//! store's clock or by this process's own (contract 11), and stays longer than any work's deadline (contract 6).
//! May use: Lance's clean-up, by version numbers. Never: a version's own time, a tagged version, or auto clean-up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use jiff::Timestamp;
use lance::dataset::cleanup::CleanupPolicy;
use lance_table::io::commit::{ManifestNamingScheme, VERSIONS_DIR};
use object_store::ObjectStore as _;

use super::base::Table;
use super::clock::StoreClock;
use super::error::{Error, Result};
use super::observation::Observation;
use super::shard::timestamp;
use super::steps::reach;

/// When old versions go.
#[derive(Debug, Clone, Copy)]
pub struct VersionsPolicy {
    older_than: Duration,
    /// The newest versions that always stay; below 1 counts as 1.
    pub keep_at_least: usize,
    /// Nothing is removed before this.
    pub hold_until: Option<Instant>,
    /// When the call has to have ended.
    pub deadline: Instant,
}

impl VersionsPolicy {
    /// Versions go when their successor is older than `older_than`, or than the grace and the longest deadline of any work
    /// together, whichever is longer: Lance sees conflicts with versions that still exist, and with no others.
    pub fn new(
        older_than: Duration,
        grace: Duration,
        longest_work: Duration,
        within: Duration,
    ) -> Self {
        Self {
            older_than: older_than.max(grace.saturating_add(longest_work)),
            keep_at_least: 1,
            hold_until: None,
            deadline: Instant::now() + within,
        }
    }

    /// How old a version's successor has to be.
    pub fn older_than(&self) -> Duration {
        self.older_than
    }
}

/// What a clean-up removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Versions.
    pub versions: u64,
    /// Their bytes and those of files that only they referred to.
    pub bytes: u64,
    /// Versions that are left.
    pub left: usize,
}

/// Remembers, between clean-ups of one table, when it saw which version.
#[derive(Debug, Default)]
pub struct VersionsMemory {
    clock: StoreClock,
    sights: VecDeque<Sight>,
    /// What the last listing found.
    listed: Option<Listed>,
    /// Since when there are versions that it did not find.
    moved: Option<Instant>,
}

/// At an instant of this process, this was the newest version.
#[derive(Debug, Clone, Copy)]
struct Sight {
    version: Version,
    at: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Listed {
    newest: u64,
    /// When the first of its versions may go.
    due: Option<Instant>,
}

/// So many sights of versions are remembered.
const SIGHTS: usize = 64;
/// A table that moves is listed so many times in the time that its versions live.
const LISTINGS: u32 = 16;

impl VersionsMemory {
    /// An empty memory that goes by its store's clock.
    pub fn new(clock: StoreClock) -> Self {
        Self {
            clock,
            ..Default::default()
        }
    }

    /// Takes note of the newest version of an observation.
    pub fn watch(&mut self, version: u64, now: Instant) {
        match self.listed {
            Some(listed) if version > listed.newest => {
                self.moved.get_or_insert(now);
            }
            Some(listed) if version < listed.newest => {
                // Numbers begin anew: the table was made again.
                self.sights.clear();
                self.listed = None;
            }
            _ => {}
        }
    }

    /// From when on a clean-up may find something to remove; `None` while there is nothing. No request is made.
    pub fn due(&self, policy: &VersionsPolicy, now: Instant) -> Option<Instant> {
        let Some(listed) = self.listed else {
            return Some(policy.hold_until.map_or(now, |hold| now.max(hold)));
        };
        let moved = self.moved.map(|at| at + policy.older_than / LISTINGS);
        let due = listed.due.into_iter().chain(moved).min();
        due.map(|due| policy.hold_until.map_or(due, |hold| due.max(hold)))
    }

    /// Takes note of a listing.
    fn list(&mut self, all: &[Version], now: Instant) {
        all.iter().for_each(|v| self.clock.saw(v.made));
        // A sight counts while its version is there as it was: numbers recur when a table is made again.
        self.sights.retain(|s| all.contains(&s.version));
        let Some(newest) = all.last() else { return };
        if self.sights.back().is_none_or(|s| s.version != *newest) {
            if self.sights.len() >= SIGHTS {
                // The second oldest: the oldest says most.
                self.sights.remove(1);
            }
            self.sights.push_back(Sight {
                version: *newest,
                at: now,
            });
        }
    }

    /// How old a version is at least: the longer of what the store's clock and this process's say.
    fn age(&self, version: &Version, now: Instant) -> Duration {
        let sight = self
            .sights
            .iter()
            .find(|s| s.version.number >= version.number);
        let seen = sight.map_or(Duration::ZERO, |s| now.saturating_duration_since(s.at));
        self.clock.age(version.made).max(seen)
    }

    /// Pairs of versions that need not stay and their successors, ascending.
    fn pairs<'a>(
        all: &'a [Version],
        policy: &VersionsPolicy,
    ) -> impl Iterator<Item = (&'a Version, &'a Version)> {
        let most = all.len().saturating_sub(policy.keep_at_least.max(1));
        all.iter().zip(all.iter().skip(1)).take(most)
    }

    /// The first version that stays, of versions in ascending order; `None` where all do.
    fn keep_from(&self, all: &[Version], policy: &VersionsPolicy, now: Instant) -> Option<u64> {
        Self::pairs(all, policy)
            .take_while(|(_, successor)| self.age(successor, now) >= policy.older_than)
            .last()
            .map(|(_, successor)| successor.number)
    }

    /// When the first version that is not old yet may go. Tagged ones stay whatever their age.
    fn next(&self, all: &[Version], policy: &VersionsPolicy, now: Instant) -> Option<Instant> {
        Self::pairs(all, policy).find_map(|(_, successor)| {
            let age = self.age(successor, now);
            (age < policy.older_than).then(|| now + (policy.older_than - age))
        })
    }
}

/// A base version as listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    number: u64,
    made: Timestamp,
}

impl Table {
    /// Removes versions that are old, and the files that only they refer to. Files that no version refers to go by Lance's
    /// own limit of seven days.
    ///
    /// # Errors
    /// `NotMemWal`, `DeadlineExceeded` and the store's kinds; what was removed before stays removed.
    pub async fn clean_versions(
        &self,
        observation: &Observation,
        policy: &VersionsPolicy,
        memory: &mut VersionsMemory,
    ) -> Result<Cleaned> {
        self.clean_versions_at(observation, policy, memory, Instant::now())
            .await
    }

    /// As [`Table::clean_versions`], with ages counted up to `now`.
    pub async fn clean_versions_at(
        &self,
        observation: &Observation,
        policy: &VersionsPolicy,
        memory: &mut VersionsMemory,
        now: Instant,
    ) -> Result<Cleaned> {
        memory.watch(observation.base.version, now);
        // Old versions may be what a person needs to find out what happened.
        let blocked = observation.anomalies.iter().any(|a| a.kind.blocks());
        if blocked || policy.hold_until.is_some_and(|hold| hold > now) {
            return Ok(Cleaned::default());
        }
        let base = self.latest().await?;
        self.require_mem_wal().await?;
        let all = self.versions().await?;
        memory.list(&all, now);
        let mut cleaned = Cleaned {
            left: all.len(),
            ..Default::default()
        };
        if let Some(keep_from) = memory.keep_from(&all, policy, now) {
            reach("versions.begin").await;
            let rules = CleanupPolicy {
                before_version: Some(keep_from),
                error_if_tagged_old_versions: false,
                ..Default::default()
            };
            let work = base.cleanup_with_policy(rules);
            let removed = tokio::time::timeout_at(policy.deadline.into(), work)
                .await
                .map_err(|_| Error::DeadlineExceeded)?
                .map_err(|e| Error::lance("clean up old versions", e))?;
            cleaned.versions = removed.old_versions;
            cleaned.bytes = removed.bytes_removed;
            cleaned.left = all.len().saturating_sub(removed.old_versions as usize);
            tracing::info!(
                before = keep_from,
                versions = cleaned.versions,
                bytes = cleaned.bytes,
                "old versions are gone"
            );
            reach("versions.done").await;
        }
        memory.listed = Some(Listed {
            newest: all.last().map_or(0, |v| v.number),
            due: memory.next(&all, policy, now),
        });
        memory.moved = None;
        Ok(cleaned)
    }

    /// The versions of the base table, ascending, with the store's times: one listing.
    async fn versions(&self) -> Result<Vec<Version>> {
        let dir = self.path().clone().join(VERSIONS_DIR);
        let scheme = self.seen().await.manifest_location().naming_scheme;
        let mut all: Vec<Version> = self
            .store()
            .inner
            .list(Some(&dir))
            .map_err(|e| Error::store("list the base versions", e))
            .try_filter_map(|meta| async move {
                let name = meta.location.filename().unwrap_or_default();
                let number = ManifestNamingScheme::detect_scheme(name)
                    .unwrap_or(scheme)
                    .parse_version(name);
                Ok(number.map(|number| Version {
                    number,
                    made: timestamp(meta.last_modified),
                }))
            })
            .try_collect()
            .await?;
        all.sort_by_key(|v| v.number);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn versions(hours: &[i64]) -> Vec<Version> {
        let version = |(at, hour): (usize, &i64)| Version {
            number: at as u64 + 1,
            made: Timestamp::from_second(hour * 3600).unwrap(),
        };
        hours.iter().enumerate().map(version).collect()
    }

    fn policy(hours: u32) -> VersionsPolicy {
        VersionsPolicy::new(HOUR * hours, Duration::ZERO, Duration::ZERO, HOUR)
    }

    #[test]
    fn a_version_is_as_old_as_its_successor() {
        let (mut memory, now) = (VersionsMemory::default(), Instant::now());
        // The first was the newest for 99 hours, and is old since the second came.
        let all = versions(&[0, 99, 100, 101]);
        memory.list(&all, now);
        assert_eq!(memory.keep_from(&all, &policy(3), now), None);
        assert_eq!(memory.keep_from(&all, &policy(2), now), Some(2));
        assert_eq!(memory.next(&all, &policy(3), now), Some(now + HOUR));
    }

    #[test]
    fn the_store_s_clock_may_stand_still() {
        let (mut memory, now) = (VersionsMemory::default(), Instant::now());
        let all = versions(&[0, 0]);
        memory.list(&all, now);
        assert_eq!(memory.keep_from(&all, &policy(2), now + HOUR), None);
        assert_eq!(memory.keep_from(&all, &policy(2), now + 2 * HOUR), Some(2));
    }

    #[test]
    fn a_sight_of_a_table_that_was_made_again_counts_no_more() {
        let (mut memory, now) = (VersionsMemory::default(), Instant::now());
        memory.list(&versions(&[0, 0]), now);
        let again = versions(&[5, 5]);
        memory.list(&again, now + 5 * HOUR);
        assert_eq!(memory.keep_from(&again, &policy(2), now + 5 * HOUR), None);
    }

    #[test]
    fn the_newest_versions_stay_whatever_their_age() {
        let (mut memory, now) = (VersionsMemory::default(), Instant::now());
        let all = versions(&[0, 1, 2, 100]);
        memory.list(&all, now);
        let mut policy = policy(2);
        policy.keep_at_least = 3;
        assert_eq!(memory.keep_from(&all, &policy, now), Some(2));
    }

    #[test]
    fn versions_live_longer_than_any_work_and_the_grace_together() {
        let policy = VersionsPolicy::new(HOUR, 2 * HOUR, 3 * HOUR, HOUR);
        assert_eq!(policy.older_than(), 5 * HOUR);
    }

    #[test]
    fn a_table_that_moved_is_listed_again_and_an_idle_one_is_not() {
        let (mut memory, now) = (VersionsMemory::default(), Instant::now());
        assert_eq!(memory.due(&policy(16), now), Some(now));
        memory.listed = Some(Listed {
            newest: 4,
            due: None,
        });
        memory.watch(4, now);
        assert_eq!(memory.due(&policy(16), now), None);
        memory.watch(5, now);
        assert_eq!(memory.due(&policy(16), now), Some(now + HOUR));
    }
}
