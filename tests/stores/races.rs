//! Two mergers that want the same: the store's conditional write lets one land.

use freshet::table::{Error, Outcome};

use crate::life::{merger, more, pending};
use crate::mergers::Merger;
use crate::servers::{Kind, Server};

/// Both look, then both merge: chunks that end alike, and chunks that do not.
async fn one_lands(kind: Kind) {
    let server = Server::start(kind).await;
    let mut t = pending(&server, "rollouts.lance").await;
    for (round, (mine, theirs)) in [(64, 64), (1, 3), (3, 1)].into_iter().enumerate() {
        let mut a = merger(&server, "rollouts.lance").await;
        let mut b = merger(&server, "rollouts.lance").await;
        let (first, second) = tokio::join!(a.observe(), b.observe());
        let (first, second) = (attempt(&a, first, mine), attempt(&b, second, theirs));
        let both = tokio::join!(first, second);
        let outcomes = [both.0.unwrap(), both.1.unwrap()];
        let landed = |o: &&Outcome| matches!(o, Outcome::Merged(_));
        let landed = outcomes.iter().filter(landed).count();
        assert_eq!(landed, 1, "round {round}: {outcomes:?}");
        a.merge_all(64).await;
        assert_eq!(t.verdict().await, Default::default(), "round {round}");
        more(&mut t, 40 + 3 * round as i64).await;
    }
}

async fn attempt(
    m: &Merger,
    seen: (freshet::table::Observation, freshet::table::Snapshot),
    at_most: usize,
) -> Result<Outcome, Error> {
    let chunk = Merger::chunk(&seen.0, &seen.1, at_most).unwrap();
    let (known, limits) = (m.tracker.known(), m.limits());
    m.table.merge(&seen.1, &chunk, &known, &limits).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_mergers_on_s3_one_lands_and_the_other_says_that_it_lost() {
    one_lands(Kind::S3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_mergers_on_azure_one_lands_and_the_other_says_that_it_lost() {
    one_lands(Kind::Azure).await;
}
