//! The plainest life of a table: written, merged, drained, written on.

use crate::fixtures::{Fixture, Spec};
use crate::mergers::Merger;

#[tokio::test]
async fn a_table_that_was_merged_and_drained_holds_what_its_writers_wrote() {
    let mut t = Fixture::create(Spec::default()).await;
    t.put(&[(1, 1), (2, 1), (500, 1)]).await;
    t.flush().await;
    t.put(&[(2, 2), (501, 2)]).await;
    t.delete(&[1, 3, 777]).await;
    t.flush().await;
    let mut merger = Merger::open(&t.uri).await;
    assert_eq!(merger.merge_all(8).await, 1);
    assert_eq!(t.verdict().await, Default::default());
    assert_eq!(merger.drain_all().await.unwrap(), 2);
    t.put(&[(1, 3)]).await;
    t.flush().await;
    assert_eq!(merger.merge_all(8).await, 1);
    assert_eq!(t.verdict().await, Default::default());
}
