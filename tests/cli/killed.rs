//! SIGKILL at every step: nothing is lost, doubled or resurrected, and the next run goes on.
//!
//! Lives here: a process that stops at a named step, its death there, and the same command once more. May use: the steps'
//! names. Never: a step that is passed over in silence; one that is not reached fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use freshet::table::steps;

use crate::fixtures::{Fixture, Spec};
use crate::process::{expect, generations, start};

/// Two shards, four rounds: keys that are written, rewritten, deleted, and written again.
async fn busy(stable_row_ids: bool) -> Fixture {
    let mut t = Fixture::create(Spec {
        shards: 2,
        stable_row_ids,
        ..Default::default()
    })
    .await;
    for round in 1..=4i64 {
        let rows: Vec<(u64, i64)> = (0..20)
            .map(|n| (n * 5, round))
            .chain([(1000 + round as u64, round)])
            .collect();
        t.put(&rows).await;
        t.delete(&[5 * round as u64, 5 * round as u64 + 5, 98, 99])
            .await;
        t.flush().await;
    }
    t.close().await;
    t
}

/// Runs a command until it stops at `step`, and kills it there.
fn killed_at(step: &str, args: &[&str], dir: &Path) {
    let file = dir.join(format!("stopped-at-{step}"));
    let at = [
        ("FRESHET_STOP_AT", step),
        ("FRESHET_STOP_FILE", file.to_str().unwrap()),
    ];
    let mut process = start(args, &at);
    process.until(step, || file.exists());
    process.signal("KILL");
    assert_eq!(process.code(), None);
}

/// Ids of the base's rows, of which no two have the same.
async fn row_ids(t: &Fixture) -> BTreeMap<String, u64> {
    let ids = t.lineage("_rowid").await;
    let distinct: BTreeSet<u64> = ids.values().copied().collect();
    assert_eq!(distinct.len(), ids.len());
    ids
}

/// Kills merges of copies of a table, each at another step, and merges them to their end.
async fn merges_are_killed(whole: &Fixture) {
    let before = row_ids(whole).await;
    let dir = tempfile::tempdir().unwrap();
    let at_risk = steps::ALL
        .iter()
        .filter(|s| s.starts_with("merge.") || s.starts_with("drain."));
    for step in at_risk {
        let t = whole.copy();
        let args = [
            "merge",
            "--table",
            &t.uri,
            "--until-fresh",
            "--max-generations",
            "3",
            "--drain",
        ];
        killed_at(step, &args, dir.path());
        expect(0, &args);
        assert_eq!(t.verdict().await, Default::default(), "killed at {step}");
        let seen = expect(0, &["backlog", "--table", &t.uri, "-o", "json"]).json();
        assert_eq!(seen["pending"]["generations"], 0, "killed at {step}");
        assert_eq!(seen["shards"][0]["listed"], 0, "killed at {step}");
        if !whole.spec.stable_row_ids {
            continue;
        }
        let after = row_ids(&t).await;
        // Of the base's 100 rows four are gone for good, and three were deleted and written again.
        let same = before
            .iter()
            .filter(|(key, id)| after.get(*key) == Some(id));
        assert!(same.count() >= 93, "killed at {step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_is_killed_at_any_step_loses_doubles_and_resurrects_nothing() {
    merges_are_killed(&busy(false).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_is_killed_at_any_step_leaves_updated_rows_their_stable_ids() {
    merges_are_killed(&busy(true).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_shard_that_is_killed_at_any_step_of_it_loses_nothing() {
    let mut whole = busy(false).await;
    expect(0, &["merge", "--table", &whole.uri]);
    std::fs::remove_dir_all(whole.path().join("_mem_wal")).unwrap();
    for round in 1..=6u64 {
        whole.put(&[(5 * round, 9), (round, 9)]).await;
        whole.delete(&[60 + round]).await;
        whole.flush().await;
    }
    whole.close().await;
    let dir = tempfile::tempdir().unwrap();
    for step in steps::ALL.iter().filter(|s| s.starts_with("reset.")) {
        let t = whole.copy();
        let args = ["merge", "--table", &t.uri, "--until-fresh", "--drain"];
        let refused = expect(7, &args);
        assert!(
            refused.err.contains("acknowledge WatermarkAhead"),
            "{refused:?}"
        );
        let said = [&args[..], &["--acknowledge", "WatermarkAhead"]].concat();
        killed_at(step, &said, dir.path());
        // What was acknowledged before the death needs no second word.
        match *step {
            "reset.committed" => expect(0, &args),
            _ => expect(0, &said),
        };
        assert_eq!(t.verdict().await, Default::default(), "killed at {step}");
        let seen = expect(0, &["backlog", "--table", &t.uri, "-o", "json"]).json();
        assert_eq!(seen["anomalies"], serde_json::json!([]));
    }
}

/// An Experiment that is merged in small steps, compacted at once, and reclaimed soon.
fn manifest(dir: &Path, uri: &str) -> String {
    let file = dir.join("maze.yaml");
    let text = format!(
        "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata: {{name: maze}}\nspec:\n  table: {{uri: \"{uri}\"}}\n  freshness: {{target: 1s, mergeAt: {{generations: 1}}}}\n  merge: {{maxGenerationsPerMerge: 2}}\n  compaction: {{minFragments: 2}}\n  retention: {{drainDelay: 100ms, mergedGenerationGracePeriod: 1s}}\n"
    );
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_killed_at_any_step_goes_on_where_it_was() {
    let whole = busy(true).await;
    // Shard manifests are pruned when they are a day old: no test waits for that here.
    let at_risk = steps::ALL.iter().filter(|s| **s != "reclaim.prune");
    let at_risk = at_risk.filter(|s| s.starts_with("reclaim.") || s.starts_with("compact."));
    for step in at_risk {
        let t = whole.copy();
        let dir = tempfile::tempdir().unwrap();
        let file = manifest(dir.path(), &t.uri);
        let args = ["local", "-f", &file, "--listen", "127.0.0.1:0"];
        killed_at(step, &args, dir.path());
        let mut local = start(&args, &[]);
        local.until("every directory to be reclaimed", || {
            generations(t.path()) == 0
        });
        local.signal("TERM");
        assert_eq!(local.code(), Some(0), "after {step}");
        assert_eq!(t.verdict().await, Default::default(), "killed at {step}");
    }
}
