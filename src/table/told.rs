//! What another hand did once, and for how long it is told.
//!
//! Lives here: `Told`, which the tracker keeps between looks. Nothing of it stops work, and nobody has to acknowledge it
//! (contract 9): it ends by itself. May use: this room's snapshots. Never: how such a thing is found (`observe`).

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::anomaly::AnomalyKind;
use super::snapshot::ShardPending;

/// How long it is told after it was seen last: long enough for a person to come by.
const A_DAY: Duration = Duration::from_secs(24 * 3600);

/// A kind and the shard that it is about.
type About = (AnomalyKind, Option<Uuid>);

#[derive(Debug)]
struct Said {
    message: String,
    seen: Instant,
    /// Per shard the newest generation that was pending then. It may still do harm while one of them is pending.
    with: BTreeMap<Uuid, u64>,
}

/// What was seen and is not over.
#[derive(Debug)]
pub(super) struct Told {
    lasts: Duration,
    said: BTreeMap<About, Said>,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            lasts: A_DAY,
            said: BTreeMap::new(),
        }
    }
}

impl Told {
    /// Tells for so long what is seen no more.
    pub(super) fn lasting(lasts: Duration) -> Self {
        Self {
            lasts,
            ..Self::default()
        }
    }

    /// It was seen just now, in a look that found these shards.
    pub(super) fn saw(
        &mut self,
        about: About,
        message: String,
        at: Instant,
        at_stake: &[ShardPending],
    ) {
        let newest = |s: &ShardPending| Some((s.state.shard, s.pending.last()?.number));
        let said = Said {
            message,
            seen: at,
            with: at_stake.iter().filter_map(newest).collect(),
        };
        self.said.insert(about, said);
    }

    /// What is to be told now.
    pub(super) fn now(&mut self, at: Instant, shards: &[ShardPending]) -> Vec<(About, String)> {
        let pending = |(shard, newest): (&Uuid, &u64)| {
            let mut of = shards.iter().filter(|s| s.state.shard == *shard);
            of.any(|s| s.pending.first().is_some_and(|g| g.number <= *newest))
        };
        for said in self.said.values_mut() {
            if said.with.iter().any(pending) {
                said.seen = at;
            }
        }
        let lasts = self.lasts;
        self.said
            .retain(|_, said| at.duration_since(said.seen) <= lasts);
        let told = self.said.iter();
        told.map(|(about, said)| (*about, said.message.clone()))
            .collect()
    }
}
