//! Going on with a walk: another page of a snapshot that was read before.
//!
//! Lives here: `Views`, the snapshots that walks are under way on, the last used of them, and `Reader::resume`, which opens
//! again what is not there: the base version and the shard manifests that the pin names, each checked to be the one that
//! was meant. What is gone, by any hand, is `SnapshotGone`. May use: this room's parts. Never: a newer snapshot in the
//! place of the one that was asked for, or a look at what is pending now.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lance::Dataset;
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::super::base::Table;
use super::super::error::{Error, is_not_found};
use super::super::generation::Generation;
use super::super::shard::{self, AT_ONCE, ShardState};
use super::super::snapshot::Snapshot;
use super::super::store::Location;
use super::hidden::{Fragments, Hidden};
use super::keyed::Keys;
use super::pinned::{check, short};
use super::{
    Ask, Next, Page, Pin, PinnedShard, Position, ReadError, Reader, ShardAt, SnapshotId, Source,
    View,
};

/// Snapshots that are kept open between pages.
const MOST: usize = 32;
/// What an open base version is taken to hold, and each of its fragments.
const VERSION_BYTES: u64 = 4096;
const FRAGMENT_BYTES: u64 = 512;

type Cell = Arc<OnceCell<Arc<View>>>;

/// Snapshots that are open, the last used last.
#[derive(Default)]
pub(super) struct Views {
    kept: Mutex<Vec<Kept>>,
}

struct Kept {
    at: Location,
    /// The pin's source and its two digests.
    of: Name,
    view: Cell,
}

type Name = (Source, u128, u128);

fn name(pin: &Pin) -> Name {
    (pin.source, pin.check, pin.digest)
}

impl Views {
    /// The place of a snapshot, made the most recently used.
    fn cell(&self, at: &Location, pin: &Pin) -> Cell {
        let mut kept = self.lock();
        let same = |k: &Kept| k.of == name(pin) && k.at == *at;
        let found = kept.iter().position(same).map(|at| kept.remove(at));
        let found = found.unwrap_or_else(|| Kept {
            at: at.clone(),
            of: name(pin),
            view: Cell::default(),
        });
        let view = found.view.clone();
        kept.push(found);
        if kept.len() > MOST {
            kept.remove(0);
        }
        view
    }

    fn forget(&self, at: &Location, pin: &Pin) {
        self.lock().retain(|k| k.of != name(pin) || k.at != *at);
    }

    /// Forgets the least recently used; `false` where there is none.
    pub fn forget_oldest(&self) -> bool {
        let mut kept = self.lock();
        let any = !kept.is_empty();
        kept.drain(..usize::from(any));
        any
    }

    /// The keys of generations that a table's open snapshots hold.
    fn keys(&self, at: &Location) -> Vec<Arc<Keys>> {
        let kept = self.lock();
        let views = kept.iter().filter(|k| k.at == *at);
        let views = views.filter_map(|k| k.view.get()?.chosen.clone());
        views
            .flat_map(|c| c.parts.iter().map(|p| p.keys.clone()).collect::<Vec<_>>())
            .collect()
    }

    /// Bytes held beside keys that are held elsewhere; each once.
    pub fn bytes(&self, elsewhere: impl Iterator<Item = *const Keys>) -> u64 {
        let mut counted: HashSet<*const Keys> = elsewhere.collect();
        let mut bytes = 0;
        for view in self.lock().iter().filter_map(|k| k.view.get()) {
            bytes += VERSION_BYTES + view.base.fragments().len() as u64 * FRAGMENT_BYTES;
            bytes += view.fragments.as_ref().map_or(0, |f| f.bytes());
            for part in view.chosen.iter().flat_map(|c| &c.parts) {
                bytes += part.rows.serialized_size() as u64;
                if counted.insert(Arc::as_ptr(&part.keys)) {
                    bytes += part.keys.size();
                }
            }
        }
        bytes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Keeps a page's snapshot open, as far as there is room, for whoever goes on from it.
    pub fn keep(&self, table: &Table, next: &Next) {
        let cell = self.views.cell(table.location(), &next.pin);
        // Where it is open already, that one will do.
        let _ = cell.set(next.view.clone());
        self.make_room(table.location());
    }

    /// Rows of the snapshot that a pin names, from a position on; the ask's source and offset are nothing to it. The rows
    /// of all pages together are those that one read of the snapshot would have given, in that order.
    ///
    /// # Errors
    /// `SnapshotGone` where anything of it is not there any more or is another thing by now; as [`Reader::read`] otherwise.
    pub async fn resume(
        &self,
        table: &Table,
        pin: &Pin,
        from: Position,
        ask: &Ask,
    ) -> Result<Page, ReadError> {
        let cell = self.views.cell(table.location(), pin);
        let opening = cell.get_or_try_init(|| self.reopen(table, pin)).await;
        let read = match opening.cloned() {
            Ok(view) => match self.rows(table, &view, ask, from).await {
                Ok(page) => Ok(named(page, pin)),
                Err(e) => Err(judged(table, view.generations(), e).await),
            },
            Err(e) => Err(e),
        };
        if read
            .as_ref()
            .is_err_and(|e| matches!(e, ReadError::SnapshotGone { .. }))
            || cell.get().is_none()
        {
            self.views.forget(table.location(), pin);
        }
        self.make_room(table.location());
        read
    }

    async fn reopen(&self, table: &Table, pin: &Pin) -> Result<Arc<View>, ReadError> {
        let base = base(table, pin).await?;
        let view = match pin.source {
            Source::Fragments => {
                let fragments = Fragments::of(&base, &Hidden::nothing()).await;
                let fragments = Arc::new(fragments.map_err(|e| gone_if_missing(e.into()))?);
                View {
                    fragments: Some(fragments),
                    ..View::of_base(base, pin.read_at)
                }
            }
            Source::Wal | Source::All => self.reopen_union(table, pin, base).await?,
        };
        let view = View {
            pin: Some(pin.clone()),
            ..view
        };
        Ok(Arc::new(view))
    }

    async fn reopen_union(
        &self,
        table: &Table,
        pin: &Pin,
        base: Arc<Dataset>,
    ) -> Result<View, ReadError> {
        let remembered = self.remembered(table.location());
        // One at a time for a table: each may hold as many keys as all may.
        let _turn = remembered.reopening.lock().await;
        let (snapshot, idle) = snapshot(table, pin, base).await?;
        let mut held = remembered
            .held
            .lock()
            .await
            .seed(self.views.keys(table.location()));
        let made = held.view(table, &snapshot, pin.source, &self.limits).await;
        let (chosen, fragments) = match made {
            Ok(made) => made,
            Err(e) => {
                let pending: Vec<_> = snapshot.pending().cloned().collect();
                return Err(judged(table, pending.iter(), e).await);
            }
        };
        let mut id = SnapshotId::of(&snapshot);
        id.digest = format!("{:032x}", pin.digest);
        if let Some(shards) = &mut id.shards {
            shards.extend(idle);
            shards.sort_by_key(|s| s.shard);
        }
        Ok(View {
            fragments,
            chosen: Some(chosen),
            id,
            ..View::of_base(snapshot.base, pin.read_at)
        })
    }
}

/// The page under the pin that it was asked for by: another read of the same snapshot, at another time, may have opened it.
fn named(mut page: Page, pin: &Pin) -> Page {
    page.snapshot.read_at = pin.read_at;
    if let Some(next) = &mut page.next {
        next.pin = pin.clone();
    }
    page
}

/// The base version that a pin names.
async fn base(table: &Table, pin: &Pin) -> Result<Arc<Dataset>, ReadError> {
    let seen = table.seen().await;
    if pin.base.is(&seen) {
        return Ok(seen);
    }
    let found = match table.at_version(pin.base.version).await {
        Ok(found) => found,
        Err(e) => return Err(gone_if_missing(e.into())),
    };
    match pin.base.is(&found) {
        true => Ok(found),
        false => Err(gone("the table was made again, or went back, since")),
    }
}

/// The snapshot that a pin names, and the shards that had nothing pending, as far as they are still there.
async fn snapshot(
    table: &Table,
    pin: &Pin,
    base: Arc<Dataset>,
) -> Result<(Snapshot, Vec<ShardAt>), ReadError> {
    let found = match pin.pending.is_empty() && pin.idle.is_empty() {
        true => Default::default(),
        false => shard::list(table.store(), table.path()).await?,
    };
    let mut ids: HashMap<u64, Option<Uuid>> = HashMap::new();
    for id in found.ids {
        // Two of one name are as good as none.
        let once = |held: &mut Option<Uuid>| *held = None;
        ids.entry(short(id)).and_modify(once).or_insert(Some(id));
    }
    let named = |shard: &PinnedShard| ids.get(&shard.name).copied().flatten();
    let reads: Vec<_> = pin
        .pending
        .iter()
        .map(|pinned| manifest(table, named(pinned), *pinned).boxed())
        .collect();
    let reads = stream::iter(reads).buffered(AT_ONCE);
    let states: Vec<(ShardState, bool)> = reads.try_collect().await?;
    let snapshot = Snapshot::again(base, states, pin.read_at, pin.across_shards).await;
    let snapshot = snapshot.map_err(|e| gone_if_missing(e.into()))?;
    if check(snapshot.version(), &snapshot.shards) != pin.check {
        return Err(gone(
            "a shard of the table was made again, or merged anew, since",
        ));
    }
    let idle = pin.idle.iter().filter_map(|pinned| {
        Some(ShardAt {
            shard: named(pinned)?,
            manifest_version: pinned.version,
            pending_generations: 0,
        })
    });
    Ok((snapshot, idle.collect()))
}

async fn manifest(
    table: &Table,
    shard: Option<Uuid>,
    pinned: PinnedShard,
) -> Result<(ShardState, bool), ReadError> {
    let Some(shard) = shard else {
        return Err(gone("a shard that it read is not there any more"));
    };
    match shard::read_version(table.store(), table.path(), shard, pinned.version).await {
        Ok(state) => Ok((state, pinned.whole)),
        Err(e) => Err(gone_if_missing(e.into())),
    }
}

fn gone(what: &'static str) -> ReadError {
    ReadError::SnapshotGone { what }
}

/// An error of a file that is not there, as what it means for a snapshot.
fn gone_if_missing(e: ReadError) -> ReadError {
    let missing = match &e {
        ReadError::Table(Error::Lance { source, .. }) => is_not_found(source),
        ReadError::Table(Error::Corrupt { .. } | Error::TableNotFound(_)) => true,
        _ => false,
    };
    match missing {
        true => gone("a file that it read is not there any more"),
        false => e,
    }
}

/// An error of a read, as what it means for a snapshot: a generation that lacks a file is gone, one that is broken is not.
async fn judged<'a>(
    table: &Table,
    mut generations: impl Iterator<Item = &'a Generation>,
    e: ReadError,
) -> ReadError {
    let poisoned = match &e {
        ReadError::Table(e) => e.poisoned(),
        _ => None,
    };
    let Some((shard, number)) = poisoned else {
        return gone_if_missing(e);
    };
    let Some(generation) = generations.find(|g| (g.shard, g.number) == (shard, number)) else {
        return e;
    };
    match generation.is_there(table.store(), table.path()).await {
        Ok(false) => gone("a generation that it read is not there any more"),
        Ok(true) | Err(_) => e,
    }
}
