//! Waiting until `fragments` shows what was flushed.
//!
//! Lives here: the wait route, its parameters, and its two answers. May use: the reader. Must never come in: a condition
//! or a clock in place of what the shards' manifests and the base say.

use std::time::{Duration, Instant};

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};
use uuid::Uuid;

use super::asked::{Asked, table};
use super::catalog::ExperimentStatus;
use super::problem::Problem;
use super::records::snapshot;
use super::routes::{Answer, told};
use super::serve::Shared;
use crate::api::GoDuration;
use crate::table::{Awaited, Goal, Waited};

/// How long is waited where no time is named.
const DEFAULT: Duration = Duration::from_secs(30);
/// The longest that a request may wait.
pub(super) const LONGEST: Duration = Duration::from_secs(600);
/// Shards that one request may name.
const MAX_SHARDS: usize = 128;

pub(super) async fn wait(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    let begun = Instant::now();
    let (within, goal) = parse(asked.uri.query())?;
    let status = asked.experiment(&shared)?;
    let table = table(&shared, &status).await?;
    let waited = shared.reader.wait(&table, goal, begun + within).await?;
    let body = json!({
        "shards": waited.shards.iter().map(shard).collect::<Vec<_>>(),
        "waited_seconds": begun.elapsed().as_secs_f64(),
        "snapshot": snapshot(&waited.snapshot),
    });
    match waited.is_held() {
        true => told(&body),
        // What is known of it may have changed since.
        false => Err(late(&waited, body, asked.experiment(&shared)?)),
    }
}

fn shard(shard: &Awaited) -> Value {
    json!({
        "shard": shard.shard,
        "generation": shard.generation,
        "watermark": shard.watermark,
        "pending": shard.pending,
        "merged": shard.is_held(),
    })
}

/// The value of `for` that asks for what is left again; `None` for more shards than a request may name.
fn again(shards: &[Awaited]) -> Option<String> {
    let left = shards.iter().filter(|s| !s.is_held());
    let left: Vec<_> = left
        .map(|s| format!("{}:{}", s.shard, s.generation))
        .collect();
    (left.len() <= MAX_SHARDS).then(|| left.join(","))
}

fn late(waited: &Waited, body: Value, status: ExperimentStatus) -> Problem {
    let open = waited.shards.iter().filter(|s| !s.is_held()).count();
    let problem = Problem::new(
        StatusCode::GATEWAY_TIMEOUT,
        "not-merged-yet",
        "The base does not hold it yet",
        format!(
            "{open} of {} shards were not merged as far as asked in time; ask again with the same `for`, and see why_not_now",
            waited.shards.len()
        ),
    );
    let members = body.as_object().into_iter().flatten();
    members
        .fold(problem, |p, (name, value)| p.with(name, value.clone()))
        .with("for", json!(again(&waited.shards)))
        .with("why_not_now", json!(status.why_not_now))
        .retry()
}

fn parse(raw: Option<&str>) -> Result<(Duration, Option<Goal>), Problem> {
    let (mut within, mut goal) = (None, None);
    for (name, value) in url::form_urlencoded::parse(raw.unwrap_or_default().as_bytes()) {
        let twice = match name.as_ref() {
            "timeout" => within.replace(time(&value)?).is_some(),
            "for" => goal.replace(generations(&value)?).is_some(),
            other => {
                let other: String = other.chars().take(64).collect();
                return Err(Problem::parameter(
                    &other,
                    "this parameter is not known; those of this route are timeout, for",
                ));
            }
        };
        if twice {
            return Err(Problem::parameter(&name, "this parameter is given twice"));
        }
    }
    Ok((within.unwrap_or(DEFAULT), goal))
}

fn time(value: &str) -> Result<Duration, Problem> {
    let time = value.parse::<GoDuration>().map(Duration::from);
    time.ok().filter(|t| *t <= LONGEST).ok_or_else(|| {
        Problem::parameter(
            "timeout",
            "timeout is a duration from 0s to 10m, as in 90s or 2m30s",
        )
    })
}

fn generations(value: &str) -> Result<Goal, Problem> {
    let wrong = || {
        Problem::parameter(
            "for",
            format!(
                "for is a shard and a generation, as in 01234567-89ab-cdef-0123-456789abcdef:7, at most {MAX_SHARDS} of them with commas between"
            ),
        )
    };
    let each = value.split(',').map(|one| {
        let (shard, generation) = one.split_once(':')?;
        let shard = Uuid::try_parse(shard).ok()?;
        let digits = generation.bytes().all(|b| b.is_ascii_digit());
        Some((shard, generation.parse().ok().filter(|_| digits)?))
    });
    let each: Vec<(Uuid, u64)> = each.collect::<Option<_>>().ok_or_else(wrong)?;
    match each.len() <= MAX_SHARDS {
        true => Ok(Goal::new(each)),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: &str = "01234567-89ab-cdef-0123-456789abcdef";

    #[test]
    fn a_wait_is_for_what_is_listed_unless_a_generation_is_named() {
        assert!(matches!(parse(None), Ok((DEFAULT, None))));
        let query = format!("timeout=1m30s&for={SHARD}:7,{SHARD}%3A9");
        let (within, goal) = parse(Some(&query)).unwrap();
        assert_eq!(within, Duration::from_secs(90));
        let shard = Uuid::try_parse(SHARD).unwrap();
        assert_eq!(goal, Some(Goal::new([(shard, 9)])));
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        for (raw, parameter) in [
            ("timeout=".to_string(), "timeout"),
            ("timeout=30".into(), "timeout"),
            ("timeout=601s".into(), "timeout"),
            ("timeout=-1s".into(), "timeout"),
            ("timeout=1s&timeout=1s".into(), "timeout"),
            ("for=".into(), "for"),
            (format!("for={SHARD}"), "for"),
            (format!("for={SHARD}:-1"), "for"),
            (format!("for={SHARD}:+1"), "for"),
            (format!("for={SHARD}:18446744073709551616"), "for"),
            ("for=../../x:1".into(), "for"),
            (
                format!("for={}", [format!("{SHARD}:1").as_str(); 129].join(",")),
                "for",
            ),
            ("source=all".into(), "source"),
        ] {
            let problem = parse(Some(&raw)).unwrap_err();
            let said = format!("{problem:?}");
            assert!(said.contains(&format!("String(\"{parameter}\")")), "{said}");
        }
    }

    #[test]
    fn a_long_wait_can_be_asked_for_again_as_it_was() {
        let shard = Uuid::try_parse(SHARD).unwrap();
        let left = Awaited {
            shard,
            generation: 7,
            watermark: 3,
            pending: 4,
        };
        let done = Awaited {
            shard: Uuid::nil(),
            watermark: 7,
            pending: 0,
            ..left
        };
        let text = again(&[left, done]).unwrap();
        assert_eq!(generations(&text).unwrap(), Goal::new([(shard, 7)]));
        assert_eq!(again(&[left; 129]), None);
    }
}
