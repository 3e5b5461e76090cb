//! A shard that a person said is to be merged from its start again: its watermark leaves the base.
//!
//! Lives here: the one commit that does it (contract 3), and the look that shows it done. Lance lets a watermark only rise,
//! so the commit is an update of the MemWAL state that marks the shard higher than any merge can, which every commit that
//! moves the shard's watermark conflicts with, and the entry itself is taken out as the manifest is written: out of the
//! state that Lance built on the version before, so that nothing which another client committed is undone. May use: Lance's
//! commit. Never: a shard of a table without a key, whose rows would be there twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lance::Dataset;
use lance::dataset::CommitBuilder;
use lance::dataset::transaction::{Operation, TransactionBuilder};
use lance_core::Error as LanceError;
use lance_index::mem_wal::{CompactedSsTable, MEM_WAL_INDEX_NAME};
use lance_io::object_store::ObjectStore;
use lance_table::format::{IndexMetadata, Manifest, Transaction};
use lance_table::io::commit::{
    CommitError, CommitHandler, ConditionalPutCommitHandler, ManifestLocation,
    ManifestNamingScheme, ManifestWriter,
};
use lance_table::system_index::mem_wal::{load_mem_wal_index_details, new_mem_wal_index_meta};
use object_store::path::Path;
use uuid::Uuid;

use super::base::{Table, details, key_fields, same_version, watermarks};
use super::commit::{resetting, still_there};
use super::error::{Error, Result};
use super::steps::reach;

/// Higher than any generation: no commit that moves the shard's watermark passes this one.
const ABOVE_ALL: u64 = 1 << 62;

impl Table {
    /// Takes the watermarks of shards out of the newest version, if that is still `read`.
    ///
    /// # Errors
    /// `Conflict` where another commit came first: what is so has to be looked at anew. `Unsupported` without a key.
    pub(crate) async fn reset_watermarks(
        &self,
        read: &Arc<Dataset>,
        shards: &[Uuid],
        deadline: Instant,
    ) -> Result<()> {
        if key_fields(read.schema()).is_empty() {
            return Err(Error::Unsupported {
                what: "merging a shard's generations again on a table without a primary key".into(),
                remedy:
                    "write their rows again under a new shard id, then remove the shard's directory"
                        .into(),
            });
        }
        still_there(read).await?;
        // Lance keeps the state as it built it in the session's caches: this commit has a session of its own.
        let aside = Arc::new(self.open_aside().await?);
        if !same_version(&aside, read) {
            return Err(Error::Conflict("reset a watermark"));
        }
        let marks = details(read).await?.as_ref().map(watermarks);
        let marks = marks.unwrap_or_default();
        let above = |s: &Uuid| marks.get(s).map_or(0, |m| m.saturating_add(1));
        let seals = shards
            .iter()
            .map(|s| CompactedSsTable::new(*s, above(s).max(ABOVE_ALL)));
        let operation = Operation::UpdateMemWalState {
            compacted_sstables: seals.collect(),
        };
        let transaction = TransactionBuilder::new(read.version_id(), operation)
            .transaction_properties(Some(Arc::new(resetting(shards))))
            .build();
        reach("reset.commit").await;
        let left = deadline.checked_duration_since(Instant::now());
        let left = left.filter(|d| !d.is_zero());
        let left = left.ok_or(Error::DeadlineExceeded)?;
        let made = CommitBuilder::new(aside)
            .with_commit_handler(Arc::new(Without(shards.to_vec())))
            .with_skip_auto_cleanup(true)
            .with_timeout(Some(left))
            .with_retry_timeout(left.min(Duration::from_secs(30)))
            .execute(transaction)
            .await
            .map_err(|e| match e {
                LanceError::Timeout { .. } => Error::DeadlineExceeded,
                e => Error::lance("reset a watermark", e),
            })?
            .version_id();
        reach("reset.committed").await;
        self.is_reset(made, shards).await
    }

    /// Reads back what the commit left.
    async fn is_reset(&self, version: u64, shards: &[Uuid]) -> Result<()> {
        let latest = self.latest().await?;
        let made = latest.checkout_version(version).await;
        let made = made.map_err(|e| Error::lance("read a reset watermark back", e))?;
        let marks = details(&made).await?.as_ref().map(watermarks);
        match marks {
            Some(marks) if shards.iter().all(|s| !marks.contains_key(s)) => Ok(()),
            _ => Err(Error::Bug(format!(
                "version {version} still holds a watermark that it was to be without"
            ))),
        }
    }
}

/// Writes a manifest without the watermarks of some shards.
#[derive(Debug)]
struct Without(Vec<Uuid>);

impl Without {
    fn apply(&self, version: u64, indices: &mut [IndexMetadata]) -> lance_core::Result<()> {
        let found = indices.iter_mut().find(|i| i.name == MEM_WAL_INDEX_NAME);
        let index = found.ok_or_else(|| LanceError::invalid_input("no MemWAL index"))?;
        let mut details = load_mem_wal_index_details(index.clone())?;
        let stays = |c: &CompactedSsTable| !self.0.contains(&c.shard_id);
        details.compacted_sstables.retain(stays);
        for index in &mut details.index_catchup {
            index.caught_up_generations.retain(stays);
        }
        let covers =
            |i: &lance_index::mem_wal::IndexCatchupProgress| !i.caught_up_generations.is_empty();
        details.index_catchup.retain(covers);
        *index = new_mem_wal_index_meta(version, details)?;
        Ok(())
    }
}

#[async_trait]
impl CommitHandler for Without {
    fn is_version_not_found_definitive(&self) -> bool {
        ConditionalPutCommitHandler.is_version_not_found_definitive()
    }

    fn propagate_commit_error_after_success(&self) -> bool {
        ConditionalPutCommitHandler.propagate_commit_error_after_success()
    }

    async fn commit(
        &self,
        manifest: &mut Manifest,
        indices: Option<Vec<IndexMetadata>>,
        base_path: &Path,
        object_store: &ObjectStore,
        manifest_writer: ManifestWriter,
        naming_scheme: ManifestNamingScheme,
        transaction: Option<Transaction>,
    ) -> std::result::Result<ManifestLocation, CommitError> {
        let mut indices = indices.unwrap_or_default();
        self.apply(manifest.version, &mut indices)?;
        // Every scheme that tables are opened with is committed to so.
        ConditionalPutCommitHandler
            .commit(
                manifest,
                Some(indices),
                base_path,
                object_store,
                manifest_writer,
                naming_scheme,
                transaction,
            )
            .await
    }
}
