//! Lets in whom the cluster says may read, and keeps what it said for seconds.
//!
//! Lives here: `Reviewer`, the server's authoriser: the token's shape, then who it is, then what they may, each kept and
//! asked for once. May use: `Reviews`. Must never come in: a request that is let in because nobody answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::http::HeaderMap;
use jiff::Timestamp;

use super::kept::{Clock, Kept, Pace};
use super::reviews::{Away, Reviews};
use super::token::Token;
use crate::server::{Authoriser, Caller, Identity, Refused, Sight};

/// How long answers are kept: so long may somebody read on whose token or right was taken away, and so long waits who was
/// given one.
const KNOWN: Duration = Duration::from_secs(30);
const UNKNOWN: Duration = Duration::from_secs(10);
const ALLOWED: Duration = Duration::from_secs(30);
const DENIED: Duration = Duration::from_secs(10);
/// The most answers of each kind that are kept.
const MOST: usize = 16 << 10;

/// Who asks, kept.
pub struct Reviewer {
    reviews: Arc<dyn Reviews>,
    audience: Arc<str>,
    tokens: Kept<[u8; 32], Option<Arc<Identity>>>,
    rights: Kept<Right, bool>,
    /// Questions about tokens that were never taken here: whoever sends many keeps out no one who was.
    strangers: Pace,
    others: Pace,
}

/// Somebody, and something that they may or may not see.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Right {
    who: Arc<Identity>,
    namespace: Option<String>,
    /// The experiment; `None` for the list.
    name: Option<String>,
}

impl Reviewer {
    /// Takes tokens that are for `audience`.
    pub fn new(reviews: Arc<dyn Reviews>, audience: &str) -> Self {
        let origin = Instant::now();
        Self::by(Arc::new(move || origin.elapsed()), reviews, audience)
    }

    fn by(clock: Clock, reviews: Arc<dyn Reviews>, audience: &str) -> Self {
        Self {
            reviews,
            audience: audience.into(),
            tokens: Kept::new(MOST, clock.clone()),
            rights: Kept::new(MOST, clock.clone()),
            strangers: Pace::new(20.0, 40.0, clock.clone()),
            others: Pace::new(100.0, 200.0, clock),
        }
    }
}

#[async_trait]
impl Authoriser for Reviewer {
    async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Refused> {
        let token = Token::of(headers)?;
        let (reviews, audience) = (self.reviews.clone(), self.audience.clone());
        let ask = |before: Option<Option<Arc<Identity>>>| {
            match before.flatten() {
                Some(_) => self.others.take()?,
                None => self.strangers.take()?,
            }
            let token = token.clone();
            Ok::<_, Refused>(async move {
                let who = reviews.who(&token, &audience).await;
                let who = who.map_err(|Away| Refused::Unavailable)?;
                let keep = match &who {
                    Some(_) => KNOWN.min(left(&token, Timestamp::now())),
                    None => UNKNOWN,
                };
                Ok::<_, Refused>((who.map(Arc::new), keep))
            })
        };
        match self.tokens.get(token.digest(), ask).await? {
            Some(who) => Ok(Caller::Known(who)),
            None => Err(Refused::Unknown),
        }
    }

    async fn may(&self, caller: &Caller, what: Sight<'_>) -> Result<bool, Refused> {
        let Caller::Known(who) = caller else {
            return Ok(false);
        };
        let (namespace, name) = match what {
            Sight::List(namespace) => (namespace, None),
            Sight::Records { namespace, name } => (Some(namespace), Some(name)),
        };
        // No object has such a name, and it is not kept.
        if namespace.is_some_and(|n| n.len() > 63) || name.is_some_and(|n| n.len() > 253) {
            return Ok(false);
        }
        let right = Right {
            who: who.clone(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
        };
        let (reviews, of) = (self.reviews.clone(), right.clone());
        let ask = |_| {
            self.others.take()?;
            Ok::<_, Refused>(async move {
                let what = match (&of.namespace, &of.name) {
                    (Some(namespace), Some(name)) => Sight::Records { namespace, name },
                    (namespace, _) => Sight::List(namespace.as_deref()),
                };
                let may = reviews.may(&of.who, what).await;
                let may = may.map_err(|Away| Refused::Unavailable)?;
                Ok::<_, Refused>((may, if may { ALLOWED } else { DENIED }))
            })
        };
        self.rights.get(right, ask).await
    }
}

/// How long a token has, by its own word. One that says nothing of it is asked about as often as any.
fn left(token: &Token, now: Timestamp) -> Duration {
    let Some(ends) = token.ends else {
        return Duration::MAX;
    };
    let now = u64::try_from(now.as_second()).unwrap_or_default();
    Duration::from_secs(ends.saturating_sub(now))
}

#[cfg(test)]
mod tests;
