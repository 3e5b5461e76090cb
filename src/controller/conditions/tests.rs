//! What the conditions must be, whoever reads them: kubectl, kstatus, Flux.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn known(cause: Cause) -> Known {
    Known {
        generation: 3,
        acted: true,
        deleting: false,
        cause,
        message: "It is so; do this.".into(),
        also: vec![],
        observed: Some(at(0)),
        oldest: None,
        target: Duration::from_secs(60),
    }
}

fn plan(reason: Reason) -> Known {
    known(Cause::Plan(reason))
}

fn one<'a>(all: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    all.iter().find(|c| c.type_ == kind)
}

fn status(all: &[Condition], kind: &str) -> String {
    one(all, kind).map_or("absent".into(), |c| c.status.clone())
}

/// What kstatus' generic rules make of an object with conditions.
fn judged(all: &[Condition], observed: i64, generation: i64, deleting: bool) -> &'static str {
    if deleting {
        return "Terminating";
    }
    if observed != generation {
        return "InProgress";
    }
    if status(all, "Reconciling") == "True" {
        return "InProgress";
    }
    if status(all, "Stalled") == "True" {
        return "Failed";
    }
    match status(all, "Ready").as_str() {
        "True" => "Current",
        _ => "InProgress",
    }
}

#[test]
fn kstatus_makes_of_every_reason_what_the_table_says() {
    for cause in Cause::all() {
        let all = conditions(&known(cause), &[], at(1));
        assert_eq!(
            judged(&all, 3, 3, false),
            kstatus(cause.row()),
            "{}",
            cause.as_str()
        );
        for c in &all {
            assert_eq!(c.observed_generation, Some(3));
            assert!(!c.reason.is_empty() && !c.message.is_empty());
        }
    }
}

#[test]
fn abnormal_conditions_are_absent_while_they_do_not_hold() {
    let all = conditions(&plan(Reason::Fresh), &[], at(1));
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|c| c.status == "True"));
}

#[test]
fn a_table_is_not_fresh_only_past_its_deadline() {
    let mut late = plan(Reason::Queued);
    late.oldest = Some(at(0));
    for (now, fresh) in [(60, "True"), (61, "False")] {
        late.observed = Some(at(now));
        let all = conditions(&late, &[], at(now));
        assert_eq!(status(&all, "Fresh"), fresh);
        assert_eq!(status(&all, "Ready"), "True");
        assert_eq!(one(&all, "Fresh").unwrap().reason, "Queued");
    }
}

#[test]
fn nobody_knows_whether_a_table_is_fresh_while_its_store_cannot_be_read() {
    let mut down = plan(Reason::StoreUnreachable);
    down.oldest = Some(at(-600));
    let all = conditions(&down, &[], at(1));
    assert_eq!(status(&all, "Fresh"), "Unknown");
    assert_eq!(status(&all, "StorageReachable"), "False");
    // Also where something else comes first.
    let mut suspended = plan(Reason::Suspended);
    suspended.also = vec![Reason::StoreUnreachable];
    let all = conditions(&suspended, &[], at(1));
    assert_eq!(status(&all, "Fresh"), "Unknown");
    assert_eq!(status(&all, "StorageReachable"), "False");
    assert_eq!(status(&all, "Ready"), "True");
}

#[test]
fn an_observation_of_long_ago_says_nothing_of_now() {
    let all = conditions(&plan(Reason::LanceError), &[], at(301));
    assert_eq!(status(&all, "Fresh"), "Unknown");
    assert_eq!(one(&all, "Fresh").unwrap().reason, "NotObserved");
}

#[test]
fn an_object_that_nobody_has_seen_yet_is_neither_fresh_nor_ready() {
    let mut new = plan(Reason::NeverObserved);
    (new.acted, new.observed) = (false, None);
    let all = conditions(&new, &[], at(1));
    for kind in ["Ready", "Fresh", "StorageReachable"] {
        assert_eq!(status(&all, kind), "Unknown", "{kind}");
    }
    assert_eq!(status(&all, "Reconciling"), "True");
}

#[test]
fn waiting_for_memory_a_slot_or_its_owner_keeps_ready() {
    for reason in [Reason::Queued, Reason::BudgetWait, Reason::Suspended] {
        let all = conditions(&plan(reason), &[], at(1));
        assert_eq!(status(&all, "Ready"), "True", "{reason}");
        assert_eq!(status(&all, "Stalled"), "absent", "{reason}");
        assert_eq!(status(&all, "Reconciling"), "absent", "{reason}");
    }
}

#[test]
fn what_somebody_else_may_mend_is_waited_for_and_never_stalled() {
    for reason in [
        Reason::TableNotFound,
        Reason::NotMemWal,
        Reason::CredentialsMissing,
        Reason::WentBack,
        Reason::Quarantined,
    ] {
        let all = conditions(&plan(reason), &[], at(1));
        assert_eq!(status(&all, "Ready"), "False", "{reason}");
        assert_eq!(status(&all, "Stalled"), "absent", "{reason}");
    }
}

#[test]
fn transition_times_move_only_with_the_status() {
    let first = conditions(&plan(Reason::Fresh), &[], at(1));
    let second = conditions(&plan(Reason::Queued), &first, at(9));
    for kind in ["Ready", "Fresh", "StorageReachable"] {
        let (a, b) = (one(&first, kind).unwrap(), one(&second, kind).unwrap());
        assert_eq!(a.last_transition_time, b.last_transition_time, "{kind}");
    }
    let third = conditions(&plan(Reason::StoreUnreachable), &second, at(20));
    let moved = &one(&third, "Fresh").unwrap().last_transition_time;
    assert_eq!(moved.0, at(20));
}

#[test]
fn a_deletion_reconciles() {
    let mut going = plan(Reason::Merging);
    going.deleting = true;
    let all = conditions(&going, &[], at(1));
    assert_eq!(status(&all, "Reconciling"), "True");
    assert_eq!(judged(&all, 3, 3, true), "Terminating");
}

#[test]
fn a_message_is_cut_between_characters() {
    let long = "ö".repeat(900);
    let cut = shortened(long);
    assert!(cut.len() <= LONGEST_MESSAGE && cut.ends_with('…'));
}

#[test]
fn the_table_in_the_docs_is_the_codes() {
    let docs = include_str!("../../../docs/conditions.md");
    assert!(
        docs.contains(&reference()),
        "docs/conditions.md is not of this code; its table should be:\n{}",
        reference()
    );
}
