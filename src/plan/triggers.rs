//! When a table's next merge is due.
//!
//! Lives here: the triggers (request, age, count, bytes, the tail of a cut merge) and the deadlines that order merges.
//! May use: this room's views, chunk and prediction. Must never come in: what other tables do; that is `order`.
//! Every trigger answers with an instant that rests while the table does, so a plan can say when to wake.

use std::time::Duration;

use jiff::Timestamp;

use super::chunk::{self, Caps, Chunk};
use super::clock::{after, before, between};
use super::views::{Budgets, Observation, PendingGeneration, TableView};
use super::work::Trigger;

/// The next merge of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeNeed {
    /// What goes into it.
    pub chunk: Chunk,
    /// When it is to start.
    pub due: Timestamp,
    /// What sets that instant.
    pub trigger: Trigger,
    /// By when it is to end, for the order between tables; see [`order_deadline`].
    pub deadline: Timestamp,
    /// How long it is thought to take.
    pub predicted: Duration,
    /// Since when something mergeable has been pending.
    pub since: Timestamp,
    /// Mergeable generations in all.
    pub pending: u64,
    /// Their bytes in all, if known of each.
    pub pending_bytes: Option<u64>,
}

/// The next merge of `view`, due or not; `None` when nothing can be merged.
pub fn next_merge(
    view: &TableView,
    observation: &Observation,
    budgets: &Budgets,
) -> Option<MergeNeed> {
    let mut waiting: Vec<&PendingGeneration> = observation
        .shards
        .iter()
        .flat_map(chunk::mergeable)
        .collect();
    waiting.sort_by_key(|g| g.since());
    let since = waiting.first()?.since();
    let caps = Caps::of(view, budgets.bytes);
    let chunk = chunk::choose(&observation.shards, caps, &view.history)?;
    let predicted = view.history.merge(chunk.generations, chunk.reserved());
    let (due, trigger) = [
        view.requested
            .filter(|at| since <= *at)
            .map(|at| (at, Trigger::Requested)),
        Some((
            age(view, since, predicted, budgets.queue_wait),
            Trigger::Age,
        )),
        count(view, &waiting).map(|at| (at, Trigger::Count)),
        bytes(view, &waiting).map(|at| (at, Trigger::Bytes)),
        view.past
            .merge_cut
            .filter(|at| since <= *at)
            .map(|at| (at, Trigger::Tail)),
    ]
    .into_iter()
    .flatten()
    .min()?;
    Some(MergeNeed {
        deadline: order_deadline(view, since),
        pending: waiting.len() as u64,
        pending_bytes: waiting
            .iter()
            .try_fold(0u64, |sum, g| Some(sum.saturating_add(g.bytes?))),
        chunk,
        due,
        trigger,
        predicted,
        since,
    })
}

/// When age starts a merge: early enough to end by the target after waiting in the queue, and never later than half
/// the target. A table's first merge starts up to half of that span earlier, by its seed, so that tables which were
/// found together do not all start together.
fn age(view: &TableView, since: Timestamp, predicted: Duration, wait: Duration) -> Timestamp {
    let target = view.policy.target;
    let latest = before(after(since, target), predicted.saturating_add(wait));
    let start = latest.min(after(since, target / 2)).max(since);
    if view.past.merge_started.is_some() {
        return start;
    }
    before(
        start,
        (between(since, start) / 2).mul_f64(fraction(view.jitter)),
    )
}

/// When the count of waiting generations was reached.
fn count(view: &TableView, waiting: &[&PendingGeneration]) -> Option<Timestamp> {
    let nth = usize::try_from(view.policy.merge_at_generations.max(1)).ok()?;
    waiting.get(nth - 1).map(|g| g.since())
}

/// When the bytes of waiting generations were reached.
fn bytes(view: &TableView, waiting: &[&PendingGeneration]) -> Option<Timestamp> {
    let mut sum = 0u64;
    waiting
        .iter()
        .find(|g| {
            sum = sum.saturating_add(chunk::bytes_of(g));
            sum >= view.policy.merge_at_bytes
        })
        .map(|g| g.since())
}

/// By when the merge of what has been pending since `since` is to end, for the order between tables.
///
/// It is the target after `since`, or the request's instant where somebody asked. A table whose last merge started
/// past that instant is behind: each of its merges moves the deadline to a target after that merge's start, so that a
/// table with a huge backlog takes turns with the others instead of being first until it has caught up.
fn order_deadline(view: &TableView, since: Timestamp) -> Timestamp {
    let target = view.policy.target;
    let requested = view.requested.filter(|at| since <= *at);
    let deadline = after(since, target);
    let deadline = requested.map_or(deadline, |at| at.min(deadline));
    match view.past.merge_started {
        Some(started) if started > deadline => after(started, target),
        _ => deadline,
    }
}

/// A number between 0 and 1 that looks random and depends on `seed` alone (the finaliser of SplitMix64).
fn fraction(seed: u64) -> f64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) as f64 / u64::MAX as f64
}
