//! What of a table is read.
//!
//! Lives here: `Source` and its names. May use: nothing. Never: how one is read.

/// What to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// The base table only: what an ordinary Lance reader sees. Makes no request under `_mem_wal/`.
    #[default]
    Fragments,
    /// Pending generations only: the newest version of each key, deletes not shown.
    Wal,
    /// Both, as one consistent cut: every key once, newest version, deletes applied.
    All,
}

impl Source {
    /// Every source, in the order in which they are explained.
    pub const ALL: [Source; 3] = [Source::Fragments, Source::Wal, Source::All];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Fragments => "fragments",
            Source::Wal => "wal",
            Source::All => "all",
        }
    }
}

/// A source of no such name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid source `{0}`: expected one of fragments, wal, all")]
pub struct UnknownSource(pub String);

impl std::str::FromStr for Source {
    type Err = UnknownSource;

    /// Reads a name; the empty one is `fragments`.
    fn from_str(s: &str) -> Result<Self, UnknownSource> {
        match s.trim() {
            "" => Ok(Source::Fragments),
            name => Source::ALL
                .into_iter()
                .find(|source| source.as_str() == name)
                .ok_or_else(|| UnknownSource(name.chars().take(64).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_read_by_name_and_absent_means_fragments() {
        for source in Source::ALL {
            assert_eq!(source.as_str().parse(), Ok(source));
        }
        assert_eq!("".parse(), Ok(Source::Fragments));
        assert_eq!(" all ".parse(), Ok(Source::All));
    }

    #[test]
    fn an_unknown_source_is_refused_naming_the_three() {
        let e = "Fragment".parse::<Source>().unwrap_err().to_string();
        for word in ["Fragment", "fragments", "wal", "all"] {
            assert!(e.contains(word), "{e}");
        }
    }
}
