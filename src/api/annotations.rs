//! What a person asks of an Experiment beside its spec: its annotations, and what they mean.

use super::Experiment;

/// Asks for a merge now; its value is answered in `status.lastHandledRequest`.
pub const REQUESTED_AT: &str = "freshet.dev/requestedAt";
/// Names anomalies that are as they should be, with commas between.
pub const ACKNOWLEDGE: &str = "freshet.dev/acknowledge";

/// An annotation's value.
pub fn annotation<'a>(experiment: &'a Experiment, key: &str) -> Option<&'a str> {
    let all = experiment.metadata.annotations.as_ref()?;
    all.get(key).map(String::as_str)
}
