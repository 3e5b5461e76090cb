//! Calls to the API server, each with a deadline.
//!
//! Lives here: the client, the reads that every role makes, and the watch. May use: kube. Must never come in: a write, a
//! decision, a retry (whoever asked decides when to ask again), or a body of the API server in a message.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::client::ClientBuilder;
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use kube::{Api, Client, Config, Error, Resource, ResourceExt};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::counted::Counting;
use super::refused::Refusals;
use super::secrets::{Found, LABEL, Named};
use super::served::OPENAPI;
use crate::api::Experiment;
use crate::telemetry::ControllerMetrics;

/// How long one call may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How long a connection may say nothing: two bookmarks and some.
const SILENCE: Duration = Duration::from_secs(150);
/// The longest that a watch that failed waits.
const AGAIN: Duration = Duration::from_secs(5);

/// Objects as they come: one that cannot be read is told as such and stops nothing.
pub type Guarded = DeserializeGuard<Readable>;

/// An Experiment whose spec can be read. Its status is the operator's own; one that somebody else made unreadable says
/// nothing, and is written anew.
#[derive(Debug, Clone)]
pub struct Readable {
    /// With an empty status where there is none that can be read.
    pub experiment: Experiment,
    /// Whether there is one that cannot.
    pub garbled: bool,
}

impl<'de> Deserialize<'de> for Readable {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(from)?;
        if let Ok(experiment) = Experiment::deserialize(&object) {
            return Ok(Self {
                experiment,
                garbled: false,
            });
        }
        let garbled = object.as_object_mut().and_then(|o| o.remove("status"));
        let experiment = Experiment::deserialize(object).map_err(serde::de::Error::custom)?;
        Ok(Self {
            experiment,
            garbled: garbled.is_some(),
        })
    }
}

impl Resource for Readable {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        Experiment::kind(&())
    }

    fn group(_: &()) -> Cow<'_, str> {
        Experiment::group(&())
    }

    fn version(_: &()) -> Cow<'_, str> {
        Experiment::version(&())
    }

    fn plural(_: &()) -> Cow<'_, str> {
        Experiment::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.experiment.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.experiment.metadata
    }
}

/// The way to the API server.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

/// Why there is no way to an API server.
#[derive(Debug, thiserror::Error)]
pub enum NoCluster {
    /// Neither a Pod's service account nor a kubeconfig.
    #[error(
        "there is no cluster to speak to: it runs in no Pod with a service account, and no kubeconfig was found; set KUBECONFIG"
    )]
    NoConfig,
    /// What there is cannot be used.
    #[error("the cluster's configuration cannot be used: {0}")]
    Unusable(&'static str),
}

impl Cluster {
    /// Finds the API server: in a Pod by its service account, elsewhere by KUBECONFIG or `~/.kube/config`. Gives back its
    /// addresses, too.
    ///
    /// # Errors
    /// Where there is none, or what is found cannot be used. The API server need not answer.
    pub async fn find(metrics: Arc<ControllerMetrics>) -> Result<(Self, Vec<IpAddr>), NoCluster> {
        let mut config = Config::infer().await.map_err(|_| NoCluster::NoConfig)?;
        config.connect_timeout = Some(WITHIN);
        // A watch hears a bookmark every minute or so: one that hears nothing for longer hangs.
        config.read_timeout = Some(SILENCE);
        config.reset_reader_on_write = true;
        // Whoever asked decides when to ask again.
        config.default_retry = false;
        let addresses = addresses(&config.cluster_url).await;
        let host = config.cluster_url.authority().map(ToString::to_string);
        let counting = Counting::new(metrics, &host.unwrap_or_default());
        let client = ClientBuilder::try_from(config)
            .map_err(|_| NoCluster::Unusable("its certificates or its credentials"))?
            .with_layer(&counting)
            .with_layer(&Refusals::default())
            .build();
        Ok((Self { client }, addresses))
    }

    /// For calls that one role makes.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The namespace of the service account, or of the kubeconfig's context.
    pub fn namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// The schema document that is served; `Ok(None)` where there is none, `Err` where nobody answers.
    pub async fn document(&self) -> Result<Option<Value>, ()> {
        let request = http::Request::get(OPENAPI).body(vec![]).map_err(|_| ())?;
        match within(self.client.request::<Value>(request)).await {
            Some(Ok(document)) => Ok(Some(document)),
            Some(Err(e)) if code(&e) == Some(404) => Ok(None),
            _ => Err(()),
        }
    }

    /// Watches the Experiments of a namespace, or of all. Backs off and begins anew by itself.
    pub fn watch(
        &self,
        namespace: Option<&str>,
    ) -> impl Stream<Item = watcher::Result<Event<Guarded>>> + Send + use<> {
        let api: Api<Guarded> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        watcher(api, watcher::Config::default())
            .backoff(Soon::default())
            .map(|event| event.map(trimmed))
    }

    /// Reads a Secret; `None` where the API server did not answer.
    pub async fn secret(&self, (namespace, name): &Named) -> Option<Found> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = match within(api.get_opt(name)).await? {
            Ok(None) => return Some(Found::Missing),
            Ok(Some(secret)) => secret,
            Err(e) if matches!(code(&e), Some(401 | 403)) => return Some(Found::Forbidden),
            Err(_) => return None,
        };
        if secret.labels().get(LABEL).map(String::as_str) != Some("true") {
            return Some(Found::Missing);
        }
        let keys = secret.data.unwrap_or_default().into_iter();
        // A value that is no text is no credential; it is refused by its emptiness.
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_default();
        Some(Found::Keys(keys.map(|(k, v)| (k, text(v.0))).collect()))
    }
}

/// Passes on what the watch of a namespace says, or of all, until `tell` says that nobody listens.
pub async fn follow<F, Fut>(cluster: Cluster, scope: Option<String>, mut tell: F)
where
    F: FnMut(Event<Guarded>) -> Fut,
    Fut: Future<Output = bool>,
{
    let mut events = std::pin::pin!(cluster.watch(scope.as_deref()));
    let mut failing = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if std::mem::take(&mut failing) {
                    tracing::info!(namespace = scope, "the watch goes on");
                }
                if !tell(event).await {
                    return;
                }
            }
            Err(_) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(
                        namespace = scope,
                        "Experiments cannot be watched; it is tried again until they can"
                    );
                }
            }
        }
    }
}

/// How a watch that failed waits: as watches do, but for seconds only. Edits are unseen until it is back.
#[derive(Default)]
struct Soon(DefaultBackoff);

impl Iterator for Soon {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|wait| wait.min(AGAIN))
    }
}

impl Backoff for Soon {
    fn reset(&mut self) {
        self.0.reset();
    }
}

async fn addresses(url: &http::Uri) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = Vec::new();
    let service = std::env::var("KUBERNETES_SERVICE_HOST").ok();
    let hosts = [url.host().map(str::to_owned), service];
    for host in hosts.into_iter().flatten() {
        let host = host.trim_matches(['[', ']']).to_owned();
        if let Some(Ok(found)) = within(tokio::net::lookup_host((host.as_str(), 443))).await {
            all.extend(found.map(|a| a.ip()));
        }
    }
    all
}

/// Gives a call so long, and no longer.
pub async fn within<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(WITHIN, work).await.ok()
}

/// The code of an answer that is an error.
pub fn code(e: &Error) -> Option<u16> {
    match e {
        Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Objects are kept for long; what is never asked for is not.
fn trimmed(event: Event<Guarded>) -> Event<Guarded> {
    event.modify(|object| object.managed_fields_mut().clear())
}

/// Namespace, name and uid of an object, also of one that cannot be read.
pub fn named(object: &Guarded) -> (String, String, Option<String>) {
    let namespace = object.namespace().unwrap_or_default();
    (namespace, object.name_any(), object.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{API_VERSION, KIND};
    use serde_json::json;

    #[test]
    fn a_status_that_cannot_be_read_does_not_make_the_experiment_unreadable() {
        let object = |status: Value| {
            serde_json::from_value::<Readable>(json!({
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": { "name": "plums" },
                "spec": { "table": { "uri": "s3://orchard/plums" } },
                "status": status,
            }))
        };
        let read = object(json!({ "observedGeneration": 1 })).unwrap();
        assert!(!read.garbled && read.experiment.status.is_some());
        let read = object(json!({ "quarantinedCount": 1u64 << 40 })).unwrap();
        assert!(read.garbled && read.experiment.status.is_none());
        assert_eq!(read.experiment.spec.table.uri, "s3://orchard/plums");
        let spec = json!({ "metadata": {}, "spec": { "table": 1 }, "status": {} });
        assert!(serde_json::from_value::<Readable>(spec).is_err());
    }

    #[test]
    fn an_edit_after_a_long_outage_of_the_api_server_is_seen_within_seconds() {
        assert_eq!(Soon::default().take(100).max(), Some(AGAIN));
    }
}
