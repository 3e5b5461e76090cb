//! How much memory a merge takes, measured on the program itself: the peak of its resident bytes over that of a process
//! that did the same to a table of a few rows, so that its code is in memory.
//!
//! Lives here: tables whose generation, or whose base's keys, are four times the budget. May use: the fixtures, the binary
//! (`FRESHET_MEASURED` names another build of it). Never: an estimate in place of a measurement.

use std::process::Command;

use crate::fixtures::{Fixture, Kind, Shape, Spec};

const MIB: u64 = 1 << 20;
/// What a merge may take besides its budget.
const BESIDES: u64 = 64 * MIB;

/// Runs a program and says its peak in KiB and its exit code. The kernel counts a child's peak from before it becomes the
/// program, so whoever starts it has to be small, which this process is not.
const LAUNCHER: &str = "import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, code)";

/// The peak of the resident bytes of one `freshet merge`, on a copy of the table.
fn peak(table: &Fixture, budget: &str) -> u64 {
    let table = table.copy();
    let built = env!("CARGO_BIN_EXE_freshet").to_string();
    let freshet = std::env::var("FRESHET_MEASURED").unwrap_or(built);
    let run = Command::new("python3")
        .args(["-S", "-c", LAUNCHER, &freshet, "merge", "--until-fresh"])
        .args(["--max-bytes", "4Gi", "--budget", budget])
        .args(["--table", &table.uri])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let (kib, code) = said
        .trim()
        .split_once(' ')
        .unwrap_or_else(|| panic!("the launcher said: {run:?}"));
    assert_eq!(code, "0", "{run:?}");
    kib.parse::<u64>().unwrap() * 1024
}

/// The peak of a merge of a few rows, streamed as the large ones are.
async fn idle() -> u64 {
    let mut peaks = vec![];
    for btree in [false, true] {
        let small = table(&payload(), btree, 200, 100, true).await;
        peaks.push(peak(&small, "4Ki"));
    }
    peaks.into_iter().max().unwrap()
}

/// Judges what merging the one pending generation took.
fn judge(name: &str, table: &Fixture, budget: u64, idle: u64) {
    let over = peak(table, &budget.to_string()).saturating_sub(idle);
    println!(
        "{name}, budget {} MiB: {} MiB over an idle process of {} MiB",
        budget / MIB,
        over / MIB,
        idle / MIB
    );
    assert!(
        over <= budget + BESIDES,
        "{name}: {} MiB over the idle process, budget {} MiB",
        over / MIB,
        budget / MIB
    );
}

/// A base of `base` rows and one generation of `rows`: every second updates a base row, the others are new, and every
/// third is deleted again where `deletes`.
async fn table(shape: &Shape, btree: bool, base: u64, rows: u64, deletes: bool) -> Fixture {
    let spec = Spec {
        shape: shape.clone(),
        btree,
        base: (0..base).map(|k| (k, 0)).collect(),
        memtable_rows: 3 * rows as usize + 1000,
        ..Default::default()
    };
    let mut t = Fixture::create(spec).await;
    let key = |at: u64| if at.is_multiple_of(2) { at } else { base + at };
    // A memtable takes 256 batches.
    let step = rows.div_ceil(64).max(1024);
    for from in (0..rows).step_by(step as usize) {
        let batch: Vec<_> = (from..rows.min(from + step))
            .map(|at| (key(at), 1))
            .collect();
        t.put(&batch).await;
        if deletes {
            let gone: Vec<u64> = batch.iter().map(|r| r.0).filter(|k| k % 3 == 0).collect();
            t.delete(&gone).await;
        }
    }
    t.close().await;
    t
}

/// Rows of 8,016 bytes.
fn payload() -> Shape {
    Shape::keyed(Kind::Int64).with("payload", Kind::Long(8000))
}

/// A generation of four times the budget.
async fn generation(budget: u64, variants: &[(bool, bool)]) {
    let rows = 4 * budget / 8016;
    let idle = idle().await;
    for (btree, deletes) in variants.iter().copied() {
        let t = table(&payload(), btree, rows / 4, rows, deletes).await;
        let name = format!("a generation, BTree: {btree}, deletes: {deletes}");
        judge(&name, &t, budget, idle);
    }
}

/// A base whose keys are four times the budget, with a small generation.
async fn base(budget: u64) {
    let t = table(
        &Shape::keyed(Kind::Int64),
        false,
        4 * budget / 8,
        1000,
        true,
    )
    .await;
    let idle = idle().await;
    judge("a base of int64 keys", &t, budget, idle);
    t.index_key().await;
    judge("a base of int64 keys, BTree", &t, budget, idle);
}

/// Keys of 500 bytes, `times` the budget of them in the base and as many in the generation.
async fn long_keys(budget: u64, times: u64) {
    let keys = times * budget / 500;
    let t = table(&Shape::keyed(Kind::Long(500)), false, keys, keys, true).await;
    judge("keys of 500 bytes", &t, budget, idle().await);
}

#[tokio::test]
async fn a_generation_four_times_the_budget_merges_within_it() {
    // Large enough that a merge which held it whole, even once, would take more than is allowed.
    generation(24 * MIB, &[(false, true), (true, false)]).await;
}

#[tokio::test]
async fn a_base_whose_keys_are_four_times_the_budget_merges_within_it() {
    base(8 * MIB).await;
}

#[tokio::test]
async fn keys_that_are_long_merge_within_the_budget() {
    long_keys(8 * MIB, 1).await;
}

#[tokio::test]
#[ignore = "takes minutes; `make test-full` runs it"]
async fn tables_four_times_larger_budgets_merge_within_them() {
    let all = [(false, false), (false, true), (true, false), (true, true)];
    for budget in [8 * MIB, 24 * MIB, 48 * MIB] {
        generation(budget, &all).await;
    }
    base(32 * MIB).await;
    long_keys(24 * MIB, 4).await;
}
