//! What the controller writes to the API server, each call with a deadline.
//!
//! Lives here: statuses, finalizers and events as they are written. May use: kube, the way to the API server. Must never
//! come in: a decision, a retry (whoever asked decides when to ask again), or a body of the API server in a message.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::runtime::events::{Event as Note, EventType, Recorder, Reporter};
use kube::{Api, Error, ResourceExt};
use serde_json::json;

use super::desk::Wrote;
use super::lease::ClusterLease;
use super::news::News;
use crate::api::{API_VERSION, ExperimentStatus, KIND};
use crate::cluster::Cluster;
use crate::cluster::client::{Guarded, Readable, code, within};
use crate::plan::TableId;

/// Who writes, as managed fields and events name it.
pub const MANAGER: &str = "experiment-controller";

/// The way to the API server, for whoever leads.
#[derive(Clone)]
pub struct Reports {
    /// For what is only read.
    pub cluster: Cluster,
    recorder: Recorder,
}

impl Reports {
    /// `me` is this process, as events name it.
    pub fn new(cluster: Cluster, me: &str) -> Self {
        let reporter = Reporter {
            controller: MANAGER.into(),
            instance: Some(me.to_owned()),
        };
        let recorder = Recorder::new(cluster.client().clone(), reporter);
        Self { cluster, recorder }
    }

    /// Writes a status.
    pub async fn write(&self, id: &TableId, uid: &str, status: &ExperimentStatus) -> Wrote {
        let (namespace, name) = split(id);
        // What comes back may be more than this binary can read.
        let api: Api<Guarded> = Api::namespaced(self.cluster.client().clone(), namespace);
        let body = json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": { "name": name, "namespace": namespace, "uid": uid },
            "status": status,
        });
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&body);
        let mut answer = within(api.patch_status(name, &params, &patch)).await;
        if let Some(Ok(DeserializeGuard(Ok(Readable { garbled: true, .. })))) = &answer {
            // An apply leaves alone what others wrote beside it.
            let nothing = json!({ "metadata": { "uid": uid }, "status": null });
            let merge = PatchParams {
                field_manager: Some(MANAGER.into()),
                ..Default::default()
            };
            answer = within(api.patch_status(name, &merge, &Patch::Merge(&nothing))).await;
            if let Some(Ok(_)) = answer {
                answer = within(api.patch_status(name, &params, &patch)).await;
            }
        }
        told(answer, id)
    }

    /// Sets the finalizers of one version of an Experiment.
    pub async fn finalizers(&self, id: &TableId, version: &str, list: &[String]) -> Wrote {
        let (namespace, name) = split(id);
        let api: Api<Guarded> = Api::namespaced(self.cluster.client().clone(), namespace);
        let body = json!({ "metadata": { "resourceVersion": version, "finalizers": list } });
        let params = PatchParams {
            field_manager: Some(MANAGER.into()),
            ..Default::default()
        };
        told(
            within(api.patch(name, &params, &Patch::Merge(&body))).await,
            id,
        )
    }

    /// Tells an event. One that is lost is lost.
    pub async fn tell(&self, id: &TableId, uid: &str, news: News) {
        let (namespace, name) = split(id);
        let regarding = ObjectReference {
            api_version: Some(API_VERSION.into()),
            kind: Some(KIND.into()),
            namespace: Some(namespace.into()),
            name: Some(name.into()),
            uid: Some(uid.into()),
            ..Default::default()
        };
        let note = Note {
            type_: match news.warning {
                true => EventType::Warning,
                false => EventType::Normal,
            },
            reason: news.reason,
            note: Some(news.note),
            action: "Reconcile".into(),
            secondary: None,
        };
        if !matches!(
            within(self.recorder.publish(&note, &regarding)).await,
            Some(Ok(()))
        ) {
            tracing::debug!(experiment = %id, "an event was not told");
        }
    }

    /// The Lease of this name.
    pub fn lease(&self, namespace: &str, name: &str) -> ClusterLease {
        ClusterLease::new(self.cluster.client().clone(), namespace, name)
    }
}

fn told(answer: Option<Result<Guarded, Error>>, id: &TableId) -> Wrote {
    match answer {
        Some(Ok(object)) => {
            let version = object.resource_version();
            Wrote::Done(version.and_then(|v| v.parse().ok()))
        }
        Some(Err(e)) => match code(&e) {
            Some(404) => Wrote::Gone,
            Some(409) => Wrote::Failed,
            code => {
                tracing::warn!(experiment = %id, code, "the API server did not take what was written; it is tried again");
                Wrote::Failed
            }
        },
        None => Wrote::Failed,
    }
}

/// Namespace and name.
fn split(id: &TableId) -> (&str, &str) {
    id.0.split_once('/').unwrap_or(("", &id.0))
}
