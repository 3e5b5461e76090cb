//! What a command answers, on stdout.
//!
//! Lives here: `say`, for an answer that was asked for, and `note`, for what is told beside the work. May use: std. Never:
//! a panic because nobody reads on or a disk is full, as `println!` has it.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};

use super::exit::Failure;

/// Writes an answer and the end of its line. A reader that has seen enough, as `head` has, is no failure.
///
/// # Errors
/// Where it cannot be written, for example because the disk is full.
pub fn say(answer: impl Display) -> Result<(), Failure> {
    let mut out = stdout().lock();
    match writeln!(out, "{answer}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::other(format!(
            "the answer cannot be written to stdout: {e}"
        ))),
        _ => Ok(()),
    }
}

/// Writes a line that the work does not depend on.
pub fn note(line: impl Display) {
    if let Err(failure) = say(line) {
        tracing::debug!(%failure, "a line was lost");
    }
}

/// Writes a line to stderr, where anybody reads it; the exit code tells that something is wrong in any case.
pub fn remark(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}
