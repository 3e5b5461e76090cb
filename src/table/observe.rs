//! Watching one table: what is pending, since when, and what about it is not as it should be.
//!
//! Lives here: `Tracker`, which remembers what storage showed so that an unchanged shard costs one request, and names the
//! anomalies that are not merged over (contracts 1, 3, 8, 9). May use: this room's parts. Never: a decision (`plan`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use lance::Dataset;
use lance::dataset::transaction::Transaction;
use tokio::time::Instant;
use uuid::Uuid;

use super::anomaly::{Anomaly, AnomalyKind};
use super::base::{Table, key_fields, same_version};
use super::begun::{self, Begun};
use super::commit::{PROPERTY, acknowledged_by, reset_by};
use super::error::{Error, Result};
use super::generation::{Facts, Generation};
use super::history::{LOOK_BACK, Past, Version, look_back, settled, unseen};
use super::known::Known;
use super::lineage::{Lineage, begins_anew, doubling, writes_rows};
use super::marks::{Made, Marks};
use super::observation::{Observation, Pending, ShardView, base_facts, commit_bytes};
use super::shard::{self, AT_ONCE, ShardState};
use super::snapshot::{Listing, ShardPending, Snapshot, misnamed};
use super::told::Told;

/// Shards are listed again after this many looks.
const LIST_EVERY: u64 = 8;
/// With nothing flushed, the base version is looked at again after this many looks.
const BASE_EVERY: u64 = 4;
/// So many of a shard's oldest pending generations are looked at closely.
const CLOSE_LOOK: usize = 512;

/// How long a look may spend on them: what is late stays unknown, and the next look goes on from there.
const CLOSE_LOOK_WITHIN: Duration = Duration::from_secs(30);

/// Remembers one table between looks at it.
#[derive(Default)]
pub struct Tracker {
    known: Arc<Known>,
    looks: u64,
    found: shard::Shards,
    states: BTreeMap<Uuid, ShardState>,
    highest: BTreeMap<Uuid, u64>,
    marks: Marks,
    begun: Begun,
    /// Where the base's rows come from, since a commit that may have begun anew; asked where that is in question.
    lineage: Option<Lineage>,
    /// Shards whose watermark was once ahead of them.
    ahead: BTreeSet<Uuid>,
    merged_at: BTreeMap<(Uuid, String), Timestamp>,
    pending: BTreeMap<Uuid, Vec<u64>>,
    /// What another hand did.
    told: Told,
    version: Option<u64>,
    /// The newest version that wrote past MemWAL, until it is told.
    direct_write: Option<u64>,
    acknowledged: BTreeSet<AnomalyKind>,
}

impl Tracker {
    /// A tracker that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Anomalies that a person said are as they should be. Of a shard with `WatermarkAhead` all that is listed counts as
    /// pending then, and the first merge of it takes its watermark out of the base before anything else.
    pub fn acknowledge(&mut self, kinds: impl IntoIterator<Item = AnomalyKind>) {
        self.acknowledged
            .extend(kinds.into_iter().filter(|k| k.can_be_acknowledged()));
    }

    /// Tells what another hand did for so long after it was seen last; a day, where this is not called.
    pub fn telling_for(mut self, lasts: Duration) -> Self {
        self.told = Told::lasting(lasts);
        self
    }

    /// What is known of generations.
    pub fn known(&self) -> Arc<Known> {
        self.known.clone()
    }

    /// The next look lists the shards and reads the base version, whatever was seen before.
    pub fn refresh(&mut self) {
        self.looks = 0;
    }

    /// Looks at the table: shard manifests first, then the base.
    ///
    /// # Errors
    /// `NotMemWal`, and what reading says. After a failed look the next one begins from what was remembered before it; only which shards there are may be newer.
    pub async fn observe(&mut self, table: &Table) -> Result<(Observation, Snapshot)> {
        let observed_at = Timestamp::now();
        let first = self.version.is_none();
        if self.looks.is_multiple_of(LIST_EVERY) {
            self.found = shard::list(table.store(), table.path()).await?;
            shard::forget_replaced(table.store(), table.path(), &mut self.states).await?;
        }
        let found =
            shard::newest_of(table.store(), table.path(), &self.found.ids, &self.states).await?;
        let moved = found.states.iter().any(|s| {
            self.states
                .get(&s.shard)
                .is_none_or(|b| b.manifest.version != s.manifest.version)
        });
        let look = moved || first || self.looks.is_multiple_of(BASE_EVERY);
        let listing = Listing::of(found.clone(), observed_at);
        let looked = self.look_at_base(table, listing, look).await;
        if matches!(looked, Err(Error::NotMemWal(_))) {
            // Whatever comes next comes to an index that begins anew: its past is looked at then.
            (self.version, self.lineage) = (None, None);
        }
        let (mut snapshot, mut before) = looked?;
        let base = snapshot.base.clone();
        for (shard, mark) in before.highest {
            let highest = self.highest.entry(shard).or_default();
            *highest = (*highest).max(mark);
        }
        match self.look_at_commits(&base).await? {
            Some(said) => before.versions.extend(said),
            None => {
                self.lineage = None;
                before = look_back(&base).await?;
            }
        }
        for v in &before.versions {
            self.marks.saw(v.made, &v.marks);
            self.begun.saw(v.made, v.indexed);
        }
        self.marks.saw(Made::of(&base), &snapshot.marks);
        self.begun.saw(Made::of(&base), snapshot.mem_wal);
        // Not before: a look that fails or is given up until here is made again from the version before.
        self.version = Some(base.version_id());
        let made_again = self.marks.made_again(table, &snapshot, &self.known).await?;
        let older = self.older(table, &snapshot).await?;
        let lineage = &mut self.lineage;
        let doubling = doubling(lineage, &snapshot, &self.highest, &older).await?;
        let anomalies = self.judge(&snapshot, &made_again, &older, &doubling);
        if self.start_over(&mut snapshot) {
            self.look_closely(table, &snapshot).await;
        }
        self.remember(&snapshot, observed_at);
        // Of a shard that could not be read, what was seen before is where the next look begins.
        self.states
            .retain(|shard, _| found.faults.iter().any(|f| f.shard == *shard));
        self.states
            .extend(found.states.into_iter().map(|s| (s.shard, s)));
        self.looks += 1;
        Ok((self.view(&snapshot, anomalies, observed_at), snapshot))
    }

    /// As [`Tracker::observe`], for at most `within`: a store that hangs holds nobody up, it is `StoreUnreachable`.
    pub async fn observe_within(
        &mut self,
        table: &Table,
        within: Duration,
    ) -> Result<(Observation, Snapshot)> {
        let late = Err(Error::StoreUnreachable("look at the table in time"));
        let look = tokio::time::timeout(within, self.observe(table)).await;
        look.unwrap_or(late)
    }

    /// The base version after a listing, new if `look`, and on the first look what its past says. What that needs is asked
    /// for side by side, by the version that was seen last, which is the newest one nearly always.
    async fn look_at_base(
        &self,
        table: &Table,
        listing: Listing,
        look: bool,
    ) -> Result<(Snapshot, Past)> {
        let first = self.version.is_none();
        let seen = table.seen().await;
        // What was seen last may be gone by now: then it says nothing, and the newest is looked at alone.
        let likely = listing.clone().with(seen.clone()).await.ok();
        let likely = likely.filter(|l| l.mem_wal);
        let newest = async {
            match look || likely.is_none() {
                true => table.latest().await,
                false => Ok(seen.clone()),
            }
        };
        let before = async {
            match first && likely.is_some() {
                true => look_back(&seen).await,
                false => Ok(Past::default()),
            }
        };
        let closely = async {
            if let Some(likely) = &likely {
                self.look_closely(table, likely).await;
            }
        };
        let (newest, before, ()) = futures::join!(newest, before, closely);
        let newest = newest?;
        if let Some(likely) = likely.filter(|_| same_version(&newest, &seen)) {
            return Ok((likely, before?));
        }
        let snapshot = listing.with(newest.clone()).await?;
        if !snapshot.mem_wal {
            return Err(Error::NotMemWal(table.location().uri.clone()));
        }
        let before = async {
            match first {
                true => look_back(&newest).await,
                false => Ok(Past::default()),
            }
        };
        let (before, ()) = futures::join!(before, self.look_closely(table, &snapshot));
        Ok((snapshot, before?))
    }

    /// What the base versions since the last look say, and who made them, as far back as is ever looked; `None` where the
    /// MemWAL index may have begun anew among them.
    async fn look_at_commits(&mut self, base: &Dataset) -> Result<Option<Vec<Version>>> {
        let now = base.version_id();
        let Some(before) = self.version else {
            return Ok(Some(vec![]));
        };
        // A lower version is another table's: it was made again. Versions that nobody looks at may say anything.
        let mut anew = now < before || now - before > LOOK_BACK;
        let from = before.max(now.saturating_sub(LOOK_BACK)).saturating_add(1);
        let mut said = vec![];
        for (version, says, made) in unseen(base, from..now.saturating_add(1)).await? {
            said.extend(says);
            let Some(t) = made else {
                // It is gone or broken, and might have been any.
                anew = true;
                continue;
            };
            let ours = t
                .transaction_properties
                .as_ref()
                .is_some_and(|p| p.contains_key(PROPERTY));
            if !ours && writes_rows(&t.operation) {
                self.direct_write = Some(version);
            }
            anew |= begins_anew(&t.operation);
            self.forget(&t);
        }
        Ok((!anew).then_some(said))
    }

    /// The shards with pending generations that are older than the MemWAL index, and of which nobody said that it is right.
    async fn older(&mut self, table: &Table, snapshot: &Snapshot) -> Result<BTreeSet<Uuid>> {
        let older = self.begun.older(table, snapshot, &self.known).await?;
        let (false, Some(begun)) = (older.is_empty(), self.begun.unasked()) else {
            return Ok(older);
        };
        let base = &snapshot.base;
        let begun = begun.max(base.version_id().saturating_sub(LOOK_BACK));
        let (said, every) = settled(base, begun..base.version_id().saturating_add(1)).await;
        self.begun.settle(said.into_keys());
        if every {
            // Later ones are looked at as they come.
            self.begun.asked();
        }
        self.begun.older(table, snapshot, &self.known).await
    }

    /// Forgets what a person said is settled.
    fn forget(&mut self, made: &Transaction) {
        for shard in acknowledged_by(made) {
            self.highest.remove(&shard);
            self.begun.settle([shard]);
        }
        for shard in reset_by(made) {
            self.ahead.remove(&shard);
            self.marks.forget(shard);
        }
    }

    /// Takes all that is listed as pending in shards whose watermark has to be taken out first; whether there are any.
    fn start_over(&self, snapshot: &mut Snapshot) -> bool {
        let ids: Vec<Uuid> = snapshot.shards.iter().map(|s| s.state.shard).collect();
        let resetting = self.known.resetting(ids.into_iter());
        let named = snapshot.shards.iter_mut();
        for s in named.filter(|s| resetting.contains(&s.state.shard)) {
            s.start_over();
        }
        !resetting.is_empty()
    }

    /// Reads facts of the oldest pending generations; what cannot be read stays unknown and is named by the merge.
    async fn look_closely(&self, table: &Table, snapshot: &Snapshot) {
        let wanted: Vec<Generation> = snapshot
            .shards
            .iter()
            .flat_map(|s| s.pending.iter().take(CLOSE_LOOK))
            .cloned()
            .collect();
        let reading = stream::iter(wanted)
            .for_each_concurrent(AT_ONCE, |generation| async move {
                if let Err(e) = self.known.of(table, &generation).await {
                    tracing::debug!(shard = %generation.shard, generation = generation.number, error = %e, "unknown yet");
                }
            });
        if tokio::time::timeout(CLOSE_LOOK_WITHIN, reading)
            .await
            .is_err()
        {
            tracing::debug!("the store is slow: some generations stay unknown until the next look");
        }
    }

    fn judge(
        &mut self,
        snapshot: &Snapshot,
        made_again: &BTreeSet<Uuid>,
        older: &BTreeSet<Uuid>,
        doubling: &BTreeSet<Uuid>,
    ) -> Vec<Anomaly> {
        let listed = snapshot.shards.iter().filter(|s| !s.merged.is_empty());
        let listed: BTreeSet<Uuid> = listed.map(|s| s.state.shard).collect();
        let unread = |shard: &Uuid| snapshot.unread.iter().any(|f| f.shard == *shard);
        self.ahead
            .retain(|shard| listed.contains(shard) || unread(shard));
        let (mut found, now) = (Vec::new(), Instant::now());
        let mut tell = |kind: AnomalyKind, shard: Option<Uuid>, message: String| {
            let said = match kind {
                AnomalyKind::WatermarkAhead => false,
                AnomalyKind::WentBack if shard.is_some_and(|s| doubling.contains(&s)) => false,
                kind => self.acknowledged.contains(&kind),
            };
            if !said {
                found.push(Anomaly {
                    kind,
                    shard,
                    message,
                });
            }
        };
        for f in &snapshot.unread {
            let message = format!("shard {}: {}", f.shard, f.what);
            tell(AnomalyKind::UnsupportedManifest, Some(f.shard), message);
        }
        let (mut acknowledged, mut resetting) = (BTreeSet::new(), BTreeSet::new());
        let keyed = !key_fields(snapshot.base.schema()).is_empty();
        for s in &snapshot.shards {
            let shard = s.state.shard;
            if s.is_behind_its_mark() || made_again.contains(&shard) {
                self.ahead.insert(shard);
            }
            // It may come past the mark; what it listed up to there is still nowhere else.
            if self.ahead.contains(&shard) {
                let kind = AnomalyKind::WatermarkAhead;
                match keyed && self.acknowledged.contains(&kind) {
                    true => drop(resetting.insert(shard)),
                    false => tell(kind, Some(shard), s.what_is_ahead(keyed)),
                }
            }
            let before = self.highest.get(&shard);
            let went_back = match before.filter(|before| **before > s.watermark) {
                Some(before) => Some(begun::fell(shard, *before, s.watermark)),
                None => self
                    .begun
                    .version()
                    .filter(|_| older.contains(&shard))
                    .map(|version| begun::told(shard, version)),
            };
            if let Some(what) = went_back {
                let doubles = doubling.contains(&shard);
                if !doubles && self.acknowledged.contains(&AnomalyKind::WentBack) {
                    acknowledged.insert(shard);
                }
                let message = format!("{what}; {}", begun::remedy(keyed, doubles));
                tell(AnomalyKind::WentBack, Some(shard), message);
            }
            if let Some(number) = s.doubled() {
                tell(
                    AnomalyKind::DuplicateGeneration,
                    Some(shard),
                    format!(
                        "shard {shard} lists two directories for generation {number}; remove the wrong one from its manifest"
                    ),
                );
            }
            if let Some(number) = s.misnamed() {
                tell(
                    AnomalyKind::UnsupportedManifest,
                    Some(shard),
                    format!("shard {shard}: {}", misnamed(number)),
                );
            } else if !s.state.supported {
                tell(
                    AnomalyKind::UnsupportedManifest,
                    Some(shard),
                    format!(
                        "the manifest of shard {shard} has fields that this release does not know; use a newer Freshet"
                    ),
                );
            }
            if self.vanished(s) {
                let message = format!(
                    "pending generations of shard {shard} left its manifest unmarked: another merger is at work; run only one"
                );
                let about = (AnomalyKind::ForeignMerger, Some(shard));
                self.told.saw(about, message, now, &[]);
            }
            // A base that went back says nothing of what was merged and drained since.
            let went_back = self.highest.get(&shard).is_some_and(|h| *h > s.watermark);
            if let Some(number) = s.missing().filter(|_| !went_back) {
                let message = format!(
                    "generation {number} of shard {shard} is pending no more and was never marked, while newer ones are pending: another merger took it, or its writer lost it; run only one merger, and look for its rows"
                );
                let about = (AnomalyKind::ForeignMerger, Some(shard));
                self.told.saw(about, message, now, &[]);
            }
        }
        self.known.set_acknowledged(acknowledged);
        self.known.set_resetting(resetting);
        if let Some(version) = self.direct_write.take() {
            let message = format!(
                "version {version} wrote rows to the base past MemWAL; an older pending generation may undo them, write through MemWAL only"
            );
            let about = (AnomalyKind::DirectWrite, None);
            self.told.saw(about, message, now, &snapshot.shards);
        }
        for ((kind, shard), message) in self.told.now(now, &snapshot.shards) {
            tell(kind, shard, message);
        }
        if snapshot
            .base
            .config()
            .contains_key("lance.auto_cleanup.interval")
        {
            tell(AnomalyKind::AutoCleanup, None,
                "the table cleans up its own old versions (lance.auto_cleanup); remove that option, it may take a version that a running merge needs".into());
        }
        for name in &self.found.unknown {
            tell(
                AnomalyKind::UnknownDirectory,
                None,
                format!("_mem_wal/{name} is no shard; it is left alone"),
            );
        }
        found
    }

    /// Whether a generation that was pending is listed no more and not marked either.
    fn vanished(&self, s: &ShardPending) -> bool {
        let before = self.pending.get(&s.state.shard);
        before.is_some_and(|before| {
            before
                .iter()
                .any(|n| *n > s.watermark && !s.pending.iter().any(|g| g.number == *n))
        })
    }

    fn remember(&mut self, snapshot: &Snapshot, now: Timestamp) {
        for s in &snapshot.shards {
            let shard = s.state.shard;
            let highest = self.highest.entry(shard).or_default();
            *highest = (*highest).max(s.watermark);
            for g in &s.merged {
                self.merged_at.entry((shard, g.path.clone())).or_insert(now);
            }
            self.pending
                .insert(shard, s.pending.iter().map(|g| g.number).collect());
        }
        let listed: BTreeSet<(Uuid, &str)> = snapshot
            .shards
            .iter()
            .flat_map(|s| &s.merged)
            .map(|g| (g.shard, g.path.as_str()))
            .collect();
        self.merged_at
            .retain(|(shard, path), _| listed.contains(&(*shard, path.as_str())));
        let merged = snapshot.shards.iter().filter_map(|s| s.merged.last());
        self.known.keep(snapshot.pending().chain(merged));
    }

    fn view(
        &self,
        snapshot: &Snapshot,
        anomalies: Vec<Anomaly>,
        observed_at: Timestamp,
    ) -> Observation {
        let shards = snapshot.shards.iter().map(|s| ShardView {
            shard: s.state.shard,
            manifest_version: s.state.manifest.version,
            writer_epoch: s.state.manifest.writer_epoch,
            current_generation: s.state.manifest.current_generation,
            watermark: s.watermark,
            pending: {
                let of = |g| self.pending_of(&snapshot.base, g);
                s.pending.iter().map(of).collect()
            },
            merged: s
                .merged
                .iter()
                .map(|g| {
                    (
                        g.clone(),
                        self.merged_at
                            .get(&(g.shard, g.path.clone()))
                            .copied()
                            .unwrap_or(observed_at),
                    )
                })
                .collect(),
        });
        Observation {
            observed_at,
            base: base_facts(&snapshot.base),
            shards: shards.collect(),
            unread: snapshot.unread.clone(),
            anomalies,
        }
    }

    fn pending_of(&self, base: &Dataset, generation: &Generation) -> Pending {
        let facts = self.known.get(generation);
        let of = |f: fn(&Facts) -> u64| facts.as_deref().map(f);
        let rows = generation.rows.or(of(|f| f.physical_rows));
        Pending {
            rows,
            commit_bytes: commit_bytes(base, rows),
            bytes: generation.bytes.or(of(|f| f.data_bytes)),
            flushed_at: facts.as_deref().map(|f| f.flushed_at),
            generation: generation.clone(),
        }
    }
}
