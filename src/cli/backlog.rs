//! `freshet backlog`: what is pending, per shard, and what is not as it should be.
//!
//! Lives here: one look at one table, and its two forms of output. May use: `table`. Must never come in: a write, or a
//! zero for what is unknown.

use freshet::engine::LOOK_WITHIN;
use freshet::table::{Observation, ShardView, Tracker, total};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::exit::{CODES, Failure, INTERRUPTED};
use super::place::Place;
use super::say::say;
use super::{Output, asked_to_stop, size};

/// Show what of a table is pending: generations, rows, bytes, the oldest; watermarks; anomalies. Nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// How the answer is written.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

pub async fn run(args: Args) -> Result<(), Failure> {
    let named = args.place.named()?;
    let look = async {
        let table = named.open().await?;
        let mut tracker = Tracker::new();
        let seen = tracker.observe_within(&table, LOOK_WITHIN).await;
        Ok(seen.map_err(|e| named.failure(&e))?.0)
    };
    let seen = tokio::select! {
        seen = look => seen?,
        signal = asked_to_stop() => return Err(Failure::new(INTERRUPTED, format!("interrupted by {signal}"))),
    };
    match args.output {
        Output::Json => say(format_args!("{:#}", document(&named.location.uri, &seen))),
        Output::Text => say(text(&named.location.uri, &seen).trim_end()),
    }
}

fn time(t: Option<Timestamp>) -> Option<String> {
    t.map(|t| t.to_string())
}

/// The answer for programs; what is unknown is null.
fn document(uri: &str, seen: &Observation) -> Value {
    let shards = seen.shards.iter().map(shard);
    let unread = seen.unread.iter().map(|f| json!({ "shard": f.shard, "pending": null, "rows": null, "bytes": null, "oldest": null, "watermark": null, "currentGeneration": null, "listed": null }));
    let shards: Vec<Value> = shards.chain(unread).collect();
    let anomalies: Vec<Value> = seen
        .anomalies
        .iter()
        .map(|a| json!({ "reason": a.kind.reason(), "shard": a.shard, "message": a.message, "blocks": a.kind.blocks() }))
        .collect();
    json!({
        "table": uri,
        "observed": seen.observed_at.to_string(),
        "base": { "version": seen.base.version, "rows": seen.base.rows, "fragments": seen.base.fragments },
        "pending": {
            "generations": seen.pending_generations(),
            "rows": seen.pending_rows(),
            "bytes": seen.pending_bytes(),
            "oldest": time(seen.oldest()),
        },
        "shards": shards,
        "anomalies": anomalies,
    })
}

fn shard(s: &ShardView) -> Value {
    json!({
        "shard": s.shard,
        "pending": s.pending.len(),
        "rows": total(&s.pending, |p| p.rows),
        "bytes": total(&s.pending, |p| p.bytes),
        "oldest": time(s.pending.first().and_then(|p| p.flushed_at)),
        "watermark": s.watermark,
        "currentGeneration": s.current_generation,
        "listed": s.pending.len() + s.merged.len(),
    })
}

/// The answer for people.
fn text(uri: &str, seen: &Observation) -> String {
    let count = |n: Option<u64>| n.map_or("unknown".to_string(), |n| n.to_string());
    let bytes = |n: Option<u64>| n.map_or("unknown".to_string(), size::show);
    let base = &seen.base;
    let mut out = format!(
        "{uri}\nbase     version {}, {} rows, {} fragments\npending  {} generations, {} rows, {}",
        base.version,
        base.rows,
        base.fragments,
        count(seen.pending_generations().map(|n| n as u64)),
        count(seen.pending_rows()),
        bytes(seen.pending_bytes()),
    );
    if let Some(oldest) = seen.oldest() {
        out.push_str(&format!(", oldest {oldest}"));
    }
    out.push('\n');
    if seen.shard_count() > 0 {
        out.push_str(&format!(
            "\n{:<36}  {:>8} {:>10} {:>11}  {:<26} {:>9} {:>7} {:>6}\n",
            "SHARD", "PENDING", "ROWS", "BYTES", "OLDEST", "WATERMARK", "CURRENT", "LISTED"
        ));
    }
    for s in &seen.shards {
        let oldest = s.pending.first().map(|p| time(p.flushed_at));
        let oldest = oldest.map_or("-".into(), |t| t.unwrap_or("unknown".into()));
        out.push_str(&format!(
            "{:<36}  {:>8} {:>10} {:>11}  {:<26} {:>9} {:>7} {:>6}\n",
            s.shard.to_string(),
            s.pending.len(),
            count(total(&s.pending, |p| p.rows)),
            bytes(total(&s.pending, |p| p.bytes)),
            oldest.chars().take(26).collect::<String>(),
            s.watermark,
            s.current_generation,
            s.pending.len() + s.merged.len(),
        ));
    }
    for f in &seen.unread {
        out.push_str(&format!("{:<36}  {:>8}\n", f.shard.to_string(), "unknown"));
    }
    for a in &seen.anomalies {
        out.push_str(&format!("\n{}: {}\n", a.kind.reason(), a.message));
    }
    out
}
