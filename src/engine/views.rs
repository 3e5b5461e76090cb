//! A look, as the plan sees it.
//!
//! Lives here: the mapping from the table room's observation to the plan's. Pure. May use: both rooms' plain data. Must
//! never come in: a zero for what is unknown, or a decision.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::config::REAL_PER_PLANNED;
use super::look::Seen;
use crate::plan::backoff::CAP;
use crate::plan::{self, Generation, MergedGeneration, PendingGeneration, Reason};
use crate::table::{self, AnomalyKind};

/// When each generation was first seen pending, by shard and directory.
pub type FirstSeen = HashMap<(Uuid, Arc<str>), Timestamp>;

/// What else the mapping goes by.
pub struct With<'a> {
    /// When the look began, by the engine's clock.
    pub began: Timestamp,
    /// The generation that stops a shard.
    pub stops: &'a dyn Fn(Uuid) -> Option<u64>,
    /// The generation from which on a shard's merged ones cannot be drained yet.
    pub held: &'a BTreeMap<Uuid, u64>,
}

/// Maps a look, and keeps `first` to what is pending in it.
pub fn observation(seen: &Seen, with: &With<'_>, first: &mut FirstSeen) -> plan::Observation {
    let before = std::mem::take(first);
    let shards = seen
        .observation
        .shards
        .iter()
        .map(|s| shard(seen, s, with, &before, first));
    let unread = seen.observation.unread.iter().map(|f| plan::ShardView {
        anomalies: anomalies(seen, Some(f.shard)),
        ..plan::ShardView::new(f.shard)
    });
    let mut shards: Vec<_> = shards.collect();
    shards.extend(unread);
    plan::Observation {
        observed_at: with.began,
        base_version: seen.observation.base.version,
        shards,
        anomalies: anomalies(seen, None),
        small_fragments: seen.observation.base.small_fragments as u64,
        unindexed_rows: seen.unindexed_rows,
        old_versions_due: seen.old_versions_in.map(|span| later(with.began, span)),
    }
}

fn shard(
    seen: &Seen,
    s: &table::ShardView,
    with: &With<'_>,
    before: &FirstSeen,
    first: &mut FirstSeen,
) -> plan::ShardView {
    let pending = s.pending.iter().map(|p| {
        let path: Arc<str> = p.generation.path.as_str().into();
        let key = (s.shard, path.clone());
        let first_seen = before.get(&key).copied().unwrap_or(with.began);
        first.insert(key, first_seen);
        PendingGeneration {
            generation: Generation(p.generation.number),
            path,
            rows: p.rows,
            bytes: p.bytes,
            commit_bytes: p.commit_bytes.div_ceil(REAL_PER_PLANNED),
            flushed_at: p.flushed_at,
            first_seen,
        }
    });
    let held = with.held.get(&s.shard);
    let merged = s.merged.iter().map(|(g, at)| MergedGeneration {
        generation: Generation(g.number),
        merged_at: *at,
        caught_up: held.is_none_or(|held| g.number < *held),
    });
    let reclaimable = seen.reclaimable.iter().filter(|r| r.shard == s.shard);
    let tail = seen.tails.iter().find(|t| t.shard == s.shard);
    plan::ShardView {
        id: s.shard,
        watermark: (s.watermark > 0).then_some(Generation(s.watermark)),
        pending: pending.collect(),
        merged: merged.collect(),
        reclaimable: reclaimable
            .map(|r| plan::Reclaimable {
                path: r.path.as_str().into(),
                due: later(with.began, r.due.saturating_duration_since(seen.at)),
            })
            .collect(),
        quarantined: (with.stops)(s.shard).map(Generation),
        anomalies: anomalies(seen, Some(s.shard)),
        tail: tail.map(|t| plan::Tail {
            entries: t.entries,
            since: earlier(with.began, t.waiting),
            unchanged_since: earlier(with.began, t.unchanged),
        }),
    }
}

/// The anomalies of a shard, or of the table. Tails are told by the plan itself.
fn anomalies(seen: &Seen, shard: Option<Uuid>) -> Vec<plan::Anomaly> {
    let of = seen.observation.anomalies.iter().filter(|a| {
        a.shard == shard && !matches!(a.kind, AnomalyKind::TailWaiting | AnomalyKind::TailStranded)
    });
    of.filter_map(|a| {
        let reason = Reason::named(a.kind.reason())?;
        let detail = a.message.clone();
        Some(plan::Anomaly { reason, detail })
    })
    .collect()
}

/// The time to go by after `before`, where a clock tells `told`: never back by less than the longest backoff, so that a
/// correction disturbs nothing; but a clock that was far ahead does not hold the engine until it gets there again.
pub fn follow(before: Timestamp, told: Timestamp) -> Timestamp {
    match before <= later(told, CAP) {
        true => before.max(told),
        false => told,
    }
}

fn later(at: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    at.checked_add(span).unwrap_or(Timestamp::MAX)
}

fn earlier(at: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    at.checked_sub(span).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_still_for_a_correction_and_follows_a_clock_that_was_set_back() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(follow(Timestamp::MIN, at(5)), at(5));
        assert_eq!(follow(at(5), at(9)), at(9));
        assert_eq!(follow(at(500), at(5)), at(500));
        assert_eq!(follow(at(3605), at(5)), at(5));
    }

    #[test]
    fn every_anomaly_of_a_table_is_a_reason_of_the_plan() {
        for kind in [
            AnomalyKind::WatermarkAhead,
            AnomalyKind::WentBack,
            AnomalyKind::DuplicateGeneration,
            AnomalyKind::UnsupportedManifest,
            AnomalyKind::ForeignMerger,
            AnomalyKind::DirectWrite,
            AnomalyKind::AutoCleanup,
            AnomalyKind::UnknownDirectory,
        ] {
            let reason = Reason::named(kind.reason());
            let reason = reason.unwrap_or_else(|| panic!("{} is unknown", kind.reason()));
            assert_eq!(
                kind.blocks(),
                reason.reach() != plan::Reach::Told,
                "{reason}"
            );
        }
    }

    #[test]
    fn spans_past_the_ends_of_time_stop_there() {
        assert_eq!(
            later(Timestamp::MAX, Duration::from_secs(9)),
            Timestamp::MAX
        );
        assert_eq!(earlier(Timestamp::MIN, Duration::MAX), Timestamp::MIN);
    }
}
