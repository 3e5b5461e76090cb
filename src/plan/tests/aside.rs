//! Drain, reclaim and upkeep beside merges.
//!
//! Lives here: one example for each rule, a small table made by hand and the plan that it must give. May use: this
//! room's fixtures. Must never come in: what holds of every plan (`properties`) or only over time (`simulation`).

use super::fixtures::*;
use crate::plan::*;

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
fn indexes_are_brought_up_to_date_after_a_rest_and_the_plan_wakes_for_it() {
    let mut view = table("alder", "maze", vec![]);
    seen(&mut view).unindexed_rows = 5;
    view.past.optimize_started = Some(at(0));
    let made = plan(std::slice::from_ref(&view), &budgets(), at(1));
    assert_eq!((kinds(&made), made.wake_at), (vec![], Some(at(60))));
    let made = plan(&[view], &budgets(), at(60));
    assert_eq!(kinds(&made), [Kind::OptimizeIndexes]);
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
