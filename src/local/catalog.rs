//! The experiments, as the server is told of them.
//!
//! Lives here: `Book`, the server's catalog: it answers from the engine's last statuses, and opens tables for readers with
//! the readers' own credentials. May use: `server`'s trait, `engine`'s statuses, `table`. Must never come in: a request to
//! a store while experiments are listed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;

use super::specs::Ready;
use crate::engine::{Statuses, TableStatus};
use crate::plan::TableId;
use crate::server::{Catalog, ExperimentStatus, Fragments, LastMerge, Unopened, WhyNotNow};
use crate::table::{Location, Stores, Table};

/// The server's catalog.
pub struct Book {
    stores: Arc<Stores>,
    statuses: watch::Receiver<Statuses>,
    pages: Mutex<BTreeMap<String, Page>>,
    ready: std::sync::atomic::AtomicBool,
}

/// A table that readers share, once it is open.
type Opened = Arc<tokio::sync::Mutex<Option<Arc<Table>>>>;

struct Page {
    ready: Ready,
    opened: Opened,
}

impl Book {
    /// An empty catalog.
    pub fn new(stores: Arc<Stores>, statuses: watch::Receiver<Statuses>) -> Self {
        Self {
            stores,
            statuses,
            pages: Mutex::default(),
            ready: false.into(),
        }
    }

    /// These experiments, and no others, from now on. A table that stays where it is stays open.
    pub fn set(&self, all: &[Ready]) {
        let mut pages = self.pages();
        let before = std::mem::take(&mut *pages);
        for ready in all {
            let name = ready.spec.id.0.to_string();
            let same = before.get(&name).filter(|p| p.ready.read == ready.read);
            let opened = same.map(|p| p.opened.clone()).unwrap_or_default();
            let ready = ready.clone();
            pages.insert(name, Page { ready, opened });
        }
        drop(pages);
        self.ready.store(true, std::sync::atomic::Ordering::Release);
    }

    fn pages(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, name: &str) -> Option<(Location, Opened)> {
        let pages = self.pages();
        let page = pages.get(name)?;
        Some((page.ready.read.clone(), page.opened.clone()))
    }
}

#[async_trait]
impl Catalog for Book {
    fn list(&self) -> Vec<ExperimentStatus> {
        let statuses = self.statuses.borrow().clone();
        let pages = self.pages();
        pages.values().map(|p| told(p, &statuses)).collect()
    }

    fn get(&self, namespace: Option<&str>, name: &str) -> Option<ExperimentStatus> {
        let statuses = self.statuses.borrow().clone();
        let told = self.pages().get(name).map(|p| told(p, &statuses))?;
        namespace
            .is_none_or(|n| n == told.namespace)
            .then_some(told)
    }

    async fn table(&self, of: &ExperimentStatus) -> Result<Option<Arc<Table>>, Unopened> {
        let Some((location, opened)) = self.place(&of.name) else {
            return Ok(None);
        };
        let mut opened = opened.lock().await;
        if let Some(table) = opened.as_ref() {
            return Ok(Some(table.clone()));
        }
        let table = Arc::new(Table::open(&self.stores, &location).await?);
        *opened = Some(table.clone());
        Ok(Some(table))
    }

    fn ready(&self) -> bool {
        self.ready.load(std::sync::atomic::Ordering::Acquire)
    }
}

fn told(page: &Page, statuses: &BTreeMap<TableId, TableStatus>) -> ExperimentStatus {
    let spec = &page.ready.spec;
    let known = ExperimentStatus {
        name: spec.id.0.to_string(),
        namespace: spec.namespace.0.to_string(),
        uri: spec.location.uri.clone(),
        target_seconds: Some(spec.policy.target.as_secs_f64()),
        // The engine has not taken the table up yet, and keeps what it finds for as long as it is asked to.
        grace_seconds: Some(spec.policy.grace.as_secs_f64()),
        ..Default::default()
    };
    let Some(s) = statuses
        .get(&spec.id)
        .filter(|s| s.uri == spec.location.uri)
    else {
        return known;
    };
    ExperimentStatus {
        // A lowered grace counts at once for what is promised, and later for what is deleted.
        grace_seconds: Some(spec.policy.grace.min(s.grace).as_secs_f64()),
        pending_generations: s.pending_generations,
        pending_rows: s.pending_rows,
        pending_bytes: s.pending_bytes,
        oldest_pending_time: s.oldest_pending,
        observed_time: s.observed_at,
        why_not_now: s.why.as_ref().map(|w| WhyNotNow {
            reason: w.reason.as_str().into(),
            message: w.message.clone(),
        }),
        quarantined_generations: s.observed_at.map(|_| s.quarantined.len() as u64),
        last_merge: s.last_merge.as_ref().map(|m| LastMerge {
            time: m.time,
            version: Some(m.version),
            generations: Some(m.generations),
            rows: Some(m.rows),
            seconds: Some(m.took.as_secs_f64()),
        }),
        fragments: s.base.map(|(version, rows, fragments)| Fragments {
            version,
            rows: Some(rows),
            fragments,
        }),
        merged_rows_per_second: s.observed_at.map(|_| s.merged_rows_per_second),
        ..known
    }
}
