//! How a store is opened: the options that the typed fields of a spec stand for, and the credentials that a Secret or
//! a command line may add.
//!
//! Keys are those of object_store and Lance, as text; neither is imported. What is not on the list of credentials is
//! refused by name: an option that names a token file, an authority, a metadata host, a proxy or a certificate switch
//! would turn a manifest into a way to read files or to export tokens. No value of a credential is ever shown.

mod cli;

use std::collections::BTreeMap;

use serde_json::Value;

use super::{StorageSpec, StoreFamily, TableSpec};
pub use cli::{CliOption, from_cli, parse_cli_option};

/// The credentials that are allowed: the key as stores know it, its family, and other spellings of it.
const CREDENTIALS: [(&str, StoreFamily, &[&str]); 9] = [
    ("aws_access_key_id", StoreFamily::S3, &["access_key_id"]),
    (
        "aws_secret_access_key",
        StoreFamily::S3,
        &["secret_access_key"],
    ),
    (
        "aws_session_token",
        StoreFamily::S3,
        &["session_token", "aws_token"],
    ),
    (
        "azure_storage_account_key",
        StoreFamily::Azure,
        &[
            "azure_storage_access_key",
            "azure_storage_master_key",
            "account_key",
        ],
    ),
    (
        "azure_storage_sas_key",
        StoreFamily::Azure,
        &["azure_storage_sas_token", "sas_key", "sas_token"],
    ),
    (
        "azure_storage_client_id",
        StoreFamily::Azure,
        &["azure_client_id", "client_id"],
    ),
    (
        "azure_storage_client_secret",
        StoreFamily::Azure,
        &["azure_client_secret", "client_secret"],
    ),
    (
        "azure_storage_tenant_id",
        StoreFamily::Azure,
        &["azure_tenant_id", "tenant_id"],
    ),
    (
        "google_service_account_key",
        StoreFamily::Gcs,
        &["service_account_key"],
    ),
];

/// The options that typed fields stand for, in every spelling.
const TYPED: [(TypedField, &[&str]); 5] = [
    (
        TypedField::Endpoint,
        &[
            "aws_endpoint",
            "aws_endpoint_url",
            "aws_endpoint_url_s3",
            "endpoint",
            "endpoint_url",
            "azure_storage_endpoint",
            "azure_endpoint",
            "google_base_url",
            "base_url",
        ],
    ),
    (
        TypedField::Region,
        &[
            "aws_region",
            "aws_default_region",
            "region",
            "default_region",
        ],
    ),
    (
        TypedField::Account,
        &["azure_storage_account_name", "account_name"],
    ),
    (
        TypedField::VirtualHostedStyle,
        &[
            "aws_virtual_hosted_style_request",
            "virtual_hosted_style_request",
        ],
    ),
    (
        TypedField::AllowHttp,
        &[
            "allow_http",
            "aws_allow_http",
            "azure_allow_http",
            "google_allow_http",
        ],
    ),
];

/// The longest value of a credential, in bytes; a service account key has about 2,400.
const LONGEST_VALUE: usize = 16 * 1024;

/// A field of `table.storage` that a storage option stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypedField {
    /// `table.storage.endpoint`
    Endpoint,
    /// `table.storage.region`
    Region,
    /// `table.storage.account`
    Account,
    /// `table.storage.virtualHostedStyle`
    VirtualHostedStyle,
    /// `table.storage.allowHTTP`
    AllowHttp,
}

impl TypedField {
    /// The path of the field, relative to the spec.
    pub fn path(self) -> &'static str {
        match self {
            Self::Endpoint => "table.storage.endpoint",
            Self::Region => "table.storage.region",
            Self::Account => "table.storage.account",
            Self::VirtualHostedStyle => "table.storage.virtualHostedStyle",
            Self::AllowHttp => "table.storage.allowHTTP",
        }
    }

    fn of(key: &str) -> Option<Self> {
        TYPED
            .iter()
            .find(|(_, keys)| keys.contains(&key))
            .map(|(field, _)| *field)
    }
}

/// Why storage options or credentials are refused. Names keys and never shows a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The key is no credential.
    #[error("the key {key} is not allowed in a Secret; {remedy}")]
    NotACredential {
        /// The key as it was given, shortened.
        key: String,
        /// What to do instead.
        remedy: String,
    },
    /// The key is neither a credential nor a typed field.
    #[error("the storage option {key} is not allowed; {remedy}")]
    NotAnOption {
        /// The key as it was given, shortened.
        key: String,
        /// What to do instead.
        remedy: String,
    },
    /// Two keys are one credential or field.
    #[error("{key} is given twice, in two spellings; keep one")]
    GivenTwice {
        /// The key as stores know it.
        key: &'static str,
    },
    /// The value of a key cannot be what it should be.
    #[error("the value of {key} {why}")]
    BadValue {
        /// The key or field.
        key: &'static str,
        /// What is wrong, and the remedy.
        why: &'static str,
    },
    /// The credentials are of another cloud than the table, or lack a part.
    #[error("the credentials do not open a table of this kind; give {needed}")]
    Incomplete {
        /// The keys that are needed.
        needed: &'static str,
    },
    /// A command line's option is not of the form KEY=VALUE. It is not repeated: it may be a secret.
    #[error("a storage option must be written KEY=VALUE")]
    Syntax,
}

impl Error {
    /// The name of this failure.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotACredential { .. } | Self::NotAnOption { .. } => "StorageOptionRefused",
            Self::GivenTwice { .. } | Self::BadValue { .. } | Self::Syntax => {
                "StorageOptionInvalid"
            }
            Self::Incomplete { .. } => "CredentialsMissing",
        }
    }
}

/// The store's options that the typed fields of `table` stand for, keyed as object_store and Lance key them.
///
/// Empty for local tables. With virtual-hosted style the bucket is put in front of a given endpoint's host, where the
/// store's client expects it.
pub fn options(table: &TableSpec) -> BTreeMap<String, String> {
    let mut options = BTreeMap::new();
    let family = StoreFamily::of_uri(&table.uri);
    let (Some(storage), Some(family)) = (&table.storage, family) else {
        return options;
    };
    let mut set = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            options.insert(key.to_owned(), value);
        }
    };
    let allow_http = storage.allow_http.map(|b| b.to_string());
    match family {
        StoreFamily::S3 => {
            set("aws_endpoint", s3_endpoint(&table.uri, storage));
            set("aws_region", storage.region.clone());
            set(
                "aws_virtual_hosted_style_request",
                storage.virtual_hosted_style.map(|b| b.to_string()),
            );
            set("allow_http", allow_http);
        }
        StoreFamily::Azure => {
            set("azure_storage_account_name", storage.account.clone());
            set("azure_storage_endpoint", storage.endpoint.clone());
            set("allow_http", allow_http);
        }
        StoreFamily::Gcs => {
            set("google_base_url", storage.endpoint.clone());
            set("allow_http", allow_http);
        }
        StoreFamily::Local => {}
    }
    options
}

fn s3_endpoint(uri: &str, storage: &StorageSpec) -> Option<String> {
    let endpoint = storage.endpoint.clone()?;
    let bucket = uri.strip_prefix("s3://")?.split('/').next()?;
    let (scheme, host) = endpoint.split_once("://")?;
    let hosted =
        storage.virtual_hosted_style == Some(true) && !host.starts_with(&format!("{bucket}."));
    Some(if hosted {
        format!("{scheme}://{bucket}.{host}")
    } else {
        endpoint
    })
}

/// The credentials of a Secret, under the keys that stores know.
///
/// Keys are read without regard to case (`AWS_ACCESS_KEY_ID` is `aws_access_key_id`); a line end behind a value, which
/// files leave there, is dropped. Refuses every key that is not a credential, and names it and those allowed.
pub fn credential_options(
    secret: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut options = BTreeMap::new();
    for (given, value) in secret {
        let Some(key) = credential_key(&given) else {
            return Err(Error::NotACredential {
                key: shown(&given),
                remedy: remedy(&given),
            });
        };
        let value = checked_value(key, &value)?;
        if options.insert(key.to_owned(), value).is_some() {
            return Err(Error::GivenTwice { key });
        }
    }
    Ok(options)
}

/// The credentials of a Secret for one table: [`credential_options`], and none of another cloud, and all that a
/// request needs. A Secret that lacks its key must not fall back to whatever identity the process has.
pub fn credentials_for(
    table: &TableSpec,
    secret: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Error> {
    let options = credential_options(secret)?;
    let family = StoreFamily::of_uri(&table.uri);
    let of_family = |key: &String| {
        CREDENTIALS
            .iter()
            .any(|(k, f, _)| k == key && Some(*f) == family)
    };
    let has = |keys: &[&str]| keys.iter().all(|k| options.contains_key(*k));
    let (needed, complete) = match family {
        Some(StoreFamily::S3) => (
            "aws_access_key_id and aws_secret_access_key",
            has(&["aws_access_key_id", "aws_secret_access_key"]),
        ),
        Some(StoreFamily::Azure) => (
            "azure_storage_account_key, or azure_storage_sas_key, or azure_storage_client_id with azure_storage_client_secret and azure_storage_tenant_id",
            has(&["azure_storage_account_key"])
                || has(&["azure_storage_sas_key"])
                || has(&[
                    "azure_storage_client_id",
                    "azure_storage_client_secret",
                    "azure_storage_tenant_id",
                ]),
        ),
        Some(StoreFamily::Gcs) => (
            "google_service_account_key",
            has(&["google_service_account_key"]),
        ),
        Some(StoreFamily::Local) | None => (
            "none: a table at a path needs no credentials",
            options.is_empty(),
        ),
    };
    if complete && options.keys().all(of_family) {
        Ok(options)
    } else {
        Err(Error::Incomplete { needed })
    }
}

/// The keys that a Secret may hold.
pub fn allowed_keys() -> impl Iterator<Item = &'static str> {
    CREDENTIALS.iter().map(|(key, ..)| *key)
}

fn credential_key(given: &str) -> Option<&'static str> {
    let lower = given.to_ascii_lowercase();
    CREDENTIALS
        .iter()
        .find(|(key, _, others)| *key == lower || others.contains(&lower.as_str()))
        .map(|(key, ..)| *key)
}

/// A key as an error shows it: quoted, without control characters, and short.
fn shown(key: &str) -> String {
    let short: String = key.chars().take(64).collect();
    format!("{short:?}")
}

fn remedy(given: &str) -> String {
    let allowed = allowed_keys().collect::<Vec<_>>().join(", ");
    match TypedField::of(&given.to_ascii_lowercase()) {
        Some(field) => format!(
            "it is no credential, set spec.{} instead; the allowed keys are {allowed}",
            field.path()
        ),
        None => format!("the allowed keys are {allowed}"),
    }
}

fn checked_value(key: &'static str, value: &str) -> Result<String, Error> {
    let bad = |why| Err(Error::BadValue { key, why });
    let value = value.trim_end_matches(['\n', '\r']);
    if value.is_empty() {
        return bad("is empty; write the credential, or remove the key");
    }
    if value.len() > LONGEST_VALUE {
        return bad("is longer than 16 KiB; write the credential alone");
    }
    if key == "google_service_account_key" {
        return checked_service_account(value);
    }
    // They become part of the URL of a token request.
    let in_url = matches!(key, "azure_storage_tenant_id" | "azure_storage_client_id");
    if in_url
        && !value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".-".contains(c))
    {
        return bad(
            "must be an identifier of letters, digits, - and .; copy it from the app registration",
        );
    }
    if !value.chars().all(|c| c.is_ascii_graphic()) {
        return bad(
            "holds a space, a line end or another character that no credential has; copy it again",
        );
    }
    Ok(value.to_owned())
}

/// A service account key is JSON, and the store's client heeds fields in it that are no credentials.
fn checked_service_account(value: &str) -> Result<String, Error> {
    let bad = |why| {
        Err(Error::BadValue {
            key: "google_service_account_key",
            why,
        })
    };
    let Ok(Value::Object(fields)) = serde_json::from_str(value) else {
        return bad(
            "is not the JSON of a service account key; paste the key file's content, not its path",
        );
    };
    if fields.get("type").is_some_and(|t| t != "service_account") {
        return bad(
            "is JSON of another kind of credential; only keys of type service_account are allowed",
        );
    }
    if fields.contains_key("gcs_base_url") || fields.contains_key("disable_oauth") {
        return bad(
            "holds gcs_base_url or disable_oauth; remove them, an endpoint goes into table.storage.endpoint",
        );
    }
    if !["private_key", "private_key_id", "client_email"]
        .iter()
        .all(|f| fields.get(*f).is_some_and(Value::is_string))
    {
        return bad(
            "lacks private_key, private_key_id or client_email; paste the key file's whole content",
        );
    }
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests;
