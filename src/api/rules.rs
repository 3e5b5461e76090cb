//! The CEL rules of the resource, each with the message that tells its remedy.
//!
//! Text only: the API server evaluates them, and so do we, on the same schema. Every rule keeps to functions that both
//! know, and to strings that the schema bounds, so that its cost stays far below the API server's limit. A rule about
//! an object-store URI says nothing of other URIs: those are the business of [`SCHEME`] alone, so that one mistake
//! gets one message.

use kube::core::{Reason, Rule};

/// One rule: the CEL expression and the message of its failure.
pub(super) type RuleText = (&'static str, &'static str);

/// The rule as the schema holds it.
pub(super) fn rule((expression, message): RuleText) -> Rule {
    Rule::new(expression).message(message)
}

/// A rule over a value that may hold a credential by mistake: as a thing forbidden, not a value invalid, the API server
/// does not repeat it.
pub(super) fn unrepeated(text: RuleText) -> Rule {
    rule(text).reason(Reason::FieldValueForbidden)
}

/// The only rule that files on this machine are excused from.
pub(super) const SCHEME: RuleText = (
    "self.matches('^(s3|gs|az|abfss)://')",
    "table.uri must begin with s3://, gs://, az:// or abfss://; tables at file:// URIs and plain paths are for `freshet local`",
);

pub(super) const URI_QUERY: RuleText = (
    "!self.matches('^(s3|gs|az|abfss)://.*[?#]')",
    "table.uri must hold no query and no fragment; put endpoint, region and account into table.storage, and credentials into the Secret that table.secretRef names",
);

pub(super) const URI_USERINFO: RuleText = (
    "!self.matches('^(s3|gs|az)://[^/]*@') && !self.matches('^abfss://[^/]*(:[^/]*@|@[^/]*@)')",
    "table.uri must hold no credentials; put them into a Secret and name it in table.secretRef (an abfss:// URI holds only container@account)",
);

pub(super) const URI_BUCKET: RuleText = (
    "!self.matches('^(s3|gs|az)://[^/@]*(/|$)') || self.matches('^(s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]{2,221}(/|$)') || self.matches('^az://[a-z0-9$][a-z0-9-]{2,62}(/|$)')",
    "table.uri must name a bucket or container of 3 characters or more behind its scheme, as in s3://bucket/path; a host or port belongs into table.storage.endpoint",
);

pub(super) const URI_ABFSS: RuleText = (
    "!self.startsWith('abfss://') || self.matches('^abfss://[^/]*(:[^/]*@|@[^/]*@)') || self.matches('^abfss://[a-z0-9$][a-z0-9-]{2,62}@[a-z0-9]{3,24}[.](dfs|blob)[.]core[.]windows[.]net(/|$)') || self.matches('^abfss://[A-Za-z0-9-]{1,63}@[a-z0-9-]{1,63}[.](dfs|blob)[.]fabric[.]microsoft[.]com(/|$)')",
    "table.uri must be written as abfss://container@account.dfs.core.windows.net/path; for other hosts use az://container/path with table.storage.account and table.storage.endpoint",
);

pub(super) const URI_PATH: RuleText = (
    "!self.matches('^(s3|gs|az|abfss)://[^/]') || (self.matches('^[a-z0-9]+://[^/]+(/[^/]+)*$') && !self.matches('[^/]/[.][.]?(/|$)'))",
    "table.uri must name its path in the one way that has no trailing slash and no empty, `.` or `..` segment; leave those out",
);

pub(super) const URI_CHARACTERS: RuleText = (
    r"!self.matches('^(s3|gs|az|abfss)://(.|\n|\r)*([%\\\\[:cntrl:]]| $)')",
    "table.uri must hold no percent sign, backslash or control character, and not end in a space; write names as they are, without percent-encoding",
);

pub(super) const URI_ACCOUNT_NEEDED: RuleText = (
    "!self.uri.startsWith('az://') || (has(self.storage) && has(self.storage.account))",
    "an az:// table needs its storage account; set table.storage.account, or write abfss://container@account.dfs.core.windows.net/path",
);

pub(super) const ACCOUNT_ONLY_AZURE: RuleText = (
    "!has(self.storage) || !has(self.storage.account) || self.uri.matches('^(az|abfss)://')",
    "table.storage.account is for az:// and abfss:// tables only; remove it",
);

pub(super) const ACCOUNT_AGREES: RuleText = (
    "!self.uri.startsWith('abfss://') || !has(self.storage) || !has(self.storage.account) || self.uri.contains('@' + self.storage.account + '.')",
    "table.storage.account differs from the account inside the abfss:// URI; remove it, or write the same account",
);

pub(super) const ENDPOINT_FITS: RuleText = (
    "!has(self.storage) || !has(self.storage.endpoint) || self.uri.matches('^(s3|gs|az)://')",
    "table.storage.endpoint is for s3://, gs:// and az:// tables only; an abfss:// URI names its host itself, so remove the endpoint or use az://",
);

pub(super) const REGION_FITS: RuleText = (
    "!has(self.storage) || !(has(self.storage.region) || has(self.storage.virtualHostedStyle)) || self.uri.startsWith('s3://')",
    "table.storage.region and table.storage.virtualHostedStyle are for s3:// tables only; remove them",
);

/// Compares what the API server can compare at bounded cost: the URI as written, `az://` and `abfss://` of one
/// container folded together, account and endpoint as written.
pub(super) const IDENTITY: RuleText = (
    "(self.uri == oldSelf.uri \
|| (self.uri.startsWith('az://') && oldSelf.uri.startsWith('abfss://') && has(self.storage) && has(self.storage.account) \
&& oldSelf.uri.replace('@' + self.storage.account + '.dfs.core.windows.net', '', 1) == 'abfss' + self.uri.substring(2)) \
|| (oldSelf.uri.startsWith('az://') && self.uri.startsWith('abfss://') && has(oldSelf.storage) && has(oldSelf.storage.account) \
&& self.uri.replace('@' + oldSelf.storage.account + '.dfs.core.windows.net', '', 1) == 'abfss' + oldSelf.uri.substring(2))) \
&& (has(self.storage) && has(self.storage.endpoint) ? self.storage.endpoint : '') == (has(oldSelf.storage) && has(oldSelf.storage.endpoint) ? oldSelf.storage.endpoint : '') \
&& (!self.uri.startsWith('az://') || !oldSelf.uri.startsWith('az://') || !has(self.storage) || !has(oldSelf.storage) || !has(self.storage.account) || !has(oldSelf.storage.account) || self.storage.account == oldSelf.storage.account)",
    "the table of an Experiment (uri, storage.endpoint, storage.account) is immutable; create a new Experiment for another table and delete this one (deletionPolicy Retain keeps its data)",
);

pub(super) const ENDPOINT_SHAPE: RuleText = (
    r"self.matches('^https?://([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\\[[0-9a-f:.]{2,45}\\])(:[0-9]{1,5})?(/[A-Za-z0-9._~-]+)*$')",
    "table.storage.endpoint must be http(s)://host[:port][/path] in lower case, without credentials, query or trailing slash; credentials go into the Secret that table.secretRef names",
);

pub(super) const ENDPOINT_HTTP: RuleText = (
    "!has(self.endpoint) || !self.endpoint.startsWith('http://') || (has(self.allowHTTP) && self.allowHTTP)",
    "an http:// endpoint sends data and signatures in the clear; use https://, or set table.storage.allowHTTP: true",
);

pub(super) const TARGET: RuleText = (
    "duration(self) > duration('0s')",
    "freshness.target must be longer than 0s; it is the age that no pending generation may exceed, as in 60s",
);

pub(super) const MERGE_AT_BYTES: RuleText = (
    "self.matches('[1-9]')",
    "freshness.mergeAt.bytes must be more than 0; leave it out to use the operator's default, or write 1Gi",
);

pub(super) const MERGE_BYTES: RuleText = (
    "self.matches('[1-9]')",
    "merge.maxBytesPerMerge must be more than 0; leave it out to use the operator's default, or write 256Mi",
);

pub(super) const DRAIN_DELAY: RuleText = (
    "duration(self) > duration('0s')",
    "retention.drainDelay must be longer than 0s: readers that opened the table just before a merge need it; write 1m, or 1s for the least",
);

pub(super) const GRACE: RuleText = (
    "duration(self) > duration('0s')",
    "retention.mergedGenerationGracePeriod must be longer than 0s: readers may still read what was merged; write 10m",
);

pub(super) const OLDER_THAN: RuleText = (
    "duration(self) > duration('0s')",
    "retention.versions.olderThan must be longer than 0s; write 24h",
);

/// The `30m` is [`LONGEST_WORK`](super::LONGEST_WORK); a test holds the two together.
pub(super) const VERSIONS_OUTLIVE_WORK: RuleText = (
    "!has(self.versions) || !has(self.versions.olderThan) || duration(self.versions.olderThan) > duration('30m') + (has(self.mergedGenerationGracePeriod) ? duration(self.mergedGenerationGracePeriod) : duration('0s'))",
    "retention.versions.olderThan must exceed retention.mergedGenerationGracePeriod plus 30m, the longest deadline of any work, or a conflict could go unseen; raise it (24h) or lower the grace period",
);

pub(super) const DELETION_TIMEOUT: RuleText = (
    "duration(self) > duration('0s')",
    "deletion.timeout must be longer than 0s; write 15m, or use deletionPolicy: Retain to delete at once",
);
