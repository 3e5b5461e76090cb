//! The one commit of a merge: rows, deletes and watermarks together, fenced.
//!
//! Lives here: the marked `Update` and its sentinel (contracts 4 and 5), the deadline (contract 6), and what a failed
//! commit means, which is read from the table and never from an error's text. May use: Lance's commit. Never: a retry
//! of the same transaction, which would carry a decision that is no longer right.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lance::Dataset;
use lance::dataset::CommitBuilder;
use lance::dataset::transaction::{Operation, TransactionBuilder, UpdateMode};
use lance_core::Error as LanceError;
use lance_index::mem_wal::CompactedSsTable;
use lance_select::RowAddrTreeMap;
use lance_table::format::Fragment;
use lance_table::format::key_existence::{FilterType, KeyExistenceFilter};
use object_store::ObjectStoreExt as _;
use roaring::RoaringTreemap;
use uuid::Uuid;

use super::error::{Error, Result};

/// Every commit of ours carries this property, with our version as its value.
pub(crate) const PROPERTY: &str = "freshet";

/// What a merge commits.
pub(crate) struct Prepared {
    pub base: Arc<Dataset>,
    pub new: Vec<Fragment>,
    pub updated: Vec<Fragment>,
    pub removed: Vec<u64>,
    pub addresses: RoaringTreemap,
    pub marks: Vec<(Uuid, u64)>,
    pub key_ids: Vec<i32>,
}

/// Two merges of one shard carry the same hash, so one of them loses; merges of different shards carry different ones.
fn sentinel(marks: &[(Uuid, u64)], key_ids: &[i32]) -> KeyExistenceFilter {
    let hashes = marks.iter().map(|(shard, _)| {
        let mut hasher = DefaultHasher::new();
        shard.hash(&mut hasher);
        hasher.finish()
    });
    KeyExistenceFilter {
        field_ids: key_ids.to_vec(),
        filter: FilterType::ExactSet(hashes.collect()),
    }
}

/// Commits. A conflict comes back as `Conflict`, an attempt past its deadline as `DeadlineExceeded`.
pub(crate) async fn commit(prepared: &Prepared, deadline: Instant) -> Result<Dataset> {
    let left = deadline
        .checked_duration_since(Instant::now())
        .filter(|d| !d.is_zero());
    let left = left.ok_or(Error::DeadlineExceeded)?;
    still_there(&prepared.base).await?;
    let operation = Operation::Update {
        removed_fragment_ids: prepared.removed.clone(),
        updated_fragments: prepared.updated.clone(),
        new_fragments: prepared.new.clone(),
        fields_modified: vec![],
        compacted_sstables: prepared
            .marks
            .iter()
            .map(|(shard, top)| CompactedSsTable::new(*shard, *top))
            .collect(),
        // All fields, nested ones too: an index must not count rewritten rows as covered.
        fields_for_preserving_frag_bitmap: prepared
            .base
            .schema()
            .fields_pre_order()
            .map(|f| f.id as u32)
            .collect(),
        update_mode: Some(UpdateMode::RewriteRows),
        inserted_rows_filter: Some(sentinel(&prepared.marks, &prepared.key_ids)),
        updated_fragment_offsets: None,
    };
    let transaction = TransactionBuilder::new(prepared.base.version_id(), operation)
        .transaction_properties(Some(Arc::new(properties())))
        .build();
    CommitBuilder::new(prepared.base.clone())
        .with_skip_auto_cleanup(true)
        .with_affected_rows(RowAddrTreeMap::from(prepared.addresses.clone()))
        .with_timeout(Some(left))
        .with_retry_timeout(left.min(Duration::from_secs(30)))
        .execute(transaction)
        .await
        .map_err(|e| match e {
            LanceError::Timeout { .. } => Error::DeadlineExceeded,
            e => Error::lance("commit", e),
        })
}

/// The properties that name a commit as ours.
pub(crate) fn properties() -> HashMap<String, String> {
    HashMap::from([(PROPERTY.to_string(), env!("CARGO_PKG_VERSION").to_string())])
}

/// Whether the version that was read still has its manifest. Versions are cleaned up oldest first, so while it is there
/// no newer one is gone, and Lance sees every commit made since (contract 6).
pub(crate) async fn still_there(base: &Dataset) -> Result<()> {
    let store = base
        .object_store(None)
        .await
        .map_err(|e| Error::lance("open the table's store", e))?;
    match store.inner.head(&base.manifest_location().path).await {
        Ok(_) => Ok(()),
        Err(object_store::Error::NotFound { .. }) => Err(Error::Conflict("commit")),
        Err(e) => Err(Error::store("look at the version that was read", e)),
    }
}
