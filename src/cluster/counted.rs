//! Counts what is asked of the API server.
//!
//! Lives here: `Counting`, a layer of the client's stack. May use: telemetry, tower's traits. Must never come in: a retry,
//! or anything of a request but its method and its answer's status.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::http::{Method, Request, Response};
use futures::future::{BoxFuture, FutureExt};
use tower::{Layer, Service};

use crate::telemetry::ControllerMetrics;

/// Counts the requests to one API server.
#[derive(Clone)]
pub struct Counting {
    metrics: Arc<ControllerMetrics>,
    host: Arc<str>,
}

impl Counting {
    /// `host` is the label that the requests are counted under.
    pub fn new(metrics: Arc<ControllerMetrics>, host: &str) -> Self {
        Self {
            metrics,
            host: host.into(),
        }
    }
}

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted {
            inner,
            counting: self.clone(),
        }
    }
}

/// A client whose requests are counted.
#[derive(Clone)]
pub struct Counted<S> {
    inner: S,
    counting: Counting,
}

impl<S, B, R> Service<Request<B>> for Counted<S>
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
        let sent = Sent {
            counting: self.counting.clone(),
            method: request.method().clone(),
            at: Instant::now(),
            status: None,
        };
        let answer = self.inner.call(request);
        async move {
            // All of it, so that it is dropped with this future.
            let mut sent = sent;
            let answer = answer.await;
            sent.status = answer.as_ref().ok().map(|a| a.status().as_u16());
            answer
        }
        .boxed()
    }
}

/// A request under way. One that is given up is counted as one without an answer.
struct Sent {
    counting: Counting,
    method: Method,
    at: Instant,
    status: Option<u16>,
}

impl Drop for Sent {
    fn drop(&mut self) {
        let (to, took) = (&self.counting, self.at.elapsed());
        to.metrics
            .request(&to.host, self.method.as_str(), self.status, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;
    use std::convert::Infallible;
    use tower::service_fn;

    #[tokio::test]
    async fn an_answer_is_counted_by_its_status_and_a_request_that_is_given_up_as_an_error() {
        let metrics = Metrics::new();
        let counting = Counting::new(metrics.controller().clone(), "apiserver");
        let mut answers = counting.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::builder().status(409).body(()).unwrap())
        }));
        answers
            .call(Request::patch("/x").body(()).unwrap())
            .await
            .unwrap();
        let mut hangs = counting.layer(service_fn(|_: Request<()>| {
            futures::future::pending::<Result<Response<()>, Infallible>>()
        }));
        drop(hangs.call(Request::get("/x").body(()).unwrap()));
        let text = metrics.render();
        for (code, method) in [("409", "PATCH"), ("<error>", "GET")] {
            let want = format!(
                "rest_client_requests_total{{code=\"{code}\",host=\"apiserver\",method=\"{method}\"}} 1"
            );
            assert!(text.contains(&want), "{want} in {text}");
        }
    }
}
