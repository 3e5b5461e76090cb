//! A Lease of a real API server.
//!
//! Lives here: reading and writing one `coordination.k8s.io` Lease, and what its fields mean. May use: kube. Must never
//! come in: a patch or an apply; every write is a create, or a replace that names the version that was read, and the API
//! server refuses whoever comes second.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};

use super::{Leases, Record, Refused};

/// Who wrote, in the object's managed fields.
const MANAGER: &str = "freshet-lease";

/// The Lease of this name in this namespace.
#[derive(Clone)]
pub struct ClusterLease {
    api: Api<Lease>,
    name: String,
}

impl ClusterLease {
    /// Nothing is asked of the API server yet.
    pub fn new(client: Client, namespace: &str, name: impl Into<String>) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.into(),
        }
    }
}

impl Leases for ClusterLease {
    /// The whole object: what others wrote to it, labels or owners, stays.
    type Version = Lease;

    async fn read(&self) -> Result<Option<(Lease, Record)>, Refused> {
        let found = self.api.get_opt(&self.name).await.map_err(refused)?;
        Ok(found.map(|lease| {
            let record = record(&lease);
            (lease, record)
        }))
    }

    async fn write(&self, over: Option<Lease>, record: &Record) -> Result<(), Refused> {
        let how = PostParams {
            field_manager: Some(MANAGER.into()),
            ..Default::default()
        };
        let written = match over {
            Some(lease) => {
                let lease = with(lease, record);
                self.api.replace(&self.name, &how, &lease).await
            }
            None => {
                let metadata = ObjectMeta {
                    name: Some(self.name.clone()),
                    ..Default::default()
                };
                let lease = Lease {
                    metadata,
                    ..Default::default()
                };
                self.api.create(&how, &with(lease, record)).await
            }
        };
        written.map(drop).map_err(refused)
    }
}

/// What the API server answered, by its code.
fn refused(e: kube::Error) -> Refused {
    match e {
        // 404: somebody deleted it since it was read.
        kube::Error::Api(status) if matches!(status.code, 404 | 409) => Refused::Conflict,
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => Refused::Forbidden,
        _ => Refused::Unavailable,
    }
}

/// What a Lease says. A field that is absent or makes no sense is as good as empty.
fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or(0);
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
        acquired: spec.acquire_time.map(|t| t.0),
        renewed: spec.renew_time.map(|t| t.0),
        transitions: spec.lease_transitions.unwrap_or(0),
    }
}

/// The Lease, saying what the record says.
fn with(mut lease: Lease, record: &Record) -> Lease {
    let spec = lease.spec.get_or_insert_default();
    let seconds = i32::try_from(record.duration.as_secs()).unwrap_or(i32::MAX);
    spec.holder_identity = Some(record.holder.clone());
    // The API server takes no duration of 0.
    spec.lease_duration_seconds = Some(seconds.max(1));
    spec.acquire_time = record.acquired.map(MicroTime);
    spec.renew_time = record.renewed.map(MicroTime);
    spec.lease_transitions = Some(record.transitions);
    lease
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use serde_json::json;

    #[test]
    fn what_is_written_reads_back_and_what_others_wrote_stays() {
        let mut lease = Lease::default();
        lease.metadata.resource_version = Some("41".into());
        lease.metadata.labels = Some([("team".to_string(), "rl".to_string())].into());
        lease.spec = Some(LeaseSpec {
            strategy: Some("other".into()),
            ..Default::default()
        });
        let at = Timestamp::from_microsecond(1_800_000_000_123_456).unwrap();
        let written = Record {
            holder: "a".into(),
            duration: Duration::from_secs(15),
            acquired: Some(at),
            renewed: Some(at),
            transitions: 7,
        };
        let lease = with(lease, &written);
        let lease: Lease = serde_json::from_value(serde_json::to_value(lease).unwrap()).unwrap();
        assert_eq!(record(&lease), written);
        let kept = serde_json::to_value(&lease).unwrap();
        assert_eq!(kept["metadata"]["labels"]["team"], "rl");
        assert_eq!(kept["metadata"]["resourceVersion"], "41");
        assert_eq!(kept["spec"]["strategy"], "other");
    }

    #[test]
    fn a_lease_of_nonsense_is_held_by_nobody() {
        let lease = json!({"metadata": {"name": "x"}, "spec": {"leaseDurationSeconds": -4}});
        let lease = serde_json::from_value(lease).unwrap();
        assert_eq!(record(&lease), Record::default());
        assert_eq!(record(&Lease::default()), Record::default());
    }
}
