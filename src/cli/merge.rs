//! `freshet merge`: one run over one table.
//!
//! Lives here: its flags, its two forms of output, and which exit code a run's outcome is. May use: `engine`'s sweep.
//! Must never come in: how a chunk is chosen or merged.

use std::time::{Duration, Instant};

use freshet::engine::{Caps, Sweep, Swept, Taken, Wish};
use freshet::table::{AnomalyKind, Observation, Table};
use serde_json::{Value, json};

use super::exit::{CODES, CORRUPT, Failure, INTERRUPTED, REFUSED};
use super::place::{Named, Place};
use super::say::say;
use super::{Output, asked_to_stop, size};

/// Merge what of a table is pending, in as few commits as the caps allow, and end. Safe beside writers, readers and
/// other mergers; interrupted at any moment, nothing is lost or half done.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Go on until nothing is pending, also what arrives meanwhile. Else only what is pending at the start.
    #[arg(long)]
    until_fresh: bool,
    /// Say what would be merged; write nothing.
    #[arg(long)]
    dry_run: bool,
    /// The most generations in one commit.
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_generations: u32,
    /// The most bytes in one commit; a larger generation goes alone.
    #[arg(long, value_name = "SIZE", default_value = "256Mi", value_parser = size::parse)]
    max_bytes: u64,
    /// Memory that a merge may use; a larger chunk is streamed.
    #[arg(long, value_name = "SIZE", default_value = "512Mi", value_parser = size::budget)]
    budget: u64,
    /// Take merged generations out of the shards' manifests at the end. Readers that opened the base before the merge
    /// see them no more then; leave it out while there are any.
    #[arg(long)]
    drain: bool,
    /// Say that all that is listed is to be merged, again where it was: WentBack, WatermarkAhead.
    #[arg(long, value_name = "REASON", value_parser = acknowledged)]
    acknowledge: Vec<AnomalyKind>,
    /// How the answer is written.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// The anomaly that a person acknowledges.
fn acknowledged(word: &str) -> Result<AnomalyKind, String> {
    match word {
        "WentBack" => Ok(AnomalyKind::WentBack),
        "WatermarkAhead" => Ok(AnomalyKind::WatermarkAhead),
        _ => Err("only WentBack and WatermarkAhead can be acknowledged".into()),
    }
}

/// The longest time of one attempt.
const ATTEMPT: Duration = Duration::from_secs(30 * 60);

pub async fn run(args: Args) -> Result<(), Failure> {
    let named = args.place.named()?;
    let begun = Instant::now();
    let wish = args.wish();
    let mut swept = Swept::default();
    let work = async {
        let table = named.open().await?;
        match args.dry_run {
            true => preview(&args, &named, &table, &wish).await.map(|()| false),
            false => {
                let ran = Sweep::new(&table, &wish).run(&mut swept).await;
                ran.map(|()| true).map_err(|e| named.failure(&e.0))
            }
        }
    };
    let ran = tokio::select! {
        ran = work => ran,
        signal = asked_to_stop() => {
            let message = format!("interrupted by {signal}; what was committed by then is whole, run it again for the rest");
            Err(Failure::new(INTERRUPTED, message))
        }
    };
    match ran {
        Ok(false) => Ok(()),
        Ok(true) => {
            let told = args.tell(&named, &swept, begun.elapsed(), None);
            verdict(&named, &swept).and(told)
        }
        Err(failure) => {
            if args.output == Output::Json || swept.commits > 0 {
                // What failed first is what is told by the exit code.
                let _ = args.tell(&named, &swept, begun.elapsed(), Some(&failure));
            }
            Err(failure)
        }
    }
}

impl Args {
    fn wish(&self) -> Wish {
        Wish {
            until_fresh: self.until_fresh,
            caps: Caps {
                generations: self.max_generations as usize,
                bytes: self.max_bytes,
                commit_bytes: self.budget,
            },
            budget_bytes: self.budget,
            attempt: ATTEMPT,
            drain: self.drain,
            acknowledged: self.acknowledge.clone(),
        }
    }

    fn tell(
        &self,
        named: &Named,
        swept: &Swept,
        took: Duration,
        failure: Option<&Failure>,
    ) -> Result<(), Failure> {
        match self.output {
            Output::Json => say(format_args!("{:#}", document(named, swept, took, failure))),
            Output::Text => say(text(named, swept, took)),
        }
    }
}

/// Whether anything is left that a person has to look at.
fn verdict(named: &Named, swept: &Swept) -> Result<(), Failure> {
    let uri = &named.location.uri;
    if let Some(q) = swept.quarantined.first() {
        let all: Vec<String> = swept
            .quarantined
            .iter()
            .map(|q| {
                format!(
                    "{} ({}), with {} waiting in its shard",
                    q.message, q.path, q.waiting
                )
            })
            .collect();
        let message = format!("{uri}: {}: {}", q.reason, all.join("; "));
        return Err(Failure::new(CORRUPT, message));
    }
    if let Some(b) = swept.blocked.first() {
        let all: Vec<&str> = swept.blocked.iter().map(|b| b.message.as_str()).collect();
        let message = format!("{uri}: {}: {}", b.reason, all.join("; "));
        let code = stopped(swept.blocked.iter().any(|b| b.unread));
        return Err(Failure::new(code, message));
    }
    Ok(())
}

/// The exit code where shards are stopped: worst where a file of theirs cannot be read.
fn stopped(unread: bool) -> u8 {
    match unread {
        true => CORRUPT,
        false => REFUSED,
    }
}

fn document(named: &Named, swept: &Swept, took: Duration, failure: Option<&Failure>) -> Value {
    let quarantined: Vec<Value> = swept
        .quarantined
        .iter()
        .map(|q| json!({ "shard": q.shard, "generation": q.generation, "path": q.path, "reason": q.reason, "message": q.message, "waiting": q.waiting }))
        .collect();
    let blocked: Vec<Value> = swept
        .blocked
        .iter()
        .map(|b| json!({ "shard": b.shard, "reason": b.reason, "message": b.message }))
        .collect();
    json!({
        "table": named.location.uri,
        "merged": {
            "generations": swept.generations,
            "commits": swept.commits,
            "rowsWritten": swept.rows_written,
            "rowsDeleted": swept.rows_deleted,
            "bytesWritten": swept.bytes_written,
        },
        "version": swept.version,
        "lost": swept.lost,
        "drained": swept.drained,
        "pending": swept.left,
        "quarantined": quarantined,
        "blocked": blocked,
        "seconds": took.as_secs_f64(),
        "error": failure.map(|f| json!({ "exitCode": f.code, "message": f.to_string() })),
    })
}

fn text(named: &Named, swept: &Swept, took: Duration) -> String {
    let uri = &named.location.uri;
    let version = swept
        .version
        .map_or(String::new(), |v| format!(", base version {v}"));
    let mut out = match swept.generations {
        0 if swept.left == Some(0) => format!("{uri}: nothing is pending{version}"),
        0 => format!(
            "{uri}: nothing was merged, {} are pending{version}",
            generations(swept.left)
        ),
        n => format!(
            "{uri}: merged {n} generations in {} commits: {} rows written, {} replaced or deleted, {}{version}, in {:.2} s",
            swept.commits,
            swept.rows_written,
            swept.rows_deleted,
            size::show(swept.bytes_written),
            took.as_secs_f64(),
        ),
    };
    if swept.generations > 0 && swept.left != Some(0) {
        out.push_str(&format!("; {} are pending", generations(swept.left)));
    }
    if swept.drained > 0 {
        out.push_str(&format!("; drained {}", swept.drained));
    }
    out
}

/// So many generations, in words; `None` is unknown.
fn generations(n: Option<usize>) -> String {
    n.map_or("an unknown number of generations".into(), |n| {
        format!("{n} generations")
    })
}

/// Says what a run would merge.
async fn preview(args: &Args, named: &Named, table: &Table, wish: &Wish) -> Result<(), Failure> {
    let planned = Sweep::new(table, wish).preview().await;
    let (seen, chunks) = planned.map_err(|e| named.failure(&e.0))?;
    match args.output {
        Output::Json => say(format_args!(
            "{:#}",
            planned_document(named, &seen, &chunks)
        ))?,
        Output::Text => say(planned_text(named, &seen, &chunks).trim_end())?,
    }
    let blocked = seen.anomalies.iter().find(|a| a.kind.blocks());
    match blocked {
        Some(a) => {
            let message = format!("{}: {}: {}", named.location.uri, a.kind.reason(), a.message);
            Err(Failure::new(stopped(!seen.unread.is_empty()), message))
        }
        None => Ok(()),
    }
}

fn planned_document(named: &Named, seen: &Observation, chunks: &[Vec<Taken>]) -> Value {
    let chunk = |taken: &Vec<Taken>| {
        let part = |t: &Taken| json!({ "shard": t.shard, "through": t.through, "generations": t.count, "bytes": t.bytes });
        Value::from(taken.iter().map(part).collect::<Vec<_>>())
    };
    json!({
        "table": named.location.uri,
        "dryRun": true,
        "version": seen.base.version,
        "pending": seen.pending_generations(),
        "merges": chunks.iter().map(chunk).collect::<Vec<_>>(),
    })
}

fn planned_text(named: &Named, seen: &Observation, chunks: &[Vec<Taken>]) -> String {
    let uri = &named.location.uri;
    if chunks.is_empty() {
        return match seen.pending_generations() {
            Some(0) => format!("{uri}: nothing is pending\n"),
            n => format!(
                "{uri}: nothing would be merged, {} are pending\n",
                generations(n)
            ),
        };
    }
    let count = |taken: &[Taken]| taken.iter().map(|t| t.count).sum::<usize>();
    let all: usize = chunks.iter().map(|c| count(c)).sum();
    let mut out = format!(
        "{uri}: would merge {all} generations in {} commits\n",
        chunks.len()
    );
    for (n, taken) in chunks.iter().enumerate() {
        let bytes = taken
            .iter()
            .fold(0u64, |sum, t| sum.saturating_add(t.bytes));
        out.push_str(&format!(
            "commit {}: {} generations, {}\n",
            n + 1,
            count(taken),
            size::show(bytes)
        ));
        for t in taken {
            out.push_str(&format!(
                "  shard {} through generation {} ({})\n",
                t.shard, t.through, t.count
            ));
        }
    }
    out
}
