//! The metrics registry, behind an API of plain values.
//!
//! Lives here: `Metrics`: those who measure tell it what they saw, `/metrics` asks it for the text. May use: prometheus.
//! Must never come in: an experiment's name on a histogram or on a counter of this process's own, a path as a label, or
//! a sample for a value that is not known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use prometheus::core::{Collector, GenericCounterVec};
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    Opts, Registry, TextEncoder,
};

use super::conventional::ControllerMetrics;
use super::reference::{self as def, Definition};

/// What is known of one experiment's backlog. What is `None` has no sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Backlog {
    /// The experiment's namespace; empty where there is none.
    pub namespace: String,
    /// The experiment's name.
    pub name: String,
    /// Pending generations.
    pub pending_generations: Option<u64>,
    /// Their rows.
    pub pending_rows: Option<u64>,
    /// Their bytes.
    pub pending_bytes: Option<u64>,
    /// When the oldest of them was flushed; `None` also where none is pending.
    pub oldest_pending: Option<Timestamp>,
    /// The freshness target in force.
    pub target: Option<Duration>,
    /// When these figures were observed.
    pub observed: Option<Timestamp>,
    /// When a merge was last committed.
    pub last_merge: Option<Timestamp>,
    /// Generations that cannot be merged.
    pub quarantined: Option<u64>,
    /// Generations ever flushed by the table's writers.
    pub flushed_ever: Option<u64>,
    /// Generations ever merged into the base table.
    pub merged_ever: Option<u64>,
    /// Why the table is not merged at this moment, PascalCase, from a closed set.
    pub why_not_now: Option<String>,
}

/// How an attempt to merge ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeResult {
    /// It committed, with this many generations and rows.
    Merged {
        /// Generations moved.
        generations: u64,
        /// Rows written.
        rows: u64,
    },
    /// Another hand had merged as much.
    Overtaken,
    /// Another commit won.
    Lost,
    /// An error.
    Failed,
    /// It was told to stop.
    Canceled,
}

impl MergeResult {
    fn label(self) -> &'static str {
        match self {
            MergeResult::Merged { .. } => "merged",
            MergeResult::Overtaken => "overtaken",
            MergeResult::Lost => "lost",
            MergeResult::Failed => "failed",
            MergeResult::Canceled => "canceled",
        }
    }
}

/// Upper bounds of merges' durations, in seconds.
const MERGE_BUCKETS: &[f64] = &[
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0,
];
/// Upper bounds of answers' durations, in seconds.
const HTTP_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// The gauges of an experiment that are a number each.
const GAUGES: [Definition; 8] = [
    def::PENDING_GENERATIONS,
    def::PENDING_ROWS,
    def::PENDING_BYTES,
    def::OLDEST_PENDING,
    def::TARGET,
    def::OBSERVED,
    def::LAST_MERGE,
    def::QUARANTINED,
];

/// Every metric of this process.
pub struct Metrics {
    registry: Registry,
    gauges: [GaugeVec; 8],
    /// What the store itself counts: flushed, merged.
    counted: [IntCounterVec; 2],
    why: GaugeVec,
    /// The reason that each experiment has a sample for.
    reasons: Mutex<BTreeMap<(String, String), Option<String>>>,
    merges: IntCounterVec,
    merge_seconds: Histogram,
    merged_generations: IntCounter,
    merged_rows: IntCounter,
    store_requests: IntCounterVec,
    budget_used: Gauge,
    budget_limit: Gauge,
    queue_depth: Gauge,
    http_requests: IntCounterVec,
    http_seconds: HistogramVec,
    controller: Arc<ControllerMetrics>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes a metric and registers it. A definition is a constant with a valid name and distinct from all others, which
/// `every_metric_is_registered_under_its_definition` proves, so neither step can fail in a build that passes its tests.
pub(super) fn made<C: Collector + Clone + 'static>(
    registry: &Registry,
    made: prometheus::Result<C>,
) -> C {
    let metric = made.unwrap_or_else(|e| unreachable!("a metric's definition is wrong: {e}"));
    if let Err(e) = registry.register(Box::new(metric.clone())) {
        unreachable!("a metric is defined twice: {e}");
    }
    metric
}

pub(super) fn opts(d: Definition) -> Opts {
    Opts::new(d.name, d.help)
}

pub(super) fn buckets(d: Definition, bounds: &[f64]) -> HistogramOpts {
    HistogramOpts::new(d.name, d.help).buckets(bounds.to_vec())
}

impl Metrics {
    /// A registry of its own, with every metric of [`super::METRICS`] and no sample of any experiment.
    pub fn new() -> Self {
        let r = Registry::new();
        let counters = |d: Definition| made(&r, GenericCounterVec::new(opts(d), d.labels));
        let gauges = |d: Definition| made(&r, GaugeVec::new(opts(d), d.labels));
        let gauge = |d: Definition| made(&r, Gauge::with_opts(opts(d)));
        let counter = |d: Definition| made(&r, IntCounter::with_opts(opts(d)));
        gauges(def::BUILD)
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1.0);
        let metrics = Self {
            gauges: GAUGES.map(gauges),
            counted: [def::FLUSHED_EVER, def::MERGED_EVER].map(counters),
            why: gauges(def::WHY_NOT_NOW),
            reasons: Mutex::default(),
            merges: counters(def::MERGES),
            merge_seconds: made(
                &r,
                Histogram::with_opts(buckets(def::MERGE_SECONDS, MERGE_BUCKETS)),
            ),
            merged_generations: counter(def::MERGED_GENERATIONS),
            merged_rows: counter(def::MERGED_ROWS),
            store_requests: counters(def::STORE_REQUESTS),
            budget_used: gauge(def::BUDGET_USED),
            budget_limit: gauge(def::BUDGET_LIMIT),
            queue_depth: gauge(def::QUEUE_DEPTH),
            http_requests: counters(def::HTTP_REQUESTS),
            http_seconds: made(
                &r,
                HistogramVec::new(
                    buckets(def::HTTP_SECONDS, HTTP_BUCKETS),
                    def::HTTP_SECONDS.labels,
                ),
            ),
            controller: Arc::new(ControllerMetrics::new(&r)),
            registry: r,
        };
        for result in ["merged", "overtaken", "lost", "failed", "canceled"] {
            metrics.merges.with_label_values(&[result]);
        }
        metrics
    }

    /// Takes what is known of an experiment now; what is `None` has no sample from here on. An observation that failed
    /// is no reason to call this: the last values and their time stay.
    pub fn set_backlog(&self, backlog: &Backlog) {
        let labels = [backlog.namespace.as_str(), backlog.name.as_str()];
        let number = |v: Option<u64>| v.map(|v| v as f64);
        let values = [
            number(backlog.pending_generations),
            number(backlog.pending_rows),
            number(backlog.pending_bytes),
            backlog.oldest_pending.map(seconds),
            backlog.target.map(|t| t.as_secs_f64()),
            backlog.observed.map(seconds),
            backlog.last_merge.map(seconds),
            number(backlog.quarantined),
        ];
        let mut reasons = self.reasons();
        for (gauge, value) in self.gauges.iter().zip(values) {
            match value {
                Some(value) => gauge.with_label_values(&labels).set(value),
                // There may be none to remove.
                None => drop(gauge.remove_label_values(&labels)),
            }
        }
        let counted = [backlog.flushed_ever, backlog.merged_ever];
        for (counter, value) in self.counted.iter().zip(counted) {
            match value {
                Some(value) => count_to(counter, &labels, value),
                // There may be none to remove.
                None => drop(counter.remove_label_values(&labels)),
            }
        }
        let key = (backlog.namespace.clone(), backlog.name.clone());
        let before = reasons.insert(key, backlog.why_not_now.clone()).flatten();
        if before != backlog.why_not_now {
            self.remove_reason(&labels, before);
        }
        if let Some(reason) = &backlog.why_not_now {
            let labels = [labels[0], labels[1], reason.as_str()];
            self.why.with_label_values(&labels).set(1.0);
        }
    }

    /// Ends every series of an experiment: it was deleted, or is another replica's now.
    pub fn forget(&self, namespace: &str, name: &str) {
        let labels = [namespace, name];
        let mut reasons = self.reasons();
        for gauge in &self.gauges {
            drop(gauge.remove_label_values(&labels));
        }
        for counter in &self.counted {
            drop(counter.remove_label_values(&labels));
        }
        let before = reasons.remove(&(namespace.to_string(), name.to_string()));
        self.remove_reason(&labels, before.flatten());
    }

    /// Ends the series of every experiment that is not among these (namespace, name).
    pub fn keep_only(&self, experiments: &BTreeSet<(String, String)>) {
        let gone: Vec<(String, String)> = self
            .reasons()
            .keys()
            .filter(|key| !experiments.contains(*key))
            .cloned()
            .collect();
        for (namespace, name) in gone {
            self.forget(&namespace, &name);
        }
    }

    fn remove_reason(&self, labels: &[&str; 2], reason: Option<String>) {
        if let Some(reason) = reason {
            let labels = [labels[0], labels[1], reason.as_str()];
            drop(self.why.remove_label_values(&labels));
        }
    }

    fn reasons(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, String), Option<String>>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt to merge ended.
    pub fn merge_done(&self, result: MergeResult, took: Duration) {
        self.merges.with_label_values(&[result.label()]).inc();
        if let MergeResult::Merged { generations, rows } = result {
            self.merge_seconds.observe(took.as_secs_f64());
            self.merged_generations.inc_by(generations);
            self.merged_rows.inc_by(rows);
        }
    }

    /// The merge memory budget: bytes reserved, and bytes in all.
    pub fn set_budget(&self, used: u64, limit: u64) {
        self.budget_used.set(used as f64);
        self.budget_limit.set(limit as f64);
    }

    /// How many experiments wait for a place to run.
    pub fn set_queue_depth(&self, depth: usize) {
        self.queue_depth.set(depth as f64);
    }

    /// A request to a store ended. Both labels come from closed sets: see [`super::CountedStores`].
    pub fn store_request(&self, operation: &'static str, result: &'static str) {
        self.store_requests
            .with_label_values(&[operation, result])
            .inc();
    }

    /// A request was answered. `route` is the route's template, never the path that was asked for.
    pub fn http_request(&self, route: &'static str, method: &str, status: u16, took: Duration) {
        let method = match method {
            "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "OPTIONS" | "PATCH" => method,
            _ => "other",
        };
        self.http_requests
            .with_label_values(&[route, method, &status.to_string()])
            .inc();
        self.http_seconds
            .with_label_values(&[route])
            .observe(took.as_secs_f64());
    }

    /// What the role `controller` tells of itself.
    pub fn controller(&self) -> &Arc<ControllerMetrics> {
        &self.controller
    }

    /// Everything in Prometheus' text format, version 0.0.4.
    pub fn render(&self) -> String {
        let mut out = Vec::new();
        if let Err(e) = TextEncoder::new().encode(&self.registry.gather(), &mut out) {
            tracing::error!(error = %e, "the metrics cannot be written");
        }
        String::from_utf8(out).unwrap_or_default()
    }
}

/// Brings a counter to what the store says. Less than before is another table of the same name: it begins again.
fn count_to(counter: &IntCounterVec, labels: &[&str], value: u64) {
    let counter = counter.with_label_values(labels);
    if value < counter.get() {
        counter.reset();
    }
    counter.inc_by(value - counter.get());
}

fn seconds(t: Timestamp) -> f64 {
    t.as_nanosecond() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backlog() -> Backlog {
        Backlog {
            namespace: "labs".into(),
            name: "cartpole".into(),
            pending_generations: Some(3),
            pending_rows: Some(30),
            pending_bytes: Some(4096),
            oldest_pending: Some(Timestamp::from_second(1_700_000_000).unwrap()),
            target: Some(Duration::from_secs(60)),
            observed: Some(Timestamp::from_second(1_700_000_009).unwrap()),
            last_merge: Some(Timestamp::from_second(1_699_999_000).unwrap()),
            quarantined: Some(0),
            flushed_ever: Some(10),
            merged_ever: Some(7),
            why_not_now: Some("Queued".into()),
        }
    }

    fn samples(metrics: &Metrics) -> Vec<String> {
        let of_experiments = |l: &&str| l.starts_with("freshet_experiment_");
        let text = metrics.render();
        text.lines()
            .filter(of_experiments)
            .map(String::from)
            .collect()
    }

    #[test]
    fn a_backlog_is_shown_in_base_units_and_timestamps() {
        let metrics = Metrics::new();
        metrics.set_backlog(&backlog());
        let shown = samples(&metrics);
        for want in [
            r#"freshet_experiment_pending_generations{name="cartpole",namespace="labs"} 3"#,
            r#"freshet_experiment_pending_bytes{name="cartpole",namespace="labs"} 4096"#,
            r#"freshet_experiment_oldest_pending_timestamp_seconds{name="cartpole",namespace="labs"} 1700000000"#,
            r#"freshet_experiment_quarantined_generations{name="cartpole",namespace="labs"} 0"#,
            r#"freshet_experiment_flushed_generations_total{name="cartpole",namespace="labs"} 10"#,
            r#"freshet_experiment_merged_generations_total{name="cartpole",namespace="labs"} 7"#,
            r#"freshet_experiment_why_not_now{name="cartpole",namespace="labs",reason="Queued"} 1"#,
        ] {
            assert!(shown.iter().any(|l| l == want), "{want} in {shown:#?}");
        }
        assert_eq!(shown.len(), 11);
    }

    #[test]
    fn what_is_unknown_has_no_sample_and_is_never_zero() {
        let metrics = Metrics::new();
        metrics.set_backlog(&backlog());
        metrics.set_backlog(&Backlog {
            namespace: "labs".into(),
            name: "cartpole".into(),
            pending_generations: Some(2),
            ..Default::default()
        });
        let want = r#"freshet_experiment_pending_generations{name="cartpole",namespace="labs"} 2"#;
        assert_eq!(samples(&metrics), [want]);
    }

    #[test]
    fn what_the_store_counts_rises_with_it_and_begins_again_with_another_table() {
        let metrics = Metrics::new();
        for counted in [10, 10, 25, 3] {
            metrics.set_backlog(&Backlog {
                flushed_ever: Some(counted),
                ..backlog()
            });
            let want = format!(
                "flushed_generations_total{{name=\"cartpole\",namespace=\"labs\"}} {counted}"
            );
            let shown = samples(&metrics);
            assert!(
                shown.iter().any(|l| l.ends_with(&want)),
                "{want} in {shown:#?}"
            );
        }
    }

    #[test]
    fn one_reason_at_a_time_has_a_sample() {
        let metrics = Metrics::new();
        for reason in ["Queued", "BackingOff", "BackingOff", "Fresh"] {
            metrics.set_backlog(&Backlog {
                why_not_now: Some(reason.into()),
                ..backlog()
            });
        }
        let why: Vec<String> = samples(&metrics)
            .into_iter()
            .filter(|l| l.contains("why_not_now"))
            .collect();
        assert_eq!(why.len(), 1);
        assert!(why[0].contains("Fresh"));
    }

    #[test]
    fn series_end_with_their_experiment() {
        let metrics = Metrics::new();
        metrics.set_backlog(&backlog());
        let other = Backlog {
            name: "pendulum".into(),
            ..backlog()
        };
        metrics.set_backlog(&other);
        metrics.keep_only(&[("labs".to_string(), "pendulum".to_string())].into());
        assert!(samples(&metrics).iter().all(|l| l.contains("pendulum")));
        metrics.forget("labs", "pendulum");
        assert_eq!(samples(&metrics), Vec::<String>::new());
    }

    #[test]
    fn every_metric_is_registered_under_its_definition() {
        let metrics = Metrics::new();
        metrics.set_backlog(&backlog());
        metrics.merge_done(
            MergeResult::Merged {
                generations: 2,
                rows: 20,
            },
            Duration::from_millis(30),
        );
        metrics.store_request("get", "ok");
        metrics.http_request("/healthz", "GET", 200, Duration::from_millis(1));
        metrics.controller().begins(8);
        metrics.controller().leads("freshet-controller", true);
        metrics.controller().queued().begin().done(false);
        let took = Duration::from_millis(1);
        metrics
            .controller()
            .request("apiserver", "GET", Some(200), took);
        let gathered: BTreeSet<(String, String)> = metrics
            .registry
            .gather()
            .iter()
            .map(|f| (f.name().to_string(), f.help().to_string()))
            .collect();
        let defined = super::super::METRICS
            .iter()
            .map(|d| (d.name.to_string(), d.help.to_string()))
            .collect();
        assert_eq!(gathered, defined);
    }

    #[test]
    fn labels_of_methods_are_a_closed_set() {
        let metrics = Metrics::new();
        metrics.http_request("other", "BREW", 405, Duration::ZERO);
        assert!(!metrics.render().contains("BREW"));
    }
}
