//! Why not now: the one reason that a table shows, and its sentence.
//!
//! Lives here: collecting every reason that holds and choosing the first by [`Reason`]'s order. May use: this room's
//! views, needs and refusals. Must never come in: error text, ages (they move while nothing happens), decisions.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::chunk;
use super::clock::after;
use super::order::Refusal;
use super::reasons::{Reach, Reason};
use super::triggers::MergeNeed;
use super::views::{Failure, Observation, TableView, Tail};
use super::work::{Kind, WhyNotNow};

/// A tail that has not moved for this long (or for ten targets, if that is longer) has lost its writer.
const STRANDED_AFTER: Duration = Duration::from_secs(600);

/// What was decided about a table.
#[derive(Debug, Clone, Copy, Default)]
pub struct Decision<'a> {
    /// Its next merge.
    pub merge: Option<&'a MergeNeed>,
    /// Whether that starts now.
    pub starts: bool,
    /// Why it does not, if it is due.
    pub refusal: Option<Refusal>,
}

/// Reasons and what each has to say; the map's order is the precedence.
type Found = BTreeMap<Reason, Vec<String>>;

/// The one reason that `view` shows, its sentence, and whatever else holds.
pub fn why(view: &TableView, decision: Decision<'_>, now: Timestamp) -> WhyNotNow {
    let mut found = Found::new();
    rules(view, &mut found);
    failures(view, now, &mut found);
    if let Some(observation) = &view.observation {
        anomalies(observation, &mut found);
        tails(view, observation, now, &mut found);
    }
    progress(view, decision, now, &mut found);
    if found.is_empty() {
        found.insert(Reason::Fresh, Vec::new());
    }
    let mut all = found.into_iter();
    // Never empty: Fresh was put in when nothing else was.
    let (reason, details) = all.next().unwrap_or((Reason::Fresh, Vec::new()));
    WhyNotNow {
        reason,
        message: sentence(reason, &details),
        also: all.map(|(reason, _)| reason).collect(),
    }
}

/// When a tail of the table will be named, if that is still to come.
pub fn tail_named_at(
    view: &TableView,
    observation: &Observation,
    now: Timestamp,
) -> Option<Timestamp> {
    observation
        .shards
        .iter()
        .filter_map(|shard| shard.tail)
        .filter(|tail| tail.entries > 0)
        .flat_map(|tail| [waiting_at(view, &tail), stranded_at(view, &tail)])
        .filter(|at| *at > now)
        .min()
}

fn sentence(reason: Reason, details: &[String]) -> String {
    const SHOWN: usize = 3;
    let details: Vec<&str> = details
        .iter()
        .map(String::as_str)
        .filter(|d| !d.is_empty())
        .collect();
    let mut parts = details[..details.len().min(SHOWN)].join("; ");
    if details.len() > SHOWN {
        parts.push_str(&format!("; and {} more", details.len() - SHOWN));
    }
    if parts.is_empty() {
        return reason.explain().to_owned();
    }
    format!("{} ({parts}).", reason.explain().trim_end_matches('.'))
}

fn say(found: &mut Found, reason: Reason, detail: String) {
    found.entry(reason).or_default().push(detail);
}

fn rules(view: &TableView, found: &mut Found) {
    if view.not_allowed {
        say(found, Reason::NotAllowed, String::new());
    }
    if view.suspended {
        say(found, Reason::Suspended, String::new());
    }
}

fn failures(view: &TableView, now: Timestamp, found: &mut Found) {
    // A failed look holds until one succeeds, failed work only while it is waited out.
    if let Some(failure) = &view.look_trouble.failure {
        let next = view.look_trouble.backoff.waits_until(now);
        fail(Some(failure), next, found);
    }
    if let Some(next) = view.merge_trouble.backoff.waits_until(now) {
        fail(view.merge_trouble.failure.as_ref(), Some(next), found);
    }
    let aside = &view.aside_trouble;
    let lasting = |f: &&Failure| !name_of(f).is_passing();
    if let (Some(failure), Some(next)) = (
        aside.failure.as_ref().filter(lasting),
        aside.backoff.waits_until(now),
    ) {
        fail(Some(failure), Some(next), found);
    }
    match (&view.observation, &view.look_trouble.failure) {
        (None, None) => say(found, Reason::NeverObserved, String::new()),
        (Some(o), _) if view.past.ended.is_some_and(|ended| o.observed_at < ended) => {
            say(found, Reason::Observing, String::new());
        }
        _ => {}
    }
}

/// The reason of `failure`; one that stops nothing cannot be why something failed.
fn name_of(failure: &Failure) -> Reason {
    match failure.reason.reach() {
        Reach::Told => Reason::BackingOff,
        _ => failure.reason,
    }
}

fn fail(failure: Option<&Failure>, next: Option<Timestamp>, found: &mut Found) {
    let reason = failure.map_or(Reason::BackingOff, name_of);
    if let Some(failure) = failure {
        say(found, reason, failure.detail.clone());
    }
    if let Some(next) = next {
        say(found, reason, format!("the next try is at {next}"));
    }
}

fn anomalies(observation: &Observation, found: &mut Found) {
    for anomaly in &observation.anomalies {
        say(found, anomaly.reason, anomaly.detail.clone());
    }
    for shard in &observation.shards {
        let id = shard.id;
        for anomaly in &shard.anomalies {
            say(
                found,
                anomaly.reason,
                format!("shard {id}: {}", anomaly.detail),
            );
        }
        if let Some(generation) = shard.quarantined {
            let detail = format!("shard {id} waits at generation {generation}");
            say(found, Reason::Quarantined, detail);
        }
        if chunk::has_duplicates(shard) {
            say(found, Reason::DuplicateGeneration, format!("shard {id}"));
        }
    }
}

fn waiting_at(view: &TableView, tail: &Tail) -> Timestamp {
    after(tail.since, view.policy.target)
}

fn stranded_at(view: &TableView, tail: &Tail) -> Timestamp {
    let patience = STRANDED_AFTER.max(view.policy.target.saturating_mul(10));
    after(tail.unchanged_since, patience)
}

fn tails(view: &TableView, observation: &Observation, now: Timestamp, found: &mut Found) {
    for shard in &observation.shards {
        let Some(tail) = shard.tail.filter(|tail| tail.entries > 0) else {
            continue;
        };
        let (id, entries) = (shard.id, tail.entries);
        if stranded_at(view, &tail) <= now {
            let since = tail.unchanged_since;
            let detail = format!("shard {id}: at most {entries} entries, unchanged since {since}");
            say(found, Reason::TailStranded, detail);
        } else if waiting_at(view, &tail) <= now {
            let detail = format!("shard {id}: at most {entries} entries since {}", tail.since);
            say(found, Reason::TailWaiting, detail);
        }
    }
}

fn progress(view: &TableView, decision: Decision<'_>, now: Timestamp, found: &mut Found) {
    let running = view.running.iter().find(|r| r.kind == Kind::Merge);
    if let Some(running) = running {
        say(found, Reason::Merging, format!("since {}", running.started));
        return;
    }
    let Some(merge) = decision.merge else {
        return;
    };
    let pending = pending(merge);
    let due = merge.due;
    if decision.starts {
        say(found, Reason::Merging, format!("{pending}, starting"));
    } else if due > now {
        let detail = format!("{pending}, merge starts at {due}");
        say(found, Reason::Scheduled, detail);
    } else if view.permit_holder().is_some() || decision.refusal == Some(Refusal::Permit) {
        let detail = format!("{pending}, merge due at {due}");
        say(found, Reason::Upkeep, detail);
    } else if let Some(Refusal::Bytes { needed, .. }) = decision.refusal {
        let detail = format!("{pending}, merge due at {due} needs {}", size(needed));
        say(found, Reason::BudgetWait, detail);
    } else if decision.refusal.is_some() {
        let detail = format!("{pending}, merge due at {due}");
        say(found, Reason::Queued, detail);
    }
    // Else it was no candidate: what it backs off from is said already.
}

fn pending(merge: &MergeNeed) -> String {
    let many = if merge.pending == 1 { "" } else { "s" };
    let size = merge
        .pending_bytes
        .map_or("of unknown size".to_owned(), |bytes| {
            format!("with {}", size(bytes))
        });
    let (count, since) = (merge.pending, merge.since);
    format!("{count} generation{many} {size} pending since {since}")
}

/// `bytes` for people, in the units of Kubernetes' quantities.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["Ki", "Mi", "Gi", "Ti"];
    let mut value = bytes as f64;
    let mut unit = " bytes";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    let places = usize::from(bytes >= 1024 && value < 10.0);
    format!("{value:.places$}{unit}")
}
