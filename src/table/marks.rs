//! Since when the base holds what of which shard.
//!
//! Lives here: `Marks`, by which a shard that was made again and has come past its old watermark still shows: what it lists
//! at or below the mark was flushed after the base said so (contract 3). Two clocks have to agree, the one inside the
//! manifests, which a copy keeps, and the store's, which knows no skew between writers. May use: facts of generations.
//! Never: a word on a generation that was flushed before the oldest version known to hold its mark, or at the same time.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use lance::Dataset;
use object_store::{Error as StoreError, ObjectStoreExt as _};
use uuid::Uuid;

use super::base::Table;
use super::error::{Error, Result};
use super::generation::{Facts, Generation};
use super::known::Known;
use super::shard::timestamp;
use super::snapshot::Snapshot;

/// A base version, and when it was made as it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    pub version: u64,
    pub at: Timestamp,
}

impl Made {
    pub fn of(base: &Dataset) -> Self {
        Self {
            version: base.version_id(),
            at: nanoseconds(base.manifest().timestamp_nanos),
        }
    }
}

/// A time that a manifest says; the beginning of time where that is none.
pub(crate) fn nanoseconds(at: u128) -> Timestamp {
    i128::try_from(at)
        .ok()
        .and_then(|at| Timestamp::from_nanosecond(at).ok())
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Per shard and watermark, the first version that is known to hold it.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    since: BTreeMap<Uuid, BTreeMap<u64, Made>>,
    version: u64,
    /// The newest merged generation of a shard that was judged, and whether it came after its mark.
    judged: BTreeMap<Uuid, (String, bool)>,
}

/// So many watermarks of a shard are remembered.
const MOST: usize = 512;

impl Marks {
    /// Takes note of a version's watermarks; versions come in ascending order. Where any goes back, what was known of its
    /// shard says nothing any more.
    pub fn saw(&mut self, made: Made, marks: &BTreeMap<Uuid, u64>) {
        if made.version < self.version {
            self.since.clear();
            self.judged.clear();
        }
        self.version = made.version;
        let back = |shard: &Uuid, since: &BTreeMap<u64, Made>| {
            let mark = marks.get(shard).copied().unwrap_or(0);
            since.keys().next_back().is_some_and(|last| *last > mark)
        };
        let back = self
            .since
            .iter()
            .filter(|(shard, since)| back(shard, since));
        for shard in back.map(|(shard, _)| *shard).collect::<Vec<_>>() {
            self.forget(shard);
        }
        for (shard, mark) in marks {
            let since = self.since.entry(*shard).or_default();
            since.entry(*mark).or_insert(made);
            if since.len() > MOST {
                since.pop_first();
            }
        }
    }

    /// Forgets what was known of a shard: its watermark began anew.
    pub fn forget(&mut self, shard: Uuid) {
        self.since.remove(&shard);
        self.judged.remove(&shard);
    }

    /// The shards whose newest generation at or below the watermark was flushed after a version held that mark already.
    /// One request for a shard whose newest such generation was not looked at before; another where it seems so.
    ///
    /// # Errors
    /// The store's kinds. A generation that cannot be read says nothing.
    pub async fn made_again(
        &mut self,
        table: &Table,
        snapshot: &Snapshot,
        known: &Known,
    ) -> Result<BTreeSet<Uuid>> {
        let mut found = BTreeSet::new();
        let merged = snapshot.shards.iter().filter_map(|s| s.merged.last());
        for newest in merged {
            let before = self.judged.get(&newest.shard);
            let later = match before.filter(|(path, _)| *path == newest.path) {
                Some((_, later)) => *later,
                None => self.came_after_its_mark(table, newest, known).await?,
            };
            let verdict = (newest.path.clone(), later);
            self.judged.insert(newest.shard, verdict);
            if later {
                found.insert(newest.shard);
            }
        }
        Ok(found)
    }

    async fn came_after_its_mark(
        &self,
        table: &Table,
        newest: &Generation,
        known: &Known,
    ) -> Result<bool> {
        let since = self.since.get(&newest.shard);
        let Some((_, made)) = since.and_then(|s| s.range(newest.number..).next()) else {
            return Ok(false);
        };
        let facts = match known.of(table, newest).await {
            Ok(facts) => facts,
            Err(e) if e.poisoned().is_some() => return Ok(false),
            Err(e) => return Err(e),
        };
        Ok(is_later(table, &facts, *made).await? == Later::Yes)
    }
}

/// Whether a generation was flushed after a version was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Later {
    Yes,
    No,
    /// By the writers' clocks it was, and the store's shows the same time for both.
    Untold,
}

/// Whether a generation was flushed after a version was made, by both clocks. One request where it seems so.
pub(crate) async fn is_later(table: &Table, facts: &Facts, made: Made) -> Result<Later> {
    if facts.written_at <= made.at {
        return Ok(Later::No);
    }
    // One that was cleaned up since is older than any version that a merge of a new generation made.
    let made_at = written(table, made.version).await?;
    Ok(match made_at.map(|at| facts.flushed_at.cmp(&at)) {
        None | Some(Ordering::Greater) => Later::Yes,
        Some(Ordering::Equal) => Later::Untold,
        Some(Ordering::Less) => Later::No,
    })
}

/// When the store says that a base version was made; `None` where it is gone.
pub(crate) async fn written(table: &Table, version: u64) -> Result<Option<Timestamp>> {
    let seen = table.seen().await;
    let path = seen
        .manifest_location()
        .naming_scheme
        .manifest_path(table.path(), version);
    match table.store().inner.head(&path).await {
        Ok(meta) => Ok(Some(timestamp(meta.last_modified))),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(e) => Err(Error::store("look when a version was made", e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(version: u64) -> Made {
        Made {
            version,
            at: Timestamp::from_second(version as i64).unwrap(),
        }
    }

    #[test]
    fn a_mark_counts_from_its_first_version_and_no_more_once_it_went_back() {
        let (mut marks, shard) = (Marks::default(), Uuid::from_u128(1));
        let at = |mark: u64| BTreeMap::from([(shard, mark)]);
        marks.saw(made(2), &at(3));
        marks.saw(made(3), &at(3));
        marks.saw(made(4), &at(5));
        assert_eq!(
            marks.since[&shard],
            BTreeMap::from([(3, made(2)), (5, made(4))])
        );
        marks.saw(made(5), &BTreeMap::new());
        assert!(marks.since.is_empty());
        marks.saw(made(6), &at(3));
        assert_eq!(marks.since[&shard], BTreeMap::from([(3, made(6))]));
        // A table that was made again counts its versions from the start.
        marks.saw(made(1), &at(4));
        assert_eq!(marks.since[&shard], BTreeMap::from([(4, made(1))]));
    }
}
