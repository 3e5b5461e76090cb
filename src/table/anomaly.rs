//! What is not as it should be, by kind.
//!
//! Lives here: `Anomaly` and `AnomalyKind`, which say what stops work on a shard or a table until a person acts, and what
//! is only told (contracts 3, 8, 9, 17). May use: nothing. Never: how anomalies are found (`observe`, `tail`), or mending.

use uuid::Uuid;

/// Kinds of what is not as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnomalyKind {
    /// A watermark at or past the shard's own counter, or older than what it says is merged: the shard was made again, or
    /// somebody marked too much.
    WatermarkAhead,
    /// A watermark below one that was seen before, or that a retained version still holds.
    WentBack,
    /// One number with two listed directories.
    DuplicateGeneration,
    /// A shard's newest manifest that cannot be read, or has fields that this Lance cannot write back.
    UnsupportedManifest,
    /// A generation left its manifest without being marked, or is missing between others: another merger is at work.
    ForeignMerger,
    /// Somebody wrote to the base table past MemWAL; a later merge may undo it.
    DirectWrite,
    /// The table cleans up its old versions by itself.
    AutoCleanup,
    /// A directory under `_mem_wal/` that is no shard.
    UnknownDirectory,
    /// Durable rows have long been in a shard's log, and in no generation.
    TailWaiting,
    /// The same, and their writer seems gone.
    TailStranded,
}

impl AnomalyKind {
    /// Its name, PascalCase.
    pub fn reason(self) -> &'static str {
        match self {
            Self::WatermarkAhead => "WatermarkAhead",
            Self::WentBack => "WentBack",
            Self::DuplicateGeneration => "DuplicateGeneration",
            Self::UnsupportedManifest => "UnsupportedManifest",
            Self::ForeignMerger => "ForeignMerger",
            Self::DirectWrite => "DirectWrite",
            Self::AutoCleanup => "AutoCleanup",
            Self::UnknownDirectory => "UnknownDirectory",
            Self::TailWaiting => "TailWaiting",
            Self::TailStranded => "TailStranded",
        }
    }

    /// Whether work on the shard (or the table, where none is named) stops until a person acts.
    pub fn blocks(self) -> bool {
        matches!(
            self,
            Self::WatermarkAhead
                | Self::WentBack
                | Self::DuplicateGeneration
                | Self::UnsupportedManifest
        )
    }

    /// Whether a person may say that all that is listed is to be merged, again where it was.
    pub fn can_be_acknowledged(self) -> bool {
        matches!(self, Self::WentBack | Self::WatermarkAhead)
    }
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anomaly {
    /// Its kind.
    pub kind: AnomalyKind,
    /// The shard that it is about; `None` for the table.
    pub shard: Option<Uuid>,
    /// What is so and what to do.
    pub message: String,
}
