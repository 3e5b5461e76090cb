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
    let meant = stands_for(address);
    if api.iter().any(|a| meant.contains(&stands_for(*a)[0])) {
        return Some("the cluster's API server");
    }
    meant.iter().find_map(|address| match address {
        IpAddr::V4(v4) => inside_v4(*v4),
        IpAddr::V6(v6) => inside_v6(*v6),
    })
}

fn inside_v4(v4: Ipv4Addr) -> Option<&'static str> {
    // Azure's and Alibaba's services for machines lie outside the link-local range. Carriers' addresses (100.64/10)
    // and private ones are where stores of a cluster's own are.
    let metadata = [
        Ipv4Addr::new(168, 63, 129, 16),
        Ipv4Addr::new(100, 100, 100, 200),
    ];
    match v4.octets() {
        [127, ..] | [0, ..] => Some("the operator's own machine"),
        [169, 254, ..] => Some("a link-local address, where clouds hand out identities"),
        _ if metadata.contains(&v4) => Some("a cloud's metadata service"),
        // Oracle's metadata service among them.
        [192, 0, 0, _] => Some("an address that is set aside for protocols"),
        [224..=239, ..] | [255, 255, 255, 255] => Some("no single machine"),
        _ => None,
    }
}

fn inside_v6(v6: Ipv6Addr) -> Option<&'static str> {
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Some("the operator's own machine"),
        // Site-local, deprecated, is as close.
        [0xfe80..=0xfeff, ..] => Some("a link-local address, where clouds hand out identities"),
        // Amazon's, Oracle's, Scaleway's and Google's.
        [0xfd00, 0x0ec2 | 0x00c1 | 0x0042, ..] | [0xfd20, 0x00ce, ..] => {
            Some("a cloud's metadata service")
        }
        [0xff00..=0xffff, ..] => Some("no single machine"),
        _ => None,
    }
}

/// What an address stands for: itself, or the IPv4 addresses that it may be the clothes of. Never empty.
fn stands_for(address: IpAddr) -> Vec<IpAddr> {
    let IpAddr::V6(v6) = address else {
        return vec![address];
    };
    let v4 = |a: u16, b: u16| IpAddr::V4(Ipv4Addr::from((u32::from(a) << 16) | u32::from(b)));
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => vec![address],
        // Compatible (deprecated), mapped, and translated without state.
        [0, 0, 0, 0, 0, 0 | 0xffff, a, b] | [0, 0, 0, 0, 0xffff, 0, a, b] => vec![v4(a, b)],
        // NAT64's well-known prefix.
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] => vec![v4(a, b)],
        [0x64, 0xff9b, 1, ..] => translated(v6),
        // 6to4.
        [0x2002, a, b, ..] => vec![v4(a, b)],
        // Teredo: the client's, with its bits turned, and the server's.
        [0x2001, 0, c, d, .., a, b] => vec![v4(!a, !b), v4(c, d)],
        // ISATAP, under any prefix.
        [.., 0 | 0x0200, 0x5efe, a, b] => vec![v4(a, b), address],
        _ => vec![address],
    }
}

/// NAT64's prefix for a network's own use leaves the length of what follows to the network, so all places where an IPv4
/// address may stand are read (RFC 6052); a reading that begins with 0 is one of the wrong length.
fn translated(v6: Ipv6Addr) -> Vec<IpAddr> {
    let octets = v6.octets();
    let places = [
        [6, 7, 9, 10],
        [7, 9, 10, 11],
        [9, 10, 11, 12],
        [12, 13, 14, 15],
    ];
    let read = places.map(|place| place.map(|i: usize| octets[i]));
    let read = read.into_iter().filter(|v4| v4[0] != 0).map(IpAddr::from);
    std::iter::once(IpAddr::V6(v6)).chain(read).collect()
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
        let machine = "the operator's own machine";
        let link = "a link-local address, where clouds hand out identities";
        let metadata = "a cloud's metadata service";
        let protocols = "an address that is set aside for protocols";
        let many = "no single machine";
        for (what, addresses) in [
            (machine, &["127.0.0.1", "127.255.255.254"][..]),
            (machine, &["0.0.0.0", "0.255.255.255", "::", "::1"]),
            (link, &["169.254.0.0", "169.254.169.254", "169.254.255.255"]),
            (
                link,
                &[
                    "fe80::1",
                    "febf::1",
                    "fe80::a9fe:a9fe",
                    "fec0::1",
                    "feff::1",
                ],
            ),
            (metadata, &["168.63.129.16", "100.100.100.200"]),
            (metadata, &["fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"]),
            (metadata, &["fd00:c1::a9fe:a9fe", "fd00:42::42"]),
            (protocols, &["192.0.0.0", "192.0.0.192", "192.0.0.255"]),
            (
                many,
                &[
                    "224.0.0.1",
                    "239.255.255.255",
                    "255.255.255.255",
                    "ff02::1",
                    "ffff::",
                ],
            ),
            // Mapped, compatible and translated.
            (
                link,
                &[
                    "::ffff:169.254.169.254",
                    "::169.254.169.254",
                    "::ffff:0:169.254.169.254",
                ],
            ),
            (
                machine,
                &[
                    "::ffff:127.0.0.1",
                    "::127.0.0.1",
                    "::ffff:0:127.0.0.1",
                    "::ffff:0.0.0.0",
                ],
            ),
            // NAT64: the well-known prefix, and the local one in each of its lengths.
            (link, &["64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe"]),
            (
                link,
                &["64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:ffa9:fe:a9fe::"],
            ),
            (
                link,
                &["64:ff9b:1:abcd:a9:fea9:fe00:0", "64:ff9b:1:abcd::a9fe:a9fe"],
            ),
            (protocols, &["64:ff9b:1::c000:c0"]),
            // 6to4, Teredo and ISATAP.
            (
                link,
                &["2002:a9fe:a9fe::1", "2001:0:4136:e378:8000:63bf:5601:5601"],
            ),
            (
                machine,
                &["2002:7f00:1::", "2001:0:7f00:1:8000:63bf:cb45:1234"],
            ),
            (
                link,
                &["2600:1f18::5efe:a9fe:a9fe", "fd12::200:5efe:a9fe:a9fe"],
            ),
        ] {
            for address in addresses {
                let said = inside(address.parse().unwrap(), &[]);
                assert_eq!(said, Some(what), "{address}");
            }
        }
    }

    #[test]
    fn addresses_where_stores_are_lead_out() {
        for good in [
            "10.1.2.3",
            "172.16.0.1",
            "192.168.4.5",
            "100.64.0.1",
            "100.100.100.201",
            "168.63.129.17",
            "192.0.1.1",
            "192.0.2.1",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "169.255.0.0",
            "223.255.255.255",
            "52.219.1.1",
            "2600:1f18::1",
            "fd12::1",
            "fd00:ec3::254",
            "::ffff:10.1.2.3",
            "64:ff9b::34db:101",
            "64:ff9b:1::34db:101",
            "64:ff9b:1:34db:1:100::",
            "2002:34db:101::1",
            "2001:db8::1",
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
