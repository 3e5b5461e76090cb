//! Answers that are kept for a while, each asked for once however many wait for it.
//!
//! Lives here: `Kept`, a bounded map of answers with their ends, and `Pace`, how many questions go out. Every
//! instant is a clock's that is passed in. Must never come in: an answer past its end, a failure that is kept, or a question that dies with the caller who was first.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use crate::cluster::secrets::Mono;
use crate::server::Refused;

/// What tells the time.
pub type Clock = Arc<dyn Fn() -> Mono + Send + Sync>;

/// An answer, and how long it may be kept.
pub type Answer<V> = Result<(V, Duration), Refused>;

/// Answers by what was asked.
pub struct Kept<K, V> {
    inner: Arc<Mutex<Inner<K, V>>>,
    most: usize,
    clock: Clock,
}

struct Inner<K, V> {
    kept: HashMap<K, (V, Mono)>,
    under_way: HashMap<K, Shared<BoxFuture<'static, Result<V, Refused>>>>,
}

impl<K, V> Kept<K, V>
where
    K: Eq + Hash + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Keeps at most so many, by this clock.
    pub fn new(most: usize, clock: Clock) -> Self {
        let inner = Inner {
            kept: HashMap::new(),
            under_way: HashMap::new(),
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            most,
            clock,
        }
    }

    /// The answer that is kept, else the one that `ask` brings; all who come meanwhile get the same. `ask` is told whether there
    /// was an answer before that has ended.
    ///
    /// # Errors
    /// What the question came to; the next who comes asks again.
    pub async fn get<F>(
        &self,
        key: K,
        ask: impl FnOnce(Option<V>) -> Result<F, Refused>,
    ) -> Result<V, Refused>
    where
        F: Future<Output = Answer<V>> + Send + 'static,
    {
        let waits = {
            let mut inner = lock(&self.inner);
            let before = match inner.kept.get(&key) {
                Some((value, ends)) if *ends > (self.clock)() => return Ok(value.clone()),
                Some((value, _)) => Some(value.clone()),
                None => None,
            };
            match inner.under_way.get(&key) {
                Some(waits) => waits.clone(),
                None => {
                    let waits = self.begin(key.clone(), ask(before)?);
                    inner.under_way.insert(key, waits.clone());
                    waits
                }
            }
        };
        waits.await
    }

    /// Asks in a task of its own: who asked first may hang up, and others wait for the answer.
    fn begin<F>(&self, key: K, asked: F) -> Shared<BoxFuture<'static, Result<V, Refused>>>
    where
        F: Future<Output = Answer<V>> + Send + 'static,
    {
        let (inner, most, clock) = (self.inner.clone(), self.most, self.clock.clone());
        let of = key.clone();
        let task = tokio::spawn(async move {
            let answer = asked.await;
            let mut inner = lock(&inner);
            inner.under_way.remove(&of);
            let (value, keep) = answer?;
            inner.keep(of, value.clone(), (clock)(), keep, most);
            Ok(value)
        });
        let inner = self.inner.clone();
        let answer = async move {
            match task.await {
                Ok(answer) => answer,
                // It panicked: nobody waits for it any more.
                Err(_) => {
                    lock(&inner).under_way.remove(&key);
                    Err(Refused::Unavailable)
                }
            }
        };
        answer.boxed().shared()
    }
}

impl<K: Eq + Hash + Clone, V> Inner<K, V> {
    fn keep(&mut self, key: K, value: V, now: Mono, keep: Duration, most: usize) {
        if self.kept.len() >= most && !self.kept.contains_key(&key) {
            self.kept.retain(|_, (_, ends)| *ends > now);
        }
        if self.kept.len() >= most && !self.kept.contains_key(&key) {
            let soonest = self.kept.iter().min_by_key(|(_, (_, ends))| *ends);
            if let Some(soonest) = soonest.map(|(key, _)| key.clone()) {
                self.kept.remove(&soonest);
            }
        }
        self.kept.insert(key, (value, now + keep));
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many questions may go out: so many a second, and so many at once after a while of none.
pub struct Pace {
    rate: f64,
    burst: f64,
    left: Mutex<(f64, Mono)>,
    clock: Clock,
}

impl Pace {
    /// `rate` a second, `burst` at once.
    pub fn new(rate: f64, burst: f64, clock: Clock) -> Self {
        Self {
            rate,
            burst,
            left: Mutex::new((burst, (clock)())),
            clock,
        }
    }

    /// One more, if it may go out now.
    ///
    /// # Errors
    /// `Busy` where it may not.
    pub fn take(&self) -> Result<(), Refused> {
        let mut left = lock(&self.left);
        let now = (self.clock)();
        let more = now.saturating_sub(left.1).as_secs_f64() * self.rate;
        *left = ((left.0 + more).min(self.burst), now);
        if left.0 < 1.0 {
            return Err(Refused::Busy);
        }
        left.0 -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;

    const WHILE: Duration = Duration::from_secs(30);

    /// A clock that stands still until it is moved.
    #[derive(Clone, Default)]
    struct Still(Arc<Mutex<Mono>>);

    impl Still {
        fn clock(&self) -> Clock {
            let own = self.clone();
            Arc::new(move || *lock(&own.0))
        }

        fn advance(&self, by: Duration) {
            *lock(&self.0) += by;
        }
    }

    /// A question that counts how often it goes out.
    fn ask(
        asked: &Arc<AtomicUsize>,
        answer: Answer<usize>,
    ) -> impl FnOnce(Option<usize>) -> Result<std::future::Ready<Answer<usize>>, Refused> + use<>
    {
        let asked = asked.clone();
        move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
            Ok(std::future::ready(answer))
        }
    }

    #[tokio::test]
    async fn an_answer_is_kept_to_its_end_and_no_longer() {
        let still = Still::default();
        let (kept, asked) = (Kept::<&str, usize>::new(8, still.clock()), Arc::default());
        assert_eq!(kept.get("a", ask(&asked, Ok((1, WHILE)))).await, Ok(1));
        still.advance(WHILE - Duration::from_millis(1));
        assert_eq!(kept.get("a", ask(&asked, Ok((2, WHILE)))).await, Ok(1));
        still.advance(Duration::from_millis(1));
        // Nobody to ask: never the answer of before.
        let away = kept.get("a", ask(&asked, Err(Refused::Unavailable))).await;
        assert_eq!(away, Err(Refused::Unavailable));
        assert_eq!(kept.get("a", ask(&asked, Ok((2, WHILE)))).await, Ok(2));
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn an_answer_that_may_not_be_kept_is_given_once() {
        let still = Still::default();
        let (kept, asked) = (Kept::<&str, usize>::new(8, still.clock()), Arc::default());
        for n in 1..4 {
            let answer = kept.get("a", ask(&asked, Ok((n, Duration::ZERO)))).await;
            assert_eq!(answer, Ok(n));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn all_who_wait_get_one_answer_also_where_the_first_hangs_up() {
        let still = Still::default();
        let kept = Arc::new(Kept::<&str, usize>::new(8, still.clock()));
        let (gate, asked) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let get = || {
            let (kept, gate, asked) = (kept.clone(), gate.clone(), asked.clone());
            tokio::spawn(async move {
                let ask = |_| {
                    asked.fetch_add(1, Ordering::SeqCst);
                    Ok(async move {
                        let _open = gate.acquire().await;
                        Ok((7, WHILE))
                    })
                };
                kept.get("a", ask).await
            })
        };
        let first = get();
        while asked.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let others: Vec<_> = (0..8).map(|_| get()).collect();
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        gate.add_permits(1);
        for other in others {
            assert_eq!(other.await.unwrap(), Ok(7));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert!(lock(&kept.inner).under_way.is_empty());
    }

    #[tokio::test]
    async fn a_question_that_panics_is_nobodys_answer_and_is_asked_again() {
        let still = Still::default();
        let (kept, asked) = (Kept::<&str, usize>::new(8, still.clock()), Arc::default());
        let panics = |_| Ok(async { panic!("on purpose") });
        assert_eq!(kept.get("a", panics).await, Err(Refused::Unavailable));
        assert_eq!(kept.get("a", ask(&asked, Ok((1, WHILE)))).await, Ok(1));
    }

    #[tokio::test]
    async fn however_many_ask_so_many_are_kept_and_those_that_end_soonest_go() {
        let still = Still::default();
        let (kept, asked) = (Kept::<usize, usize>::new(4, still.clock()), Arc::default());
        for n in 0..100 {
            let keep = Duration::from_secs(1000 - n as u64);
            kept.get(n, ask(&asked, Ok((n, keep)))).await.unwrap();
            assert!(lock(&kept.inner).kept.len() <= 4);
        }
        // The first ones end last.
        for n in [0, 1, 2] {
            assert_eq!(kept.get(n, ask(&asked, Err(Refused::Busy))).await, Ok(n));
        }
        still.advance(Duration::from_secs(2000));
        kept.get(200, ask(&asked, Ok((200, WHILE)))).await.unwrap();
        assert_eq!(lock(&kept.inner).kept.len(), 1);
    }

    #[tokio::test]
    async fn questions_go_out_at_a_pace() {
        let still = Still::default();
        let pace = Pace::new(10.0, 3.0, still.clock());
        for _ in 0..3 {
            assert_eq!(pace.take(), Ok(()));
        }
        assert_eq!(pace.take(), Err(Refused::Busy));
        still.advance(Duration::from_millis(100));
        assert_eq!(pace.take(), Ok(()));
        assert_eq!(pace.take(), Err(Refused::Busy));
        still.advance(Duration::from_secs(60));
        let at_once = std::iter::from_fn(|| pace.take().ok()).count();
        assert_eq!(at_once, 3);
    }
}
