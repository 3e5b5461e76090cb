//! What each command says, and how it ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use arrow_array::RecordBatchIterator;
use lance::Dataset;

use crate::fixtures::{Fixture, Spec, copy_dir, shard};
use crate::process::{expect, freshet, start, tree};

/// Two shards with three generations each: inserts, updates, deletes.
async fn pending() -> Fixture {
    let mut t = Fixture::create(Spec {
        shards: 2,
        ..Default::default()
    })
    .await;
    for round in 1..=3u64 {
        t.put(&[
            (round, 1),
            (round + 10, 2),
            (200 + round, 3),
            (301 + 2 * round, 3),
        ])
        .await;
        t.delete(&[50 + 2 * round, 51 + 2 * round]).await;
        t.flush().await;
    }
    t
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_says_what_it_did_and_a_second_one_touches_nothing() {
    let t = pending().await;
    let planned = expect(0, &["merge", "--table", &t.uri, "--dry-run", "-o", "json"]).json();
    assert_eq!(planned["pending"], 6);
    assert_eq!(planned["merges"].as_array().unwrap().len(), 1);
    let done = expect(
        0,
        &[
            "merge",
            "--table",
            &t.uri,
            "--max-generations",
            "4",
            "-o",
            "json",
        ],
    )
    .json();
    assert_eq!(done["merged"]["generations"], 6);
    assert_eq!(done["merged"]["commits"], 2);
    assert_eq!(done["error"], serde_json::Value::Null);
    assert_eq!(t.verdict().await, Default::default());
    let before = tree(t.path());
    let again = expect(0, &["merge", "--table", &t.uri, "--until-fresh"]);
    assert!(again.out.contains("nothing is pending"), "{again:?}");
    assert_eq!(tree(t.path()), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_rows_whose_commit_exceeds_the_budget_are_merged_in_several_commits() {
    for (stable_row_ids, commits) in [(false, 1), (true, 2)] {
        let mut t = Fixture::create(Spec {
            stable_row_ids,
            ..Default::default()
        })
        .await;
        for round in 0..4 {
            let rows: Vec<_> = (0..1000).map(|k| (k, round)).collect();
            t.put(&rows).await;
            t.flush().await;
        }
        t.close().await;
        let args = [
            "merge", "--table", &t.uri, "--budget", "256Ki", "-o", "json",
        ];
        let done = expect(0, &args).json();
        assert_eq!(done["merged"]["commits"], commits);
        assert_eq!(t.verdict().await, Default::default());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_touches_nothing() {
    let t = pending().await;
    let before = tree(t.path());
    let said = expect(
        0,
        &["merge", "--table", &t.uri, "--dry-run", "--until-fresh"],
    );
    assert!(said.out.contains("would merge 6 generations"), "{said:?}");
    assert_eq!(tree(t.path()), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_counts_by_shard_and_leaves_unknown_what_is() {
    let t = pending().await;
    let seen = expect(0, &["backlog", "--table", &t.uri, "-o", "json"]).json();
    assert_eq!(seen["pending"]["generations"], 6);
    assert!(seen["pending"]["oldest"].is_string() && seen["pending"]["rows"].is_u64());
    let shards = seen["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 2);
    for s in shards {
        assert_eq!(
            (&s["pending"], &s["watermark"], &s["currentGeneration"]),
            (&3.into(), &0.into(), &4.into())
        );
        assert_eq!(s["listed"], 3);
    }
    expect(0, &["merge", "--table", &t.uri, "--drain"]);
    let seen = expect(0, &["backlog", "--table", &t.uri, "-o", "json"]).json();
    assert_eq!(seen["pending"]["oldest"], serde_json::Value::Null);
    assert_eq!(seen["shards"][0]["listed"], 0);
    assert_eq!(seen["shards"][0]["watermark"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_memwal_is_named_and_left_alone() {
    let t = Fixture::without_mem_wal(Spec::default()).await;
    let before = tree(t.path());
    for command in ["merge", "backlog"] {
        let said = expect(3, &[command, "--table", &t.uri]);
        assert!(
            said.err.contains("NotMemWal") && said.err.lines().count() == 1,
            "{said:?}"
        );
    }
    assert_eq!(tree(t.path()), before);
}

#[test]
fn a_missing_table_is_named_on_one_line() {
    let said = expect(3, &["merge", "--table", "/nowhere/maze.lance"]);
    assert!(said.err.contains("/nowhere/maze.lance"), "{said:?}");
    assert_eq!((said.err.lines().count(), said.out.as_str()), (1, ""));
}

#[test]
fn an_answer_that_nobody_reads_or_that_cannot_be_written_is_no_fault_of_the_program() {
    let into = |out: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_freshet"));
        command.args(["crds", "--stdout"]).stdout(out);
        command.output().unwrap()
    };
    let full = into(
        File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
            .into(),
    );
    let said = String::from_utf8_lossy(&full.stderr);
    assert_eq!(full.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("freshet: the answer cannot be written to stdout"),
        "{said}"
    );
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let unread = into(write.into());
    assert_eq!(unread.status.code(), Some(0), "{unread:?}");
    assert!(unread.stderr.is_empty(), "{unread:?}");
}

#[test]
fn a_wrong_flag_is_a_usage_error_and_shows_no_secret() {
    for args in [
        vec!["merge"],
        vec!["merge", "--table", "s3://who:hidden-value@bucket/maze"],
        vec!["merge", "--table", "/t", "--storage", "colour=blue"],
        vec!["merge", "--table", "/t", "--max-bytes", "0"],
        vec!["backlog", "--table", "gopher://maze"],
        vec!["local"],
        vec!["backlog", "--table", "x=s3://bucket/maze"],
        vec!["backlog", "--table", "https://who:hidden-value@host/maze"],
        vec!["local", "--table", "no-uri"],
        vec!["local", "--table", "s3://bucket/maze?a=hidden-value"],
        vec!["local", "--table", "s3://who:hidden-value@bucket/maze"],
        vec!["demo", "--writers", "0"],
    ] {
        let said = expect(2, &args);
        assert!(
            !said.err.is_empty() && !said.err.contains("hidden-value"),
            "{args:?}: {said:?}"
        );
    }
}

#[test]
fn what_is_wrong_with_a_table_is_told_once_in_words_of_the_command_line() {
    let bucket = "must name a bucket or container of 3 characters or more behind its scheme";
    let scheme = "must begin with s3://, gs://, az://, abfss:// or file://, or be a path";
    for (args, said) in [
        (
            ["backlog", "--table", "s3://b/maze"],
            format!("--table {bucket}"),
        ),
        (
            ["local", "--table", "maze=s3://b/maze"],
            format!("--table maze {bucket}"),
        ),
        (
            ["backlog", "--table", "gopher://maze"],
            format!("--table {scheme}\n"),
        ),
        (
            ["local", "--table", "maze=gopher://maze"],
            format!("--table maze {scheme}\n"),
        ),
        (
            ["local", "--table", "Maze=/maze"],
            "--table Maze: the name is not written as".into(),
        ),
    ] {
        let told = expect(2, &args).err;
        assert!(told.starts_with(&format!("freshet: {said}")), "{told}");
        assert!(
            !told.contains("spec.") && !told.contains("metadata."),
            "{told}"
        );
    }
}

#[test]
fn a_file_without_an_experiment_is_named_and_nothing_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.yaml");
    std::fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    let said = expect(2, &["local", "-f", empty, "--listen", "127.0.0.1:0"]).err;
    assert!(
        said.contains(&format!("{empty}: the file holds no Experiment")),
        "{said}"
    );
    assert!(said.contains("nothing was started"), "{said}");
}

/// The data file of a shard's generation.
fn data_file(table: &Path, at: usize, number: u64) -> PathBuf {
    let dir = table.join("_mem_wal").join(shard(at).to_string());
    let end = format!("_gen_{number}");
    let found = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut found = found.filter(|p| p.to_string_lossy().ends_with(&end));
    let data = found.next().unwrap().join("data");
    let mut files = std::fs::read_dir(data).unwrap();
    files.next().unwrap().unwrap().path()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_that_cannot_be_read_stops_its_shard_and_no_other() {
    let t = pending().await;
    let broken = data_file(t.path(), 0, 2);
    let whole = std::fs::read(&broken).unwrap();
    std::fs::write(&broken, &whole[..whole.len() / 2]).unwrap();
    let said = expect(6, &["merge", "--table", &t.uri, "--until-fresh"]);
    assert!(
        said.err.contains("_gen_2") && said.err.contains("GenerationUnreadable"),
        "{said:?}"
    );
    let seen = expect(0, &["backlog", "--table", &t.uri, "-o", "json"]).json();
    let left: Vec<_> = seen["shards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["pending"].as_u64().unwrap())
        .collect();
    assert_eq!(left, [2, 0]);
    std::fs::write(&broken, &whole).unwrap();
    expect(0, &["merge", "--table", &t.uri]);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_went_back_is_refused_until_somebody_says_that_it_is_right() {
    let mut t = pending().await;
    let before = t.dataset().await;
    expect(0, &["merge", "--table", &t.uri]);
    t.put(&[(7, 7)]).await;
    t.flush().await;
    let mut restored = before;
    restored.restore().await.unwrap();
    let tree_before = tree(t.path());
    let said = expect(7, &["merge", "--table", &t.uri, "--until-fresh"]);
    assert!(said.err.contains("WentBack"), "{said:?}");
    assert_eq!(tree(t.path()), tree_before);
    expect(
        0,
        &[
            "merge",
            "--table",
            &t.uri,
            "--until-fresh",
            "--acknowledge",
            "WentBack",
        ],
    );
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_is_interrupted_ends_with_130_and_the_next_one_does_the_rest() {
    let mut t = Fixture::create(Spec::default()).await;
    for round in 0..60 {
        t.put(&[(round, 1), (1000 + round, 1)]).await;
        t.delete(&[round / 2]).await;
        t.flush().await;
    }
    let versions = || {
        std::fs::read_dir(t.path().join("_versions"))
            .unwrap()
            .count()
    };
    let at_first = versions();
    for signal in ["INT", "TERM"] {
        let before = versions();
        let mut merge = start(
            &[
                "merge",
                "--table",
                &t.uri,
                "--until-fresh",
                "--max-generations",
                "1",
            ],
            &[],
        );
        merge.until("a commit", || versions() > before);
        merge.signal(signal);
        assert_eq!(merge.code(), Some(130));
    }
    assert!(versions() < at_first + 60, "it was not interrupted");
    expect(0, &["merge", "--table", &t.uri]);
    assert_eq!(t.verdict().await, Default::default());
}

#[test]
fn the_demo_ends_by_itself_and_finds_nothing_lost_or_doubled() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    for _ in 0..2 {
        let said = expect(
            0,
            &[
                "demo",
                "--dir",
                dir,
                "--listen",
                "127.0.0.1:0",
                "--seconds",
                "2",
                "--writers",
                "2",
            ],
        );
        assert!(said.out.contains("0 lost, 0 doubled"), "{said:?}");
    }
}

#[test]
fn the_demo_survives_ctrl_c_with_a_summary() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("rollouts.lance");
    let mut demo = start(
        &[
            "demo",
            "--dir",
            dir.path().to_str().unwrap(),
            "--listen",
            "127.0.0.1:0",
        ],
        &[],
    );
    demo.until("a shard", || table.join("_mem_wal").exists());
    demo.signal("INT");
    assert_eq!(demo.code(), Some(0));
}

#[test]
fn a_port_that_is_taken_is_named_with_the_way_out() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let said = freshet(&["demo", "--listen", &address, "--seconds", "1"]);
    assert_eq!(said.code, Some(2));
    assert!(
        said.err.contains(&address) && said.err.contains("--listen"),
        "{said:?}"
    );
}

#[test]
fn wrong_manifests_are_named_with_file_and_line_and_nothing_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("maze.yaml");
    std::fs::write(&file, "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata: {name: maze}\nspec:\n  table: {uri: /t}\n  freshness: {target: soon}\n").unwrap();
    let said = expect(
        2,
        &[
            "local",
            "-f",
            file.to_str().unwrap(),
            "--listen",
            "127.0.0.1:0",
        ],
    );
    assert!(said.err.contains("maze.yaml:6"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_newest_manifest_is_broken_is_never_called_fresh_and_counts_as_unknown() {
    let mut t = pending().await;
    t.close().await;
    let file = t.newest_manifest(0);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let merge = ["merge", "--table", &t.uri, "--until-fresh"];
    let planned = expect(6, &[&merge[..], &["--dry-run"]].concat());
    assert!(
        planned.out.contains("would merge 3 generations"),
        "{planned:?}"
    );
    for merged in [3, 0] {
        let said = expect(6, &[&merge[..], &["-o", "json"]].concat());
        assert!(said.err.contains("UnsupportedManifest"), "{said:?}");
        assert!(said.err.contains(&shard(0).to_string()), "{said:?}");
        let said = said.json();
        assert_eq!(said["merged"]["generations"], merged);
        assert_eq!(said["pending"], serde_json::Value::Null);
    }
    let said = expect(6, &merge);
    assert!(!said.out.contains("nothing is pending"), "{said:?}");
    assert!(said.out.contains("unknown number"), "{said:?}");

    let backlog = ["backlog", "--table", &t.uri];
    let said = expect(0, &backlog).out;
    assert!(
        said.contains("pending  unknown generations, unknown rows, unknown"),
        "{said}"
    );
    assert!(said.contains("UnsupportedManifest"), "{said}");
    let seen = expect(0, &[&backlog[..], &["-o", "json"]].concat()).json();
    for figure in ["generations", "rows", "bytes"] {
        assert_eq!(seen["pending"][figure], serde_json::Value::Null, "{figure}");
    }
    let of = |at: usize| {
        let all = seen["shards"].as_array().unwrap();
        let found = all.iter().find(|s| s["shard"] == shard(at).to_string());
        (
            found.unwrap()["pending"].as_u64(),
            found.unwrap()["watermark"].as_u64(),
        )
    };
    assert_eq!((of(0), of(1)), ((None, None), (Some(0), Some(3))));

    std::fs::write(&file, whole).unwrap();
    expect(0, &merge);
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_when_the_base_holds_what_was_flushed_and_says_not_yet_before() {
    let t = pending().await;
    let early = expect(
        8,
        &["wait", "--table", &t.uri, "--timeout", "0s", "-o", "json"],
    );
    assert_eq!(early.json()["merged"], false);
    assert!(early.err.contains("2 shards are not merged"), "{early:?}");
    let waiting = start(&["wait", "--table", &t.uri, "--timeout", "5m"], &[]);
    expect(0, &["merge", "--table", &t.uri]);
    assert_eq!(waiting.code(), Some(0));
    let after = expect(
        0,
        &["wait", "--table", &t.uri, "--timeout", "0s", "-o", "json"],
    )
    .json();
    assert_eq!(
        (&after["merged"], &after["shards"][0]["watermark"]),
        (&true.into(), &3.into())
    );
    let shard = shard(0).to_string();
    let later = format!("{shard}:4");
    expect(
        8,
        &[
            "wait",
            "--table",
            &t.uri,
            "--timeout",
            "0s",
            "--for",
            &later,
        ],
    );
    for wrong in ["4", "x:4", &format!("{shard}:-1")] {
        expect(2, &["wait", "--table", &t.uri, "--for", wrong]);
    }
    expect(2, &["wait", "--table", &t.uri, "--timeout", "30"]);
    expect(3, &["wait", "--table", &format!("{}.none", t.uri)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_that_refers_to_data_elsewhere_stops_its_shard_and_no_other() {
    let mut t = pending().await;
    let beside = tempfile::tempdir().unwrap();
    let place = |name: &str| beside.path().join(name).to_str().unwrap().to_string();
    let rows = t.spec.shape.batch(&[(9000, 1)]);
    let rows = RecordBatchIterator::new([Ok(rows)], t.spec.shape.schema());
    let mut other = Dataset::write(rows, &place("other"), None).await.unwrap();
    other.shallow_clone(&place("clone"), 1, None).await.unwrap();
    let log = t.path().join("_mem_wal").join(shard(0).to_string());
    let mut dirs = std::fs::read_dir(log).unwrap().map(|e| e.unwrap().path());
    let second = dirs.find(|d| d.to_string_lossy().ends_with("_gen_2"));
    let second = second.unwrap();
    std::fs::remove_dir_all(&second).unwrap();
    copy_dir(Path::new(&place("clone")), &second);
    let done = expect(
        6,
        &["merge", "--table", &t.uri, "--until-fresh", "-o", "json"],
    );
    assert!(done.err.contains("ForeignBase"), "{done:?}");
    let left = expect(0, &["backlog", "--table", &t.uri, "-o", "json"]).json();
    let pending: Vec<_> = left["shards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["pending"].clone())
        .collect();
    let mut want = [(shard(0), 2), (shard(1), 0)];
    want.sort();
    assert_eq!(pending, want.map(|(_, n)| serde_json::json!(n)));
    t.close().await;
}
