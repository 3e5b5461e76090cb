//! Where a table lies, and how it is opened.
//!
//! Lives here: `Location` (URI and storage options), `Stores` (the process's Lance sessions: one per store identity and
//! credentials, all within one byte budget, each with a registry of its own scheme only: contract 21).
//! May use: lance, object_store. Never: Kubernetes, a Secret's name, or a credential in a message.

mod ambient;
mod build;
mod client;
mod door;
mod own;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use lance::dataset::builder::DatasetBuilder;
use lance::session::Session;
use lance_io::object_store::providers::{ObjectStoreProvider, local::FileStoreProvider};
use lance_io::object_store::{
    ObjectStoreParams, ObjectStoreRegistry, StorageOptionsAccessor, WrappingObjectStore,
};

use super::error::{Error, Result};
use ambient::Ambient;
pub(super) use client::Redirected;
pub use door::Door;
use own::OwnCredentials;

/// A table's URI and the options that its store is opened with, credentials among them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// `s3://bucket/path`, `gs://…`, `az://container/path`, `abfss://…`, `file:///…` or a path.
    pub uri: String,
    /// Storage options as Lance names them (`aws_endpoint`, `azure_storage_account_key`, …).
    pub options: BTreeMap<String, String>,
}

impl std::fmt::Debug for Location {
    /// Option values may be credentials, so only their names are shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Location")
            .field("uri", &self.uri)
            .field("options", &self.options.keys())
            .finish()
    }
}

impl Location {
    /// A location without options.
    pub fn new(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            options: BTreeMap::new(),
        }
    }

    /// Adds storage options.
    pub fn with_options(mut self, options: BTreeMap<String, String>) -> Self {
        self.options.extend(options);
        self
    }

    /// The URI's scheme; `file` for a path.
    pub fn scheme(&self) -> &str {
        match self.uri.split_once("://") {
            Some((scheme, _)) => scheme,
            None => "file",
        }
    }

    /// Whether the table brings credentials of its own: then nothing of the process's environment reaches its store.
    /// Without any it is opened with the process's ambient identity.
    pub fn brings_credentials(&self) -> bool {
        self.options.keys().any(|key| own::is_credential(key))
    }

    /// The path of a table on a local disk; `None` for one in an object store.
    pub fn local_path(&self) -> Option<std::path::PathBuf> {
        match self.scheme() {
            "file" if self.uri.starts_with("file://") => {
                url::Url::parse(&self.uri).ok()?.to_file_path().ok()
            }
            "file" => Some(std::path::PathBuf::from(&self.uri)),
            _ => None,
        }
    }

    /// The part of the URI that names the store: scheme and bucket or container.
    fn authority(&self) -> &str {
        match self.uri.split_once("://") {
            Some((scheme, rest)) if scheme != "file" => {
                let end = rest.find('/').unwrap_or(rest.len());
                &self.uri[..scheme.len() + 3 + end]
            }
            _ => "file://",
        }
    }
}

/// How stores are opened in this process.
#[derive(Clone)]
pub struct StoresConfig {
    /// Bytes that the caches of all sessions together may hold.
    pub cache_bytes: u64,
    /// Whether paths and `file://` may be opened.
    pub allow_local: bool,
    /// Wrapped around every store that is opened: counts, delays, faults.
    pub wrapper: Option<Arc<dyn WrappingObjectStore>>,
    /// Asked where names of stores lead, for tables that bring their own credentials; `None` lets them lead anywhere.
    pub door: Option<Arc<dyn Door>>,
}

impl Default for StoresConfig {
    fn default() -> Self {
        Self {
            cache_bytes: 128 << 20,
            allow_local: true,
            wrapper: None,
            door: None,
        }
    }
}

/// The most sessions kept open; the cache budget is divided by it.
const MAX_SESSIONS: u64 = 8;

type SessionKey = (String, BTreeMap<String, String>);

/// The process's Lance sessions, one per store identity and credentials: Lance's caches are keyed by URI alone, and two
/// servers, or two callers, may share a URI.
pub struct Stores {
    config: StoresConfig,
    sessions: Mutex<VecDeque<(SessionKey, Arc<Session>)>>,
}

impl Stores {
    /// An empty set of sessions.
    pub fn new(config: StoresConfig) -> Self {
        Self {
            config,
            sessions: Mutex::default(),
        }
    }

    pub(crate) fn config(&self) -> &StoresConfig {
        &self.config
    }

    /// The session of a location's store and credentials; the least recently used one makes room.
    fn session(&self, location: &Location) -> Result<Arc<Session>> {
        let key = (location.authority().to_string(), location.options.clone());
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let at = sessions.iter().position(|(k, _)| *k == key);
        if let Some(entry) = at.and_then(|at| sessions.remove(at)) {
            let session = entry.1.clone();
            sessions.push_back(entry);
            return Ok(session);
        }
        let each = (self.config.cache_bytes / MAX_SESSIONS) as usize;
        let session = Arc::new(Session::new(
            each / 2,
            each / 2,
            Arc::new(self.registry(location)?),
        ));
        if sessions.len() as u64 >= MAX_SESSIONS {
            sessions.pop_front();
        }
        sessions.push_back((key, session.clone()));
        Ok(session)
    }

    /// A registry that knows the location's own scheme and no other: what rows and manifests name cannot be opened.
    fn registry(&self, location: &Location) -> Result<ObjectStoreRegistry> {
        let registry = ObjectStoreRegistry::empty();
        let scheme = location.scheme();
        let own = location.brings_credentials();
        let provider: Arc<dyn ObjectStoreProvider> = match scheme {
            "s3" | "gs" | "az" | "abfss" if own => {
                let keys: Vec<&str> = location.options.keys().map(String::as_str).collect();
                if let Some(remedy) = own::missing(scheme, &keys) {
                    return Err(Error::CredentialsIncomplete(remedy));
                }
                Arc::new(OwnCredentials(self.config.door.clone()))
            }
            "s3" | "gs" | "az" | "abfss" => Arc::new(Ambient::of(scheme)),
            "file" | "file-object-store" if self.config.allow_local => Arc::new(FileStoreProvider),
            other => {
                return Err(Error::BadOption {
                    key: "table.uri".into(),
                    remedy: format!("the scheme `{other}` is not one of s3, gs, az, abfss"),
                });
            }
        };
        let schemes = if scheme.starts_with("file") {
            vec!["file", "file-object-store"]
        } else {
            vec![scheme]
        };
        for scheme in schemes {
            registry.insert(scheme, provider.clone());
        }
        Ok(registry)
    }

    /// A builder that opens `location`, or `uri` inside it, in the location's session.
    pub(crate) fn builder(&self, location: &Location) -> Result<DatasetBuilder> {
        let options: HashMap<String, String> = location.options.clone().into_iter().collect();
        let params = ObjectStoreParams {
            object_store_wrapper: self.config.wrapper.clone(),
            storage_options_accessor: (!options.is_empty())
                .then(|| Arc::new(StorageOptionsAccessor::with_static_options(options))),
            ..Default::default()
        };
        Ok(DatasetBuilder::from_uri(self.uri(location)?)
            .with_session(self.session(location)?)
            .with_store_params(params))
    }

    /// The URI to open: a wrapped local store has to be read through object_store, which Lance's `file` scheme goes round.
    fn uri(&self, location: &Location) -> Result<String> {
        if location.scheme() != "file" || self.config.wrapper.is_none() {
            return Ok(location.uri.clone());
        }
        let bad = || Error::BadOption {
            key: "table.uri".into(),
            remedy: "the path cannot be resolved".into(),
        };
        let path = location
            .local_path()
            .and_then(|p| std::path::absolute(p).ok())
            .ok_or_else(bad)?;
        let url = url::Url::from_file_path(path).map_err(|()| bad())?;
        Ok(format!(
            "file-object-store{}",
            url.as_str().trim_start_matches("file")
        ))
    }
}
