//! A store that sends its clients elsewhere: nobody goes there, and the answer says so.
//!
//! Lives here: every scheme, with credentials of the table's own and of the environment. May use: the recorder, the built
//! binary, the library where a credential would need a cloud. Never: a store server.

use std::collections::BTreeMap;
use std::net::IpAddr;

use freshet::table::{Door, Location, Stores, StoresConfig, Table};
use serde_json::json;

use crate::process::freshet;
use crate::recorder::Recorder;

const OWN_S3: [&str; 3] = [
    "region=us-east-1",
    "aws_access_key_id=alder",
    "aws_secret_access_key=HiddenAlderYew",
];
const OWN_AZURE: [&str; 2] = [
    "account=alderstore",
    "azure_storage_account_key=HiddenAlderYew00",
];

/// A key that opens a Google store without asking Google for a token.
fn google_key() -> String {
    let key = json!({ "private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true });
    key.to_string()
}

/// A command on a table whose store redirects to where somebody listens; the command's table stands at `endpoint`, or
/// where the environment says, in which `{}` is the store.
async fn is_not_led(table: &str, options: &[&str], env: &[(&'static str, &str)]) {
    let inside = Recorder::start().await;
    let store = Recorder::redirecting(inside.at).await;
    let url = format!("http://{}", store.at);
    let mut flags = vec!["backlog".to_string(), "--table".into(), table.into()];
    for option in options {
        flags.extend(["--storage".to_string(), option.replace("{}", &url)]);
    }
    let env = env.iter().map(|(k, v)| (*k, v.replace("{}", &url)));
    let done = freshet(flags, env.collect()).await;
    assert_eq!(done.code, Some(5), "{table}: {done:?}");
    let said = format!("redirect to http://{} while", inside.at);
    assert!(done.err.contains(&said), "{table}: {done:?}");
    assert!(done.err.contains("table.storage.endpoint"), "{done:?}");
    assert!(!store.asked().is_empty(), "{table}");
    assert_eq!(inside.asked(), Vec::<String>::new(), "{table}");
}

const HERE: [&str; 2] = ["endpoint={}", "allowHTTP=true"];

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_redirects_does_not_lead_a_table_with_its_own_credentials_elsewhere() {
    for (table, own) in [
        ("s3://maze/rollouts", &OWN_S3[..]),
        ("az://maze/rollouts", &OWN_AZURE[..]),
    ] {
        is_not_led(table, &[own, &HERE[..]].concat(), &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_redirects_does_not_lead_the_environments_identity_elsewhere() {
    let s3 = [
        ("AWS_ACCESS_KEY_ID", "alder"),
        ("AWS_SECRET_ACCESS_KEY", "HiddenAlderYew"),
        ("AWS_REGION", "us-east-1"),
    ];
    is_not_led("s3://maze/rollouts", &HERE, &s3).await;
    let named = [("AWS_ENDPOINT_URL", "{}"), ("AWS_ALLOW_HTTP", "true")];
    is_not_led("s3://maze/rollouts", &[], &[&s3[..], &named[..]].concat()).await;

    let azure = [("AZURE_STORAGE_ACCOUNT_KEY", "HiddenAlderYew00")];
    let at = [&HERE[..], &OWN_AZURE[..1]].concat();
    is_not_led("az://maze/rollouts", &at, &azure).await;

    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key.json");
    std::fs::write(&key, google_key()).unwrap();
    let google = [("GOOGLE_SERVICE_ACCOUNT", key.to_str().unwrap())];
    is_not_led("gs://maze/rollouts", &HERE, &google).await;
}

/// Opens a table of each scheme with credentials of its own at a store; what was said of each.
async fn opened(store: &Recorder, door: Option<std::sync::Arc<dyn Door>>) -> Vec<String> {
    let url = format!("http://{}", store.at);
    let key = google_key();
    let mut said = vec![];
    for (table, options) in [
        (
            "s3://maze/rollouts",
            vec![
                ("aws_endpoint", url.as_str()),
                ("aws_access_key_id", "alder"),
                ("aws_secret_access_key", "HiddenAlderYew"),
            ],
        ),
        (
            "az://maze/rollouts",
            vec![
                ("azure_storage_endpoint", url.as_str()),
                ("azure_storage_account_name", "alderstore"),
                ("azure_storage_account_key", "HiddenAlderYew00"),
            ],
        ),
        (
            "abfss://maze@alderstore.dfs.core.windows.net/rollouts",
            vec![
                ("azure_storage_endpoint", url.as_str()),
                ("azure_storage_account_key", "HiddenAlderYew00"),
            ],
        ),
        (
            "gs://maze/rollouts",
            vec![
                ("google_base_url", url.as_str()),
                ("google_service_account_key", key.as_str()),
            ],
        ),
    ] {
        let options = options.into_iter().chain([("allow_http", "true")]);
        let options: BTreeMap<_, _> = options.map(|(k, v)| (k.into(), v.into())).collect();
        let stores = Stores::new(StoresConfig {
            door: door.clone(),
            ..Default::default()
        });
        let location = Location::new(table).with_options(options);
        let e = Table::open(&stores, &location).await.map(|_| ());
        let e = e.unwrap_err();
        assert_eq!(e.reason(), "StoreUnreachable", "{table}: {e}");
        said.push(e.to_string());
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed_in_any_scheme() {
    let inside = Recorder::start().await;
    let store = Recorder::redirecting(inside.at).await;
    let told = format!("redirect to http://{} while", inside.at);
    for said in opened(&store, None).await {
        assert!(said.contains(&told), "{said}");
    }
    assert!(store.asked().len() >= 4);
    assert_eq!(inside.asked(), Vec::<String>::new());
}

/// Lets nothing through.
#[derive(Debug)]
struct Shut;

impl Door for Shut {
    fn may(&self, _: &str, _: IpAddr) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_written_out_is_asked_about_as_a_name_is() {
    let store = Recorder::start().await;
    opened(&store, Some(std::sync::Arc::new(Shut))).await;
    assert_eq!(store.asked(), Vec::<String>::new());
}
