//! The Experiments that are watched, as the server's catalog.
//!
//! Lives here: `Shelf`, which hears the watch and answers from memory, and the tables that are open. May use: `server`'s
//! trait, the opener. Must never come in: a request to a store while experiments are listed, or one experiment's table
//! for another that came under its name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use kube::runtime::watcher::Event;

use super::opener::{Opened, Opener};
use super::told::told;
use crate::api::{Experiment, TableSpec};
use crate::cluster::client::{Guarded, named};
use crate::server::{Catalog, ExperimentStatus, Unopened};
use crate::table::Table;

/// Namespace and name.
type Key = (String, String);

/// The catalog.
pub struct Shelf {
    /// The namespace that is meant where a path names none.
    own: String,
    opener: Opener,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    books: BTreeMap<Key, Book>,
    /// What was seen since a watch began anew, by the watch.
    listing: BTreeMap<usize, BTreeSet<Key>>,
    /// Watches that have not listed everything yet.
    unlisted: BTreeSet<usize>,
}

/// One Experiment.
struct Book {
    uid: Option<String>,
    /// `None` where it cannot be read.
    experiment: Option<Arc<Experiment>>,
    opened: Opened,
}

impl Shelf {
    /// An empty one that waits for so many watches.
    pub fn new(own: String, opener: Opener, watches: usize) -> Self {
        let inner = Inner {
            unlisted: (0..watches).collect(),
            ..Inner::default()
        };
        Self {
            own,
            opener,
            inner: Mutex::new(inner),
        }
    }

    /// Hears what a watch of a namespace says, or of all. Gives back whether everything has been listed.
    pub fn hear(&self, watch: usize, scope: Option<&str>, event: Event<Guarded>) -> bool {
        let mut inner = self.inner();
        match event {
            Event::Init => {
                inner.listing.insert(watch, BTreeSet::new());
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let edited = inner.took(watch, object);
                drop(inner);
                if let Some(((namespace, _), experiment)) = edited {
                    self.opener.edited(&namespace, &experiment.spec.table);
                }
                inner = self.inner();
            }
            Event::InitDone => {
                let there = inner.listing.remove(&watch).unwrap_or_default();
                let of = |ns: &str| scope.is_none_or(|scope| scope == ns);
                inner
                    .books
                    .retain(|key, _| !of(&key.0) || there.contains(key));
                inner.unlisted.remove(&watch);
                self.forget(&inner);
            }
            Event::Delete(object) => {
                let (namespace, name, uid) = named(&object);
                let key = (namespace, name);
                let same = |book: &Book| uid.is_none() || book.uid == uid;
                if inner.books.get(&key).is_some_and(same) {
                    inner.books.remove(&key);
                    self.forget(&inner);
                }
            }
        }
        inner.unlisted.is_empty()
    }

    /// What nobody names any more is not kept.
    fn forget(&self, inner: &Inner) {
        let specs = inner.books.iter().filter_map(|((namespace, _), book)| {
            let table: &TableSpec = &book.experiment.as_ref()?.spec.table;
            Some((namespace.as_str(), table))
        });
        self.opener.keep(specs);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes an object as it is now. Gives it back where its spec was edited.
    fn took(&mut self, watch: usize, object: Guarded) -> Option<(Key, Arc<Experiment>)> {
        let (namespace, name, uid) = named(&object);
        let key = (namespace, name);
        if let Some(listing) = self.listing.get_mut(&watch) {
            listing.insert(key.clone());
        }
        let experiment = object.0.ok().map(|read| Arc::new(read.experiment));
        let before = self.books.remove(&key).filter(|book| book.uid == uid);
        let spec = |e: &Option<Arc<Experiment>>| e.as_ref().map(|e| e.spec.clone());
        let edited = before
            .as_ref()
            .is_some_and(|b| spec(&b.experiment) != spec(&experiment));
        // One that was made anew under a name has nothing of the one before.
        let opened = before.map(|book| book.opened).unwrap_or_default();
        let told = experiment.clone().filter(|_| edited);
        let book = Book {
            uid,
            experiment,
            opened,
        };
        self.books.insert(key.clone(), book);
        told.map(|experiment| (key, experiment))
    }
}

fn shown(((namespace, name), book): (&Key, &Book)) -> ExperimentStatus {
    told(namespace, name, book.experiment.as_deref())
}

#[async_trait]
impl Catalog for Shelf {
    fn list(&self) -> Vec<ExperimentStatus> {
        self.inner().books.iter().map(shown).collect()
    }

    fn namespace(&self) -> Option<&str> {
        Some(&self.own)
    }

    fn get(&self, namespace: Option<&str>, name: &str) -> Option<ExperimentStatus> {
        let namespace = namespace.unwrap_or(&self.own);
        let key = (namespace.to_owned(), name.to_owned());
        self.inner().books.get_key_value(&key).map(shown)
    }

    async fn table(&self, of: &ExperimentStatus) -> Result<Option<Arc<Table>>, Unopened> {
        let key = (of.namespace.clone(), of.name.clone());
        let found = self.inner().books.get(&key).map(|book| {
            let experiment = book.experiment.clone();
            (experiment, book.opened.clone())
        });
        let Some((experiment, opened)) = found else {
            return Ok(None);
        };
        let experiment = experiment.ok_or(Unopened::Unreadable)?;
        let table = &experiment.spec.table;
        self.opener.open(&key.0, table, &opened).await.map(Some)
    }

    fn refused(&self, namespace: Option<&str>, name: &str) {
        let namespace = namespace.unwrap_or(&self.own);
        let key = (namespace.to_owned(), name.to_owned());
        let experiment = self
            .inner()
            .books
            .get(&key)
            .and_then(|b| b.experiment.clone());
        if let Some(experiment) = experiment {
            self.opener.refused(namespace, &experiment.spec.table);
        }
    }

    fn ready(&self) -> bool {
        self.inner().unlisted.is_empty()
    }
}
