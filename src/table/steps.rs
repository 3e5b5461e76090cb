//! Named steps of every piece of work that changes a table.
//!
//! Lives here: `reach(step)`, which work calls as it passes a step, and the hook by which a test stops there: to kill
//! the process, to cancel the work, or to let another one go first. May use: nothing. Never: behaviour of its own;
//! without a hook a step is one look at a task-local.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A hook: called with the step's name; the work goes on when the future ends.
pub type Hook = Arc<dyn Fn(&'static str) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Every step, in the order in which work passes them.
pub const ALL: &[&str] = &[
    "merge.begin",
    "merge.read",
    "merge.found",
    "merge.written",
    "merge.deletions",
    "merge.commit",
    "merge.committed",
    "reset.commit",
    "reset.committed",
    "drain.begin",
    "drain.write",
    "drain.written",
    "reclaim.begin",
    "reclaim.delete",
    "reclaim.headless",
    "reclaim.deleted",
    "reclaim.prune",
    "compact.begin",
    "compact.rewritten",
    "compact.commit",
    "compact.remapped",
    "compact.committed",
    "indexes.begin",
    "indexes.commit",
    "indexes.committed",
    "versions.begin",
    "versions.done",
];

tokio::task_local! {
    static HOOK: Hook;
}

/// Runs `work` with `hook` called at every step that it passes on this task.
pub async fn with_hook<F: Future>(hook: Hook, work: F) -> F::Output {
    HOOK.scope(hook, work).await
}

/// Passes a step.
pub(crate) async fn reach(step: &'static str) {
    if let Ok(hook) = HOOK.try_with(Clone::clone) {
        hook(step).await;
    }
    #[cfg(debug_assertions)]
    stop_here(step);
}

/// A debug build started with `FRESHET_STOP_AT=<step>` and `FRESHET_STOP_FILE=<file>` writes the file at that step and
/// waits there for the SIGKILL that its starter sends.
#[cfg(debug_assertions)]
fn stop_here(step: &'static str) {
    if std::env::var("FRESHET_STOP_AT").is_ok_and(|at| at == step) {
        if let Ok(file) = std::env::var("FRESHET_STOP_FILE") {
            let _ = std::fs::write(file, step);
        }
        loop {
            std::thread::park();
        }
    }
}
