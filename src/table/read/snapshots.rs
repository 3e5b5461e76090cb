//! Snapshots for reading, at few requests.
//!
//! Lives here: `Seen`, which remembers the shard manifests of the last look, so that a look at an unchanged shard costs
//! one request, and which lets those who asked before a look began share it. May use: listings and shards. Never: a look
//! in the wrong order, or one that is older than the question.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;

use super::super::base::Table;
use super::super::error::Result;
use super::super::shard::{self, Newest, ShardState};
use super::super::snapshot::{Listing, Snapshot};
use super::merged::Verdicts;

/// A manifest that was read longer ago is read again: a shard that was removed and made again by hand counts its
/// manifests from 1, so that none newer than the remembered one would ever be found.
const TRUSTED: Duration = Duration::from_secs(10);
/// Looks at the manifests until two of them show the same.
const TRIES: usize = 3;

type States = BTreeMap<Uuid, ShardState>;

/// The last look at a table's shards.
#[derive(Default)]
pub(super) struct Seen {
    states: Mutex<Option<(Instant, States)>>,
    last: tokio::sync::Mutex<Last>,
}

/// The last look, and what was found out for it.
#[derive(Default)]
struct Last {
    look: Option<(Instant, Snapshot)>,
    verdicts: Verdicts,
}

impl Seen {
    /// A snapshot whose look began at or after `begun`; `afresh` trusts nothing that was seen before.
    pub async fn look(&self, table: &Table, begun: Instant, afresh: bool) -> Result<Snapshot> {
        let mut last = self.last.lock().await;
        if let Some((at, snapshot)) = last.look.as_ref().filter(|(at, _)| *at >= begun && !afresh) {
            tracing::trace!(age = ?at.elapsed(), "a look is shared");
            return Ok(snapshot.clone());
        }
        let now = Instant::now();
        let mut known = self.trusted(now, afresh);
        let mut snapshot = self.once(table, &mut known).await?;
        for _ in 1..TRIES {
            if snapshot.across_shards {
                break;
            }
            let before = versions(&known);
            let read_at = Timestamp::now();
            let found = newest(table, &known).await?;
            known = states(&found);
            if versions(&known) == before {
                snapshot.across_shards = true;
                break;
            }
            snapshot = Listing::of(found, read_at).with_base(table).await?;
        }
        self.remember(now, known, afresh);
        last.verdicts.apply(table, &mut snapshot).await?;
        last.look = Some((now, snapshot.clone()));
        Ok(snapshot)
    }

    async fn once(&self, table: &Table, known: &mut States) -> Result<Snapshot> {
        let read_at = Timestamp::now();
        let found = newest(table, known).await?;
        *known = states(&found);
        Listing::of(found, read_at).with_base(table).await
    }

    fn trusted(&self, now: Instant, afresh: bool) -> States {
        let held = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref()
            .filter(|(at, _)| !afresh && now.duration_since(*at) < TRUSTED)
            .map(|(_, states)| states.clone())
            .unwrap_or_default()
    }

    /// Keeps the states, with the time at which none of them was trusted.
    fn remember(&self, now: Instant, states: States, afresh: bool) {
        let mut held = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match held.as_ref() {
            Some((at, _)) if !afresh && now.duration_since(*at) < TRUSTED => *at,
            _ => now,
        };
        *held = Some((since, states));
    }
}

/// Lists the shards and reads what is newer than known of each.
async fn newest(table: &Table, known: &States) -> Result<Newest> {
    let found = shard::list(table.store(), table.path()).await?;
    shard::newest_of(table.store(), table.path(), &found.ids, known).await
}

fn states(found: &Newest) -> States {
    let all = found.states.iter();
    all.map(|s| (s.shard, s.clone())).collect()
}

fn versions(states: &States) -> Vec<(Uuid, u64)> {
    states
        .values()
        .map(|s| (s.shard, s.manifest.version))
        .collect()
}
