//! What whoever runs the operator decides: defaults, limits, grants, endpoints, and how the engine spends itself.
//!
//! Lives here: the configuration file, read strictly, and its mapping into `api`'s defaults and limits and this room's
//! grants. May use: `api`, serde. Must never come in: a secret; the file is a ConfigMap. A wrong file is refused as a
//! whole, with the field that is wrong.

use std::time::Duration;

use serde::Deserialize;

use super::access::{Access, Grant};
use crate::api::{Bounds, Defaults, GoDuration, Limits, Quantity};

/// Everything that the file says, with the rest filled.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// What specs leave out.
    pub defaults: Defaults,
    /// What specs may ask for.
    pub limits: Limits,
    /// Who may touch what.
    pub access: Access,
    /// How often a table is looked at; `None` leaves it to the engine.
    pub poll: Option<Duration>,
    /// Merges and upkeep that may run at once; `None` leaves it to the engine.
    pub slots: Option<usize>,
}

/// Why the file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not what it should be; names line and field.
    #[error("{0}")]
    Malformed(String),
    /// A value in it cannot be.
    #[error("{field}: {what}")]
    BadValue {
        /// The path of the field.
        field: String,
        /// What is wrong and the remedy.
        what: String,
    },
}

impl Error {
    /// The kind's name.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Malformed(_) => "MalformedConfig",
            Error::BadValue { .. } => "BadConfig",
        }
    }

    pub(super) fn value(field: impl Into<String>, what: impl Into<String>) -> Self {
        Error::BadValue {
            field: field.into(),
            what: what.into(),
        }
    }
}

impl Settings {
    /// Reads the file's text; an empty file is all defaults.
    ///
    /// # Errors
    /// `Malformed` for unknown fields and wrong types, `BadValue` for values that cannot be.
    pub fn read(text: &str) -> Result<Self, Error> {
        let blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
        let file: File = match text.lines().all(blank) {
            true => File::default(),
            false => serde_saphyr::from_str(text).map_err(|e| {
                let said = e.to_string();
                Error::Malformed(said.lines().next().unwrap_or_default().to_owned())
            })?,
        };
        let mut settings = Settings {
            access: Access::new(file.storage.grants, file.storage.allowed_endpoints)?,
            ..Settings::default()
        };
        file.defaults.fill(&mut settings.defaults);
        file.limits.fill(&mut settings.limits)?;
        if let Some(poll) = file.engine.poll_interval {
            if poll.is_zero() {
                let what = "it must be more than nothing, as in 1s";
                return Err(Error::value("engine.pollInterval", what));
            }
            settings.poll = Some(poll.as_duration());
        }
        if file.engine.slots == Some(0) {
            return Err(Error::value("engine.slots", "it must be at least 1"));
        }
        settings.slots = file.engine.slots;
        Ok(settings)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    defaults: Tunables<Plain>,
    limits: Tunables<Ranged>,
    storage: Storage,
    engine: Engine,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Storage {
    grants: Vec<Grant>,
    allowed_endpoints: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Engine {
    poll_interval: Option<GoDuration>,
    slots: Option<usize>,
}

/// What a leaf of the tunables' tree is: a value, or a range.
trait Leaf {
    type Of<T: for<'a> Deserialize<'a> + std::fmt::Debug>: for<'a> Deserialize<'a> + std::fmt::Debug;
    /// A switch, which has no range.
    type Switch: for<'a> Deserialize<'a> + std::fmt::Debug;
}

#[derive(Debug)]
struct Plain;

impl Leaf for Plain {
    type Of<T: for<'a> Deserialize<'a> + std::fmt::Debug> = T;
    type Switch = bool;
}

#[derive(Debug)]
struct Ranged;

/// A switch in the limits, which nobody may write.
#[derive(Debug)]
enum Never {}

impl<'de> Deserialize<'de> for Never {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom(
            "enabled and optimize have no limits; set them under defaults",
        ))
    }
}

impl Leaf for Ranged {
    type Of<T: for<'a> Deserialize<'a> + std::fmt::Debug> = Range<T>;
    type Switch = Never;
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "T: Deserialize<'de>"))]
struct Range<T> {
    min: Option<T>,
    max: Option<T>,
}

macro_rules! branch {
    ($name:ident { $($field:ident: $kind:ty,)* }) => {
        #[derive(Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "camelCase", bound = "")]
        struct $name<L: Leaf> { $($field: $kind,)* }

        impl<L: Leaf> Default for $name<L> {
            fn default() -> Self {
                Self { $($field: Default::default(),)* }
            }
        }

        impl<L: Leaf> std::fmt::Debug for $name<L> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}

branch!(Tunables {
    freshness: Freshness<L>,
    merge: Merge<L>,
    compaction: Compaction<L>,
    indexes: Indexes<L>,
    retention: Retention<L>,
    deletion: Deletion<L>,
});
branch!(Freshness {
    target: Option<L::Of<GoDuration>>,
    merge_at: MergeAt<L>,
});
branch!(MergeAt {
    generations: Option<L::Of<u32>>,
    bytes: Option<L::Of<Quantity>>,
});
branch!(Merge {
    max_generations_per_merge: Option<L::Of<u32>>,
    max_bytes_per_merge: Option<L::Of<Quantity>>,
});
branch!(Compaction {
    enabled: Option<L::Switch>,
    min_fragments: Option<L::Of<u32>>,
    target_rows_per_fragment: Option<L::Of<u32>>,
});
branch!(Indexes {
    optimize: Option<L::Switch>,
});
branch!(Retention {
    drain_delay: Option<L::Of<GoDuration>>,
    merged_generation_grace_period: Option<L::Of<GoDuration>>,
    versions: Versions<L>,
});
branch!(Versions {
    older_than: Option<L::Of<GoDuration>>,
    keep_at_least: Option<L::Of<u32>>,
});
branch!(Deletion {
    timeout: Option<L::Of<GoDuration>>,
});

impl Tunables<Plain> {
    fn fill(self, to: &mut Defaults) {
        fn set<T>(to: &mut T, from: Option<T>) {
            if let Some(from) = from {
                *to = from;
            }
        }
        set(&mut to.target, self.freshness.target);
        set(
            &mut to.merge_at_generations,
            self.freshness.merge_at.generations,
        );
        set(&mut to.merge_at_bytes, self.freshness.merge_at.bytes);
        set(
            &mut to.max_generations_per_merge,
            self.merge.max_generations_per_merge,
        );
        set(&mut to.max_bytes_per_merge, self.merge.max_bytes_per_merge);
        set(&mut to.compaction, self.compaction.enabled);
        set(&mut to.min_fragments, self.compaction.min_fragments);
        set(
            &mut to.target_rows_per_fragment,
            self.compaction.target_rows_per_fragment,
        );
        set(&mut to.optimize_indexes, self.indexes.optimize);
        set(&mut to.drain_delay, self.retention.drain_delay);
        set(
            &mut to.grace_period,
            self.retention.merged_generation_grace_period,
        );
        set(
            &mut to.versions_older_than,
            self.retention.versions.older_than,
        );
        set(
            &mut to.versions_keep_at_least,
            self.retention.versions.keep_at_least,
        );
        set(&mut to.deletion_timeout, self.deletion.timeout);
    }
}

impl Tunables<Ranged> {
    fn fill(self, to: &mut Limits) -> Result<(), Error> {
        let (fresh, merge, retention) = (self.freshness, self.merge, self.retention);
        bound("freshness.target", &mut to.target, fresh.target)?;
        bound(
            "freshness.mergeAt.generations",
            &mut to.merge_at_generations,
            fresh.merge_at.generations,
        )?;
        bound(
            "freshness.mergeAt.bytes",
            &mut to.merge_at_bytes,
            fresh.merge_at.bytes,
        )?;
        bound(
            "merge.maxGenerationsPerMerge",
            &mut to.max_generations_per_merge,
            merge.max_generations_per_merge,
        )?;
        bound(
            "merge.maxBytesPerMerge",
            &mut to.max_bytes_per_merge,
            merge.max_bytes_per_merge,
        )?;
        bound(
            "compaction.minFragments",
            &mut to.min_fragments,
            self.compaction.min_fragments,
        )?;
        bound(
            "compaction.targetRowsPerFragment",
            &mut to.target_rows_per_fragment,
            self.compaction.target_rows_per_fragment,
        )?;
        bound(
            "retention.drainDelay",
            &mut to.drain_delay,
            retention.drain_delay,
        )?;
        bound(
            "retention.mergedGenerationGracePeriod",
            &mut to.grace_period,
            retention.merged_generation_grace_period,
        )?;
        bound(
            "retention.versions.olderThan",
            &mut to.versions_older_than,
            retention.versions.older_than,
        )?;
        bound(
            "retention.versions.keepAtLeast",
            &mut to.versions_keep_at_least,
            retention.versions.keep_at_least,
        )?;
        bound(
            "deletion.timeout",
            &mut to.deletion_timeout,
            self.deletion.timeout,
        )
    }
}

fn bound<T: Ord + Copy>(
    field: &str,
    to: &mut Bounds<T>,
    from: Option<Range<T>>,
) -> Result<(), Error> {
    if let Some(range) = from {
        to.min = range.min.unwrap_or(to.min);
        to.max = range.max.unwrap_or(to.max);
    }
    match to.min <= to.max {
        true => Ok(()),
        false => Err(Error::value(
            format!("limits.{field}"),
            "its min is above its max; write both",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_all_defaults() {
        for text in ["", "# nothing\n\n", "{}"] {
            let settings = Settings::read(text).unwrap();
            assert_eq!(settings.defaults, Defaults::default());
            assert_eq!(settings.limits, Limits::default());
        }
    }

    #[test]
    fn a_file_moves_what_it_names_and_nothing_else() {
        let text = "
defaults:
  freshness: { target: 30s, mergeAt: { bytes: 2Gi } }
  compaction: { enabled: false }
limits:
  freshness: { target: { min: 5s } }
  merge: { maxBytesPerMerge: { max: 512Mi } }
engine: { pollInterval: 2s, slots: 3 }
";
        let settings = Settings::read(text).unwrap();
        assert_eq!(settings.defaults.target, GoDuration::from_secs(30));
        assert_eq!(
            settings.defaults.merge_at_bytes,
            Quantity::from_gibibytes(2)
        );
        assert!(!settings.defaults.compaction);
        assert_eq!(settings.defaults.merge_at_generations, 256);
        assert_eq!(settings.limits.target.min, GoDuration::from_secs(5));
        assert_eq!(settings.limits.target.max, GoDuration::from_hours(24));
        let bytes = settings.limits.max_bytes_per_merge;
        assert_eq!(bytes.max, Quantity::from_mebibytes(512));
        assert_eq!(settings.poll, Some(Duration::from_secs(2)));
        assert_eq!(settings.slots, Some(3));
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_field() {
        for (text, named) in [
            ("default: {}", "default"),
            ("defaults: { freshness: { goal: 3s } }", "goal"),
            ("limits: { compaction: { enabled: true } }", "enabled"),
            ("engine: { slots: 0 }", "engine.slots"),
            (
                "limits: { freshness: { target: { min: 48h } } }",
                "limits.freshness.target",
            ),
            ("storage: { grants: [{ prefix: s3://x }] }", "prefix"),
        ] {
            let said = Settings::read(text).unwrap_err().to_string();
            assert!(said.contains(named), "{text}: {said}");
            assert!(!said.contains('\n'), "{said}");
        }
    }
}
