//! What a table's retained versions say of its past.
//!
//! Lives here: the highest watermarks that they hold, so that a restore or an overwrite that was made before this process
//! began still shows (contract 3). May use: Lance's versions. Never: a judgement (`observe`).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lance::Dataset;
use object_store::ObjectStoreExt as _;
use uuid::Uuid;

use super::base::{details, watermarks};
use super::error::{Error, Result, is_io};
use super::shard::AT_ONCE;

/// So many retained versions are asked for watermarks that went back since.
const LOOK_BACK: u64 = 256;

/// Watermarks that retained versions hold: a restore or an overwrite before this process began shows there.
pub(crate) async fn look_back(base: &Arc<Dataset>) -> Result<Vec<(Uuid, u64)>> {
    let newest = base.version_id();
    let versions = (newest.saturating_sub(LOOK_BACK).max(1)..newest).map(|version| async move {
        match AssertUnwindSafe(base.checkout_version(version))
            .catch_unwind()
            .await
        {
            Ok(Ok(old)) => details(&old).await,
            Ok(Err(e)) if is_io(&e) && whole(base, version).await? => {
                Err(Error::lance("look at an older version", e))
            }
            // A version that is gone, or broken (Lance panics on some), says nothing.
            Ok(Err(_)) | Err(_) => Ok(None),
        }
    });
    let found: Vec<_> = stream::iter(versions)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(found
        .into_iter()
        .flatten()
        .flat_map(|d| watermarks(&d))
        .collect())
}

/// Whether a version's manifest is there and long enough to be one: asking for a part of an empty file fails like a store
/// that does not answer.
async fn whole(base: &Dataset, version: u64) -> Result<bool> {
    const DOING: &str = "look at an older version";
    let store = base
        .object_store(None)
        .await
        .map_err(|e| Error::lance(DOING, e))?;
    let scheme = base.manifest_location().naming_scheme;
    match store
        .inner
        .head(&scheme.manifest_path(&base.branch_location().path, version))
        .await
    {
        Ok(meta) => Ok(meta.size >= 16),
        Err(object_store::Error::NotFound { .. }) => Ok(false),
        Err(e) => Err(Error::store(DOING, e)),
    }
}
