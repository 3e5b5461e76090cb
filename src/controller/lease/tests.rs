//! Proofs of the election's rules, and of the loop that runs them.
//!
//! Lives here: single rules by hand, an invariant under random schedules (delays, lost answers, stopped processes,
//! skewed clocks), and the loop over a Lease in memory. May use: the room, proptest, tokio. Must never
//! come in: an API server; the cluster's world has a real one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn wall(n: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + n).unwrap()
}

fn elector(name: &str) -> Elector {
    Elector::new(name, Timing::default())
}

/// Lets an elector look and write, with nothing between.
fn turn(e: &mut Elector, now: Mono, wall: Timestamp, lease: &mut Option<Record>) {
    match e.look(now, wall, lease.as_ref()) {
        Step::Wait => {}
        Step::Create(record) | Step::Replace(record) => {
            *lease = Some(record.clone());
            e.wrote(now, now, record);
        }
    }
}

#[test]
fn the_first_to_come_creates_the_lease_and_leads() {
    let (mut lease, mut a) = (None, elector("a"));
    turn(&mut a, s(0), wall(0), &mut lease);
    assert!(a.leads(s(9)));
    let lease = lease.unwrap();
    assert_eq!((lease.holder.as_str(), lease.transitions), ("a", 0));
    assert_eq!(lease.duration, s(15));
}

#[test]
fn a_candidate_takes_over_a_lease_that_it_saw_unchanged_for_its_duration() {
    let mut lease = None;
    let (mut a, mut b) = (elector("a"), elector("b"));
    turn(&mut a, s(0), wall(0), &mut lease);
    turn(&mut b, s(100), wall(0), &mut lease);
    turn(&mut b, s(114), wall(14), &mut lease);
    assert!(!b.leads(s(114)));
    turn(&mut b, s(115), wall(15), &mut lease);
    assert!(b.leads(s(115)));
    assert_eq!(lease.as_ref().unwrap().transitions, 1);
    turn(&mut a, s(15), wall(15), &mut lease);
    assert!(!a.leads(s(15)));
    assert_eq!(lease.unwrap().holder, "b");
}

#[test]
fn renewals_are_seen_as_changes_and_keep_others_away() {
    let mut lease = None;
    let (mut a, mut b) = (elector("a"), elector("b"));
    for t in (0..60).step_by(2) {
        turn(&mut a, s(t), wall(t as i64), &mut lease);
        turn(&mut b, s(t), wall(t as i64), &mut lease);
        assert!(a.leads(s(t)) && !b.leads(s(t)));
    }
    assert_eq!(lease.unwrap().acquired, Some(wall(0)));
}

#[test]
fn what_wall_clocks_say_does_not_matter() {
    let mut lease = None;
    let (mut a, mut b) = (elector("a"), elector("b"));
    // The leader's clock is an hour behind the candidate's and runs backwards.
    for t in 0..30 {
        turn(&mut a, s(t), wall(-3600 - t as i64), &mut lease);
        turn(&mut b, s(t), wall(0), &mut lease);
        assert!(a.leads(s(t)) && !b.leads(s(t)));
    }
    // An hour ahead, and gone: the lease still ends by the candidate's own waiting.
    turn(&mut a, s(30), wall(7200), &mut lease);
    turn(&mut b, s(30), wall(0), &mut lease);
    turn(&mut b, s(45), wall(0), &mut lease);
    assert!(b.leads(s(45)));
}

#[test]
fn a_leader_stops_at_its_renew_deadline_counted_from_the_start_of_the_write() {
    let mut a = elector("a");
    let Step::Create(record) = a.look(s(0), wall(0), None) else {
        panic!("there is none")
    };
    a.wrote(s(1), s(8), record);
    assert_eq!(a.deadline(), Some(s(11)));
    assert!(a.leads(s(10)));
    assert!(!a.leads(s(11)));
    assert_eq!(a.pause(s(8), 0.0), s(2));
    assert_eq!(a.pause(s(10), 0.0), s(1));
}

#[test]
fn an_answer_that_comes_after_the_deadline_makes_no_leader() {
    let mut a = elector("a");
    let Step::Create(record) = a.look(s(0), wall(0), None) else {
        panic!("there is none")
    };
    a.wrote(s(0), s(12), record);
    assert!(!a.leads(s(12)));
}

#[test]
fn a_process_that_was_stopped_past_its_lease_wakes_as_nobody() {
    let mut lease = None;
    let (mut a, mut b) = (elector("a"), elector("b"));
    turn(&mut a, s(0), wall(0), &mut lease);
    turn(&mut b, s(0), wall(0), &mut lease);
    turn(&mut b, s(15), wall(15), &mut lease);
    assert!(b.leads(s(15)));
    // SIGCONT: nothing was told to it meanwhile, and it knows by its own clock.
    assert!(!a.leads(s(15)));
    turn(&mut a, s(15), wall(15), &mut lease);
    assert!(!a.leads(s(15)));
    assert_eq!(lease.unwrap().holder, "b");
}

#[test]
fn a_refused_write_changes_nothing_and_the_next_look_decides() {
    let mut lease = None;
    let (mut a, mut b, mut c) = (elector("a"), elector("b"), elector("c"));
    turn(&mut a, s(0), wall(0), &mut lease);
    turn(&mut b, s(0), wall(0), &mut lease);
    turn(&mut c, s(0), wall(0), &mut lease);
    // Both find it expired; c's write is the one that the API server takes.
    let late = b.look(s(15), wall(15), lease.as_ref());
    assert!(matches!(late, Step::Replace(_)));
    turn(&mut c, s(15), wall(15), &mut lease);
    assert!(c.leads(s(15)) && !b.leads(s(15)));
    turn(&mut b, s(16), wall(16), &mut lease);
    assert!(!b.leads(s(16)));
    assert_eq!(b.look(s(30), wall(30), lease.as_ref()), Step::Wait);
}

#[test]
fn a_write_whose_answer_was_lost_is_found_at_the_next_look() {
    let (mut lease, mut a) = (None, elector("a"));
    if let Step::Create(record) = a.look(s(0), wall(0), None) {
        lease = Some(record);
    }
    assert!(!a.leads(s(0)));
    turn(&mut a, s(2), wall(2), &mut lease);
    assert!(a.leads(s(2)));
    assert_eq!(lease.unwrap().transitions, 0);
}

#[test]
fn a_released_lease_is_taken_at_the_next_look() {
    let mut lease = None;
    let (mut a, mut b) = (elector("a"), elector("b"));
    turn(&mut a, s(0), wall(0), &mut lease);
    turn(&mut b, s(0), wall(0), &mut lease);
    let released = a.release(wall(1), lease.as_ref().unwrap()).unwrap();
    assert!(!a.leads(s(1)));
    lease = Some(released);
    turn(&mut b, s(1), wall(1), &mut lease);
    assert!(b.leads(s(1)));
    assert_eq!(lease.unwrap().transitions, 1);
}

#[test]
fn another_ones_lease_is_not_released() {
    let mut lease = None;
    let (mut a, mut b) = (elector("a"), elector("b"));
    turn(&mut b, s(0), wall(0), &mut lease);
    turn(&mut a, s(0), wall(0), &mut lease);
    assert_eq!(a.release(wall(1), lease.as_ref().unwrap()), None);
}

#[test]
fn a_holders_own_duration_is_respected_and_a_missing_one_is_ours() {
    for (asked, waits) in [(s(60), s(60)), (s(0), s(15))] {
        let held = Record {
            holder: "x".into(),
            duration: asked,
            ..Default::default()
        };
        let mut a = elector("a");
        assert_eq!(a.look(s(5), wall(0), Some(&held)), Step::Wait);
        let before = s(5) + waits - Duration::from_millis(1);
        assert_eq!(a.look(before, wall(0), Some(&held)), Step::Wait);
        let at = s(5) + waits;
        assert!(matches!(a.look(at, wall(0), Some(&held)), Step::Replace(_)));
    }
}

#[test]
fn a_candidate_looks_again_within_the_retry_and_right_at_the_expiry() {
    let held = Record {
        holder: "x".into(),
        duration: s(15),
        ..Default::default()
    };
    let mut a = elector("a");
    a.look(s(0), wall(0), Some(&held));
    for random in [0.0, 0.5, 1.0] {
        let pause = a.pause(s(0), random);
        assert!(pause >= Duration::from_millis(1300) && pause <= Duration::from_millis(1800));
    }
    assert_eq!(a.pause(s(14), 1.0), s(1));
    assert!(a.pause(s(15), 0.0) >= s(1));
}

/// A participant in the random schedules, with a clock of its own and a write under way.
struct Party {
    elector: Elector,
    origin: u64,
    skew: i64,
    writing: Option<(Mono, u64, Record)>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Looks, writes, lost answers and long stops in any order: at no moment do two lead.
    #[test]
    fn two_never_lead_at_once(
        skews in proptest::array::uniform3((0u64..1000, -5000i64..5000)),
        steps in proptest::collection::vec((0usize..3, 0u8..4, 0u64..4000), 1..300),
    ) {
        let mut parties: Vec<Party> = skews.iter().enumerate().map(|(i, (origin, skew))| Party {
            elector: elector(&format!("p{i}")), origin: *origin, skew: *skew, writing: None,
        }).collect();
        // The Lease, and its version.
        let mut lease: (Option<Record>, u64) = (None, 0);
        let mut t = 0u64;
        for (who, what, pass) in steps {
            // A gap is mostly small; now and then it is longer than a lease.
            t += if pass > 3950 { 20_000 } else { pass };
            let p = &mut parties[who];
            let now = Duration::from_millis(p.origin * 1000 + t);
            match (what, p.writing.take()) {
                (0 | 1, None) => {
                    let step = p.elector.look(now, wall(t as i64 / 1000 + p.skew), lease.0.as_ref());
                    if let Step::Create(r) | Step::Replace(r) = step {
                        p.writing = Some((now, lease.1, r));
                    }
                }
                // It lands if nobody wrote since the read; 3 loses the answer.
                (_, Some((begun, version, record))) if what >= 1 => {
                    if version == lease.1 {
                        lease = (Some(record.clone()), lease.1 + 1);
                        if what != 3 {
                            p.elector.wrote(begun, now, record);
                        }
                    }
                }
                (_, writing) => p.writing = writing,
            }
            let leaders = parties.iter().filter(|p| p.elector.leads(Duration::from_millis(p.origin * 1000 + t)));
            prop_assert!(leaders.count() <= 1);
        }
    }
}

/// A Lease in memory, kept as the API server keeps one: a write under an old version is refused.
#[derive(Clone, Default)]
struct Memory {
    lease: Arc<Mutex<Option<(u64, Record)>>>,
    /// Whether it answers at all.
    cut: Arc<Mutex<bool>>,
    /// How many more reads it refuses.
    forbidden: Arc<Mutex<u32>>,
}

impl Memory {
    async fn answers(&self) {
        if *self.cut.lock().unwrap() {
            std::future::pending::<()>().await;
        }
    }

    fn holder(&self) -> String {
        let lease = self.lease.lock().unwrap();
        lease.as_ref().map_or(String::new(), |l| l.1.holder.clone())
    }
}

impl Leases for Memory {
    type Version = u64;

    async fn read(&self) -> Result<Option<(u64, Record)>, Refused> {
        self.answers().await;
        let mut forbidden = self.forbidden.lock().unwrap();
        if *forbidden > 0 {
            *forbidden -= 1;
            return Err(Refused::Forbidden);
        }
        Ok(self.lease.lock().unwrap().clone())
    }

    async fn write(&self, over: Option<u64>, record: &Record) -> Result<(), Refused> {
        self.answers().await;
        let mut lease = self.lease.lock().unwrap();
        if lease.as_ref().map(|l| l.0) != over {
            return Err(Refused::Conflict);
        }
        *lease = Some((over.unwrap_or(0) + 1, record.clone()));
        Ok(())
    }
}

/// Timing as ever, twenty times as fast.
fn campaign(memory: &Memory, name: &str) -> Campaign {
    let timing = Timing {
        lease: Duration::from_millis(750),
        renew: Duration::from_millis(500),
        retry: Duration::from_millis(100),
    };
    Campaign::start(memory.clone(), Elector::new(name, timing))
}

#[tokio::test]
async fn a_graceful_end_frees_the_lease_and_the_next_one_leads() {
    let memory = Memory::default();
    let a = campaign(&memory, "a");
    a.leadership().changed_to(true).await;
    let b = campaign(&memory, "b");
    let (ours, theirs) = (a.leadership(), b.leadership());
    a.release().await;
    assert!(!ours.holds());
    assert_ne!(memory.holder(), "a");
    theirs.changed_to(true).await;
    assert_eq!(memory.holder(), "b");
    // A campaign that ended never leads again.
    ours.changed_to(false).await;
}

#[tokio::test]
async fn a_leader_that_is_cut_off_stops_before_another_begins() {
    let memory = Memory::default();
    let a = campaign(&memory, "a");
    a.leadership().changed_to(true).await;
    // The other has a way of its own to the same Lease.
    let other = Memory {
        lease: memory.lease.clone(),
        ..Default::default()
    };
    let b = campaign(&other, "b");
    *memory.cut.lock().unwrap() = true;
    a.leadership().changed_to(false).await;
    assert!(!a.leadership().holds() && !b.leadership().holds());
    b.leadership().changed_to(true).await;
    assert!(!a.leadership().holds());
    // It is back, and waits as everybody does.
    *memory.cut.lock().unwrap() = false;
    b.release().await;
    a.leadership().changed_to(true).await;
}

#[tokio::test]
async fn each_of_many_leads_once_while_they_end_one_after_another() {
    let memory = Memory::default();
    let mut line: Vec<Campaign> = (0..4)
        .map(|i| campaign(&memory, &format!("c{i}")))
        .collect();
    for left in (1..=4).rev() {
        let each = line.iter().map(|c| {
            let leadership = c.leadership();
            Box::pin(async move { leadership.changed_to(true).await })
        });
        let (_, leader, _) = futures::future::select_all(each).await;
        let leading = line.iter().filter(|c| c.leadership().holds()).count();
        assert_eq!((leading, line.len()), (1, left));
        line.remove(leader).release().await;
    }
    assert_eq!(
        memory.lease.lock().unwrap().as_ref().unwrap().1.transitions,
        3
    );
}

#[tokio::test]
async fn a_refusal_by_the_api_server_makes_no_leader_and_is_tried_again() {
    let memory = Memory::default();
    *memory.forbidden.lock().unwrap() = 3;
    let a = campaign(&memory, "a");
    a.leadership().changed_to(true).await;
    assert_eq!(*memory.forbidden.lock().unwrap(), 0);
}
