//! One example for each rule of the plan.
//!
//! Lives here: small tables made by hand, and the plan that each must give. May use: this room's fixtures. Must never
//! come in: what holds of every plan (`properties`) or only over time (`simulation`).

use std::time::Duration;

use jiff::Timestamp;

use super::fixtures::{
    MIB, at, budgets, generation, observation, secs, shard, shard_id, start, table,
};
use super::*;

fn why(made: &Plan, name: &str) -> Reason {
    made.why_not_now[&TableId::from(name)].reason
}

fn merges(made: &Plan) -> Vec<(&str, Trigger)> {
    made.start
        .iter()
        .filter(|w| w.task.kind() == Kind::Merge)
        .map(|w| (&*w.table.0, w.trigger))
        .collect()
}

fn kinds(made: &Plan) -> Vec<Kind> {
    made.start.iter().map(|w| w.task.kind()).collect()
}

/// `(shard, up_to, count)` of the plan's first work, and whether it was cut.
fn chunk_of(made: &Plan) -> (Vec<(u128, u64, u64)>, bool) {
    let Task::Merge { shards, cut } = &made.start[0].task else {
        panic!("the first work is no merge: {:?}", made.start[0]);
    };
    let plain = |s: &ShardPrefix| (s.shard.as_u128(), s.up_to.0, s.count);
    (shards.iter().map(plain).collect(), *cut)
}

fn seen(view: &mut TableView) -> &mut Observation {
    view.observation.as_mut().expect("the fixture has one")
}

/// `count` generations of `bytes` bytes, flushed one second apart from `flushed` on.
fn run(count: u64, bytes: u64, flushed: i64) -> Vec<PendingGeneration> {
    (0..count)
        .map(|i| generation(i + 1, bytes, flushed + i.cast_signed()))
        .collect()
}

fn requested(mut view: TableView) -> TableView {
    view.requested = Some(at(0));
    view
}

// When a merge starts.

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

// What a merge takes.

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
        view.backoff.failures = failures;
        view.failure = Some(Failure {
            during: Some(Kind::Merge),
            reason: Reason::BackingOff,
            at: at(-1),
            detail: String::new(),
        });
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

// Who goes first.

#[test]
fn the_earliest_deadline_goes_first() {
    let mut soon = table("alder", "soon", vec![shard(1, run(1, MIB, -10))]);
    soon.policy.target = secs(20);
    let late = table("alder", "late", vec![shard(1, run(1, MIB, -40))]);
    let mut shared = budgets();
    shared.slots = 1;
    let made = plan(&[late, soon], &shared, at(0));
    assert_eq!(merges(&made), [("soon", Trigger::Age)]);
    assert_eq!(why(&made, "late"), Reason::Queued);
}

#[test]
fn of_equal_deadlines_the_cheaper_merge_per_generation_goes_first() {
    let dear = table(
        "alder",
        "a-dear",
        vec![shard(1, vec![generation(1, 200 * MIB, -40)])],
    );
    let cheap = table("alder", "b-cheap", vec![shard(1, run(3, MIB, -40))]);
    let mut shared = budgets();
    shared.slots = 1;
    assert_eq!(
        merges(&plan(&[dear, cheap], &shared, at(0))),
        [("b-cheap", Trigger::Age)]
    );
}

#[test]
fn among_equals_the_namespace_that_got_least_goes_first_and_takes_turns() {
    let one = |namespace, name| table(namespace, name, vec![shard(1, run(1, MIB, -80))]);
    let tables = [
        one("alder", "a1"),
        one("alder", "a2"),
        one("alder", "a3"),
        one("birch", "b1"),
    ];
    let mut shared = budgets();
    shared.slots = 2;
    let names = |made: &Plan| {
        merges(made)
            .iter()
            .map(|m| m.0.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&plan(&tables, &shared, at(0))), ["a1", "b1"]);
    shared.served.charge(&"alder".into(), 500 * MIB);
    assert_eq!(names(&plan(&tables, &shared, at(0))), ["b1", "a1"]);
}

#[test]
fn a_table_that_is_far_behind_takes_turns_with_one_that_can_still_be_in_time() {
    let mut behind = table("alder", "behind", vec![shard(1, run(60, MIB, -900))]);
    behind.past.merge_started = Some(at(-1));
    behind.past.merge_cut = Some(at(-1));
    let timely = table("alder", "timely", vec![shard(1, run(1, MIB, -35))]);
    let mut shared = budgets();
    shared.slots = 1;
    assert_eq!(
        merges(&plan(&[behind, timely], &shared, at(0))),
        [("timely", Trigger::Age)]
    );
}

#[test]
fn what_lacks_bytes_is_overtaken_for_a_while_and_then_waited_for() {
    let big = requested(table("alder", "big", vec![shard(1, run(1, 200 * MIB, -1))]));
    let mut small = table("alder", "small", vec![shard(1, run(1, 10 * MIB, -35))]);
    small.policy.target = secs(70);
    let mut busy = table("birch", "busy", vec![]);
    busy.running.push(Running {
        kind: Kind::Merge,
        bytes: 100 * MIB,
        started: at(-2),
    });
    let tables = [big, busy, small];
    let shared = Budgets::new(256 * MIB, 4, 4);
    let made = plan(&tables, &shared, at(1));
    assert_eq!(merges(&made), [("small", Trigger::Age)]);
    assert_eq!(why(&made, "big"), Reason::BudgetWait);
    let made = plan(&tables, &shared, at(16));
    assert_eq!(merges(&made), []);
    assert_eq!(why(&made, "small"), Reason::BudgetWait);
}

#[test]
fn what_is_larger_than_the_whole_budget_runs_alone() {
    let huge = requested(table(
        "alder",
        "huge",
        vec![shard(1, run(1, 900 * MIB, -1))],
    ));
    let small = requested(table("alder", "small", vec![shard(1, run(1, MIB, -1))]));
    let mut tables = [huge, small];
    let shared = Budgets::new(256 * MIB, 4, 4);
    tables[1].running.push(Running {
        kind: Kind::Merge,
        bytes: MIB,
        started: at(-2),
    });
    assert_eq!(merges(&plan(&tables, &shared, at(0))), []);
    tables[1].running.clear();
    let mut tables = [tables[0].clone(), tables[1].clone()];
    tables[1].requested = None;
    let made = plan(&tables, &shared, at(0));
    assert_eq!(merges(&made), [("huge", Trigger::Requested)]);
    start(&mut tables, &made.start, at(0));
    let made = plan(&tables, &shared, at(40));
    assert_eq!(why(&made, "small"), Reason::BudgetWait);
}

// The rest of the work.

#[test]
fn merged_generations_are_drained_after_the_delay_up_to_one_that_an_index_lacks() {
    let merged = |number, at_, caught_up| MergedGeneration {
        generation: Generation(number),
        merged_at: at(at_),
        caught_up,
    };
    let mut listed = shard(1, vec![]);
    listed.watermark = Some(Generation(4));
    listed.merged = vec![
        merged(1, 0, true),
        merged(2, 5, true),
        merged(3, 6, false),
        merged(4, 6, true),
    ];
    let tables = [table("alder", "maze", vec![listed])];
    assert_eq!(plan(&tables, &budgets(), at(59)).wake_at, Some(at(60)));
    let made = plan(&tables, &budgets(), at(60));
    assert_eq!(
        made.start[0].task,
        Task::Drain {
            shards: vec![(shard_id(1), Generation(1))]
        }
    );
    let made = plan(&tables, &budgets(), at(700));
    assert_eq!(
        made.start[0].task,
        Task::Drain {
            shards: vec![(shard_id(1), Generation(2))]
        }
    );
    assert_eq!(made.wake_at, None);
}

#[test]
fn reclaim_waits_for_each_directory_and_runs_beside_a_merge() {
    let mut due = shard(1, run(1, MIB, 0));
    due.reclaimable = vec![
        Reclaimable {
            path: "cc_gen_2".into(),
            due: at(90),
        },
        Reclaimable {
            path: "aa_gen_1".into(),
            due: at(30),
        },
    ];
    let tables = [table("alder", "maze", vec![due])];
    let made = plan(&tables, &budgets(), at(30));
    assert_eq!(kinds(&made), [Kind::Reclaim, Kind::Merge]);
    assert_eq!(
        made.start[0].task,
        Task::Reclaim {
            items: vec![(shard_id(1), "aa_gen_1".into())]
        }
    );
}

#[test]
fn upkeep_yields_to_a_due_merge_until_its_patience_ends() {
    let mut view = table("alder", "maze", vec![shard(1, run(1, MIB, 0))]);
    seen(&mut view).small_fragments = 20;
    view.past.compact_started = Some(at(0));
    let tables = [view];
    assert_eq!(kinds(&plan(&tables, &budgets(), at(40))), [Kind::Merge]);
    // Once both wait for too long they take turns: the permit goes to whoever is overdue for longer.
    let turn = at(0) + PATIENCE;
    assert_eq!(kinds(&plan(&tables, &budgets(), turn)), [Kind::Merge]);
    let mut tables = tables;
    tables[0].past.merge_started = Some(turn);
    let made = plan(&tables, &budgets(), turn);
    assert_eq!(kinds(&made), [Kind::Compact]);
    assert_eq!(why(&made, "maze"), Reason::Upkeep);
}

#[test]
fn upkeep_runs_in_the_gap_before_a_merge_only_if_it_fits() {
    let mut view = table("alder", "maze", vec![shard(1, run(1, MIB, 0))]);
    seen(&mut view).small_fragments = 16;
    let tables = [view];
    assert_eq!(kinds(&plan(&tables, &budgets(), at(10))), [Kind::Compact]);
    assert_eq!(kinds(&plan(&tables, &budgets(), at(28))), []);
}

#[test]
fn upkeep_that_found_nothing_to_do_rests_until_the_table_moves() {
    let mut view = table("alder", "maze", vec![shard(1, vec![])]);
    seen(&mut view).small_fragments = 99;
    seen(&mut view).unindexed_rows = 5;
    view.past.compact_settled = Some(7);
    view.past.optimize_settled = Some(7);
    assert_eq!(kinds(&plan(&[view.clone()], &budgets(), at(0))), []);
    seen(&mut view).base_version = 8;
    assert_eq!(kinds(&plan(&[view], &budgets(), at(0))), [Kind::Compact]);
}

#[test]
fn upkeep_leaves_half_of_the_slots_to_merges() {
    let mut tables: Vec<TableView> = (0..6)
        .map(|i| table("alder", &format!("maze-{i}"), vec![]))
        .collect();
    tables.iter_mut().for_each(|t| seen(t).small_fragments = 50);
    assert_eq!(kinds(&plan(&tables, &budgets(), at(0))), [Kind::Compact; 2]);
}

#[test]
fn old_versions_live_longer_than_any_work_and_the_grace_whatever_was_asked() {
    let mut view = table("alder", "maze", vec![]);
    view.policy.versions_older_than = secs(5);
    seen(&mut view).old_versions_due = Some(at(0));
    let made = plan(&[view.clone()], &budgets(), at(0));
    let older_than = view.policy.grace + LONGEST_WORK;
    assert_eq!(
        made.start[0].task,
        Task::CleanVersions {
            older_than,
            keep_at_least: 1
        }
    );
}

#[test]
fn a_table_that_went_back_is_left_alone_until_somebody_acknowledges_it() {
    let mut back = shard(1, run(3, MIB, -90));
    back.reclaimable = vec![Reclaimable {
        path: "aa_gen_1".into(),
        due: at(-5),
    }];
    back.anomalies = vec![Anomaly {
        reason: Reason::WentBack,
        detail: "2 was 9".into(),
    }];
    let mut view = table("alder", "maze", vec![back]);
    seen(&mut view).old_versions_due = Some(at(-5));
    let made = plan(&[view.clone()], &budgets(), at(0));
    assert_eq!((kinds(&made), made.wake_at), (vec![], None));
    assert_eq!(why(&made, "maze"), Reason::WentBack);
    seen(&mut view).shards[0].anomalies.clear();
    assert_eq!(kinds(&plan(&[view], &budgets(), at(0))).len(), 2);
}

// What is told.

#[test]
fn a_table_that_nobody_writes_costs_nothing_and_wakes_nobody() {
    let made = plan(
        &[table("alder", "maze", vec![shard(1, vec![])])],
        &budgets(),
        at(9_999_999),
    );
    assert_eq!((made.start.len(), made.wake_at), (0, None));
    assert_eq!(why(&made, "maze"), Reason::Fresh);
}

#[test]
fn what_was_never_seen_and_what_could_not_be_seen_are_not_fresh() {
    let mut view = table("alder", "maze", vec![]);
    view.observation = None;
    assert_eq!(
        why(&plan(&[view.clone()], &budgets(), at(0)), "maze"),
        Reason::NeverObserved
    );
    view.observation = Some(observation(vec![shard(1, run(1, MIB, -90))]));
    view.failure = Some(Failure {
        during: None,
        reason: Reason::StoreUnreachable,
        at: at(-1),
        detail: "no answer within 10s".into(),
    });
    let made = plan(&[view], &budgets(), at(0));
    assert_eq!(
        (kinds(&made), why(&made, "maze")),
        (vec![], Reason::StoreUnreachable)
    );
    let message = &made.why_not_now[&TableId::from("maze")].message;
    assert!(message.contains("no answer within 10s"), "{message}");
}

#[test]
fn a_compaction_that_fails_holds_no_merge_up() {
    let mut view = table("alder", "maze", vec![shard(1, run(1, MIB, -40))]);
    seen(&mut view).small_fragments = 99;
    view.backoff_aside = Backoff::default().failed(at(0), 1.0);
    let made = plan(&[view.clone()], &budgets(), at(0));
    assert_eq!(kinds(&made), [Kind::Merge]);
    view.backoff = Backoff::default().failed(at(0), 1.0);
    let made = plan(&[view], &budgets(), at(0));
    assert_eq!(
        (kinds(&made), why(&made, "maze")),
        (vec![], Reason::BackingOff)
    );
    assert_eq!(made.wake_at, Some(at(1)));
}

#[test]
fn an_observation_from_before_the_last_work_is_not_planned_from() {
    let mut view = table("alder", "maze", vec![shard(1, run(1, MIB, -40))]);
    view.past.ended = Some(at(1));
    let made = plan(&[view.clone()], &budgets(), at(2));
    assert_eq!(
        (kinds(&made), why(&made, "maze")),
        (vec![], Reason::Observing)
    );
    seen(&mut view).observed_at = at(1);
    assert_eq!(kinds(&plan(&[view], &budgets(), at(2))), [Kind::Merge]);
}

#[test]
fn a_tail_is_named_when_it_waits_and_when_its_writer_seems_gone() {
    let mut log = shard(1, vec![]);
    log.tail = Some(Tail {
        entries: 4,
        since: at(0),
        unchanged_since: at(20),
    });
    let tables = [table("alder", "maze", vec![log])];
    let at_each = |second| why(&plan(&tables, &budgets(), at(second)), "maze");
    assert_eq!(at_each(59), Reason::Fresh);
    assert_eq!(at_each(60), Reason::TailWaiting);
    assert_eq!(at_each(620), Reason::TailStranded);
    assert_eq!(plan(&tables, &budgets(), at(59)).wake_at, Some(at(60)));
    assert_eq!(plan(&tables, &budgets(), at(60)).wake_at, Some(at(620)));
}

#[test]
fn a_suspended_table_says_so_first_and_whatever_else_holds_after_it() {
    let mut view = table("alder", "maze", vec![shard(1, run(1, MIB, -90))]);
    view.suspended = true;
    seen(&mut view).anomalies = vec![Anomaly {
        reason: Reason::AutoCleanup,
        detail: String::new(),
    }];
    let made = plan(&[view], &budgets(), at(0));
    let said = &made.why_not_now[&TableId::from("maze")];
    assert_eq!(
        (said.reason, &said.also),
        (Reason::Suspended, &vec![Reason::AutoCleanup])
    );
    assert_eq!(made.start, []);
}

#[test]
fn a_message_rests_while_nothing_happens() {
    let tables = [table("alder", "maze", vec![shard(1, run(2, MIB, 0))])];
    let mut shared = budgets();
    shared.slots = 0;
    for pair in [[at(2), at(29)], [at(31), at(900)]] {
        let [a, b] = pair.map(|now| plan(&tables, &shared, now).why_not_now);
        assert_eq!(a, b);
    }
}

#[test]
fn the_queue_wait_is_a_slow_average_of_what_merges_waited() {
    let waited = (0..60).fold(Duration::ZERO, |w, _| Budgets::waited(w, at(0), at(10)));
    assert!(waited > secs(9) && waited <= secs(10), "{waited:?}");
    assert!(Budgets::waited(waited, at(5), at(0)) < waited);
}
