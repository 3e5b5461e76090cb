//! The storage options of a command line, each `--storage KEY=VALUE`.
//!
//! The same typed fields and the same credentials as a spec and its Secret, judged by the same list; a command line is
//! no way around it.

use std::collections::BTreeMap;
use std::fmt;

use super::{Error, TYPED, TypedField, checked_value, credential_key, remedy, shown};
use crate::api::{StorageSpec, TableSpec};

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
/// The table is yet to be validated, see [`validate`](crate::api::validate).
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
