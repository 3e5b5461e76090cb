//! A client that goes on writing to a table while other things happen.
//!
//! Lives here: `Writing`, which puts, deletes and flushes in a task of its own until it is told to end. May use: the
//! fixtures. Never: Freshet.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::interval;

use crate::fixtures::Fixture;

/// Between the flushes of one writer; much shorter than a merge takes.
const PACE: Duration = Duration::from_millis(150);
/// Keys that are written again and again.
const KEYS: u64 = 400;

/// One round of a writer: rows that were there and rows that were not, deletions of both kinds, and a flush.
pub async fn round(table: &mut Fixture, round: u64) {
    let value = i64::try_from(round).unwrap();
    let rows: Vec<_> = (0..12)
        .map(|n| ((round * 37 + n * 29) % KEYS, 1000 * value + n as i64))
        .collect();
    table.put(&rows).await;
    table
        .delete(&[(round * 53) % KEYS, KEYS + round % 7, rows[5].0])
        .await;
    table.flush().await;
}

/// A writer at work.
pub struct Writing {
    stop: watch::Sender<bool>,
    rounds: watch::Receiver<u64>,
    task: JoinHandle<Fixture>,
}

impl Writing {
    /// Starts, with rounds that begin at `first`.
    pub fn start(mut table: Fixture, first: u64) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (told, rounds) = watch::channel(0);
        let task = tokio::spawn(async move {
            let mut pace = interval(PACE);
            while !*stopped.borrow() {
                pace.tick().await;
                let done = *told.borrow();
                round(&mut table, first + done).await;
                told.send_replace(done + 1);
            }
            table
        });
        Self { stop, rounds, task }
    }

    /// Waits until it has flushed so many times more.
    pub async fn flushes(&mut self, more: u64) {
        let wanted = *self.rounds.borrow() + more;
        self.rounds.wait_for(|done| *done >= wanted).await.unwrap();
    }

    /// Ends; the table as it left it, all of it flushed.
    pub async fn end(self) -> Fixture {
        self.stop.send_replace(true);
        self.task.await.unwrap()
    }
}
