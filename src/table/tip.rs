//! Whether a base version is still the newest one, asked in one round.
//!
//! Lives here: the quick answer for stores whose listing is not in order (a local folder, S3 Express), where Lance finds
//! the newest version in three requests, one after another; the same three are sent at once here. May use: Lance's naming
//! of manifests. Never: a guess: whatever is not plainly "still the newest" is left to Lance's own way.

use lance::Dataset;
use lance_io::object_store::ObjectStore;
use lance_table::io::commit::uses_version_hint;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt as _};
use serde::Deserialize;

#[derive(Deserialize)]
struct Hint {
    version: u64,
}

/// Whether `dataset` is the newest version of its table and its manifest is as it was read. `false` says nothing: newer
/// versions may be there, or the store has a better way, or did not answer.
pub(crate) async fn is_newest(dataset: &Dataset) -> bool {
    let Ok(store) = dataset.object_store(None).await else {
        return false;
    };
    if store.has_direct_local_paths() || !uses_version_hint(&store) {
        return false;
    }
    let (dir, read) = (&dataset.branch_location().path, dataset.manifest_location());
    let Some(next) = read.version.checked_add(1) else {
        return false;
    };
    let next = read.naming_scheme.manifest_path(dir, next);
    let (hint, own, next) = futures::join!(
        hint(&store, dir),
        store.inner.head(&read.path),
        store.inner.head(&next)
    );
    let as_read = |own: ObjectMeta| own.e_tag.is_some() && own.e_tag == read.e_tag;
    hint == Some(read.version)
        && own.is_ok_and(as_read)
        && matches!(next, Err(object_store::Error::NotFound { .. }))
}

/// The version that the last writer named as the newest.
async fn hint(store: &ObjectStore, dir: &Path) -> Option<u64> {
    let path = dir
        .clone()
        .join("_versions")
        .join("latest_version_hint.json");
    let bytes = store.inner.get(&path).await.ok()?.bytes().await.ok()?;
    serde_json::from_slice::<Hint>(&bytes)
        .ok()
        .map(|h| h.version)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use arrow_array::{Int64Array, RecordBatch};
    use lance::dataset::{InsertBuilder, WriteMode, WriteParams};

    use super::*;

    async fn write(folder: &std::path::Path, mode: WriteMode) -> Dataset {
        let column = Arc::new(Int64Array::from(vec![1, 2])) as _;
        let rows = RecordBatch::try_from_iter([("n", column)]).unwrap();
        let params = WriteParams {
            mode,
            ..Default::default()
        };
        // Through the store, as a bucket is reached: Lance reads the folder of a `file` table itself.
        let uri = format!("file-object-store://{}/t.lance", folder.display());
        InsertBuilder::new(uri.as_str())
            .with_params(&params)
            .execute(vec![rows])
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_version_is_the_newest_until_another_is_made_whatever_the_hint_says() {
        let folder = tempfile::tempdir().unwrap();
        let first = write(folder.path(), WriteMode::Create).await;
        assert!(is_newest(&first).await);
        let hint = folder
            .path()
            .join("t.lance/_versions/latest_version_hint.json");
        let old = fs::read(&hint).unwrap();
        let second = write(folder.path(), WriteMode::Append).await;
        assert!(is_newest(&second).await);
        assert!(!is_newest(&first).await);
        // Its writer died before it had written the hint.
        fs::write(&hint, old).unwrap();
        assert!(!is_newest(&first).await);
        assert!(!is_newest(&second).await);
        fs::remove_file(&hint).unwrap();
        assert!(!is_newest(&second).await);
    }

    #[tokio::test]
    async fn a_version_behind_a_clean_up_is_not_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let first = write(folder.path(), WriteMode::Create).await;
        let second = write(folder.path(), WriteMode::Append).await;
        let third = write(folder.path(), WriteMode::Append).await;
        let manifest =
            |of: &Dataset| std::path::Path::new("/").join(of.manifest_location().path.as_ref());
        // The first is tagged, say: its successor is gone, and the newest is further on.
        fs::remove_file(manifest(&second)).unwrap();
        assert!(!is_newest(&first).await);
        assert!(is_newest(&third).await);
        fs::remove_file(manifest(&third)).unwrap();
        assert!(!is_newest(&third).await);
    }

    #[tokio::test]
    async fn a_table_that_was_made_again_is_not_taken_for_the_one_that_was_read() {
        let folder = tempfile::tempdir().unwrap();
        let first = write(folder.path(), WriteMode::Create).await;
        fs::remove_dir_all(folder.path().join("t.lance")).unwrap();
        let again = write(folder.path(), WriteMode::Create).await;
        assert_eq!(first.version_id(), again.version_id());
        assert!(!is_newest(&first).await);
        assert!(is_newest(&again).await);
    }
}
