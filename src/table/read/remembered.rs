//! What is remembered of tables between questions, within one budget.
//!
//! Lives here: `Remembered`, what is kept of one table, and making room among all of them and the snapshots that walks are
//! under way on. May use: this room's parts. Never: what one location or one credential saw, shown to another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::store::Location;
use super::Reader;
use super::pending::{Chosen, Held};
use super::snapshots::Seen;
use super::wait::Newest;

pub(super) type Tables = Vec<(Location, Arc<Remembered>)>;

/// What is remembered of one table.
#[derive(Default)]
pub(super) struct Remembered {
    pub seen: Seen,
    /// For those who wait.
    pub newest: Newest,
    /// One builds at a time, the others wait for what it builds.
    pub held: tokio::sync::Mutex<Held>,
    /// What the last read chose of what is held.
    chosen: Mutex<Option<Arc<Chosen>>>,
    /// One opens an older snapshot at a time.
    pub reopening: tokio::sync::Mutex<()>,
    pub bytes: AtomicU64,
}

impl Remembered {
    /// Takes note of what a read chose.
    pub fn chose(&self, chosen: &Arc<Chosen>) {
        *self.chosen() = Some(chosen.clone());
    }

    fn chosen(&self) -> MutexGuard<'_, Option<Arc<Chosen>>> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Reader {
    /// What is remembered of a table, made the most recently used.
    pub(super) fn remembered(&self, location: &Location) -> Arc<Remembered> {
        let mut tables = self.tables();
        let entry = match tables.iter().position(|(l, _)| l == location) {
            Some(at) => tables.remove(at),
            None => (location.clone(), Arc::default()),
        };
        let remembered = entry.1.clone();
        tables.push(entry);
        remembered
    }

    /// Forgets the least recently used walks, which are opened again when they go on, and then the least recently used
    /// tables, until what is remembered fits; never the table in use.
    pub(super) fn make_room(&self, in_use: &Location) {
        let mut tables = self.tables();
        while self.bytes(&tables) > self.limits.key_bytes && self.views.forget_oldest() {}
        while self.bytes(&tables) > self.limits.key_bytes {
            let other = |(l, r): &(Location, Arc<Remembered>)| l != in_use && r.bytes() > 0;
            let Some(at) = tables.iter().position(other) else {
                return;
            };
            tables.remove(at);
        }
    }

    /// Bytes that are remembered between reads, of all tables.
    pub fn held_bytes(&self) -> u64 {
        self.bytes(&self.tables())
    }

    fn bytes(&self, tables: &Tables) -> u64 {
        let held: Vec<_> = tables
            .iter()
            .filter_map(|(_, r)| r.chosen().clone())
            .collect();
        let keys = held
            .iter()
            .flat_map(|c| &c.parts)
            .map(|p| Arc::as_ptr(&p.keys));
        let own: u64 = tables.iter().map(|(_, r)| r.bytes()).sum();
        own + self.views.bytes(keys)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
