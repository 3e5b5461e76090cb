//! `freshet wait`: ends when the base holds what was flushed.
//!
//! Lives here: its flags, its two forms of output, and its exit code. May use: `table`'s reader. Must never come in: a
//! write, or a condition of a resource in place of what the table says.

use std::time::{Duration, Instant};

use freshet::api::GoDuration;
use freshet::table::{Awaited, Error, Goal, ReadError, ReadLimits, Reader, Waited};
use serde_json::{Value, json};
use uuid::Uuid;

use super::exit::{CODES, Failure, INTERRUPTED, NOT_YET};
use super::place::Place;
use super::say::say;
use super::{Output, asked_to_stop};

/// Wait until the base table holds what was flushed before: reads every shard's manifest now, and ends when the
/// watermarks are there. Merges nothing: that is for the operator, `freshet local` or `freshet merge`.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Wait for this generation of this shard in place of what is listed now, also where it is not flushed yet. May be
    /// repeated.
    #[arg(long = "for", value_name = "SHARD:GENERATION", value_parser = generation)]
    generations: Vec<(Uuid, u64)>,
    /// How long to wait, as in 90s, 10m or 1h30m; 0s looks once.
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    timeout: GoDuration,
    /// How the answer is written.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

fn generation(text: &str) -> Result<(Uuid, u64), String> {
    let parts = text.split_once(':').and_then(|(shard, generation)| {
        Some((Uuid::try_parse(shard).ok()?, generation.parse().ok()?))
    });
    parts.ok_or_else(|| {
        "write a shard and a generation, as in 01234567-89ab-cdef-0123-456789abcdef:7".into()
    })
}

pub async fn run(args: Args) -> Result<(), Failure> {
    let begun = Instant::now();
    let named = args.place.named()?;
    let until = begun + args.timeout.as_duration();
    let goal = Some(args.generations).filter(|g| !g.is_empty());
    let wait = async {
        let table = named.open().await?;
        let reader = Reader::new(ReadLimits::default());
        let waited = reader.wait(&table, goal.map(Goal::new), until).await;
        waited.map_err(|e| match e {
            ReadError::Table(e) => named.failure(&e),
            e => named.failure(&Error::Bug(e.to_string())),
        })
    };
    let waited = tokio::select! {
        waited = wait => waited?,
        signal = asked_to_stop() => return Err(Failure::new(INTERRUPTED, format!("interrupted by {signal}"))),
    };
    match args.output {
        Output::Json => say(format_args!("{:#}", document(&waited, begun.elapsed()))),
        Output::Text => say(text(&waited).trim_end()),
    }?;
    match waited.is_held() {
        true => Ok(()),
        false => Err(Failure::new(
            NOT_YET,
            format!(
                "{}: {} shards are not merged as far as asked after {}; see `freshet backlog` for what holds them up",
                named.shown,
                waited.shards.iter().filter(|s| !s.is_held()).count(),
                args.timeout
            ),
        )),
    }
}

fn document(waited: &Waited, spent: Duration) -> Value {
    let shard = |s: &Awaited| json!({ "shard": s.shard, "generation": s.generation, "watermark": s.watermark, "pending": s.pending, "merged": s.is_held() });
    json!({
        "merged": waited.is_held(),
        "shards": waited.shards.iter().map(shard).collect::<Vec<_>>(),
        "base": { "version": waited.snapshot.version },
        "seconds": spent.as_secs_f64(),
    })
}

fn text(waited: &Waited) -> String {
    let mut out = format!("base     version {}\n", waited.snapshot.version);
    match waited.shards.is_empty() {
        true => out.push_str("no shard lists anything: nothing to wait for\n"),
        false => out.push_str(&format!(
            "\n{:<36}  {:>10} {:>10} {:>8}\n",
            "SHARD", "GENERATION", "WATERMARK", "PENDING"
        )),
    }
    for s in &waited.shards {
        out.push_str(&format!(
            "{:<36}  {:>10} {:>10} {:>8}\n",
            s.shard.to_string(),
            s.generation,
            s.watermark,
            s.pending
        ));
    }
    out
}
