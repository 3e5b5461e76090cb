//! What a table's retained versions say of its past.
//!
//! Lives here: the highest watermarks that they hold, so that a restore or an overwrite that was made before this process
//! began still shows (contract 3). May use: Lance's versions. Never: a judgement (`observe`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lance::Dataset;
use lance::dataset::transaction::Transaction;
use object_store::ObjectStoreExt as _;
use uuid::Uuid;

use super::base::{details, watermarks};
use super::commit::acknowledged_by;
use super::error::{Error, Result, is_io};
use super::marks::Made;
use super::shard::AT_ONCE;

/// So many retained versions are asked for watermarks that went back since.
pub(crate) const LOOK_BACK: u64 = 256;

/// What retained versions say.
#[derive(Default)]
pub(crate) struct Past {
    /// Per shard, the highest watermark. What a person acknowledged in a later commit says nothing any more.
    pub highest: BTreeMap<Uuid, u64>,
    /// The watermarks of each version, ascending.
    pub versions: Vec<Version>,
}

/// What one version says.
pub(crate) struct Version {
    pub made: Made,
    /// Whether it has a MemWAL index.
    pub indexed: bool,
    pub marks: BTreeMap<Uuid, u64>,
}

/// Reads the retained versions before this one: a restore or an overwrite before this process began shows there, and since
/// when the base holds what.
pub(crate) async fn look_back(base: &Arc<Dataset>) -> Result<Past> {
    let newest = base.version_id();
    let versions = newest.saturating_sub(LOOK_BACK).max(1)..newest;
    let found = retained(base, versions.clone()).await?;
    let found: Vec<_> = found.into_iter().flatten().collect();
    let now = details(base)
        .await?
        .as_ref()
        .map(watermarks)
        .unwrap_or_default();
    let back = |shard: &Uuid, mark: u64| now.get(shard).is_none_or(|now| *now < mark);
    let settled = match found
        .iter()
        .flat_map(|v| &v.marks)
        .any(|(shard, mark)| back(shard, *mark))
    {
        true => {
            let said = settled(base, versions.start..newest.saturating_add(1));
            said.await.0
        }
        false => BTreeMap::new(),
    };
    let mut highest = BTreeMap::new();
    for v in &found {
        let counts = |shard: &Uuid| settled.get(shard).is_none_or(|at| v.made.version >= *at);
        for (shard, mark) in v.marks.iter().filter(|(shard, _)| counts(shard)) {
            let held: &mut u64 = highest.entry(*shard).or_default();
            *held = *mark.max(held);
        }
    }
    Ok(Past {
        highest,
        versions: found,
    })
}

/// What some versions say, in their order; `None` for one that is gone or broken.
pub(crate) async fn retained(base: &Dataset, versions: Range<u64>) -> Result<Vec<Option<Version>>> {
    stream::iter(versions)
        .map(|version| marks_of(base, version))
        .buffered(AT_ONCE)
        .try_collect()
        .await
}

/// One version; `None` where it is gone or broken.
pub(crate) async fn marks_of(base: &Dataset, version: u64) -> Result<Option<Version>> {
    match opened(base, version).await? {
        Some(old) => Version::of(&old).await.map(Some),
        None => Ok(None),
    }
}

/// One version and the commit that made it, each `None` where it is gone or broken.
pub(crate) async fn look_at(
    base: &Dataset,
    version: u64,
) -> Result<(Option<Version>, Option<Transaction>)> {
    let Some(old) = opened(base, version).await? else {
        return Ok((None, None));
    };
    let (says, made) = futures::try_join!(Version::of(&old), commit_of(&old))?;
    Ok((Some(says), made))
}

async fn opened(base: &Dataset, version: u64) -> Result<Option<Dataset>> {
    if version == base.version_id() {
        return Ok(Some(base.clone()));
    }
    // Lance panics on some broken manifests.
    match AssertUnwindSafe(base.checkout_version(version))
        .catch_unwind()
        .await
    {
        Ok(Ok(old)) => Ok(Some(old)),
        Ok(Err(e)) if is_io(&e) && whole(base, version).await? => {
            Err(Error::lance("look at an older version", e))
        }
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

impl Version {
    async fn of(old: &Dataset) -> Result<Self> {
        let details = details(old).await?;
        Ok(Self {
            made: Made::of(old),
            indexed: details.is_some(),
            marks: details.as_ref().map(watermarks).unwrap_or_default(),
        })
    }
}

/// The commit that made this version, out of the store.
async fn commit_of(old: &Dataset) -> Result<Option<Transaction>> {
    let version = old.version_id();
    let read = AssertUnwindSafe(old.read_transaction_by_version(version));
    match read.catch_unwind().await {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(e)) if is_io(&e) && whole(old, version).await? => {
            Err(Error::lance("look at who made a version", e))
        }
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

/// Looks at versions up to `base`, ascending, some at a time.
pub(crate) async fn unseen(
    base: &Dataset,
    versions: Range<u64>,
) -> Result<Vec<(u64, Option<Version>, Option<Transaction>)>> {
    stream::iter(versions)
        .map(|version| async move {
            let (says, made) = look_at(base, version).await?;
            Ok((version, says, made))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await
}

/// Per shard, the newest version whose commit acknowledged that it went back; and whether every one could be read.
pub(crate) async fn settled(base: &Dataset, versions: Range<u64>) -> (BTreeMap<Uuid, u64>, bool) {
    let (mut found, mut every) = (BTreeMap::new(), true);
    let mut read = stream::iter(versions)
        .map(|version| async move {
            let read = AssertUnwindSafe(base.read_transaction_by_version(version))
                .catch_unwind()
                .await;
            (version, read)
        })
        .buffer_unordered(AT_ONCE);
    while let Some((version, read)) = read.next().await {
        let Ok(Ok(read)) = read else {
            every = false;
            continue;
        };
        let Some(transaction) = read else {
            continue;
        };
        for shard in acknowledged_by(&transaction) {
            let at: &mut u64 = found.entry(shard).or_default();
            *at = version.max(*at);
        }
    }
    (found, every)
}

/// Whether a version's manifest is there and long enough to be one: asking for a part of an empty file fails like a store
/// that does not answer.
pub(crate) async fn whole(base: &Dataset, version: u64) -> Result<bool> {
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
