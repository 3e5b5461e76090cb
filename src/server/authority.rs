//! Who asks, and what they may see.
//!
//! Lives here: `Authoriser`, the trait by which the embedding role lets callers in, `Open` for one that lets in everybody,
//! and the shares of callers. May use: headers. Must never come in: a token in a message or in `Debug`, a look-up of what
//! is asked for before the caller may see it, or an answer where it could not be found out.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use axum::http::{HeaderMap, StatusCode};

use super::problem::Problem;

/// Lets callers in.
#[async_trait]
pub trait Authoriser: Send + Sync + 'static {
    /// Whether callers have names. Where they have none, a server on a loopback address goes by `Host` and `Origin`.
    fn names_callers(&self) -> bool {
        true
    }

    /// Who asks, by the headers of the request.
    ///
    /// # Errors
    /// Where nobody is named, or it cannot be found out who is.
    async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Refused>;

    /// Whether a caller may see something, whether or not it is there.
    ///
    /// # Errors
    /// `Unavailable` and `Busy`, where that cannot be found out.
    async fn may(&self, caller: &Caller, what: Sight<'_>) -> Result<bool, Refused>;
}

/// What there is to be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight<'a> {
    /// The list of a namespace's experiments, or of all namespaces'.
    List(Option<&'a str>),
    /// An experiment and its records.
    Records {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Anybody, on a server that lets in everybody.
    Anybody,
    /// Somebody whose name was verified.
    Known(Arc<Identity>),
}

/// A verified identity, as Kubernetes describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The name, unique at a moment.
    pub user: String,
    /// The name's own id, unique over time; empty where there is none.
    pub uid: String,
    /// The groups that it is in.
    pub groups: BTreeSet<String>,
    /// More of it, by key.
    pub extra: std::collections::BTreeMap<String, Vec<String>>,
}

/// Why a request goes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It brings no token.
    NoToken,
    /// What it brings is no token: what is wrong with it.
    Malformed(&'static str),
    /// Its token is not one that is taken here.
    Unknown,
    /// The caller may not.
    Forbidden,
    /// It cannot be found out: nobody to ask answers.
    Unavailable,
    /// It cannot be found out now: too many are asked after.
    Busy,
    /// The caller has as many requests under way as it may.
    Share(usize),
    /// More namespaces would have to be asked after than one request may.
    Namespaces(usize),
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let unauthorised =
            |kind, title, detail: &str| Self::new(StatusCode::UNAUTHORIZED, kind, title, detail);
        let later =
            |status, kind, title, detail: String| Self::new(status, kind, title, detail).retry();
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        let problem = match refused {
            Refused::NoToken => unauthorised(
                "token-missing",
                "No token",
                "send a token for this server's audience as `Authorization: Bearer`, as `kubectl create token --audience` makes it; the API server's own proxy (…/proxy/…) takes the header away: use `kubectl port-forward`, or the Service from inside the cluster",
            ),
            Refused::Malformed(what) => {
                unauthorised("token-malformed", "The token is malformed", what)
            }
            Refused::Unknown => unauthorised(
                "token-refused",
                "The token is not taken",
                "the cluster does not take the token for this server's audience: it is another cluster's or another audience's, has expired, or its owner is gone; make a new one with `kubectl create token --audience`",
            ),
            Refused::Forbidden => Self::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "Not allowed",
                "there is no such experiment, or you may not read it: that takes get (for lists, list) on experiments/data of the group freshet.dev in its namespace, as the chart's role data-reader grants",
            ),
            Refused::Unavailable => later(
                unavailable,
                "authorisation-unavailable",
                "Nobody can say who you are",
                "the cluster's API server, which knows who may read, does not answer; try again".into(),
            ),
            Refused::Busy => later(
                unavailable,
                "authorisation-busy",
                "Too many callers at once",
                "more callers are new here than the cluster's API server is asked after at once; try again in a moment".into(),
            ),
            Refused::Share(most) => later(
                StatusCode::TOO_MANY_REQUESTS,
                "too-many-requests",
                "Too many requests of one caller",
                format!("{most} requests of yours are under way, which is as many as one caller may have; wait for one to end"),
            ),
            Refused::Namespaces(most) => Self::new(
                unavailable,
                "too-many-namespaces",
                "Too many namespaces",
                format!("there are experiments in more than {most} namespaces, and you may not list all; ask for one: /api/v1/namespaces/{{namespace}}/experiments"),
            ),
        };
        problem.with_error()
    }
}

/// Lets in everybody who reaches the address.
#[derive(Debug, Clone, Copy, Default)]
pub struct Open;

#[async_trait]
impl Authoriser for Open {
    fn names_callers(&self) -> bool {
        false
    }

    async fn caller(&self, _: &HeaderMap) -> Result<Caller, Refused> {
        Ok(Caller::Anybody)
    }

    async fn may(&self, _: &Caller, _: Sight<'_>) -> Result<bool, Refused> {
        Ok(true)
    }
}

/// How many requests of each caller are under way.
#[derive(Debug)]
pub(super) struct Shares {
    most: usize,
    /// Callers with at least one, by name: more tokens are no more callers.
    held: Arc<Mutex<HashMap<String, usize>>>,
}

/// One request of a caller's share, until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    held: Arc<Mutex<HashMap<String, usize>>>,
    of: String,
}

impl Shares {
    pub fn new(most: usize) -> Self {
        let held = Arc::default();
        Self { most, held }
    }

    /// A request begins. Whoever has no name has no share, and none is asked of them.
    pub fn take(&self, caller: &Caller) -> Result<Option<Share>, Refused> {
        let Caller::Known(who) = caller else {
            return Ok(None);
        };
        let of = who.user.clone();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(of.clone()).or_default();
        if *count >= self.most {
            // Where nothing is allowed, nothing is remembered either.
            held.retain(|_, count| *count > 0);
            return Err(Refused::Share(self.most));
        }
        *count += 1;
        Ok(Some(Share {
            held: self.held.clone(),
            of,
        }))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(user: &str) -> Caller {
        Caller::Known(Arc::new(Identity {
            user: user.into(),
            ..Default::default()
        }))
    }

    #[test]
    fn a_caller_has_so_many_requests_at_once_and_takes_none_from_another() {
        let shares = Shares::new(2);
        let first = shares.take(&known("alder")).unwrap();
        let _second = shares.take(&known("alder")).unwrap();
        assert_eq!(shares.take(&known("alder")).unwrap_err(), Refused::Share(2));
        let other = shares.take(&known("birch")).unwrap();
        assert!(other.is_some());
        drop(first);
        let third = shares.take(&known("alder")).unwrap();
        drop((third, other, _second));
        assert!(shares.held.lock().unwrap().is_empty());
        assert!(shares.take(&Caller::Anybody).unwrap().is_none());
    }
}
