//! Index upkeep: rows that indexes do not cover yet are added to them.
//!
//! Lives here: which indexes are behind (`Table::stale_indexes`, from the manifest alone) and `Table::optimize_indexes`,
//! one commit an index, so that vector and text indexes catch up with merged generations and draining can go on
//! (contracts 7, 8). May use: Lance's index optimizer. Never: a retrained or a new index, or a merge's failure.

use std::collections::BTreeMap;
use std::time::Instant;

use lance::Dataset;
use lance::index::DatasetIndexExt;
use lance::index::optimize::{commit_optimize_indices, plan_optimize_indices};
use lance_index::optimize::OptimizeOptions;
use lance_table::format::IndexMetadata;
use lance_table::system_index::is_system_index;
use roaring::RoaringBitmap;

use super::base::{Table, details, watermarks};
use super::commit::{properties, still_there};
use super::compact::{Refusal, Upkeep};
use super::error::{Error, Result};
use super::steps::reach;

/// An index that does not cover the whole table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleIndex {
    /// Its name.
    pub name: String,
    /// Live rows that it does not cover.
    pub rows: u64,
    /// Whether it covers all rows and the table does not say so yet, which draining waits for.
    pub unsaid: bool,
    /// Parts that it is made of; each upkeep adds one.
    pub parts: usize,
}

/// What index upkeep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Indexed {
    /// The base version that it made last.
    pub version: u64,
    /// Indexes that were brought up to date.
    pub indexes: Vec<String>,
}

/// An index of so many parts has them merged as it is brought up to date.
const PARTS: usize = 8;

impl Table {
    /// The indexes that are behind in the base version seen last, most rows first. No request is made beyond what reading
    /// that version's index list takes, once.
    ///
    /// # Errors
    /// The store's kinds.
    pub async fn stale_indexes(&self) -> Result<Vec<StaleIndex>> {
        stale(&*self.seen().await).await
    }

    /// Brings indexes up to date, one commit each, until none is behind or the deadline is near.
    ///
    /// # Errors
    /// `NotMemWal`, `DeadlineExceeded` and the store's kinds. A lost race is no error.
    pub async fn optimize_indexes(&self, deadline: Instant) -> Result<Upkeep<Indexed>> {
        reach("indexes.begin").await;
        let begun = Instant::now();
        if begun >= deadline {
            return Err(Error::DeadlineExceeded);
        }
        let half = deadline.saturating_duration_since(begun) / 2;
        let mut done = Indexed::default();
        let mut base = self.latest().await?;
        self.require_mem_wal().await?;
        if base.config().contains_key("lance.auto_cleanup.interval") {
            return Ok(Upkeep::Refused(Refusal::AutoCleanup));
        }
        for index in stale(&base).await? {
            if !done.indexes.is_empty() && begun.elapsed() > half {
                break;
            }
            still_there(&base).await?;
            let mut dataset = base.as_ref().clone();
            let work = Box::pin(optimize(&mut dataset, &index));
            match tokio::time::timeout_at(deadline.into(), work).await {
                Err(_) => return Err(Error::DeadlineExceeded),
                Ok(Err(Error::Conflict(_))) => return Ok(Upkeep::Lost),
                Ok(Err(e)) => return Err(e),
                Ok(Ok(())) => {}
            }
            if dataset.version_id() > base.version_id() {
                reach("indexes.committed").await;
                tracing::info!(
                    index = index.name,
                    rows = index.rows,
                    "an index is up to date"
                );
                done.version = dataset.version_id();
                done.indexes.push(index.name);
                self.saw(dataset.clone()).await;
                base = self.seen().await;
            }
        }
        Ok(match done.indexes.is_empty() {
            true => Upkeep::Nothing,
            false => Upkeep::Done(done),
        })
    }
}

async fn optimize(dataset: &mut Dataset, index: &StaleIndex) -> Result<()> {
    let mut options = match index.parts >= PARTS && index.rows > 0 {
        true => OptimizeOptions::merge(index.parts),
        false => OptimizeOptions::append(),
    };
    options = options.index_names(vec![index.name.clone()]);
    options.transaction_properties = Some(std::sync::Arc::new(properties()));
    let plan = plan_optimize_indices(dataset, &options)
        .await
        .map_err(|e| Error::lance("plan index upkeep", e))?;
    let failed = |e| Error::lance("bring an index up to date", e);
    let (mut built, mut merged) = (Vec::new(), Vec::new());
    for task in &plan.tasks {
        built.extend(Box::pin(task.execute(dataset)).await.map_err(failed)?);
    }
    for merge in &plan.merges {
        merged.extend(
            Box::pin(merge.execute(dataset, &built))
                .await
                .map_err(failed)?,
        );
    }
    reach("indexes.commit").await;
    // Building took its time, and a version that is gone by now may have moved the rows that were read.
    still_there(dataset).await?;
    Box::pin(commit_optimize_indices(dataset, merged, &options))
        .await
        .map_err(|e| Error::lance("commit", e))
}

async fn stale(base: &Dataset) -> Result<Vec<StaleIndex>> {
    let indices = base
        .load_indices()
        .await
        .map_err(|e| Error::lance("read the table's indexes", e))?;
    let mut by_name: BTreeMap<&str, Vec<&IndexMetadata>> = BTreeMap::new();
    for index in indices.iter().filter(|i| !is_system_index(i)) {
        by_name.entry(&index.name).or_default().push(index);
    }
    let mut out = Vec::new();
    for (name, parts) in by_name {
        // An index of before bitmaps covers nobody knows what.
        let bitmaps: Option<Vec<_>> = parts.iter().map(|p| p.fragment_bitmap.as_ref()).collect();
        let Some(bitmaps) = bitmaps else { continue };
        let covered = bitmaps
            .into_iter()
            .fold(RoaringBitmap::new(), |all, b| all | b);
        let left = base
            .fragments()
            .iter()
            .filter(|f| u32::try_from(f.id).is_ok_and(|id| !covered.contains(id)));
        let rows = left.map(|f| f.num_rows().unwrap_or(1) as u64).sum();
        let unsaid = rows == 0 && unsaid(base, name).await?;
        if rows > 0 || unsaid {
            out.push(StaleIndex {
                name: name.to_string(),
                rows,
                unsaid,
                parts: parts.len(),
            });
        }
    }
    out.sort_by_key(|index| std::cmp::Reverse(index.rows));
    Ok(out)
}

/// Whether the table records less of an index's catching up than was merged.
async fn unsaid(base: &Dataset, name: &str) -> Result<bool> {
    let Some(details) = details(base).await? else {
        return Ok(false);
    };
    let marks = watermarks(&details);
    let progress = details.index_catchup.iter().find(|c| c.index_name == name);
    Ok(progress.is_some_and(|progress| {
        marks.iter().any(|(shard, mark)| {
            progress
                .caught_up_generation_for_shard(shard)
                .is_some_and(|caught_up| caught_up < *mark)
        })
    }))
}
