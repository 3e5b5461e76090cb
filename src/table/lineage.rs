//! Which generations the rows of a base version may come from, by the commits that made it.
//!
//! Lives here: `Lineage`, the way back from a version to where its rows began, by which shows whether rows went back with a
//! watermark or stayed (contract 3): without a key, what is merged again is there twice. May use: Lance's versions. Never:
//! a guess where a commit cannot be read, or a judgement (`observe`).

use std::collections::{BTreeMap, BTreeSet};

use lance::Dataset;
use lance::dataset::transaction::Operation;
use lance_index::mem_wal::MEM_WAL_INDEX_NAME;
use uuid::Uuid;

use super::base::key_fields;
use super::error::Result;
use super::history::{LOOK_BACK, look_at, marks_of};
use super::snapshot::Snapshot;

/// What a base version's rows come from.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    /// Per shard, the highest watermark of the versions that its rows come from.
    marks: BTreeMap<Uuid, u64>,
    /// Per shard, the highest watermark that a restore took back, rows and all.
    restored: BTreeMap<Uuid, u64>,
    /// Whether a MemWAL index was made or dropped on the way.
    anew: bool,
    /// Whether every commit was read back to the one that began with rows of its own.
    whole: bool,
}

impl Lineage {
    /// Goes back from a version: through a restore to the version that it restored, and no further than an overwrite.
    ///
    /// # Errors
    /// The store's kinds.
    pub async fn of(base: &Dataset) -> Result<Self> {
        let mut found = Self::default();
        let mut version = base.version_id();
        for _ in 0..LOOK_BACK {
            let (Some(at), Some(made)) = look_at(base, version).await? else {
                return Ok(found);
            };
            raise(&mut found.marks, at.marks);
            let before = version.saturating_sub(1);
            match made.operation {
                Operation::Overwrite { .. } => {
                    found.whole = true;
                    return Ok(found);
                }
                Operation::Restore { version: of } if of < version => {
                    if let Some(lost) = marks_of(base, before).await? {
                        raise(&mut found.restored, lost.marks);
                    }
                    version = of;
                }
                // Its rows are another table's.
                Operation::Restore { .. } | Operation::Clone { .. } => return Ok(found),
                operation => {
                    found.anew |= begins_anew(&operation);
                    version = before;
                }
            }
            if version == 0 {
                return Ok(found);
            }
        }
        Ok(found)
    }

    /// Whether no row of the base can come from any of a shard's generations from `first` on, of which some were merged
    /// through `before` once.
    pub fn is_without(&self, shard: Uuid, first: u64, before: u64) -> bool {
        let held = |marks: &BTreeMap<Uuid, u64>| marks.get(&shard).copied().unwrap_or(0);
        let told = self.whole || (!self.anew && before > 0 && held(&self.restored) >= before);
        told && held(&self.marks) < first
    }
}

/// Of the shards that went back, those of which the base may still hold rows, where merging them again doubles rows. Asks
/// for the base's lineage where that is in question and not known.
///
/// # Errors
/// The store's kinds.
pub(crate) async fn doubling(
    known: &mut Option<Lineage>,
    snapshot: &Snapshot,
    highest: &BTreeMap<Uuid, u64>,
    older: &BTreeSet<Uuid>,
) -> Result<BTreeSet<Uuid>> {
    let mut found = BTreeSet::new();
    if !key_fields(snapshot.base.schema()).is_empty() {
        return Ok(found);
    }
    for s in &snapshot.shards {
        let shard = s.state.shard;
        let before = highest.get(&shard).copied().unwrap_or(0);
        let went_back = before > s.watermark || older.contains(&shard);
        let Some(first) = s.pending.first().filter(|_| went_back) else {
            continue;
        };
        let lineage = match known.take() {
            Some(lineage) => lineage,
            None => Lineage::of(&snapshot.base).await?,
        };
        if !known
            .insert(lineage)
            .is_without(shard, first.number, before)
        {
            found.insert(shard);
        }
    }
    Ok(found)
}

fn raise(marks: &mut BTreeMap<Uuid, u64>, with: BTreeMap<Uuid, u64>) {
    for (shard, mark) in with {
        let held = marks.entry(shard).or_default();
        *held = mark.max(*held);
    }
}

/// Whether a commit may leave the table with another MemWAL index than before, or with none for a while.
pub(crate) fn begins_anew(operation: &Operation) -> bool {
    let ours = |indices: &[lance_table::format::IndexMetadata]| {
        indices.iter().any(|i| i.name == MEM_WAL_INDEX_NAME)
    };
    match operation {
        Operation::Overwrite { .. } | Operation::Restore { .. } => true,
        Operation::CreateIndex {
            new_indices,
            removed_indices,
        } => ours(new_indices) || ours(removed_indices),
        _ => false,
    }
}

/// Whether an operation puts rows into the base, or takes rows out, other than by a marked merge.
pub(crate) fn writes_rows(operation: &Operation) -> bool {
    match operation {
        Operation::Append { .. } | Operation::Delete { .. } | Operation::Overwrite { .. } => true,
        Operation::Update {
            compacted_sstables, ..
        } => compacted_sstables.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_can_tell_is_not_taken_for_sound() {
        let shard = Uuid::from_u128(1);
        let marks = |mark: u64| BTreeMap::from([(shard, mark)]);
        let without = |lineage: &Lineage, first| lineage.is_without(shard, first, 4);
        let unknown = Lineage::default();
        assert!(!without(&unknown, 1));
        let restored = Lineage {
            marks: marks(2),
            restored: marks(4),
            ..Default::default()
        };
        assert!(without(&restored, 3) && !without(&restored, 2));
        let anew = Lineage {
            anew: true,
            ..restored
        };
        assert!(!without(&anew, 3));
        // A mark that fell before that restore is not explained by it.
        let less = Lineage {
            restored: marks(3),
            ..Default::default()
        };
        assert!(!without(&less, 3));
        let whole = Lineage {
            whole: true,
            ..anew
        };
        assert!(without(&whole, 3) && !without(&whole, 2));
    }
}
