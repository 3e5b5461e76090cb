//! What of a shard's list the base holds already, as far as a process can tell that sees the table for the first time.
//!
//! Lives here: `Verdicts`: a generation at or below its shard's watermark is merged, save where a base version from before
//! its flush held that watermark (contract 3: the shard was made again). Found out by walking back over the retained
//! versions to one from before the flush, once for each newest such generation. May use: history, the clocks of `marks`.
//! Never: hiding what is not known to be merged.

use std::collections::BTreeMap;
use std::sync::Arc;

use lance::Dataset;
use uuid::Uuid;

use super::super::base::{Table, key_fields};
use super::super::error::Result;
use super::super::generation::{Generation, facts};
use super::super::history::{LOOK_BACK, Version, retained};
use super::super::marks::{Later, Made, is_later};
use super::super::shard::ShardFault;
use super::super::snapshot::Snapshot;

/// Versions that are read together first; twice as many each next time.
const FIRST: u64 = 4;

/// What is known of the newest generation that a shard lists at or below its watermark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It was flushed before a version held its watermark: that version holds its rows.
    Merged,
    /// It was flushed after one did: the watermark is not about it.
    MadeAgain,
    /// No version says: they are gone, or the clocks do not tell the two apart.
    Unknown,
}

#[derive(Debug)]
struct Judged {
    path: String,
    /// The base version by which it was judged.
    by: u64,
    verdict: Verdict,
}

/// What was found out of a table's shards.
#[derive(Debug, Default)]
pub(super) struct Verdicts(BTreeMap<Uuid, Judged>);

impl Verdicts {
    /// Takes as pending what the base is not known to hold. Of a table with a key that changes no row of what it holds all
    /// the same; of one without, a shard of which nothing is known is as good as unread.
    ///
    /// # Errors
    /// The store's kinds.
    pub async fn apply(&mut self, table: &Table, snapshot: &mut Snapshot) -> Result<()> {
        let keyed = !key_fields(snapshot.base.schema()).is_empty();
        for shard in &mut snapshot.shards {
            let Some(newest) = shard.merged.last() else {
                self.0.remove(&shard.state.shard);
                continue;
            };
            // A watermark past the shard's own counter needs no more evidence.
            let verdict = match shard.is_behind_its_mark() {
                true => Verdict::MadeAgain,
                false => self.of(table, &snapshot.base, newest).await?,
            };
            match verdict {
                Verdict::Merged => {}
                Verdict::Unknown if !keyed => snapshot.unread.push(ShardFault {
                    shard: newest.shard,
                    what: format!(
                        "no base version is left that says whether the base holds its generations through {}, and the table has no key by which their rows could be told apart; drain them, or write them again under a new shard id",
                        newest.number
                    ),
                }),
                Verdict::MadeAgain | Verdict::Unknown => shard.show_merged(),
            }
        }
        snapshot.unread.sort_by_key(|f| f.shard);
        Ok(())
    }

    async fn of(
        &mut self,
        table: &Table,
        base: &Arc<Dataset>,
        newest: &Generation,
    ) -> Result<Verdict> {
        let by = base.version_id();
        if let Some(known) = self.0.get_mut(&newest.shard)
            && known.path == newest.path
            && still(known, base, newest).await?
        {
            known.by = by;
            return Ok(known.verdict);
        }
        let verdict = judge(table, base, newest).await?;
        let path = newest.path.clone();
        let judged = Judged { path, by, verdict };
        self.0.insert(newest.shard, judged);
        Ok(verdict)
    }
}

/// Whether a verdict still holds: the watermark may have left the base since, as a person said, and come again by a merge.
async fn still(known: &Judged, base: &Arc<Dataset>, newest: &Generation) -> Result<bool> {
    let now = base.version_id();
    if known.verdict == Verdict::Merged || known.by == now {
        return Ok(true);
    }
    if known.by > now || now - known.by > LOOK_BACK {
        return Ok(false);
    }
    let since = retained(base, known.by + 1..now).await?;
    let holds = |v: &Option<Version>| v.as_ref().is_some_and(|v| holds(v, newest));
    Ok(since.iter().all(holds))
}

fn holds(version: &Version, generation: &Generation) -> bool {
    let mark = version.marks.get(&generation.shard);
    mark.is_some_and(|mark| *mark >= generation.number)
}

async fn judge(table: &Table, base: &Arc<Dataset>, newest: &Generation) -> Result<Verdict> {
    let facts = match facts(table.store(), table.path(), newest).await {
        Ok(facts) => facts,
        Err(e) if e.poisoned().is_some() => return Ok(Verdict::Unknown),
        Err(e) => return Err(e),
    };
    let mut told = true;
    match is_later(table, &facts, Made::of(base)).await? {
        Later::Yes => return Ok(Verdict::MadeAgain),
        Later::No => {}
        Later::Untold => told = false,
    }
    let mut next = base.version_id();
    let lowest = next.saturating_sub(LOOK_BACK).max(1);
    let (mut together, mut gap) = (FIRST, false);
    while next > lowest {
        let from = next.saturating_sub(together).max(lowest);
        let found = retained(base, from..next).await?;
        if found.iter().all(Option::is_none) {
            break;
        }
        for version in found.iter().rev() {
            match version {
                None => gap = true,
                Some(v) if holds(v, newest) => {
                    gap = false;
                    match is_later(table, &facts, v.made).await? {
                        Later::Yes => return Ok(Verdict::MadeAgain),
                        Later::No => {}
                        Later::Untold => told = false,
                    }
                }
                // The watermark came with the next version, or with one that is gone: that one may be from before the flush.
                Some(v) if told && (!gap || facts.written_at <= v.made.at) => {
                    return Ok(Verdict::Merged);
                }
                Some(_) => return Ok(Verdict::Unknown),
            }
        }
        next = from;
        together = (together * 2).min(LOOK_BACK);
    }
    Ok(Verdict::Unknown)
}
