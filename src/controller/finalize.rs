//! The finalizer: there only while the policy asks for it, and gone in time whatever is broken.
//!
//! Lives here: the pure decision whether it is put on, stays, or is taken off. May use: `api`, jiff. Must never come in:
//! a store, a Secret, or anything else without which a deletion could not end (contract 19).

use jiff::{SignedDuration, Timestamp};

use super::specs::FINALIZER;
use crate::api::DeletionPolicy;

/// What is known of the object.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// What its spec asks for; `None` where that cannot be read.
    pub policy: Option<DeletionPolicy>,
    /// Whether the finalizer is there.
    pub there: bool,
    /// Since when it is being deleted.
    pub deleted: Option<Timestamp>,
    /// How long a deletion waits.
    pub timeout: SignedDuration,
    /// Whether the engine works on its table at all.
    pub worked_on: bool,
    /// When the table was last observed, and what was pending then.
    pub observed: Option<(Timestamp, u64)>,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Leave,
    /// Put it on.
    Add,
    /// Take it off; the policy does not ask for it.
    Drop,
    /// Take it off: nothing is pending any more.
    Merged,
    /// Take it off: time is up, or nothing can be merged. What is pending stays in the table.
    GiveUp,
}

/// Decides.
pub fn step(facts: Facts, now: Timestamp) -> Step {
    let asks = facts.policy == Some(DeletionPolicy::MergePending);
    let Some(deleted) = facts.deleted else {
        return match (asks, facts.there) {
            (true, false) => Step::Add,
            (false, true) => Step::Drop,
            _ => Step::Leave,
        };
    };
    if !facts.there {
        return Step::Leave;
    }
    if !asks {
        return Step::Drop;
    }
    let merged = |(at, pending): (Timestamp, u64)| pending == 0 && at >= deleted;
    if facts.observed.is_some_and(merged) {
        return Step::Merged;
    }
    match !facts.worked_on || now.duration_since(deleted) >= facts.timeout {
        true => Step::GiveUp,
        false => Step::Leave,
    }
}

/// The list of finalizers with ours in it, or without.
pub fn list(before: &[String], with: bool) -> Vec<String> {
    let others = before.iter().filter(|f| *f != FINALIZER).cloned();
    others.chain(with.then(|| FINALIZER.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn facts(policy: DeletionPolicy, there: bool, deleted: Option<i64>) -> Facts {
        Facts {
            policy: Some(policy),
            there,
            deleted: deleted.map(at),
            timeout: SignedDuration::from_secs(60),
            worked_on: true,
            observed: None,
        }
    }

    #[test]
    fn it_is_there_only_while_the_policy_asks() {
        use DeletionPolicy::{MergePending, Retain};
        let steps = [
            (Retain, false, None, Step::Leave),
            (MergePending, false, None, Step::Add),
            (MergePending, true, None, Step::Leave),
            (Retain, true, None, Step::Drop),
            (Retain, true, Some(0), Step::Drop),
            (MergePending, false, Some(0), Step::Leave),
        ];
        for (policy, there, deleted, wanted) in steps {
            assert_eq!(step(facts(policy, there, deleted), at(1)), wanted);
        }
    }

    #[test]
    fn a_deletion_waits_for_a_look_from_after_it_that_finds_nothing_pending() {
        let mut f = facts(DeletionPolicy::MergePending, true, Some(10));
        for (observed, wanted) in [
            (None, Step::Leave),
            (Some((at(9), 0)), Step::Leave),
            (Some((at(11), 2)), Step::Leave),
            (Some((at(11), 0)), Step::Merged),
        ] {
            f.observed = observed;
            assert_eq!(step(f, at(12)), wanted);
        }
    }

    #[test]
    fn a_deletion_ends_in_time_whatever_is_broken() {
        let mut f = facts(DeletionPolicy::MergePending, true, Some(0));
        assert_eq!(step(f, at(59)), Step::Leave);
        assert_eq!(step(f, at(60)), Step::GiveUp);
        // Without leave, credentials or a spec there is nothing to wait for.
        f.worked_on = false;
        assert_eq!(step(f, at(1)), Step::GiveUp);
        f.policy = None;
        assert_eq!(step(f, at(1)), Step::Drop);
    }

    #[test]
    fn other_finalizers_are_left_alone() {
        let before = ["other/one".to_owned(), FINALIZER.to_owned()];
        assert_eq!(list(&before, false), ["other/one"]);
        assert_eq!(list(&before, true), ["other/one", FINALIZER]);
    }
}
