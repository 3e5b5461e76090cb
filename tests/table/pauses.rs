//! A merge that is held at a named step while something else happens.
//!
//! Lives here: `held`. May use: the table room's steps. Never: a sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use freshet::table::steps::{self, Hook};
use tokio::sync::Notify;

/// Runs `work`; the first time that it passes `step`, runs `beside` to its end before it goes on.
pub async fn held<T>(
    step: &'static str,
    work: impl Future<Output = T>,
    beside: impl Future<Output = ()>,
) -> T {
    let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let first = Arc::new(AtomicBool::new(true));
    let (told, wait) = (reached.clone(), go_on.clone());
    let hook: Hook = Arc::new(move |at| {
        let stop = at == step && first.swap(false, Ordering::Relaxed);
        let (told, wait) = (told.clone(), wait.clone());
        Box::pin(async move {
            if stop {
                told.notify_one();
                wait.notified().await;
            }
        })
    });
    let mut work = std::pin::pin!(steps::with_hook(hook, work));
    tokio::select! {
        biased;
        _ = &mut work => panic!("{step} was not passed"),
        () = reached.notified() => {}
    }
    beside.await;
    go_on.notify_one();
    work.await
}
