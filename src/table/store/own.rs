//! Stores for tables that bring credentials of their own: built from their options and from nothing else.
//!
//! Lives here: which options are credentials, and `OwnCredentials`, the provider that Lance asks for such a table's store.
//! Lance's own providers fill in from the process's environment, its profile files and its machine's identity whatever a
//! table leaves out, its endpoint among them; a table's credential would then be shown to a server that somebody else
//! named. May use: object_store, lance_io. Never: an option, a file or an identity service
//! of the process; only its proxy and its trusted certificates stay in force.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lance_io::object_store::{
    DEFAULT_CLOUD_IO_PARALLELISM, ObjectStore, ObjectStoreParams, ObjectStoreProvider,
};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, resolve_bucket_region};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientOptions, ObjectStore as Client, RetryConfig};
use url::Url;

use super::door::{self, Door};

type LanceResult<T> = lance_core::Result<T>;
type Options = HashMap<String, String>;

/// How often a request is asked again, and until when, where the options do not say.
const RETRIES: usize = 8;
const RETRIES_WITHIN: Duration = Duration::from_secs(60);

/// The region of a store with an endpoint of its own, where none is given: what servers other than Amazon's expect.
const REGION: &str = "us-east-1";

/// Whether a storage option is a credential, in any of its spellings.
pub(super) fn is_credential(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    matches!(
        AmazonS3ConfigKey::from_str(&key),
        Ok(AmazonS3ConfigKey::AccessKeyId
            | AmazonS3ConfigKey::SecretAccessKey
            | AmazonS3ConfigKey::Token)
    ) || matches!(
        AzureConfigKey::from_str(&key),
        Ok(AzureConfigKey::AccessKey
            | AzureConfigKey::SasKey
            | AzureConfigKey::Token
            | AzureConfigKey::ClientId
            | AzureConfigKey::ClientSecret
            | AzureConfigKey::AuthorityId)
    ) || matches!(
        GoogleConfigKey::from_str(&key),
        Ok(GoogleConfigKey::ServiceAccountKey)
    )
}

/// What of a store's family is still missing, `None` where the credentials are whole. A half credential must not be
/// completed by an identity that is not the table's.
pub(super) fn missing(scheme: &str, keys: &[&str]) -> Option<&'static str> {
    let has = |wanted: &str| keys.iter().any(|k| canonical(k) == wanted);
    let all = |wanted: &[&str]| wanted.iter().all(|w| has(w));
    match scheme {
        "s3" if !all(&["aws_access_key_id", "aws_secret_access_key"]) => {
            Some("give aws_access_key_id and aws_secret_access_key")
        }
        "az" | "abfss"
            if !has("azure_storage_account_key")
                && !has("azure_storage_sas_key")
                && !all(&[
                    "azure_storage_client_id",
                    "azure_storage_client_secret",
                    "azure_storage_tenant_id",
                ]) =>
        {
            Some(
                "give azure_storage_account_key, or azure_storage_sas_key, or azure_storage_client_id with azure_storage_client_secret and azure_storage_tenant_id",
            )
        }
        "gs" if !has("google_service_account_key") => Some("give google_service_account_key"),
        _ => None,
    }
}

/// The name that `missing` knows a credential by.
fn canonical(key: &str) -> &'static str {
    let key = key.to_ascii_lowercase();
    match AmazonS3ConfigKey::from_str(&key) {
        Ok(AmazonS3ConfigKey::AccessKeyId) => return "aws_access_key_id",
        Ok(AmazonS3ConfigKey::SecretAccessKey) => return "aws_secret_access_key",
        _ => {}
    }
    match AzureConfigKey::from_str(&key) {
        Ok(AzureConfigKey::AccessKey) => return "azure_storage_account_key",
        Ok(AzureConfigKey::SasKey) => return "azure_storage_sas_key",
        Ok(AzureConfigKey::ClientId) => return "azure_storage_client_id",
        Ok(AzureConfigKey::ClientSecret) => return "azure_storage_client_secret",
        Ok(AzureConfigKey::AuthorityId) => return "azure_storage_tenant_id",
        _ => {}
    }
    match GoogleConfigKey::from_str(&key) {
        Ok(GoogleConfigKey::ServiceAccountKey) => "google_service_account_key",
        _ => "",
    }
}

/// Builds the stores of tables with credentials of their own, for s3, az, abfss and gs.
#[derive(Debug)]
pub(super) struct OwnCredentials(pub(super) Option<Arc<dyn Door>>);

#[async_trait]
impl ObjectStoreProvider for OwnCredentials {
    async fn new_store(&self, base: Url, params: &ObjectStoreParams) -> LanceResult<ObjectStore> {
        let options = params.storage_options().cloned().unwrap_or_default();
        let account = match base.scheme() {
            "az" | "abfss" => Some(account(&base, Some(&options))?),
            _ => None,
        };
        let client = door::options(self.0.as_ref());
        let client: Arc<dyn Client> = match base.scheme() {
            "s3" => s3(&base, &options, client).await?,
            "az" | "abfss" => azure(&base, &options, client)?,
            "gs" => google(&base, &options, client)?,
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
            params.block_size,
            None,
            endpoint(&options).is_some_and(|e| e.contains("r2.cloudflarestorage.com")),
            !express,
            DEFAULT_CLOUD_IO_PARALLELISM,
            number(&options, "download_retry_count").unwrap_or(3),
            Some(&named),
        ))
    }

    fn calculate_object_store_prefix(
        &self,
        url: &Url,
        options: Option<&Options>,
    ) -> LanceResult<String> {
        let (scheme, authority) = (url.scheme(), url.authority());
        Ok(match scheme {
            "az" | "abfss" => {
                let container = authority.split_once('@').map_or(authority, |(c, _)| c);
                format!("{scheme}${container}@{}", account(url, options)?)
            }
            _ => format!("{scheme}${authority}"),
        })
    }
}

/// A bucket of S3 Express: its listings are not in the order of names.
fn is_express(base: &Url) -> bool {
    base.scheme() == "s3" && base.authority().ends_with("--x-s3")
}

/// The options that a builder knows, by its own keys; the others are Lance's or nobody's.
fn known<K: FromStr>(options: &Options) -> impl Iterator<Item = (K, &String)> {
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

async fn s3(base: &Url, options: &Options, client: ClientOptions) -> LanceResult<Arc<dyn Client>> {
    let mut builder = AmazonS3Builder::new().with_client_options(client);
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
            None => resolve_bucket_region(bucket, &ClientOptions::default()).await?,
        });
    }
    builder = builder
        .with_url(base.as_str())
        .with_region(region.unwrap_or_default())
        .with_retry(retries(options))
        // As Lance has it: a copy that must not replace is done in parts, whose completion is conditional.
        .with_config(AmazonS3ConfigKey::CopyIfNotExists, "multipart");
    if is_express(base) {
        builder = builder.with_s3_express(true);
    }
    Ok(Arc::new(builder.build()?))
}

fn azure(base: &Url, options: &Options, client: ClientOptions) -> LanceResult<Arc<dyn Client>> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_client_options(client)
        .with_url(base.as_str())
        .with_retry(retries(options));
    for (key, value) in known::<AzureConfigKey>(options) {
        builder = builder.with_config(key, value.clone());
    }
    Ok(Arc::new(builder.build()?))
}

fn google(base: &Url, options: &Options, client: ClientOptions) -> LanceResult<Arc<dyn Client>> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_client_options(client)
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
fn account(url: &Url, options: Option<&Options>) -> LanceResult<String> {
    if let Some((_, host)) = url.authority().split_once('@') {
        return Ok(host.split('.').next().unwrap_or(host).to_string());
    }
    let named = options.and_then(|o| o.iter().find(|(key, _)| is_account(key)));
    named
        .map(|(_, value)| value.clone())
        .ok_or_else(|| lance_core::Error::invalid_input("the Azure storage account is not given"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_known_in_every_spelling() {
        for key in [
            "aws_secret_access_key",
            "SECRET_ACCESS_KEY",
            "azure_storage_account_key",
            "azure_storage_sas_token",
            "client_secret",
            "google_service_account_key",
        ] {
            assert!(is_credential(key), "{key}");
        }
        for key in ["aws_region", "endpoint", "account_name", "allow_http"] {
            assert!(!is_credential(key), "{key}");
        }
    }

    #[test]
    fn a_half_credential_is_told_by_what_is_missing() {
        let half = missing("s3", &["aws_access_key_id", "aws_endpoint"]).unwrap();
        assert!(half.contains("aws_secret_access_key"));
        assert_eq!(missing("s3", &["access_key_id", "secret_access_key"]), None);
        assert_eq!(missing("az", &["azure_storage_sas_token"]), None);
        assert!(missing("abfss", &["azure_client_id"]).is_some());
        assert!(missing("gs", &["aws_access_key_id"]).is_some());
    }

    #[test]
    fn an_azure_store_is_named_by_the_account_that_the_table_names() {
        let options = Options::from([("account_name".to_string(), "alder".to_string())]);
        let prefix = |uri: &str, options: Option<&Options>| {
            OwnCredentials(None).calculate_object_store_prefix(&Url::parse(uri).unwrap(), options)
        };
        assert_eq!(
            prefix("az://maze/rollouts", Some(&options)).unwrap(),
            "az$maze@alder"
        );
        let whole = "abfss://maze@yew.dfs.core.windows.net/rollouts";
        assert_eq!(prefix(whole, None).unwrap(), "abfss$maze@yew");
        assert!(prefix("az://maze/rollouts", None).is_err());
        assert_eq!(prefix("s3://maze/rollouts", None).unwrap(), "s3$maze");
    }
}
