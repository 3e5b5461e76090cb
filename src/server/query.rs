//! The query of a request, judged before anything is looked up.
//!
//! Lives here: `Query`: source, limit, offset or cursor, columns and exact values, each with its bounds; a parameter that a route
//! does not take is refused by name. May use: nothing but parsing. Must never come in: a look at a catalog or a store.

use std::fmt::Display;
use std::str::FromStr;

use super::problem::Problem;
use crate::table::{Ask, CONDITION_BYTES, ORDER_COLUMNS, OrderBy, Source, UnknownSource};

/// Rows of a page where none are asked for.
pub const DEFAULT_LIMIT: usize = 25;
/// The most rows of a page.
pub const MAX_LIMIT: usize = 1000;
/// Columns that one request may name.
const MAX_COLUMNS: usize = 1024;

/// Columns whose values a request may name, as lance-context's master takes them.
pub(super) const EXACT: [&str; 9] = [
    "id",
    "rollout_id",
    "problem_id",
    "dataset",
    "role",
    "content_type",
    "policy_version",
    "artifact_type",
    "include_in_training",
];

/// What a route takes beside `source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// Pages: limit, offset or cursor, columns, order, exact values and a condition.
    Pages,
    /// Exact values and a condition.
    Values,
    /// Columns.
    Columns,
    /// Nothing else.
    Source,
}

impl Takes {
    fn names(self) -> Vec<&'static str> {
        let mut names = vec!["source"];
        if self == Takes::Pages {
            names.extend(["limit", "offset", "cursor", "order"]);
        }
        if matches!(self, Takes::Pages | Takes::Columns) {
            names.push("columns");
        }
        if matches!(self, Takes::Pages | Takes::Values) {
            names.push("where");
            names.extend(EXACT);
        }
        names
    }
}

/// Reads a query string; a parameter that is there twice, or is not known, is refused. `source` is what is read where
/// none is named.
pub(super) fn parse(raw: Option<&str>, takes: Takes, source: Source) -> Result<Ask, Problem> {
    let mut ask = Ask {
        source,
        limit: DEFAULT_LIMIT,
        ..Default::default()
    };
    let known = takes.names();
    let mut seen = vec![];
    let pairs = url::form_urlencoded::parse(raw.unwrap_or_default().as_bytes());
    let (first, rest): (Vec<_>, Vec<_>) = pairs.partition(|(name, _)| name == "source");
    for (name, value) in first.into_iter().chain(rest) {
        if !known.contains(&name.as_ref()) {
            let other: String = name.chars().take(64).collect();
            let known = known.join(", ");
            return Err(Problem::parameter(
                &other,
                format!("this parameter is not known; those of this route are {known}"),
            ));
        }
        if seen.contains(&name) {
            return Err(Problem::parameter(&name, "this parameter is given twice"));
        }
        match name.as_ref() {
            "source" if value.trim().is_empty() => {}
            "source" => {
                ask.source = value.parse().map_err(|e: UnknownSource| {
                    Problem::parameter("source", e.to_string())
                        .with("allowed", Source::ALL.map(Source::as_str).to_vec())
                })?;
            }
            "limit" => ask.limit = number("limit", &value, 1, MAX_LIMIT)?,
            "offset" => ask.offset = number("offset", &value, 0, u64::MAX)?,
            "order" => ask.order = order(&value)?,
            "where" => ask.condition = Some(condition("where", &value)?),
            // Judged once the experiment is known.
            "cursor" => {}
            "columns" => ask.columns = Some(columns(&value)?),
            exact => ask.exact.push((exact.to_string(), value.to_string())),
        }
        seen.push(name);
    }
    if ["cursor", "offset"]
        .iter()
        .all(|n| seen.iter().any(|s| s == n))
    {
        let what = "a cursor says where its page begins; send offset or cursor, not both";
        return Err(Problem::parameter("offset", what));
    }
    Ok(ask)
}

/// The cursor of a query that was judged.
pub(super) fn cursor(raw: Option<&str>) -> Option<String> {
    let mut pairs = url::form_urlencoded::parse(raw?.as_bytes());
    let found = pairs.find(|(name, _)| name == "cursor");
    found.map(|(_, text)| text.into_owned())
}

fn order(value: &str) -> Result<Vec<OrderBy>, Problem> {
    let column = |name: &str| match name.strip_prefix('-') {
        Some(name) => (name.to_string(), true),
        None => (name.to_string(), false),
    };
    let columns: Vec<(String, bool)> = value.split(',').map(column).collect();
    let mut names: Vec<&String> = columns.iter().map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let odd = columns.len() > ORDER_COLUMNS || names.len() < columns.len();
    if odd || names.iter().any(|n| n.is_empty()) {
        return Err(Problem::parameter(
            "order",
            format!(
                "order is names of columns with commas between them, each once and at most {ORDER_COLUMNS}, with a - in front of those whose largest values come first"
            ),
        ));
    }
    let by = columns.into_iter();
    Ok(by
        .map(|(column, descending)| OrderBy { column, descending })
        .collect())
}

/// What it says is judged once the table's columns are known.
pub(super) fn condition(name: &str, value: &str) -> Result<String, Problem> {
    if value.trim().is_empty() || value.len() > CONDITION_BYTES {
        return Err(Problem::parameter(
            name,
            format!(
                "{name} is a SQL expression of the table's columns, at most {CONDITION_BYTES} bytes"
            ),
        ));
    }
    Ok(value.to_string())
}

pub(super) fn columns(value: &str) -> Result<Vec<String>, Problem> {
    let names: Vec<String> = value.split(',').map(str::to_string).collect();
    if names.len() > MAX_COLUMNS || names.iter().any(String::is_empty) {
        return Err(Problem::parameter(
            "columns",
            format!("columns are names with commas between them, at most {MAX_COLUMNS}"),
        ));
    }
    Ok(names)
}

pub(super) fn number<T: FromStr + PartialOrd + Display + Copy>(
    name: &str,
    value: &str,
    least: T,
    most: T,
) -> Result<T, Problem> {
    value
        .parse()
        .ok()
        // Rust reads a sign, too.
        .filter(|n| (least..=most).contains(n) && !value.starts_with('+'))
        .ok_or_else(|| {
            Problem::parameter(name, format!("{name} is a number from {least} to {most}"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(raw: &str) -> Result<Ask, Problem> {
        parse(Some(raw), Takes::Pages, Source::Fragments)
    }

    #[test]
    fn an_empty_query_asks_for_the_first_of_the_routes_own_source() {
        let ask = parse(None, Takes::Pages, Source::Fragments).unwrap();
        assert_eq!(
            (ask.source, ask.limit, ask.offset),
            (Source::Fragments, 25, 0)
        );
        assert_eq!(page("source=&limit=25").unwrap(), ask);
        let point = parse(Some("source="), Takes::Columns, Source::All).unwrap();
        assert_eq!(point.source, Source::All);
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for raw in [
            "source=bogus",
            "limit=0",
            "limit=1001",
            "limit=many",
            "limit=-1",
            "limit=%2B1",
            "limit=+1",
            "offset=-1",
            "limit=1&limit=2",
            "source=all&source=wal",
            "cursor=x&cursor=x",
            "cursor=x&offset=0",
            "limit=",
            "columns=",
            "columns=a,,b",
            "where=",
            "order=",
            "order=-",
            "order=a,-a",
            "order=a,b,c,d,e",
            "order=a&order=b",
            "where=+",
            "where=a&where=b",
            "role=tool&role=assistant",
        ] {
            assert!(page(raw).is_err(), "{raw}");
        }
        let ask = page("limit=1000&offset=18446744073709551615&source=all").unwrap();
        assert_eq!(ask.offset, u64::MAX);
    }

    #[test]
    fn a_route_takes_its_own_parameters_only() {
        for (takes, raw) in [
            (Takes::Source, "limit=1"),
            (Takes::Source, "role=tool"),
            (Takes::Columns, "offset=1"),
            (Takes::Columns, "cursor=x"),
            (Takes::Values, "cursor=x"),
            (Takes::Values, "columns=a"),
        ] {
            assert!(parse(Some(raw), takes, Source::All).is_err(), "{raw}");
        }
        let ask = parse(Some("role=tool&id="), Takes::Values, Source::All).unwrap();
        let want = [("role", "tool"), ("id", "")].map(|(c, v)| (c.to_string(), v.to_string()));
        assert_eq!(ask.exact, want);
    }
}
