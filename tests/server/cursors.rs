//! Cursors: what they lead to, what they cost, and every way in which one is refused.

use std::time::Duration;

use freshet::server::{Config, CursorKeys};
use freshet::table::{Ask, ReadLimits, Reader, Source, StoresConfig};
use jiff::Timestamp;
use lance::Dataset;
use lance::dataset::WriteParams;
use serde_json::{Value, json};

use crate::fixtures::{Fixture, Kind, Shape, Spec};
use crate::ledger::lines;
use crate::mergers::Merger;
use crate::recorded::Recorded;
use crate::served::{Answer, Served, Tables};
use crate::sources::recorded_table;

const KEYS: &str = "elm AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\noak QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ=\n";
const TURNED: &str = "oak QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ=\nelm AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
const OTHERS: &str = "elm UUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUU=\n";
const FOREIGN: &str = "yew AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
const SOURCES: [&str; 3] = ["fragments", "wal", "all"];

/// 120 rows in fragments of 17, and 40 more with updates and deletes in pending generations of two shards.
async fn table() -> Fixture {
    let mut t = Fixture::create(Spec {
        shape: Shape::keyed(Kind::Int64).with("role", Kind::Role(3)),
        base: (0..120).map(|k| (k, 0)).collect(),
        rows_per_file: 17,
        shards: 2,
        ..Default::default()
    })
    .await;
    for g in 0..4u64 {
        t.put(
            &(0..14)
                .map(|i| (g * 7 + i * 11, 1 + g as i64))
                .collect::<Vec<_>>(),
        )
        .await;
        t.delete(&[100 + g, 60 + g]).await;
        t.flush().await;
    }
    t
}

fn kept(t: &Fixture, config: StoresConfig) -> Tables {
    Tables::new(config).with_kept("cartpole", &t.uri, 600.0)
}

async fn signing(t: &Fixture, keys: &str) -> Served {
    let keys = CursorKeys::parse(keys).unwrap();
    Served::signing(kept(t, StoresConfig::default()), Config::default(), keys).await
}

async fn unsigned(t: &Fixture) -> Served {
    Served::new(kept(t, StoresConfig::default())).await
}

pub fn cursor(answer: &Answer) -> Option<String> {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["next_cursor"].as_str().map(str::to_string)
}

/// The rows of a walk, page by page, each page from another server in turn.
async fn walk(of: &[&Served], query: &str, limit: usize) -> Vec<Value> {
    let (mut rows, mut next) = (vec![], String::new());
    let mut first: Option<Value> = None;
    for turn in 0.. {
        let target = format!("?{query}&limit={limit}{next}");
        let answer = of[turn % of.len()].records("cartpole", &target).await;
        let said = answer.json();
        assert_eq!(said["offset"], rows.len(), "{target}");
        let first = first.get_or_insert(said.clone());
        assert_eq!(said["snapshot"], first["snapshot"]);
        assert_eq!(said["generations_read"], first["generations_read"]);
        rows.extend(answer.records());
        match cursor(&answer) {
            Some(cursor) => {
                assert_eq!(said["has_more"], true);
                assert_eq!(said["cursor_expires"], first["cursor_expires"]);
                assert_eq!(answer.records().len(), limit);
                next = format!("&cursor={cursor}");
            }
            None => {
                assert_eq!(
                    (&said["has_more"], &said["cursor_expires"]),
                    (&json!(false), &Value::Null)
                );
                return rows;
            }
        }
    }
    rows
}

#[tokio::test]
async fn a_walk_is_one_read_of_the_snapshot_whatever_was_merged_since_it_began() {
    let t = table().await;
    let served = unsigned(&t).await;
    for source in SOURCES {
        let whole = served
            .records("cartpole", &format!("?source={source}&limit=1000"))
            .await;
        assert_eq!(cursor(&whole), None);
        let whole = whole.records();
        for limit in [1, 7, 17, 50, 999] {
            let rows = walk(&[&served], &format!("source={source}"), limit).await;
            assert_eq!(rows, whole, "{source} by {limit}");
        }
        // Filtered walks go on where the last page ended, in fragments and in generations.
        for role in ["role-0", "role-1", "role-2"] {
            let of = |r: &&Value| r["role"] == role;
            let want: Vec<Value> = whole.iter().filter(of).cloned().collect();
            for limit in [1, 2, 5, 40] {
                let query = format!("source={source}&role={role}");
                assert_eq!(
                    walk(&[&served], &query, limit).await,
                    want,
                    "{query} by {limit}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_walk_stays_in_its_snapshot_while_all_of_it_is_merged_drained_and_compacted() {
    let mut t = table().await;
    let (one, other) = (signing(&t, KEYS).await, signing(&t, TURNED).await);
    let mut begun = vec![];
    for source in SOURCES {
        let whole = one
            .records("cartpole", &format!("?source={source}&limit=1000"))
            .await;
        let first = one
            .records("cartpole", &format!("?source={source}&limit=10"))
            .await;
        begun.push((source, whole, first));
    }
    t.put(&[(5, 77), (500, 77)]).await;
    t.delete(&[1, 2, 3]).await;
    t.flush().await;
    let mut merger = Merger::open(&t.uri).await;
    merger.merge_all(2).await;
    merger.drain_all().await.unwrap();
    assert!(merger.compact().await.unwrap());
    // A server that has seen it before, and one that has not.
    for served in [&one, &other] {
        for (source, whole, first) in &begun {
            let mut rows = first.records();
            let mut next = cursor(first);
            while let Some(cursor_) = next {
                let target = format!("?source={source}&limit=13&cursor={cursor_}");
                let answer = served.records("cartpole", &target).await;
                rows.extend(answer.records());
                assert_eq!(answer.json()["snapshot"], first.json()["snapshot"]);
                assert_eq!(
                    answer.json()["snapshot"]["digest"],
                    whole.json()["snapshot"]["digest"]
                );
                next = cursor(&answer);
            }
            assert_eq!(rows, whole.records(), "{source}");
        }
    }
}

#[tokio::test]
async fn any_replica_goes_on_with_a_walk_whichever_of_two_keys_it_signs_with() {
    let t = table().await;
    let (one, other, third) = (
        signing(&t, KEYS).await,
        signing(&t, TURNED).await,
        signing(&t, KEYS).await,
    );
    for source in SOURCES {
        let whole = one
            .records("cartpole", &format!("?source={source}&limit=1000"))
            .await;
        let rows = walk(&[&one, &other, &third], &format!("source={source}"), 9).await;
        assert_eq!(rows, whole.records());
    }
}

#[tokio::test]
async fn both_forms_of_the_route_take_one_cursor_and_the_limit_may_change() {
    let t = table().await;
    let served = unsigned(&t).await;
    let long =
        |query: &str| format!("/api/v1/namespaces/alder/experiments/cartpole/records{query}");
    let first = served
        .get(&long("?source=all&limit=5&columns=value,episode"))
        .await;
    let next = cursor(&first).unwrap();
    let query = format!("?source=all&limit=1000&columns=value,episode&cursor={next}");
    let (short, long) = (
        served.records("cartpole", &query).await,
        served.get(&long(&query)).await,
    );
    assert_eq!(short.records(), long.records());
    let whole = served
        .records("cartpole", "?source=all&limit=1000&columns=value,episode")
        .await;
    assert_eq!(short.records(), whole.records()[5..]);
    // From an offset on.
    let first = served
        .records("cartpole", "?source=all&limit=2&offset=20")
        .await;
    let next = cursor(&first).unwrap();
    let rest = served
        .records("cartpole", &format!("?source=all&limit=3&cursor={next}"))
        .await;
    let whole = served.records("cartpole", "?source=all&limit=1000").await;
    assert_eq!(rest.records(), whole.records()[22..25]);
    assert_eq!(rest.json()["offset"], 22);
}

#[tokio::test]
async fn what_is_no_cursor_of_this_walk_is_refused_by_name_before_the_store_is_asked() {
    let t = table().await;
    let recorded = Recorded::default();
    let config = StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    };
    let tables = kept(&t, config).with_kept("maze", &t.uri, 600.0);
    let keys = CursorKeys::parse(KEYS).unwrap();
    let served = Served::signing(tables, Config::default(), keys).await;
    let made = "source=all&columns=episode,value&role=role-1&limit=3";
    let good = cursor(&served.records("cartpole", &format!("?{made}")).await).unwrap();
    let free = unsigned(&t).await;
    let bare = cursor(&free.records("cartpole", &format!("?{made}")).await).unwrap();
    let others = signing(&t, OTHERS).await;
    let forged = cursor(&others.records("cartpole", &format!("?{made}")).await).unwrap();
    let foreign = signing(&t, FOREIGN).await;
    let foreign = cursor(&foreign.records("cartpole", &format!("?{made}")).await).unwrap();
    // The third of four characters holds a whole byte's bits: format 3 instead of 1.
    let later = format!("Aw{}", &good[2..]);
    let cut = &good[..good.len() - 4];
    recorded.taken();
    for (query, kind, parameter) in [
        (format!("{made}&cursor={good}x"), "invalid-cursor", "cursor"),
        (format!("{made}&cursor={cut}"), "invalid-cursor", "cursor"),
        (format!("{made}&cursor="), "invalid-cursor", "cursor"),
        (format!("{made}&cursor=next"), "invalid-cursor", "cursor"),
        (
            format!("{made}&cursor={}", "A".repeat(7000)),
            "invalid-cursor",
            "cursor",
        ),
        (format!("{made}&cursor={bare}"), "invalid-cursor", "cursor"),
        (
            format!("{made}&cursor={forged}"),
            "invalid-cursor",
            "cursor",
        ),
        (
            format!("{made}&cursor={foreign}"),
            "cursor-unknown",
            "cursor",
        ),
        (format!("{made}&cursor={later}"), "cursor-unknown", "cursor"),
        (
            format!("{made}&offset=0&cursor={good}"),
            "invalid-parameter",
            "offset",
        ),
        (
            format!("{made}&cursor={good}&cursor={good}"),
            "invalid-parameter",
            "cursor",
        ),
        (
            format!("columns=episode,value&role=role-1&cursor={good}"),
            "invalid-cursor",
            "source",
        ),
        (
            format!("source=all&columns=value,episode&role=role-1&cursor={good}"),
            "invalid-cursor",
            "columns",
        ),
        (
            format!("source=all&role=role-1&cursor={good}"),
            "invalid-cursor",
            "columns",
        ),
        (
            format!("source=all&columns=episode,value&role=role-2&cursor={good}"),
            "invalid-cursor",
            "role",
        ),
        (
            format!("source=all&columns=episode,value&cursor={good}"),
            "invalid-cursor",
            "role",
        ),
        (
            format!("source=all&columns=episode,value&role=role-1&id=x&cursor={good}"),
            "invalid-cursor",
            "id",
        ),
    ] {
        let answer = served.records("cartpole", &format!("?{query}")).await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (400, kind),
            "{query}: {answer:?}"
        );
        assert_eq!(answer.json()["parameter"], parameter, "{query}");
    }
    let other = served
        .records("maze", &format!("?{made}&cursor={good}"))
        .await;
    assert_eq!(
        (other.status, other.problem().as_str()),
        (400, "invalid-cursor")
    );
    let signed = free
        .records("cartpole", &format!("?{made}&cursor={good}"))
        .await;
    assert_eq!(
        (signed.status, signed.problem().as_str()),
        (400, "cursor-unknown")
    );
    assert_eq!(recorded.taken(), Vec::<String>::new());
    // It was the right one all the while.
    let right = served
        .records("cartpole", &format!("?{made}&cursor={good}"))
        .await;
    assert_eq!(right.records().len(), 3);
    assert!(!recorded.taken().is_empty());
}

#[tokio::test]
async fn routes_without_pages_and_those_of_lance_contexts_client_take_no_cursor() {
    let t = table().await;
    let served = unsigned(&t).await;
    for target in [
        "/api/v1/rollouts/cartpole/records?cursor=x",
        "/api/v1/experiments/cartpole/count?cursor=x",
        "/api/v1/experiments/cartpole/records/5?cursor=x",
    ] {
        let answer = served.get(target).await;
        assert_eq!(answer.status, 400, "{target}: {answer:?}");
    }
    let list = served
        .get("/api/v1/rollouts/cartpole/records?limit=2")
        .await;
    assert_eq!(list.json().get("next_cursor"), None);
}

#[tokio::test]
async fn a_cursor_ends_with_its_snapshots_time_and_says_so() {
    let t = table().await;
    let config = Config {
        deadline: Duration::from_secs(20),
        skew: Duration::from_secs(10),
        ..Default::default()
    };
    // A thousandth of a second more than what is taken off.
    let tables = Tables::new(StoresConfig::default()).with_kept("cartpole", &t.uri, 30.001);
    let served = Served::with(tables, config).await;
    let before = Timestamp::now();
    let first = served.records("cartpole", "?source=all&limit=5").await;
    let next = cursor(&first).unwrap();
    let expires: Timestamp = first.json()["cursor_expires"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let read_at: Timestamp = first.json()["snapshot"]["read_at"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(before <= read_at && expires <= read_at + Duration::from_millis(1));
    while Timestamp::now() < expires {
        tokio::task::yield_now().await;
    }
    let late = served
        .records("cartpole", &format!("?source=all&limit=5&cursor={next}"))
        .await;
    assert_eq!(
        (late.status, late.problem().as_str()),
        (410, "cursor-expired")
    );
    assert_eq!(late.json()["expired"], first.json()["cursor_expires"]);
    assert!(
        late.json()["detail"]
            .as_str()
            .unwrap()
            .contains("start again")
    );
}

#[tokio::test]
async fn where_no_cursor_can_be_promised_the_page_says_why() {
    let t = table().await;
    let unknown =
        Served::new(Tables::new(StoresConfig::default()).with_table("cartpole", &t.uri)).await;
    let short = Tables::new(StoresConfig::default()).with_kept("cartpole", &t.uri, 60.0);
    let short = Served::new(short).await;
    for (served, word) in [
        (&unknown, "not known"),
        (&short, "mergedGenerationGracePeriod"),
    ] {
        let said = served.records("cartpole", "?limit=5").await.json();
        assert_eq!(
            (&said["has_more"], &said["next_cursor"]),
            (&json!(true), &Value::Null)
        );
        assert!(
            said["cursor_refused"].as_str().unwrap().contains(word),
            "{said}"
        );
        let last = served.records("cartpole", "?limit=1000").await.json();
        assert_eq!(last.get("cursor_refused"), None);
    }
}

/// The first page of each source with its cursor.
async fn begun(served: &Served) -> Vec<(&'static str, String)> {
    let mut all = vec![];
    for source in SOURCES {
        let first = served
            .records("cartpole", &format!("?source={source}&limit=5"))
            .await;
        all.push((source, cursor(&first).unwrap()));
    }
    all
}

async fn resumed(served: &Served, (source, cursor): &(&str, String)) -> Answer {
    served
        .records(
            "cartpole",
            &format!("?source={source}&limit=1000&cursor={cursor}"),
        )
        .await
}

fn is_gone(answer: &Answer) {
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (410, "snapshot-gone"),
        "{answer:?}"
    );
    assert!(
        answer.json()["detail"]
            .as_str()
            .unwrap()
            .contains("start again")
    );
}

#[tokio::test]
async fn a_snapshot_whose_generations_were_reclaimed_is_gone_and_fragments_go_on() {
    let t = table().await;
    let (warm, cold) = (unsigned(&t).await, unsigned(&t).await);
    let walks = begun(&warm).await;
    let mut merger = Merger::open(&t.uri).await;
    merger.merge_all(8).await;
    merger.drain_all().await.unwrap();
    assert!(merger.reclaim_all().await.unwrap() > 0);
    for served in [&warm, &cold] {
        for walk in &walks {
            let answer = resumed(served, walk).await;
            match walk.0 {
                "fragments" => assert_eq!(answer.records().len(), 115),
                _ => is_gone(&answer),
            }
        }
    }
}

#[tokio::test]
async fn a_snapshot_whose_base_version_was_cleaned_up_is_gone() {
    let t = table().await;
    let served = unsigned(&t).await;
    let walks = begun(&served).await;
    let mut merger = Merger::open(&t.uri).await;
    merger.merge_all(8).await;
    assert!(merger.compact().await.unwrap());
    assert!(merger.clean_versions().await.unwrap() > 0);
    let cold = unsigned(&t).await;
    for walk in walks.iter().filter(|w| w.0 != "wal") {
        is_gone(&resumed(&served, walk).await);
        is_gone(&resumed(&cold, walk).await);
    }
    is_gone(&resumed(&cold, &walks[1]).await);
}

#[tokio::test]
async fn a_snapshot_whose_pinned_files_somebody_removed_is_gone_though_they_are_listed() {
    for part in ["_gen_", "manifest"] {
        let t = table().await;
        let served = unsigned(&t).await;
        let walks = begun(&served).await;
        for shard in std::fs::read_dir(t.path().join("_mem_wal")).unwrap() {
            for dir in std::fs::read_dir(shard.unwrap().path()).unwrap() {
                let dir = dir.unwrap();
                if dir.file_name().to_string_lossy().contains(part) {
                    std::fs::remove_dir_all(dir.path()).unwrap();
                }
            }
        }
        let cold = unsigned(&t).await;
        for walk in &walks[1..] {
            is_gone(&resumed(&cold, walk).await);
        }
        assert_eq!(resumed(&cold, &walks[0]).await.records().len(), 115);
    }
}

#[tokio::test]
async fn a_generation_that_is_broken_and_still_there_is_named_and_not_gone() {
    let t = table().await;
    let served = unsigned(&t).await;
    let walks = begun(&served).await;
    for shard in std::fs::read_dir(t.path().join("_mem_wal")).unwrap() {
        for dir in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            let data = dir.unwrap().path().join("data");
            for file in std::fs::read_dir(data).into_iter().flatten() {
                std::fs::write(file.unwrap().path(), b"not a file of Lance").unwrap();
            }
        }
    }
    let cold = unsigned(&t).await;
    let answer = resumed(&cold, &walks[1]).await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (503, "generation-unreadable")
    );
}

#[tokio::test]
async fn a_snapshot_of_a_table_that_was_made_again_is_gone() {
    let t = table().await;
    let served = unsigned(&t).await;
    let walks = begun(&served).await;
    let version = t.dataset().await.version_id();
    std::fs::remove_dir_all(t.path()).unwrap();
    for at in 0..version {
        let batch = t.spec.shape.batch(&[(900 + at, 9)]);
        let rows = arrow_array::RecordBatchIterator::new(vec![Ok(batch)], t.spec.shape.schema());
        let params = WriteParams {
            mode: match at {
                0 => lance::dataset::WriteMode::Create,
                _ => lance::dataset::WriteMode::Append,
            },
            ..Default::default()
        };
        Dataset::write(rows, &t.uri, Some(params)).await.unwrap();
    }
    assert_eq!(t.dataset().await.version_id(), version);
    for walk in &walks {
        is_gone(&resumed(&unsigned(&t).await, walk).await);
    }
}

#[tokio::test]
async fn a_cursor_of_an_experiment_that_was_made_again_is_gone() {
    let t = table().await;
    let with_uid = |uid: &str| {
        let mut tables = kept(&t, StoresConfig::default());
        let status = tables.experiments.get_mut("cartpole").unwrap();
        status.uid = Some(uid.into());
        Served::new(tables)
    };
    let (one, other) = (with_uid("0a-1").await, with_uid("0a-2").await);
    let walk = begun(&one).await.remove(2);
    assert_eq!(resumed(&one, &walk).await.status, 200);
    is_gone(&resumed(&other, &walk).await);
}

#[tokio::test]
async fn a_page_by_cursor_of_fragments_asks_for_nothing_under_the_log() {
    let t = table().await;
    let recorded = Recorded::default();
    let config = || StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    };
    let (one, cold) = (
        Served::new(kept(&t, config())).await,
        Served::new(kept(&t, config())).await,
    );
    let walks = begun(&one).await;
    Merger::open(&t.uri).await.merge_all(8).await;
    recorded.taken();
    for served in [&one, &cold] {
        assert_eq!(resumed(served, &walks[0]).await.records().len(), 115);
        let asked = recorded.taken();
        assert!(!asked.is_empty());
        let log: Vec<_> = asked.iter().filter(|a| a.contains("_mem_wal")).collect();
        assert!(log.is_empty(), "{log:?}");
    }
    // Another replica looks up the shards' manifests of the others: that the count above means something.
    resumed(&cold, &walks[2]).await;
    assert!(recorded.taken().iter().any(|a| a.contains("_mem_wal")));
}

#[tokio::test]
async fn a_page_that_the_caller_has_already_asks_nothing_of_the_store() {
    let t = table().await;
    let recorded = Recorded::default();
    let config = StoresConfig {
        wrapper: Some(recorded.wrapper()),
        ..Default::default()
    };
    let served = Served::new(kept(&t, config)).await;
    let walk = begun(&served).await.remove(2);
    let target = format!(
        "/api/v1/experiments/cartpole/records?source=all&limit=9&cursor={}",
        walk.1
    );
    let page = served.get(&target).await;
    let tag = page
        .head
        .lines()
        .find_map(|l| l.strip_prefix("etag: "))
        .unwrap();
    let tag = tag.replace("w/", "W/");
    recorded.taken();
    let address = served.address;
    let asking = format!(
        "GET {target} HTTP/1.1\r\nhost: {address}\r\nif-none-match: {tag}\r\nconnection: close\r\n\r\n"
    );
    let again = served.say(&asking).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    assert_eq!(recorded.taken(), Vec::<String>::new());
}

/// Pages of a walk by the reader itself, with the requests of each.
async fn counted(t: &Fixture, ask: &Ask) -> Vec<Vec<String>> {
    let recorded = Recorded::default();
    let table = recorded_table(t, &recorded).await;
    let reader = Reader::new(ReadLimits::default());
    let mut page = reader.read(&table, ask).await.unwrap();
    let mut pages = vec![recorded.taken()];
    while let Some(next) = page.next.take() {
        reader.keep(&table, &next);
        page = reader
            .resume(&table, &next.pin, next.position, ask)
            .await
            .unwrap();
        pages.push(recorded.taken());
        assert!(!lines(&page).is_empty());
    }
    pages
}

#[tokio::test]
async fn a_page_by_cursor_reads_its_rows_and_looks_at_nothing_else() {
    let t = table().await;
    for source in Source::ALL {
        let ask = Ask {
            source,
            limit: 20,
            ..Default::default()
        };
        let pages = counted(&t, &ask).await;
        assert!(pages.len() >= 3, "{source:?}");
        for asked in &pages[1..] {
            // Which rows of a file are deleted is read with the file.
            let rows = |a: &&String| a.contains("/data/") || a.contains("/_deletions/");
            let other: Vec<_> = asked.iter().filter(|a| !rows(a)).collect();
            assert!(other.is_empty(), "{source:?}: {other:?}");
        }
    }
}

#[tokio::test]
async fn a_deep_page_of_matching_rows_costs_no_more_than_an_early_one() {
    let mut t = table().await;
    for g in 0..40 {
        t.put(&[(1000 + 2 * g, 1), (1001 + 2 * g, 1)]).await;
        t.flush().await;
    }
    let ask = Ask {
        source: Source::All,
        limit: 4,
        exact: vec![("role".into(), "role-1".into())],
        ..Default::default()
    };
    let pages: Vec<usize> = counted(&t, &ask).await.iter().map(Vec::len).collect();
    assert!(pages.len() > 12, "{pages:?}");
    let (early, late) = (&pages[1..4], &pages[pages.len() - 6..]);
    let most = early.iter().max().unwrap() + 2 * 16;
    assert!(late.iter().all(|n| *n <= most), "{pages:?}");
}

#[tokio::test]
async fn snapshots_that_are_kept_open_stay_within_the_budget_of_keys() {
    let mut t = table().await;
    let table = crate::sources::open(&t).await;
    let limits = ReadLimits {
        key_bytes: 96 << 10,
        ..Default::default()
    };
    let reader = Reader::new(limits);
    let ask = Ask {
        source: Source::All,
        limit: 10,
        ..Default::default()
    };
    let mut walks = vec![];
    for value in 0..12 {
        let page = reader.read(&table, &ask).await.unwrap();
        let next = page.next.unwrap();
        reader.keep(&table, &next);
        assert!(
            reader.held_bytes() <= limits.key_bytes,
            "{}",
            reader.held_bytes()
        );
        walks.push(next);
        t.put(&[(value, 50), (2000 + value, 50)]).await;
        t.flush().await;
    }
    // What had to go is opened again.
    let all = Ask { limit: 1000, ..ask };
    let mut rows = vec![];
    for next in walks {
        let rest = reader
            .resume(&table, &next.pin, next.position, &all)
            .await
            .unwrap();
        assert!(rest.next.is_none());
        rows.push(lines(&rest).len());
        assert!(
            reader.held_bytes() <= limits.key_bytes,
            "{}",
            reader.held_bytes()
        );
    }
    // Each had one row more than the one before.
    let want: Vec<usize> = (0..12).map(|n| rows[0] + n).collect();
    assert_eq!(rows, want);
}
