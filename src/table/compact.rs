//! Compaction: small fragments and deleted rows are rewritten, a slice at a time.
//!
//! Lives here: `Table::compact`, which plans with Lance's planner, rewrites some pieces, reads dictionaries back before
//! anything is committed, and commits once, with indexes remapped in the same commit (contracts 6, 7, 11). May use: Lance's
//! planner, rewriter and remapper. Never: Lance's own commit of it, which runs a table's auto clean-up; a merge's failure.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lance::Dataset;
use lance::dataset::CommitBuilder;
use lance::dataset::index::DatasetIndexRemapperOptions;
use lance::dataset::optimize::{
    CompactionOptions, CompactionPlan, CompactionTask, IndexRemapperOptions, RewriteResult,
    TaskData, plan_compaction,
};
use lance::dataset::transaction::{Operation, RewriteGroup, RewrittenIndex, TransactionBuilder};
use lance_core::Error as LanceError;
use lance_core::utils::row_addr_remap::{GroupInput, RowAddrRemap};
use lance_table::feature_flags::FLAG_FRAGMENT_REUSE_INDEX;
use lance_table::format::Fragment;
use roaring::RoaringTreemap;
use uuid::Uuid;

use super::base::Table;
use super::commit::{landed, properties, still_there};
use super::error::{Error, Result};
use super::slices::{Cut, Piece, Unreadable, pieces};
use super::steps::reach;
use super::write;

/// How a piece of upkeep ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upkeep<T> {
    /// There is nothing to do on this base version.
    Nothing,
    /// It is done; there may be more.
    Done(T),
    /// Another commit won; it is to be tried again later.
    Lost,
    /// It will not be done on this table until somebody changes what the refusal names.
    Refused(Refusal),
}

/// Why upkeep leaves a table alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The table cleans up its own old versions, and this commit would set that off.
    AutoCleanup,
    /// Another client deferred its indexes' remapping in a way that only it can go on with.
    FragmentReuse,
    /// Fragments were unreadable together too often: their dictionary columns' key type is too small.
    Dictionaries,
}

impl Refusal {
    /// Its name, PascalCase.
    pub fn reason(self) -> &'static str {
        match self {
            Self::AutoCleanup => "AutoCleanup",
            Self::FragmentReuse => "FragmentReuse",
            Self::Dictionaries => "Dictionaries",
        }
    }
}

/// A slice of compaction.
#[derive(Debug, Clone, Copy)]
pub struct CompactPolicy {
    /// Fewer small neighbours than this are left alone; below 2 counts as 2.
    pub min_fragments: usize,
    /// Rows that a fragment should hold.
    pub target_rows_per_fragment: usize,
    /// A fragment with a larger share of deleted rows is rewritten for their sake.
    pub deleted_share: f32,
    /// Bytes that the slice may hold in memory.
    pub budget_bytes: u64,
    /// Bytes of data files that the slice may read.
    pub slice_bytes: u64,
    /// When the slice has to have committed; past it, it never does.
    pub deadline: Instant,
}

impl CompactPolicy {
    /// First values, with a deadline `within` from now.
    pub fn new(target_rows_per_fragment: usize, within: Duration) -> Self {
        Self {
            min_fragments: 8,
            target_rows_per_fragment,
            deleted_share: 0.2,
            budget_bytes: 64 << 20,
            slice_bytes: 256 << 20,
            deadline: Instant::now() + within,
        }
    }
}

/// Remembers, between slices of one table, what is not worth trying again. Bounded.
#[derive(Debug, Default)]
pub struct CompactMemory {
    unreadable: Unreadable,
}

/// What a slice did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compacted {
    /// The base version that it made; `None` where nothing was left to commit.
    pub version: Option<u64>,
    /// Fragments that were rewritten.
    pub fragments_removed: usize,
    /// Fragments that they became.
    pub fragments_added: usize,
    /// Bytes of the data files written.
    pub bytes_written: u64,
    /// Groups that could not be read back and were dropped.
    pub unreadable: usize,
}

/// Pieces that one slice rewrites at most: its commit remaps each index once for all of them.
const PIECES: usize = 32;

impl Table {
    /// Rewrites some small or holed fragments: one commit, or none.
    ///
    /// # Errors
    /// `NotMemWal`, `DeadlineExceeded` and the store's kinds. A lost race is no error.
    pub async fn compact(
        &self,
        policy: &CompactPolicy,
        memory: &mut CompactMemory,
    ) -> Result<Upkeep<Compacted>> {
        reach("compact.begin").await;
        if Instant::now() >= policy.deadline {
            return Err(Error::DeadlineExceeded);
        }
        let base = self.latest().await?;
        self.require_mem_wal().await?;
        if base.manifest().writer_feature_flags & FLAG_FRAGMENT_REUSE_INDEX != 0 {
            return Ok(Upkeep::Refused(Refusal::FragmentReuse));
        }
        if memory.unreadable.is_full() {
            return Ok(Upkeep::Refused(Refusal::Dictionaries));
        }
        let mut slice = Slice {
            base: base.clone(),
            results: vec![],
            dropped: 0,
            transaction: Uuid::new_v4().to_string(),
            committing: false,
        };
        let rewriting = slice.rewrite(policy, memory);
        let outcome = tokio::time::timeout_at(policy.deadline.into(), rewriting)
            .await
            .map_err(|_| Error::DeadlineExceeded)
            .flatten();
        if let Err(e) = outcome {
            slice.forget().await;
            return Err(e);
        }
        if slice.results.is_empty() {
            return Ok(match slice.dropped {
                0 => Upkeep::Nothing,
                unreadable => Upkeep::Done(Compacted {
                    unreadable,
                    ..Default::default()
                }),
            });
        }
        reach("compact.commit").await;
        match slice.commit(policy.deadline).await {
            Ok(dataset) => {
                reach("compact.committed").await;
                let done = slice.done(dataset.version_id());
                tracing::info!(?done, "compacted");
                self.saw(dataset).await;
                Ok(Upkeep::Done(done))
            }
            Err(e) => self.lost(&slice, e).await,
        }
    }

    /// What a failed commit means: a slice whose transaction is among the versions since has landed all the same, and only
    /// the files of one that is certainly not may go.
    async fn lost(&self, slice: &Slice, e: Error) -> Result<Upkeep<Compacted>> {
        let conflict = matches!(e, Error::Conflict(_));
        if slice.committing {
            let latest = self.latest().await?;
            match landed(&latest, slice.base.version_id(), &slice.transaction).await {
                Some(true) => return Ok(Upkeep::Done(slice.done(latest.version_id()))),
                Some(false) if conflict => slice.forget().await,
                _ => {}
            }
        } else {
            slice.forget().await;
        }
        match conflict {
            true => Ok(Upkeep::Lost),
            false => Err(e),
        }
    }
}

/// One slice under way.
struct Slice {
    base: Arc<Dataset>,
    results: Vec<RewriteResult>,
    /// Groups that could not be read back.
    dropped: usize,
    /// Names the transaction of the rewrite.
    transaction: String,
    /// Whether that transaction may have been sent.
    committing: bool,
}

impl Slice {
    async fn rewrite(&mut self, policy: &CompactPolicy, memory: &mut CompactMemory) -> Result<()> {
        let begun = Instant::now();
        let half = policy.deadline.saturating_duration_since(begun) / 2;
        let plan = plan_compaction(&self.base, &options(&self.base, policy))
            .await
            .map_err(|e| Error::lance("plan a compaction", e))?;
        for (at, fragments) in chosen(&plan, policy, &memory.unreadable)
            .into_iter()
            .enumerate()
        {
            if at > 0 && begun.elapsed() > half {
                break;
            }
            let ids: Vec<u64> = fragments.iter().map(|f| f.id).collect();
            let task = CompactionTask {
                task: TaskData { fragments },
                read_version: plan.read_version(),
                options: plan.options().clone(),
            };
            let result = task.execute(&self.base).await;
            let result = result.map_err(|e| Error::lance("rewrite fragments", e))?;
            match write::readable(&self.base, &result.new_fragments).await {
                Ok(true) => self.results.push(result),
                Ok(false) => {
                    tracing::warn!(fragments = ?ids, "these fragments' dictionary values do not fit one file; they stay as they are");
                    write::remove(&self.base, &result.new_fragments, &[]).await;
                    memory.unreadable.remember(ids);
                    self.dropped += 1;
                }
                Err(e) => {
                    write::remove(&self.base, &result.new_fragments, &[]).await;
                    return Err(e);
                }
            }
        }
        reach("compact.rewritten").await;
        Ok(())
    }

    /// Reserves ids for the new fragments, remaps indexes to them, and commits all together.
    async fn commit(&mut self, deadline: Instant) -> Result<Dataset> {
        still_there(&self.base).await?;
        let new: usize = self.results.iter().map(|r| r.new_fragments.len()).sum();
        if new > 0 {
            let reserve = Operation::ReserveFragments {
                num_fragments: new as u32,
            };
            let reserved = Uuid::new_v4().to_string();
            let reserved = self.execute(reserve, reserved, deadline).await?;
            let end = reserved
                .manifest()
                .max_fragment_id
                .map_or(0, |id| u64::from(id) + 1);
            let fragments = self.results.iter_mut().flat_map(|r| &mut r.new_fragments);
            for (fragment, id) in fragments.zip(end.saturating_sub(new as u64)..) {
                fragment.id = id;
            }
        }
        let remapping = tokio::time::timeout_at(deadline.into(), self.remap());
        let rewritten_indices = remapping.await.map_err(|_| Error::DeadlineExceeded)??;
        reach("compact.remapped").await;
        // Remapping took its time, and a version that is gone by now may have been a conflict.
        still_there(&self.base).await?;
        let groups = self.results.iter().map(|r| RewriteGroup {
            old_fragments: r.original_fragments.clone(),
            new_fragments: r.new_fragments.clone(),
        });
        let rewrite = Operation::Rewrite {
            groups: groups.collect(),
            rewritten_indices,
            frag_reuse_index: None,
        };
        self.committing = true;
        self.execute(rewrite, self.transaction.clone(), deadline)
            .await
    }

    async fn execute(
        &self,
        operation: Operation,
        name: String,
        deadline: Instant,
    ) -> Result<Dataset> {
        let left = deadline
            .checked_duration_since(Instant::now())
            .filter(|d| !d.is_zero());
        let left = left.ok_or(Error::DeadlineExceeded)?;
        let transaction = TransactionBuilder::new(self.base.version_id(), operation)
            .uuid(name)
            .transaction_properties(Some(Arc::new(properties())))
            .build();
        CommitBuilder::new(self.base.clone())
            .with_skip_auto_cleanup(true)
            .with_timeout(Some(left))
            .with_retry_timeout(left.min(Duration::from_secs(30)))
            .execute(transaction)
            .await
            .map_err(|e| match e {
                LanceError::Timeout { .. } => Error::DeadlineExceeded,
                e => Error::lance("commit", e),
            })
    }

    /// New files of the indexes that hold addresses of the rewritten rows.
    async fn remap(&self) -> Result<Vec<RewrittenIndex>> {
        let groups = self.results.iter().filter_map(|r| {
            let addresses = r.row_addrs.as_ref()?;
            Some(group(addresses, &r.original_fragments, &r.new_fragments))
        });
        let groups = groups.collect::<Result<Vec<_>>>()?;
        if groups.is_empty() {
            return Ok(vec![]);
        }
        let remapper = DatasetIndexRemapperOptions::default()
            .create_remapper(&self.base)
            .await
            .map_err(|e| Error::lance("read the table's indexes", e))?;
        let Some(remapper) = remapper else {
            return Ok(vec![]);
        };
        let moves = RowAddrRemap::compact(groups)
            .map_err(|e| Error::Bug(format!("rows moved that were not read: {e}")))?;
        let old = self.results.iter().flat_map(|r| &r.original_fragments);
        let old: Vec<u64> = old.map(|f| f.id).collect();
        let remapped = remapper
            .remap_indices(moves, &old)
            .await
            .map_err(|e| Error::lance("remap an index", e))?;
        let indices = remapped.into_iter().map(|r| RewrittenIndex {
            old_id: r.old_id,
            new_id: r.new_id,
            new_index_details: r.index_details,
            new_index_version: r.index_version,
            new_index_files: r.files,
        });
        Ok(indices.collect())
    }

    fn new_files(&self) -> impl Iterator<Item = &lance_table::format::DataFile> {
        let new = self.results.iter().flat_map(|r| &r.new_fragments);
        new.flat_map(|f| &f.files)
    }

    fn done(&self, version: u64) -> Compacted {
        let bytes = self.new_files().filter_map(|f| f.file_size_bytes.get());
        Compacted {
            version: Some(version),
            fragments_removed: self
                .results
                .iter()
                .map(|r| r.original_fragments.len())
                .sum(),
            fragments_added: self.results.iter().map(|r| r.new_fragments.len()).sum(),
            bytes_written: bytes.map(u64::from).sum(),
            unreadable: self.dropped,
        }
    }

    /// Removes what was written and is not committed.
    async fn forget(&self) {
        for result in &self.results {
            write::remove(&self.base, &result.new_fragments, &[]).await;
        }
    }
}

/// How the rows of one group moved, in Lance's compact form.
fn group(addresses: &[u8], old: &[Fragment], new: &[Fragment]) -> Result<GroupInput> {
    let broken = |what: &str| Error::Bug(format!("a rewrite with {what}"));
    let id = |f: &Fragment| u32::try_from(f.id).map_err(|_| broken("a fragment id past 32 bits"));
    let rows = |f: &Fragment| {
        let rows = f.physical_rows.and_then(|rows| u32::try_from(rows).ok());
        rows.ok_or_else(|| broken("a fragment of unknown size"))
    };
    Ok(GroupInput {
        rewritten_old_row_addrs: RoaringTreemap::deserialize_from(&mut Cursor::new(addresses))
            .map_err(|_| broken("broken row addresses"))?,
        old_frag_ids: old.iter().map(id).collect::<Result<_>>()?,
        new_frags: new
            .iter()
            .map(|f| Ok((id(f)?, rows(f)?)))
            .collect::<Result<_>>()?,
    })
}

fn options(base: &Dataset, policy: &CompactPolicy) -> CompactionOptions {
    let rows: u64 = base
        .fragments()
        .iter()
        .map(|f| f.physical_rows.unwrap_or(0) as u64)
        .sum();
    let bytes: u64 = base.fragments().iter().map(bytes).sum();
    let row = bytes.checked_div(rows).unwrap_or(0).max(1);
    // Rows take more room in memory than on disk; a batch is a small part of the budget at twice the size.
    let batch = (policy.budget_bytes / 16 / (2 * row)).clamp(16, 8192);
    CompactionOptions {
        target_rows_per_fragment: policy.target_rows_per_fragment.max(1),
        materialize_deletions: true,
        materialize_deletions_threshold: policy.deleted_share,
        batch_size: Some(batch as usize),
        io_buffer_size: Some((policy.budget_bytes / 4).max(16 << 20)),
        ..Default::default()
    }
}

/// The pieces of Lance's plan that this slice takes: those that remove most fragments first.
fn chosen(
    plan: &CompactionPlan,
    policy: &CompactPolicy,
    unreadable: &Unreadable,
) -> Vec<Vec<Fragment>> {
    let cut = Cut {
        min_fragments: policy.min_fragments,
        deleted_share: policy.deleted_share,
        bytes: policy.slice_bytes,
    };
    let mut all: Vec<Vec<Fragment>> = Vec::new();
    for task in plan.compaction_tasks() {
        let run: Vec<Piece> = task.task.fragments.iter().map(piece).collect();
        let by_id: BTreeMap<u64, &Fragment> =
            task.task.fragments.iter().map(|f| (f.id, f)).collect();
        for piece in pieces(&run, &cut, unreadable) {
            let fragments = piece
                .iter()
                .filter_map(|p| by_id.get(&p.id).copied().cloned());
            all.push(fragments.collect());
        }
    }
    all.sort_by_key(|fragments| std::cmp::Reverse(fragments.len()));
    let mut taken = 0u64;
    all.into_iter()
        .take(PIECES)
        .enumerate()
        .take_while(|(at, fragments)| {
            taken = taken.saturating_add(fragments.iter().map(bytes).sum());
            *at == 0 || taken <= policy.slice_bytes
        })
        .map(|(_, fragments)| fragments)
        .collect()
}

fn piece(fragment: &Fragment) -> Piece {
    let physical = fragment.physical_rows.unwrap_or(0) as u64;
    let deleted = fragment.deletion_file.as_ref();
    let deleted = deleted.and_then(|d| d.num_deleted_rows).unwrap_or(0) as u64;
    Piece {
        id: fragment.id,
        rows: physical.saturating_sub(deleted),
        bytes: bytes(fragment),
        deleted: deleted as f32 / physical.max(1) as f32,
    }
}

/// Bytes of a fragment's data files, as far as its manifest says.
fn bytes(fragment: &Fragment) -> u64 {
    let sizes = fragment
        .files
        .iter()
        .filter_map(|f| f.file_size_bytes.get());
    sizes.map(u64::from).sum()
}
