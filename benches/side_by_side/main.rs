//! Side-by-side ratios: Freshet and what it is measured against, in turn, in one run, on copies of the same table.
//!
//! Lives here: the measurements of `docs/benchmarks.md` that need no other client (`benches/clients.py` has the others).
//! Prints one line a figure: name, ours, the other's, the ratio, the goal. `cargo bench --bench side_by_side [NAME]…`

#[path = "../../tests/fixtures/mod.rs"]
mod fixtures;
mod merging;
mod reading;
mod store;

use std::time::Duration;

/// One figure: what was measured, ours and the other's, and the goal as a ratio of the two.
pub struct Figure {
    pub name: &'static str,
    pub ours: f64,
    pub other: f64,
    pub unit: &'static str,
    /// The goal, and whether more is better.
    pub goal: Option<(f64, bool)>,
    /// The ratio that the goal speaks of: ours ÷ other, or other ÷ ours.
    pub ratio: f64,
}

impl Figure {
    fn print(&self) {
        let goal = match self.goal {
            Some((goal, true)) => format!(
                "≥ {goal} {}",
                if self.ratio >= goal { "met" } else { "MISSED" }
            ),
            Some((goal, false)) => format!(
                "≤ {goal} {}",
                if self.ratio <= goal { "met" } else { "MISSED" }
            ),
            None => String::new(),
        };
        println!(
            "| {} | {:.3} {u} | {:.3} {u} | {:.3} | {goal} |",
            self.name,
            self.ours,
            self.other,
            self.ratio,
            u = self.unit
        );
    }
}

/// The median of some runs, in milliseconds.
pub fn median(mut runs: Vec<Duration>) -> f64 {
    runs.sort();
    runs[runs.len() / 2].as_secs_f64() * 1e3
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str()));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    println!("| figure | Freshet | other | ratio | goal |\n|---|---|---|---|---|");
    runtime.block_on(async {
        if runs("small") {
            merging::many_small().await;
        }
        if runs("large") {
            merging::large(false).await;
            merging::large(true).await;
        }
        if runs("compaction") {
            merging::amplified().await;
        }
        if runs("slow") {
            merging::slow_store().await;
        }
        if runs("idle") {
            merging::idle().await;
        }
        if runs("page") {
            reading::page().await;
        }
        if runs("union") {
            reading::union().await;
        }
    });
}
