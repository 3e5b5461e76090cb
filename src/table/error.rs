//! What can go wrong with a table, told by kind.
//!
//! Lives here: `Error`, its closed set of reasons, and the reading of Lance's and the store's errors into them.
//! May use: the error types of lance and object_store. Never: matching on an error's text (contract 5), or a store's
//! response body in a message that leaves the process.

use std::error::Error as StdError;

use lance::Error as LanceError;
use object_store::Error as StoreError;

use super::store::Redirected;

/// Result of this room.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Who can mend an error; it picks the wait before the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Likely gone at the next try: the network, a lost race.
    Transient,
    /// Somebody else has to act first, and may at any time: a writer creates the table, a Secret appears.
    Waiting,
    /// Only an edit of what the user asked for mends it.
    UserFault,
    /// Ours.
    Bug,
}

/// An error of the table room. `reason()` names its kind; the message says what is so and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}: there is no Lance table; a writer may create it later, or the path is wrong")]
    TableNotFound(String),
    #[error("{0}: this is not a Lance table: {1}")]
    NotALanceTable(String, String),
    #[error(
        "{0}: MemWAL was never enabled on this table, so nothing can be pending; it is not touched"
    )]
    NotMemWal(String),
    #[error("{what} is not supported: {remedy}")]
    Unsupported { what: String, remedy: String },
    #[error(
        "the table refers to data outside itself ({0}); such tables are refused, rewrite it into one place (deep clone)"
    )]
    ForeignBase(String),
    #[error("generation {generation} of shard {shard} cannot be reconciled with the table: {what}")]
    SchemaMismatch {
        shard: uuid::Uuid,
        generation: u64,
        what: String,
    },
    #[error("generation {generation} of shard {shard} cannot be read: {what}")]
    GenerationUnreadable {
        shard: uuid::Uuid,
        generation: u64,
        what: String,
    },
    #[error("generation {generation} of shard {shard} is refused: {what}")]
    GenerationRefused {
        shard: uuid::Uuid,
        generation: u64,
        /// `ForeignBase` or `Unsupported`.
        reason: &'static str,
        what: String,
    },
    #[error("shard {shard}: {what}")]
    UnsupportedManifest { shard: uuid::Uuid, what: String },
    #[error("{what}")]
    Corrupt { what: String },
    #[error(
        "the store refused the credentials while it was asked to {0}; check the key, its rights and its expiry"
    )]
    CredentialsRejected(&'static str),
    #[error("the credentials that the table brings are not whole: {0}")]
    CredentialsIncomplete(&'static str),
    #[error("the store could not be reached while it was asked to {0}")]
    StoreUnreachable(&'static str),
    #[error(
        "the store answered with a redirect to {to} while it was asked to {doing}; redirects are not followed, so give the address that serves the bucket itself (table.storage.endpoint, or region)"
    )]
    StoreRedirects { doing: &'static str, to: String },
    #[error("the store is read-only here ({0}); give the credentials the right to write")]
    ReadOnlyStore(&'static str),
    #[error("no space is left on the store's device ({0}); free some, nothing was lost")]
    DiskFull(&'static str),
    #[error("another commit won against this {0}; it is decided anew")]
    Conflict(&'static str),
    #[error("the deadline passed before the commit; nothing was changed")]
    DeadlineExceeded,
    #[error("{needed} bytes are needed and the budget is {budget}; raise the memory budget")]
    OverBudget { needed: u64, budget: u64 },
    #[error("the option {key} of the table's storage is wrong: {remedy}")]
    BadOption { key: String, remedy: String },
    #[error("{0}")]
    Bug(String),
    /// A Lance error that none of the kinds above fits.
    #[error("Lance failed to {doing}: {source}")]
    Lance {
        doing: &'static str,
        source: Box<LanceError>,
    },
}

impl Error {
    /// The kind's name, PascalCase, from a closed set: a condition's reason and a metric's label.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::TableNotFound(_) => "TableNotFound",
            Error::NotALanceTable(..) => "NotALanceTable",
            Error::NotMemWal(_) => "NotMemWal",
            Error::Unsupported { .. } => "Unsupported",
            Error::ForeignBase(_) => "ForeignBase",
            Error::SchemaMismatch { .. } => "SchemaMismatch",
            Error::GenerationUnreadable { .. } => "GenerationUnreadable",
            Error::GenerationRefused { reason, .. } => reason,
            Error::UnsupportedManifest { .. } => "UnsupportedManifest",
            Error::Corrupt { .. } => "Corrupt",
            Error::CredentialsRejected(_) => "CredentialsRejected",
            Error::CredentialsIncomplete(_) => "CredentialsMissing",
            Error::StoreUnreachable(_) | Error::StoreRedirects { .. } => "StoreUnreachable",
            Error::ReadOnlyStore(_) => "ReadOnlyStore",
            Error::DiskFull(_) => "DiskFull",
            Error::Conflict(_) => "Conflict",
            Error::DeadlineExceeded => "DeadlineExceeded",
            Error::OverBudget { .. } => "OverBudget",
            Error::BadOption { .. } => "BadOption",
            Error::Bug(_) => "Bug",
            Error::Lance { .. } => "LanceError",
        }
    }

    /// Who can mend it.
    pub fn class(&self) -> Class {
        match self {
            Error::TableNotFound(_)
            | Error::NotMemWal(_)
            | Error::CredentialsRejected(_)
            | Error::CredentialsIncomplete(_) => Class::Waiting,
            Error::SchemaMismatch { .. }
            | Error::GenerationUnreadable { .. }
            | Error::GenerationRefused { .. } => Class::Waiting,
            Error::UnsupportedManifest { .. }
            | Error::Corrupt { .. }
            | Error::NotALanceTable(..) => Class::Waiting,
            Error::ReadOnlyStore(_) | Error::DiskFull(_) | Error::StoreRedirects { .. } => {
                Class::Waiting
            }
            Error::Unsupported { .. } | Error::ForeignBase(_) => Class::UserFault,
            Error::OverBudget { .. } | Error::BadOption { .. } => Class::UserFault,
            Error::StoreUnreachable(_) | Error::Conflict(_) | Error::DeadlineExceeded => {
                Class::Transient
            }
            Error::Lance { .. } => Class::Transient,
            Error::Bug(_) => Class::Bug,
        }
    }

    /// Whether the shard's generation is at fault, so that its shard waits and the others flow on.
    pub fn poisoned(&self) -> Option<(uuid::Uuid, u64)> {
        match self {
            Error::SchemaMismatch {
                shard, generation, ..
            }
            | Error::GenerationUnreadable {
                shard, generation, ..
            }
            | Error::GenerationRefused {
                shard, generation, ..
            } => Some((*shard, *generation)),
            _ => None,
        }
    }

    /// Reads a Lance error that came up while doing `doing` ("read the base table").
    pub fn lance(doing: &'static str, e: LanceError) -> Self {
        if let Some(e) = kind_of(doing, &e) {
            return e;
        }
        match &e {
            LanceError::RetryableCommitConflict { .. }
            | LanceError::CommitConflict { .. }
            | LanceError::TooMuchWriteContention { .. }
            | LanceError::IncompatibleTransaction { .. } => Error::Conflict("commit"),
            // The store did not answer, or not well; its own words are for a log that is asked for.
            _ if is_io(&e) => {
                tracing::debug!(error = %e, "the store failed to {doing}");
                Error::StoreUnreachable(doing)
            }
            _ => Error::Lance {
                doing,
                source: Box::new(e),
            },
        }
    }

    /// Reads an error of the object store.
    pub fn store(doing: &'static str, e: StoreError) -> Self {
        kind_of(doing, &e).unwrap_or_else(|| match e {
            StoreError::NotFound { .. } => Error::Corrupt {
                what: format!("a file that is referred to is not there (asked to {doing})"),
            },
            StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } => {
                Error::Conflict("write")
            }
            _ => Error::StoreUnreachable(doing),
        })
    }
}

/// The kind that a typed error somewhere in the chain says; text is not looked at.
fn kind_of(doing: &'static str, e: &(dyn StdError + 'static)) -> Option<Error> {
    let mut next = Some(e);
    while let Some(e) = next {
        if let Some(s) = e.downcast_ref::<StoreError>() {
            match s {
                StoreError::Unauthenticated { .. } => {
                    return Some(Error::CredentialsRejected(doing));
                }
                StoreError::PermissionDenied { .. } => {
                    return Some(Error::CredentialsRejected(doing));
                }
                _ => {}
            }
        }
        if let Some(Redirected(to)) = e.downcast_ref::<Redirected>() {
            let to = to.clone();
            return Some(Error::StoreRedirects { doing, to });
        }
        if let Some(io) = e.downcast_ref::<std::io::Error>() {
            match io.kind() {
                std::io::ErrorKind::ReadOnlyFilesystem => return Some(Error::ReadOnlyStore(doing)),
                std::io::ErrorKind::PermissionDenied => {
                    return Some(Error::CredentialsRejected(doing));
                }
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    return Some(Error::DiskFull(doing));
                }
                _ => {}
            }
        }
        next = e.source();
    }
    None
}

/// Whether an error says that an object is not there.
pub(crate) fn is_not_found(e: &LanceError) -> bool {
    let mut next: Option<&(dyn StdError + 'static)> = Some(e);
    while let Some(e) = next {
        // Lance shares errors of its own through those of the store.
        let mut own = e.downcast_ref::<LanceError>();
        while let Some(LanceError::Shared { source }) = own {
            own = Some(source);
        }
        if let Some(LanceError::NotFound { .. } | LanceError::DatasetNotFound { .. }) = own {
            return true;
        }
        if let Some(StoreError::NotFound { .. }) = e.downcast_ref::<StoreError>() {
            return true;
        }
        // Files of this machine are read past the store.
        let io = e.downcast_ref::<std::io::Error>();
        if io.is_some_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
            return true;
        }
        next = e.source();
    }
    false
}

/// Whether an error came from the store and not from what it holds.
pub(crate) fn is_io(e: &LanceError) -> bool {
    if is_not_found(e) {
        return false;
    }
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(e) = next {
        if let Some(s) = e.downcast_ref::<StoreError>() {
            return !matches!(
                s,
                StoreError::NotFound { .. } | StoreError::InvalidPath { .. }
            );
        }
        next = e.source();
    }
    false
}
