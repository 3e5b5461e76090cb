//! Keys in a path.
//!
//! Lives here: the one form of a key in a URL, base64url of a JSON array of its columns' values, and the plain text that
//! stands for a single value that is no such form. May use: nothing but parsing. Must never come in: a table's schema.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::value::RawValue;

use super::members::scalar;
use super::problem::Problem;
use crate::table::KeyText;

/// Reads a key as it stands in a path, its percent signs decoded.
pub(super) fn read(segment: &str) -> Result<KeyText, Problem> {
    let bytes = URL_SAFE_NO_PAD.decode(segment.trim_end_matches('=')).ok();
    let array = bytes.and_then(|b| serde_json::from_slice::<Vec<Box<RawValue>>>(&b).ok());
    let Some(array) = array else {
        return Ok(KeyText::Plain(segment.to_string()));
    };
    let wrong = || {
        Problem::parameter(
            "key",
            "a key is an array of strings, numbers and booleans, each as records show it, in base64url",
        )
    };
    let texts = array.iter().map(|value| scalar(value).ok_or_else(wrong));
    texts.collect::<Result<_, _>>().map(KeyText::Columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(texts: &[&str]) -> KeyText {
        KeyText::Columns(texts.iter().map(|t| t.to_string()).collect())
    }

    #[test]
    fn an_array_is_read_by_its_values_and_anything_else_is_plain() {
        let form = |json: &str| URL_SAFE_NO_PAD.encode(json);
        assert_eq!(read(&form(r#"["a/b"]"#)).unwrap(), columns(&["a/b"]));
        assert_eq!(
            read(&form(r#"[-9223372036854775808, "x", true]"#)).unwrap(),
            columns(&["-9223372036854775808", "x", "true"])
        );
        assert!(read(&form("[null]")).is_err());
        assert!(read(&form("[[1]]")).is_err());
        for plain in ["a", "episode-1", "42", "caf\u{e9}", "W10x", "", &form("{}")] {
            assert_eq!(read(plain).unwrap(), KeyText::Plain(plain.into()));
        }
    }
}
