//! The one commit of a merge: rows, deletes and watermarks together, fenced.
//!
//! Lives here: the marked `Update` and its sentinel (contracts 4 and 5), the deadline (contract 6), and what a failed
//! commit means, which is read from the table and never from an error's text. May use: Lance's commit. Never: a retry
//! of the same transaction, which would carry a decision that is no longer right.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use lance::Dataset;
use lance::dataset::CommitBuilder;
use lance::dataset::transaction::{Operation, Transaction, TransactionBuilder, UpdateMode};
use lance_core::Error as LanceError;
use lance_index::mem_wal::CompactedSsTable;
use lance_io::object_store::ObjectStore;
use lance_select::RowAddrTreeMap;
use lance_table::format::Fragment;
use lance_table::format::key_existence::{FilterType, KeyExistenceFilter};
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use roaring::RoaringTreemap;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::error::{Error, Result};
use super::tip::is_newest;

/// Every commit of ours carries this property, with our version as its value.
pub(crate) const PROPERTY: &str = "freshet";
/// A merge that a person allowed though its shard went back names the shard here: what older versions say of it is
/// settled from then on, for every process.
const ACKNOWLEDGED: &str = "freshet.went-back-acknowledged";
/// A commit that took the watermarks of shards out of the base because a person allowed it names them here too.
const RESET: &str = "freshet.watermark-reset";

/// What a merge commits.
pub(crate) struct Prepared {
    pub base: Arc<Dataset>,
    pub new: Vec<Fragment>,
    pub updated: Vec<Fragment>,
    pub removed: Vec<u64>,
    pub addresses: RoaringTreemap,
    pub marks: Vec<(Uuid, u64)>,
    pub key_ids: Vec<i32>,
    /// Shards that went back and that a person said are as they should be.
    pub acknowledged: Vec<Uuid>,
    /// Names this attempt's transaction.
    pub transaction: String,
}

/// Two merges of one shard carry the same hash, so one of them loses; merges of different shards carry different ones.
fn sentinel(marks: &[(Uuid, u64)], key_ids: &[i32]) -> KeyExistenceFilter {
    // A hash that is the same in every build: mergers of two releases have to meet, too.
    let hashes = marks.iter().map(|(shard, _)| xxh3_64(shard.as_bytes()));
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
        .uuid(prepared.transaction.clone())
        .transaction_properties(Some(Arc::new(with_acknowledged(&prepared.acknowledged))))
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

fn with_acknowledged(shards: &[Uuid]) -> HashMap<String, String> {
    let mut all = properties();
    if !shards.is_empty() {
        let names: Vec<String> = shards.iter().map(Uuid::to_string).collect();
        all.insert(ACKNOWLEDGED.to_string(), names.join(","));
    }
    all
}

/// The properties of a commit that takes watermarks out: they go back, and that is as it should be.
pub(crate) fn resetting(shards: &[Uuid]) -> HashMap<String, String> {
    let mut all = with_acknowledged(shards);
    if let Some(names) = all.get(ACKNOWLEDGED).cloned() {
        all.insert(RESET.to_string(), names);
    }
    all
}

/// The shards that a commit acknowledged: what was known of their watermarks before says nothing any more.
pub(crate) fn acknowledged_by(transaction: &Transaction) -> Vec<Uuid> {
    named_by(transaction, ACKNOWLEDGED)
}

/// The shards whose watermarks a commit took out.
pub(crate) fn reset_by(transaction: &Transaction) -> Vec<Uuid> {
    named_by(transaction, RESET)
}

fn named_by(transaction: &Transaction, property: &str) -> Vec<Uuid> {
    let properties = transaction.transaction_properties.as_deref();
    let named = properties.and_then(|p| p.get(property)).map(String::as_str);
    named
        .into_iter()
        .flat_map(|n| n.split(','))
        .filter_map(|n| Uuid::parse_str(n).ok())
        .collect()
}

/// Whether the version that was read and every one made since still have their manifests: only then does Lance see every
/// commit that this one may conflict with (contract 6). The one that was read says nothing of the others, since a tag may
/// keep it while its successors are cleaned up.
pub(crate) async fn still_there(base: &Dataset) -> Result<()> {
    const DOING: &str = "look at the versions since the one that was read";
    if is_newest(base).await {
        return Ok(());
    }
    let store = base
        .object_store(None)
        .await
        .map_err(|e| Error::lance("open the table's store", e))?;
    let read = base.manifest_location();
    let newest = async {
        let newest = base.latest_version_id().await;
        newest.map_err(|e| Error::lance(DOING, e))
    };
    let own = there(&store, read.path.clone());
    let (newest, ()) = futures::try_join!(newest, own)?;
    // The newest was just found; what lies between is asked for.
    let between = (read.version.saturating_add(1)..newest).map(|version| {
        let dir = &base.branch_location().path;
        there(&store, read.naming_scheme.manifest_path(dir, version))
    });
    stream::iter(between)
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await
        .map(|_| ())
}

/// Manifests that are looked for at once.
const AT_ONCE: usize = 16;

async fn there(store: &ObjectStore, manifest: Path) -> Result<()> {
    match store.inner.head(&manifest).await {
        Ok(_) => Ok(()),
        Err(object_store::Error::NotFound { .. }) => Err(Error::Conflict("commit")),
        Err(e) => Err(Error::store("look for a version's manifest", e)),
    }
}

/// Whether the commit of a transaction is among the versions of `latest` made after `read`; `None` where it cannot be told.
pub(crate) async fn landed(latest: &Dataset, read: u64, transaction: &str) -> Option<bool> {
    for version in read.saturating_add(1)..=latest.version_id() {
        match latest.read_transaction_by_version(version).await {
            Ok(Some(t)) if t.uuid == transaction => return Some(true),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return None,
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentinel_of_a_shard_is_the_same_in_every_release() {
        let filter = sentinel(&[(Uuid::from_u128(7), 3)], &[0]);
        let FilterType::ExactSet(hashes) = filter.filter else {
            panic!("not exact");
        };
        assert_eq!(
            hashes.into_iter().collect::<Vec<_>>(),
            [18_294_170_613_856_959_120]
        );
    }
}
