//! The `freshet` binary: one program, several roles.

mod cli;

fn main() -> std::process::ExitCode {
    quiet_lance();
    cli::main()
}

/// Lance panics on some broken files. Such a panic is caught and told as what it is, a fact about the table, so its
/// backtrace goes to the log alone; all other panics are shown as ever.
fn quiet_lance() {
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        match panic.location().filter(|at| at.file().contains("/lance-")) {
            Some(at) => tracing::debug!(%at, "Lance panicked"),
            None => shown(panic),
        }
    }));
}
