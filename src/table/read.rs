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

mod bounds;
mod columns;
mod condition;
mod exact;
mod filter;
mod hidden;
mod identity;
mod keyed;
mod matching;
mod merged;
mod ordered;
mod payload;
mod pending;
mod pinned;
mod point;
mod remembered;
mod reopened;
mod rows;
mod snapshots;
mod source;
mod texts;
mod wait;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use arrow_array::RecordBatch;
use jiff::Timestamp;
use lance::Dataset;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use self::bounds::{ReadError, ReadLimits};
pub use self::columns::Column;
pub use self::condition::CONDITION_BYTES;
use self::filter::Filter;
use self::hidden::{Fragments, Hidden};
pub use self::identity::{ShardAt, SnapshotId};
use self::ordered::Order;
pub use self::ordered::{ORDER_COLUMNS, OrderBy};
pub use self::payload::Payload;
use self::pending::{Chosen, Wanted};
pub use self::pinned::{Next, Pin, PinnedBase, PinnedShard, Place, Position};
pub use self::point::{KeyText, Point};
use self::remembered::Tables;
use self::reopened::Views;
use self::rows::Shape;
pub use self::source::{Source, UnknownSource};
pub use self::wait::{Awaited, Goal, Waited};
use super::base::Table;
use super::error::Error;
use super::generation::Generation;
use super::snapshot::{ShardPending, Snapshot};

/// The budget by which the base's keys are scanned: the least by which that is not slower.
const SCAN_BYTES: u64 = 64 << 20;

/// Which rows of a source to read, and what of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ask {
    /// The source.
    pub source: Source,
    /// Rows at most.
    pub limit: usize,
    /// Rows before the first.
    pub offset: u64,
    /// Columns to show, in the table's order whatever theirs; `None` for all.
    pub columns: Option<Vec<String>>,
    /// Columns and the text of the value that each has to have.
    pub exact: Vec<(String, String)>,
    /// A condition on the rows: a SQL expression of the table's columns.
    pub condition: Option<String>,
    /// What the rows are ordered by, the first first; none for the snapshot's own order.
    pub order: Vec<OrderBy>,
}

/// How many rows a source has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// The rows.
    pub rows: u64,
    /// What was read.
    pub snapshot: SnapshotId,
    /// Generations that the answer takes account of.
    pub generations_read: usize,
    /// When the oldest of them was flushed.
    pub oldest_pending: Option<Timestamp>,
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
    /// How to go on from here, in this very snapshot; `None` on the last page.
    pub next: Option<Box<Next>>,
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
    tables: Mutex<Tables>,
    views: Views,
    /// KiB that pages may still take.
    pages: Arc<Semaphore>,
}

/// What a source is made of at one snapshot.
struct View {
    base: Arc<Dataset>,
    fragments: Option<Arc<Fragments>>,
    chosen: Option<Arc<Chosen>>,
    id: SnapshotId,
    /// How it is named to come back to it; `None` where nobody does.
    pin: Option<Pin>,
}

/// Rows that were chosen for a page, and whether there are more after them.
#[derive(Default)]
struct Picked {
    /// Addresses in the base, in the order of the answer.
    base: Vec<u64>,
    pending: Vec<Wanted>,
    more: bool,
    /// The place after the last of them, where they were chosen by their values.
    next: Option<Place>,
}

impl Picked {
    async fn read(
        &self,
        table: &Table,
        view: &View,
        shape: &Shape,
        budget: &mut rows::Budget,
    ) -> Result<Vec<RecordBatch>, ReadError> {
        let mut batches = vec![];
        if !self.base.is_empty() {
            batches = rows::of_base(&view.base, &self.base, shape, budget).await?;
        }
        if !self.pending.is_empty() {
            let store = table.store();
            batches.extend(
                rows::of_generations(&view.base, store, &self.pending, shape, budget).await?,
            );
        }
        Ok(batches)
    }
}

impl View {
    /// A base version alone, of which no row was counted.
    fn of_base(base: Arc<Dataset>, read_at: Timestamp) -> Self {
        Self {
            id: SnapshotId::of_base(&base, read_at),
            base,
            fragments: None,
            chosen: None,
            pin: None,
        }
    }

    async fn picked(
        &self,
        limit: usize,
        offset: u64,
        budget: &mut rows::Budget,
    ) -> Result<Picked, ReadError> {
        let end = offset.saturating_add(limit as u64).min(self.rows());
        let start = offset.min(end);
        let in_base = self.base_rows();
        budget.places(end - start)?;
        let mut picked = Picked {
            more: end < self.rows(),
            ..Default::default()
        };
        if let Some(fragments) = self.fragments.as_ref().filter(|_| start < in_base) {
            let wanted = start..end.min(in_base);
            picked.base = fragments.addresses(&self.base, wanted).await?;
        }
        if let Some(chosen) = self.chosen.as_ref().filter(|_| end > in_base) {
            picked.pending = chosen.places(start.max(in_base) - in_base..end - in_base);
        }
        Ok(picked)
    }

    fn page(&self, batches: Vec<RecordBatch>, has_more: bool, budget: rows::Budget) -> Page {
        Page {
            batches,
            has_more,
            snapshot: self.id.clone(),
            generations_read: self.generations().len(),
            oldest_pending: self.oldest(),
            next: None,
            memory: budget.memory(),
        }
    }

    /// The pending generations, shard by shard, oldest first.
    fn generations(&self) -> impl ExactSizeIterator<Item = &Generation> {
        let parts = self.chosen.as_ref().map_or(&[][..], |c| &c.parts);
        parts.iter().map(|p| &p.keys.generation)
    }

    fn oldest(&self) -> Option<Timestamp> {
        self.chosen.as_ref().and_then(|c| c.oldest())
    }

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
            views: Views::default(),
            pages: Arc::new(Semaphore::new((limits.pages_bytes >> 10) as usize)),
        }
    }

    /// Its bounds.
    pub fn limits(&self) -> ReadLimits {
        self.limits
    }

    /// [`Reader::read`] of whole rows, unfiltered.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub async fn page(
        &self,
        table: &Table,
        source: Source,
        limit: usize,
        offset: u64,
    ) -> Result<Page, ReadError> {
        let ask = Ask {
            source,
            limit,
            offset,
            ..Default::default()
        };
        self.read(table, &ask).await
    }

    /// Rows of a source. Without an order of their own they come in that of the snapshot, the same for every page of it: base
    /// rows as they lie, then pending rows, shard by shard, oldest generation first.
    ///
    /// # Errors
    /// The bounds; `UnknownColumn` and `BadValue`; `GenerationUnreadable` and `SchemaMismatch` name a pending generation
    /// that cannot be read (never an answer without its rows); what the table says.
    pub async fn read(&self, table: &Table, ask: &Ask) -> Result<Page, ReadError> {
        let begun = Instant::now();
        let from = Position {
            rows: ask.offset,
            place: None,
        };
        let view = Arc::new(self.view(table, ask.source, begun, false).await?);
        let error = match self.rows(table, &view, ask, from).await {
            Ok(page) => return Ok(page),
            Err(e) => e,
        };
        let again = Arc::new(self.again(table, ask.source, &view, error).await?);
        self.rows(table, &again, ask, from).await
    }

    /// Another view, once, after an error that may come from files that were merged, drained and reclaimed, or cleaned up,
    /// since the snapshot; the error where it does not.
    async fn again(
        &self,
        table: &Table,
        source: Source,
        view: &View,
        error: ReadError,
    ) -> Result<View, ReadError> {
        if !may_have_moved(&error) {
            return Err(error);
        }
        let again = self.view(table, source, Instant::now(), true).await?;
        match again.id.digest == view.id.digest {
            true => Err(error),
            false => Ok(again),
        }
    }

    /// How many rows a source has.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub async fn count(&self, table: &Table, source: Source) -> Result<u64, ReadError> {
        let ask = Ask {
            source,
            ..Default::default()
        };
        self.count_of(table, &ask).await.map(|c| c.rows)
    }

    /// How many rows of a source are as asked; limit, offset and columns are nothing to it.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub async fn count_of(&self, table: &Table, ask: &Ask) -> Result<Count, ReadError> {
        let mut view = self.view(table, ask.source, Instant::now(), false).await?;
        let rows = match counted(table, &view, ask).await {
            Ok(rows) => rows,
            Err(e) => {
                view = self.again(table, ask.source, &view, e).await?;
                counted(table, &view, ask).await?
            }
        };
        let generations_read = view.generations().len();
        Ok(Count {
            rows,
            generations_read,
            oldest_pending: view.oldest(),
            snapshot: view.id,
        })
    }

    /// What a source would be read from now: the look at manifests and base alone, no row and no key.
    ///
    /// # Errors
    /// What the table says.
    pub async fn snapshot(&self, table: &Table, source: Source) -> Result<SnapshotId, ReadError> {
        if source == Source::Fragments {
            let read_at = Timestamp::now();
            return Ok(SnapshotId::of_base(table.latest().await?.as_ref(), read_at));
        }
        let remembered = self.remembered(table.location());
        let snapshot = remembered.seen.look(table, Instant::now(), false).await?;
        whole(&snapshot)?;
        Ok(SnapshotId::of(&snapshot))
    }

    /// What is pending now, shard by shard, by their manifests: no generation is opened.
    ///
    /// # Errors
    /// What the table says.
    pub async fn backlog(
        &self,
        table: &Table,
    ) -> Result<(SnapshotId, Vec<ShardPending>), ReadError> {
        let remembered = self.remembered(table.location());
        let snapshot = remembered.seen.look(table, Instant::now(), false).await?;
        whole(&snapshot)?;
        Ok((SnapshotId::of(&snapshot), snapshot.shards))
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
            let view = View::of_base(base, read_at);
            return Ok(View {
                fragments: Some(Arc::new(fragments)),
                pin: Some(Pin::of_base(&view.base, &view.id)),
                ..view
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
        remembered.chose(&chosen);
        let id = SnapshotId::of(&snapshot);
        Ok(View {
            pin: Some(Pin::of(&snapshot, &id, source)),
            base: snapshot.base,
            fragments,
            chosen: Some(chosen),
            id,
        })
    }

    async fn rows(
        &self,
        table: &Table,
        view: &Arc<View>,
        ask: &Ask,
        from: Position,
    ) -> Result<Page, ReadError> {
        let shape = Shape::of(view.base.schema(), ask.columns.as_deref())?;
        let filter = Filter::of(view.base.schema(), ask)?;
        let order = Order::of(view.base.schema(), &ask.order)?;
        let mut budget = rows::Budget::new(&self.limits, self.pages.clone());
        if !ask.order.is_empty() {
            let ask = Ask {
                offset: from.rows,
                ..ask.clone()
            };
            let picked = ordered::pick(table, view, &filter, &order, &ask, &mut budget).await?;
            let (picked, sequence) = picked;
            let batches = picked.read(table, view, &shape, &mut budget).await?;
            let batches = ordered::arrange(&batches, &sequence);
            return Ok(paged(view, batches, &picked, from, budget));
        }
        let picked = match filter.is_empty() {
            true => view.picked(ask.limit, from.rows, &mut budget).await?,
            // Late: which rows they are is found in the columns that are asked for, then only those rows are read.
            false => matching::pick(table, view, &filter, ask.limit, from, &mut budget).await?,
        };
        let batches = picked.read(table, view, &shape, &mut budget).await?;
        Ok(paged(view, batches, &picked, from, budget))
    }
}

/// A page, and how it is gone on from.
fn paged(
    view: &Arc<View>,
    batches: Vec<RecordBatch>,
    picked: &Picked,
    from: Position,
    budget: rows::Budget,
) -> Page {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let next = view.pin.clone().filter(|_| picked.more).map(|pin| {
        Box::new(Next {
            pin,
            position: Position {
                rows: from.rows.saturating_add(rows as u64),
                place: picked.next,
            },
            view: view.clone(),
        })
    });
    Page {
        next,
        ..view.page(batches, picked.more, budget)
    }
}

async fn counted(table: &Table, view: &View, ask: &Ask) -> Result<u64, ReadError> {
    let filter = Filter::of(view.base.schema(), ask)?;
    match filter.is_empty() {
        true => Ok(view.rows()),
        false => matching::count(table, view, &filter).await,
    }
}

/// Refuses a snapshot without a shard whose manifest cannot be read: never an answer without what is pending there.
fn whole(snapshot: &Snapshot) -> Result<(), ReadError> {
    match snapshot.unread.first() {
        Some(fault) => Err(fault.error().into()),
        None => Ok(()),
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
