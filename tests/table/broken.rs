//! A shard whose newest manifest cannot be used waits alone, and nothing that it may list is touched (contracts 8, 9, 16).
//!
//! Lives here: manifests emptied, cut short, overwritten, or counting to the end of numbers, as disks, copies and strangers
//! leave them. May use: fixtures, Lance's manifest types. Never: a manifest that is broken after it was judged.

use std::fs;
use std::path::PathBuf;

use freshet::table::AnomalyKind::{self, UnsupportedManifest};
use freshet::table::{ReadLimits, Reader, Source};
use lance::dataset::mem_wal::util::{manifest_filename, parse_bit_reversed_filename};
use lance_index::mem_wal::ShardManifest;
use lance_table::format::pb;
use prost::Message;
use uuid::Uuid;

use crate::disk::Tree;
use crate::fixtures::{Fixture, Model, Spec, shard};
use crate::mergers::Merger;

/// The shard that gets broken, and the one that does not.
const BROKEN: usize = 0;
const WHOLE: usize = 1;

type Break = fn(&[u8]) -> Vec<u8>;
type Change = fn(&mut ShardManifest);

/// Two shards with one merged and one pending generation each, and what the base holds once only the whole shard's was
/// merged.
async fn two_shards() -> (Fixture, Model) {
    let spec = Spec {
        shards: 2,
        ..Default::default()
    };
    let mut t = Fixture::create(spec).await;
    t.put(&[(0, 1), (1, 1), (200, 1), (201, 1)]).await;
    t.flush().await;
    Merger::open(&t.uri).await.merge_all(9).await;
    let mut without = t.model.clone();
    t.put(&[(0, 2), (1, 2), (202, 2), (203, 2)]).await;
    t.delete(&[4, 5]).await;
    t.flush().await;
    t.close().await;
    without.put(&[(1, 2), (203, 2)]);
    without.delete(&[5]);
    (t, without)
}

fn shard_dir(t: &Fixture, at: usize) -> PathBuf {
    t.path().join("_mem_wal").join(shard(at).to_string())
}

async fn anomalies(m: &mut Merger) -> Vec<(AnomalyKind, Option<Uuid>)> {
    let (observation, _) = m.observe().await;
    let all = observation.anomalies.iter();
    all.map(|a| (a.kind, a.shard)).collect()
}

/// Nothing is done to the broken shard by anybody, and everything to the other one.
async fn waits_alone(t: &Fixture, without: &Model, m: &mut Merger, what: &str) {
    let before = Tree::of(&shard_dir(t, BROKEN));
    let (observation, snapshot) = m.observe().await;
    let fault = [(UnsupportedManifest, Some(shard(BROKEN)))];
    assert_eq!(anomalies(m).await, fault, "{what}");
    assert!(observation.blocked(shard(BROKEN)).is_some());
    assert!(observation.blocked(shard(WHOLE)).is_none());
    assert_eq!(observation.unread[0].shard, shard(BROKEN));
    assert_eq!(observation.shards.len(), 1, "{what}");
    assert_eq!(observation.shard_count(), 2, "{what}");
    // A figure of one shard is none of the table.
    assert_eq!(observation.shards[0].pending.len(), 1, "{what}");
    assert_eq!(observation.pending_generations(), None, "{what}");
    assert_eq!(observation.pending_rows(), None, "{what}");
    assert_eq!(observation.pending_bytes(), None, "{what}");
    assert_eq!(observation.flushed_ever(), None, "{what}");
    assert_eq!(observation.merged_ever(), None, "{what}");
    assert_eq!(snapshot.pending_count(), None, "{what}");
    let asked = snapshot.chunk(&[(shard(BROKEN), 2)]).unwrap_err();
    assert_eq!(asked.reason(), "UnsupportedManifest", "{what}");

    let reader = Reader::new(ReadLimits::default());
    for source in [Source::Wal, Source::All] {
        let e = reader.count(&m.table, source).await.unwrap_err();
        assert_eq!(e.reason(), "UnsupportedManifest", "{what}");
    }
    let rows = t.dataset().await.count_rows(None).await.unwrap() as u64;
    let read = reader.count(&m.table, Source::Fragments).await.unwrap();
    assert_eq!(read, rows, "{what}");

    assert_eq!(m.merge_all(9).await, 1, "{what}");
    let verdict = t.rows().await.against(without, &t.spec.shape);
    assert_eq!(verdict, Default::default(), "{what}");
    assert_eq!(m.drain_all().await.unwrap(), 2, "{what}");
    let refused = m.table.drain(shard(BROKEN), 9).await.unwrap_err();
    assert_eq!(refused.reason(), "UnsupportedManifest", "{what}");
    // The first look finds them unlisted, and the next one may delete them.
    m.reclaim_all().await.unwrap();
    m.reclaim_all().await.unwrap();
    let left = Tree::of(&shard_dir(t, WHOLE)).find("_gen_");
    assert_eq!(left, Vec::<PathBuf>::new(), "{what}");
    assert_eq!(m.clean_versions().await.unwrap(), 0, "{what}");
    assert_eq!(Tree::of(&shard_dir(t, BROKEN)), before, "{what}");
}

/// The shard goes on by itself, under the same tracker and under a new one.
async fn goes_on(t: &Fixture, m: &mut Merger, what: &str) {
    assert_eq!(anomalies(m).await, [], "{what}");
    assert_eq!(anomalies(&mut Merger::open(&t.uri).await).await, []);
    assert_eq!(m.merge_all(9).await, 1, "{what}");
    assert_eq!(m.observe().await.0.pending_generations(), Some(0));
    assert_eq!(m.drain_all().await.unwrap(), 2, "{what}");
    assert_eq!(t.verdict().await, Default::default(), "{what}");
}

#[tokio::test]
async fn a_shard_whose_newest_manifest_is_broken_waits_alone_until_it_is_whole_again() {
    let ways: [(&str, Break); 4] = [
        ("is empty", |_| vec![]),
        ("cannot be read", |_| b"not a manifest".to_vec()),
        ("cannot be read", |whole| whole[..whole.len() / 2].to_vec()),
        ("cannot be read", |whole| whole[..whole.len() - 1].to_vec()),
    ];
    for (what, broken) in ways {
        let (t, without) = two_shards().await;
        let file = t.newest_manifest(BROKEN);
        let name = file.file_name().unwrap().to_str().unwrap();
        let version = parse_bit_reversed_filename(name).unwrap();
        let whole = fs::read(&file).unwrap();
        fs::write(&file, broken(&whole)).unwrap();
        let mut m = Merger::open(&t.uri).await;
        let said = m.observe().await.0.anomalies[0].message.clone();
        let wanted = format!(
            "shard {}: its newest manifest, version {version}, {what}",
            shard(BROKEN)
        );
        assert!(said.starts_with(&wanted), "{said}");
        waits_alone(&t, &without, &mut m, what).await;
        fs::write(&file, &whole).unwrap();
        goes_on(&t, &mut m, what).await;
    }
}

#[tokio::test]
async fn a_shard_whose_newer_manifest_breaks_under_a_live_tracker_waits_until_a_newer_one_is_there()
{
    let (t, without) = two_shards().await;
    let mut m = Merger::open(&t.uri).await;
    assert_eq!(anomalies(&mut m).await, []);
    let whole = fs::read(t.newest_manifest(BROKEN)).unwrap();
    let next = written(&t, &whole, |_| {});
    fs::write(&next, []).unwrap();
    // No refresh: the look goes on from the manifest that it knows, as the looks of a running process do.
    let (observation, _) = m.tracker.observe(&m.table).await.unwrap();
    assert_eq!(observation.unread[0].shard, shard(BROKEN));
    waits_alone(&t, &without, &mut m, "newer").await;
    let newer = written(&t, &whole, |m| m.version += 1);
    assert_ne!(next, newer);
    goes_on(&t, &mut m, "newer").await;
}

/// Writes the manifest after that of `whole`, changed, into the file of its version.
fn written(t: &Fixture, whole: &[u8], change: impl Fn(&mut ShardManifest)) -> PathBuf {
    let manifest = pb::ShardManifest::decode(whole).unwrap();
    let mut manifest = ShardManifest::try_from(manifest).unwrap();
    manifest.version += 1;
    change(&mut manifest);
    let dir = shard_dir(t, BROKEN).join("manifest");
    let path = dir.join(manifest_filename(manifest.version));
    fs::write(&path, pb::ShardManifest::from(&manifest).encode_to_vec()).unwrap();
    path
}

#[tokio::test]
async fn rows_of_a_broken_manifest_that_was_removed_come_back_from_the_writers_log() {
    let (mut t, without) = two_shards().await;
    let file = t.newest_manifest(BROKEN);
    fs::write(&file, []).unwrap();
    let mut m = Merger::open(&t.uri).await;
    waits_alone(&t, &without, &mut m, "removed").await;
    fs::remove_file(&file).unwrap();
    t.writer(BROKEN).await;
    t.close().await;
    assert_eq!(anomalies(&mut m).await, []);
    m.merge_all(9).await;
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test]
async fn a_manifest_that_counts_to_the_end_of_numbers_or_past_itself_stops_its_shard_alone() {
    let ways: [(&str, Change); 6] = [
        ("listed past the count", |m| m.current_generation = 2),
        ("version", |m| m.version = u64::MAX),
        ("generation", |m| m.current_generation = u64::MAX),
        ("epoch", |m| m.writer_epoch = u64::MAX),
        ("log", |m| m.replay_after_wal_entry_position = u64::MAX),
        ("listed", |m| m.sstables[1].generation = u64::MAX),
    ];
    for (what, change) in ways {
        let (t, without) = two_shards().await;
        let whole = fs::read(t.newest_manifest(BROKEN)).unwrap();
        let file = written(&t, &whole, change);
        let name = file.file_name().unwrap().to_str().unwrap();
        let version = parse_bit_reversed_filename(name).unwrap();
        let hint = shard_dir(&t, BROKEN).join("manifest/version_hint.json");
        fs::write(&hint, format!("{{\"version\":{version}}}")).unwrap();
        let mut m = Merger::open(&t.uri).await;
        waits_alone(&t, &without, &mut m, what).await;
        fs::remove_file(&file).unwrap();
        goes_on(&t, &mut m, what).await;
    }
}

#[tokio::test]
async fn a_hint_that_counts_to_the_end_of_numbers_is_no_more_than_a_hint() {
    for hint in [u64::MAX, u64::MAX - 1] {
        let (t, _) = two_shards().await;
        for at in [BROKEN, WHOLE] {
            let file = shard_dir(&t, at).join("manifest/version_hint.json");
            fs::write(file, format!("{{\"version\":{hint}}}")).unwrap();
        }
        let mut m = Merger::open(&t.uri).await;
        assert_eq!(anomalies(&mut m).await, []);
        assert_eq!(m.merge_all(9).await, 1);
        assert_eq!(m.drain_all().await.unwrap(), 4);
        assert_eq!(t.verdict().await, Default::default());
    }
}
