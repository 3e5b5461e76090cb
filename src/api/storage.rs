//! How a store is opened: the options that the typed fields of a spec stand for, and the credentials that a Secret or
//! a command line may add.
//!
//! Keys are those of object_store and Lance, as text; neither is imported. What is not on the list of credentials is
//! refused by name: an option that names a token file, an authority, a metadata host, a proxy or a certificate switch
//! would turn a manifest into a way to read files or to export tokens. No value of a credential is ever shown.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::{StorageSpec, StoreFamily, TableSpec};

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
    match key {
        "google_service_account_key" => return checked_service_account(value),
        "azure_storage_tenant_id" | "azure_storage_client_id" => {
            // They become part of the URL of a token request.
            if !value
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || ".-".contains(c))
            {
                return bad(
                    "must be an identifier of letters, digits, - and .; copy it from the app registration",
                );
            }
        }
        _ => {}
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

/// One `--storage KEY=VALUE` of a command line. Its `Debug` form shows no value.
#[derive(Clone, PartialEq, Eq)]
pub enum CliOption {
    /// It stands for a typed field.
    Typed {
        /// The field.
        field: TypedField,
        /// The value as it was given.
        value: String,
    },
    /// It is a credential.
    Credential {
        /// The key as stores know it.
        key: &'static str,
        /// The value, checked.
        value: String,
    },
}

impl fmt::Debug for CliOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Typed { field, .. } => f.debug_tuple("Typed").field(field).finish(),
            Self::Credential { key, .. } => f.debug_tuple("Credential").field(key).finish(),
        }
    }
}

/// Reads `KEY=VALUE`: a credential or what a typed field stands for, nothing else.
pub fn parse_cli_option(text: &str) -> Result<CliOption, Error> {
    let (given, value) = text.split_once('=').ok_or(Error::Syntax)?;
    if let Some(key) = credential_key(given) {
        return Ok(CliOption::Credential {
            key,
            value: checked_value(key, value)?,
        });
    }
    match TypedField::of(&given.to_ascii_lowercase()) {
        Some(field) if value.is_empty() => Err(Error::BadValue {
            key: field.path(),
            why: "is empty; write it behind the =, or leave the option out",
        }),
        Some(field) => Ok(CliOption::Typed {
            field,
            value: value.to_owned(),
        }),
        None => {
            let typed = TYPED
                .iter()
                .map(|(_, keys)| keys[0])
                .collect::<Vec<_>>()
                .join(", ");
            Err(Error::NotAnOption {
                key: shown(given),
                remedy: format!("{}, {typed}", remedy(given)),
            })
        }
    }
}

/// The table and the credentials of a command line: `--table URI` and each `--storage KEY=VALUE`.
///
/// The table is yet to be validated, see [`validate_table`](super::validate_table).
pub fn from_cli<S: AsRef<str>>(
    uri: &str,
    options: impl IntoIterator<Item = S>,
) -> Result<(TableSpec, BTreeMap<String, String>), Error> {
    let mut storage = StorageSpec::default();
    let mut credentials = BTreeMap::new();
    for option in options {
        match parse_cli_option(option.as_ref())? {
            CliOption::Credential { key, value } => {
                if credentials.insert(key.to_owned(), value).is_some() {
                    return Err(Error::GivenTwice { key });
                }
            }
            CliOption::Typed { field, value } => set_typed(&mut storage, field, value)?,
        }
    }
    let storage = (storage != StorageSpec::default()).then_some(storage);
    Ok((
        TableSpec {
            uri: uri.to_owned(),
            storage,
            secret_ref: None,
            read_secret_ref: None,
        },
        credentials,
    ))
}

fn set_typed(storage: &mut StorageSpec, field: TypedField, value: String) -> Result<(), Error> {
    let flag = |value: &str| match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(Error::BadValue {
            key: field.path(),
            why: "must be true or false; write one of the two",
        }),
    };
    let twice = match field {
        TypedField::Endpoint => storage.endpoint.replace(value).is_some(),
        TypedField::Region => storage.region.replace(value).is_some(),
        TypedField::Account => storage.account.replace(value).is_some(),
        TypedField::VirtualHostedStyle => storage
            .virtual_hosted_style
            .replace(flag(&value)?)
            .is_some(),
        TypedField::AllowHttp => storage.allow_http.replace(flag(&value)?).is_some(),
    };
    if twice {
        Err(Error::GivenTwice { key: field.path() })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn table(uri: &str, storage: StorageSpec) -> TableSpec {
        TableSpec {
            uri: uri.into(),
            storage: Some(storage),
            ..Default::default()
        }
    }

    fn endpoint(url: &str) -> StorageSpec {
        StorageSpec {
            endpoint: Some(url.into()),
            ..Default::default()
        }
    }

    const SERVICE_ACCOUNT: &str =
        r#"{"type":"service_account","private_key":"k","private_key_id":"i","client_email":"e"}"#;

    #[test]
    fn typed_fields_become_the_options_of_their_store() {
        let all = StorageSpec {
            endpoint: Some("http://minio:9000".into()),
            region: Some("eu-west-1".into()),
            account: None,
            virtual_hosted_style: Some(false),
            allow_http: Some(true),
        };
        for (table, expected) in [
            (
                table("s3://bkt/p", all.clone()),
                map(&[
                    ("aws_endpoint", "http://minio:9000"),
                    ("aws_region", "eu-west-1"),
                    ("aws_virtual_hosted_style_request", "false"),
                    ("allow_http", "true"),
                ]),
            ),
            (
                table(
                    "s3://bkt/p",
                    StorageSpec {
                        virtual_hosted_style: Some(true),
                        ..endpoint("https://minio:9000")
                    },
                ),
                map(&[
                    ("aws_endpoint", "https://bkt.minio:9000"),
                    ("aws_virtual_hosted_style_request", "true"),
                ]),
            ),
            (
                table(
                    "s3://bkt/p",
                    StorageSpec {
                        virtual_hosted_style: Some(true),
                        ..endpoint("https://bkt.minio")
                    },
                ),
                map(&[
                    ("aws_endpoint", "https://bkt.minio"),
                    ("aws_virtual_hosted_style_request", "true"),
                ]),
            ),
            (
                table(
                    "az://c/p",
                    StorageSpec {
                        account: Some("acct".into()),
                        ..endpoint("https://azurite")
                    },
                ),
                map(&[
                    ("azure_storage_account_name", "acct"),
                    ("azure_storage_endpoint", "https://azurite"),
                ]),
            ),
            (
                table("gs://bkt/p", endpoint("https://gcs")),
                map(&[("google_base_url", "https://gcs")]),
            ),
            (table("/data/t", all), map(&[])),
            (
                TableSpec {
                    uri: "s3://bkt/p".into(),
                    ..Default::default()
                },
                map(&[]),
            ),
        ] {
            assert_eq!(options(&table), expected, "{table:?}");
        }
    }

    #[test]
    fn credentials_are_read_in_every_spelling_and_given_to_the_store_in_one() {
        for (key, _, others) in CREDENTIALS {
            let value = if key == "google_service_account_key" {
                SERVICE_ACCOUNT
            } else {
                "v4lue"
            };
            for spelling in others.iter().copied().chain([key, &key.to_uppercase()]) {
                assert_eq!(
                    credential_options(map(&[(spelling, value)])),
                    Ok(map(&[(key, value)])),
                    "{spelling}"
                );
            }
        }
        assert_eq!(
            credential_options(map(&[("sas_token", "v\r\n")])),
            Ok(map(&[("azure_storage_sas_key", "v")]))
        );
    }

    #[test]
    fn whatever_is_no_credential_is_refused_by_name_with_the_keys_that_are_allowed() {
        for key in [
            "aws_web_identity_token_file",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "aws_container_authorization_token_file",
            "aws_metadata_endpoint",
            "aws_endpoint_url_sts",
            "aws_role_arn",
            "aws_profile",
            "aws_skip_signature",
            "aws_endpoint",
            "aws_region",
            "azure_federated_token_file",
            "azure_storage_authority_host",
            "azure_storage_authority_id",
            "azure_msi_endpoint",
            "azure_use_azure_cli",
            "azure_storage_token",
            "azure_storage_use_emulator",
            "google_application_credentials",
            "google_service_account",
            "google_service_account_path",
            "google_base_url",
            "google_bearer_token",
            "proxy_url",
            "proxy_ca_certificate",
            "allow_http",
            "allow_invalid_certificates",
            "use_opendal",
            "headers.authorization",
            "token",
            "",
            "ключ",
            "aws_access_key_id ",
            "aws_copy_if_not_exists",
            "aws_conditional_put",
        ] {
            let error = credential_options(map(&[(key, "marker")])).expect_err(key);
            let text = error.to_string();
            assert!(text.contains(&format!("{key:?}")), "{text}");
            assert!(
                allowed_keys().all(|allowed| text.contains(allowed)),
                "{text}"
            );
            assert!(!text.contains("marker"), "{text}");
        }
        let text = credential_options(map(&[("aws_region", "eu")]))
            .unwrap_err()
            .to_string();
        assert!(text.contains("spec.table.storage.region"), "{text}");
        let long = credential_options(map(&[(&"x".repeat(1_000_000), "")])).unwrap_err();
        assert!(long.to_string().len() < 1_000);
    }

    #[test]
    fn a_value_that_cannot_be_a_credential_is_refused_without_being_shown() {
        for (key, value) in [
            ("aws_access_key_id", ""),
            ("aws_access_key_id", "\n"),
            ("aws_secret_access_key", "marker marker"),
            ("aws_secret_access_key", "marker\nHost: evil"),
            ("azure_storage_tenant_id", "marker/../x"),
            ("azure_storage_tenant_id", "marker?x"),
            ("google_service_account_key", "/var/run/secrets/marker"),
            (
                "google_service_account_key",
                r#"{"type":"external_account","marker":1}"#,
            ),
            ("google_service_account_key", r#"{"private_key":"marker"}"#),
            (
                "google_service_account_key",
                r#"{"private_key":"k","private_key_id":"i","client_email":"e","gcs_base_url":"https://marker"}"#,
            ),
        ] {
            let error = credential_options(map(&[(key, value)])).expect_err(value);
            assert!(
                error.to_string().contains(key) && !error.to_string().contains("marker"),
                "{error}"
            );
        }
        let giant = "x".repeat(LONGEST_VALUE + 1);
        assert!(credential_options(map(&[("aws_access_key_id", &giant)])).is_err());
    }

    #[test]
    fn one_credential_in_two_spellings_is_refused() {
        let twice = map(&[("AWS_ACCESS_KEY_ID", "a"), ("aws_access_key_id", "b")]);
        assert_eq!(
            credential_options(twice),
            Err(Error::GivenTwice {
                key: "aws_access_key_id"
            })
        );
    }

    #[test]
    fn credentials_that_do_not_open_the_table_are_refused_rather_than_replaced_by_ambient_ones() {
        let s3 = map(&[("aws_access_key_id", "a"), ("aws_secret_access_key", "b")]);
        let sas = map(&[("sas_token", "a")]);
        let triple = map(&[
            ("client_id", "a"),
            ("client_secret", "b"),
            ("tenant_id", "c"),
        ]);
        for (uri, secret, fits) in [
            ("s3://bkt/p", s3.clone(), true),
            ("s3://bkt/p", map(&[("aws_access_key_id", "a")]), false),
            ("s3://bkt/p", map(&[]), false),
            ("s3://bkt/p", sas.clone(), false),
            ("az://c/p", sas.clone(), true),
            ("abfss://c@acct.dfs.core.windows.net/p", triple, true),
            (
                "az://c/p",
                map(&[("client_id", "a"), ("client_secret", "b")]),
                false,
            ),
            (
                "gs://bkt/p",
                map(&[("google_service_account_key", SERVICE_ACCOUNT)]),
                true,
            ),
            ("gs://bkt/p", s3.clone(), false),
            ("/data/t", map(&[]), true),
            ("/data/t", s3.clone(), false),
            ("s3://bkt/p", s3.into_iter().chain(sas).collect(), false),
        ] {
            let table = TableSpec {
                uri: uri.into(),
                ..Default::default()
            };
            assert_eq!(
                credentials_for(&table, secret.clone()).is_ok(),
                fits,
                "{uri} {:?}",
                secret.keys()
            );
        }
    }

    #[test]
    fn a_command_line_gives_typed_fields_and_credentials_and_nothing_else() {
        let (table, credentials) = from_cli(
            "s3://bkt/p",
            [
                "aws_endpoint=http://minio:9000",
                "REGION=eu-west-1",
                "allow_http=True",
                "aws_access_key_id=a=b",
            ],
        )
        .unwrap();
        let storage = table.storage.unwrap();
        assert_eq!(storage.endpoint.as_deref(), Some("http://minio:9000"));
        assert_eq!(storage.region.as_deref(), Some("eu-west-1"));
        assert_eq!(storage.allow_http, Some(true));
        assert_eq!(credentials, map(&[("aws_access_key_id", "a=b")]));
        assert_eq!(from_cli("s3://bkt/p", [""; 0]).unwrap().0.storage, None);
        for (bad, reason) in [
            ("marker", "StorageOptionInvalid"),
            ("=marker", "StorageOptionRefused"),
            ("proxy_url=marker", "StorageOptionRefused"),
            ("aws_web_identity_token_file=marker", "StorageOptionRefused"),
            ("allow_http=marker", "StorageOptionInvalid"),
            ("region=", "StorageOptionInvalid"),
            ("aws_access_key_id=", "StorageOptionInvalid"),
        ] {
            let error = from_cli("s3://bkt/p", [bad]).expect_err(bad);
            assert_eq!(error.reason(), reason, "{bad}");
            assert!(!error.to_string().contains("marker"), "{error}");
        }
        assert!(from_cli("s3://bkt/p", ["region=a", "aws_region=b"]).is_err());
    }

    #[test]
    fn a_command_lines_option_does_not_show_its_value_in_debug_form() {
        let option = parse_cli_option("aws_secret_access_key=marker").unwrap();
        assert_eq!(
            format!("{option:?}"),
            r#"Credential("aws_secret_access_key")"#
        );
        let option = parse_cli_option("endpoint=https://u:marker@h").unwrap();
        assert_eq!(format!("{option:?}"), "Typed(Endpoint)");
    }
}
