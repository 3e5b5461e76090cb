//! What a user asks for: the spec of an Experiment.
//!
//! Every field carries the words that `kubectl explain` shows, the bounds that the schema enforces, and the CEL rules
//! from `rules`. Only `suspend` and `deletionPolicy` have schema defaults; every other absent field is the operator's
//! to fill, see `effective`. No behaviour lives here.

// Each printed column has a type, so the word repeats inside one attribute.
#![allow(clippy::duplicated_attributes)]

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::{ExperimentStatus, GoDuration, Quantity, rules};

/// What a table is, how fresh it shall be, and what may be done to it.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "freshet.dev",
    version = "v1alpha1",
    kind = "Experiment",
    namespaced,
    status = "ExperimentStatus",
    shortname = "exp",
    category = "freshet",
    derive = "PartialEq",
    doc = "An Experiment declares one Lance table of rollout records that is written through MemWAL; Freshet keeps it fresh by merging its pending generations into the base table.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether Freshet takes care of the table."
    ),
    printcolumn(
        name = "Fresh",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Fresh\")].status",
        description = "Whether nothing pending is older than the target."
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Fresh\")].reason",
        description = "Why the table is fresh, or why not now."
    ),
    printcolumn(
        name = "Pending",
        type_ = "integer",
        json_path = ".status.backlog.pendingGenerations",
        description = "Generations that wait to be merged."
    ),
    printcolumn(
        name = "Oldest",
        type_ = "date",
        json_path = ".status.backlog.oldestPendingTime",
        description = "How long the oldest of them has waited."
    ),
    printcolumn(
        name = "Last-Merge",
        type_ = "date",
        json_path = ".status.lastMerge.time",
        description = "How long ago the last merge was committed."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "How long the Experiment has existed."
    ),
    printcolumn(
        name = "URI",
        type_ = "string",
        json_path = ".spec.table.uri",
        priority = 1,
        description = "Where the table is."
    ),
    printcolumn(
        name = "Shards",
        type_ = "integer",
        json_path = ".status.backlog.shards",
        priority = 1,
        description = "Shards that the table has."
    ),
    printcolumn(
        name = "Bytes",
        type_ = "integer",
        json_path = ".status.backlog.pendingBytes",
        priority = 1,
        description = "Bytes that wait to be merged."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentSpec {
    /// The table: where it is, how its store is reached, and whose credentials open it. Its identity is immutable.
    pub table: TableSpec,

    /// How fresh the base table shall be, and what starts a merge early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freshness: Option<FreshnessSpec>,

    /// How much one merge may take at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge: Option<MergeSpec>,

    /// Whether and when fragments of the base table are rewritten into fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionSpec>,

    /// Upkeep of the indexes that the table has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexes: Option<IndexesSpec>,

    /// How long what is no longer current stays readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionSpec>,

    /// Stops every write to the table: no merge, drain, reclaim, compaction or clean-up. The backlog is still observed
    /// and reported. A merge that runs is let finish.
    #[serde(default)]
    pub suspend: bool,

    /// What happens to pending generations when the Experiment is deleted. The table and its data always stay.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,

    /// Bounds of the work that deletionPolicy MergePending asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion: Option<DeletionSpec>,
}

/// Where the table is and how it is opened.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::rule(rules::URI_ACCOUNT_NEEDED).field_path(".uri"),
    validation = rules::rule(rules::ACCOUNT_ONLY_AZURE).field_path(".storage.account"),
    validation = rules::rule(rules::ACCOUNT_AGREES).field_path(".storage.account"),
    validation = rules::rule(rules::ENDPOINT_FITS).field_path(".storage.endpoint"),
    validation = rules::rule(rules::REGION_FITS).field_path(".storage"),
    validation = rules::rule(rules::IDENTITY)
)]
pub struct TableSpec {
    /// The URI of the table: s3://bucket/path, gs://bucket/path, az://container/path (with storage.account) or
    /// abfss://container@account.dfs.core.windows.net/path. No credentials, query, fragment, percent-encoding or
    /// trailing slash. `freshet local` also takes file:// URIs and plain paths. Immutable, save that az:// and abfss://
    /// of one place may replace each other.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = rules::unrepeated(rules::SCHEME),
        validation = rules::unrepeated(rules::URI_QUERY),
        validation = rules::unrepeated(rules::URI_USERINFO),
        validation = rules::unrepeated(rules::URI_BUCKET),
        validation = rules::unrepeated(rules::URI_ABFSS),
        validation = rules::unrepeated(rules::URI_PATH),
        validation = rules::unrepeated(rules::URI_CHARACTERS)
    )]
    pub uri: String,

    /// How the object store is reached, where that does not follow from the URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,

    /// The Secret, in the Experiment's own namespace and labelled freshet.dev/storage: "true", whose keys are the
    /// store's credentials. Absent: the operator's ambient identity, where a grant of the operator allows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,

    /// A Secret for readers, with credentials that need not write. Absent: secretRef.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_secret_ref: Option<SecretRef>,
}

/// How an object store is reached. Typed, never a free map: an option that names a file, a proxy or an identity
/// endpoint would turn a manifest into a way to read files or to export tokens.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::rule(rules::ENDPOINT_HTTP).field_path(".endpoint"))]
pub struct StorageSpec {
    /// The base URL of the store, for stores other than the cloud's own: http(s)://host[:port][/path]. For s3://, gs://
    /// and az:// tables. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 300))]
    #[x_kube(validation = rules::unrepeated(rules::ENDPOINT_SHAPE))]
    pub endpoint: Option<String>,

    /// The region of an s3:// bucket, as in eu-central-1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 64),
        regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    )]
    pub region: Option<String>,

    /// The Azure storage account of an az:// container. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 24), regex(pattern = r"^[a-z0-9]+$"))]
    pub account: Option<String>,

    /// Whether the bucket of an s3:// table stands in the host name (true) or in the path (false, the default).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_hosted_style: Option<bool>,

    /// Whether an endpoint without TLS is allowed. Absent means false.
    #[serde(rename = "allowHTTP", skip_serializing_if = "Option::is_none")]
    pub allow_http: Option<bool>,
}

/// Names a Secret of the Experiment's own namespace.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// The name of the Secret. Its keys may only be credentials: aws_access_key_id, aws_secret_access_key,
    /// aws_session_token, azure_storage_account_key, azure_storage_sas_key, azure_storage_client_id,
    /// azure_storage_client_secret, azure_storage_tenant_id, google_service_account_key.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
}

/// How fresh the base table shall be.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FreshnessSpec {
    /// The deadline: no pending generation may become older than this, counted from its flush. Work starts early enough
    /// to end before it, never later than at half of it. A Go duration, as in 60s. Rows that the writer has not flushed
    /// are not yet counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::rule(rules::TARGET))]
    pub target: Option<GoDuration>,

    /// What starts a merge before its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_at: Option<MergeAtSpec>,
}

/// What starts a merge before its time. Whichever is reached first.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MergeAtSpec {
    /// Start a merge once this many generations are pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub generations: Option<u32>,

    /// Start a merge once this many bytes are pending. A quantity, as in 1Gi.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::rule(rules::MERGE_AT_BYTES))]
    pub bytes: Option<Quantity>,
}

/// How much one merge may take at once. The oldest generations go first; the rest waits for the next merge.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MergeSpec {
    /// The most generations that one merge commits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_generations_per_merge: Option<u32>,

    /// The most bytes of generations that one merge commits; a single larger generation is still merged, alone. A
    /// quantity, as in 256Mi.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::rule(rules::MERGE_BYTES))]
    pub max_bytes_per_merge: Option<Quantity>,
}

/// Rewriting fragments of the base table into fewer, larger ones.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactionSpec {
    /// Whether the base table is compacted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// The least number of fragments worth rewriting at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 100_000))]
    pub min_fragments: Option<u32>,

    /// The rows that a rewritten fragment aims at.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub target_rows_per_fragment: Option<u32>,
}

/// Upkeep of the indexes that the table has.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IndexesSpec {
    /// Whether merged rows are taken into the table's indexes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimize: Option<bool>,
}

/// How long what is no longer current stays readable.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::rule(rules::VERSIONS_OUTLIVE_WORK).field_path(".versions.olderThan"))]
pub struct RetentionSpec {
    /// How long a merged generation stays listed in its shard's manifest, for readers that opened the base table before
    /// the merge. A Go duration, as in 1m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::rule(rules::DRAIN_DELAY))]
    pub drain_delay: Option<GoDuration>,

    /// How long the files of a generation stay after it left the manifest. Longer than any read over it. A Go duration,
    /// as in 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::rule(rules::GRACE))]
    pub merged_generation_grace_period: Option<GoDuration>,

    /// Which old versions of the base table are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versions: Option<VersionsSpec>,
}

/// Which old versions of the base table are kept. Tagged versions always are.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionsSpec {
    /// A version may go once its successor is older than this. Must exceed mergedGenerationGracePeriod plus 30m, the
    /// longest deadline of any work. A Go duration, as in 24h.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::rule(rules::OLDER_THAN))]
    pub older_than: Option<GoDuration>,

    /// This many of the newest versions are kept, however old they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub keep_at_least: Option<u32>,
}

/// What happens to pending generations when the Experiment is deleted.
#[derive(
    schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
pub enum DeletionPolicy {
    // Plain comments, not doc comments: with those, schemars describes each value by itself, which no structural schema
    // can say.
    // Leave everything as it is; nothing is waited for.
    #[default]
    Retain,
    // Merge what is pending first, for at most `deletion.timeout`.
    MergePending,
}

/// Bounds of the work that deletionPolicy MergePending asks for.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionSpec {
    /// How long a deletion waits for pending generations to be merged before it goes on without. A Go duration, as in
    /// 15m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::rule(rules::DELETION_TIMEOUT))]
    pub timeout: Option<GoDuration>,
}
