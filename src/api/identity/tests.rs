//! One place, many spellings; many places, one spelling each.

use super::*;
use crate::api::StorageSpec;

fn table(uri: &str) -> TableSpec {
    TableSpec {
        uri: uri.into(),
        ..Default::default()
    }
}

fn with(uri: &str, endpoint: Option<&str>, account: Option<&str>) -> TableSpec {
    let storage = StorageSpec {
        endpoint: endpoint.map(Into::into),
        account: account.map(Into::into),
        ..Default::default()
    };
    TableSpec {
        uri: uri.into(),
        storage: Some(storage),
        ..Default::default()
    }
}

fn identity(table: &TableSpec) -> TableIdentity {
    TableIdentity::of(table).unwrap_or_else(|e| panic!("{}: {e}", table.uri))
}

#[test]
fn spellings_of_one_place_are_one_identity() {
    let home = std::env::home_dir().unwrap();
    for (one, other) in [
        (
            with("az://cont/p/q", None, Some("acct")),
            table("abfss://cont@acct.dfs.core.windows.net/p/q"),
        ),
        (
            with("az://cont/p", None, Some("acct")),
            table("abfss://cont@acct.blob.core.windows.net/p"),
        ),
        (
            with(
                "az://cont/p",
                Some("https://acct.blob.core.windows.net"),
                Some("acct"),
            ),
            with(
                "abfss://cont@acct.dfs.core.windows.net/p",
                None,
                Some("acct"),
            ),
        ),
        (
            table("s3://bkt/p"),
            with(
                "s3://bkt/p",
                Some("https://s3.eu-west-1.amazonaws.com"),
                None,
            ),
        ),
        (
            table("s3://bkt/p"),
            with(
                "s3://bkt/p",
                Some("https://bkt.s3.eu-west-1.amazonaws.com:443"),
                None,
            ),
        ),
        (
            with("s3://bkt/p", Some("http://minio:80"), None),
            with("s3://bkt/p", Some("http://bkt.minio"), None),
        ),
        (
            table("gs://bkt/p"),
            with("gs://bkt/p", Some("https://storage.googleapis.com"), None),
        ),
        (table("/data/t"), table("file:///data/t")),
        (table("/data/t"), table("file://localhost/data/t")),
        (table("/data/t"), table("/data//./x/../t/")),
        (table("/da ta/ü"), table("file:///da%20ta/%C3%BC")),
        (table("~/t"), table(home.join("t").to_str().unwrap())),
        (
            table("t"),
            table(std::env::current_dir().unwrap().join("t").to_str().unwrap()),
        ),
    ] {
        assert_eq!(
            identity(&one),
            identity(&other),
            "{} / {}",
            one.uri,
            other.uri
        );
    }
}

#[test]
fn different_places_are_different_identities() {
    let places = [
        table("s3://bkt/p"),
        table("s3://bkt/P"),
        table("s3://bkt/p/q"),
        table("s3://bkt"),
        table("s3://bkt2/p"),
        table("gs://bkt/p"),
        with("s3://bkt/p", Some("https://minio:9000"), None),
        with("s3://bkt/p", Some("http://minio:9000"), None),
        with("s3://bkt/p", Some("https://minio:9001"), None),
        with("s3://bkt/p", Some("https://minio:9000/tenant"), None),
        with(
            "s3://bkt/p",
            Some("https://s3.us-gov-west-1.amazonaws.com"),
            None,
        ),
        with(
            "s3://bkt/p",
            Some("https://s3.cn-north-1.amazonaws.com.cn"),
            None,
        ),
        with(
            "s3://bkt/p",
            Some("https://s3.evil.example/.amazonaws.com"),
            None,
        ),
        with("az://bkt/p", None, Some("one")),
        with("az://bkt/p", None, Some("two")),
        with(
            "az://bkt/p",
            Some("http://127.0.0.1:10000/one"),
            Some("one"),
        ),
        table("abfss://bkt@one.dfs.fabric.microsoft.com/p"),
        table("/bkt/p"),
    ];
    for (i, one) in places.iter().enumerate() {
        for other in &places[i + 1..] {
            assert_ne!(identity(one), identity(other), "{one:?} / {other:?}");
        }
    }
}

#[test]
fn what_is_no_table_names_the_field_and_repeats_nothing_of_the_uri() {
    for (spec, field) in [
        (table("http://marker/p"), "table.uri"),
        (table("S3://marker/p"), "table.uri"),
        (table("s3:/marker/p"), "table.uri"),
        (table("s3://marker:secret@bkt/p"), "table.uri"),
        (table("s3://bkt/p?marker=1"), "table.uri"),
        (table("s3://bkt/p#marker"), "table.uri"),
        (table("s3:///marker"), "table.uri"),
        (table("s3://bkt:9000/marker"), "table.uri"),
        (table("s3://bkt/marker/"), "table.uri"),
        (table("s3://bkt//marker"), "table.uri"),
        (table("s3://bkt/../marker"), "table.uri"),
        (table("s3://bkt/%2e%2e/marker"), "table.uri"),
        (table("s3://bkt/mar\nker"), "table.uri"),
        (
            table("abfss://cont:marker@acct.dfs.core.windows.net/p"),
            "table.uri",
        ),
        (table("abfss://cont@marker.example/p"), "table.uri"),
        (table("az://cont/marker"), "table.storage.account"),
        (
            with(
                "abfss://cont@acct.dfs.core.windows.net/marker",
                None,
                Some("other"),
            ),
            "table.storage.account",
        ),
        (
            with(
                "abfss://cont@acct.dfs.core.windows.net/marker",
                Some("https://x"),
                None,
            ),
            "table.storage.endpoint",
        ),
        (
            with("s3://bkt/p", Some("https://u:marker@x"), None),
            "table.storage.endpoint",
        ),
        (table("file:///p?marker"), "table.uri"),
        (table("file://marker/p"), "table.uri"),
        (table("file:marker"), "table.uri"),
        (table(""), "table.uri"),
    ] {
        let error = TableIdentity::of(&spec).expect_err(&spec.uri);
        assert_eq!(error.field(), field, "{}", spec.uri);
        assert!(!error.to_string().contains("marker"), "{error}");
    }
}

#[test]
fn an_identity_is_shown_as_a_person_would_write_it() {
    for (spec, shown) in [
        (table("s3://bkt/a/b"), "s3://bkt/a/b"),
        (table("gs://bkt"), "gs://bkt"),
        (
            with("s3://bkt/a", Some("https://minio:9000"), None),
            "s3://bkt/a at https://minio:9000",
        ),
        (
            table("abfss://cont@acct.dfs.core.windows.net/p"),
            "az://cont/p of account acct",
        ),
        (table("file:///data/t"), "/data/t"),
    ] {
        assert_eq!(identity(&spec).to_string(), shown);
    }
}
