//! The `freshet` binary: one program, several roles.

use std::io::Write;

mod cli;

fn main() -> std::process::ExitCode {
    bound_allocator();
    quiet_lance();
    std::panic::catch_unwind(cli::main).unwrap_or_else(|_| {
        // `eprintln!` panics where nobody reads on.
        let _ = writeln!(
            std::io::stderr(),
            "freshet: Bug: it gave up where it should not; run it again with -v -v and report what it says"
        );
        std::process::ExitCode::FAILURE
    })
}

/// glibc keeps what it was given back, for the next that asks. One arena for all threads: each thread has one of its own
/// else, and each keeps what it once held; a merge's peak fell by a third. And a buffer of a MiB or more is mapped by itself,
/// and unmapped as it is freed: glibc raises that bound with each large buffer that is freed, up to 32 MiB, and what a merge
/// streams then stays in the heap's gaps; its peak fell by a half.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn bound_allocator() {
    const M_MMAP_THRESHOLD: std::ffi::c_int = -3;
    const M_ARENA_MAX: std::ffi::c_int = -8;
    unsafe extern "C" {
        fn mallopt(parameter: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
    }
    for (parameter, value) in [(M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, 1 << 20)] {
        // SAFETY: glibc's own function, called before any other thread is there.
        unsafe { mallopt(parameter, value) };
    }
    give_back();
}

/// What a burst of looks or merges leaves in the heap's gaps goes back to the system: a process that watches a thousand
/// tables held twice what it needed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back() {
    const EVERY: std::time::Duration = std::time::Duration::from_secs(30);
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    let trim = || {
        loop {
            std::thread::sleep(EVERY);
            // SAFETY: glibc's own function, which may be called at any time from any thread.
            unsafe { malloc_trim(0) };
        }
    };
    // A process that cannot have one more thread has other worries.
    drop(std::thread::Builder::new().name("trim".into()).spawn(trim));
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
