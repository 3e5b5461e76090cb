//! The verdict on an Experiment: the schema's structure, then its CEL rules, evaluated as the API server does.
//!
//! There is one set of rules, the one in the CRD; a cluster and a file on this machine are judged by it alike, and
//! [`Mode::Local`] excuses from exactly one of them. The identity of the table is the one thing that CEL can only
//! judge as written; the exact rule is [`validate_update`]'s.

use std::fmt;
use std::sync::LazyLock;

use kube::core::cel::{CompiledSchema, ErrorKind, compile_schema, validate_compiled};
use serde_json::Value;

use super::{Experiment, StoreFamily, TableIdentity, TableSpec, rules, schema};

/// Who judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As the API server does.
    Cluster,
    /// As `freshet local` does: tables may also be at `file://` URIs and plain paths. Nothing else differs.
    Local,
}

/// One thing that is wrong with an Experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The path of the field, as in `spec.freshness.target`.
    pub field: String,
    /// What is wrong, and the remedy.
    pub message: String,
}

impl Violation {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

static DOCUMENT_SCHEMA: LazyLock<Value> = LazyLock::new(schema::of_document);
static COMPILED: LazyLock<CompiledSchema> = LazyLock::new(|| compile_schema(&DOCUMENT_SCHEMA));

/// Everything that is wrong with an Experiment; nothing when it is valid.
pub fn validate(experiment: &Experiment, mode: Mode) -> Vec<Violation> {
    match serde_json::to_value(experiment) {
        Ok(document) => judge(&schema::without_nulls(document), None, mode),
        Err(_) => vec![Violation::new(
            "",
            "cannot be written as JSON; this is a defect of Freshet, report it",
        )],
    }
}

/// Reads a document, as YAML or JSON gave it, into an Experiment; all that is wrong with it when it is none.
///
/// Unlike a typed reading it refuses fields that it does not know, and tells every mistake at once. A `status` is not
/// judged, and not kept.
pub fn validate_document(document: Value, mode: Mode) -> Result<Experiment, Vec<Violation>> {
    let mut document = schema::without_nulls(document);
    if let Some(members) = document.as_object_mut() {
        members.remove("status");
    }
    let found = judge(&document, None, mode);
    if !found.is_empty() {
        return Err(found);
    }
    serde_json::from_value(document).map_err(|e| {
        vec![Violation::new(
            "",
            format!("cannot be read ({e}); compare it with `kubectl explain experiment`"),
        )]
    })
}

/// Everything that is wrong with replacing `old` by `new`: what is wrong with `new`, and whether it is still the same
/// table, however the two spell it.
pub fn validate_update(new: &Experiment, old: &Experiment, mode: Mode) -> Vec<Violation> {
    let mut found = validate(new, mode);
    if let (Ok(now), Ok(before)) = (
        TableIdentity::of(&new.spec.table),
        TableIdentity::of(&old.spec.table),
    ) && now != before
    {
        found.push(Violation::new("spec.table", rules::IDENTITY.1));
    }
    found
}

/// The verdict of the schema and its rules on a document, with the transition rules where there is an `old` one.
fn judge(document: &Value, old: Option<&Value>, mode: Mode) -> Vec<Violation> {
    let mut found = Vec::new();
    schema::check(&DOCUMENT_SCHEMA, document, "", &mut found);
    if let Err(errors) = validate_compiled(&COMPILED, document, old) {
        let malformed: Vec<String> = found.iter().map(|v| v.field.clone()).collect();
        let local = mode == Mode::Local && uri(document).is_some_and(is_local);
        for error in errors.into_vec() {
            let excused = local && error.rule == rules::SCHEME.0;
            // A rule over a value that is not even of its shape says nothing; the structure told that already.
            let spoiled = error.kind != ErrorKind::ValidationFailure && !malformed.is_empty();
            if !excused && !spoiled && !malformed.contains(&error.field_path) {
                found.push(Violation::new(error.field_path, error.message));
            }
        }
    }
    found.sort_by(|a, b| {
        a.field
            .cmp(&b.field)
            .then_with(|| a.message.cmp(&b.message))
    });
    if found.is_empty()
        && let Some(error) = identity_error(document)
    {
        found.push(error);
    }
    found
}

fn uri(document: &Value) -> Option<&str> {
    document["spec"]["table"]["uri"].as_str()
}

fn is_local(uri: &str) -> bool {
    StoreFamily::of_uri(uri) == Some(StoreFamily::Local)
}

/// What only the reading of the table's identity finds; for object stores that is nothing that the rules let pass.
fn identity_error(document: &Value) -> Option<Violation> {
    let table: TableSpec = serde_json::from_value(document["spec"]["table"].clone()).ok()?;
    let error = TableIdentity::of(&table).err()?;
    Some(Violation::new(
        format!("spec.{}", error.field()),
        error.message(),
    ))
}

#[cfg(test)]
mod tests;
