//! The verdict on one table before any request to its store: grants, then endpoints, then the Secret.
//!
//! Lives here: the one order of these checks, which whoever writes tables and whoever reads them share. Pure: what is not
//! known yet is named, and asked for by whoever called. May use: `api`, this room's pure parts. Must never come in: an await, a
//! clock, or a value of a Secret in a sentence.

use std::collections::BTreeMap;

use super::access::{Access, Identity};
use super::endpoints::Leads;
use super::secrets::{Found, LABEL, Named};
use crate::api::{TableIdentity, TableSpec, storage};

/// What comes of the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permit {
    /// It may be opened with these options; none where the process's own identity opens it.
    Opens(BTreeMap<String, String>),
    /// Something has to be asked for first.
    Needs(Need),
    /// It may not, or not now. A sentence for people.
    Refused(Refusal, String),
}

/// What has to be asked for before the verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// Where this endpoint leads.
    Endpoint(String),
    /// What this Secret says.
    Secret(Named),
}

/// Why a table may not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Whoever runs the process did not allow it.
    NotAllowed,
    /// Its endpoint's name does not resolve.
    StoreUnreachable,
    /// Its Secret is not there, or cannot be used.
    CredentialsMissing,
}

/// A table of one namespace, with the field that names its Secret.
#[derive(Debug, Clone)]
pub struct Asked<'a> {
    /// Where the Experiment is.
    pub namespace: &'a str,
    /// Its table; `secret_ref` is the Secret that is meant.
    pub table: &'a TableSpec,
    /// Which table it is.
    pub identity: &'a TableIdentity,
    /// The field that the Secret's name is from, relative to the spec.
    pub field: &'static str,
}

impl Asked<'_> {
    /// The Secret that opens it.
    pub fn secret(&self) -> Option<Named> {
        let named = self.table.secret_ref.as_ref()?;
        Some((self.namespace.to_owned(), named.name.clone()))
    }

    /// Judges it. `leads` and `found` tell what is known; `None` where nothing is yet.
    pub fn judge(
        &self,
        access: &Access,
        mut leads: impl FnMut(&str) -> Option<Leads>,
        found: impl FnOnce(&Named) -> Option<Found>,
    ) -> Permit {
        let opened_by = match access.judge(self.namespace, self.table, self.identity) {
            Ok(opened_by) => opened_by,
            Err(denied) => return Permit::Refused(Refusal::NotAllowed, denied.to_string()),
        };
        let own = self.identity.endpoint();
        let named = own.is_some_and(|e| access.names_endpoint(e));
        for endpoint in endpoints(self.table).into_iter().filter(|_| !named) {
            match leads(&endpoint) {
                None => return Permit::Needs(Need::Endpoint(endpoint)),
                Some(Leads::Out) => {}
                Some(Leads::Nowhere) => {
                    let said = "The name of the endpoint does not resolve. It is tried again by itself; check table.storage.endpoint if this lasts.";
                    return Permit::Refused(Refusal::StoreUnreachable, said.into());
                }
                Some(Leads::Inside(what)) => {
                    let said = format!(
                        "table.storage.endpoint leads to {what}. Name another, or ask whoever runs the operator to list it in storage.allowedEndpoints."
                    );
                    return Permit::Refused(Refusal::NotAllowed, said);
                }
            }
        }
        match (opened_by, self.secret()) {
            (Identity::Secret, Some(secret)) => match found(&secret) {
                None => Permit::Needs(Need::Secret(secret)),
                Some(found) => self.with(&secret.1, found),
            },
            _ => Permit::Opens(BTreeMap::new()),
        }
    }

    fn with(&self, name: &str, found: Found) -> Permit {
        let field = self.field;
        let said = match found {
            Found::Missing => format!(
                "The Secret {name} of {field} does not exist in this namespace, or does not carry the label {LABEL}: \"true\". Create or label it."
            ),
            Found::Forbidden => format!(
                "The operator may not read the Secret {name} of {field}. Grant its service account get on Secrets in this namespace."
            ),
            Found::Keys(keys) => match storage::credentials_for(self.table, keys) {
                Ok(options) => return Permit::Opens(options),
                Err(e) => format!("The Secret {name} of {field} cannot be used: {e}."),
            },
        };
        Permit::Refused(Refusal::CredentialsMissing, said)
    }
}

/// Every base URL that requests for a table would go to, beside the cloud's own.
pub fn endpoints(table: &TableSpec) -> Vec<String> {
    let mut all: Vec<String> = storage::options(table)
        .into_iter()
        .filter(|(key, _)| key.contains("endpoint") || key.contains("base_url"))
        .map(|(_, value)| value)
        .collect();
    all.extend(table.storage.as_ref().and_then(|s| s.endpoint.clone()));
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{SecretRef, StorageSpec};

    fn judged(table: &TableSpec, leads: Option<Leads>, found: Option<Found>) -> Permit {
        let asked = Asked {
            namespace: "alder",
            table,
            identity: &TableIdentity::of(table).unwrap(),
            field: "table.readSecretRef",
        };
        asked.judge(&Access::default(), |_| leads, |_| found)
    }

    fn table() -> TableSpec {
        TableSpec {
            uri: "s3://maze-runs/alder".into(),
            storage: Some(StorageSpec {
                endpoint: Some("http://depot.example".into()),
                allow_http: Some(true),
                ..Default::default()
            }),
            secret_ref: Some(SecretRef {
                name: "keys".into(),
            }),
            ..Default::default()
        }
    }

    #[test]
    fn nothing_is_asked_for_a_table_that_may_not_be_opened() {
        let bare = TableSpec {
            secret_ref: None,
            ..table()
        };
        let never = Asked {
            namespace: "alder",
            table: &bare,
            identity: &TableIdentity::of(&bare).unwrap(),
            field: "table.secretRef",
        };
        let permit = never.judge(
            &Access::default(),
            |_| panic!("an endpoint is looked up"),
            |_| panic!("a Secret is read"),
        );
        assert!(matches!(permit, Permit::Refused(Refusal::NotAllowed, _)));
        let inside = Some(Leads::Inside("the cluster's API server"));
        let permit = judged(&table(), inside, None);
        assert!(matches!(permit, Permit::Refused(Refusal::NotAllowed, _)));
    }

    #[test]
    fn what_is_not_known_is_named_in_its_order() {
        let endpoint = Need::Endpoint("http://depot.example".into());
        assert_eq!(judged(&table(), None, None), Permit::Needs(endpoint));
        let secret = Need::Secret(("alder".into(), "keys".into()));
        let out = Some(Leads::Out);
        assert_eq!(judged(&table(), out, None), Permit::Needs(secret));
        let Permit::Refused(Refusal::CredentialsMissing, said) =
            judged(&table(), out, Some(Found::Missing))
        else {
            panic!("it is refused");
        };
        assert!(said.contains("keys of table.readSecretRef"), "{said}");
        let keys = [("aws_access_key_id", "a"), ("aws_secret_access_key", "b")];
        let keys = keys.map(|(k, v)| (k.to_owned(), v.to_owned()));
        let found = Some(Found::Keys(keys.into()));
        let Permit::Opens(options) = judged(&table(), out, found) else {
            panic!("it opens");
        };
        assert_eq!(options["aws_access_key_id"], "a");
    }
}
