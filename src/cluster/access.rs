//! Who may touch what: the grants of whoever runs the operator, and what an Experiment brings itself.
//!
//! Lives here: the pure verdict on one table of one namespace, before any request. May use: `api`'s identities. Must
//! never come in: a comparison of raw URIs (two spellings of one place are one), a look-up, or the content of a Secret.

use serde::Deserialize;

use super::settings::Error;
use crate::api::{StorageSpec, StoreFamily, TableIdentity, TableSpec};

/// Lets Experiments of some namespaces use the operator's own identity under some places.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Grant {
    /// The namespaces; `*` for all.
    pub namespaces: Vec<String>,
    /// The places, as in `s3://bucket/prefix/`. A prefix ends at a `/`, written or not.
    pub uri_prefixes: Vec<String>,
    /// The endpoint of the store, where it is not the cloud's own. It is allowed as if it stood in `allowedEndpoints`.
    #[serde(default)]
    pub endpoint: Option<String>,
}

/// All grants and allowed endpoints, in canonical form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    grants: Vec<(Vec<String>, Vec<TableIdentity>)>,
    endpoints: Vec<String>,
}

/// What a table may be opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The Secret that it names.
    Secret,
    /// The operator's own, as a grant says.
    Ambient,
}

/// Why a table may not be touched: a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);

impl Denied {
    /// The name of this failure.
    pub fn reason(&self) -> &'static str {
        "NotAllowed"
    }
}

impl Access {
    /// Reads grants and endpoints.
    ///
    /// # Errors
    /// Names the field that cannot be.
    pub fn new(grants: Vec<Grant>, endpoints: Vec<String>) -> Result<Self, Error> {
        let mut access = Access::default();
        for (at, endpoint) in endpoints.iter().enumerate() {
            let field = format!("storage.allowedEndpoints[{at}]");
            access.endpoints.push(canonical(endpoint, &field)?);
        }
        for (at, grant) in grants.into_iter().enumerate() {
            let field = format!("storage.grants[{at}]");
            if grant.namespaces.is_empty() || grant.uri_prefixes.is_empty() {
                let what = "namespaces and uriPrefixes must each name at least one; write \"*\" for all namespaces";
                return Err(Error::value(field, what));
            }
            if let Some(endpoint) = &grant.endpoint {
                let endpoint = canonical(endpoint, &format!("{field}.endpoint"))?;
                access.endpoints.push(endpoint);
            }
            let prefixes = grant.uri_prefixes.iter().enumerate().map(|(i, prefix)| {
                let field = format!("{field}.uriPrefixes[{i}]");
                prefix_of(prefix, grant.endpoint.as_deref(), &field)
            });
            access.grants.push((
                grant.namespaces.clone(),
                prefixes.collect::<Result<_, _>>()?,
            ));
        }
        Ok(access)
    }

    /// What the table of an Experiment in `namespace` may be opened with.
    ///
    /// # Errors
    /// `Denied` where it brings no Secret and no grant covers it, and for what is no object store.
    pub fn judge(
        &self,
        namespace: &str,
        table: &TableSpec,
        identity: &TableIdentity,
    ) -> Result<Identity, Denied> {
        if identity.family() == StoreFamily::Local {
            let said = "Tables on the operator's own file system are not allowed. Give the table a URI in an object store.";
            return Err(Denied(said.into()));
        }
        if table.secret_ref.is_some() {
            return Ok(Identity::Secret);
        }
        let of = |names: &[String]| names.iter().any(|n| n == "*" || n == namespace);
        let granted = self.grants.iter().any(|(namespaces, prefixes)| {
            of(namespaces) && prefixes.iter().any(|prefix| covers(prefix, identity))
        });
        match granted {
            true => Ok(Identity::Ambient),
            false => Err(Denied(
                "The table brings no Secret, and no grant of the operator lets this namespace use the operator's own identity there. Name a Secret in table.secretRef, or ask for a grant.".into(),
            )),
        }
    }

    /// The endpoints that were allowed by name.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Whether an endpoint was allowed by name, so that it may resolve to whatever it does.
    pub fn names_endpoint(&self, endpoint: &str) -> bool {
        canonical(endpoint, "").is_ok_and(|e| self.endpoints.contains(&e))
    }
}

/// Whether a place lies at or under a prefix: one store, and whole segments of the path.
fn covers(prefix: &TableIdentity, place: &TableIdentity) -> bool {
    let store = |i: &TableIdentity| {
        (
            i.family(),
            i.endpoint().map(str::to_owned),
            i.account().map(str::to_owned),
            i.bucket().to_owned(),
        )
    };
    if store(prefix) != store(place) {
        return false;
    }
    let wanted = prefix.path();
    let under = place.path().strip_prefix(wanted);
    wanted.is_empty() || under.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn prefix_of(prefix: &str, endpoint: Option<&str>, field: &str) -> Result<TableIdentity, Error> {
    let storage = endpoint.map(|endpoint| StorageSpec {
        endpoint: Some(endpoint.to_owned()),
        ..Default::default()
    });
    let table = TableSpec {
        uri: prefix.strip_suffix('/').unwrap_or(prefix).to_owned(),
        storage,
        ..Default::default()
    };
    if prefix.starts_with("az://") {
        let what = "az:// does not name its account; write abfss://container@account.dfs.core.windows.net/path";
        return Err(Error::value(field, what));
    }
    let identity = TableIdentity::of(&table).map_err(|e| Error::value(field, e.message()))?;
    match identity.family() {
        StoreFamily::Local => Err(Error::value(
            field,
            "it must be a place in an object store, as in s3://bucket/prefix/",
        )),
        _ => Ok(identity),
    }
}

/// An endpoint in the form that identities compare.
fn canonical(endpoint: &str, field: &str) -> Result<String, Error> {
    let table = TableSpec {
        uri: "s3://any/any".into(),
        storage: Some(StorageSpec {
            endpoint: Some(endpoint.to_owned()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let identity = TableIdentity::of(&table).map_err(|e| Error::value(field, e.message()))?;
    // A cloud's own is none in an identity.
    Ok(identity.endpoint().unwrap_or(endpoint).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::SecretRef;

    fn access(prefix: &str, endpoint: Option<&str>) -> Access {
        let grant = Grant {
            namespaces: vec!["alder".into()],
            uri_prefixes: vec![prefix.into()],
            endpoint: endpoint.map(str::to_owned),
        };
        Access::new(vec![grant], vec![]).unwrap()
    }

    fn table(uri: &str, endpoint: Option<&str>) -> TableSpec {
        TableSpec {
            uri: uri.into(),
            storage: endpoint.map(|e| StorageSpec {
                endpoint: Some(e.into()),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn judged(access: &Access, namespace: &str, table: &TableSpec) -> Result<Identity, Denied> {
        access.judge(namespace, table, &TableIdentity::of(table).unwrap())
    }

    #[test]
    fn without_a_secret_only_a_grant_lets_a_table_be_opened() {
        let granted = access("s3://maze-runs/alder/", None);
        let own = table("s3://maze-runs/alder/one", None);
        assert_eq!(judged(&granted, "alder", &own), Ok(Identity::Ambient));
        assert_eq!(
            judged(&granted, "birch", &own).unwrap_err().reason(),
            "NotAllowed"
        );
        assert!(judged(&Access::default(), "alder", &own).is_err());
    }

    #[test]
    fn a_secret_of_its_own_needs_no_grant() {
        let mut own = table("s3://anybody/at-all", None);
        own.secret_ref = Some(SecretRef {
            name: "keys".into(),
        });
        assert_eq!(
            judged(&Access::default(), "birch", &own),
            Ok(Identity::Secret)
        );
    }

    #[test]
    fn a_prefix_ends_at_a_segment() {
        for prefix in ["s3://maze-runs/alder", "s3://maze-runs/alder/"] {
            let granted = access(prefix, None);
            for (uri, covered) in [
                ("s3://maze-runs/alder", true),
                ("s3://maze-runs/alder/deep/er", true),
                ("s3://maze-runs/alder-secret", false),
                ("s3://maze-runs/birch", false),
                ("s3://maze-runs-2/alder/one", false),
                ("gs://maze-runs/alder/one", false),
            ] {
                let found = judged(&granted, "alder", &table(uri, None));
                assert_eq!(found.is_ok(), covered, "{prefix} {uri}");
            }
        }
        let bucket = access("s3://maze-runs", None);
        assert!(judged(&bucket, "alder", &table("s3://maze-runs/any/where", None)).is_ok());
    }

    #[test]
    fn a_grant_reaches_the_store_of_its_endpoint_and_no_other() {
        let minio = access("s3://maze-runs/alder/", Some("https://minio.example:443/"));
        let at = |e| table("s3://maze-runs/alder/one", e);
        assert!(judged(&minio, "alder", &at(Some("https://MINIO.example"))).is_ok());
        assert!(judged(&minio, "alder", &at(Some("https://other.example"))).is_err());
        assert!(judged(&minio, "alder", &at(None)).is_err());
        let cloud = access("s3://maze-runs/alder/", None);
        assert!(judged(&cloud, "alder", &at(Some("https://evil.example"))).is_err());
        assert!(
            judged(
                &cloud,
                "alder",
                &at(Some("https://s3.eu-central-1.amazonaws.com"))
            )
            .is_ok()
        );
    }

    #[test]
    fn an_azure_grant_names_its_account() {
        let granted = access("abfss://runs@alderstore.dfs.core.windows.net/one", None);
        let mut az = table("az://runs/one/two", None);
        az.storage = Some(StorageSpec {
            account: Some("alderstore".into()),
            ..Default::default()
        });
        assert!(judged(&granted, "alder", &az).is_ok());
        az.storage.as_mut().unwrap().account = Some("birchstore".into());
        assert!(judged(&granted, "alder", &az).is_err());
    }

    #[test]
    fn a_file_system_is_never_allowed() {
        let mut local = table("file:///etc", None);
        local.secret_ref = Some(SecretRef {
            name: "keys".into(),
        });
        assert!(judged(&Access::default(), "alder", &local).is_err());
    }

    #[test]
    fn a_grant_that_cannot_be_is_refused_with_its_field() {
        for (prefix, named) in [
            ("ftp://x/y", "storage.grants[0].uriPrefixes[0]"),
            ("az://runs/one", "abfss://"),
            ("/data", "object store"),
            ("s3://maze-runs/../x", "storage.grants[0].uriPrefixes[0]"),
        ] {
            let grant = Grant {
                namespaces: vec!["*".into()],
                uri_prefixes: vec![prefix.into()],
                endpoint: None,
            };
            let said = Access::new(vec![grant], vec![]).unwrap_err().to_string();
            assert!(said.contains(named), "{said}");
        }
    }

    #[test]
    fn endpoints_are_allowed_by_name_however_they_are_spelled() {
        let access = Access::new(vec![], vec!["http://minio.storage.svc:9000".into()]).unwrap();
        assert!(access.names_endpoint("http://MINIO.storage.svc:9000/"));
        assert!(!access.names_endpoint("http://minio.storage.svc:9001"));
    }
}
