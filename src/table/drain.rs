//! Draining: merged generations leave their shard's manifest.
//!
//! Lives here: the one write that MemWAL's writers see of us. It goes by the epoch that was read and claims none, so the
//! live writer is not disturbed (contract 8). May use: Lance's shard manifest store. Never: a directory's deletion.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use jiff::Timestamp;
use lance::Dataset;
use lance::dataset::mem_wal::ShardManifestStore;
use lance::index::DatasetIndexExt;
use lance_core::Error as LanceError;
use lance_index::mem_wal::ShardManifest;
use uuid::Uuid;

use super::base::{Table, details, watermarks};
use super::error::{Error, Result};
use super::generation::Generation;
use super::shard;
use super::snapshot::misnamed;
use super::steps::reach;

/// What a drain took out of a shard's manifest.
#[derive(Debug, Clone)]
pub struct Drained {
    /// The manifest version that lists them no more; the one read where there was nothing to do.
    pub manifest_version: u64,
    /// When this process saw them go.
    pub at: Timestamp,
    /// The generations that left.
    pub generations: Vec<Generation>,
}

/// Tries against a writer that commits at the same time.
const TRIES: usize = 16;

impl Table {
    /// Takes the generations of `shard` through number `through` out of its manifest, as far as the newest base version
    /// says that they are merged.
    ///
    /// # Errors
    /// `UnsupportedManifest` where the manifest says more than this Lance can write back; nothing is changed then.
    pub async fn drain(&self, shard: Uuid, through: u64) -> Result<Drained> {
        reach("drain.begin").await;
        let base = self.latest().await?;
        let (mark, indexed) = merged_and_indexed(&base, shard).await?;
        let through = through.min(indexed);
        for _ in 0..TRIES {
            let store = ShardManifestStore::new(self.store().clone(), self.path(), shard, 2);
            let current = match read_newest(&store).await {
                Ok(current) => current,
                Err(e) => {
                    // Lance's word for a broken manifest is its word for a store that does not answer.
                    shard::newest(self.store(), self.path(), shard, None).await?;
                    return Err(e);
                }
            };
            let Some(current) = current else {
                return Err(Error::UnsupportedManifest {
                    shard,
                    what: "it has no manifest any more".into(),
                });
            };
            // A watermark past the counter says that the shard was made again: then these were never merged.
            let made_again = mark >= current.current_generation;
            let gone = match made_again {
                true => vec![],
                false => leaving(&current, through),
            };
            if let Some(bad) = gone.iter().find(|g| !g.is_named()) {
                let what = misnamed(bad.number);
                return Err(Error::UnsupportedManifest { shard, what });
            }
            let none = Drained {
                manifest_version: current.version,
                at: Timestamp::now(),
                generations: vec![],
            };
            if gone.is_empty() {
                return Ok(none);
            }
            let raw =
                shard::read_version(self.store(), self.path(), shard, current.version).await?;
            if !raw.supported {
                let what = "its manifest has fields that this release does not know; a newer Freshet is needed".into();
                return Err(Error::UnsupportedManifest { shard, what });
            }
            reach("drain.write").await;
            let epoch = current.writer_epoch;
            let moved = AtomicBool::new(false);
            let wrote = store
                .commit_update(epoch, |c| {
                    // Lance tries again on what it reads then, which nobody has checked: a version that does not follow
                    // makes it give up.
                    if c.version != current.version {
                        moved.store(true, Ordering::Relaxed);
                        return c.clone();
                    }
                    without(c, through)
                })
                .await;
            match wrote {
                Ok(manifest) => {
                    reach("drain.written").await;
                    return Ok(Drained {
                        manifest_version: manifest.version,
                        generations: gone,
                        ..none
                    });
                }
                // A writer took the shard or committed first: look again, at its epoch.
                Err(LanceError::Fenced { .. } | LanceError::RetryableCommitConflict { .. }) => {
                    continue;
                }
                Err(_) if moved.load(Ordering::Relaxed) => continue,
                Err(e) => match self.went(shard, through).await? {
                    Some(version) => {
                        return Ok(Drained {
                            manifest_version: version,
                            generations: gone,
                            ..none
                        });
                    }
                    None => return Err(Error::lance("drain a shard", e)),
                },
            }
        }
        Err(Error::Conflict("drain"))
    }

    /// The newest manifest's version, if it lists nothing through `through` any more.
    async fn went(&self, shard: Uuid, through: u64) -> Result<Option<u64>> {
        let state = shard::newest(self.store(), self.path(), shard, None).await?;
        Ok(state
            .filter(|s| leaving(&s.manifest, through).is_empty())
            .map(|s| s.manifest.version))
    }
}

/// The manifest that Lance goes by.
async fn read_newest(store: &ShardManifestStore) -> Result<Option<ShardManifest>> {
    const DOING: &str = "read a shard manifest";
    // Lance counts on from the numbers that files say, and panics at the end of them.
    match AssertUnwindSafe(store.refresh_latest())
        .catch_unwind()
        .await
    {
        Ok(read) => read.map_err(|e| Error::lance(DOING, e)),
        Err(_) => Err(Error::Corrupt {
            what: "a shard's manifests count further than any writer comes".into(),
        }),
    }
}

/// The highest generation of a shard that the base version holds, and the highest that every vector and text index covers
/// too: draining earlier would take rows out of their searches.
async fn merged_and_indexed(base: &Dataset, shard: Uuid) -> Result<(u64, u64)> {
    let Some(details) = details(base).await? else {
        return Ok((0, 0));
    };
    let mark = watermarks(&details).get(&shard).copied().unwrap_or(0);
    if details.index_catchup.is_empty() {
        return Ok((mark, mark));
    }
    let indices = base
        .load_indices()
        .await
        .map_err(|e| Error::lance("read the table's indexes", e))?;
    let searched = |name: &str| {
        indices.iter().filter(|i| i.name == name).any(|i| {
            let kind = i
                .index_details
                .as_ref()
                .map(|d| d.type_url.as_str())
                .unwrap_or_default();
            kind.ends_with("VectorIndexDetails") || kind.ends_with("InvertedIndexDetails")
        })
    };
    let behind = details
        .index_catchup
        .iter()
        .filter(|c| searched(&c.index_name));
    let indexed = behind
        .filter_map(|c| c.caught_up_generation_for_shard(&shard))
        .fold(mark, u64::min);
    Ok((mark, indexed))
}

/// The manifest's successor, which lists nothing through `through`.
fn without(manifest: &ShardManifest, through: u64) -> ShardManifest {
    let stays = manifest.sstables.iter().filter(|s| s.generation > through);
    ShardManifest {
        version: manifest.next_version(),
        sstables: stays.cloned().collect(),
        ..manifest.clone()
    }
}

fn leaving(manifest: &ShardManifest, through: u64) -> Vec<Generation> {
    let listed = manifest.sstables.iter().filter(|s| s.generation <= through);
    listed
        .map(|s| Generation::listed(manifest.shard_id, s))
        .collect()
}
