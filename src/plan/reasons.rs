//! Why a table's view is stale: the closed set of reasons.
//!
//! Lives here: every reason, how far each one reaches, and its explanation and remedy in plain words. May use: nothing
//! but `std`. Must never come in: error text of a store or of Lance; it is never matched on.
//! The order of the variants is their precedence: of two that hold, the earlier is the one that is shown.

use std::fmt;

/// How far a reason reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// No work starts on the table.
    Table,
    /// Work stops on one shard; the table's other shards flow on. Reported of a whole table, it stops the table.
    Shard,
    /// Nothing stops; people are told.
    Told,
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident, $reach:ident, $explain:literal;)*) => {
        /// Why a table's view is stale, or that it is not. A closed set; the names are API.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[doc = $doc])* $name,)*
        }

        impl Reason {
            /// Every reason, by precedence: of two that hold, the earlier one is shown.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// The reason's name, in PascalCase: for conditions, labels and logs.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Reason::$name => stringify!($name),)*
                }
            }

            /// What it stops.
            pub fn reach(self) -> Reach {
                match self {
                    $(Reason::$name => Reach::$reach,)*
                }
            }

            /// What it means and what to do, for people: one or two plain sentences.
            pub fn explain(self) -> &'static str {
                match self {
                    $(Reason::$name => $explain,)*
                }
            }
        }
    };
}

reasons! {
    /// The operator's rules forbid this table.
    NotAllowed, Table,
        "The operator's rules do not allow this table. Ask whoever runs the operator to allow its place or its credentials.";
    /// The user asked for rest.
    Suspended, Table,
        "Work on this table is suspended. Set suspend to false to let it go on.";
    /// There are no credentials to use.
    CredentialsMissing, Table,
        "The credentials that the table names do not exist or lack a key. Create the Secret with the keys its store needs.";
    /// The store refused the credentials.
    CredentialsRejected, Table,
        "The store refused the credentials. Renew them, or grant them reading and writing under the table's place.";
    /// The store did not answer.
    StoreUnreachable, Table,
        "The store does not answer. It is tried again by itself; check its address and the network if this lasts.";
    /// The store asked to slow down.
    StoreThrottled, Table,
        "The store asks for fewer requests. Work goes on by itself, slower; raise the store's limits if this lasts.";
    /// There is nothing at the table's address.
    TableNotFound, Table,
        "There is no table at this address. Correct the address, or create the table.";
    /// What is there is no Lance table.
    NotALanceTable, Table,
        "What is at this address is not a Lance table. Correct the address.";
    /// The table was never set up for MemWAL.
    NotMemWal, Table,
        "The table is not written through MemWAL, so there is nothing to merge. Enable MemWAL where the table is made.";
    /// The table has files outside its own prefix.
    ForeignBase, Table,
        "The table's manifest or rows name files outside the table's own place, which is refused. Copy the table as a whole.";
    /// A manifest or file of the base table cannot be read.
    Corrupt, Table,
        "A file of the base table cannot be read. Restore it, or a version of the table from before; nothing was changed.";
    /// A kind of table, column or key that is refused by name.
    Unsupported, Table,
        "The table has a feature that cannot be merged safely. The message names it; nothing was changed.";
    /// The schemas of base and generations cannot be brought together.
    SchemaMismatch, Table,
        "Pending rows do not fit the base table's schema. Bring the writer and the table to one schema.";
    /// The store takes no writes.
    ReadOnlyStore, Table,
        "The store takes no writes from these credentials. Grant them writing under the table's place.";
    /// The store has no space left.
    DiskFull, Table,
        "The store has no space left. Free some, or raise its quota; nothing is lost meanwhile.";
    /// A generation cannot be read, and is not quarantined yet.
    GenerationUnreadable, Table,
        "A pending generation cannot be read. It is tried again, and quarantined if that does not help.";
    /// An option of the table's storage is not understood.
    BadOption, Table,
        "A storage option of the table is not understood. The message names it; correct it.";
    /// A fault of ours.
    Bug, Table,
        "Freshet met something that it holds to be impossible and stopped before it changed anything. Please report it.";
    /// Lance refused, in a way that has no name here.
    LanceError, Table,
        "Lance refused the last attempt. It is tried again by itself; the message says what it was.";
    /// The watermark is below one that was seen before.
    WentBack, Shard,
        "The table went back to an older state (a restore or an overwrite), so that rows merged before count as pending. Check the table, then acknowledge it.";
    /// The watermark is at or above the shard's own counter.
    WatermarkAhead, Shard,
        "The base table says that more of this shard was merged than its writer ever made, so new rows would count as merged. Check the shard, then acknowledge it: all that it lists is merged then.";
    /// A manifest that is broken, or a newer client's.
    UnsupportedManifest, Shard,
        "This shard's newest manifest cannot be read, or says more than this release could write back, and the shard waits. The message says which it is and what to do.";
    /// One number, two directories.
    DuplicateGeneration, Shard,
        "One generation is listed with two directories, and only one of them can be right. Check the shard's manifest.";
    /// A generation that cannot be merged.
    Quarantined, Shard,
        "A generation cannot be read or merged, and those after it in its shard wait. Repair it, or acknowledge its loss.";
    /// Nobody has looked at the table yet.
    NeverObserved, Table,
        "The table has not been looked at yet. It will be, by itself.";
    /// A work needs more memory than it reserved.
    OverBudget, Table,
        "The last attempt needed more memory than it had reserved. It is tried again with less; raise the budget if this lasts.";
    /// An attempt took too long and was given up.
    DeadlineExceeded, Table,
        "The last attempt took too long and was given up before it committed. It is tried again with less.";
    /// Another commit came first.
    Conflict, Table,
        "Another commit to the table came first. The merge is decided anew, by itself.";
    /// Failures in a row; the next try waits.
    BackingOff, Table,
        "The last attempt failed and the next one waits. It is tried again by itself.";
    /// The last look at the table is older than the last work on it.
    Observing, Table,
        "Work on the table has just ended and a new look at it is on its way; nothing is to be done.";
    /// A merge is running.
    Merging, Told,
        "A merge is running; nothing is to be done.";
    /// Upkeep holds the table's commit permit.
    Upkeep, Told,
        "Compaction, index upkeep or clean-up of this table is running, and the merge comes next; nothing is to be done.";
    /// Due, but there is not enough of the byte budget.
    BudgetWait, Told,
        "A merge is due and waits for memory. Raise the byte budget if this lasts.";
    /// Due, but other tables come first.
    Queued, Told,
        "A merge is due and waits for its turn behind other tables. Raise the number of slots if this lasts.";
    /// Pending, and not yet due.
    Scheduled, Told,
        "Rows are pending and their merge starts by itself; nothing is to be done.";
    /// Somebody else drains generations.
    ForeignMerger, Told,
        "Generations leave a shard without being marked as merged: another merger works on this table. Stop it.";
    /// Somebody writes to the base table directly.
    DirectWrite, Told,
        "Rows were written to the base table directly, and a later merge may undo them. Write through MemWAL only.";
    /// The table cleans itself up.
    AutoCleanup, Told,
        "The table's own automatic clean-up is on and may remove versions that are still needed. Turn it off.";
    /// There is a directory among the shards that is none.
    UnknownDirectory, Told,
        "There is a directory among the shards that is no shard. It is left alone; remove it if nobody needs it.";
    /// Acknowledged rows in a log that has not moved for long.
    TailStranded, Told,
        "Acknowledged rows have stayed in a shard's log, whose writer seems to be gone. Open the shard again to flush them.";
    /// Acknowledged rows that no generation holds yet.
    TailWaiting, Told,
        "Acknowledged rows wait in a shard's log until its writer flushes them; nobody else can read them yet. Flush or close the writer.";
    /// Nothing is pending.
    Fresh, Told,
        "Nothing is pending.";
}

impl Reason {
    /// The reason of this name, if there is one.
    pub fn named(name: &str) -> Option<Reason> {
        Self::ALL.iter().copied().find(|r| r.as_str() == name)
    }

    /// Whether nothing of what it reaches may be deleted either: no drain, no reclaim, and no clean-up of the table's
    /// old versions, since a person may need them to find out what happened.
    pub fn keeps_everything(self) -> bool {
        matches!(
            self,
            Reason::WentBack
                | Reason::WatermarkAhead
                | Reason::UnsupportedManifest
                | Reason::DuplicateGeneration
        )
    }

    /// Whether it goes away by itself, so that nobody need hear of it where only upkeep suffers.
    pub fn is_passing(self) -> bool {
        matches!(
            self,
            Reason::Conflict | Reason::DeadlineExceeded | Reason::BackingOff
        )
    }

    /// Whether the view is as fresh as its policy wants, or on its way there without anybody's help.
    pub fn is_well(self) -> bool {
        matches!(
            self,
            Reason::Fresh
                | Reason::Scheduled
                | Reason::Merging
                | Reason::Upkeep
                | Reason::Observing
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own_and_a_sentence_that_ends() {
        let names: BTreeSet<&str> = Reason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        assert_eq!(Reason::named("Nonsense"), None);
        for reason in Reason::ALL {
            assert_eq!(Reason::named(reason.as_str()), Some(*reason));
            assert!(reason.explain().ends_with('.'), "{reason}");
            assert!(reason.explain().len() < 200, "{reason}");
        }
    }

    #[test]
    fn what_keeps_everything_also_stops_its_shard() {
        for reason in Reason::ALL.iter().filter(|r| r.keeps_everything()) {
            assert_eq!(reason.reach(), Reach::Shard, "{reason}");
        }
    }

    #[test]
    fn a_reason_that_stops_a_table_comes_before_every_state_of_a_working_one() {
        for reason in Reason::ALL.iter().filter(|r| r.reach() != Reach::Told) {
            assert!(*reason < Reason::Merging, "{reason}");
        }
    }
}
