//! Which old versions of the base go, and when.

use std::collections::BTreeSet;
use std::time::Duration;

use freshet::table::{Cleaned, VersionsMemory, VersionsPolicy};

use crate::desk::{Desk, LONG, age, date_2096, restore, tick};
use crate::fixtures::{Fixture, Spec};

const HOUR: Duration = Duration::from_secs(3600);

fn policy() -> VersionsPolicy {
    VersionsPolicy::new(24 * HOUR, HOUR, HOUR, LONG)
}

async fn clean(t: &Fixture, policy: &VersionsPolicy) -> Cleaned {
    let mut desk = Desk::open(&t.uri).await;
    let observation = desk.observe().await;
    let mut memory = VersionsMemory::default();
    desk.table
        .clean_versions(&observation, policy, &mut memory)
        .await
        .unwrap()
}

async fn versions(t: &Fixture) -> BTreeSet<u64> {
    let versions = t.dataset().await.versions().await.unwrap();
    versions.into_iter().map(|v| v.version).collect()
}

/// A table whose versions 1 to 4 are old; the fourth is the newest.
async fn old() -> Fixture {
    let mut t = Fixture::create(Spec::default()).await;
    for _ in 0..2 {
        tick(&mut t).await;
        Desk::open(&t.uri).await.merge(1).await;
    }
    assert_eq!(versions(&t).await, BTreeSet::from([1, 2, 3, 4]));
    age(&t, 48 * HOUR);
    t
}

/// Another version, made now.
async fn newer(t: &mut Fixture) {
    tick(t).await;
    assert_eq!(Desk::open(&t.uri).await.merge(8).await, 1);
}

#[tokio::test]
async fn a_version_young_by_its_successor_is_kept() {
    let mut t = old().await;
    newer(&mut t).await;
    // The fourth was made two days ago and was the newest until now: whoever opened it may be at work on it still.
    assert_eq!(clean(&t, &policy()).await.versions, 3);
    assert_eq!(versions(&t).await, BTreeSet::from([4, 5]));
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_tagged_version_survives_clean_up() {
    let mut t = old().await;
    let dataset = t.dataset().await;
    dataset.tags().create("golden", 2).await.unwrap();
    let golden = dataset
        .checkout_version(2)
        .await
        .unwrap()
        .count_rows(None)
        .await
        .unwrap();
    newer(&mut t).await;
    assert_eq!(clean(&t, &policy()).await.versions, 2);
    assert_eq!(versions(&t).await, BTreeSet::from([2, 4, 5]));
    let tagged = t.dataset().await.checkout_version("golden").await.unwrap();
    assert_eq!(
        tagged.scan().try_into_batch().await.unwrap().num_rows(),
        golden
    );
}

#[tokio::test]
async fn the_newest_versions_stay_whatever_their_age() {
    let mut t = old().await;
    newer(&mut t).await;
    age(&t, 48 * HOUR);
    newer(&mut t).await;
    let mut policy = policy();
    policy.keep_at_least = 4;
    assert_eq!(clean(&t, &policy).await.versions, 2);
    assert_eq!(versions(&t).await, BTreeSet::from([3, 4, 5, 6]));
}

#[tokio::test]
async fn young_versions_stay_and_cost_one_listing() {
    let t = Fixture::create(Spec::default()).await;
    assert_eq!(
        clean(&t, &policy()).await,
        Cleaned {
            left: 2,
            ..Default::default()
        }
    );
    assert_eq!(versions(&t).await, BTreeSet::from([1, 2]));
}

#[tokio::test]
async fn no_version_goes_while_the_table_went_back() {
    let mut t = old().await;
    newer(&mut t).await;
    let mut desk = Desk::open(&t.uri).await;
    restore(&t, 2).await;
    let observation = desk.observe().await;
    let mut memory = VersionsMemory::default();
    let done = desk
        .table
        .clean_versions(&observation, &policy(), &mut memory)
        .await
        .unwrap();
    assert_eq!(done, Cleaned::default());
    assert_eq!(versions(&t).await.len(), 6);
}

#[tokio::test]
async fn generations_that_are_pending_outlive_a_clean_up() {
    let mut t = old().await;
    newer(&mut t).await;
    t.put(&[(1, 77)]).await;
    t.flush().await;
    assert_eq!(clean(&t, &policy()).await.versions, 3);
    Desk::open(&t.uri).await.merge(8).await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_version_dated_in_the_year_2096_lets_none_go_early() {
    for dated in [2, 4] {
        let mut t = Fixture::create(Spec::default()).await;
        for _ in 0..2 {
            tick(&mut t).await;
            Desk::open(&t.uri).await.merge(1).await;
        }
        let all = BTreeSet::from([1, 2, 3, 4]);
        assert_eq!(versions(&t).await, all);
        let name = format!("{:020}.manifest", u64::MAX - dated);
        date_2096(&t.path().join("_versions").join(name));
        assert_eq!(clean(&t, &policy()).await.versions, 0, "{dated}");
        assert_eq!(versions(&t).await, all, "{dated}");
        // The others get old all the same, and what came before the wrong time waits for it.
        age(&t, 48 * HOUR);
        newer(&mut t).await;
        let gone = clean(&t, &policy()).await.versions;
        assert_eq!(gone, if dated == 2 { 0 } else { 2 }, "{dated}");
    }
}
