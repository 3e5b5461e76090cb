//! Where a store's endpoint leads: what an operator inside a cluster must not be sent to.
//!
//! Lives here: the list of addresses that no endpoint may resolve to unless it was allowed by name, the look-up, and the
//! guard that is asked at every connection. May use: std's addresses, tokio's resolver. Must never come in: a connection, or a verdict on a table.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use url::{Host, Url};

use crate::table::Door;

/// How long a name may take to resolve.
const WITHIN: Duration = Duration::from_secs(5);

/// Where an endpoint leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leads {
    /// To a place that any endpoint may lead to.
    Out,
    /// To a place that it must not lead to without leave.
    Inside(&'static str),
    /// Its name does not resolve now.
    Nowhere,
}

/// What an address is, if it is one that no endpoint may lead to. `api` are the addresses of the API server.
pub fn inside(address: IpAddr, api: &[IpAddr]) -> Option<&'static str> {
    let address = plain(address);
    if api.iter().any(|a| plain(*a) == address) {
        return Some("the cluster's API server");
    }
    match address {
        IpAddr::V4(v4) => inside_v4(v4),
        IpAddr::V6(v6) => inside_v6(v6),
    }
}

fn inside_v4(v4: Ipv4Addr) -> Option<&'static str> {
    // Azure's and Alibaba's services for machines lie outside the link-local range.
    let metadata = [
        Ipv4Addr::new(168, 63, 129, 16),
        Ipv4Addr::new(100, 100, 100, 200),
    ];
    match v4 {
        _ if v4.is_loopback() => Some("the operator's own machine"),
        _ if v4.is_unspecified() || v4.octets()[0] == 0 => Some("the operator's own machine"),
        _ if v4.is_link_local() => Some("a link-local address, where clouds hand out identities"),
        _ if metadata.contains(&v4) => Some("a cloud's metadata service"),
        _ if v4.is_broadcast() || v4.is_multicast() => Some("no single machine"),
        _ => None,
    }
}

fn inside_v6(v6: Ipv6Addr) -> Option<&'static str> {
    let segments = v6.segments();
    match v6 {
        _ if v6.is_loopback() || v6.is_unspecified() => Some("the operator's own machine"),
        _ if segments[0] & 0xffc0 == 0xfe80 => {
            Some("a link-local address, where clouds hand out identities")
        }
        _ if segments[..2] == [0xfd00, 0x0ec2] => Some("a cloud's metadata service"),
        _ if v6.is_multicast() => Some("no single machine"),
        _ => None,
    }
}

/// IPv4 in IPv6's clothes, taken out of them.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let segments = v6.segments();
    let low = || {
        let [.., a, b] = segments;
        Ipv4Addr::from((u32::from(a) << 16) | u32::from(b))
    };
    match v6.to_ipv4_mapped() {
        Some(v4) => IpAddr::V4(v4),
        // NAT64's well-known prefix, and the deprecated compatible form.
        None if segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => IpAddr::V4(low()),
        None if segments[..6] == [0; 6] && segments[6] != 0 => IpAddr::V4(low()),
        None => address,
    }
}

/// Asked at every connection to a store: a name that led out when it was looked up may lead in by now.
#[derive(Debug)]
pub struct Guard {
    /// The API server's addresses.
    api: Vec<IpAddr>,
    /// Names that whoever runs the operator trusts.
    trusted: Vec<String>,
    /// Names that lead in, each told once.
    told: Mutex<BTreeSet<String>>,
}

impl Guard {
    /// `allowed` are the endpoints that were allowed by name.
    pub fn new(api: &[IpAddr], allowed: &[String]) -> Self {
        let host = |endpoint: &String| Some(Url::parse(endpoint).ok()?.host_str()?.to_owned());
        Self {
            api: api.to_vec(),
            trusted: allowed.iter().filter_map(host).collect(),
            told: Mutex::default(),
        }
    }
}

impl Door for Guard {
    fn may(&self, host: &str, address: IpAddr) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        // A bucket may stand in the name, before the endpoint's.
        let of = |name: &String| {
            let rest = host.strip_suffix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let what = inside(address, &self.api).filter(|_| !self.trusted.iter().any(of));
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(what) = what else {
            told.remove(&host);
            return true;
        };
        if told.insert(host.clone()) {
            tracing::warn!(
                host,
                "a store's name leads to {what}; it is not connected to"
            );
        }
        false
    }
}

/// Looks where an endpoint leads. One bad address among many is bad.
pub async fn look_up(endpoint: &str, api: &[IpAddr]) -> Leads {
    let Ok(url) = Url::parse(endpoint) else {
        return Leads::Nowhere;
    };
    let addresses: Vec<IpAddr> = match url.host() {
        None => return Leads::Nowhere,
        Some(Host::Ipv4(v4)) => vec![v4.into()],
        Some(Host::Ipv6(v6)) => vec![v6.into()],
        Some(Host::Domain(name)) => {
            let port = url.port_or_known_default().unwrap_or(443);
            let found = tokio::time::timeout(WITHIN, tokio::net::lookup_host((name, port))).await;
            match found {
                Ok(Ok(found)) => found.map(|a| a.ip()).collect(),
                _ => vec![],
            }
        }
    };
    if addresses.is_empty() {
        return Leads::Nowhere;
    }
    let bad = addresses.iter().find_map(|a| inside(*a, api));
    bad.map_or(Leads::Out, Leads::Inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_give_away_the_operator_are_known_in_every_form() {
        for bad in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "::1",
            "::",
            "fe80::1",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "::127.0.0.1",
            "ff02::1",
        ] {
            assert!(inside(bad.parse().unwrap(), &[]).is_some(), "{bad}");
        }
        for good in [
            "10.1.2.3",
            "192.168.4.5",
            "52.219.1.1",
            "2600:1f18::1",
            "fd12::1",
        ] {
            assert_eq!(inside(good.parse().unwrap(), &[]), None, "{good}");
        }
    }

    #[test]
    fn the_api_server_is_no_store() {
        let api = ["10.96.0.1".parse().unwrap()];
        let said = inside("::ffff:10.96.0.1".parse().unwrap(), &api);
        assert_eq!(said, Some("the cluster's API server"));
    }

    #[test]
    fn a_name_that_leads_in_later_is_not_connected_to_unless_it_is_trusted() {
        let api = ["10.96.0.1".parse().unwrap()];
        let guard = Guard::new(&api, &["http://shelf.store:9000".into()]);
        let may = |host: &str, to: &str| guard.may(host, to.parse().unwrap());
        assert!(may("depot.example", "52.219.1.1"));
        for inside in ["127.0.0.1", "169.254.169.254", "::1", "10.96.0.1"] {
            assert!(!may("depot.example", inside), "{inside}");
            assert!(!may("notshelf.store", inside), "{inside}");
            assert!(may("shelf.store", inside), "{inside}");
            assert!(may("bucket.Shelf.store.", inside), "{inside}");
        }
    }

    #[tokio::test]
    async fn names_and_odd_spellings_are_resolved_before_they_are_judged() {
        for endpoint in [
            "http://localhost:9000",
            "http://2130706433",
            "http://0x7f.1:80",
            "http://[::1]:9000",
        ] {
            let found = look_up(endpoint, &[]).await;
            assert!(matches!(found, Leads::Inside(_)), "{endpoint}: {found:?}");
        }
        assert_eq!(look_up("http://10.1.2.3:9000", &[]).await, Leads::Out);
        assert_eq!(look_up("http://no-such.invalid", &[]).await, Leads::Nowhere);
    }
}
