//! Opening the tables of Experiments for readers: what has to be known first, and with whose credentials.
//!
//! Lives here: `Opener`, which makes of a spec the place that may be opened, with what the Secret said and where the
//! endpoint leads, each asked for when it is needed and again when its time has come. May use: `cluster`'s checks, `table`'s
//! opening. Must never come in: a request to a store before the permit, or a value of a Secret in a message.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::api::{TableIdentity, TableSpec, storage};
use crate::cluster::Cluster;
use crate::cluster::access::Access;
use crate::cluster::endpoints::{self, Leads};
use crate::cluster::permit::{self, Asked, Need, Permit, Refusal};
use crate::cluster::secrets::{Mono, Named, SecretBook};
use crate::server::Unopened;
use crate::table::{Location, Stores, Table};

/// A name of a store is looked up again after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// After a look-up that found nothing.
const NOWHERE_AGAIN: Duration = Duration::from_secs(30);
/// The most things that are asked for before a verdict: each endpoint of a table, and its Secret.
const ROUNDS: usize = 8;

/// A table that readers share, with the place that it was opened at.
pub type Opened = Arc<tokio::sync::Mutex<Option<(Location, Arc<Table>)>>>;

/// Opens tables.
pub struct Opener {
    cluster: Cluster,
    /// The API server's addresses.
    api: Vec<IpAddr>,
    access: Access,
    stores: Stores,
    origin: Instant,
    secrets: Mutex<SecretBook>,
    /// One read of a Secret at a time.
    reading: Mutex<HashMap<Named, Arc<tokio::sync::Mutex<()>>>>,
    endpoints: Mutex<HashMap<String, (Leads, Mono)>>,
}

impl Opener {
    /// Nothing is asked of anybody yet.
    pub fn new(cluster: Cluster, api: Vec<IpAddr>, access: Access, stores: Stores) -> Self {
        Self {
            cluster,
            api,
            access,
            stores,
            origin: Instant::now(),
            secrets: Mutex::default(),
            reading: Mutex::default(),
            endpoints: Mutex::default(),
        }
    }

    /// The table of a namespace's spec, as it is open or newly.
    ///
    /// # Errors
    /// Why it may not be opened, without a request to its store; else what opening it says.
    pub async fn open(
        &self,
        namespace: &str,
        table: &TableSpec,
        opened: &Opened,
    ) -> Result<Arc<Table>, Unopened> {
        let location = self.location(namespace, table).await?;
        let mut opened = opened.lock().await;
        if let Some((at, table)) = opened.as_ref()
            && *at == location
        {
            return Ok(table.clone());
        }
        let table = Arc::new(Table::open(&self.stores, &location).await?);
        *opened = Some((location, table.clone()));
        Ok(table)
    }

    async fn location(&self, namespace: &str, table: &TableSpec) -> Result<Location, Unopened> {
        let (table, field) = for_reading(table);
        let identity = TableIdentity::of(&table).map_err(|_| Unopened::Unreadable)?;
        let asked = Asked {
            namespace,
            table: &table,
            identity: &identity,
            field,
        };
        for _ in 0..ROUNDS {
            let leads = |endpoint: &str| self.leads(endpoint);
            let found = |named: &Named| {
                let mut secrets = lock(&self.secrets);
                match secrets.is_due(named, self.now()) {
                    true => None,
                    false => secrets.get(named, self.now()),
                }
            };
            match asked.judge(&self.access, leads, found) {
                Permit::Opens(options) => {
                    let location = Location::new(table.uri.clone());
                    let location = location.with_options(storage::options(&table));
                    return Ok(location.with_options(options));
                }
                Permit::Needs(Need::Endpoint(endpoint)) => self.look_up(&endpoint).await,
                Permit::Needs(Need::Secret(named)) => self.read(&named).await?,
                Permit::Refused(Refusal::NotAllowed, why) => return Err(Unopened::NotAllowed(why)),
                Permit::Refused(Refusal::StoreUnreachable, why) => {
                    return Err(Unopened::Unreachable(why));
                }
                Permit::Refused(Refusal::CredentialsMissing, why) => {
                    return Err(Unopened::Credentials(why));
                }
            }
        }
        Err(Unopened::NotYet)
    }

    /// A store refused what the Secret of a spec says, or the spec was edited: it is read again.
    pub fn refused(&self, namespace: &str, table: &TableSpec) {
        if let Some(named) = secret(namespace, table) {
            lock(&self.secrets).rejected(&named, self.now());
        }
    }

    /// A spec was edited: whoever mended its Secret too wants it to be read now.
    pub fn edited(&self, namespace: &str, table: &TableSpec) {
        if let Some(named) = secret(namespace, table) {
            lock(&self.secrets).touch(&named, self.now());
        }
    }

    /// Forgets what none of these specs names.
    pub fn keep<'a>(&self, all: impl Iterator<Item = (&'a str, &'a TableSpec)>) {
        let (mut secrets, mut endpoints) = (BTreeSet::new(), BTreeSet::new());
        for (namespace, table) in all {
            secrets.extend(secret(namespace, table));
            endpoints.extend(permit::endpoints(table));
        }
        lock(&self.secrets).keep(|named| secrets.contains(named));
        lock(&self.reading).retain(|named, _| secrets.contains(named));
        lock(&self.endpoints).retain(|name, _| endpoints.contains(name));
    }

    fn now(&self) -> Mono {
        self.origin.elapsed()
    }

    fn leads(&self, endpoint: &str) -> Option<Leads> {
        let known = lock(&self.endpoints).get(endpoint).copied();
        known
            .filter(|(_, next)| self.now() < *next)
            .map(|(leads, _)| leads)
    }

    async fn look_up(&self, endpoint: &str) {
        let leads = endpoints::look_up(endpoint, &self.api).await;
        let mut all = lock(&self.endpoints);
        let before = all.get(endpoint).map(|(leads, _)| *leads);
        // A resolver that fails for a while takes nothing back.
        let (leads, wait) = match (leads, before) {
            (Leads::Nowhere, before) => (before.unwrap_or(leads), NOWHERE_AGAIN),
            (leads, _) => (leads, LOOK_AGAIN),
        };
        let wait = wait.mul_f64(0.9 + 0.2 * rand::random::<f64>());
        all.insert(endpoint.to_owned(), (leads, self.now() + wait));
    }

    /// Reads a Secret that is due, once for all who wait for it.
    ///
    /// # Errors
    /// `NotYet` where the API server does not answer and never said what it holds.
    async fn read(&self, named: &Named) -> Result<(), Unopened> {
        let one = lock(&self.reading)
            .entry(named.clone())
            .or_default()
            .clone();
        let _one = one.lock().await;
        if lock(&self.secrets).is_due(named, self.now()) {
            let found = self.cluster.secret(named).await;
            let (now, random) = (self.now(), rand::random());
            let mut secrets = lock(&self.secrets);
            // Naming it is what makes it known.
            secrets.get(named, now);
            secrets.read(named, found, now, random);
        }
        match lock(&self.secrets).get(named, self.now()) {
            Some(_) => Ok(()),
            None => Err(Unopened::NotYet),
        }
    }
}

/// A table as readers open it: its Secret is the one for readers, where it names one. With the field that names it.
fn for_reading(table: &TableSpec) -> (TableSpec, &'static str) {
    match &table.read_secret_ref {
        None => (table.clone(), "table.secretRef"),
        Some(named) => {
            let table = TableSpec {
                secret_ref: Some(named.clone()),
                ..table.clone()
            };
            (table, "table.readSecretRef")
        }
    }
}

fn secret(namespace: &str, table: &TableSpec) -> Option<Named> {
    let (table, _) = for_reading(table);
    Some((namespace.to_owned(), table.secret_ref?.name))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::SecretRef;

    fn named(name: &str) -> Option<SecretRef> {
        Some(SecretRef { name: name.into() })
    }

    #[test]
    fn readers_open_with_their_own_secret_where_a_table_names_one() {
        let mut table = TableSpec {
            uri: "s3://maze-runs/one".into(),
            secret_ref: named("writes"),
            ..Default::default()
        };
        let of = |table: &TableSpec| secret("alder", table).map(|(_, name)| name);
        assert_eq!(of(&table).as_deref(), Some("writes"));
        table.read_secret_ref = named("reads");
        assert_eq!(of(&table).as_deref(), Some("reads"));
        assert_eq!(for_reading(&table).1, "table.readSecretRef");
        table.secret_ref = None;
        assert_eq!(of(&table).as_deref(), Some("reads"));
        table.read_secret_ref = None;
        assert_eq!(of(&table), None);
    }
}
