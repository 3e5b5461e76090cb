//! What a request names, before anything is looked up.
//!
//! Lives here: `Asked`: the names of a path, the query and the headers, and finding the experiment that is meant. May
//! use: the catalog. Must never come in: a lookup before the query was judged, or another answer for a namespace that
//! is not served than for a name that is not there.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};

use super::catalog::ExperimentStatus;
use super::key;
use super::problem::Problem;
use super::query::{self, Takes};
use super::serve::Shared;
use crate::table::{Ask, KeyText, Source, Table};

/// The longest name that is looked up.
const NAME_BYTES: usize = 253;

/// A request for data.
pub(super) struct Asked {
    /// The names in the path; `None` where they are no text.
    names: Option<HashMap<String, String>>,
    pub headers: HeaderMap,
    pub uri: Uri,
}

impl FromRequestParts<Arc<Shared>> for Asked {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        shared: &Arc<Shared>,
    ) -> Result<Self, Infallible> {
        let names = Path::<HashMap<String, String>>::from_request_parts(parts, shared).await;
        Ok(Self {
            names: names.ok().map(|Path(names)| names),
            headers: parts.headers.clone(),
            uri: parts.uri.clone(),
        })
    }
}

impl Asked {
    pub fn no_parameters(&self) -> Result<(), Problem> {
        match self.uri.query().filter(|q| !q.is_empty()) {
            None => Ok(()),
            Some(_) => Err(Problem::parameter("", "this route takes no parameters")),
        }
    }

    pub fn query(&self, takes: Takes, source: Source) -> Result<Ask, Problem> {
        query::parse(self.uri.query(), takes, source)
    }

    /// The cursor of a query that was judged, and that has one.
    pub fn cursor(&self) -> Option<String> {
        query::cursor(self.uri.query())
    }

    /// A part of the path, by its name in the route.
    pub fn named(&self, part: &str) -> Option<&str> {
        self.names.as_ref()?.get(part).map(String::as_str)
    }

    pub fn key(&self) -> Result<KeyText, Problem> {
        key::read(self.named("key").ok_or_else(Problem::no_route)?)
    }

    /// Whether an experiment is in the namespace of the path; the short form names none.
    pub fn is_in(&self, status: &ExperimentStatus) -> bool {
        self.named("namespace")
            .is_none_or(|n| n == status.namespace)
    }

    /// The experiment that the path names. Answers from memory.
    pub fn experiment(&self, shared: &Shared) -> Result<ExperimentStatus, Problem> {
        let name = self.named("name").filter(|n| n.len() <= NAME_BYTES);
        name.and_then(|n| shared.catalog.get(n))
            .filter(|e| self.is_in(e))
            .ok_or_else(Problem::no_experiment)
    }
}

/// An experiment's table, opened if it was not.
pub(super) async fn table(
    shared: &Shared,
    status: &ExperimentStatus,
) -> Result<Arc<Table>, Problem> {
    let table = shared.catalog.table(&status.name).await?;
    table.ok_or_else(Problem::no_experiment)
}
