//! The reference of the resource for people, made from its schema.
//!
//! Lives here: the tables that `docs/api.md` shows, a line for each field. May use: plain JSON. Must never come in: a
//! sentence that the schema does not have; `kubectl explain` says the same.

use serde_json::Value;

/// `docs/api.md`, after its first paragraphs.
pub fn reference(schema: &Value) -> String {
    let mut out = String::new();
    for part in ["spec", "status"] {
        out.push_str(&format!(
            "## {part}\n\n| field | type | what it is |\n|---|---|---|\n"
        ));
        below(&schema["properties"][part], part, &mut out);
        out.push('\n');
    }
    out
}

fn below(schema: &Value, path: &str, out: &mut String) {
    let required = |name: &String| {
        let list = schema["required"].as_array();
        list.is_some_and(|l| l.iter().any(|r| r == name.as_str()))
    };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let mut kind = kind(field);
        if required(name) {
            kind.push_str(", required");
        }
        let said = field["description"].as_str().unwrap_or_default();
        let said = said.replace('|', "\\|");
        out.push_str(&format!("| `{path}` | {kind} | {said} |\n"));
        below(field, &path, out);
        below(&field["items"], &format!("{path}[]"), out);
    }
}

/// Its type, with the bounds that a person has to know.
fn kind(field: &Value) -> String {
    let mut said = match field["type"].as_str() {
        Some("array") => format!(
            "list of {}s",
            field["items"]["type"].as_str().unwrap_or("any")
        ),
        Some(kind) => field["format"]
            .as_str()
            .filter(|f| *f == "date-time")
            .map_or(kind, |_| "time")
            .to_string(),
        None => "any".to_string(),
    };
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|v| format!("`{}`", plain(v))).collect();
        said = values.join(" or ");
    }
    for (bound, word) in [("minimum", "at least"), ("maximum", "at most")] {
        if field[bound].is_number() {
            said.push_str(&format!(", {word} {}", field[bound]));
        }
    }
    if !field["default"].is_null() && !field["default"].is_object() {
        said.push_str(&format!(", default `{}`", plain(&field["default"])));
    }
    said
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_in_the_docs_is_the_schemas() {
        let docs = include_str!("../../../docs/api.md");
        let made = reference(super::super::schema());
        assert!(
            docs.ends_with(&made),
            "docs/api.md is not of this code; it should end with:\n{made}"
        );
    }
}
