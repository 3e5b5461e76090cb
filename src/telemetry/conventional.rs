//! What every controller tells of itself, under the names that dashboards for controllers know.
//!
//! Lives here: `ControllerMetrics`, the families `workqueue_*`, `controller_runtime_*`, `rest_client_*` and
//! `leader_election_*`. What waits in the queue are calls to the API server that follow from an Experiment; a reconcile is
//! one such call. May use: prometheus. Must never come in: an experiment's name, or a label from a store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::{GaugeVec, HistogramVec, IntCounterVec, Registry};

use super::metrics::{buckets, made, opts};
use super::reference::{self as def, Definition};

/// The one controller, and its queue.
const NAME: &str = "experiment";

/// Upper bounds of calls' durations and of their waits, in seconds.
const BUCKETS: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// The families. No sample is there before the role `controller` begins.
pub struct ControllerMetrics {
    leader: GaugeVec,
    depth: GaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    waited: HistogramVec,
    worked: HistogramVec,
    reconciles: IntCounterVec,
    errors: IntCounterVec,
    took: HistogramVec,
    active: GaugeVec,
    most: GaugeVec,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
}

/// A call that waits for its turn.
pub struct Queued {
    of: Arc<ControllerMetrics>,
    since: Instant,
}

/// A call that is being made.
pub struct Working {
    of: Arc<ControllerMetrics>,
    since: Instant,
}

impl ControllerMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let counters = |d: Definition| made(r, IntCounterVec::new(opts(d), d.labels));
        let gauges = |d: Definition| made(r, GaugeVec::new(opts(d), d.labels));
        let seconds = |d: Definition| made(r, HistogramVec::new(buckets(d, BUCKETS), d.labels));
        Self {
            leader: gauges(def::LEADER),
            depth: gauges(def::WORKQUEUE_DEPTH),
            adds: counters(def::WORKQUEUE_ADDS),
            retries: counters(def::WORKQUEUE_RETRIES),
            waited: seconds(def::WORKQUEUE_WAITED),
            worked: seconds(def::WORKQUEUE_WORKED),
            reconciles: counters(def::RECONCILES),
            errors: counters(def::RECONCILE_ERRORS),
            took: seconds(def::RECONCILE_SECONDS),
            active: gauges(def::ACTIVE_WORKERS),
            most: gauges(def::MOST_WORKERS),
            requests: counters(def::REST_REQUESTS),
            request_seconds: seconds(def::REST_SECONDS),
        }
    }

    /// The role begins, with so many calls at once at most.
    pub fn begins(&self, workers: usize) {
        self.most.with_label_values(&[NAME]).set(workers as f64);
        self.active.with_label_values(&[NAME]).set(0.0);
        self.depth.with_label_values(&[NAME]).set(0.0);
        for counters in [&self.adds, &self.retries, &self.errors] {
            counters.with_label_values(&[NAME]);
        }
        for result in ["success", "error"] {
            self.reconciles.with_label_values(&[NAME, result]);
        }
    }

    /// Whether this process holds the Lease of this name.
    pub fn leads(&self, lease: &str, leads: bool) {
        let leads = if leads { 1.0 } else { 0.0 };
        self.leader.with_label_values(&[lease]).set(leads);
    }

    /// A call is to be made.
    pub fn queued(self: &Arc<Self>) -> Queued {
        self.adds.with_label_values(&[NAME]).inc();
        self.depth.with_label_values(&[NAME]).inc();
        Queued {
            of: self.clone(),
            since: Instant::now(),
        }
    }

    /// The API server answered with this status, or did not (`None`). `host` is the API server's.
    pub fn request(&self, host: &str, method: &str, status: Option<u16>, took: Duration) {
        let code = status.map_or_else(|| "<error>".to_owned(), |s| s.to_string());
        self.requests
            .with_label_values(&[code.as_str(), method, host])
            .inc();
        self.request_seconds
            .with_label_values(&[method, host])
            .observe(took.as_secs_f64());
    }
}

impl Queued {
    /// Its turn has come.
    pub fn begin(self) -> Working {
        let of = self.of.clone();
        let waited = self.since.elapsed().as_secs_f64();
        of.waited.with_label_values(&[NAME]).observe(waited);
        of.active.with_label_values(&[NAME]).inc();
        Working {
            of,
            since: Instant::now(),
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.of.depth.with_label_values(&[NAME]).dec();
    }
}

impl Working {
    /// It came to an end; one that failed is made again.
    pub fn done(self, well: bool) {
        let result = if well { "success" } else { "error" };
        self.of.reconciles.with_label_values(&[NAME, result]).inc();
        if !well {
            self.of.errors.with_label_values(&[NAME]).inc();
            self.of.retries.with_label_values(&[NAME]).inc();
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let took = self.since.elapsed().as_secs_f64();
        self.of.worked.with_label_values(&[NAME]).observe(took);
        self.of.took.with_label_values(&[NAME]).observe(took);
        self.of.active.with_label_values(&[NAME]).dec();
    }
}

#[cfg(test)]
mod tests {
    use crate::telemetry::Metrics;

    fn sample(metrics: &Metrics, name: &str) -> Option<String> {
        let text = metrics.render();
        let line = text.lines().find(|l| l.starts_with(name));
        line.and_then(|l| l.rsplit(' ').next()).map(str::to_owned)
    }

    #[test]
    fn a_call_is_counted_from_its_wait_to_its_end_also_when_it_is_dropped() {
        let metrics = Metrics::new();
        let all = metrics.controller();
        assert_eq!(sample(&metrics, "workqueue_depth{"), None);
        all.begins(8);
        let (first, second, third) = (all.queued(), all.queued(), all.queued());
        assert_eq!(sample(&metrics, "workqueue_depth{").unwrap(), "3");
        first.begin().done(true);
        let working = second.begin();
        drop(third);
        let active = "controller_runtime_active_workers{";
        assert_eq!(sample(&metrics, active).unwrap(), "1");
        working.done(false);
        assert_eq!(sample(&metrics, active).unwrap(), "0");
        assert_eq!(sample(&metrics, "workqueue_depth{").unwrap(), "0");
        assert_eq!(sample(&metrics, "workqueue_adds_total{").unwrap(), "3");
        for result in ["success", "error"] {
            let of = format!(
                "controller_runtime_reconcile_total{{controller=\"experiment\",result=\"{result}\"}}"
            );
            assert_eq!(sample(&metrics, &of).unwrap(), "1");
        }
        let took = "controller_runtime_reconcile_time_seconds_count{";
        assert_eq!(sample(&metrics, took).unwrap(), "2");
    }
}
