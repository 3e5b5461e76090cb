//! The token that a request brings.
//!
//! Lives here: reading it out of the headers, the shape that every token of a cluster has, and the time that it says of its own
//! end. May use: nothing but parsing. Must never come in: a token in a message or in `Debug`, or trust in what it
//! says: only the API server knows whether it is one.

use std::fmt;

use axum::http::{HeaderMap, header};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::server::Refused;

/// The longest token that is looked at, in bytes.
const LONGEST: usize = 8 << 10;

/// A token of the right shape.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    text: String,
    /// Seconds since 1970 at which it ends, as it says itself.
    pub ends: Option<u64>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// The token of a request.
    ///
    /// # Errors
    /// Where there is none, or what there is cannot be one: nobody is asked about that.
    pub fn of(headers: &HeaderMap) -> Result<Self, Refused> {
        let mut all = headers.get_all(header::AUTHORIZATION).iter();
        let Some(first) = all.next() else {
            return Err(Refused::NoToken);
        };
        if all.next().is_some() {
            return Err(Refused::Malformed("send one header Authorization"));
        }
        // The scheme's name is read without regard to case (RFC 9110).
        let said = first.to_str().unwrap_or_default();
        let Some((scheme, text)) = said.split_once(' ') else {
            return Err(Refused::Malformed(
                "write the header as `Authorization: Bearer TOKEN`",
            ));
        };
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Refused::Malformed(
                "the scheme of Authorization is Bearer; others are not taken",
            ));
        }
        Self::read(text.trim_matches(' '))
    }

    fn read(text: &str) -> Result<Self, Refused> {
        if text.len() > LONGEST {
            return Err(Refused::Malformed("a token has at most 8 KiB"));
        }
        let parts: Vec<&str> = text.split('.').collect();
        let object = |part: &str| {
            let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
            let value = serde_json::from_slice::<Value>(&bytes).ok()?;
            value.is_object().then_some(value)
        };
        let claims = match parts.as_slice() {
            [head, claims, signature]
                if URL_SAFE_NO_PAD
                    .decode(signature)
                    .is_ok_and(|s| !s.is_empty()) =>
            {
                object(head).and(object(claims))
            }
            _ => None,
        };
        let Some(claims) = claims else {
            return Err(Refused::Malformed(
                "a token is a JSON Web Token: three parts of base64url with dots between them, as `kubectl create token --audience` prints it",
            ));
        };
        // Whole seconds in clusters' tokens, and any number by the standard.
        let ends = claims["exp"].as_f64().filter(|e| *e >= 0.0);
        Ok(Self {
            text: text.to_owned(),
            ends: ends.map(|e| e as u64),
        })
    }

    /// The token itself, for the one who is asked about it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it is known by here: no token is kept.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.text.as_bytes()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt(claims: &str) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!(
            "{}.{}.{}",
            part("{\"alg\":\"RS256\"}"),
            part(claims),
            part("signature")
        )
    }

    fn read(values: &[&str]) -> Result<Token, Refused> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        Token::of(&headers)
    }

    #[test]
    fn what_cannot_be_a_token_is_refused_before_anybody_is_asked() {
        assert_eq!(read(&[]), Err(Refused::NoToken));
        let good = jwt("{}");
        let long = jwt(&format!("{{\"pad\":\"{}\"}}", "x".repeat(LONGEST)));
        let [head, claims, signature] = good.split('.').collect::<Vec<_>>()[..] else {
            unreachable!()
        };
        let no_object = URL_SAFE_NO_PAD.encode("[1]");
        for value in [
            "Bearer",
            "Bearer ",
            "Bearer garbage",
            "Bearer a.b.c",
            "Basic dXNlcjpwYXNz",
            &good,
            &format!("Bearer {long}"),
            &format!("Bearer {head}.{claims}"),
            &format!("Bearer {head}.{claims}."),
            &format!("Bearer {head}.{claims}.{signature}.{signature}"),
            &format!("Bearer {head}.{no_object}.{signature}"),
            &format!("Bearer {head}.{claims}.{signature}!"),
            &format!("Bearer {head} {claims}.{signature}"),
            &format!("Bearer {good} {good}"),
        ] {
            let said = read(&[value]);
            assert!(
                matches!(said, Err(Refused::Malformed(_))),
                "{value}: {said:?}"
            );
        }
        let bearer = format!("Bearer {good}");
        assert!(matches!(
            read(&[&bearer, &bearer]),
            Err(Refused::Malformed(_))
        ));
    }

    #[test]
    fn a_token_is_read_and_never_shown() {
        let text = jwt("{\"exp\": 1900000000, \"sub\": \"alder\"}");
        for scheme in ["Bearer", "bearer", "BEARER "] {
            let token = read(&[&format!("{scheme} {text}")]).unwrap();
            assert_eq!(token.text(), text);
            assert_eq!(token.ends, Some(1_900_000_000));
            assert!(!format!("{token:?}").contains(&text));
        }
        for (claims, ends) in [
            ("{}", None),
            ("{\"exp\":\"soon\"}", None),
            ("{\"exp\":7.9}", Some(7)),
        ] {
            assert_eq!(Token::read(&jwt(claims)).unwrap().ends, ends);
        }
    }

    #[test]
    fn two_tokens_have_two_digests() {
        let [a, b] = ["{\"jti\":1}", "{\"jti\":2}"].map(|c| Token::read(&jwt(c)).unwrap());
        assert_ne!(a.digest(), b.digest());
        assert_eq!(a.digest(), a.clone().digest());
    }
}
