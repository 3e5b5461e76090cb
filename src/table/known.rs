//! What is known of generations without looking again.
//!
//! Lives here: `Known`, the facts of pending generations, each read once, and the shards that went back, or whose
//! watermark is not theirs, with a person's word. May use: generations, the table's store. Never: which generations are pending (`snapshot`), or a judgement
//! (`observe`).

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt, TryStreamExt, stream};
use uuid::Uuid;

use super::base::Table;
use super::error::Result;
use super::generation::{Facts, Generation, facts};
use super::shard::AT_ONCE;

/// Facts of generations, read once each.
#[derive(Default)]
pub struct Known {
    facts: Mutex<HashMap<(Uuid, String), Arc<Facts>>>,
    /// Shards that went back and that a person said are as they should be.
    acknowledged: Mutex<BTreeSet<Uuid>>,
    /// Shards whose watermark has to leave the base before any of their generations is merged, as a person said.
    resetting: Mutex<BTreeSet<Uuid>>,
}

impl Known {
    /// The facts of some generations, in their order; what is not known yet is read, some at a time.
    pub(crate) async fn all(
        &self,
        table: &Table,
        wanted: &[Generation],
    ) -> Result<Vec<(Generation, Arc<Facts>)>> {
        stream::iter(wanted.to_vec())
            .map(|generation| async move {
                let facts = self.of(table, &generation).await?;
                Ok((generation, facts))
            })
            .buffered(AT_ONCE)
            .try_collect()
            .await
    }

    pub(crate) async fn of(&self, table: &Table, generation: &Generation) -> Result<Arc<Facts>> {
        if let Some(facts) = self.get(generation) {
            return Ok(facts);
        }
        let read = Arc::new(facts(table.store(), table.path(), generation).await?);
        self.lock()
            .insert((generation.shard, generation.path.clone()), read.clone());
        Ok(read)
    }

    /// The facts of a generation, if they were read before.
    pub fn get(&self, generation: &Generation) -> Option<Arc<Facts>> {
        self.lock()
            .get(&(generation.shard, generation.path.clone()))
            .cloned()
    }

    /// Those of `shards` that went back with a person's word that it is right.
    pub(crate) fn acknowledged(&self, shards: impl Iterator<Item = Uuid>) -> Vec<Uuid> {
        let held = lock(&self.acknowledged);
        shards.filter(|shard| held.contains(shard)).collect()
    }

    /// Remembers the shards that went back with a person's word that it is right.
    pub(crate) fn set_acknowledged(&self, shards: BTreeSet<Uuid>) {
        *lock(&self.acknowledged) = shards;
    }

    /// Those of `shards` whose watermark has to be taken out first.
    pub(crate) fn resetting(&self, shards: impl Iterator<Item = Uuid>) -> Vec<Uuid> {
        let held = lock(&self.resetting);
        shards.filter(|shard| held.contains(shard)).collect()
    }

    /// Remembers the shards whose watermark has to be taken out first.
    pub(crate) fn set_resetting(&self, shards: BTreeSet<Uuid>) {
        *lock(&self.resetting) = shards;
    }

    /// Forgets all generations but these.
    pub(crate) fn keep<'a>(&self, pending: impl Iterator<Item = &'a Generation>) {
        let keep: BTreeSet<(Uuid, &str)> = pending.map(|g| (g.shard, g.path.as_str())).collect();
        self.lock()
            .retain(|(shard, path), _| keep.contains(&(*shard, path.as_str())));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(Uuid, String), Arc<Facts>>> {
        lock(&self.facts)
    }
}

fn lock<T>(held: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
