//! What bounds a read, and why one is not answered.
//!
//! Lives here: `ReadLimits` and `ReadError`, whose messages are sentences for whoever asked, with the remedy in them.
//! May use: the room's errors. Never: a path, or a library's message.

use super::super::error::{Class, Error};

/// Why a read was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// More generations are pending than one read may open.
    #[error(
        "{pending} generations are pending and a read opens at most {limit}; read source=fragments, or wait until merges have caught up"
    )]
    TooManyPending {
        /// Pending generations.
        pending: usize,
        /// The bound.
        limit: usize,
    },
    /// The keys of the pending generations do not fit.
    #[error(
        "the keys of the pending generations need more than the {limit} bytes that reads may hold; read source=fragments, or wait until merges have caught up"
    )]
    KeysTooLarge {
        /// The bound.
        limit: u64,
    },
    /// The page is too large.
    #[error("the rows of this page need more than {limit} bytes; ask for fewer rows")]
    PageTooLarge {
        /// The bound.
        limit: u64,
    },
    /// The pages that are read and sent at this moment hold all that they may.
    #[error(
        "the pages under way hold as much as they may together, {limit} bytes; try again in a moment"
    )]
    Busy {
        /// The bound.
        limit: u64,
    },
    /// A column that the table does not have, or does not show.
    #[error("the table shows no column `{column}`; those it shows are {}", .columns.join(", "))]
    UnknownColumn {
        /// What was asked for.
        column: String,
        /// The columns that are shown.
        columns: Vec<String>,
    },
    /// A value that a column cannot have.
    #[error("no value of the column `{column}` is written so: {wanted}")]
    BadValue {
        /// The column.
        column: String,
        /// How its values are written.
        wanted: String,
    },
    /// A condition that is none on this table's rows.
    #[error("the condition is refused: {what}")]
    BadCondition {
        /// What is wrong and how one is written.
        what: String,
    },
    /// A column whose values have no order.
    #[error(
        "the values of the column `{column}` have no order; order by columns of numbers, texts, times or bytes"
    )]
    BadOrder {
        /// The column.
        column: String,
    },
    /// A page further back than rows are put in order.
    #[error(
        "with an order, a page ends at most {limit} rows after the first; ask for fewer by values or a condition, or without an order"
    )]
    TooDeep {
        /// The bound.
        limit: u64,
    },
    /// A key that is none of this table's.
    #[error("{what}")]
    BadKey {
        /// What is wrong and how a key is written.
        what: String,
    },
    /// A payload that one answer may not hold.
    #[error(
        "the payload has {size} bytes and one answer holds at most {limit}; read it with the table's own client"
    )]
    PayloadTooLarge {
        /// Its bytes.
        size: u64,
        /// The bound.
        limit: u64,
    },
    /// A snapshot that was read before is not there any more.
    #[error("the snapshot cannot be read any more: {what}; start again without the cursor")]
    SnapshotGone {
        /// What of it.
        what: &'static str,
    },
    /// What the table says.
    #[error(transparent)]
    Table(#[from] Error),
}

impl ReadError {
    /// The kind's name, PascalCase, from a closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            ReadError::TooManyPending { .. } => "TooManyPending",
            ReadError::KeysTooLarge { .. } => "KeysTooLarge",
            ReadError::PageTooLarge { .. } => "PageTooLarge",
            ReadError::Busy { .. } => "Busy",
            ReadError::UnknownColumn { .. } => "UnknownColumn",
            ReadError::BadValue { .. } => "BadValue",
            ReadError::BadCondition { .. } => "BadCondition",
            ReadError::BadOrder { .. } => "BadOrder",
            ReadError::TooDeep { .. } => "TooDeep",
            ReadError::BadKey { .. } => "BadKey",
            ReadError::PayloadTooLarge { .. } => "PayloadTooLarge",
            ReadError::SnapshotGone { .. } => "SnapshotGone",
            ReadError::Table(e) => e.reason(),
        }
    }

    /// Who can mend it.
    pub fn class(&self) -> Class {
        match self {
            ReadError::TooManyPending { .. } | ReadError::KeysTooLarge { .. } => Class::Waiting,
            ReadError::PageTooLarge { .. }
            | ReadError::UnknownColumn { .. }
            | ReadError::BadValue { .. }
            | ReadError::BadCondition { .. }
            | ReadError::BadOrder { .. }
            | ReadError::TooDeep { .. }
            | ReadError::BadKey { .. }
            | ReadError::SnapshotGone { .. }
            | ReadError::PayloadTooLarge { .. } => Class::UserFault,
            ReadError::Busy { .. } => Class::Transient,
            ReadError::Table(e) => e.class(),
        }
    }
}

/// Bounds of reads.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// Pending generations that one read may open.
    pub generations: usize,
    /// Bytes that keys of pending generations may take, for all tables together.
    pub key_bytes: u64,
    /// Bytes that the rows of one page may take in memory.
    pub page_bytes: u64,
    /// Bytes that the rows of all pages under way may take together.
    pub pages_bytes: u64,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            generations: 4096,
            key_bytes: 256 << 20,
            page_bytes: 64 << 20,
            pages_bytes: 256 << 20,
        }
    }
}
