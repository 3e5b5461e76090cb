//! Shards and their manifests, as storage holds them.
//!
//! Lives here: listing shards, finding and reading a shard's newest manifest at the least requests, and telling which
//! shards' cannot be used (`manifest`: how one is read). May use: lance's manifest types, object_store.
//! Never: a claim of a shard's epoch, or a pending list that is inferred from directories or older manifests.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use lance::dataset::mem_wal::util::{
    manifest_filename, mem_wal_path, parse_bit_reversed_filename, shard_manifest_path,
};
use lance_index::mem_wal::ShardManifest;
use lance_io::object_store::ObjectStore;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore as _, ObjectStoreExt as _};
use uuid::Uuid;

use super::error::{Error, Result};

mod manifest;

use manifest::decode;

/// One shard's newest manifest.
#[derive(Debug, Clone)]
pub struct ShardState {
    /// The shard.
    pub shard: Uuid,
    /// The manifest that was read.
    pub manifest: Arc<ShardManifest>,
    /// When the store says that manifest was written.
    pub written_at: Timestamp,
    /// Whether this Lance could write the manifest back with nothing lost.
    pub supported: bool,
}

/// A shard of which nothing is known but its id: its newest manifest cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardFault {
    /// The shard.
    pub shard: Uuid,
    /// What is so and what to do; the shard is not named in it.
    pub what: String,
}

impl ShardFault {
    pub(crate) fn error(&self) -> Error {
        Error::UnsupportedManifest {
            shard: self.shard,
            what: self.what.clone(),
        }
    }
}

/// The newest manifests of some shards, and the shards whose newest manifest cannot be used. A shard without any is in
/// neither.
#[derive(Debug, Clone, Default)]
pub(crate) struct Newest {
    /// Ascending by id.
    pub states: Vec<ShardState>,
    /// Ascending by id.
    pub faults: Vec<ShardFault>,
}

/// What lies under `_mem_wal/`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shards {
    /// Directories that are shards, ascending.
    pub ids: Vec<Uuid>,
    /// Other directories; they are reported and never touched.
    pub unknown: Vec<String>,
}

/// Lists the shards of a table: one listing.
pub(crate) async fn list(store: &ObjectStore, table: &Path) -> Result<Shards> {
    let found = match store
        .inner
        .list_with_delimiter(Some(&mem_wal_path(table)))
        .await
    {
        Ok(found) => found,
        Err(StoreError::NotFound { .. }) => return Ok(Shards::default()),
        Err(e) => return Err(Error::store("list the shards", e)),
    };
    let mut shards = Shards::default();
    for prefix in found.common_prefixes {
        let name = prefix.filename().unwrap_or_default();
        match Uuid::parse_str(name) {
            Ok(id) => shards.ids.push(id),
            Err(_) => shards.unknown.push(name.to_string()),
        }
    }
    shards.ids.sort();
    Ok(shards)
}

/// How many manifests ahead of a known one are asked for one by one before the directory is listed.
const WALK: u64 = 32;

/// The newest manifest of a shard, or `None` where it has none yet. `known` is the state read before: unchanged, it costs
/// one request.
///
/// # Errors
/// `UnsupportedManifest` where it cannot be used, whatever older ones say; the store's kinds.
pub(crate) async fn newest(
    store: &ObjectStore,
    table: &Path,
    shard: Uuid,
    known: Option<&ShardState>,
) -> Result<Option<ShardState>> {
    let dir = shard_manifest_path(table, &shard);
    let Some(known) = known else {
        return first_look(store, &dir, shard).await;
    };
    let mut version = known.manifest.version;
    while let Some(next) = following(store, &dir, version).await? {
        version = next;
        if version - known.manifest.version >= WALK {
            version = listed(store, &dir).await?.unwrap_or(version);
            break;
        }
    }
    match version {
        v if v == known.manifest.version => Ok(Some(known.clone())),
        v => read(store, &dir, shard, v).await.map(Some),
    }
}

/// The newest manifest of a shard that was not seen before: the one that the writer's hint names, unless a newer one is
/// there; else by a listing.
async fn first_look(store: &ObjectStore, dir: &Path, shard: Uuid) -> Result<Option<ShardState>> {
    let hint = match store
        .inner
        .get(&dir.clone().join("version_hint.json"))
        .await
    {
        Ok(got) => got.bytes().await.ok().and_then(|b| {
            let hint = serde_json::from_slice::<serde_json::Value>(&b).ok()?;
            hint.get("version")?.as_u64()
        }),
        Err(StoreError::NotFound { .. }) => None,
        Err(e) => return Err(Error::store("read a shard's version hint", e)),
    };
    if let Some(hint) = hint {
        let (hinted, newer) =
            futures::join!(read(store, dir, shard, hint), following(store, dir, hint));
        match (hinted, newer?) {
            (Ok(state), None) => return Ok(Some(state)),
            // The hint lags, or names what is not there: the listing knows.
            (Ok(_) | Err(Error::UnsupportedManifest { .. }), Some(_))
            | (Err(Error::Corrupt { .. }), _) => {}
            (Err(e), _) => return Err(e),
        }
    }
    match listed(store, dir).await? {
        Some(version) => read(store, dir, shard, version).await.map(Some),
        None => Ok(None),
    }
}

/// The version after `version`, if there is one. A version is what a file says: any number.
async fn following(store: &ObjectStore, dir: &Path, version: u64) -> Result<Option<u64>> {
    let Some(next) = version.checked_add(1) else {
        return Ok(None);
    };
    match store
        .inner
        .head(&dir.clone().join(manifest_filename(next)))
        .await
    {
        Ok(_) => Ok(Some(next)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(e) => Err(Error::store("look for a newer shard manifest", e)),
    }
}

/// Every manifest version of a shard with its time of writing, by listing.
pub(crate) async fn versions(
    store: &ObjectStore,
    table: &Path,
    shard: Uuid,
) -> Result<BTreeMap<u64, Timestamp>> {
    let dir = shard_manifest_path(table, &shard);
    store
        .inner
        .list(Some(&dir))
        .map_err(|e| Error::store("list a shard's manifests", e))
        .try_filter_map(|meta| async move {
            let version = meta
                .location
                .filename()
                .filter(|name| name.ends_with(".binpb"))
                .and_then(parse_bit_reversed_filename);
            Ok(version.map(|v| (v, timestamp(meta.last_modified))))
        })
        .try_collect()
        .await
}

async fn listed(store: &ObjectStore, dir: &Path) -> Result<Option<u64>> {
    let names: Vec<_> = store
        .inner
        .list(Some(dir))
        .try_collect()
        .await
        .or_else(|e| match e {
            StoreError::NotFound { .. } => Ok(vec![]),
            e => Err(Error::store("list a shard's manifests", e)),
        })?;
    Ok(names
        .iter()
        .filter_map(|m| {
            m.location
                .filename()
                .filter(|n| n.ends_with(".binpb"))
                .and_then(parse_bit_reversed_filename)
        })
        .max())
}

/// Reads one manifest version.
pub(crate) async fn read_version(
    store: &ObjectStore,
    table: &Path,
    shard: Uuid,
    version: u64,
) -> Result<ShardState> {
    read(store, &shard_manifest_path(table, &shard), shard, version).await
}

async fn read(store: &ObjectStore, dir: &Path, shard: Uuid, version: u64) -> Result<ShardState> {
    let path = dir.clone().join(manifest_filename(version));
    let got = store
        .inner
        .get(&path)
        .await
        .map_err(|e| Error::store("read a shard manifest", e))?;
    let written_at = timestamp(got.meta.last_modified);
    let bytes = got
        .bytes()
        .await
        .map_err(|e| Error::store("read a shard manifest", e))?;
    let (manifest, supported) = decode(shard, version, bytes)?;
    Ok(ShardState {
        shard,
        manifest: Arc::new(manifest),
        written_at,
        supported,
    })
}

/// The newest manifests of many shards, some at a time. One that cannot be used is a fault of its shard alone; a store that
/// does not answer fails the whole look.
pub(crate) async fn newest_of(
    store: &ObjectStore,
    table: &Path,
    shards: &[Uuid],
    known: &BTreeMap<Uuid, ShardState>,
) -> Result<Newest> {
    // Boxed one by one: a closure over borrowed arguments would keep callers from being spawned.
    let looks: Vec<_> = shards
        .iter()
        .map(|shard| newest(store, table, *shard, known.get(shard)).boxed())
        .collect();
    let mut looks = stream::iter(looks).buffered(AT_ONCE);
    let mut found = Newest::default();
    while let Some(look) = looks.next().await {
        match look {
            Ok(state) => found.states.extend(state),
            Err(Error::UnsupportedManifest { shard, what }) => {
                found.faults.push(ShardFault { shard, what });
            }
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// Forgets states whose manifest is gone or is another file by now: the shard was made again, and its versions count from
/// the start. One request for each.
pub(crate) async fn forget_replaced(
    store: &ObjectStore,
    table: &Path,
    known: &mut BTreeMap<Uuid, ShardState>,
) -> Result<()> {
    let looks = known.values().map(|state| {
        let name = manifest_filename(state.manifest.version);
        let path = shard_manifest_path(table, &state.shard).join(name);
        let (shard, written_at) = (state.shard, state.written_at);
        async move {
            match store.inner.head(&path).await {
                Ok(meta) if timestamp(meta.last_modified) == written_at => Ok(None),
                Ok(_) | Err(StoreError::NotFound { .. }) => Ok(Some(shard)),
                Err(e) => Err(Error::store("look for a shard manifest", e)),
            }
        }
    });
    let replaced: Vec<_> = stream::iter(looks.collect::<Vec<_>>())
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    for shard in replaced.into_iter().flatten() {
        known.remove(&shard);
    }
    Ok(())
}

/// Small requests under way at once for one table.
pub(crate) const AT_ONCE: usize = 64;

/// A store's time as ours.
pub(crate) fn timestamp(t: chrono::DateTime<chrono::Utc>) -> Timestamp {
    // chrono's range lies within jiff's save for years nobody stores; such a time is as old as time gets.
    Timestamp::new(t.timestamp(), t.timestamp_subsec_nanos() as i32)
        .unwrap_or(Timestamp::UNIX_EPOCH)
}
