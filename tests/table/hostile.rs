//! What a shard's manifest lists, and what lies in a generation's directory, are input (contract 21).
//!
//! Lives here: manifests and directories that point outside their shard, made by hand. May use: fixtures, Lance as other
//! clients use it. Never: a path that any writer gives to a generation.

use std::fs;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatchIterator;
use freshet::table::AnomalyKind::UnsupportedManifest;
use freshet::table::{ReadLimits, Reader, Source};
use lance::Dataset;
use lance::dataset::WriteParams;
use lance::dataset::mem_wal::ShardManifestStore;
use lance_index::mem_wal::ShardManifest;

use crate::disk::Tree;
use crate::fixtures::{Fixture, Spec, copy_dir, shard};
use crate::mergers::Merger;

/// Rows of a table that is nobody's business here.
const SECRET: [(u64, i64); 3] = [(901, 9), (902, 9), (903, 9)];

/// A table of two shards with one pending generation each; returns the shard that `(1, 1)` went to, too.
async fn two_shards() -> (Fixture, usize) {
    let spec = Spec {
        shards: 2,
        base: vec![],
        ..Default::default()
    };
    let mut t = Fixture::create(spec).await;
    t.put(&[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]).await;
    t.flush().await;
    t.close().await;
    let of = t.shard_of(1);
    (t, of)
}

fn shard_dir(t: &Fixture, of: usize) -> PathBuf {
    t.path().join("_mem_wal").join(shard(of).to_string())
}

/// Changes a shard's manifest as another client would.
async fn rewrite(t: &Fixture, of: usize, change: impl Fn(&mut ShardManifest)) {
    let dataset = t.dataset().await;
    let store = dataset.object_store(None).await.unwrap();
    let store = ShardManifestStore::new(store, &dataset.branch_location().path, shard(of), 2);
    let epoch = store.latest().await.unwrap().unwrap().writer_epoch;
    let prepare = |c: &ShardManifest| {
        let mut next = ShardManifest {
            version: c.next_version(),
            ..c.clone()
        };
        change(&mut next);
        next
    };
    store.commit_update(epoch, prepare).await.unwrap();
}

async fn write(t: &Fixture, to: &Path, rows: &[(u64, i64)], rows_per_file: usize) -> Dataset {
    let rows = RecordBatchIterator::new(vec![Ok(t.spec.shape.batch(rows))], t.spec.shape.schema());
    let params = WriteParams {
        max_rows_per_file: rows_per_file,
        ..Default::default()
    };
    Dataset::write(rows, to.to_str().unwrap(), Some(params))
        .await
        .unwrap()
}

/// The directory of the one generation of a shard.
fn generation(t: &Fixture, of: usize) -> PathBuf {
    let dirs = fs::read_dir(shard_dir(t, of)).unwrap();
    let mut dirs = dirs.map(|e| e.unwrap().path());
    dirs.find(|d| d.to_string_lossy().ends_with("_gen_1"))
        .unwrap()
}

#[tokio::test]
async fn a_newer_version_in_a_generations_directory_that_shows_another_tables_rows_is_not_read() {
    let (t, of) = two_shards().await;
    let beside = tempfile::tempdir().unwrap();
    let at = |name: &str| beside.path().join(name);
    // The shard's own rows, a file for each, so that it is read as a dataset.
    let dir = generation(&t, of);
    let own: Vec<_> = (1..=5u64).filter(|k| t.shard_of(*k) == of).collect();
    assert!(own.len() > 1, "the generation needs more than one file");
    let own: Vec<_> = own.into_iter().map(|k| (k, 1)).collect();
    fs::remove_dir_all(&dir).unwrap();
    write(&t, &dir, &own, 1).await;
    let reader = Reader::new(ReadLimits::default());
    let m = Merger::open(&t.uri).await;
    // A row of each file is told apart from those of the others.
    assert_eq!(reader.count(&m.table, Source::All).await.unwrap(), 5);
    write(&t, &at("secret"), &SECRET[..2], 1).await;
    let mut secret = write_more(&t, &at("secret"), &SECRET[2..]).await;
    let version = secret.version_id();
    assert!(version > 1);
    let clone = at("clone");
    secret
        .shallow_clone(clone.to_str().unwrap(), version, None)
        .await
        .unwrap();
    copy_dir(&clone, &dir);
    assert!(Tree::of(&dir).find("_versions/").len() > 1);

    let mut m = Merger::open(&t.uri).await;
    assert_eq!(reader.count(&m.table, Source::All).await.unwrap(), 5);
    assert_eq!(m.merge_all(9).await, 1);
    assert_eq!(t.verdict().await, Default::default());
}

async fn write_more(t: &Fixture, to: &Path, rows: &[(u64, i64)]) -> Dataset {
    let rows = RecordBatchIterator::new(vec![Ok(t.spec.shape.batch(rows))], t.spec.shape.schema());
    let mut dataset = Dataset::open(to.to_str().unwrap()).await.unwrap();
    dataset.append(rows, None).await.unwrap();
    dataset
}

#[tokio::test]
async fn a_generation_of_several_files_whose_manifest_names_another_base_is_refused() {
    let (t, of) = two_shards().await;
    let beside = tempfile::tempdir().unwrap();
    let (secret, clone) = (beside.path().join("secret"), beside.path().join("clone"));
    let mut dataset = write(&t, &secret, &SECRET, 1).await;
    dataset
        .shallow_clone(clone.to_str().unwrap(), 1, None)
        .await
        .unwrap();
    let dir = generation(&t, of);
    fs::remove_dir_all(&dir).unwrap();
    copy_dir(&clone, &dir);
    let before = Tree::of(t.path());
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(m.try_merge(9).await.unwrap_err().reason(), "ForeignBase");
    let reader = Reader::new(ReadLimits::default());
    for source in [Source::Wal, Source::All] {
        let e = reader.count(&m.table, source).await.unwrap_err();
        assert_eq!(e.reason(), "ForeignBase");
    }
    assert_eq!(Tree::of(t.path()), before);
}

#[tokio::test]
async fn a_listed_path_that_leads_out_of_its_shard_or_names_no_generation_stops_that_shard_alone() {
    for path in [
        "../../../secret.lance",
        "..",
        "",
        "wal",
        "manifest",
        "0badcafe_gen_2",
        "0badcafe_gen_1/../wal",
        "other_gen_1",
    ] {
        let (t, of) = two_shards().await;
        // A decoy of several files where the encoded name leads, and the table that the plain one leads to.
        let secret = t.path().parent().unwrap().join("secret.lance");
        if path.contains("secret") {
            write(&t, &secret, &SECRET, 1).await;
            let decoy = shard_dir(&t, of).join("%2E%2E%2F%2E%2E%2F%2E%2E%2Fsecret.lance");
            write(&t, &decoy, &[(904, 9), (905, 9)], 1).await;
        }
        rewrite(&t, of, |m| m.sstables[0].path = path.into()).await;
        let before = Tree::of(&shard_dir(&t, of));
        let mut m = Merger::open(&t.uri).await;
        let (observation, snapshot) = m.observe().await;
        let anomalies: Vec<_> = observation
            .anomalies
            .iter()
            .map(|a| (a.kind, a.shard))
            .collect();
        assert_eq!(
            anomalies,
            [(UnsupportedManifest, Some(shard(of)))],
            "{path}"
        );
        let asked = snapshot.chunk(&[(shard(of), 1)]);
        assert_eq!(asked.unwrap_err().reason(), "UnsupportedManifest", "{path}");
        let reader = Reader::new(ReadLimits::default());
        for source in [Source::Wal, Source::All] {
            let e = reader.count(&m.table, source).await.unwrap_err();
            assert_eq!(e.reason(), "GenerationUnreadable", "{path}");
        }
        // The other shard flows on.
        assert_eq!(m.merge_all(9).await, 1, "{path}");
        assert_eq!(Tree::of(&shard_dir(&t, of)), before, "{path}");
        let rows = t.dataset().await.count_rows(None).await.unwrap();
        let own = (1..=5u64).filter(|k| t.shard_of(*k) != of).count();
        assert_eq!(rows, own, "{path}");
    }
}
