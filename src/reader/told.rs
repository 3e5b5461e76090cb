//! What an Experiment's status says, as the server tells it.
//!
//! Lives here: the mapping of the resource into the server's plain data. May use: `api`. Must never come in: a figure that
//! the status does not hold, or a look at a table.

use crate::api::Experiment;
use crate::server::{ExperimentStatus, Fragments, LastMerge, WhyNotNow};

/// The condition that says how fresh a table is, or why it is not.
const FRESH: &str = "Fresh";

/// An experiment of this name, as its object says; where that cannot be read, its name alone.
pub fn told(namespace: &str, name: &str, experiment: Option<&Experiment>) -> ExperimentStatus {
    let known = ExperimentStatus {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        uri: experiment.map_or_else(String::new, |e| e.spec.table.uri.clone()),
        ..Default::default()
    };
    let Some(status) = experiment.and_then(|e| e.status.as_ref()) else {
        return known;
    };
    let backlog = status.backlog.as_ref();
    let fresh = status.conditions.iter().find(|c| c.type_ == FRESH);
    let target = status.effective.as_ref().map(|e| e.freshness.target);
    ExperimentStatus {
        pending_generations: backlog.map(|b| b.pending_generations),
        pending_rows: backlog.and_then(|b| b.pending_rows),
        pending_bytes: backlog.and_then(|b| b.pending_bytes),
        oldest_pending_time: backlog.and_then(|b| Some(b.oldest_pending_time.as_ref()?.0)),
        observed_time: backlog.map(|b| b.observed_time.0),
        target_seconds: target.map(|t| t.as_duration().as_secs_f64()),
        why_not_now: fresh.map(|c| WhyNotNow {
            reason: c.reason.clone(),
            message: c.message.clone(),
        }),
        quarantined_generations: status.quarantined_count.map(u64::from),
        last_merge: status.last_merge.as_ref().map(|m| LastMerge {
            time: m.time.0,
            version: Some(m.version),
            generations: Some(m.generations),
            rows: m.rows,
            seconds: Some(m.duration.as_duration().as_secs_f64()),
        }),
        fragments: status.fragments.as_ref().map(|f| Fragments {
            version: f.version,
            rows: f.rows,
            fragments: f.fragments,
        }),
        ..known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(status: serde_json::Value) -> ExperimentStatus {
        let object = json!({
            "apiVersion": "freshet.dev/v1alpha1",
            "kind": "Experiment",
            "metadata": { "name": "maze", "namespace": "alder" },
            "spec": { "table": { "uri": "s3://maze-runs/one" } },
            "status": status,
        });
        let experiment: Experiment = serde_json::from_value(object).unwrap();
        told("alder", "maze", Some(&experiment))
    }

    #[test]
    fn what_nobody_observed_is_unknown() {
        let status = read(json!({ "observedGeneration": -1 }));
        let known = ExperimentStatus {
            name: "maze".into(),
            namespace: "alder".into(),
            uri: "s3://maze-runs/one".into(),
            ..Default::default()
        };
        assert_eq!(status, known);
        assert_eq!(told("alder", "maze", None).uri, "");
    }

    #[test]
    fn figures_are_the_statuss_own_with_its_time() {
        let status = read(json!({
            "observedGeneration": 1,
            "conditions": [{
                "type": "Fresh", "status": "False", "reason": "BudgetWait", "message": "It waits.",
                "lastTransitionTime": "2026-01-02T03:04:05Z", "observedGeneration": 1,
            }],
            "backlog": {
                "pendingGenerations": 3, "oldestPendingTime": "2026-01-02T03:04:05Z", "shards": 2,
                "observedTime": "2026-01-02T03:05:05Z",
            },
            "fragments": { "version": 7, "fragments": 2 },
            "quarantinedCount": 1,
        }));
        assert_eq!(status.pending_generations, Some(3));
        assert_eq!(status.pending_rows, None);
        assert_eq!(status.why_not_now.as_ref().unwrap().reason, "BudgetWait");
        assert_eq!(status.fragments.as_ref().unwrap().version, 7);
        assert_eq!(status.quarantined_generations, Some(1));
        let observed = status.observed_time.unwrap();
        assert_eq!(status.lag_seconds(observed), Some(60.0));
    }
}
