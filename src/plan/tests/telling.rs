//! What a table says of itself, and when it is left alone.
//!
//! Lives here: one example for each rule, a small table made by hand and the plan that it must give. May use: this
//! room's fixtures. Must never come in: what holds of every plan (`properties`) or only over time (`simulation`).

use super::fixtures::*;
use crate::plan::*;

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
    let detail = "no answer within 10s".to_owned();
    view.look_failed(Reason::StoreUnreachable, detail, at(-1), 1.0);
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
    view.aside_trouble.backoff = Backoff::default().failed(at(0), 1.0);
    let made = plan(&[view.clone()], &budgets(), at(0));
    assert_eq!(kinds(&made), [Kind::Merge]);
    view.merge_trouble.backoff = Backoff::default().failed(at(0), 1.0);
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
fn a_message_says_what_is_so_and_what_comes_next() {
    let mut view = table("alder", "maze", vec![shard(1, run(1, 5 * MIB / 2, 0))]);
    let message = |view: &TableView| {
        let made = plan(std::slice::from_ref(view), &budgets(), at(1));
        made.why_not_now[&view.id].message.clone()
    };
    assert_eq!(
        message(&view),
        "Rows are pending and their merge starts by itself; nothing is to be done (1 generation \
         with 2.5Mi pending since 2001-09-09T01:46:40Z, merge starts at 2001-09-09T01:47:10Z)."
    );
    seen(&mut view).shards[0].pending = run(3, MIB, 0);
    seen(&mut view).shards[0].pending[1].bytes = None;
    assert!(message(&view).contains("(3 generations of unknown size pending since"));
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
