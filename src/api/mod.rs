//! The Experiment resource: its spec, its status, the rules they obey, and what follows from them.
//!
//! Plain data. It may use serde, schemars, and kube's resource and CEL types; it must never import Lance, an HTTP
//! client or server, or another room. Whoever reads an Experiment, from a cluster or from a file, reads it through
//! here, so that one set of rules judges both.

mod annotations;
pub mod crd;
mod duration;
mod effective;
mod identity;
mod quantity;
mod rules;
mod schema;
mod spec;
mod status;
pub mod storage;
mod validate;

pub use annotations::{ACKNOWLEDGE, REQUESTED_AT, annotation};
pub use duration::{DURATION_PATTERN, DurationError, GoDuration};
pub use effective::{
    Bounds, Clamp, Defaults, Effective, EffectiveCompaction, EffectiveDeletion, EffectiveFreshness,
    EffectiveIndexes, EffectiveMerge, EffectiveMergeAt, EffectiveRetention, EffectiveVersions,
    LONGEST_WORK, Limits,
};
pub use identity::{IdentityError, StoreFamily, TableIdentity};
pub use quantity::{QUANTITY_PATTERN, Quantity, QuantityError};
pub use spec::{
    CompactionSpec, DeletionPolicy, DeletionSpec, Experiment, ExperimentSpec, FreshnessSpec,
    IndexesSpec, MergeAtSpec, MergeSpec, RetentionSpec, SecretRef, StorageSpec, TableSpec,
    VersionsSpec,
};
pub use status::{
    BacklogStatus, ExperimentStatus, FragmentsStatus, LastMerge, QUARANTINED_LISTED,
    QuarantinedGeneration, ReclaimStatus,
};
pub use validate::{Mode, Violation, validate, validate_document, validate_update};

/// The API group of the resource.
pub const GROUP: &str = "freshet.dev";
/// The API version of the resource.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` as a document writes it.
pub const API_VERSION: &str = "freshet.dev/v1alpha1";
/// The kind of the resource.
pub const KIND: &str = "Experiment";
