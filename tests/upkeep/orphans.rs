//! Directories that no manifest ever listed: what a crash in the middle of a flush leaves.

use crate::desk::{Desk, GRACE, MINUTE, age, age_dir, drained, generations, shard_dir, tick};
use crate::fixtures::{Fixture, Spec, copy_dir};

/// An unfinished copy of a generation's directory, as a killed flush leaves it.
fn orphan(t: &Fixture, of: &str, number: u64) -> String {
    let (dir, name) = (shard_dir(t), format!("0badcafe_gen_{number}"));
    copy_dir(&dir.join(of).join("data"), &dir.join(&name).join("data"));
    name
}

#[tokio::test]
async fn an_orphan_goes_when_it_is_older_than_the_grace_by_the_stores_clock() {
    let mut t = Fixture::create(Spec::default()).await;
    let left = drained(&mut t).await;
    let name = orphan(&t, &left[1], 2);
    let mut desk = Desk::open(&t.uri).await;
    desk.reclaim().await;
    // Somebody may still be writing it, and only the store's clock can tell.
    assert_eq!(desk.reclaim_after(100 * GRACE).await.directories, 3);
    assert_eq!(generations(&t), std::slice::from_ref(&name));
    age(&t, GRACE + MINUTE);
    tick(&mut t).await;
    let mut desk = Desk::open(&t.uri).await;
    assert_eq!(desk.reclaim().await.directories, 1);
    assert!(!generations(&t).contains(&name));
}

#[tokio::test]
async fn an_orphan_that_was_written_to_lately_stays() {
    let mut t = Fixture::create(Spec::default()).await;
    let left = drained(&mut t).await;
    age(&t, 10 * GRACE);
    let name = orphan(&t, &left[1], 2);
    age_dir(&shard_dir(&t).join(&name), GRACE - MINUTE);
    tick(&mut t).await;
    let mut desk = Desk::open(&t.uri).await;
    let done = desk.reclaim().await;
    assert_eq!((done.directories, done.kept), (3, 1));
    assert!(generations(&t).contains(&name));
}

#[tokio::test]
async fn an_unlisted_directory_above_the_watermark_stays() {
    let mut t = Fixture::create(Spec::default()).await;
    let left = drained(&mut t).await;
    tick(&mut t).await;
    let name = orphan(&t, &left[1], 4);
    age(&t, 10 * GRACE);
    tick(&mut t).await;
    let mut desk = Desk::open(&t.uri).await;
    assert_eq!(desk.reclaim().await.directories, 3);
    assert!(generations(&t).contains(&name));
    // Once the generations of its time have left their manifest, it is an orphan like any other.
    desk.merge(8).await;
    desk.drain().await;
    age(&t, 2 * GRACE);
    tick(&mut t).await;
    assert_eq!(Desk::open(&t.uri).await.reclaim().await.directories, 3);
    assert!(!generations(&t).contains(&name));
}
