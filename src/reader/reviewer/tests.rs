//! Callers, with an API server in memory that counts what it is asked, and goes away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use axum::http::header;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const AUDIENCE: &str = "maze.example";

/// Who is there, and who may see what.
#[derive(Default)]
struct Known {
    away: AtomicBool,
    users: Mutex<BTreeMap<String, Identity>>,
    rights: Mutex<BTreeSet<(String, String)>>,
    asked: Mutex<Vec<String>>,
    now: Mutex<Duration>,
}

#[async_trait]
impl Reviews for Known {
    async fn who(&self, token: &Token, audience: &str) -> Result<Option<Identity>, Away> {
        assert_eq!(audience, AUDIENCE);
        self.asked.lock().unwrap().push("who".into());
        match self.away.load(Ordering::SeqCst) {
            true => Err(Away),
            false => Ok(self.users.lock().unwrap().get(token.text()).cloned()),
        }
    }

    async fn may(&self, who: &Identity, what: Sight<'_>) -> Result<bool, Away> {
        self.asked.lock().unwrap().push(format!("{what:?}"));
        if self.away.load(Ordering::SeqCst) {
            return Err(Away);
        }
        let namespace = match what {
            Sight::List(namespace) => namespace.unwrap_or("*"),
            Sight::Records { namespace, .. } => namespace,
        };
        let right = (who.user.clone(), namespace.to_owned());
        Ok(self.rights.lock().unwrap().contains(&right))
    }
}

impl Known {
    /// Time goes on.
    fn advance(&self, by: Duration) {
        *self.now.lock().unwrap() += by;
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

/// A token that ends in so many seconds.
fn token(name: &str, left: i64) -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let ends = Timestamp::now().as_second() + left;
    let claims = format!("{{\"sub\":\"{name}\",\"exp\":{ends}}}");
    format!("{}.{}.{}", part("{}"), part(&claims), part("s"))
}

fn with(token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = format!("Bearer {token}").parse().unwrap();
    headers.insert(header::AUTHORIZATION, value);
    headers
}

fn world(name: &str, left: i64) -> (Arc<Known>, Reviewer, String) {
    let (known, token) = (Arc::new(Known::default()), token(name, left));
    let identity = Identity {
        user: name.into(),
        ..Default::default()
    };
    known.users.lock().unwrap().insert(token.clone(), identity);
    let own = known.clone();
    let clock = Arc::new(move || *own.now.lock().unwrap());
    let reviewer = Reviewer::by(clock, known.clone(), AUDIENCE);
    (known, reviewer, token)
}

const MAZE: Sight<'_> = Sight::Records {
    namespace: "alder",
    name: "maze",
};

#[tokio::test]
async fn a_caller_is_asked_about_once_and_again_when_the_answer_has_ended() {
    let (known, reviewer, token) = world("ann", 3600);
    known
        .rights
        .lock()
        .unwrap()
        .insert(("ann".into(), "alder".into()));
    for _ in 0..5 {
        let caller = reviewer.caller(&with(&token)).await.unwrap();
        assert_eq!(reviewer.may(&caller, MAZE).await, Ok(true));
    }
    assert_eq!(known.asked(), 2);
    known.users.lock().unwrap().clear();
    known.rights.lock().unwrap().clear();
    let caller = reviewer.caller(&with(&token)).await.unwrap();
    known.advance(KNOWN);
    // What was taken away is gone within the time that answers are kept.
    let refused = reviewer.caller(&with(&token)).await;
    assert_eq!(refused, Err(Refused::Unknown));
    assert_eq!(reviewer.may(&caller, MAZE).await, Ok(false));
    assert_eq!(known.asked(), 4);
}

#[tokio::test]
async fn a_right_that_is_given_counts_soon() {
    let (known, reviewer, token) = world("ann", 3600);
    let caller = reviewer.caller(&with(&token)).await.unwrap();
    assert_eq!(reviewer.may(&caller, MAZE).await, Ok(false));
    known
        .rights
        .lock()
        .unwrap()
        .insert(("ann".into(), "alder".into()));
    assert_eq!(reviewer.may(&caller, MAZE).await, Ok(false));
    known.advance(DENIED);
    assert_eq!(reviewer.may(&caller, MAZE).await, Ok(true));
    // Neither for another experiment's namespace, nor for the list of all.
    let other = Sight::Records {
        namespace: "birch",
        name: "maze",
    };
    assert_eq!(reviewer.may(&caller, other).await, Ok(false));
    assert_eq!(reviewer.may(&caller, Sight::List(None)).await, Ok(false));
    assert_eq!(reviewer.may(&Caller::Anybody, MAZE).await, Ok(false));
}

#[tokio::test]
async fn nobody_is_let_in_because_nobody_answers() {
    let (known, reviewer, token) = world("ann", 3600);
    known
        .rights
        .lock()
        .unwrap()
        .insert(("ann".into(), "alder".into()));
    let caller = reviewer.caller(&with(&token)).await.unwrap();
    assert_eq!(reviewer.may(&caller, MAZE).await, Ok(true));
    known.away.store(true, Ordering::SeqCst);
    // What was said just now still counts.
    assert!(reviewer.caller(&with(&token)).await.is_ok());
    known.advance(KNOWN.max(ALLOWED));
    let away = Refused::Unavailable;
    assert_eq!(reviewer.caller(&with(&token)).await, Err(away));
    assert_eq!(reviewer.may(&caller, MAZE).await, Err(away));
    known.away.store(false, Ordering::SeqCst);
    assert_eq!(reviewer.caller(&with(&token)).await, Ok(caller));
}

#[tokio::test]
async fn no_answer_outlives_the_token() {
    for (left, kept) in [(3600, true), (0, false), (-5, false)] {
        let (known, reviewer, token) = world("ann", left);
        for _ in 0..2 {
            reviewer.caller(&with(&token)).await.unwrap();
        }
        assert_eq!(known.asked() == 1, kept, "{left}");
    }
}

#[tokio::test]
async fn whoever_sends_many_tokens_keeps_out_no_one_who_was_let_in() {
    let (known, reviewer, own) = world("ann", 3600);
    known
        .rights
        .lock()
        .unwrap()
        .insert(("ann".into(), "alder".into()));
    reviewer.caller(&with(&own)).await.unwrap();
    known.advance(KNOWN);
    let mut busy = 0;
    for n in 0..1000 {
        match reviewer
            .caller(&with(&token(&format!("nobody-{n}"), 60)))
            .await
        {
            Err(Refused::Busy) => busy += 1,
            said => assert_eq!(said, Err(Refused::Unknown)),
        }
    }
    assert!(busy > 900, "{busy}");
    let caller = reviewer.caller(&with(&own)).await.unwrap();
    assert_eq!(reviewer.may(&caller, MAZE).await, Ok(true));
}

#[tokio::test]
async fn garbage_is_asked_about_by_nobody() {
    let (known, reviewer, _) = world("ann", 3600);
    assert!(reviewer.caller(&with("garbage")).await.is_err());
    assert!(reviewer.caller(&HeaderMap::new()).await.is_err());
    assert_eq!(known.asked(), 0);
}
