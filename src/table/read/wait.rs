//! Waiting until the base holds what was flushed.
//!
//! Lives here: `Goal`, per shard the generation that the base is to hold, and the wait for it: the shards' manifests are
//! read on arrival, then the base is asked for a newer version until its watermarks are there. May use: looks, the base.
//! Never: two clocks compared, or a watermark believed that is not about the generations that the shard lists.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lance::Dataset;
use uuid::Uuid;

use super::super::base::{Table, same_version};
use super::super::error::Error;
use super::super::snapshot::Snapshot;
use super::Reader;
use super::bounds::ReadError;
use super::identity::SnapshotId;

/// How long after the first look the base is looked at again; half as long again each next time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest time between two looks at the base.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The longest time between two looks at the shards: a drain moves no base.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Per shard, the generation through which the base is to hold it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Goal(BTreeMap<Uuid, u64>);

impl Goal {
    /// The highest generation of each shard that is named.
    pub fn new(generations: impl IntoIterator<Item = (Uuid, u64)>) -> Self {
        let mut highest = BTreeMap::new();
        for (shard, generation) in generations {
            let through: &mut u64 = highest.entry(shard).or_default();
            *through = generation.max(*through);
        }
        Self(highest)
    }

    /// All that the shards' manifests list: what was flushed before they were read.
    fn of(snapshot: &Snapshot) -> Self {
        let listed = snapshot.shards.iter().flat_map(|s| &s.merged);
        Self::new(
            listed
                .chain(snapshot.pending())
                .map(|g| (g.shard, g.number)),
        )
    }

    fn seen(&self, snapshot: &Snapshot) -> Waited {
        let shards = self.0.iter().map(|(shard, through)| {
            let listed = snapshot.shards.iter().find(|s| s.state.shard == *shard);
            let pending = listed.map_or(0, |s| {
                let counts = |g: &&super::super::generation::Generation| g.number <= *through;
                s.pending.iter().filter(counts).count()
            });
            Awaited {
                shard: *shard,
                generation: *through,
                watermark: snapshot.marks.get(shard).copied().unwrap_or(0),
                pending,
            }
        });
        Waited {
            shards: shards.collect(),
            snapshot: SnapshotId::of(snapshot),
        }
    }
}

/// What was waited for, and how far it had come when the wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waited {
    /// The shards that were waited for, ascending by id.
    pub shards: Vec<Awaited>,
    /// The last look.
    pub snapshot: SnapshotId,
}

impl Waited {
    /// Whether the base holds all of it.
    pub fn is_held(&self) -> bool {
        self.shards.iter().all(Awaited::is_held)
    }
}

/// One shard that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awaited {
    /// The shard.
    pub shard: Uuid,
    /// The generation through which the base is to hold it.
    pub generation: u64,
    /// The base's watermark of it; 0 for none.
    pub watermark: u64,
    /// Generations through that one which the shard lists and the base does not hold.
    pub pending: usize,
}

impl Awaited {
    /// Whether the base holds it: a watermark alone does not say so of a shard that was made again.
    pub fn is_held(&self) -> bool {
        self.watermark >= self.generation && self.pending == 0
    }
}

/// The newest base version, asked for by all who wait for one table.
#[derive(Default)]
pub(super) struct Newest(tokio::sync::Mutex<Option<(Instant, Arc<Dataset>)>>);

impl Newest {
    /// One that was asked for at or after `since`.
    async fn since(&self, table: &Table, since: Instant) -> Result<Arc<Dataset>, Error> {
        let mut last = self.0.lock().await;
        if let Some((at, base)) = last.as_ref().filter(|(at, _)| *at >= since) {
            tracing::trace!(age = ?at.elapsed(), "a look at the base is shared");
            return Ok(base.clone());
        }
        let now = Instant::now();
        let base = table.latest().await?;
        *last = Some((now, base.clone()));
        Ok(base)
    }
}

impl Reader {
    /// Waits until the base holds what is named, or, where nothing is, all that the shards' manifests list now; at `until`
    /// says how far it has come. Costs a look at the shards now, when the base has moved, and every 10 s, and one request each
    /// time that it has not moved: 0.1 s after the first, at last every 2 s, together for all who wait for the table.
    ///
    /// # Errors
    /// What a look says; a store that does not answer for a while is waited for, too.
    pub async fn wait(
        &self,
        table: &Table,
        goal: Option<Goal>,
        until: Instant,
    ) -> Result<Waited, ReadError> {
        let remembered = self.remembered(table.location());
        let mut looked = Instant::now();
        let mut snapshot = remembered.seen.look(table, looked, false).await?;
        if !snapshot.mem_wal {
            return Err(Error::NotMemWal(table.location().uri.clone()).into());
        }
        let concerns = |shard: &Uuid| goal.as_ref().is_none_or(|g| g.0.contains_key(shard));
        readable(&snapshot, concerns)?;
        let goal = goal.clone().unwrap_or_else(|| Goal::of(&snapshot));
        let mut pause = FIRST_PAUSE;
        loop {
            let waited = goal.seen(&snapshot);
            let left = until.saturating_duration_since(Instant::now());
            if waited.is_held() || left.is_zero() {
                return Ok(waited);
            }
            tokio::time::sleep(pause.min(left)).await;
            // What another asked for less than half a pause ago is new enough.
            let since = Instant::now() - pause / 2;
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
            let moved = match remembered.newest.since(table, since).await {
                Ok(base) => !same_version(&base, &snapshot.base),
                Err(e) => patience(e.into(), until).map(|()| false)?,
            };
            if !moved && looked.elapsed() < LOOK_EVERY {
                continue;
            }
            looked = Instant::now();
            match remembered.seen.look(table, looked, false).await {
                Ok(again) => {
                    readable(&again, |shard| goal.0.contains_key(shard))?;
                    snapshot = again;
                }
                Err(e) => patience(e.into(), until)?,
            }
        }
    }
}

/// Refuses a look in which a shard that is waited for could not be read.
fn readable(snapshot: &Snapshot, concerns: impl Fn(&Uuid) -> bool) -> Result<(), ReadError> {
    match snapshot.unread.iter().find(|f| concerns(&f.shard)) {
        Some(fault) => Err(fault.error().into()),
        None => Ok(()),
    }
}

/// Forgives a store that does not answer as long as there is time.
fn patience(e: ReadError, until: Instant) -> Result<(), ReadError> {
    match e {
        ReadError::Table(Error::StoreUnreachable(_)) if Instant::now() < until => Ok(()),
        e => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_generation_of_a_shard_is_its_goal() {
        let [a, b] = [1, 2].map(Uuid::from_u128);
        let goal = Goal::new([(a, 3), (b, 9), (a, 7), (a, 5)]);
        assert_eq!(goal, Goal::new([(b, 9), (a, 7)]));
        assert_eq!(goal.0[&a], 7);
    }

    #[test]
    fn a_watermark_is_not_believed_of_generations_that_are_pending() {
        let awaited = |watermark, pending| Awaited {
            shard: Uuid::nil(),
            generation: 4,
            watermark,
            pending,
        };
        assert!(awaited(4, 0).is_held() && awaited(9, 0).is_held());
        // Not flushed yet, taken away unmarked, made again.
        assert!(!awaited(3, 0).is_held() && !awaited(0, 0).is_held() && !awaited(9, 2).is_held());
    }
}
