//! Pages over dictionaries that differ from file to file.

use freshet::table::{ReadLimits, Reader};

use crate::fixtures::{Fixture, Kind, Shape, Spec};
use crate::ledger::{Ledger, check};
use crate::mergers::Merger;
use crate::sources::open;

#[tokio::test]
async fn a_page_whose_rows_have_more_dictionary_values_than_its_keys_number_is_shown() {
    let shape = Shape::keyed(Kind::Int64).with("role", Kind::Role(1000));
    let mut t = Fixture::create(Spec {
        shape,
        ..Default::default()
    })
    .await;
    let (mut ledger, mut merger) = (Ledger::default(), Merger::open(&t.uri).await);
    for hundred in 0..6u64 {
        let rows: Vec<_> = (0..100).map(|i| (hundred * 100 + i, 1)).collect();
        ledger.put(&mut t, &rows).await;
        ledger.flush(&mut t).await;
        // Three fragments of a hundred values each, and three such generations.
        if hundred < 3 {
            assert_eq!(merger.merge_all(1).await, 1);
        }
    }
    let (table, reader) = (open(&t).await, Reader::new(ReadLimits::default()));
    for limit in [25, 200, 1000] {
        check(&reader, &table, &t, &ledger, limit).await;
    }
}
