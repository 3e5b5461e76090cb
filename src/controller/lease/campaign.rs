//! The loop that runs an `Elector` against Leases, and what the rest of the process sees of it.
//!
//! Lives here: `Campaign` (its task), `Leadership` (whether this process leads, right now), and the one way to end: work
//! first, then the Lease. May use: tokio's clock, which is monotonic and runs on while a process is stopped. Must never
//! come in: a decision of the election, or a way to lead on without a write that the API server accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::{Elector, Mono, Record, Step};

/// The longest that one turn may take, a read and a write.
const TURN: Duration = Duration::from_secs(5);
/// How often releasing is tried again where a late write of our own came between.
const RELEASES: usize = 3;

/// Why a Lease could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Somebody wrote it since it was read, or created it first.
    #[error("somebody else wrote the Lease first")]
    Conflict,
    /// The service account may not.
    #[error(
        "the service account may not get, create and update leases in its own namespace; the chart's Role grants it"
    )]
    Forbidden,
    /// The API server did not answer, or not with an answer.
    #[error("the API server does not answer")]
    Unavailable,
}

impl Refused {
    /// The kind's name.
    pub fn reason(self) -> &'static str {
        match self {
            Refused::Conflict => "Conflict",
            Refused::Forbidden => "Forbidden",
            Refused::Unavailable => "Unavailable",
        }
    }
}

/// One Lease, as an API server keeps it.
pub trait Leases: Send + Sync + 'static {
    /// What a write has to name, so that it lands only on what was read.
    type Version: Clone + Send + Sync;

    /// What it says now, if it exists.
    fn read(&self)
    -> impl Future<Output = Result<Option<(Self::Version, Record)>, Refused>> + Send;

    /// Writes it over the version that was read, or creates it where there was none.
    fn write(
        &self,
        over: Option<Self::Version>,
        record: &Record,
    ) -> impl Future<Output = Result<(), Refused>> + Send;
}

/// Whether this process leads. Cheap to ask, and right at the moment of asking: also in a process that was stopped for
/// an hour and has not yet been told of anything.
#[derive(Debug, Clone)]
pub struct Leadership {
    told: watch::Receiver<bool>,
    /// Nanoseconds after `origin` until which it leads.
    until: Arc<AtomicU64>,
    origin: Instant,
}

impl Leadership {
    /// Whether it leads now. Ask right before a write.
    pub fn holds(&self) -> bool {
        nanos(self.origin.elapsed()) < self.until.load(Ordering::Acquire)
    }

    /// Tells of every change. A process that was stopped hears of it late: ask [`Self::holds`] as well.
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.told.clone()
    }

    /// Ends once it is so. A campaign that ended never leads again.
    pub async fn changed_to(&self, leads: bool) {
        let mut told = self.told.clone();
        if told.wait_for(|now| *now == leads).await.is_err() && leads {
            std::future::pending::<()>().await;
        }
    }
}

/// A running participation in an election.
#[derive(Debug)]
pub struct Campaign {
    leadership: Leadership,
    task: JoinHandle<()>,
    end: Option<oneshot::Sender<()>>,
}

impl Campaign {
    /// Begins to look, and to lead as soon as the election says so.
    pub fn start(leases: impl Leases, elector: Elector) -> Self {
        let (tell, told) = watch::channel(false);
        let (end, ended) = oneshot::channel();
        let leadership = Leadership {
            told,
            until: Arc::default(),
            origin: Instant::now(),
        };
        let runner = Runner {
            leases,
            elector,
            tell,
            until: leadership.until.clone(),
            origin: leadership.origin,
            failing: false,
        };
        Self {
            leadership,
            task: tokio::spawn(runner.run(ended)),
            end: Some(end),
        }
    }

    /// What the rest of the process asks.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Ends when the campaign's task does, which it never does by itself: a process without it should end too.
    pub async fn ended(&mut self) {
        // What it ended with is in the log already.
        let _ = (&mut self.task).await;
    }

    /// Stops leading and lets the next one lead at once. Call it after the work under way has ended: until here the
    /// Lease is renewed.
    pub async fn release(mut self) {
        if let Some(end) = self.end.take() {
            // A task that is gone has nothing to release.
            let _ = end.send(());
        }
        self.ended().await;
    }
}

struct Runner<L: Leases> {
    leases: L,
    elector: Elector,
    tell: watch::Sender<bool>,
    until: Arc<AtomicU64>,
    origin: Instant,
    failing: bool,
}

impl<L: Leases> Runner<L> {
    async fn run(mut self, mut end: oneshot::Receiver<()>) {
        loop {
            let limit = self.limit();
            let turn = timeout(limit, self.turn());
            let done = tokio::select! {
                biased;
                _ = &mut end => break,
                done = turn => done.unwrap_or(Err(Refused::Unavailable)),
            };
            self.heard(done);
            self.publish();
            let pause = self.elector.pause(self.now(), rand::random());
            tokio::select! {
                biased;
                _ = &mut end => break,
                () = sleep(pause) => self.publish(),
            }
        }
        self.release().await;
    }

    /// One look and, where the election says so, one write.
    async fn turn(&mut self) -> Result<(), Refused> {
        let found = self.leases.read().await?;
        let (version, record) = found.unzip();
        let step = self.elector.look(self.now(), wall(), record.as_ref());
        // What the look found out holds at once: a Lease in other hands ends ours.
        self.publish();
        let begun = self.now();
        let record = match step {
            Step::Wait => return Ok(()),
            Step::Create(record) | Step::Replace(record) => record,
        };
        self.leases.write(version, &record).await?;
        self.elector.wrote(begun, self.now(), record);
        Ok(())
    }

    /// No turn of a leader lasts longer than its term.
    fn limit(&self) -> Duration {
        let now = self.now();
        match self.elector.deadline() {
            Some(deadline) if now < deadline => TURN.min(deadline - now),
            _ => TURN,
        }
    }

    async fn release(&mut self) {
        self.until.store(0, Ordering::Release);
        self.tell_if_changed(false);
        let give = async {
            for _ in 0..RELEASES {
                let Some((version, found)) = self.leases.read().await? else {
                    return Ok(());
                };
                let Some(record) = self.elector.release(wall(), &found) else {
                    return Ok(());
                };
                match self.leases.write(Some(version), &record).await {
                    Err(Refused::Conflict) => {}
                    done => return done,
                }
            }
            Err(Refused::Conflict)
        };
        match timeout(TURN, give)
            .await
            .unwrap_or(Err(Refused::Unavailable))
        {
            Ok(()) => tracing::info!("the Lease is free"),
            Err(e) => tracing::warn!(
                reason = e.reason(),
                "the Lease was not released, others wait for its end: {e}"
            ),
        }
    }

    fn publish(&self) {
        let until = self.elector.deadline().map_or(0, nanos);
        self.until.store(until, Ordering::Release);
        self.tell_if_changed(self.elector.leads(self.now()));
    }

    fn tell_if_changed(&self, leads: bool) {
        let changed = self.tell.send_if_modified(|told| {
            let changed = *told != leads;
            *told = leads;
            changed
        });
        if changed {
            let me = self.elector.me();
            match leads {
                true => tracing::info!(me, "leads"),
                false => tracing::info!(me, "no longer leads"),
            }
        }
    }

    /// Says once that it does not go well, and once that it does again. Conflicts are the election's daily work.
    fn heard(&mut self, done: Result<(), Refused>) {
        match done {
            Err(e) if e != Refused::Conflict => {
                if !self.failing {
                    tracing::warn!(reason = e.reason(), "the election waits: {e}");
                }
                self.failing = true;
            }
            _ => self.failing = false,
        }
    }

    fn now(&self) -> Mono {
        self.origin.elapsed()
    }
}

/// The wall clock, in the microseconds that a Lease keeps.
fn wall() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
