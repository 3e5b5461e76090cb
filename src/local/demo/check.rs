//! Whether the table holds what the writers wrote.
//!
//! Lives here: reading every row of `all` as a client of the table would, and the comparison with the journal. May use:
//! `table`'s reader. Must never come in: forgiveness; a row that differs in anything counts.

use std::collections::{HashMap, HashSet};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type};
use arrow_array::{Array, RecordBatch};

use super::rollouts::Row;
use crate::table::{Location, ReadLimits, Reader, Source, Stores, StoresConfig, Table};

/// What the comparison found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Compared {
    pub rows: u64,
    pub lost: u64,
    pub doubled: u64,
    pub changed: u64,
    pub resurrected: u64,
}

impl Compared {
    pub fn is_right(&self) -> bool {
        self.lost + self.doubled + self.changed + self.resurrected == 0
    }
}

/// Rows read at a time.
const PAGE: usize = 10_000;

/// Compares the table at `uri` with the journal.
pub async fn compare(uri: &str, journal: &HashMap<String, Row>) -> Result<Compared, String> {
    let cannot = |e: &dyn std::fmt::Display| format!("the table cannot be read back: {e}");
    let stores = Stores::new(StoresConfig::default());
    let opened = Table::open(&stores, &Location::new(uri)).await;
    let table = opened.map_err(|e| cannot(&e))?;
    let reader = Reader::new(ReadLimits::default());
    let mut compared = Compared::default();
    let mut seen = HashSet::new();
    loop {
        let page = reader.page(&table, Source::All, PAGE, compared.rows).await;
        let page = page.map_err(|e| cannot(&e))?;
        for batch in &page.batches {
            count(batch, journal, &mut seen, &mut compared);
        }
        if !page.has_more {
            break;
        }
    }
    compared.lost = journal.keys().filter(|id| !seen.contains(*id)).count() as u64;
    Ok(compared)
}

fn count(
    batch: &RecordBatch,
    journal: &HashMap<String, Row>,
    seen: &mut HashSet<String>,
    compared: &mut Compared,
) {
    let ids = batch["id"].as_string::<i32>();
    for (at, id) in ids.iter().enumerate() {
        let id = id.unwrap_or_default();
        compared.rows += 1;
        compared.doubled += u64::from(!seen.insert(id.to_string()));
        match journal.get(id) {
            None => compared.resurrected += 1,
            Some(row) => compared.changed += u64::from(!same(batch, at, row)),
        }
    }
}

fn same(batch: &RecordBatch, at: usize, row: &Row) -> bool {
    let text = |name: &str| batch[name].as_string::<i32>().value(at).to_string();
    let rewards = batch["reward"].as_primitive::<Float64Type>();
    let reward = rewards.is_valid(at).then(|| rewards.value(at));
    text("rollout_id") == row.rollout
        && batch["step"].as_primitive::<Int32Type>().value(at) == row.step
        && text("role") == row.role
        && text("content") == row.content
        && reward == row.reward
}

#[cfg(test)]
mod tests {
    use super::super::rollouts;
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_row_that_is_lost_doubled_changed_or_resurrected_is_counted() {
        let mut rng = rand::rngs::StdRng::seed_from_u64(1);
        let rows = rollouts::rollout(&mut rng, "w", 0);
        let journal: HashMap<_, _> = rows.iter().map(|r| (r.id.clone(), r.clone())).collect();
        let judge = |journal: &HashMap<String, Row>, batches: &[RecordBatch]| {
            let (mut seen, mut found) = (HashSet::new(), Compared::default());
            batches
                .iter()
                .for_each(|b| count(b, journal, &mut seen, &mut found));
            found
        };
        let batch = rollouts::batch(&rows).unwrap();
        assert!(judge(&journal, std::slice::from_ref(&batch)).is_right());
        assert_eq!(
            judge(&journal, &[batch.clone(), batch.slice(0, 1)]).doubled,
            1
        );
        let mut other = journal.clone();
        other.remove(&rows[2].id);
        assert_eq!(judge(&other, std::slice::from_ref(&batch)).resurrected, 1);
        let changed = rollouts::graded(&mut rng, &rows[3]);
        other = journal;
        other.insert(changed.id.clone(), changed);
        assert_eq!(judge(&other, &[batch]).changed, 1);
    }
}
