//! How a command ends: its exit code and its one line.
//!
//! Lives here: the codes, `Failure`, and which code each error of a table stands for. May use: `table`'s errors. Must
//! never come in: an error's text as a ground for anything.

use std::fmt;

use freshet::table::Error;

/// The codes, as every `--help` shows them.
pub const CODES: &str = "\
Exit codes:
  0    done
  1    failed for a reason that none of the codes below names
  2    usage: a flag, a manifest or an address is wrong
  3    not found: no table there, not a Lance table, or MemWAL was never enabled on it
  4    credentials: missing or refused by the store
  5    unreachable: the store does not answer, is read-only or is full
  6    corrupt or quarantined: something cannot be read or merged; what else could be merged was
  7    refused: the table went back, is ahead, is unsupported or refers to data outside itself
  8    not yet: the time was up before the base held what was waited for
  130  interrupted by SIGINT or SIGTERM; what was committed by then is whole";

pub const OTHER: u8 = 1;
pub const USAGE: u8 = 2;
pub const NOT_FOUND: u8 = 3;
pub const CREDENTIALS: u8 = 4;
pub const UNREACHABLE: u8 = 5;
pub const CORRUPT: u8 = 6;
pub const REFUSED: u8 = 7;
pub const NOT_YET: u8 = 8;
pub const INTERRUPTED: u8 = 130;

/// Why a command did not end well.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What is so and what to do, on one line.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<&str> = self.message.split_whitespace().collect();
        f.write_str(&lines.join(" "))
    }
}

impl Failure {
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub fn other(message: impl Into<String>) -> Self {
        Self::new(OTHER, message)
    }

    /// An error of the table at `place`, which its message names.
    pub fn of(place: &str, e: &Error) -> Self {
        let said = e.to_string();
        let message = match said.contains(place) {
            true => said,
            false => format!("{place}: {said}"),
        };
        Self::new(code(e), format!("{}: {message}", e.reason()))
    }
}

/// The exit code of an error.
pub fn code(e: &Error) -> u8 {
    match e {
        Error::TableNotFound(_) | Error::NotALanceTable(..) | Error::NotMemWal(_) => NOT_FOUND,
        Error::CredentialsRejected(_) | Error::CredentialsIncomplete(_) => CREDENTIALS,
        Error::StoreUnreachable(_)
        | Error::StoreRedirects { .. }
        | Error::ReadOnlyStore(_)
        | Error::DiskFull(_) => UNREACHABLE,
        Error::SchemaMismatch { .. }
        | Error::GenerationUnreadable { .. }
        | Error::GenerationRefused { .. }
        | Error::UnsupportedManifest { .. }
        | Error::Corrupt { .. } => CORRUPT,
        Error::Unsupported { .. } | Error::ForeignBase(_) | Error::OverBudget { .. } => REFUSED,
        Error::BadOption { .. } => USAGE,
        _ => OTHER,
    }
}
