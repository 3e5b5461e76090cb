//! Why a table cannot be opened.
//!
//! Lives here: the questions that are asked of its store after a failure, so that the answer is a kind and not a text.
//! May use: the store alone. Never: a write, or a request when opening went well.

use std::error::Error as StdError;

use futures::TryStreamExt;
use lance_table::io::commit::ManifestNamingScheme;
use object_store::client::HttpError;
use object_store::{Error as StoreError, ObjectStore as _, ObjectStoreExt as _};

use super::error::{Error, Result, is_io};
use super::store::{Location, Stores};

/// A place where no table is: nothing at all, or something else.
pub(crate) fn not_there(location: &Location) -> Error {
    if location.local_path().is_some_and(|p| p.exists()) {
        return Error::NotALanceTable(
            location.uri.clone(),
            "it has no version of a Lance table in it".into(),
        );
    }
    Error::TableNotFound(location.uri.clone())
}

/// A table whose newest manifest is no manifest.
pub(crate) fn broken(location: &Location) -> Error {
    Error::Corrupt {
        what: format!(
            "{}: the table's newest manifest is broken; restore a good version of it",
            location.uri
        ),
    }
}

/// Why a table that is there cannot be opened: its store is asked step by step, so that no text has to be read.
pub(crate) async fn diagnose(
    stores: &Stores,
    location: &Location,
    e: Option<lance::Error>,
) -> Error {
    if let Some(e) = &e {
        tracing::debug!(error = %e, "the table cannot be opened");
    }
    if location.local_path().is_some_and(|p| p.is_file()) {
        return Error::NotALanceTable(location.uri.clone(), "it is a file, not a folder".into());
    }
    match look_at_versions(stores, location).await {
        Err(e) => e,
        Ok(false) => broken(location),
        Ok(true) => match e.map(|e| Error::lance("open the table", e)) {
            Some(Error::Lance { source, .. }) if is_io(&source) => {
                Error::StoreUnreachable("open the table")
            }
            Some(Error::Lance { .. }) | None => Error::Corrupt {
                what: format!(
                    "{}: the table's newest manifest cannot be read by this Lance; restore a good version of it",
                    location.uri
                ),
            },
            Some(e) => e,
        },
    }
}

/// Whether the newest manifest is whole, as far as its last bytes say.
async fn look_at_versions(stores: &Stores, location: &Location) -> Result<bool> {
    let built = stores.builder(location)?.build_object_store().await;
    let (store, path, _) = built.map_err(|e| Error::lance("open the table's store", e))?;
    let versions = path.join("_versions");
    // A refusal of a listing has no type of its own in every store; that of a look at one object has.
    let nothing = versions.clone().join("_");
    match store.inner.head(&nothing).await {
        Ok(_) | Err(StoreError::NotFound { .. }) => {}
        Err(e) => return Err(Error::store("open the table", e)),
    }
    let listed: Result<Vec<_>, _> = store.inner.list(Some(&versions)).try_collect().await;
    let listed = match listed {
        Ok(listed) => listed,
        // Where the bucket itself is missing, a store answers a look with "not there" and a listing with an error.
        Err(e) if location.local_path().is_none() && was_answered(&e) => {
            match store.inner.head(&nothing).await {
                Err(StoreError::NotFound { .. }) => return Err(not_there(location)),
                _ => return Err(Error::store("list the table's versions", e)),
            }
        }
        Err(e) => return Err(Error::store("list the table's versions", e)),
    };
    let named = listed.into_iter().filter_map(|meta| {
        let name = meta.location.filename()?;
        let scheme = ManifestNamingScheme::detect_scheme(name)?;
        Some((scheme.parse_version(name)?, meta))
    });
    let Some((_, newest)) = named.max_by_key(|(version, _)| *version) else {
        return Err(not_there(location));
    };
    if newest.size < 16 {
        return Ok(false);
    }
    let got = store
        .inner
        .get_range(&newest.location, newest.size - 16..newest.size)
        .await;
    let end = got.map_err(|e| Error::store("read the table's newest manifest", e))?;
    let start = u64::from_le_bytes(end[..8].try_into().unwrap_or([0xff; 8]));
    Ok(end.ends_with(b"LANC") && start < newest.size - 16)
}

/// Whether a failed request reached the store and was answered.
fn was_answered(e: &StoreError) -> bool {
    let mut next: Option<&(dyn StdError + 'static)> = Some(e);
    while let Some(e) = next {
        if e.is::<HttpError>() {
            return false;
        }
        next = e.source();
    }
    true
}
