//! When a merge starts, and what it takes.
//!
//! Lives here: one example for each rule, a small table made by hand and the plan that it must give. May use: this
//! room's fixtures. Must never come in: what holds of every plan (`properties`) or only over time (`simulation`).

use jiff::Timestamp;

use super::fixtures::*;
use crate::plan::*;

#[test]
fn one_generation_alone_is_merged_at_half_the_target() {
    let tables = [table("alder", "maze", vec![shard(1, run(1, MIB, 0))])];
    let early = plan(&tables, &budgets(), at(10));
    assert_eq!(merges(&early), []);
    assert_eq!(why(&early, "maze"), Reason::Scheduled);
    assert_eq!(early.wake_at, Some(at(30)));
    let due = plan(&tables, &budgets(), at(30));
    assert_eq!(merges(&due), [("maze", Trigger::Age)]);
    assert_eq!(why(&due, "maze"), Reason::Merging);
}

#[test]
fn a_long_merge_and_a_long_queue_start_it_earlier_than_half_the_target() {
    let view = table("alder", "maze", vec![shard(1, run(1, 800 * MIB, 0))]);
    let predicted = view.history.merge(1, 800 * MIB);
    let mut shared = budgets();
    shared.queue_wait = secs(12);
    let wake = plan(&[view], &shared, at(1))
        .wake_at
        .expect("something is pending");
    assert_eq!(wake, at(60) - predicted - secs(12));
    assert!(wake < at(30));
}

#[test]
fn enough_generations_or_bytes_start_a_merge_at_once() {
    let mut by_count = table("alder", "count", vec![shard(1, run(3, MIB, 0))]);
    by_count.policy.merge_at_generations = 3;
    let mut by_bytes = table("alder", "bytes", vec![shard(1, run(3, 50 * MIB, 0))]);
    by_bytes.policy.merge_at_bytes = 150 * MIB;
    let tables = [by_bytes, by_count];
    assert_eq!(merges(&plan(&tables, &budgets(), at(1))), []);
    let made = plan(&tables, &budgets(), at(2));
    let mut started = merges(&made);
    started.sort();
    assert_eq!(
        started,
        [("bytes", Trigger::Bytes), ("count", Trigger::Count)]
    );
}

#[test]
fn a_request_merges_what_was_pending_then_and_nothing_later() {
    let asked = requested(table("alder", "maze", vec![shard(1, run(1, MIB, 0))]));
    let made = plan(std::slice::from_ref(&asked), &budgets(), at(0));
    assert_eq!(merges(&made), [("maze", Trigger::Requested)]);
    let mut later = asked;
    seen(&mut later).shards = vec![shard(1, vec![generation(2, MIB, 1)])];
    assert_eq!(merges(&plan(&[later], &budgets(), at(2))), []);
}

#[test]
fn the_rest_of_a_cut_merge_follows_at_once() {
    let mut view = table("alder", "maze", vec![shard(1, run(3, MIB, 0))]);
    view.past.merge_started = Some(at(5));
    view.past.merge_cut = Some(at(5));
    let made = plan(&[view.clone()], &budgets(), at(6));
    assert_eq!(merges(&made), [("maze", Trigger::Tail)]);
    view.past.merge_cut = None;
    assert_eq!(merges(&plan(&[view], &budgets(), at(6))), []);
}

#[test]
fn an_unknown_flush_counts_from_its_first_sight_and_a_fast_store_clock_does_not_delay() {
    let mut unknown = generation(1, MIB, 0);
    unknown.flushed_at = None;
    let mut ahead = generation(1, MIB, 0);
    ahead.flushed_at = Some(at(500));
    for pending in [unknown, ahead] {
        let tables = [table("alder", "maze", vec![shard(1, vec![pending])])];
        assert_eq!(plan(&tables, &budgets(), at(1)).wake_at, Some(at(30)));
    }
}

#[test]
fn first_merges_of_tables_found_together_are_spread_and_none_is_later_than_half_the_target() {
    let wakes: Vec<Timestamp> = (0..50)
        .map(|seed| {
            let mut view = table("alder", "maze", vec![shard(1, run(1, MIB, 0))]);
            view.past.merge_started = None;
            view.jitter = seed;
            plan(&[view], &budgets(), at(0)).wake_at.expect("pending")
        })
        .collect();
    assert!(wakes.iter().all(|at_| *at_ >= at(15) && *at_ <= at(30)));
    let distinct: std::collections::BTreeSet<_> = wakes.iter().collect();
    assert!(distinct.len() > 45);
    let first_half = wakes.iter().filter(|w| **w < at(22)).count();
    assert!((10..40).contains(&first_half), "{first_half} of 50");
}

#[test]
fn a_chunk_takes_the_oldest_first_across_shards_up_to_its_count() {
    let mut view = requested(table(
        "alder",
        "maze",
        vec![
            shard(2, vec![generation(1, MIB, -9), generation(2, MIB, -4)]),
            shard(
                1,
                vec![
                    generation(7, MIB, -8),
                    generation(8, MIB, -7),
                    generation(9, MIB, -1),
                ],
            ),
        ],
    ));
    view.policy.max_generations_per_merge = 4;
    let made = plan(&[view], &budgets(), at(0));
    assert_eq!(chunk_of(&made), (vec![(1, 8, 2), (2, 2, 2)], true));
}

#[test]
fn a_generation_over_the_bytes_cap_goes_alone() {
    let mut view = requested(table(
        "alder",
        "maze",
        vec![shard(
            1,
            vec![generation(1, 900 * MIB, -9), generation(2, 0, -8)],
        )],
    ));
    view.policy.max_bytes_per_merge = 256 * MIB;
    let made = plan(&[view], &budgets(), at(0));
    assert_eq!(chunk_of(&made), (vec![(1, 1, 1)], true));
    assert_eq!(made.start[0].bytes, 900 * MIB);
}

#[test]
fn rows_whose_commit_takes_more_than_they_do_themselves_are_cut_by_it() {
    let mut pending = run(4, MIB, -9);
    for generation in &mut pending {
        generation.commit_bytes = 100 * MIB;
    }
    let mut view = requested(table("alder", "maze", vec![shard(1, pending)]));
    view.policy.max_bytes_per_merge = 256 * MIB;
    let made = plan(&[view], &budgets(), at(0));
    assert_eq!(chunk_of(&made), (vec![(1, 2, 2)], true));
    assert_eq!(made.start[0].bytes, 200 * MIB);
}

#[test]
fn unknown_bytes_count_as_a_quarter_of_the_largest_memtable() {
    let mut pending = run(9, 0, -20);
    pending.iter_mut().for_each(|g| g.bytes = None);
    let view = requested(table("alder", "maze", vec![shard(1, pending)]));
    let made = plan(&[view], &budgets(), at(0));
    assert_eq!(chunk_of(&made), (vec![(1, 4, 4)], true));
    assert_eq!(made.start[0].bytes, 4 * UNKNOWN_BYTES);
}

#[test]
fn a_quarantined_generation_holds_its_shard_and_others_flow_on() {
    let mut stuck = shard(1, run(5, MIB, -20));
    stuck.quarantined = Some(Generation(3));
    let tables = [requested(table(
        "alder",
        "maze",
        vec![stuck, shard(2, run(5, MIB, -20))],
    ))];
    let made = plan(&tables, &budgets(), at(0));
    assert_eq!(chunk_of(&made), (vec![(1, 2, 2), (2, 5, 5)], false));
    assert_eq!(why(&made, "maze"), Reason::Quarantined);
}

#[test]
fn a_number_that_is_listed_twice_stops_its_shard_before_it() {
    let mut twice = run(4, MIB, -20);
    twice[2].generation = Generation(2);
    twice[2].path = "99999999_gen_2".into();
    let tables = [requested(table("alder", "maze", vec![shard(1, twice)]))];
    let made = plan(&tables, &budgets(), at(0));
    assert_eq!(chunk_of(&made), (vec![(1, 1, 1)], false));
    assert_eq!(why(&made, "maze"), Reason::DuplicateGeneration);
}

#[test]
fn merges_that_fail_in_a_row_shrink_to_one_generation() {
    let mut view = requested(table("alder", "maze", vec![shard(1, run(40, MIB, -50))]));
    let mut counts = Vec::new();
    for failures in 0..8 {
        view.merge_trouble.backoff.failures = failures;
        counts.push(chunk_of(&plan(&[view.clone()], &budgets(), at(0))).0[0].2);
    }
    assert_eq!(counts, [40, 32, 16, 8, 4, 2, 1, 1]);
}

#[test]
fn a_merge_is_cut_where_it_would_take_too_long() {
    let mut view = requested(table("alder", "maze", vec![shard(1, run(64, MIB, -90))]));
    for _ in 0..30 {
        view.history = view.history.merged(10, 10 * MIB, secs(20));
    }
    let made = plan(&[view], &budgets(), at(0));
    let (chunk, cut) = chunk_of(&made);
    assert!(chunk[0].2 > 1 && chunk[0].2 < 64 && cut, "{chunk:?}");
    assert!(made.start[0].predicted <= SLICE);
}
