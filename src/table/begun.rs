//! Since when the base has its MemWAL index.
//!
//! Lives here: `Begun`, by which generations show that are older than the index which counts them as pending: the table was
//! overwritten, restored or made again under them (contract 3). As with `marks`, two clocks have to agree. May use: facts
//! of generations. Never: a word where no retained version is without the index.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::base::Table;
use super::error::Result;
use super::generation::Generation;
use super::known::Known;
use super::marks::{Made, written};
use super::snapshot::Snapshot;

/// The version that the MemWAL index began with, where that is known.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    at: Option<Made>,
    /// Whether the commits since were asked for what a person said of them.
    asked: bool,
    seen: Option<(u64, bool)>,
    /// Shards whose older generations are merged, as a person said.
    settled: BTreeSet<Uuid>,
    /// The oldest pending generation of a shard that was judged, and whether it is older than the index.
    judged: BTreeMap<Uuid, (String, bool)>,
}

impl Begun {
    /// Takes note of a version, and whether it has the index; versions come in ascending order, each again at will.
    pub fn saw(&mut self, made: Made, indexed: bool) {
        if self.seen.is_some_and(|(before, _)| made.version < before) {
            *self = Self::default();
        }
        let without = self.seen.is_some_and(|(_, indexed)| !indexed);
        if indexed && without {
            *self = Self {
                at: Some(made),
                ..Self::default()
            };
        }
        self.seen = Some((made.version, indexed));
    }

    /// Takes note that a person said of these shards that all is as it should be.
    pub fn settle(&mut self, shards: impl IntoIterator<Item = Uuid>) {
        self.settled.extend(shards);
    }

    /// The version that the index began with, until the commits since were asked.
    pub fn unasked(&self) -> Option<u64> {
        self.version().filter(|_| !self.asked)
    }

    /// Takes note that the commits since were asked.
    pub fn asked(&mut self) {
        self.asked = true;
    }

    /// The version that the index began with.
    pub fn version(&self) -> Option<u64> {
        self.at.map(|made| made.version)
    }

    /// The shards whose oldest pending generation was flushed before the index began. One request where it seems so.
    ///
    /// # Errors
    /// The store's kinds. A generation that nobody could read yet says nothing.
    pub async fn older(
        &mut self,
        table: &Table,
        snapshot: &Snapshot,
        known: &Known,
    ) -> Result<BTreeSet<Uuid>> {
        let mut found = BTreeSet::new();
        let Some(made) = self.at else {
            return Ok(found);
        };
        let oldest = snapshot.shards.iter().filter_map(|s| s.pending.first());
        for oldest in oldest.filter(|g| !self.settled.contains(&g.shard)) {
            let before = self.judged.get(&oldest.shard);
            let older = match before.filter(|(path, _)| *path == oldest.path) {
                Some((_, older)) => *older,
                None => match is_older(table, oldest, made, known).await? {
                    Some(older) => {
                        let verdict = (oldest.path.clone(), older);
                        self.judged.insert(oldest.shard, verdict);
                        older
                    }
                    None => false,
                },
            };
            if older {
                found.insert(oldest.shard);
            }
        }
        Ok(found)
    }
}

/// Whether a generation was flushed before a version was made; `None` where nobody could read its facts yet.
async fn is_older(
    table: &Table,
    generation: &Generation,
    made: Made,
    known: &Known,
) -> Result<Option<bool>> {
    let facts = match known.of(table, generation).await {
        Ok(facts) => facts,
        Err(e) if e.poisoned().is_some() => return Ok(None),
        Err(e) => return Err(e),
    };
    if facts.written_at >= made.at {
        return Ok(Some(false));
    }
    let made_at = written(table, made.version).await?;
    Ok(Some(made_at.is_none_or(|at| facts.flushed_at < at)))
}

/// What is said of a shard that lists older generations.
pub(crate) fn told(shard: Uuid, version: u64) -> String {
    format!(
        "shard {shard} has pending generations from before version {version}, with which MemWAL began anew: the table was overwritten, restored or made again, or its MemWAL index was"
    )
}

/// What is said of a shard whose watermark fell.
pub(crate) fn fell(shard: Uuid, before: u64, now: u64) -> String {
    format!(
        "generations of shard {shard} were merged through {before}, and the base says {now}: it was restored or overwritten, or its MemWAL index was made anew"
    )
}

/// What a person can do about either. Without a key, rows that the base holds and that are merged again are there twice.
pub(crate) fn remedy(keyed: bool, doubles: bool) -> &'static str {
    match (keyed, doubles) {
        (true, _) => "acknowledge WentBack to merge what is listed all the same",
        (false, false) => {
            "acknowledge WentBack to merge what is listed all the same, unless an overwrite brought its rows along: the table has no primary key, and they would be there twice"
        }
        (false, true) => {
            "the table has no primary key, and the base may still hold rows of what is listed, so that this cannot be acknowledged: restore a version from before, or write the rows that the base lacks again under a new shard id and remove the shard's directory"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn the_index_began_with_the_first_version_after_one_without() {
        let made = |version: u64| Made {
            version,
            at: Timestamp::from_second(version as i64).unwrap(),
        };
        let mut begun = Begun::default();
        begun.saw(made(3), true);
        assert_eq!(begun.version(), None);
        for (version, indexed) in [(4, false), (5, true), (6, true), (6, true)] {
            begun.saw(made(version), indexed);
        }
        assert_eq!(begun.version(), Some(5));
        begun.settle([Uuid::from_u128(1)]);
        begun.saw(made(7), false);
        begun.saw(made(9), true);
        assert_eq!((begun.version(), begun.settled.len()), (Some(9), 0));
        // A table that was made again counts its versions from the start.
        begun.saw(made(1), true);
        assert_eq!(begun.version(), None);
    }
}
