//! Stores for tables that bring credentials of their own: built from their options and from nothing else.
//!
//! Lives here: which options are credentials, and `OwnCredentials`, the provider that Lance asks for such a table's store.
//! Lance's own providers fill in from the process's environment, its profile files and its machine's identity whatever a
//! table leaves out, its endpoint among them; a table's credential would then be shown to a server that somebody else
//! named. May use: object_store, lance_io. Never: an option, a file or an identity service
//! of the process; only its proxy and its trusted certificates stay in force.

use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use lance_io::object_store::{ObjectStore, ObjectStoreParams, ObjectStoreProvider};
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;
use url::Url;

use super::build::{self, LanceResult, Options};
use super::client::Connector;
use super::door::Door;

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
        let client = Connector(self.0.clone());
        build::store(base, params.block_size, &options, client, None).await
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
                format!("{scheme}${container}@{}", build::account(url, options)?)
            }
            _ => format!("{scheme}${authority}"),
        })
    }
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
