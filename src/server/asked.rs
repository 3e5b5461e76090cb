//! What a request names, before anything is looked up.
//!
//! Lives here: `Asked`: the names of a path, the query, the headers and the caller, and finding the experiments that are
//! meant. May use: the catalog, the authoriser. Must never come in: a lookup before the query was judged, or another
//! answer for a namespace that is not served than for a name that is not there.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use futures::{StreamExt, TryStreamExt, stream};

use super::authority::{Caller, Refused, Sight};
use super::catalog::ExperimentStatus;
use super::key;
use super::problem::Problem;
use super::query::{self, Takes};
use super::serve::Shared;
use crate::table::{Ask, KeyText, Source, Table};

/// The longest name that is looked up.
const NAME_BYTES: usize = 253;
/// The most namespaces that one request asks after, and how many of them at once.
const NAMESPACES: usize = 256;
const AT_ONCE: usize = 8;

/// A request for data.
pub(super) struct Asked {
    /// The names in the path; `None` where they are no text.
    names: Option<HashMap<String, String>>,
    pub headers: HeaderMap,
    pub uri: Uri,
    /// Who asks; let in before any handler.
    caller: Caller,
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
            caller: parts.extensions.get().cloned().unwrap_or(Caller::Anybody),
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

    /// The experiment that the path names. Answers from memory.
    pub fn experiment(&self, shared: &Shared) -> Result<ExperimentStatus, Problem> {
        let catalog = &shared.catalog;
        let namespace = self.named("namespace").or(catalog.namespace());
        let name = self.named("name").filter(|n| n.len() <= NAME_BYTES);
        let found = name.and_then(|n| catalog.get(namespace, n));
        found.ok_or_else(|| match catalog.ready() {
            true => Problem::no_experiment(),
            false => Problem::not_ready(),
        })
    }

    /// The experiments of the path's namespace, or of all where it names none: those that the caller may list.
    pub async fn experiments(&self, shared: &Shared) -> Result<Vec<ExperimentStatus>, Problem> {
        let mut all = shared.catalog.list();
        if let Some(namespace) = self.named("namespace") {
            // That the caller may list these was found out before.
            all.retain(|e| e.namespace == namespace);
            return Ok(all);
        }
        let authority = &shared.authority;
        if authority.may(&self.caller, Sight::List(None)).await? {
            return Ok(all);
        }
        let namespaces: BTreeSet<String> = all.iter().map(|e| e.namespace.clone()).collect();
        if namespaces.len() > NAMESPACES {
            return Err(Refused::Namespaces(NAMESPACES).into());
        }
        let caller = &self.caller;
        let asked = stream::iter(namespaces).map(|namespace| async move {
            let may = authority.may(caller, Sight::List(Some(&namespace))).await;
            may.map(|may| may.then_some(namespace))
        });
        let seen: Vec<Option<String>> = asked.buffered(AT_ONCE).try_collect().await?;
        let seen: BTreeSet<String> = seen.into_iter().flatten().collect();
        all.retain(|e| seen.contains(&e.namespace));
        Ok(all)
    }
}

/// An experiment's table, opened if it was not.
pub(super) async fn table(
    shared: &Shared,
    status: &ExperimentStatus,
) -> Result<Arc<Table>, Problem> {
    let table = shared.catalog.table(status).await?;
    table.ok_or_else(Problem::no_experiment)
}
