//! The `freshet` binary: one program, several roles.

mod cli;

fn main() -> std::process::ExitCode {
    bound_allocator();
    quiet_lance();
    std::panic::catch_unwind(cli::main).unwrap_or_else(|_| {
        eprintln!(
            "freshet: Bug: it gave up where it should not; run it again with -v -v and report what it says"
        );
        std::process::ExitCode::FAILURE
    })
}

/// One arena for all threads: glibc gives each thread one of its own else, and each keeps what it once held. A merge's
/// peak fell by a third, and what was left after it by three quarters.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn bound_allocator() {
    const M_ARENA_MAX: std::ffi::c_int = -8;
    unsafe extern "C" {
        fn mallopt(parameter: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
    }
    // SAFETY: glibc's own function, called before any other thread is there.
    unsafe { mallopt(M_ARENA_MAX, 1) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn bound_allocator() {}

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
