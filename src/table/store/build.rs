//! A store's client, built from options and from nothing else.
//!
//! Lives here: one builder for each family of stores, through our own HTTP client. May use: object_store, lance_io. Never:
//! a look at the environment; whoever calls says what the options are.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lance_io::object_store::{DEFAULT_CLOUD_IO_PARALLELISM, ObjectStore};
use object_store::aws::{
    AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider, resolve_bucket_region,
};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientOptions, ObjectStore as Client, RetryConfig};
use url::Url;

use super::client::Connector;

pub(super) type LanceResult<T> = lance_core::Result<T>;
pub(super) type Options = HashMap<String, String>;

/// How often a request is asked again, and until when, where the options do not say.
const RETRIES: usize = 8;
const RETRIES_WITHIN: Duration = Duration::from_secs(60);

/// The region of a store with an endpoint of its own, where none is given: what servers other than Amazon's expect.
const REGION: &str = "us-east-1";

/// Builds the store at `base`. `identity` is who asks S3, where no key among the options does.
pub(super) async fn store(
    base: Url,
    block_size: Option<usize>,
    options: &Options,
    client: Connector,
    identity: Option<AwsCredentialProvider>,
) -> LanceResult<ObjectStore> {
    let account = match base.scheme() {
        "az" | "abfss" => Some(account(&base, Some(options))?),
        _ => None,
    };
    let client: Arc<dyn Client> = match base.scheme() {
        "s3" => s3(&base, options, client, identity).await?,
        "az" | "abfss" => azure(&base, options, client)?,
        "gs" => google(&base, options, client)?,
        other => return Err(lance_core::Error::not_supported(other.to_string())),
    };
    // Lance names an Azure store by its account, and would look for one that is not given in the environment.
    let mut named = options.clone();
    if let Some(account) = account {
        named.retain(|k, _| !is_account(k));
        named.insert("azure_storage_account_name".into(), account);
    }
    let express = is_express(&base);
    Ok(ObjectStore::new(
        client,
        base,
        block_size,
        None,
        endpoint(options).is_some_and(|e| e.contains("r2.cloudflarestorage.com")),
        !express,
        DEFAULT_CLOUD_IO_PARALLELISM,
        number(options, "download_retry_count").unwrap_or(3),
        Some(&named),
    ))
}

/// A bucket of S3 Express: its listings are not in the order of names.
fn is_express(base: &Url) -> bool {
    base.scheme() == "s3" && base.authority().ends_with("--x-s3")
}

/// The options that a builder knows, by its own keys; the others are Lance's or nobody's.
pub(super) fn known<K: FromStr>(options: &Options) -> impl Iterator<Item = (K, &String)> {
    options
        .iter()
        .filter_map(|(k, v)| Some((K::from_str(&k.to_ascii_lowercase()).ok()?, v)))
}

fn number(options: &Options, key: &str) -> Option<usize> {
    options.get(key)?.parse().ok()
}

fn endpoint(options: &Options) -> Option<&String> {
    known::<AmazonS3ConfigKey>(options)
        .find(|(key, _)| {
            matches!(
                key,
                AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint
            )
        })
        .map(|(_, value)| value)
}

fn retries(options: &Options) -> RetryConfig {
    let within = number(options, "client_retry_timeout");
    RetryConfig {
        backoff: Default::default(),
        max_retries: number(options, "client_max_retries").unwrap_or(RETRIES),
        retry_timeout: within.map_or(RETRIES_WITHIN, |s| Duration::from_secs(s as u64)),
    }
}

async fn s3(
    base: &Url,
    options: &Options,
    client: Connector,
    identity: Option<AwsCredentialProvider>,
) -> LanceResult<Arc<dyn Client>> {
    let names = client.names();
    let mut builder = AmazonS3Builder::new().with_http_connector(client);
    let mut region = None;
    for (key, value) in known::<AmazonS3ConfigKey>(options) {
        if key == AmazonS3ConfigKey::Region {
            region = Some(value.clone());
        }
        builder = builder.with_config(key, value.clone());
    }
    if region.is_none() {
        let bucket = base.host_str().unwrap_or_default();
        region = Some(match endpoint(options) {
            Some(_) => REGION.to_string(),
            // Amazon's own host, which says the region itself.
            None => resolve_bucket_region(bucket, &names).await?,
        });
    }
    builder = builder
        .with_url(base.as_str())
        .with_region(region.unwrap_or_default())
        .with_retry(retries(options))
        // As Lance has it: a copy that must not replace is done in parts, whose completion is conditional.
        .with_config(AmazonS3ConfigKey::CopyIfNotExists, "multipart");
    if let Some(identity) = identity {
        builder = builder.with_credentials(identity);
    }
    if is_express(base) {
        builder = builder.with_s3_express(true);
    }
    Ok(Arc::new(builder.build()?))
}

fn azure(base: &Url, options: &Options, client: Connector) -> LanceResult<Arc<dyn Client>> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_http_connector(client)
        .with_url(base.as_str())
        .with_retry(retries(options));
    for (key, value) in known::<AzureConfigKey>(options) {
        builder = builder.with_config(key, value.clone());
    }
    Ok(Arc::new(builder.build()?))
}

fn google(base: &Url, options: &Options, client: Connector) -> LanceResult<Arc<dyn Client>> {
    // Its builder alone would speak plain HTTP unasked.
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_client_options(ClientOptions::new())
        .with_http_connector(client)
        .with_url(base.as_str())
        .with_retry(retries(options));
    for (key, value) in known::<GoogleConfigKey>(options) {
        builder = builder.with_config(key, value.clone());
    }
    Ok(Arc::new(builder.build()?))
}

fn is_account(key: &str) -> bool {
    let known = AzureConfigKey::from_str(&key.to_ascii_lowercase());
    matches!(known, Ok(AzureConfigKey::AccountName))
}

/// An Azure table's account: that of its URI, else that of its options.
pub(super) fn account(url: &Url, options: Option<&Options>) -> LanceResult<String> {
    if let Some((_, host)) = url.authority().split_once('@') {
        return Ok(host.split('.').next().unwrap_or(host).to_string());
    }
    let named = options.and_then(|o| o.iter().find(|(key, _)| is_account(key)));
    named
        .map(|(_, value)| value.clone())
        .ok_or_else(|| lance_core::Error::invalid_input("the Azure storage account is not given"))
}
