//! Reading a table by source: what the base holds, what is pending, or both as one cut.
//!
//! Lives here: `Reader`, which pages and counts, its bounds, and what it remembers between questions (shard manifests,
//! keys of pending generations, the base rows that they hide), all within one byte budget and never shared between two
//! stores or credentials. May use: this room's parts. Never: writing, or a `fragments` page that needs `_mem_wal/`.
//!
//! ```text
//! fragments:  base ──────────────────────────────▶ rows
//! wal:        snapshot ─▶ newest version per key ─▶ rows of generations
//! all:        snapshot ─▶ both, base rows first, then generations from the oldest: the order that a merge keeps
//! ```

mod hidden;
mod pending;
mod rows;
mod snapshots;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arrow_array::RecordBatch;
use jiff::Timestamp;
use lance::Dataset;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use self::hidden::{Fragments, Hidden};
use self::pending::{Chosen, Held};
use self::snapshots::Seen;
use super::base::Table;
use super::error::{Class, Error};
use super::snapshot::Snapshot;
use super::store::Location;

/// What to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// The base table only: what an ordinary Lance reader sees. Makes no request under `_mem_wal/`.
    #[default]
    Fragments,
    /// Pending generations only: the newest version of each key, deletes not shown.
    Wal,
    /// Both, as one consistent cut: every key once, newest version, deletes applied.
    All,
}

impl Source {
    /// Every source, in the order in which they are explained.
    pub const ALL: [Source; 3] = [Source::Fragments, Source::Wal, Source::All];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Fragments => "fragments",
            Source::Wal => "wal",
            Source::All => "all",
        }
    }
}

/// A source of no such name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid source `{0}`: expected one of fragments, wal, all")]
pub struct UnknownSource(pub String);

impl std::str::FromStr for Source {
    type Err = UnknownSource;

    /// Reads a name; the empty one is `fragments`.
    fn from_str(s: &str) -> Result<Self, UnknownSource> {
        match s.trim() {
            "" => Ok(Source::Fragments),
            name => Source::ALL
                .into_iter()
                .find(|source| source.as_str() == name)
                .ok_or_else(|| UnknownSource(name.chars().take(64).collect())),
        }
    }
}

/// Why a read was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// More generations are pending than one read may open.
    #[error(
        "{pending} generations are pending and a read opens at most {limit}; read source=fragments, or wait until merges have caught up"
    )]
    TooManyPending {
        /// Pending generations.
        pending: usize,
        /// The bound.
        limit: usize,
    },
    /// The keys of the pending generations do not fit.
    #[error(
        "the keys of the pending generations need more than the {limit} bytes that reads may hold; read source=fragments, or wait until merges have caught up"
    )]
    KeysTooLarge {
        /// The bound.
        limit: u64,
    },
    /// The page is too large.
    #[error("the rows of this page need more than {limit} bytes; ask for fewer rows")]
    PageTooLarge {
        /// The bound.
        limit: u64,
    },
    /// The pages that are read and sent at this moment hold all that they may.
    #[error(
        "the pages under way hold as much as they may together, {limit} bytes; try again in a moment"
    )]
    Busy {
        /// The bound.
        limit: u64,
    },
    /// What the table says.
    #[error(transparent)]
    Table(#[from] Error),
}

impl ReadError {
    /// The kind's name, PascalCase, from a closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            ReadError::TooManyPending { .. } => "TooManyPending",
            ReadError::KeysTooLarge { .. } => "KeysTooLarge",
            ReadError::PageTooLarge { .. } => "PageTooLarge",
            ReadError::Busy { .. } => "Busy",
            ReadError::Table(e) => e.reason(),
        }
    }

    /// Who can mend it.
    pub fn class(&self) -> Class {
        match self {
            ReadError::TooManyPending { .. } | ReadError::KeysTooLarge { .. } => Class::Waiting,
            ReadError::PageTooLarge { .. } => Class::UserFault,
            ReadError::Busy { .. } => Class::Transient,
            ReadError::Table(e) => e.class(),
        }
    }
}

/// Bounds of reads.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// Pending generations that one read may open.
    pub generations: usize,
    /// Bytes that keys of pending generations may take, for all tables together.
    pub key_bytes: u64,
    /// Bytes that the rows of one page may take in memory.
    pub page_bytes: u64,
    /// Bytes that the rows of all pages under way may take together.
    pub pages_bytes: u64,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            generations: 4096,
            key_bytes: 256 << 20,
            page_bytes: 64 << 20,
            pages_bytes: 256 << 20,
        }
    }
}

/// One shard of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardAt {
    /// The shard.
    pub shard: Uuid,
    /// The version of its manifest.
    pub manifest_version: u64,
    /// Its pending generations.
    pub pending_generations: usize,
}

/// Which snapshot an answer was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotId {
    /// The base version.
    pub version: u64,
    /// The base manifest's e_tag, where the store gives one: versions recur when a table is made again.
    pub e_tag: Option<String>,
    /// The shards, ascending by id; `None` where none was looked at (`fragments`).
    pub shards: Option<Vec<ShardAt>>,
    /// Whether it is one moment for all shards, not one for each; `None` where no shard was looked at.
    pub across_shards: Option<bool>,
    /// When looking began, by this process's clock.
    pub read_at: Timestamp,
}

/// Rows of a source.
#[derive(Debug)]
pub struct Page {
    /// The rows, in order, in the table's schema; a blob column is a struct with its `size` only.
    pub batches: Vec<RecordBatch>,
    /// Whether the source has rows after these.
    pub has_more: bool,
    /// What was read.
    pub snapshot: SnapshotId,
    /// Generations that the answer takes account of; 0 for `fragments`.
    pub generations_read: usize,
    /// When the oldest of them was flushed, by the store's clock; `None` where there is none.
    pub oldest_pending: Option<Timestamp>,
    /// The page's part of what all pages may hold.
    pub memory: PageMemory,
}

/// A part of [`ReadLimits::pages_bytes`], given back when it is dropped: keep it until the rows are sent.
#[derive(Debug, Default)]
pub struct PageMemory(Option<OwnedSemaphorePermit>);

impl PageMemory {
    /// How much it is, in whole KiB.
    pub fn bytes(&self) -> u64 {
        self.0
            .as_ref()
            .map_or(0, |p| (p.num_permits() as u64) << 10)
    }
}

/// Pages and counts rows of tables. One for the process: what it remembers is kept per location and credentials.
pub struct Reader {
    limits: ReadLimits,
    tables: Mutex<Vec<(Location, Arc<Remembered>)>>,
    /// KiB that pages may still take.
    pages: Arc<Semaphore>,
}

/// What is remembered of one table.
#[derive(Default)]
struct Remembered {
    seen: Seen,
    /// One builds at a time, the others wait for what it builds.
    held: tokio::sync::Mutex<Held>,
    bytes: AtomicU64,
}

/// What a source is made of at one snapshot.
struct View {
    base: Arc<Dataset>,
    fragments: Option<Arc<Fragments>>,
    chosen: Option<Arc<Chosen>>,
    id: SnapshotId,
}

impl View {
    fn base_rows(&self) -> u64 {
        self.fragments.as_ref().map_or(0, |f| f.rows())
    }

    fn rows(&self) -> u64 {
        self.base_rows() + self.chosen.as_ref().map_or(0, |c| c.rows())
    }
}

impl Reader {
    /// A reader that has read nothing.
    pub fn new(limits: ReadLimits) -> Self {
        Self {
            limits,
            tables: Mutex::default(),
            pages: Arc::new(Semaphore::new((limits.pages_bytes >> 10) as usize)),
        }
    }

    /// Its bounds.
    pub fn limits(&self) -> ReadLimits {
        self.limits
    }

    /// `limit` rows of a source after the first `offset`. The order is that of the snapshot, the same for every page of
    /// it: base rows as they lie, then pending rows, shard by shard, oldest generation first.
    ///
    /// # Errors
    /// The bounds; `GenerationUnreadable` and `SchemaMismatch` name a pending generation that cannot be read (never
    /// an answer without its rows); what the table says.
    pub async fn page(
        &self,
        table: &Table,
        source: Source,
        limit: usize,
        offset: u64,
    ) -> Result<Page, ReadError> {
        let begun = Instant::now();
        let view = self.view(table, source, begun, false).await?;
        let error = match self.rows(table, &view, limit, offset).await {
            Ok(page) => return Ok(page),
            Err(e) => e,
        };
        if !may_have_moved(&error) {
            return Err(error);
        }
        // Files may have been merged, drained and reclaimed, or cleaned up, since the snapshot: look again, once.
        let again = self.view(table, source, Instant::now(), true).await?;
        if same(&again.id, &view.id) {
            return Err(error);
        }
        self.rows(table, &again, limit, offset).await
    }

    /// How many rows a source has.
    ///
    /// # Errors
    /// As [`Reader::page`].
    pub async fn count(&self, table: &Table, source: Source) -> Result<u64, ReadError> {
        let view = self.view(table, source, Instant::now(), false).await?;
        Ok(view.rows())
    }

    async fn view(
        &self,
        table: &Table,
        source: Source,
        begun: Instant,
        afresh: bool,
    ) -> Result<View, ReadError> {
        if source == Source::Fragments {
            let read_at = Timestamp::now();
            let base = table.latest().await?;
            let fragments = Fragments::of(&base, &Hidden::nothing()).await?;
            let id = id_of_base(&base, read_at);
            return Ok(View {
                base,
                fragments: Some(Arc::new(fragments)),
                chosen: None,
                id,
            });
        }
        match self.union(table, source, begun, afresh).await {
            Err(e) if !afresh && may_have_moved(&e) => {
                self.union(table, source, Instant::now(), true).await
            }
            done => done,
        }
    }

    /// What `wal` or `all` is made of now.
    async fn union(
        &self,
        table: &Table,
        source: Source,
        begun: Instant,
        afresh: bool,
    ) -> Result<View, ReadError> {
        let remembered = self.remembered(table.location());
        let snapshot = remembered.seen.look(table, begun, afresh).await?;
        let mut held = remembered.held.lock().await;
        let done = held.view(table, &snapshot, source, &self.limits).await;
        remembered.bytes.store(held.bytes(), Ordering::Relaxed);
        drop(held);
        self.make_room(table.location());
        let (chosen, fragments) = done?;
        let id = id_of(&snapshot, &chosen);
        Ok(View {
            base: snapshot.base,
            fragments,
            chosen: Some(chosen),
            id,
        })
    }

    async fn rows(
        &self,
        table: &Table,
        view: &View,
        limit: usize,
        offset: u64,
    ) -> Result<Page, ReadError> {
        let end = offset.saturating_add(limit as u64).min(view.rows());
        let start = offset.min(end);
        let in_base = view.base_rows();
        let mut budget = rows::Budget::new(&self.limits, self.pages.clone());
        let mut batches = vec![];
        if let Some(fragments) = view.fragments.as_ref().filter(|_| start < in_base) {
            let addresses = fragments
                .addresses(&view.base, start..end.min(in_base))
                .await?;
            batches = rows::of_base(&view.base, addresses, &mut budget).await?;
        }
        if let Some(chosen) = view.chosen.as_ref().filter(|_| end > in_base) {
            let wanted = chosen.places(start.max(in_base) - in_base..end - in_base);
            let more = rows::of_generations(&view.base, table.store(), wanted, &mut budget).await?;
            batches.extend(more);
        }
        Ok(Page {
            batches,
            has_more: end < view.rows(),
            snapshot: view.id.clone(),
            generations_read: view.chosen.as_ref().map_or(0, |c| c.len()),
            oldest_pending: view.chosen.as_ref().and_then(|c| c.oldest()),
            memory: budget.memory(),
        })
    }

    /// What is remembered of a table, made the most recently used.
    fn remembered(&self, location: &Location) -> Arc<Remembered> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match tables.iter().position(|(l, _)| l == location) {
            Some(at) => tables.remove(at),
            None => (location.clone(), Arc::default()),
        };
        let remembered = entry.1.clone();
        tables.push(entry);
        remembered
    }

    /// Forgets the least recently used tables until what is remembered fits; never the one in use.
    fn make_room(&self, in_use: &Location) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = |r: &Remembered| r.bytes.load(Ordering::Relaxed);
        let mut total: u64 = tables.iter().map(|(_, r)| bytes(r)).sum();
        while total > self.limits.key_bytes {
            let Some(at) = tables.iter().position(|(l, r)| l != in_use && bytes(r) > 0) else {
                return;
            };
            total -= bytes(&tables.remove(at).1);
        }
    }
}

/// Whether an error may come from files that another hand has taken away since the snapshot.
fn may_have_moved(e: &ReadError) -> bool {
    match e {
        ReadError::Table(Error::Lance { source, .. }) => super::error::is_not_found(source),
        ReadError::Table(Error::Corrupt { .. }) => true,
        ReadError::Table(e) => e.poisoned().is_some(),
        _ => false,
    }
}

/// Whether two snapshots are one, whenever they were read.
fn same(a: &SnapshotId, b: &SnapshotId) -> bool {
    (a.version, &a.e_tag, &a.shards) == (b.version, &b.e_tag, &b.shards)
}

fn id_of_base(base: &Dataset, read_at: Timestamp) -> SnapshotId {
    SnapshotId {
        version: base.version_id(),
        e_tag: base.manifest_location().e_tag.clone(),
        shards: None,
        across_shards: None,
        read_at,
    }
}

fn id_of(snapshot: &Snapshot, chosen: &Chosen) -> SnapshotId {
    let shards = snapshot.shards.iter().map(|s| ShardAt {
        shard: s.state.shard,
        manifest_version: s.state.manifest.version,
        pending_generations: chosen.of_shard(s.state.shard),
    });
    SnapshotId {
        shards: Some(shards.collect()),
        across_shards: Some(snapshot.across_shards),
        ..id_of_base(&snapshot.base, snapshot.read_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_read_by_name_and_absent_means_fragments() {
        for source in Source::ALL {
            assert_eq!(source.as_str().parse(), Ok(source));
        }
        assert_eq!("".parse(), Ok(Source::Fragments));
        assert_eq!(" all ".parse(), Ok(Source::All));
    }

    #[test]
    fn an_unknown_source_is_refused_naming_the_three() {
        let e = "Fragment".parse::<Source>().unwrap_err().to_string();
        for word in ["Fragment", "fragments", "wal", "all"] {
            assert!(e.contains(word), "{e}");
        }
    }
}
