//! What lies under a shard and is listed by its manifest no more.
//!
//! Lives here: `ReclaimMemory` (which directories wait for the grace to pass, and since when) and the survey that finds
//! them: two listings of a shard when this process meets it, then hourly, and only where the shard has moved since.
//! May use: listings, manifests. Never: a write, or a directory whose name it does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use lance::dataset::mem_wal::util::shard_base_path;
use lance_index::mem_wal::ShardManifest;
use object_store::{Error as StoreError, ObjectStore as _};
use uuid::Uuid;

use super::base::Table;
use super::clock::StoreClock;
use super::drain::Drained;
use super::error::{Error, Result};
use super::observation::{Observation, ShardView};
use super::shard;

/// A shard that moved is surveyed again after so long: for what a crash or another process left behind.
pub const SURVEY_EVERY: Duration = Duration::from_secs(3600);

/// A shard manifest goes once its successor is older than this: until then a reader may hold a cursor to what it lists.
/// Longer than any cursor lives ([`LONGEST_GRACE`](super::LONGEST_GRACE)), and than Lance keeps every manifest.
const PRUNE_AGE: Duration = Duration::from_secs(24 * 3600 + 600);
/// Fewer prunable manifests than this are not worth the requests.
const PRUNE_AT_LEAST: usize = 64;

/// A directory that waits for the grace to pass.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    /// Its generation's number.
    pub number: u64,
    /// When this process first saw it unlisted.
    pub seen: Instant,
    /// When it left its manifest, by the store's clock, at the latest; `None` where that was not looked up.
    pub left: Option<Timestamp>,
    /// A manifest version that does not list it, the first such or a later one.
    pub version: u64,
    /// Whether a manifest is known to have listed it. Without that it may be an attempt that nobody finished.
    pub was_listed: bool,
}

/// What is remembered of one shard.
#[derive(Debug, Default)]
pub(crate) struct ShardMemory {
    /// Merged generations that the last observation still listed.
    listed: BTreeMap<String, u64>,
    pub waiting: BTreeMap<String, Waiting>,
    surveyed: Option<(u64, Instant)>,
    /// Shard manifests below this version, so many of them, may be pruned.
    pub prunable: Option<u64>,
    pub unknown: Vec<String>,
}

/// Remembers, between reclaims of one table, what waits to be deleted. Losing it loses no more than the waits.
#[derive(Debug, Default)]
pub struct ReclaimMemory {
    pub(crate) clock: StoreClock,
    pub(crate) shards: BTreeMap<Uuid, ShardMemory>,
}

impl ReclaimMemory {
    /// An empty memory that goes by its store's clock.
    pub fn new(clock: StoreClock) -> Self {
        Self {
            clock,
            shards: BTreeMap::new(),
        }
    }

    /// Takes note of what a drain took out, so that no listing has to find it.
    pub fn drained(&mut self, drained: &Drained) {
        let seen = Instant::now();
        for generation in &drained.generations {
            let shard = self.shards.entry(generation.shard).or_default();
            shard.listed.remove(&generation.path);
            shard.wait(
                &generation.path,
                Waiting {
                    number: generation.number,
                    seen,
                    left: None,
                    version: drained.manifest_version,
                    was_listed: true,
                },
            );
        }
    }

    /// Takes note of merged generations that are listed no more since the last observation.
    pub fn watch(&mut self, observation: &Observation, now: Instant) {
        for view in &observation.shards {
            let shard = self.shards.entry(view.shard).or_default();
            let merged = view.merged.iter();
            let listed: BTreeMap<String, u64> =
                merged.map(|(g, _)| (g.path.clone(), g.number)).collect();
            let pending = |path: &str| view.pending.iter().any(|p| p.generation.path == path);
            for (path, number) in std::mem::replace(&mut shard.listed, listed) {
                if !shard.listed.contains_key(&path) && !pending(&path) {
                    shard.wait(
                        &path,
                        Waiting {
                            number,
                            seen: now,
                            left: None,
                            version: view.manifest_version,
                            was_listed: true,
                        },
                    );
                }
            }
        }
        let there: BTreeSet<Uuid> = observation.shards.iter().map(|s| s.shard).collect();
        self.shards.retain(|shard, _| there.contains(shard));
    }

    /// Directories that wait.
    pub fn waiting(&self) -> usize {
        self.shards.values().map(|s| s.waiting.len()).sum()
    }

    /// Directories whose names say nothing; they are left alone.
    pub fn unknown(&self) -> impl Iterator<Item = (Uuid, &str)> {
        let all = self.shards.iter();
        all.flat_map(|(shard, s)| s.unknown.iter().map(|name| (*shard, name.as_str())))
    }
}

impl ShardMemory {
    fn wait(&mut self, path: &str, new: Waiting) {
        // A manifest may list any string; only a generation's own directory is ever deleted.
        if generation_number(path) != Some(new.number) {
            return;
        }
        self.waiting.entry(path.to_string()).or_insert(new);
    }

    fn is_due(&self, view: &ShardView, now: Instant) -> bool {
        self.surveyed.is_none_or(|(version, at)| {
            version != view.manifest_version && now.saturating_duration_since(at) >= SURVEY_EVERY
        })
    }
}

impl Table {
    /// Looks for directories that are listed no more, in the shards that are due for it; without any, no request is made.
    /// Returns how many shards were looked at.
    ///
    /// # Errors
    /// The store's kinds. What was found before stays remembered.
    pub async fn survey(
        &self,
        observation: &Observation,
        memory: &mut ReclaimMemory,
        now: Instant,
    ) -> Result<usize> {
        memory.watch(observation, now);
        let mut looked = 0;
        for view in &observation.shards {
            if observation.blocked(view.shard).is_some() {
                continue;
            }
            let clock = memory.clock.clone();
            let shard = memory.shards.entry(view.shard).or_default();
            if shard.is_due(view, now) {
                self.survey_shard(view, shard, &clock, now).await?;
                looked += 1;
            }
        }
        Ok(looked)
    }

    async fn survey_shard(
        &self,
        view: &ShardView,
        memory: &mut ShardMemory,
        clock: &StoreClock,
        now: Instant,
    ) -> Result<()> {
        let found = self.directories(view, memory).await?;
        let times = shard::versions(self.store(), self.path(), view.shard).await?;
        times.values().for_each(|at| clock.saw(*at));
        for waiting in memory.waiting.values_mut() {
            waiting.left = waiting.left.or(times.get(&waiting.version).copied());
        }
        let mut history = History::new(self, view.shard, &times);
        for (path, number) in found {
            let Some(left) = history.left(&path, number).await? else {
                continue;
            };
            memory.wait(
                &path,
                Waiting {
                    number,
                    seen: now,
                    left: times.get(&left.version).copied(),
                    version: left.version,
                    was_listed: left.was_listed,
                },
            );
        }
        memory.prunable = prunable(&times, memory, clock);
        memory.surveyed = Some((view.manifest_version, now));
        Ok(())
    }

    /// The shard's directories that may be leftovers: numbered below what is being written, merged, and not listed.
    async fn directories(
        &self,
        view: &ShardView,
        memory: &mut ShardMemory,
    ) -> Result<Vec<(String, u64)>> {
        let dir = shard_base_path(self.path(), &view.shard);
        let found = match self.store().inner.list_with_delimiter(Some(&dir)).await {
            Ok(found) => found,
            Err(StoreError::NotFound { .. }) => return Ok(vec![]),
            Err(e) => return Err(Error::store("list a shard's directories", e)),
        };
        let merged = view.merged.iter().map(|(g, _)| g.path.as_str());
        let pending = view.pending.iter().map(|p| p.generation.path.as_str());
        let listed: BTreeSet<&str> = merged.chain(pending).collect();
        memory.unknown.clear();
        let mut left = Vec::new();
        for prefix in found.common_prefixes {
            let name = prefix.filename().unwrap_or_default();
            if name == "manifest" || name == "wal" {
                continue;
            }
            match generation_number(name) {
                None => memory.unknown.push(name.to_string()),
                Some(number) => {
                    let over = number < view.current_generation && number <= view.watermark;
                    if over && !listed.contains(name) && !memory.waiting.contains_key(name) {
                        left.push((name.to_string(), number));
                    }
                }
            }
        }
        Ok(left)
    }
}

/// The number in a generation directory's name, `<8 hex digits>_gen_<number>`; `None` for any other name.
pub(crate) fn generation_number(name: &str) -> Option<u64> {
    let (hash, number) = name.split_once("_gen_")?;
    let hex = hash.len() == 8 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (hex && digits).then(|| number.parse().ok()).flatten()
}

/// The version below which manifests may go: no directory that waits, and no listing, needs them any more.
fn prunable(
    times: &BTreeMap<u64, Timestamp>,
    memory: &ShardMemory,
    clock: &StoreClock,
) -> Option<u64> {
    let newest = *times.keys().next_back()?;
    let needed = memory.waiting.values().map(|w| w.version).min();
    let keep = needed.unwrap_or(newest).min(newest);
    // Of the manifests that are old themselves the last may have been the newest until a moment ago: it stays.
    let old = times
        .range(..=keep)
        .take_while(|(_, at)| clock.age(**at) >= PRUNE_AGE);
    let (count, last) = old.fold((0, None), |(n, _), (version, _)| (n + 1, Some(*version)));
    last.filter(|_| count > PRUNE_AT_LEAST)
}

/// When a directory left its manifest.
struct Left {
    version: u64,
    was_listed: bool,
}

/// A shard's retained manifests, read as they are asked for.
struct History<'a> {
    table: &'a Table,
    shard: Uuid,
    versions: Vec<u64>,
    read: BTreeMap<u64, Option<Arc<ShardManifest>>>,
}

impl<'a> History<'a> {
    fn new(table: &'a Table, shard: Uuid, times: &BTreeMap<u64, Timestamp>) -> Self {
        Self {
            table,
            shard,
            versions: times.keys().copied().collect(),
            read: BTreeMap::new(),
        }
    }

    /// A manifest; `None` where it cannot be used, which says nothing of what it listed.
    async fn manifest(&mut self, version: u64) -> Result<Option<Arc<ShardManifest>>> {
        if let Some(read) = self.read.get(&version) {
            return Ok(read.clone());
        }
        let (store, path) = (self.table.store(), self.table.path());
        let manifest = match shard::read_version(store, path, self.shard, version).await {
            Ok(state) => Some(state.manifest),
            Err(Error::UnsupportedManifest { .. }) => None,
            Err(e) => return Err(e),
        };
        self.read.insert(version, manifest.clone());
        Ok(manifest)
    }

    /// The first retained manifest from which on nothing up to `number` is listed, so that the directory is not either:
    /// that is so once and for good, and the search may halve. One that cannot be used counts as if it listed it still, which
    /// makes for a later one. `None` while something that old is still listed.
    async fn left(&mut self, path: &str, number: u64) -> Result<Option<Left>> {
        let over = |m: &ShardManifest| {
            m.current_generation > number && m.sstables.iter().all(|s| s.generation > number)
        };
        let (mut low, mut high) = (0, self.versions.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.manifest(self.versions[middle]).await? {
                Some(manifest) if over(&manifest) => high = middle,
                _ => low = middle + 1,
            }
        }
        let Some(version) = self.versions.get(low).copied() else {
            return Ok(None);
        };
        let was_listed = match low.checked_sub(1) {
            None => false,
            Some(before) => {
                let manifest = self.manifest(self.versions[before]).await?;
                manifest.is_some_and(|m| m.sstables.iter().any(|s| s.path == path))
            }
        };
        Ok(Some(Left {
            version,
            was_listed,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_manifest_that_was_the_newest_until_a_moment_ago_is_not_pruned() {
        let at = |hour: i64| Timestamp::from_second(hour * 3600).unwrap();
        let clock = StoreClock::new();
        let idle = |last: i64| (1..=100).map(move |v| (v, at(v as i64 / 50 + last)));
        let all = |times: &mut dyn Iterator<Item = (u64, Timestamp)>| times.collect();
        let memory = ShardMemory::default();
        let keep = |times: BTreeMap<u64, Timestamp>| prunable(&times, &memory, &clock);
        clock.saw(at(200));
        // Nobody wrote for days: every one but the newest has a successor that is old.
        assert_eq!(keep(all(&mut idle(0))), Some(100));
        // One was written now: the one before it was read as the newest a moment ago.
        let now = (101, at(200));
        assert_eq!(keep(all(&mut idle(0).chain([now]))), Some(100));
        assert_eq!(keep(all(&mut idle(180).chain([now]))), None);
        // Few are not worth it.
        assert_eq!(keep(all(&mut idle(0).take(64))), None);
        assert_eq!(keep(all(&mut idle(0).take(65))), Some(65));
    }

    #[test]
    fn only_names_that_lance_gives_to_generations_are_generations() {
        assert_eq!(generation_number("0a1b2c3d_gen_17"), Some(17));
        for name in [
            "0a1b2c3d_gen_",
            "0a1b2c3_gen_1",
            "0a1b2c3d_gen_+1",
            "xyzxyzxy_gen_1",
            "wal2",
            "0a1b2c3d_gen_1_old",
        ] {
            assert_eq!(generation_number(name), None, "{name}");
        }
    }
}
