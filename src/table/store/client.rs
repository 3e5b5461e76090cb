//! The HTTP client of every store whose address somebody named.
//!
//! Lives here: `Connector`, which object_store's builders ask for a client: one that follows no redirect, and that asks the
//! door before each connection. A store that redirects could otherwise send us to an address that nobody judged, the
//! cloud's identity service among them. May use: reqwest, since object_store's own way to make a client follows redirects
//! and cannot be told not to. Never: a request of this room's own.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::client::{
    DnsResolver, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpService,
};
use object_store::{ClientConfigKey as Key, ClientOptions, Result as StoreResult};
use reqwest::header::LOCATION;
use reqwest::tls::Certificate;
use reqwest::{ClientBuilder, NoProxy, Proxy, StatusCode, dns, redirect};
use url::{Host, Url};

use super::door::{Door, Names};

/// A store's answer that would send us elsewhere, and where to.
#[derive(Debug, thiserror::Error)]
#[error("the store answered with a redirect to {0}, which is not followed")]
pub(crate) struct Redirected(pub(crate) String);

/// An address that the door does not let us connect to.
#[derive(Debug, thiserror::Error)]
#[error("the store's address leads to where it must not")]
struct Refused;

/// Makes clients that go through a door, if there is one.
#[derive(Debug, Clone)]
pub(super) struct Connector(pub(super) Option<Arc<dyn Door>>);

impl Connector {
    /// What a client of object_store's own making has to look names up with.
    pub(super) fn names(&self) -> ClientOptions {
        ClientOptions::new().with_dns_resolver(Arc::new(Names(self.0.clone())))
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> StoreResult<HttpClient> {
        let builder = configured(options)?
            .redirect(redirect::Policy::none())
            .dns_resolver(Arc::new(ForReqwest(Names(self.0.clone()))));
        let client = builder.build().map_err(wrong)?;
        Ok(HttpClient::new(Judged {
            client: HttpClient::new(client),
            door: self.0.clone(),
        }))
    }
}

#[derive(Debug)]
struct Judged {
    client: HttpClient,
    door: Option<Arc<dyn Door>>,
}

#[async_trait]
impl HttpService for Judged {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = Url::parse(&request.uri().to_string())
            .map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
        if let (Some(door), Some((host, address))) = (&self.door, literal(&url))
            && !door.may(host, address)
        {
            return Err(HttpError::new(HttpErrorKind::Unknown, Refused));
        }
        let answer = self.client.execute(request).await?;
        match leads(&url, &answer) {
            Some(to) => Err(HttpError::new(HttpErrorKind::Unknown, Redirected(to))),
            None => Ok(answer),
        }
    }
}

/// A host that is an address already: no name is looked up for it.
fn literal(url: &Url) -> Option<(&str, IpAddr)> {
    let address = match url.host()? {
        Host::Ipv4(v4) => v4.into(),
        Host::Ipv6(v6) => v6.into(),
        Host::Domain(_) => return None,
    };
    Some((url.host_str()?, address))
}

/// Where an answer wants to be asked again: scheme, host and port alone, since a path may hold a secret.
fn leads(asked: &Url, answer: &HttpResponse) -> Option<String> {
    let status = answer.status();
    if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
        return None;
    }
    // Without a place it is S3's word for a wrong region, which object_store tells.
    let place = answer.headers().get(LOCATION)?.to_str().ok();
    let to = place.and_then(|place| asked.join(place).ok());
    Some(to.map_or("an unreadable place".into(), |to| {
        to.origin().ascii_serialization()
    }))
}

#[derive(Debug)]
struct ForReqwest(Names);

impl dns::Resolve for ForReqwest {
    fn resolve(&self, name: dns::Name) -> dns::Resolving {
        let found = self.0.resolve(name.as_str());
        Box::pin(async move {
            let addresses = found.await?.into_iter().map(|ip| SocketAddr::new(ip, 0));
            Ok(Box::new(addresses) as dns::Addrs)
        })
    }
}

type SetDuration = fn(ClientBuilder, Duration) -> ClientBuilder;

/// A client as object_store would make it of the same options.
fn configured(options: &ClientOptions) -> StoreResult<ClientBuilder> {
    let of = |key: Key| options.get_config_value(&key);
    let is = |key: Key| flag(&of(key).unwrap_or_default());
    let lasts = |key: Key| of(key).map(|v| humantime::parse_duration(&v).map_err(wrong));
    let mut builder = ClientBuilder::new()
        .user_agent(
            of(Key::UserAgent).unwrap_or(concat!("freshet/", env!("CARGO_PKG_VERSION")).into()),
        )
        .https_only(!is(Key::AllowHttp))
        .tls_danger_accept_invalid_certs(is(Key::AllowInvalidCertificates));
    if is(Key::NoSystemCertificates) {
        builder = builder.tls_certs_only([]);
    }
    if is(Key::Http1Only) {
        builder = builder.http1_only();
    }
    if is(Key::Http2Only) {
        builder = builder.http2_prior_knowledge();
    }
    let set: [(Key, SetDuration); 4] = [
        (Key::Timeout, ClientBuilder::timeout),
        (Key::ConnectTimeout, ClientBuilder::connect_timeout),
        (Key::ReadTimeout, ClientBuilder::read_timeout),
        (Key::PoolIdleTimeout, ClientBuilder::pool_idle_timeout),
    ];
    for (key, set) in set {
        if let Some(within) = lasts(key).transpose()? {
            builder = set(builder, within);
        }
    }
    if let Some(most) = of(Key::PoolMaxIdlePerHost) {
        builder = builder.pool_max_idle_per_host(usize::from_str(&most).map_err(wrong)?);
    }
    if let Some(proxy) = of(Key::ProxyUrl) {
        let mut proxy = Proxy::all(proxy).map_err(wrong)?;
        if let Some(excluded) = of(Key::ProxyExcludes) {
            proxy = proxy.no_proxy(NoProxy::from_string(&excluded));
        }
        if let Some(pem) = of(Key::ProxyCaCertificate) {
            let trusted = Certificate::from_pem(pem.as_bytes()).map_err(wrong)?;
            builder = builder.tls_certs_merge([trusted]);
        }
        builder = builder.proxy(proxy);
    }
    // A body that was packed has not the length that the store says.
    Ok(builder.no_gzip().no_brotli().no_zstd().no_deflate())
}

fn flag(value: &str) -> bool {
    let on = ["1", "true", "on", "yes", "y"];
    on.iter().any(|word| value.eq_ignore_ascii_case(word))
}

fn wrong(e: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    object_store::Error::Generic {
        store: "HTTP client",
        source: Box::new(e),
    }
}
