//! The query of a records request, judged before anything is looked up.
//!
//! Lives here: `Query`: source, limit and offset, each with its bounds; every other parameter is refused by name. May
//! use: nothing but parsing. Must never come in: a look at a catalog or a store.

use std::fmt::Display;
use std::str::FromStr;

use super::problem::Problem;
use crate::table::{Source, UnknownSource};

/// Rows of a page where none are asked for.
pub const DEFAULT_LIMIT: usize = 25;
/// The most rows of a page.
pub const MAX_LIMIT: usize = 1000;

/// What a records request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Query {
    pub source: Source,
    pub limit: usize,
    pub offset: u64,
}

impl Query {
    /// Reads a query string; a parameter that is there twice, or is not known, is refused.
    pub fn parse(raw: Option<&str>) -> Result<Self, Problem> {
        let mut query = Self {
            source: Source::default(),
            limit: DEFAULT_LIMIT,
            offset: 0,
        };
        let mut seen = vec![];
        let pairs = url::form_urlencoded::parse(raw.unwrap_or_default().as_bytes());
        let (source, rest): (Vec<_>, Vec<_>) = pairs.partition(|(name, _)| name == "source");
        for (name, value) in source.into_iter().chain(rest) {
            match name.as_ref() {
                "source" => {
                    query.source = value.parse().map_err(|e: UnknownSource| {
                        Problem::parameter("source", e.to_string())
                            .with("allowed", Source::ALL.map(Source::as_str).to_vec())
                    })?;
                }
                "limit" => query.limit = number("limit", &value, 1, MAX_LIMIT)?,
                "offset" => query.offset = number("offset", &value, 0, u64::MAX)?,
                other => {
                    let other: String = other.chars().take(64).collect();
                    return Err(Problem::parameter(
                        &other,
                        "this parameter is not known; those of this route are source, limit, offset",
                    ));
                }
            }
            if seen.contains(&name) {
                return Err(Problem::parameter(&name, "this parameter is given twice"));
            }
            seen.push(name);
        }
        Ok(query)
    }
}

fn number<T: FromStr + PartialOrd + Display + Copy>(
    name: &str,
    value: &str,
    least: T,
    most: T,
) -> Result<T, Problem> {
    value
        .parse()
        .ok()
        .filter(|n| (least..=most).contains(n))
        .ok_or_else(|| {
            Problem::parameter(name, format!("{name} is a number from {least} to {most}"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_query_asks_for_the_first_fragments() {
        let query = Query::parse(None).unwrap();
        assert_eq!(
            query,
            Query {
                source: Source::Fragments,
                limit: 25,
                offset: 0
            }
        );
        assert_eq!(Query::parse(Some("source=&limit=25")).unwrap(), query);
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for raw in [
            "source=bogus",
            "limit=0",
            "limit=1001",
            "limit=many",
            "limit=-1",
            "offset=-1",
            "limit=1&limit=2",
            "source=all&source=wal",
            "cursor=x",
            "limit=",
        ] {
            assert!(Query::parse(Some(raw)).is_err(), "{raw}");
        }
        assert_eq!(
            Query::parse(Some("limit=1000&offset=18446744073709551615&source=all"))
                .unwrap()
                .offset,
            u64::MAX
        );
    }
}
