//! Says which right is missing where the API server refuses a request.
//!
//! Lives here: `Refusals`, a layer of the client's stack, and the reading of a request as RBAC reads it. May use: tower's
//! traits. Must never come in: a retry, or a body.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::http::{Method, Request, Response, StatusCode, Uri};
use futures::future::{BoxFuture, FutureExt};
use tower::{Layer, Service};

/// What RBAC asks a role for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: &'static str,
    /// As `kubectl auth can-i` takes it, with the subresource after a slash.
    resource: String,
    namespace: Option<String>,
}

impl Right {
    /// The right that a request needs; `None` for what is no resource.
    fn of(method: &Method, uri: &Uri) -> Option<Self> {
        let mut parts = uri.path().trim_matches('/').split('/');
        let group = match parts.next()? {
            "api" => None,
            "apis" => Some(parts.next()?),
            _ => return None,
        };
        parts.next()?; // The version.
        let rest: Vec<&str> = parts.collect();
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (kind, more) = rest.split_first()?;
        let named = !more.is_empty();
        let watches = uri.query().is_some_and(|q| q.contains("watch=true"));
        let verb = match *method {
            Method::GET if named => "get",
            Method::GET if watches => "watch",
            Method::GET => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => return None,
        };
        let mut resource = (*kind).to_owned();
        if let Some(group) = group {
            resource = format!("{resource}.{group}");
        }
        if let Some(sub) = more.get(1) {
            resource = format!("{resource}/{sub}");
        }
        Some(Self {
            verb,
            resource,
            namespace: namespace.map(str::to_owned),
        })
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match &self.namespace {
            Some(namespace) => write!(f, " in the namespace {namespace}"),
            None => f.write_str(" in all namespaces"),
        }
    }
}

/// Tells of each missing right once, and once that it is there.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    missing: Arc<Mutex<BTreeSet<Right>>>,
}

impl Refusals {
    fn answered(&self, right: Right, status: StatusCode) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if status == StatusCode::FORBIDDEN {
            if !missing.contains(&right) {
                tracing::warn!(
                    "the operator's service account may not {right}; grant it, as the chart's roles do. It is tried again until it may"
                );
                missing.insert(right);
            }
        } else if missing.remove(&right) {
            tracing::info!("the operator's service account may {right} again");
        }
    }
}

impl<S> Layer<S> for Refusals {
    type Service = Told<S>;

    fn layer(&self, inner: S) -> Told<S> {
        Told {
            inner,
            refusals: self.clone(),
        }
    }
}

/// A client whose refused requests are told.
#[derive(Clone)]
pub struct Told<S> {
    inner: S,
    refusals: Refusals,
}

impl<S, B, R> Service<Request<B>> for Told<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let right = Right::of(request.method(), request.uri());
        let refusals = self.refusals.clone();
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            if let (Some(right), Ok(answer)) = (right, &answer) {
                refusals.answered(right, answer.status());
            }
            answer
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_the_right_that_it_needs() {
        let exp = "/apis/freshet.dev/v1alpha1";
        for (method, uri, right) in [
            (
                Method::GET,
                format!("{exp}/experiments?&limit=500"),
                "list experiments.freshet.dev in all namespaces",
            ),
            (
                Method::GET,
                format!("{exp}/namespaces/maze/experiments?&watch=true&timeoutSeconds=290"),
                "watch experiments.freshet.dev in the namespace maze",
            ),
            (
                Method::PATCH,
                format!("{exp}/namespaces/maze/experiments/plums/status?fieldManager=x"),
                "patch experiments.freshet.dev/status in the namespace maze",
            ),
            (
                Method::GET,
                "/api/v1/namespaces/maze/secrets/keys".into(),
                "get secrets in the namespace maze",
            ),
            (
                Method::POST,
                "/apis/coordination.k8s.io/v1/namespaces/maze/leases?".into(),
                "create leases.coordination.k8s.io in the namespace maze",
            ),
        ] {
            let uri: Uri = uri.parse().unwrap();
            assert_eq!(Right::of(&method, &uri).unwrap().to_string(), right);
        }
        let schema = Uri::from_static("/openapi/v3/apis/freshet.dev/v1alpha1");
        assert_eq!(Right::of(&Method::GET, &schema), None);
    }
}
