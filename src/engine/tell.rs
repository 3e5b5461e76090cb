//! Telling of tables: statuses for whoever shows them, and gauges.
//!
//! Lives here: `tell`, which says anew only what may have moved. May use: `telemetry`, `table`'s data. Must never come in:
//! a look at a table, or a word about one that nothing happened to.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::entry::Entry;
use super::status::{Statuses, TableStatus};
use crate::plan::TableId;
use crate::table::Observation;
use crate::telemetry::{Backlog, Metrics};

/// Tells what is known of every table, as far as it is news.
pub fn tell(
    entries: &mut BTreeMap<TableId, Entry>,
    told: &watch::Sender<Statuses>,
    metrics: &Metrics,
) {
    let mut news: Vec<(TableId, TableStatus)> = Vec::new();
    let before = told.borrow().clone();
    for (id, entry) in entries.iter_mut().filter(|(_, e)| e.is_restless()) {
        let status = entry.status();
        entry.touched = false;
        metrics.set_backlog(&backlog(id, entry, &status));
        if before.get(id) != Some(&status) {
            news.push((id.clone(), status));
        }
    }
    let gone = before.keys().any(|id| !entries.contains_key(id));
    if news.is_empty() && !gone {
        return;
    }
    let mut all = Arc::unwrap_or_clone(before);
    all.retain(|id, _| entries.contains_key(id));
    all.extend(news);
    told.send_replace(Arc::new(all));
}

fn backlog(id: &TableId, entry: &Entry, status: &TableStatus) -> Backlog {
    let seen = entry.seen.as_ref().map(|s| &s.observation);
    Backlog {
        namespace: status.namespace.to_string(),
        name: id.name().to_string(),
        pending_generations: status.pending_generations,
        pending_rows: status.pending_rows,
        pending_bytes: status.pending_bytes,
        oldest_pending: status.oldest_pending,
        target: Some(status.target),
        observed: status.observed_at,
        last_merge: status.last_merge.as_ref().map(|m| m.time),
        quarantined: status.observed_at.map(|_| status.quarantined.len() as u64),
        flushed_ever: seen.and_then(Observation::flushed_ever),
        merged_ever: seen.and_then(Observation::merged_ever),
        why_not_now: status.why.as_ref().map(|w| w.reason.as_str().to_string()),
    }
}
