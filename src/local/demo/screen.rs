//! The demo's live view.
//!
//! Lives here: a few lines that are drawn again in place where standard output is a terminal, and one line every other
//! second where it is not. May use: statuses. Must never come in: a figure of its own.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stdout};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Options;
use super::writers::Written;
use crate::engine::TableStatus;

/// How often it is drawn on a terminal.
pub const EVERY: Duration = Duration::from_millis(250);
/// How often a line is written where there is none.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The view.
pub struct Screen {
    silent: bool,
    terminal: bool,
    drawn: usize,
    last: Option<Instant>,
}

impl Screen {
    pub fn new(options: &Options, uri: &str, address: SocketAddr) -> Self {
        if !options.json {
            tell(format_args!(
                "{} writers roll out into {uri}, Freshet merges behind them\nrecords   http://{address}/api/v1/experiments/rollouts/records?source=all\nmetrics   http://{address}/metrics      Ctrl-C ends it\n",
                options.writers
            ));
        }
        Self {
            silent: options.json,
            terminal: stdout().is_terminal(),
            drawn: 0,
            last: None,
        }
    }

    /// Shows the state now.
    pub fn draw(
        &mut self,
        name: &str,
        status: Option<&TableStatus>,
        lag: Duration,
        written: &Written,
        ending: bool,
    ) {
        let now = Instant::now();
        let due = |last: Instant| now.saturating_duration_since(last) >= LINE_EVERY;
        if self.silent || !self.terminal && self.last.is_some_and(|last| !due(last)) {
            return;
        }
        self.last = Some(now);
        let shown = Shown::of(status, lag);
        if !self.terminal {
            tell(format_args!(
                "{name}: {} pending, lag {}, {} merged/s, last merge {}, {}; written {} rows",
                shown.pending,
                shown.lag,
                shown.rate,
                shown.last,
                shown.why,
                written.inserted + written.updated
            ));
            return;
        }
        let base =
            status
                .and_then(|s| s.base)
                .map_or(String::new(), |(version, rows, fragments)| {
                    format!("base      version {version}, {rows} rows in {fragments} fragments")
                });
        let merged = status.map_or((0, 0), |s| (s.merged_generations, s.reclaimed));
        let lines = [
            format!(
                "{:<12} {:>9} {:>8} {:>10}  {:<28} {}",
                "EXPERIMENT", "PENDING", "LAG", "MERGED/S", "LAST MERGE", "WHY NOT NOW"
            ),
            format!(
                "{:<12} {:>9} {:>8} {:>10}  {:<28} {}",
                name, shown.pending, shown.lag, shown.rate, shown.last, shown.why
            ),
            String::new(),
            format!(
                "written   {} inserted, {} updated, {} deleted, {} generations{}",
                written.inserted,
                written.updated,
                written.deleted,
                written.generations,
                if ending { "; the last are merged" } else { "" }
            ),
            format!(
                "merged    {} generations; {} directories reclaimed",
                merged.0, merged.1
            ),
            base,
        ];
        let mut out = String::new();
        if self.drawn > 0 {
            out.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in &lines {
            out.push_str(&format!("\r\x1b[2K{line}\n"));
        }
        self.drawn = lines.len();
        let mut stdout = stdout().lock();
        // A terminal that went away ends the demo by its signal, not here.
        let _ = stdout
            .write_all(out.as_bytes())
            .and_then(|()| stdout.flush());
    }

    /// What comes after the view starts on a line of its own.
    pub fn end(&self) {
        if self.terminal && !self.silent {
            tell("");
        }
    }
}

/// Writes a line. Where nobody reads on, the demo goes on all the same: it ends by its time or a signal.
pub fn tell(line: impl Display) {
    let _ = writeln!(stdout(), "{line}");
}

/// The figures as text.
struct Shown {
    pending: String,
    lag: String,
    rate: String,
    last: String,
    why: String,
}

impl Shown {
    fn of(status: Option<&TableStatus>, lag: Duration) -> Self {
        let unknown = || "?".to_string();
        let last = status.and_then(|s| s.last_merge.as_ref()).map(|m| {
            let ago = Timestamp::now().duration_since(m.time).unsigned_abs();
            format!(
                "{} gen to v{}, {:.0} s ago",
                m.generations,
                m.version,
                ago.as_secs_f64()
            )
        });
        Self {
            pending: status
                .and_then(|s| s.pending_generations)
                .map_or_else(unknown, |n| format!("{n} gen")),
            lag: format!("{:.1} s", lag.as_secs_f64()),
            rate: status.map_or_else(unknown, |s| format!("{:.0} rows", s.merged_rows_per_second)),
            last: last.unwrap_or_else(|| "none yet".into()),
            why: status
                .and_then(|s| s.why.as_ref())
                .map_or_else(unknown, |w| w.reason.to_string()),
        }
    }
}
