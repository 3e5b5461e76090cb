//! Stores for tables without credentials of their own: opened with the identity of the process.
//!
//! Lives here: `Ambient`, which leaves a cloud's own store to Lance's provider, and builds the client of a store that was
//! named, by the table or by the environment, so that it is not led elsewhere by a redirect. May use: lance_io,
//! object_store. Never: a door: whoever runs the process named the store, and its identity service lies inside.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lance_io::object_store::providers::aws::build_aws_credential;
use lance_io::object_store::providers::{
    aws::AwsStoreProvider, azure::AzureBlobStoreProvider, gcp::GcsStoreProvider,
};
use lance_io::object_store::{ObjectStore, ObjectStoreParams, ObjectStoreProvider, StorageOptions};
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;
use url::Url;

use super::build::{self, LanceResult, Options, known};
use super::client::Connector;

/// How long before its end a credential of the process is renewed; Lance's own choice.
const RENEWED_BEFORE: Duration = Duration::from_secs(60);

/// Opens the stores of one scheme.
#[derive(Debug)]
pub(super) struct Ambient(Arc<dyn ObjectStoreProvider>);

impl Ambient {
    /// For s3, gs, az or abfss.
    pub(super) fn of(scheme: &str) -> Self {
        Self(match scheme {
            "s3" => Arc::new(AwsStoreProvider),
            "gs" => Arc::new(GcsStoreProvider),
            _ => Arc::new(AzureBlobStoreProvider),
        })
    }
}

#[async_trait]
impl ObjectStoreProvider for Ambient {
    async fn new_store(&self, base: Url, params: &ObjectStoreParams) -> LanceResult<ObjectStore> {
        let mut options =
            StorageOptions::new(params.storage_options().cloned().unwrap_or_default());
        match base.scheme() {
            "s3" => options.with_env_s3(),
            "gs" => options.with_env_gcs(),
            _ => options.with_env_azure(),
        }
        if !names_a_store(base.scheme(), &options.0) {
            return self.0.new_store(base, params).await;
        }
        let (mut identity, mut options) = (None, options);
        if base.scheme() == "s3" {
            let known = options.as_s3_options();
            let region = known.get(&AmazonS3ConfigKey::Region).cloned();
            let (who, region) =
                build_aws_credential(RENEWED_BEFORE, None, Some(&known), region, None, None)
                    .await?;
            options.0.insert("aws_region".into(), region);
            identity = Some(who);
        }
        build::store(
            base,
            params.block_size,
            &options.0,
            Connector(None),
            identity,
        )
        .await
    }

    fn calculate_object_store_prefix(
        &self,
        url: &Url,
        options: Option<&Options>,
    ) -> LanceResult<String> {
        self.0.calculate_object_store_prefix(url, options)
    }
}

/// Whether the options say where the store is. A cloud's own is known by its bucket or account.
fn names_a_store(scheme: &str, options: &Options) -> bool {
    match scheme {
        "s3" => known(options).any(|(key, _)| {
            matches!(
                key,
                AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint
            )
        }),
        "gs" => known(options).any(|(key, _)| matches!(key, GoogleConfigKey::BaseUrl)),
        _ => known(options)
            .any(|(key, _)| matches!(key, AzureConfigKey::Endpoint | AzureConfigKey::UseEmulator)),
    }
}
