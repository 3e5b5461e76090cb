//! YAML as a tree whose every node knows its line and column.
//!
//! A stream is cut at its `---` lines first, as `kubectl` does, so that a document which is not even YAML takes no other
//! down with it. Anchors and merge keys work within bounds that keep a small file from growing into a large tree. It
//! knows nothing of Experiments.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, SnippetMode, Spanned};

/// The most documents of one file.
const MOST_DOCUMENTS: usize = 10_000;
/// The most nodes of one document, with what its aliases repeat.
const MOST_NODES: usize = 100_000;
/// The most levels of nesting; what a cluster writes stays below 15. Each level takes stack.
const DEEPEST: usize = 24;
/// The most events that aliases may repeat.
const MOST_REPEATED: usize = 20_000;

/// A line and a column, both from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub line: u64,
    pub column: u64,
}

impl Place {
    fn of(location: Location) -> Option<Self> {
        (location.line() > 0).then(|| Self {
            line: location.line(),
            column: location.column(),
        })
    }

    fn moved(&mut self, lines: u64) {
        self.line += lines;
    }
}

/// A value and where it stands: at its key, if it has one, else where it begins.
#[derive(Clone, Debug)]
pub struct Node {
    pub place: Place,
    value: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Scalar(Value),
    List(Vec<Node>),
    Fields(Vec<(String, Node)>),
}

impl Node {
    /// The field of this name, if this is a map that has it.
    pub fn get(&self, name: &str) -> Option<&Node> {
        match &self.value {
            Content::Fields(fields) => fields
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, node)| node),
            _ => None,
        }
    }

    /// The items, if this is a list.
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Content::List(items) => items,
            _ => &[],
        }
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Content::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The value without its places.
    pub fn to_json(&self) -> Value {
        match &self.value {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => Value::Array(items.iter().map(Node::to_json).collect()),
            Content::Fields(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(key, node)| (key.clone(), node.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    /// Where the field of a path stands, as in `spec.table.uri` or `items[2].kind`; where it is absent, the nearest
    /// field above it. Keys may hold dots: of several keys that fit, the longest is meant.
    pub fn place_of(&self, path: &str) -> Place {
        let (mut node, mut rest) = (self, path);
        while !rest.is_empty() {
            let Some((below, after)) = node.step(rest) else {
                break;
            };
            (node, rest) = (below, after.strip_prefix('.').unwrap_or(after));
        }
        node.place
    }

    fn step<'p>(&self, path: &'p str) -> Option<(&Node, &'p str)> {
        match &self.value {
            Content::Fields(fields) => fields
                .iter()
                .filter_map(|(key, node)| {
                    path.strip_prefix(key.as_str())
                        .map(|rest| (key.len(), node, rest))
                })
                .filter(|(_, _, rest)| rest.is_empty() || rest.starts_with(['.', '[']))
                .max_by_key(|(length, ..)| *length)
                .map(|(_, node, rest)| (node, rest)),
            Content::List(items) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                Some((items.get(index.parse::<usize>().ok()?)?, rest))
            }
            Content::Scalar(_) => None,
        }
    }

    fn moved(&mut self, lines: u64) {
        self.place.moved(lines);
        match &mut self.value {
            Content::Scalar(_) => {}
            Content::List(items) => items.iter_mut().for_each(|node| node.moved(lines)),
            Content::Fields(fields) => fields.iter_mut().for_each(|(_, node)| node.moved(lines)),
        }
    }
}

/// One document of a stream that is not empty.
#[derive(Clone, Debug)]
pub struct Document {
    pub root: Node,
}

impl Document {
    /// [`Node::place_of`] from the root.
    pub fn place_of(&self, path: &str) -> Place {
        self.root.place_of(path)
    }
}

/// Why a document is not YAML, or not within bounds.
#[derive(Clone, Debug)]
pub struct Malformed {
    pub place: Place,
    pub message: String,
}

/// The documents of a stream, each read by itself; empty ones are left out.
pub fn documents(text: &str) -> Vec<Result<Document, Malformed>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    for (line, part) in parts(text) {
        if found.len() == MOST_DOCUMENTS {
            let message = format!(
                "the file holds more than {MOST_DOCUMENTS} documents; split it into several files"
            );
            found.push(Err(Malformed {
                place: Place {
                    line: line + 1,
                    column: 1,
                },
                message,
            }));
            break;
        }
        if let Some(document) = document(part, line) {
            found.push(document);
        }
    }
    found
}

/// Cuts a stream in front of each line that begins with `---`: the number of lines before each part, and the part.
fn parts(text: &str) -> Vec<(u64, &str)> {
    let mut parts = Vec::new();
    let (mut begin, mut begin_line, mut at) = (0, 0, 0);
    for (line, content) in (0..).zip(text.split_inclusive('\n')) {
        let marker = content
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if marker && at > begin {
            parts.push((begin_line, &text[begin..at]));
            (begin, begin_line) = (at, line);
        }
        at += content.len();
    }
    parts.push((begin_line, &text[begin..]));
    parts
}

fn document(part: &str, lines_before: u64) -> Option<Result<Document, Malformed>> {
    let blank = |line: &str| matches!(line.trim_start().chars().next(), None | Some('#'));
    let body = part.strip_prefix("---").unwrap_or(part);
    if body.lines().all(blank) {
        return None;
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MOST_NODES,
            max_events: 4 * MOST_NODES,
            max_depth: DEEPEST,
            flow_nesting_limit: DEEPEST,
            max_documents: 2,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MOST_REPEATED },
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Parsed>>(part, options) {
        Ok(parsed) => {
            let begin = Place::of(parsed.referenced).unwrap_or(Place { line: 1, column: 1 });
            let mut root = parsed.value.at(begin);
            root.moved(lines_before);
            // An empty document may also be spelled `null`.
            let empty = matches!(root.value, Content::Scalar(Value::Null));
            (!empty).then_some(Ok(Document { root }))
        }
        Err(error) => Some(Err(malformed(&error, lines_before))),
    }
}

fn malformed(error: &serde_saphyr::Error, lines_before: u64) -> Malformed {
    let mut place = error
        .location()
        .and_then(Place::of)
        .unwrap_or(Place { line: 1, column: 1 });
    place.moved(lines_before);
    let options =
        serde_saphyr::render_options! { snippets: SnippetMode::Off, line_offset: lines_before };
    let text = error.render_with_options(options);
    let text: String = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(300)
        .collect();
    Malformed {
        place,
        message: format!("is not valid YAML ({text}); mend it there or just above"),
    }
}

/// A value as it is parsed, its children with their places.
enum Parsed {
    Scalar(Value),
    List(Vec<Spanned<Parsed>>),
    Fields(Vec<(Spanned<String>, Spanned<Parsed>)>),
}

impl Parsed {
    fn at(self, place: Place) -> Node {
        let value = match self {
            Self::Scalar(value) => Content::Scalar(value),
            Self::List(items) => Content::List(
                items
                    .into_iter()
                    .map(|item| item.value.at(Place::of(item.referenced).unwrap_or(place)))
                    .collect(),
            ),
            Self::Fields(fields) => Content::Fields(
                fields
                    .into_iter()
                    .map(|(key, node)| {
                        let place = Place::of(key.referenced)
                            .or(Place::of(node.referenced))
                            .unwrap_or(place);
                        (key.value, node.value.at(place))
                    })
                    .collect(),
            ),
        };
        Node { place, value }
    }
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ParsedVisitor)
    }
}

struct ParsedVisitor;

impl<'de> Visitor<'de> for ParsedVisitor {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Parsed, D::Error> {
        Parsed::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::from(value)))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::String(value.to_string())))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::String(value.to_string())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Number::from_f64(value).map_or_else(
            || Value::String(value.to_string()),
            Value::Number,
        )))
    }

    fn visit_str<E>(self, value: &str) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::String(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::String(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Parsed, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Parsed::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Parsed, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = access.next_entry()? {
            fields.push(field);
        }
        Ok(Parsed::Fields(fields))
    }
}
