//! A table that is open: its base, its store, its key.
//!
//! Lives here: `Table`, the checks that refuse a table by name before anything is read or written (contracts 9, 21), and
//! looking at the newest base version. May use: lance. Never: pending generations (`snapshot`), commits (`commit`).

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use lance::Dataset;
use lance::dataset::mem_wal::{DatasetMemWalExt, TOMBSTONE};
use lance_core::datatypes::Schema;
use lance_file::version::ConcreteFileVersion;
use lance_index::mem_wal::MemWalIndexDetails;
use lance_io::object_store::ObjectStore;
use lance_table::format::Manifest;
use object_store::path::Path;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::diagnose::{broken, diagnose, not_there};
use super::error::{Error, Result, is_not_found};
use super::store::{Location, Stores, StoresConfig};
use super::tip::is_newest;

/// A Lance table that writers reach through MemWAL.
pub struct Table {
    location: Location,
    config: StoresConfig,
    store: Arc<ObjectStore>,
    path: Path,
    latest: Mutex<Arc<Dataset>>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("location", &self.location)
            .finish_non_exhaustive()
    }
}

impl Table {
    /// Opens the newest version of a table.
    ///
    /// # Errors
    /// `TableNotFound`, `NotALanceTable`, `Unsupported` (a branch, legacy storage, a column named `_tombstone`),
    /// `ForeignBase`, and the store's kinds. A table without MemWAL opens: its fragments can be read; see
    /// [`Table::require_mem_wal`].
    pub async fn open(stores: &Stores, location: &Location) -> Result<Self> {
        // A manifest that is cut short makes Lance panic; that is a fact about the table, not the end of this process.
        let load = AssertUnwindSafe(stores.builder(location)?.load()).catch_unwind();
        let dataset = match load.await {
            Ok(Ok(dataset)) => dataset,
            Ok(Err(e)) if is_not_found(&e) => return Err(not_there(location)),
            Ok(Err(e)) => return Err(diagnose(stores, location, Some(e)).await),
            Err(_panic) => return Err(diagnose(stores, location, None).await),
        };
        refuse(location, &dataset)?;
        let store = dataset
            .object_store(None)
            .await
            .map_err(|e| Error::lance("open the table's store", e))?;
        let path = dataset.branch_location().path;
        Ok(Self {
            location: location.clone(),
            config: stores.config().clone(),
            store,
            path,
            latest: Mutex::new(Arc::new(dataset)),
        })
    }

    /// Where the table lies.
    pub fn location(&self) -> &Location {
        &self.location
    }

    pub(crate) fn store(&self) -> &Arc<ObjectStore> {
        &self.store
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Looks for the newest base version.
    pub(crate) async fn latest(&self) -> Result<Arc<Dataset>> {
        let mut held = self.latest.lock().await;
        if is_newest(&held).await {
            return Ok(held.clone());
        }
        let mut dataset = held.as_ref().clone();
        // As in `open`: a broken manifest may make Lance panic.
        match AssertUnwindSafe(dataset.checkout_latest())
            .catch_unwind()
            .await
        {
            Ok(Ok(())) => {}
            Ok(Err(e)) if is_not_found(&e) => return Err(not_there(&self.location)),
            Ok(Err(e)) => return Err(Error::lance("look at the newest base version", e)),
            Err(_panic) => return Err(broken(&self.location)),
        }
        if !same_version(&dataset, &held) {
            refuse(&self.location, &dataset)?;
        }
        *held = Arc::new(dataset);
        Ok(held.clone())
    }

    /// An older base version.
    ///
    /// # Errors
    /// `TableNotFound` where it is not there any more; the store's kinds.
    pub(crate) async fn at_version(&self, version: u64) -> Result<Arc<Dataset>> {
        let newest = self.seen().await;
        // As in `open`: a broken manifest may make Lance panic.
        let found = AssertUnwindSafe(newest.checkout_version(version)).catch_unwind();
        match found.await {
            Ok(Ok(found)) => {
                refuse(&self.location, &found)?;
                Ok(Arc::new(found))
            }
            Ok(Err(e)) if is_not_found(&e) => Err(Error::TableNotFound(self.location.uri.clone())),
            Ok(Err(e)) => Err(Error::lance("open an older base version", e)),
            Err(_panic) => Err(broken(&self.location)),
        }
    }

    /// The newest version in a session that shares no cache with any other.
    pub(crate) async fn open_aside(&self) -> Result<Dataset> {
        let builder = Stores::new(self.config.clone()).builder(&self.location)?;
        let open = builder.load().await;
        open.map_err(|e| Error::lance("open the table once more", e))
    }

    /// The base version that was seen last, with no request.
    pub(crate) async fn seen(&self) -> Arc<Dataset> {
        self.latest.lock().await.clone()
    }

    /// Takes a version that our own commit made as the newest seen.
    pub(crate) async fn saw(&self, dataset: Dataset) {
        let mut held = self.latest.lock().await;
        if dataset.version_id() > held.version_id() {
            *held = Arc::new(dataset);
        }
    }

    /// Refuses a table on which MemWAL was never enabled.
    pub async fn require_mem_wal(&self) -> Result<()> {
        let dataset = self.seen().await;
        details(&dataset)
            .await?
            .map(|_| ())
            .ok_or_else(|| Error::NotMemWal(self.location.uri.clone()))
    }
}

/// Whether two base versions are one: numbers recur when a table is made again.
pub(crate) fn same_version(a: &Dataset, b: &Dataset) -> bool {
    a.version_id() == b.version_id() && e_tag(a) == e_tag(b)
}

/// The e_tag of a base version's manifest, where the store gives one. A listing of files and a look at one do not always
/// put it into quotes alike.
pub(crate) fn e_tag(of: &Dataset) -> Option<&str> {
    let told = of.manifest_location().e_tag.as_deref();
    told.map(|tag| tag.trim_matches('"'))
}

/// The MemWAL index of a base version; `None` where it was never enabled, or dropped.
pub(crate) async fn details(dataset: &Dataset) -> Result<Option<MemWalIndexDetails>> {
    dataset
        .mem_wal_index_details()
        .await
        .map_err(|e| Error::lance("read the table's MemWAL index", e))
}

/// Per shard, the highest generation recorded as compacted in a base version.
pub(crate) fn watermarks(details: &MemWalIndexDetails) -> BTreeMap<Uuid, u64> {
    details
        .compacted_sstables
        .iter()
        .map(|c| (c.shard_id, c.generation))
        .collect()
}

/// Refuses by name what must not be touched; nothing of the table but its manifest was read.
fn refuse(location: &Location, dataset: &Dataset) -> Result<()> {
    let manifest = dataset.manifest();
    let unsupported = |what: &str, remedy: &str| {
        Err(Error::Unsupported {
            what: format!("{}: {what}", location.uri),
            remedy: remedy.into(),
        })
    };
    if manifest.branch.is_some() {
        return unsupported(
            "a branch of a table",
            "name the table itself; its branches' shards are not main's backlog",
        );
    }
    // A branch's manifest names its table as a base, too.
    if let Some(base) = foreign_base(dataset, manifest) {
        return Err(Error::ForeignBase(base));
    }
    if dataset.schema().fields.iter().any(|f| f.name == TOMBSTONE) {
        return unsupported(
            "a table with a column of its own named `_tombstone`",
            "rename the column; MemWAL would take its true rows for deletes",
        );
    }
    if manifest.data_storage_format.lance_file_format() == ConcreteFileVersion::V1 {
        return unsupported(
            "a table in the legacy storage format (0.1)",
            "rewrite it with data_storage_version 2.0 or later",
        );
    }
    Ok(())
}

/// A base path outside the table's own folder, if the manifest names one.
fn foreign_base(dataset: &Dataset, manifest: &Manifest) -> Option<String> {
    let own = dataset.uri().trim_end_matches('/').to_string();
    manifest
        .base_paths
        .values()
        .map(|b| b.path.clone())
        .find(|path| {
            let path = path.trim_end_matches('/');
            path != own && !path.starts_with(&format!("{own}/"))
        })
}

/// The key columns of a table, in key order; empty where it has none.
pub(crate) fn key_fields(schema: &Schema) -> Vec<(String, i32)> {
    schema
        .unenforced_primary_key()
        .iter()
        .map(|f| (f.name.clone(), f.id))
        .collect()
}
