//! Reclaim: the directories of drained generations go, once nobody can still be reading them.
//!
//! Lives here: what is due and when (`reclaimable`, pure) and the deletion itself, which looks once more at the newest base
//! version and shard manifest before it takes anything (contract 10). May use: this room's survey and listings.
//! Never: a directory at or past the shard's current generation, WAL files, a name it does not know, or local wall time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use lance::dataset::mem_wal::ShardManifestStore;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore as _};
use uuid::Uuid;

use super::base::{Table, details, watermarks};
use super::clock::StoreClock;
use super::error::{Error, Result};
use super::generation::Generation;
use super::observation::Observation;
use super::shard::{self, ShardState, timestamp};
use super::steps::reach;
use super::survey::{ReclaimMemory, Waiting};

/// When a drained generation's directory may go.
#[derive(Debug, Clone, Copy)]
pub struct ReclaimPolicy {
    /// How long it stays after its manifest listed it last.
    pub grace: Duration,
    /// Nothing is deleted before this.
    pub hold_until: Option<Instant>,
    /// Directories that one call deletes at most.
    pub at_most: usize,
    /// No deletion of a directory begins past this.
    pub deadline: Instant,
}

impl ReclaimPolicy {
    /// The policy without a hold, for one call of at most `within`.
    pub fn new(grace: Duration, within: Duration) -> Self {
        Self {
            grace,
            hold_until: None,
            at_most: 256,
            deadline: Instant::now() + within,
        }
    }
}

/// A directory that waits, and when it may go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reclaimable {
    /// From when on; it may turn out earlier when the store's clock moves.
    pub due: Instant,
    /// Its shard.
    pub shard: Uuid,
    /// Its generation's number.
    pub generation: u64,
    /// Its name under the shard.
    pub path: String,
}

/// What a reclaim did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Directories that are gone.
    pub directories: usize,
    /// Objects deleted.
    pub objects: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Directories that were due and turned out to be needed or too young.
    pub kept: usize,
    /// Shard manifests that nothing needs any more.
    pub manifests: usize,
}

/// What of a table's leftovers may be deleted and from when on, earliest first. No request is made, and shards (or tables)
/// that an anomaly blocks are left out. A directory that no manifest is known to have listed counts by the store's clock
/// alone, so it appears once that says that it is due.
pub fn reclaimable(
    observation: &Observation,
    policy: &ReclaimPolicy,
    memory: &ReclaimMemory,
    now: Instant,
) -> Vec<Reclaimable> {
    let mut out = Vec::new();
    for view in &observation.shards {
        let Some(shard) = memory.shards.get(&view.shard) else {
            continue;
        };
        if observation.blocked(view.shard).is_some() {
            continue;
        }
        for (path, waiting) in &shard.waiting {
            let over = waiting.number <= view.watermark && waiting.number < view.current_generation;
            let Some(due) = due(waiting, policy.grace, &memory.clock, now).filter(|_| over) else {
                continue;
            };
            out.push(Reclaimable {
                due: policy.hold_until.map_or(due, |hold| due.max(hold)),
                shard: view.shard,
                generation: waiting.number,
                path: path.clone(),
            });
        }
    }
    out.sort();
    out
}

/// When a directory's wait is over: at once where the store's clock says so, else by this process's own.
fn due(waiting: &Waiting, grace: Duration, clock: &StoreClock, now: Instant) -> Option<Instant> {
    if waiting.left.is_some_and(|left| clock.age(left) >= grace) {
        return Some(now);
    }
    waiting.was_listed.then(|| waiting.seen + grace)
}

/// The shard manifests and base marks that deletions of one call go by.
struct Fresh {
    marks: BTreeMap<Uuid, u64>,
    shards: BTreeMap<Uuid, Option<ShardState>>,
}

impl Table {
    /// Deletes what is due, oldest first, and prunes shard manifests that nothing needs any more. A call that ends early,
    /// by an error or by a kill, leaves nothing that the next one cannot go on with.
    ///
    /// # Errors
    /// `NotMemWal` and the store's kinds; what was deleted before stays deleted.
    pub async fn reclaim(
        &self,
        observation: &Observation,
        policy: &ReclaimPolicy,
        memory: &mut ReclaimMemory,
    ) -> Result<Reclaimed> {
        self.reclaim_at(observation, policy, memory, Instant::now())
            .await
    }

    /// As [`Table::reclaim`], with waits counted up to `now`.
    pub async fn reclaim_at(
        &self,
        observation: &Observation,
        policy: &ReclaimPolicy,
        memory: &mut ReclaimMemory,
        now: Instant,
    ) -> Result<Reclaimed> {
        self.survey(observation, memory, now).await?;
        let mut done = Reclaimed::default();
        let due: Vec<Reclaimable> = reclaimable(observation, policy, memory, now)
            .into_iter()
            .take_while(|r| r.due <= now)
            .take(policy.at_most)
            .collect();
        if !due.is_empty() {
            reach("reclaim.begin").await;
            let base = self.latest().await?;
            let details = details(&base).await?;
            let details = details.ok_or_else(|| Error::NotMemWal(self.location().uri.clone()))?;
            let mut fresh = Fresh {
                marks: watermarks(&details),
                shards: BTreeMap::new(),
            };
            for item in due {
                if Instant::now() >= policy.deadline {
                    break;
                }
                self.reclaim_one(&item, policy, memory, &mut fresh, &mut done)
                    .await?;
            }
        }
        if policy.hold_until.is_none_or(|hold| hold <= now) {
            done.manifests = self.prune(observation, memory).await?;
        }
        Ok(done)
    }

    async fn reclaim_one(
        &self,
        item: &Reclaimable,
        policy: &ReclaimPolicy,
        memory: &mut ReclaimMemory,
        fresh: &mut Fresh,
        done: &mut Reclaimed,
    ) -> Result<()> {
        let state = match fresh.shards.entry(item.shard) {
            Entry::Occupied(read) => read.into_mut(),
            Entry::Vacant(none) => {
                let newest = shard::newest(self.store(), self.path(), item.shard, None).await;
                none.insert(match newest {
                    // Broken since it was observed: all that it may list is in use.
                    Err(Error::UnsupportedManifest { .. }) => None,
                    newest => newest?,
                })
            }
        };
        let clock = memory.clock.clone();
        let Some(shard) = memory.shards.get_mut(&item.shard) else {
            return Ok(());
        };
        let mark = fresh.marks.get(&item.shard).copied().unwrap_or(0);
        if !state
            .as_ref()
            .is_some_and(|state| is_leftover(state, item, mark))
        {
            // What the newest manifest says counts; another survey finds it if it becomes a leftover again.
            shard.waiting.remove(&item.path);
            done.kept += 1;
            return Ok(());
        }
        let dir = generation_of(item).dir(self.path());
        let objects = self.objects(&dir).await?;
        let newest = objects.iter().map(|o| o.written).max();
        objects.iter().for_each(|o| clock.saw(o.written));
        let Some(waiting) = shard.waiting.get_mut(&item.path) else {
            return Ok(());
        };
        let young = newest.is_some_and(|at| clock.age(at) < policy.grace);
        if young && !waiting.was_listed {
            // Somebody may still be writing what no manifest ever listed.
            waiting.left = waiting.left.max(newest);
            done.kept += 1;
            return Ok(());
        }
        let count = objects.len();
        let bytes: u64 = objects.iter().map(|o| o.bytes).sum();
        self.delete(&dir, objects).await?;
        shard.waiting.remove(&item.path);
        tracing::info!(shard = %item.shard, generation = item.generation, path = item.path, objects = count, bytes, "reclaimed");
        done.directories += 1;
        done.objects += count;
        done.bytes += bytes;
        Ok(())
    }

    async fn objects(&self, dir: &Path) -> Result<Vec<Object>> {
        let found = self.store().inner.list(Some(dir)).map_ok(|meta| Object {
            written: timestamp(meta.last_modified),
            bytes: meta.size,
            path: meta.location,
        });
        found.try_collect().await.or_else(|e| match e {
            StoreError::NotFound { .. } => Ok(vec![]),
            e => Err(Error::store("list a generation's objects", e)),
        })
    }

    /// Deletes a directory's objects, its manifest first: from then on nobody can open it and find parts missing, and what
    /// a kill leaves is found by its name again.
    async fn delete(&self, dir: &Path, objects: Vec<Object>) -> Result<()> {
        reach("reclaim.delete").await;
        let manifests = dir.clone().join("_versions");
        let (first, rest): (Vec<_>, Vec<_>) = objects
            .into_iter()
            .map(|o| o.path)
            .partition(|path| path.prefix_matches(&manifests));
        self.delete_objects(first).await?;
        reach("reclaim.headless").await;
        self.delete_objects(rest).await?;
        if self.store().scheme().starts_with("file") {
            // A file system keeps empty directories.
            match self.store().remove_dir_all(dir.clone()).await {
                Ok(()) => {}
                Err(e) if super::error::is_not_found(&e) => {}
                Err(e) => return Err(Error::lance("remove an empty directory", e)),
            }
        }
        reach("reclaim.deleted").await;
        Ok(())
    }

    async fn delete_objects(&self, paths: Vec<Path>) -> Result<()> {
        let paths = stream::iter(paths).map(Ok).boxed();
        let mut gone = self.store().inner.delete_stream(paths);
        while let Some(one) = gone.next().await {
            match one {
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(e) => return Err(Error::store("delete a generation's objects", e)),
            }
        }
        Ok(())
    }

    /// Prunes shard manifests by Lance's own call, which keeps those of the last day.
    async fn prune(&self, observation: &Observation, memory: &mut ReclaimMemory) -> Result<usize> {
        let mut pruned = 0;
        for view in &observation.shards {
            let Some(shard) = memory.shards.get_mut(&view.shard) else {
                continue;
            };
            if observation.blocked(view.shard).is_some() {
                continue;
            }
            let Some(keep_from) = shard.prunable.take() else {
                continue;
            };
            reach("reclaim.prune").await;
            let store = ShardManifestStore::new(self.store().clone(), self.path(), view.shard, 2);
            let count = store.prune_versions_before(keep_from).await;
            let count = count.map_err(|e| Error::lance("prune shard manifests", e))?;
            tracing::info!(shard = %view.shard, keep_from, count, "pruned shard manifests");
            pruned += count;
        }
        Ok(pruned)
    }
}

struct Object {
    path: Path,
    written: Timestamp,
    bytes: u64,
}

fn generation_of(item: &Reclaimable) -> Generation {
    Generation {
        shard: item.shard,
        number: item.generation,
        path: item.path.clone(),
        rows: None,
        bytes: None,
    }
}

/// Whether the newest manifest and base version agree that a directory is a leftover.
fn is_leftover(state: &ShardState, item: &Reclaimable, mark: u64) -> bool {
    state.supported
        && item.generation < state.manifest.current_generation
        && item.generation <= mark
        // A watermark past the counter says that the shard was made again: then numbers say nothing.
        && mark < state.manifest.current_generation
        && !state.manifest.sstables.iter().any(|s| s.path == item.path)
}
