//! What is refused before a request is looked at.
//!
//! Lives here: `Guard`: the sizes of a request, and, on a loopback address, the names in `Host` and `Origin`, so that no
//! website reads this server by pointing its own name at 127.0.0.1 (DNS rebinding). May use: headers. Must never come
//! in: an answer that lets another origin read (there is no CORS here).

use std::net::IpAddr;

use axum::http::{HeaderMap, Method, StatusCode, Uri, header};

use super::problem::Problem;

/// Bytes of all header names and values.
const HEADER_BYTES: usize = 16 << 10;
/// Bytes of a request's path and query.
const TARGET_BYTES: usize = 8 << 10;

/// What a server refuses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guard {
    /// Whether the server is bound to a loopback address.
    pub loopback: bool,
}

impl Guard {
    pub fn check(self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        sizes(uri, headers)?;
        if self.loopback {
            names(headers)?;
        }
        read_only(method)?;
        no_body(headers)
    }
}

fn sizes(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let target = uri.path_and_query().map_or(0, |t| t.as_str().len());
    if target > TARGET_BYTES {
        return Err(Problem::new(
            StatusCode::URI_TOO_LONG,
            "request-too-large",
            "The request is too large",
            format!("a path and query have at most {TARGET_BYTES} bytes"),
        ));
    }
    let size = |(name, value): (&header::HeaderName, &header::HeaderValue)| {
        name.as_str().len() + value.len()
    };
    if headers.iter().map(size).sum::<usize>() > HEADER_BYTES {
        return Err(Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "request-too-large",
            "The request is too large",
            format!("headers have at most {HEADER_BYTES} bytes"),
        ));
    }
    Ok(())
}

/// Before bodies are looked at: whoever sends one wants to write.
fn read_only(method: &Method) -> Result<(), Problem> {
    if *method != Method::GET && *method != Method::HEAD {
        return Err(Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "Only GET is answered",
            "this server only reads; write to the experiment's table with its own client, such as RolloutStore.open(uri) of lance-context",
        )
        .with_error());
    }
    Ok(())
}

fn no_body(headers: &HeaderMap) -> Result<(), Problem> {
    let body = headers
        .get(header::CONTENT_LENGTH)
        .is_some_and(|v| v.as_bytes() != b"0");
    if body || headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request-too-large",
            "The request has a body",
            "requests to this server have no body",
        ));
    }
    Ok(())
}

fn names(headers: &HeaderMap) -> Result<(), Problem> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|h| h.to_str().ok());
    let Some(host) = host.filter(|h| hosts.next().is_none() && is_local(h)) else {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "host-not-allowed",
            "Not by this name",
            "this server is on a loopback address and answers to localhost and loopback addresses only",
        ));
    };
    let same = |origin: &header::HeaderValue| {
        let origin = origin.to_str().ok().and_then(|o| o.strip_prefix("http://"));
        origin.is_some_and(|o| o.eq_ignore_ascii_case(host))
    };
    if headers.get_all(header::ORIGIN).iter().all(same) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "origin-not-allowed",
        "Not from this origin",
        "pages of other origins may not read this server",
    ))
}

/// Whether `Host` names this machine itself, with any port.
fn is_local(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) => (name, port),
            None => return false,
        },
        None => match host.find(':') {
            Some(at) => host.split_at(at),
            None => (host, ""),
        },
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    let local = name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    port && (local || name.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(host: Option<&str>, origin: Option<&str>) -> Option<StatusCode> {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(header::HOST, host.parse().unwrap());
        }
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        Guard { loopback: true }
            .check(&Method::GET, &Uri::from_static("/"), &headers)
            .err()
            .map(|p| p.status)
    }

    #[test]
    fn this_machines_own_names_are_answered() {
        for host in [
            "localhost",
            "LOCALHOST:8090",
            "127.0.0.1:8090",
            "127.8.9.1",
            "[::1]:8090",
            "[::1]",
        ] {
            assert_eq!(checked(Some(host), None), None, "{host}");
        }
    }

    #[test]
    fn other_names_are_refused_on_a_loopback_address() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "0.0.0.0:8090",
            "localhost:8090:1",
            "localhost:x",
            "[::1",
            "[::1]x",
            "",
        ] {
            assert_eq!(
                checked(Some(host), None),
                Some(StatusCode::FORBIDDEN),
                "{host}"
            );
        }
        assert_eq!(checked(None, None), Some(StatusCode::FORBIDDEN));
    }

    #[test]
    fn only_the_servers_own_origin_may_read() {
        let host = Some("localhost:8090");
        assert_eq!(checked(host, Some("http://localhost:8090")), None);
        for origin in [
            "http://evil.example",
            "null",
            "http://localhost:3000",
            "https://localhost:8090",
        ] {
            assert_eq!(
                checked(host, Some(origin)),
                Some(StatusCode::FORBIDDEN),
                "{origin}"
            );
        }
    }
}
