//! Which addresses a store's name may lead to, asked anew at every connection.
//!
//! Lives here: `Door`, which whoever runs the process answers, and the resolver that asks it. An address that is written
//! out is no name; the client asks about it. May use: object_store's
//! resolver, tokio's. Never: a list of addresses.

use std::fmt::Debug;
use std::net::IpAddr;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use object_store::client::{DnsFuture, DnsResolver};
use rand::seq::SliceRandom;

/// Says where connections may go. A name that was looked at may lead elsewhere a moment later, so it is asked for every
/// connection, with the addresses that are then connected to; and for every request to an address that is written out.
pub trait Door: Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Whether a host, a name or an address written out, may lead to this address.
    fn may(&self, host: &str, address: IpAddr) -> bool;
}

/// Looks names up, and asks the door, if there is one, about the addresses.
#[derive(Debug, Clone)]
pub(super) struct Names(pub(super) Option<Arc<dyn Door>>);

impl DnsResolver for Names {
    fn resolve(&self, host: &str) -> DnsFuture {
        let (host, door) = (host.to_owned(), self.0.clone());
        Box::pin(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
            let mut addresses: Vec<IpAddr> = found.map(|a| a.ip()).collect();
            // One bad address among many is bad.
            if door.is_some_and(|door| !addresses.iter().all(|a| door.may(&host, *a))) {
                return Err("the name leads to where it must not".into());
            }
            // As object_store does by itself: load is spread over a store's servers.
            addresses.shuffle(&mut rand::rng());
            Ok(addresses)
        })
    }
}
