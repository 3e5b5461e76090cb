//! Credentials from files, laid out as Kubernetes mounts Secrets.
//!
//! Lives here: reading `DIR/<name>/<key>` into storage options, by the same allow-list as a Secret's. May use: `api`.
//! Must never come in: a value in a message, or a name that leaves the directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::api::{SecretRef, TableSpec, storage};

/// The credentials that a table names: nothing where it names none, so that those of the process's environment are used.
///
/// # Errors
/// What is missing and where it is to be put.
pub fn credentials(
    dir: Option<&Path>,
    table: &TableSpec,
    named: Option<&SecretRef>,
) -> Result<BTreeMap<String, String>, String> {
    let Some(named) = named else {
        return Ok(BTreeMap::new());
    };
    let name = &named.name;
    let Some(dir) = dir else {
        return Err(format!(
            "the table names the Secret {name}, and no directory of secrets was given; start with --secrets DIR, where DIR/{name}/<key> are its keys"
        ));
    };
    // The resource's rules keep names to letters, digits, dots and dashes; a path they can never be.
    if name.contains('/') || name.starts_with('.') {
        return Err(format!("{name} is no name of a Secret"));
    }
    let folder = dir.join(name);
    let entries = fs::read_dir(&folder).map_err(|e| {
        format!(
            "the Secret {name} cannot be read from {}: {}",
            folder.display(),
            e.kind()
        )
    })?;
    let mut secret = BTreeMap::new();
    for entry in entries.flatten() {
        let key = entry.file_name().to_string_lossy().into_owned();
        // Kubernetes keeps its own links beside the keys.
        if key.starts_with('.') || !entry.path().is_file() {
            continue;
        }
        let value = fs::read_to_string(entry.path()).map_err(|e| {
            format!(
                "the key {key} of the Secret {name} cannot be read: {}",
                e.kind()
            )
        })?;
        secret.insert(key, value);
    }
    storage::credentials_for(table, secret).map_err(|e| format!("the Secret {name}: {e}"))
}

/// Every file of the Secrets with its time and size: equal as long as nothing moved.
pub(super) type Stamp = Vec<(std::path::PathBuf, Option<std::time::SystemTime>, u64)>;

/// The state of the Secrets' files under a directory.
pub(super) fn stamp(dir: Option<&Path>) -> Stamp {
    let below = |dir: &Path| -> Vec<std::path::PathBuf> {
        let read = std::fs::read_dir(dir).into_iter().flatten().flatten();
        read.map(|entry| entry.path()).collect()
    };
    let mut files: Stamp = dir
        .into_iter()
        .flat_map(below)
        .flat_map(|secret| below(&secret))
        .map(|file| {
            // Through links: a mounted Secret's files are links that are moved as one.
            let found = std::fs::metadata(&file).ok();
            let size = found.as_ref().map_or(0, |f| f.len());
            (file, found.and_then(|f| f.modified().ok()), size)
        })
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TableSpec {
        TableSpec {
            uri: "s3://alder-bucket/maze".into(),
            ..Default::default()
        }
    }

    fn named(name: &str) -> SecretRef {
        SecretRef { name: name.into() }
    }

    #[test]
    fn keys_are_files_and_what_kubernetes_keeps_beside_them_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("maze-keys");
        fs::create_dir_all(folder.join("..data")).unwrap();
        fs::write(folder.join("aws_access_key_id"), "who\n").unwrap();
        fs::write(folder.join("aws_secret_access_key"), "what\n").unwrap();
        let found = credentials(Some(dir.path()), &table(), Some(&named("maze-keys"))).unwrap();
        assert_eq!(found["aws_access_key_id"], "who");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_key_that_is_no_credential_is_refused_and_its_value_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("maze-keys")).unwrap();
        fs::write(dir.path().join("maze-keys/proxy_url"), "hidden-value").unwrap();
        let said = credentials(Some(dir.path()), &table(), Some(&named("maze-keys"))).unwrap_err();
        assert!(
            said.contains("proxy_url") && !said.contains("hidden-value"),
            "{said}"
        );
    }

    #[test]
    fn a_name_without_a_directory_of_secrets_says_what_to_do() {
        let said = credentials(None, &table(), Some(&named("maze-keys"))).unwrap_err();
        assert!(said.contains("--secrets"), "{said}");
        assert!(credentials(None, &table(), None).unwrap().is_empty());
    }
}
