//! Every metric, by name: the one list that the registry and the reference are made from.
//!
//! Lives here: `METRICS` (name, kind, labels, help) and the table that `docs/metrics.md` shows. May use: nothing but
//! `std`. Must never come in: a value, or a metric that the registry does not have.

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// Its name, with its unit.
    pub name: &'static str,
    /// `gauge`, `counter` or `histogram`.
    pub kind: &'static str,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
    /// What it says, in one sentence.
    pub help: &'static str,
}

const fn of(
    name: &'static str,
    kind: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Definition {
    Definition {
        name,
        kind,
        labels,
        help,
    }
}

/// Labels of a gauge that is there once for each experiment.
const EXPERIMENT: &[&str] = &["namespace", "name"];
/// The label of the families that client-go gives its queues.
const QUEUE: &[&str] = &["name"];
/// The label of the families that controller-runtime gives its controllers.
const CONTROLLER: &[&str] = &["controller"];

pub(super) const PENDING_GENERATIONS: Definition = of(
    "freshet_experiment_pending_generations",
    "gauge",
    EXPERIMENT,
    "Generations that wait to be merged, at the last observation; no sample while a shard's manifest cannot be read.",
);
pub(super) const PENDING_ROWS: Definition = of(
    "freshet_experiment_pending_rows",
    "gauge",
    EXPERIMENT,
    "Rows of the pending generations; no sample while any generation's are unknown.",
);
pub(super) const PENDING_BYTES: Definition = of(
    "freshet_experiment_pending_bytes",
    "gauge",
    EXPERIMENT,
    "Bytes of the pending generations; no sample while any generation's are unknown.",
);
pub(super) const OLDEST_PENDING: Definition = of(
    "freshet_experiment_oldest_pending_timestamp_seconds",
    "gauge",
    EXPERIMENT,
    "When the oldest pending generation was flushed, by the store's clock; no sample when none is pending.",
);
pub(super) const TARGET: Definition = of(
    "freshet_experiment_target_seconds",
    "gauge",
    EXPERIMENT,
    "The freshness target in force: nothing pending may be older.",
);
pub(super) const OBSERVED: Definition = of(
    "freshet_experiment_observed_timestamp_seconds",
    "gauge",
    EXPERIMENT,
    "When the table was last observed with success; the other gauges are as of then.",
);
pub(super) const LAST_MERGE: Definition = of(
    "freshet_experiment_last_merge_success_timestamp_seconds",
    "gauge",
    EXPERIMENT,
    "When a merge was last committed; no sample before the first one that is known.",
);
pub(super) const QUARANTINED: Definition = of(
    "freshet_experiment_quarantined_generations",
    "gauge",
    EXPERIMENT,
    "Generations that cannot be merged and stop their shard until a person acts.",
);
pub(super) const FLUSHED_EVER: Definition = of(
    "freshet_experiment_flushed_generations_total",
    "counter",
    EXPERIMENT,
    "Generations that the table's writers have flushed, as its shards' manifests say.",
);
pub(super) const MERGED_EVER: Definition = of(
    "freshet_experiment_merged_generations_total",
    "counter",
    EXPERIMENT,
    "Generations that were merged into the base table by whomever, as its watermarks say.",
);
pub(super) const WHY_NOT_NOW: Definition = of(
    "freshet_experiment_why_not_now",
    "gauge",
    &["namespace", "name", "reason"],
    "1 for the reason why the table is not merged at this moment; `Fresh` where nothing is pending.",
);
pub(super) const MERGES: Definition = of(
    "freshet_merges_total",
    "counter",
    &["result"],
    "Attempts to merge, by how they ended: merged, overtaken, lost, failed, canceled.",
);
pub(super) const MERGE_SECONDS: Definition = of(
    "freshet_merge_duration_seconds",
    "histogram",
    &[],
    "How long committed merges took, from reading to commit.",
);
pub(super) const MERGED_GENERATIONS: Definition = of(
    "freshet_merged_generations_total",
    "counter",
    &[],
    "Generations that committed merges moved into base tables.",
);
pub(super) const MERGED_ROWS: Definition = of(
    "freshet_merged_rows_total",
    "counter",
    &[],
    "Rows that committed merges wrote to base tables.",
);
pub(super) const STORE_REQUESTS: Definition = of(
    "freshet_store_requests_total",
    "counter",
    &["operation", "result"],
    "Requests to object stores, by operation and result (ok, not_found, not_modified, conflict, denied, error).",
);
pub(super) const BUDGET_USED: Definition = of(
    "freshet_memory_budget_used_bytes",
    "gauge",
    &[],
    "Bytes of the merge memory budget that running work has reserved.",
);
pub(super) const BUDGET_LIMIT: Definition = of(
    "freshet_memory_budget_limit_bytes",
    "gauge",
    &[],
    "Bytes of the merge memory budget.",
);
pub(super) const QUEUE_DEPTH: Definition = of(
    "freshet_queue_depth",
    "gauge",
    &[],
    "Experiments with work to do that wait for a place to run.",
);
pub(super) const HTTP_REQUESTS: Definition = of(
    "freshet_http_requests_total",
    "counter",
    &["route", "method", "status"],
    "Requests answered, by the route's template, the method and the status.",
);
pub(super) const HTTP_SECONDS: Definition = of(
    "freshet_http_request_duration_seconds",
    "histogram",
    &["route"],
    "How long answering took, by the route's template.",
);
pub(super) const BUILD: Definition = of(
    "freshet_build_info",
    "gauge",
    &["version"],
    "1, with the version of this binary.",
);

pub(super) const LEADER: Definition = of(
    "leader_election_master_status",
    "gauge",
    &["name"],
    "1 while this process holds the Lease of this name, else 0.",
);
pub(super) const WORKQUEUE_DEPTH: Definition = of(
    "workqueue_depth",
    "gauge",
    QUEUE,
    "Calls to the API server that wait for their turn.",
);
pub(super) const WORKQUEUE_ADDS: Definition = of(
    "workqueue_adds_total",
    "counter",
    QUEUE,
    "Calls that followed from an Experiment: a Secret to read, a status or finalizers to write, a name to look up.",
);
pub(super) const WORKQUEUE_RETRIES: Definition = of(
    "workqueue_retries_total",
    "counter",
    QUEUE,
    "Calls that failed and are made again.",
);
pub(super) const WORKQUEUE_WAITED: Definition = of(
    "workqueue_queue_duration_seconds",
    "histogram",
    QUEUE,
    "How long calls waited for their turn.",
);
pub(super) const WORKQUEUE_WORKED: Definition = of(
    "workqueue_work_duration_seconds",
    "histogram",
    QUEUE,
    "How long calls took.",
);
pub(super) const RECONCILES: Definition = of(
    "controller_runtime_reconcile_total",
    "counter",
    &["controller", "result"],
    "Calls made, by result: success, error.",
);
pub(super) const RECONCILE_ERRORS: Definition = of(
    "controller_runtime_reconcile_errors_total",
    "counter",
    CONTROLLER,
    "Calls that failed.",
);
pub(super) const RECONCILE_SECONDS: Definition = of(
    "controller_runtime_reconcile_time_seconds",
    "histogram",
    CONTROLLER,
    "How long calls took.",
);
pub(super) const ACTIVE_WORKERS: Definition = of(
    "controller_runtime_active_workers",
    "gauge",
    CONTROLLER,
    "Calls that are being made.",
);
pub(super) const MOST_WORKERS: Definition = of(
    "controller_runtime_max_concurrent_reconciles",
    "gauge",
    CONTROLLER,
    "Calls that may be made at once.",
);
pub(super) const REST_REQUESTS: Definition = of(
    "rest_client_requests_total",
    "counter",
    &["code", "method", "host"],
    "Requests to the API server, by status code (`<error>` without an answer), method and host; those of the Lease and of watches too.",
);
pub(super) const REST_SECONDS: Definition = of(
    "rest_client_request_duration_seconds",
    "histogram",
    &["verb", "host"],
    "How long the API server took to begin its answer, by method and host.",
);

/// Every metric.
pub const METRICS: &[Definition] = &[
    PENDING_GENERATIONS,
    PENDING_ROWS,
    PENDING_BYTES,
    OLDEST_PENDING,
    TARGET,
    OBSERVED,
    LAST_MERGE,
    QUARANTINED,
    FLUSHED_EVER,
    MERGED_EVER,
    WHY_NOT_NOW,
    MERGES,
    MERGE_SECONDS,
    MERGED_GENERATIONS,
    MERGED_ROWS,
    STORE_REQUESTS,
    BUDGET_USED,
    BUDGET_LIMIT,
    QUEUE_DEPTH,
    HTTP_REQUESTS,
    HTTP_SECONDS,
    LEADER,
    WORKQUEUE_DEPTH,
    WORKQUEUE_ADDS,
    WORKQUEUE_RETRIES,
    WORKQUEUE_WAITED,
    WORKQUEUE_WORKED,
    RECONCILES,
    RECONCILE_ERRORS,
    RECONCILE_SECONDS,
    ACTIVE_WORKERS,
    MOST_WORKERS,
    REST_REQUESTS,
    REST_SECONDS,
    BUILD,
];

/// The reference's table, in Markdown.
pub fn reference() -> String {
    let mut out = String::from("| metric | kind | labels | what it says |\n|---|---|---|---|\n");
    for m in METRICS {
        let labels: Vec<String> = m.labels.iter().map(|l| format!("`{l}`")).collect();
        out.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            m.name,
            m.kind,
            labels.join(", "),
            m.help
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_in_the_docs_is_the_registrys() {
        let docs = include_str!("../../docs/metrics.md");
        assert!(
            docs.contains(&reference()),
            "docs/metrics.md is not of this code; its table should be:\n{}",
            reference()
        );
    }

    #[test]
    fn names_say_their_units() {
        // Names that dashboards for controllers know are not ours to choose.
        let known = [
            "leader_election_",
            "workqueue_",
            "controller_runtime_",
            "rest_client_",
        ];
        for m in METRICS {
            let ours = m.name.starts_with("freshet_");
            let theirs = known.iter().any(|family| m.name.starts_with(family));
            assert!(ours || theirs, "{}", m.name);
            assert_eq!(
                m.kind == "counter",
                m.name.ends_with("_total"),
                "{}",
                m.name
            );
            if m.kind == "histogram" {
                assert!(m.name.ends_with("_seconds"), "{}", m.name);
            }
            assert!(m.help.ends_with('.'), "{}", m.name);
        }
    }
}
