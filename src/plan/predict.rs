//! How long a piece of work will take, learnt from how long others took.
//!
//! Lives here: a model of three costs (fixed, per generation, per byte), corrected by every merge that ends, and a
//! plain average for upkeep. May use: nothing but `std`. Must never come in: a clock; durations are measured elsewhere.

use std::time::Duration;

/// How far one measurement moves the model: 0 is not at all, 1 is all the way.
const LEARNING_RATE: f64 = 0.3;
/// One measurement changes a cost by at most this factor (before [`LEARNING_RATE`]), so that one hiccup of a store
/// does not move every start.
const LARGEST_STEP: f64 = 8.0;
/// A cost never falls below this many seconds, so that it can always grow again.
const SMALLEST_COST: f64 = 1e-12;

/// What merges and upkeep of one table have cost so far, in seconds. Starts at costs that suit a remote store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct History {
    fixed: f64,
    per_generation: f64,
    per_byte: f64,
    deviation: f64,
    upkeep: f64,
}

impl Default for History {
    fn default() -> Self {
        Self {
            fixed: 0.5,
            per_generation: 0.02,
            per_byte: 1.0 / (32.0 * 1024.0 * 1024.0),
            deviation: 0.25,
            upkeep: 5.0,
        }
    }
}

impl History {
    /// Learns from a merge of `generations` generations and `bytes` bytes that took `took`.
    ///
    /// Each cost is corrected in proportion to its share of the prediction: what explains most of the time takes most
    /// of the blame. Costs stay above zero.
    #[must_use]
    pub fn merged(mut self, generations: u64, bytes: u64, took: Duration) -> Self {
        let parts = [
            self.fixed,
            self.per_generation * generations as f64,
            self.per_byte * bytes as f64,
        ];
        let expected: f64 = parts.iter().sum();
        let took = took.as_secs_f64();
        let ratio = (took / expected).clamp(1.0 / LARGEST_STEP, LARGEST_STEP);
        let weights: f64 = parts.iter().map(|part| part * part).sum();
        // Scaled so that the prediction for this very merge moves LEARNING_RATE of the way to what was measured.
        let scale = LEARNING_RATE * expected * (ratio - 1.0) / weights;
        let costs = [
            &mut self.fixed,
            &mut self.per_generation,
            &mut self.per_byte,
        ];
        for (cost, part) in costs.into_iter().zip(parts) {
            *cost = (*cost * (1.0 + scale * part).max(1.0 / LARGEST_STEP)).max(SMALLEST_COST);
        }
        let off = (took - expected).abs().min(LARGEST_STEP * expected);
        self.deviation += LEARNING_RATE * (off - self.deviation);
        self
    }

    /// Learns from one slice of upkeep that took `took`.
    #[must_use]
    pub fn kept_up(mut self, took: Duration) -> Self {
        self.upkeep += LEARNING_RATE * (took.as_secs_f64() - self.upkeep);
        self
    }

    /// How long a merge will take: the model's answer and twice its usual error, since a merge that is late costs more
    /// than one that is early.
    pub fn merge(&self, generations: u64, bytes: u64) -> Duration {
        let mean =
            self.fixed + self.per_generation * generations as f64 + self.per_byte * bytes as f64;
        Duration::try_from_secs_f64(mean + 2.0 * self.deviation).unwrap_or(Duration::MAX)
    }

    /// How long one slice of upkeep will take.
    pub fn upkeep(&self) -> Duration {
        Duration::try_from_secs_f64(self.upkeep).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn truth(generations: u64, bytes: u64) -> Duration {
        Duration::from_secs_f64(0.2 + 0.005 * generations as f64 + bytes as f64 / 100e6)
    }

    #[test]
    fn it_comes_to_predict_what_it_sees() {
        let loads = [
            (1, 1_000_000),
            (64, 200_000_000),
            (16, 8_000_000),
            (40, 4_000),
        ];
        let mut history = History::default();
        for _ in 0..200 {
            for (generations, bytes) in loads {
                history = history.merged(generations, bytes, truth(generations, bytes));
            }
        }
        for (generations, bytes) in loads {
            let (said, is) = (
                history.merge(generations, bytes).as_secs_f64(),
                truth(generations, bytes).as_secs_f64(),
            );
            assert!(
                said > 0.8 * is && said < 1.5 * is + 0.2,
                "{generations} generations, {bytes} bytes: said {said}, is {is}"
            );
        }
    }

    #[test]
    fn one_hiccup_does_not_move_it_by_more_than_a_few_times() {
        let before = History::default().merge(10, 10_000_000);
        let after = History::default()
            .merged(10, 10_000_000, Duration::from_secs(3600))
            .merge(10, 10_000_000);
        assert!(
            after > before && after < before * 10,
            "{before:?} {after:?}"
        );
    }

    #[test]
    fn upkeep_is_the_average_of_what_it_took() {
        let history = (0..40).fold(History::default(), |h, _| {
            h.kept_up(Duration::from_secs(30))
        });
        assert!((history.upkeep().as_secs_f64() - 30.0).abs() < 0.1);
    }

    proptest! {
        #[test]
        fn whatever_it_sees_it_stays_finite_and_grows_with_the_work(
            seen in prop::collection::vec((0u64..1000, 0u64..1 << 36, 0u64..10_000_000), 0..60),
            generations in 0u64..1000,
            bytes in 0u64..1 << 36,
        ) {
            let history = seen.into_iter().fold(History::default(), |h, (g, b, ms)| {
                h.merged(g, b, Duration::from_millis(ms))
            });
            let small = history.merge(generations, bytes);
            prop_assert!(small > Duration::ZERO && small < Duration::MAX);
            prop_assert!(history.merge(generations + 1, bytes) >= small);
            prop_assert!(history.merge(generations, bytes + 1) >= small);
        }
    }
}
