//! Which table it is: scheme family, endpoint, account, bucket or container, and path, in one canonical form.
//!
//! Two specs of one identity are one table, however they spell it; two Experiments of one identity must not both work
//! on it. Pure text: nothing is looked up, no link of the file system is followed. An identity never holds a secret,
//! and an error never repeats the URI, which may.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use super::{TableSpec, rules};

/// The kinds of store that a table can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreFamily {
    /// `s3://`: Amazon S3 and what speaks its protocol.
    S3,
    /// `gs://`: Google Cloud Storage.
    Gcs,
    /// `az://` and `abfss://`: Azure Blob Storage.
    Azure,
    /// `file://` and plain paths: the file system of this machine.
    Local,
}

impl StoreFamily {
    /// The family of a URI by its scheme; none for a scheme that is not supported. What has no scheme is a path.
    pub fn of_uri(uri: &str) -> Option<Self> {
        match scheme_of(uri) {
            // What only looks like a URI is no path.
            None if uri.contains("://") => None,
            None | Some("file") => Some(Self::Local),
            Some("s3") => Some(Self::S3),
            Some("gs") => Some(Self::Gcs),
            Some("az" | "abfss") => Some(Self::Azure),
            Some(_) => None,
        }
    }
}

/// The scheme of a URI, as RFC 3986 spells schemes; none for a plain path.
fn scheme_of(uri: &str) -> Option<&str> {
    let (scheme, _) = uri.split_once(':')?;
    let mut letters = scheme.chars();
    let first = letters.next()?.is_ascii_alphabetic();
    (first && letters.all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))).then_some(scheme)
}

/// The identity of a table; equal for every spelling of one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableIdentity {
    family: StoreFamily,
    endpoint: Option<String>,
    account: Option<String>,
    bucket: String,
    path: String,
}

/// Why a table has no identity: the field that is wrong, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct IdentityError {
    field: &'static str,
    message: &'static str,
}

impl IdentityError {
    fn uri(message: &'static str) -> Self {
        Self {
            field: "table.uri",
            message,
        }
    }

    /// The field, relative to the spec, as in `table.uri`.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// What is wrong, and the remedy.
    pub fn message(&self) -> &'static str {
        self.message
    }

    /// The name of this failure.
    pub fn reason(&self) -> &'static str {
        "InvalidTable"
    }
}

impl TableIdentity {
    /// The identity of the table that a spec names.
    ///
    /// A plain path is taken from the working directory, `~/` from the home directory.
    pub fn of(table: &TableSpec) -> Result<Self, IdentityError> {
        let family = StoreFamily::of_uri(&table.uri).ok_or(IdentityError::uri(rules::SCHEME.1))?;
        if family == StoreFamily::Local {
            return Self::of_path(local_path(&table.uri)?);
        }
        let (scheme, rest) = table
            .uri
            .split_once("://")
            .ok_or(IdentityError::uri(rules::SCHEME.1))?;
        let (authority, path) = rest
            .split_once('/')
            .map_or((rest, None), |(a, p)| (a, Some(p)));
        if rest.contains(['?', '#']) {
            return Err(IdentityError::uri(rules::URI_QUERY.1));
        }
        if rest.contains(|c: char| c == '%' || c == '\\' || c.is_ascii_control())
            || rest.ends_with(' ')
        {
            return Err(IdentityError::uri(rules::URI_CHARACTERS.1));
        }
        if path.is_some_and(|p| p.split('/').any(|s| matches!(s, "" | "." | ".."))) {
            return Err(IdentityError::uri(rules::URI_PATH.1));
        }
        let path = path.unwrap_or_default().to_owned();
        let endpoint = table.storage.as_ref().and_then(|s| s.endpoint.as_deref());
        let account = table.storage.as_ref().and_then(|s| s.account.as_deref());
        match (family, scheme) {
            (StoreFamily::Azure, "abfss") => Self::of_abfss(authority, path, account, endpoint),
            (StoreFamily::Azure, _) => {
                let bucket = checked_bucket(authority, false)?;
                let account = account.ok_or(IdentityError {
                    field: "table.storage.account",
                    message: rules::URI_ACCOUNT_NEEDED.1,
                })?;
                let endpoint = endpoint.map(canonical_endpoint).transpose()?;
                let own = |e: &String| {
                    let host = e
                        .strip_prefix("https://")
                        .and_then(|h| h.strip_prefix(account));
                    matches!(
                        host,
                        Some(".blob.core.windows.net" | ".dfs.core.windows.net")
                    )
                };
                let endpoint = endpoint.filter(|e| !own(e));
                Ok(Self {
                    family,
                    endpoint,
                    account: Some(account.to_owned()),
                    bucket,
                    path,
                })
            }
            _ => {
                let bucket = checked_bucket(authority, true)?;
                let endpoint = endpoint.map(canonical_endpoint).transpose()?;
                let endpoint = endpoint
                    .map(|e| without_bucket(e, &bucket))
                    .filter(|e| !clouds_own(family, e));
                Ok(Self {
                    family,
                    endpoint,
                    account: None,
                    bucket,
                    path,
                })
            }
        }
    }

    fn of_abfss(
        authority: &str,
        path: String,
        account: Option<&str>,
        endpoint: Option<&str>,
    ) -> Result<Self, IdentityError> {
        if authority.contains(':') || authority.matches('@').count() > 1 {
            return Err(IdentityError::uri(rules::URI_USERINFO.1));
        }
        let malformed = IdentityError::uri(rules::URI_ABFSS.1);
        let (container, host) = authority.split_once('@').ok_or(malformed.clone())?;
        let (owner, domain) = host.split_once('.').ok_or(malformed.clone())?;
        let endpoint_of_cloud = match domain {
            "dfs.core.windows.net" | "blob.core.windows.net" => None,
            "dfs.fabric.microsoft.com" | "blob.fabric.microsoft.com" => {
                Some("https://fabric.microsoft.com".to_owned())
            }
            _ => return Err(malformed),
        };
        if container.len() < 3 || owner.is_empty() {
            return Err(malformed);
        }
        if account.is_some_and(|a| a != owner) {
            return Err(IdentityError {
                field: "table.storage.account",
                message: rules::ACCOUNT_AGREES.1,
            });
        }
        if endpoint.is_some() {
            return Err(IdentityError {
                field: "table.storage.endpoint",
                message: rules::ENDPOINT_FITS.1,
            });
        }
        Ok(Self {
            family: StoreFamily::Azure,
            endpoint: endpoint_of_cloud,
            account: Some(owner.to_owned()),
            bucket: container.to_owned(),
            path,
        })
    }

    fn of_path(path: PathBuf) -> Result<Self, IdentityError> {
        let path = path.to_str().ok_or(IdentityError::uri(
            "a path of a table must be valid Unicode; rename it",
        ))?;
        let path = path.to_owned();
        Ok(Self {
            family: StoreFamily::Local,
            endpoint: None,
            account: None,
            bucket: String::new(),
            path,
        })
    }

    /// The kind of store.
    pub fn family(&self) -> StoreFamily {
        self.family
    }

    /// The base URL of the store, canonical; none for a cloud's own.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// The Azure storage account; none for other stores.
    pub fn account(&self) -> Option<&str> {
        self.account.as_deref()
    }

    /// The bucket or container; empty for a local path.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The path inside the bucket without leading or trailing slash; for a local table the absolute path.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// `s3://bucket/path`, with account and endpoint where they belong to the identity. Holds no secret.
impl fmt::Display for TableIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.family {
            StoreFamily::Local => return f.write_str(&self.path),
            StoreFamily::S3 => "s3",
            StoreFamily::Gcs => "gs",
            StoreFamily::Azure => "az",
        };
        write!(f, "{scheme}://{}", self.bucket)?;
        if !self.path.is_empty() {
            write!(f, "/{}", self.path)?;
        }
        if let Some(account) = &self.account {
            write!(f, " of account {account}")?;
        }
        if let Some(endpoint) = &self.endpoint {
            write!(f, " at {endpoint}")?;
        }
        Ok(())
    }
}

/// The bucket or container of an authority, which must be that and nothing else.
fn checked_bucket(authority: &str, dots: bool) -> Result<String, IdentityError> {
    if authority.contains('@') {
        return Err(IdentityError::uri(rules::URI_USERINFO.1));
    }
    let plain = |c: char| {
        if dots {
            c.is_ascii_alphanumeric() || "._-".contains(c)
        } else {
            c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'
        }
    };
    let first = |c: char| {
        if dots {
            c.is_ascii_alphanumeric()
        } else {
            c != '-' && (plain(c) || c == '$')
        }
    };
    let mut letters = authority.chars();
    let fits = letters.next().is_some_and(first) && letters.all(plain);
    let length = if dots { 3..=222 } else { 3..=63 };
    if !fits || !length.contains(&authority.len()) {
        return Err(IdentityError::uri(rules::URI_BUCKET.1));
    }
    Ok(authority.to_owned())
}

/// An endpoint without what can be spelled in two ways: default port, case of the host, trailing slash.
fn canonical_endpoint(endpoint: &str) -> Result<String, IdentityError> {
    let malformed = IdentityError {
        field: "table.storage.endpoint",
        message: rules::ENDPOINT_SHAPE.1,
    };
    let (scheme, rest) = endpoint.split_once("://").ok_or(malformed.clone())?;
    let (host, path) = rest.split_once('/').map_or((rest, ""), |(h, p)| (h, p));
    let default_port = match scheme {
        "https" => ":443",
        "http" => ":80",
        _ => return Err(malformed),
    };
    if host.is_empty() || rest.contains(['@', '?', '#', '%', '\\']) {
        return Err(malformed);
    }
    let host = host
        .strip_suffix(default_port)
        .unwrap_or(host)
        .to_ascii_lowercase();
    let path = path.trim_end_matches('/');
    let slash = if path.is_empty() { "" } else { "/" };
    Ok(format!("{scheme}://{host}{slash}{path}"))
}

/// The endpoint without the bucket that virtual-hosted style puts in front of its host.
fn without_bucket(endpoint: String, bucket: &str) -> String {
    let prefix = format!("://{}.", bucket.to_ascii_lowercase());
    if endpoint.contains(&prefix) {
        endpoint.replacen(&prefix, "://", 1)
    } else {
        endpoint
    }
}

/// Whether an endpoint is the one that the cloud itself would use, where bucket names are unique. The partitions of
/// governments and of China have names of their own, so their endpoints stay part of the identity.
fn clouds_own(family: StoreFamily, endpoint: &str) -> bool {
    let host = endpoint.strip_prefix("https://").unwrap_or_default();
    if host.contains('/') {
        return false;
    }
    match family {
        StoreFamily::S3 => {
            let service = host.strip_suffix(".amazonaws.com").unwrap_or_default();
            let region_of_s3 =
                service == "s3" || service.starts_with("s3.") || service.starts_with("s3-");
            region_of_s3 && !service.contains("gov")
        }
        StoreFamily::Gcs => host == "storage.googleapis.com",
        StoreFamily::Azure | StoreFamily::Local => false,
    }
}

/// The absolute path that a `file://` URI or a plain path names, with `.` and `..` taken out by text alone.
fn local_path(uri: &str) -> Result<PathBuf, IdentityError> {
    let path = match uri.strip_prefix("file:") {
        Some(_) => file_uri_path(uri)?,
        None if uri.is_empty() || uri.contains('\0') => {
            return Err(IdentityError::uri(
                "a path of a table must not be empty or hold a zero byte; write the path of its directory",
            ));
        }
        None => {
            let home = if uri == "~" {
                Some("")
            } else {
                uri.strip_prefix("~/")
            };
            match (home, std::env::home_dir()) {
                (Some(rest), Some(home)) => home.join(rest),
                _ => PathBuf::from(uri),
            }
        }
    };
    let path = std::path::absolute(path).map_err(|_| {
        IdentityError::uri(
            "a relative path of a table needs a working directory; write the absolute path",
        )
    })?;
    Ok(without_dots(&path))
}

fn file_uri_path(uri: &str) -> Result<PathBuf, IdentityError> {
    let malformed = IdentityError::uri(
        "a file:// URI must be file:///absolute/path without host, query or fragment; write it so, or write the plain path",
    );
    let url = url::Url::parse(uri).map_err(|_| malformed.clone())?;
    if url.query().is_some() || url.fragment().is_some() || !uri.starts_with("file://") {
        return Err(malformed);
    }
    url.to_file_path().map_err(|()| malformed)
}

fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests;
