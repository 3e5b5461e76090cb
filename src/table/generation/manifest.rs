//! A generation's own manifest, and the dataset that it describes.
//!
//! Lives here: decoding the one manifest that a generation has, opening the generation by it, and whether its files are
//! all there. May use: Lance's dataset.
//! Never: a newer version, or another base, that somebody put into the generation's directory (contract 21).

use bytes::Bytes;
use lance::Dataset;
use lance::dataset::builder::DatasetBuilder;
use lance_io::object_store::ObjectStore;
use lance_table::format::{Manifest, pb};
use lance_table::io::commit::ManifestNamingScheme;
use lance_table::io::deletion::deletion_file_path;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStoreExt as _};
use prost::Message;

use super::super::error::{Error, Result};
use super::{Generation, VERSION};

impl Generation {
    /// Whether its manifest and every file that it names are there. A manifest that cannot be read names none.
    ///
    /// # Errors
    /// The store's kinds.
    pub(crate) async fn is_there(&self, store: &ObjectStore, table: &Path) -> Result<bool> {
        const DOING: &str = "look for a generation's files";
        let dir = self.dir(table);
        let bytes = match store
            .inner
            .get(&ManifestNamingScheme::V2.manifest_path(&dir, VERSION))
            .await
        {
            Ok(got) => got.bytes().await.map_err(|e| Error::store(DOING, e))?,
            Err(StoreError::NotFound { .. }) => return Ok(false),
            Err(e) => return Err(Error::store(DOING, e)),
        };
        let Ok(manifest) = decode(self, &bytes) else {
            return Ok(true);
        };
        for fragment in manifest.fragments.iter() {
            let data = fragment
                .files
                .iter()
                .map(|f| dir.clone().join("data").join(f.path.as_str()));
            let deletions = fragment.deletion_file.iter();
            let deletions = deletions.map(|d| deletion_file_path(&dir, fragment.id, d));
            for file in data.chain(deletions) {
                match store.inner.head(&file).await {
                    Ok(_) => {}
                    Err(StoreError::NotFound { .. }) => return Ok(false),
                    Err(e) => return Err(Error::store(DOING, e)),
                }
            }
        }
        Ok(true)
    }
}

/// Decodes a manifest file.
pub(super) fn decode(generation: &Generation, file: &Bytes) -> Result<Manifest> {
    let broken = || generation.unreadable("its manifest is broken");
    let proto = pb::Manifest::decode(message(generation, file)?).map_err(|_| broken())?;
    Manifest::try_from(proto).map_err(|_| broken())
}

/// A manifest file's message: length-prefixed at the position that the file's last 16 bytes name.
fn message<'a>(generation: &Generation, file: &'a Bytes) -> Result<&'a [u8]> {
    let broken = || generation.unreadable("its manifest is broken");
    let end = file.len().checked_sub(16).ok_or_else(broken)?;
    if !file.ends_with(b"LANC") {
        return Err(broken());
    }
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?))
    };
    let start = word(end).ok_or_else(broken)? as usize;
    let size = file
        .get(start..start.saturating_add(4))
        .and_then(|b| b.try_into().ok())
        .map(u32::from_le_bytes);
    size.and_then(|n| file.get(start + 4..start + 4 + n as usize))
        .ok_or_else(broken)
}

/// Opens a generation as a dataset at its one version: what else lies in its directory, a newer version among it, is not
/// asked for.
pub(super) async fn open_dataset(base: &Dataset, generation: &Generation) -> Result<Dataset> {
    let uri = format!(
        "{}/_mem_wal/{}/{}",
        base.uri().trim_end_matches('/'),
        generation.shard,
        generation.path
    );
    let failed = |e| generation.wrap("open it", e);
    let mut builder = DatasetBuilder::from_uri(uri)
        .with_session(base.session())
        .with_version(VERSION);
    if let Some(params) = base.store_params() {
        builder = builder.with_store_params(params.clone());
    }
    let dataset = builder.load().await.map_err(failed)?;
    let manifest = dataset.manifest();
    if manifest.version != VERSION || manifest.branch.is_some() {
        return Err(generation.unreadable("its manifest is of another version"));
    }
    if !manifest.base_paths.is_empty() {
        return Err(generation.foreign());
    }
    Ok(dataset)
}
