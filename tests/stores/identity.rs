//! Whose identity opens a table: its own, and then nothing of the environment; else the environment's.

use crate::life::pending;
use crate::process::{Done, freshet};
use crate::recorder::Recorder;
use crate::servers::{Kind, Server};

/// What somebody could set for the process so that its requests, or its credentials, go elsewhere.
fn hostile(to: &Recorder) -> Vec<(&'static str, String)> {
    let url = format!("http://{}", to.at);
    let config = std::env::temp_dir().join(format!("freshet-hostile-{}", to.at.port()));
    std::fs::write(
        &config,
        format!("[profile yew]\nendpoint_url = {url}\nregion = yew-1\n"),
    )
    .unwrap();
    let config = config.to_str().unwrap().to_string();
    let urls = [
        "AWS_ENDPOINT",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_S3_ENDPOINT",
        "AWS_ENDPOINT_URL_STS",
        "AWS_METADATA_ENDPOINT",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_PROXY_URL",
        "PROXY_URL",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_ENDPOINT",
        "AZURITE_BLOB_STORAGE_URL",
        "AZURE_AUTHORITY_HOST",
        "AZURE_STORAGE_AUTHORITY_HOST",
        "AZURE_MSI_ENDPOINT",
        "IDENTITY_ENDPOINT",
        "GOOGLE_BASE_URL",
        "BASE_URL",
        "ENDPOINT",
        "ENDPOINT_URL",
    ];
    let mut env: Vec<(&str, String)> = urls.map(|key| (key, url.clone())).to_vec();
    env.extend([
        ("AWS_CONFIG_FILE", config.clone()),
        ("AWS_SHARED_CREDENTIALS_FILE", config),
        ("AWS_PROFILE", "yew".into()),
        ("AWS_ACCESS_KEY_ID", "yew-key".into()),
        ("AWS_SECRET_ACCESS_KEY", "yew-secret".into()),
        ("AWS_SESSION_TOKEN", "yew-token".into()),
        ("AWS_REGION", "yew-1".into()),
        ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true".into()),
        ("AWS_SKIP_SIGNATURE", "true".into()),
        ("AWS_ALLOW_HTTP", "true".into()),
        ("AWS_EC2_METADATA_DISABLED", "false".into()),
        ("AZURE_STORAGE_ACCOUNT_NAME", "yewstore".into()),
        ("AZURE_STORAGE_ACCOUNT_KEY", "eWV3".into()),
        ("AZURE_STORAGE_SAS_TOKEN", "sig=yew".into()),
        ("AZURE_STORAGE_TOKEN", "yew-token".into()),
        ("AZURE_STORAGE_USE_EMULATOR", "true".into()),
        ("AZURE_SKIP_SIGNATURE", "true".into()),
        ("AZURE_STORAGE_ALLOW_HTTP", "true".into()),
        ("USE_OPENDAL", "true".into()),
        ("OBJECT_STORE_CLIENT_MAX_RETRIES", "0".into()),
    ]);
    env
}

fn merge(flags: Vec<String>) -> Vec<String> {
    [vec!["merge".to_string(), "--until-fresh".into()], flags].concat()
}

async fn a_hostile_environment_is_not_heard(kind: Kind) {
    let server = Server::start(kind).await;
    let t = pending(&server, "rollouts.lance").await;
    let recorder = Recorder::start().await;
    let flags = server.flags("rollouts.lance", &[("region", "")]);
    let done = freshet(merge(flags), hostile(&recorder)).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(recorder.asked(), Vec::<String>::new());
    assert_eq!(t.verdict().await, Default::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_on_s3_with_its_own_secret_makes_no_request_that_the_environment_asks_for() {
    a_hostile_environment_is_not_heard(Kind::S3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_on_azure_with_its_own_secret_makes_no_request_that_the_environment_asks_for() {
    a_hostile_environment_is_not_heard(Kind::Azure).await;
}

/// A command on a table whose spec leaves its endpoint out, where all requests to a cloud go through a recorded proxy:
/// what was asked of the hostile server, and what of the proxy.
async fn without_an_endpoint(table: &str, options: &[&str]) -> (Done, Vec<String>, Vec<String>) {
    let (recorder, proxy) = (Recorder::start().await, Recorder::start().await);
    let mut env = hostile(&recorder);
    env.push(("HTTPS_PROXY", format!("http://{}", proxy.at)));
    let mut flags = vec!["backlog".to_string(), "--table".into(), table.into()];
    for option in options {
        flags.extend(["--storage".to_string(), option.to_string()]);
    }
    let done = freshet(flags, env).await;
    (done, recorder.asked(), proxy.asked())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_the_table_leaves_out_is_the_clouds_own() {
    let s3 = [
        "region=eu-central-1",
        "aws_access_key_id=alder",
        "aws_secret_access_key=HiddenAlderYew",
    ];
    let azure = [
        "account=alderstore",
        "azure_storage_account_key=HiddenAlderYew00",
    ];
    for (table, options, host) in [
        (
            "s3://maze/rollouts",
            &s3[..],
            "s3.eu-central-1.amazonaws.com:443",
        ),
        ("s3://maze/rollouts", &s3[1..], "maze.s3.amazonaws.com:443"),
        (
            "az://maze/rollouts",
            &azure[..],
            "alderstore.blob.core.windows.net:443",
        ),
    ] {
        let (done, hostile, cloud) = without_an_endpoint(table, options).await;
        assert_eq!(done.code, Some(5), "{table}: {done:?}");
        assert_eq!(hostile, Vec::<String>::new(), "{table}");
        let asked = format!("CONNECT {host} ");
        assert!(
            !cloud.is_empty() && cloud.iter().all(|c| c.starts_with(&asked)),
            "{cloud:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_credential_is_not_completed_by_the_environment() {
    let (done, hostile, cloud) =
        without_an_endpoint("s3://maze/rollouts", &["aws_access_key_id=alder"]).await;
    assert_eq!(done.code, Some(4), "{done:?}");
    assert!(done.err.contains("aws_secret_access_key"), "{done:?}");
    assert_eq!((hostile, cloud), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_a_secret_is_opened_with_the_environments_identity() {
    let server = Server::start(Kind::S3).await;
    let t = pending(&server, "rollouts.lance").await;
    let secret = server.secret();
    let env = vec![
        ("AWS_ACCESS_KEY_ID", secret["aws_access_key_id"].clone()),
        (
            "AWS_SECRET_ACCESS_KEY",
            secret["aws_secret_access_key"].clone(),
        ),
        ("AWS_ENDPOINT", server.endpoint(server.at)),
        ("AWS_REGION", "us-east-1".into()),
        ("AWS_ALLOW_HTTP", "true".into()),
    ];
    let table = vec!["--table".to_string(), server.uri("rollouts.lance")];
    let done = freshet(merge(table), env).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(t.verdict().await, Default::default());
    // The same hostile environment is heard by a table that brings nothing: the recorder would have seen a request.
    let (_, hostile, _) = without_an_endpoint("s3://maze/rollouts", &[]).await;
    assert!(!hostile.is_empty());
}
