//! What a work holds while it runs.
//!
//! Lives here: `Ticket`. Bytes, slots and the table's commit permit are held by being listed as running, and a ticket ends
//! that whatever becomes of the work: an end, an error, a panic, a cancel. May use: the dispatcher's channel. Must never
//! come in: an await in its end.

use tokio::sync::mpsc::UnboundedSender;

use super::dispatch::Event;
use super::work::Report;
use crate::plan::{End, Reason, TableId, Work};

/// Returns what a work holds when it is dropped.
pub struct Ticket {
    events: UnboundedSender<Event>,
    table: TableId,
    incarnation: u64,
    work: Work,
    report: Option<Report>,
}

impl Ticket {
    pub fn new(events: UnboundedSender<Event>, incarnation: u64, work: Work) -> Self {
        Self {
            events,
            table: work.table.clone(),
            incarnation,
            work,
            report: None,
        }
    }

    /// Ends the work with what it reports.
    pub fn end(mut self, report: Report) {
        self.report = Some(report);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let report = self
            .report
            .take()
            .unwrap_or_else(|| match std::thread::panicking() {
                true => Report::of(End::Failed {
                    reason: Reason::Bug,
                    detail: "the work panicked; what it had not committed is as if it had not been"
                        .into(),
                    random: rand::random(),
                }),
                false => Report::of(End::Stopped),
            });
        // Nobody listens any more once the engine is gone.
        let _ = self.events.send(Event::Ended {
            table: self.table.clone(),
            incarnation: self.incarnation,
            work: self.work.clone(),
            report: Box::new(report),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, Task, Trigger};
    use jiff::Timestamp;
    use std::time::Duration;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    fn work() -> Work {
        Work {
            table: "maze".into(),
            namespace: "alder".into(),
            task: Task::OptimizeIndexes,
            trigger: Trigger::Count,
            due: Timestamp::UNIX_EPOCH,
            deadline: Timestamp::UNIX_EPOCH,
            predicted: Duration::ZERO,
            bytes: 7,
        }
    }

    async fn ended(mut events: UnboundedReceiver<Event>) -> End {
        match events.recv().await {
            Some(Event::Ended { work, report, .. }) => {
                assert_eq!(work.task.kind(), Kind::OptimizeIndexes);
                report.end
            }
            _ => panic!("no end was told"),
        }
    }

    #[tokio::test]
    async fn a_work_that_panics_returns_what_it_holds_and_is_named_a_bug() {
        let (events, told) = unbounded_channel();
        let ticket = Ticket::new(events, 1, work());
        let task = tokio::spawn(async move {
            let _ticket = ticket;
            panic!("as the test wants");
        });
        assert!(task.await.unwrap_err().is_panic());
        assert!(matches!(
            ended(told).await,
            End::Failed {
                reason: Reason::Bug,
                ..
            }
        ));
    }

    #[tokio::test]
    async fn a_work_that_is_cancelled_returns_what_it_holds() {
        let (events, told) = unbounded_channel();
        let ticket = Ticket::new(events, 1, work());
        let task = tokio::spawn(async move {
            let _ticket = ticket;
            std::future::pending::<()>().await;
        });
        task.abort();
        assert_eq!(ended(told).await, End::Stopped);
    }

    #[tokio::test]
    async fn a_work_that_ends_says_how() {
        let (events, told) = unbounded_channel();
        Ticket::new(events, 1, work()).end(Report::of(End::Done));
        assert_eq!(ended(told).await, End::Done);
    }
}
