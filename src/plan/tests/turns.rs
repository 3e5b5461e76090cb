//! Who goes first, and who fits.
//!
//! Lives here: one example for each rule, a small table made by hand and the plan that it must give. May use: this
//! room's fixtures. Must never come in: what holds of every plan (`properties`) or only over time (`simulation`).

use super::fixtures::*;
use crate::plan::*;

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
fn the_wake_comes_when_the_order_of_those_that_wait_changes() {
    // What waits for bytes holds back all that comes after it, until that is as overdue and its namespace got less.
    let first = shard(1, vec![generation(1, 200 * MIB, -40)]);
    let mut busy = table("cedar", "busy", vec![]);
    busy.running.push(Running {
        kind: Kind::Merge,
        bytes: 100 * MIB,
        started: at(-2),
    });
    let tables = [
        table("alder", "big", vec![first]),
        table("birch", "small", vec![shard(1, run(1, MIB, -35))]),
        busy,
    ];
    let mut shared = Budgets::new(256 * MIB, 4, 4);
    shared.served.charge(&"alder".into(), 500 * MIB);
    for (now, wake) in [(10, 20), (20, 25)] {
        let made = plan(&tables, &shared, at(now));
        assert_eq!((merges(&made), made.wake_at), (vec![], Some(at(wake))));
    }
    let made = plan(&tables, &shared, at(25));
    assert_eq!(merges(&made), [("small", Trigger::Age)]);
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

#[test]
fn the_queue_wait_is_a_slow_average_of_what_merges_waited() {
    let waited = (0..60).fold(std::time::Duration::ZERO, |w, _| {
        Budgets::waited(w, at(0), at(10))
    });
    assert!(waited > secs(9) && waited <= secs(10), "{waited:?}");
    assert!(Budgets::waited(waited, at(5), at(0)) < waited);
}
