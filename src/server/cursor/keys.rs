//! The keys that cursors are signed with.
//!
//! Lives here: `CursorKeys`: the first signs, both verify, so that a key can be replaced while cursors of the one before
//! are about, and so that every replica takes every other's. May use: HMAC-SHA256. Must never come in: a key, or a part of
//! one, in a message.

use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::DecodePaddingMode::Indifferent;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a signature.
pub(super) const SIGNATURE: usize = 32;
/// The fewest and the most bytes of a key.
const KEY_BYTES: [usize; 2] = [32, 128];
/// The longest id of a key.
pub(super) const ID_BYTES: usize = 16;
/// What is signed begins with this, so that no signature made for anything else with the same key fits.
const PURPOSE: &[u8] = b"freshet cursor\0";

const PADDING: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, PADDING);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, PADDING);

/// Keys for cursors; none for unsigned ones. Clones share them, and [`replace`](Self::replace) changes them for all.
#[derive(Clone, Default)]
pub struct CursorKeys(Arc<RwLock<Vec<Key>>>);

struct Key {
    id: String,
    mac: Hmac<Sha256>,
}

impl std::fmt::Debug for CursorKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

/// Why a text holds no keys. No part of the text is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    /// No line holds one.
    #[error("no key is in it; write one or two lines `ID KEY`, the first signs. {MAKE}")]
    None,
    /// More than two.
    #[error(
        "line {0} holds a third key; the first signs and the second still verifies, remove the others"
    )]
    TooMany(usize),
    /// A line is none.
    #[error("line {0} is no key; write `ID KEY`. {MAKE}")]
    Line(usize),
    /// An id is none.
    #[error(
        "the id in line {0} is wrong; write 1 to {ID_BYTES} lower-case letters, digits and dashes"
    )]
    Id(usize),
    /// Both have one id.
    #[error("line {0} has the id of the line before; give each key an id of its own")]
    SameId(usize),
    /// A key is none.
    #[error("the key in line {0} is not base64 of {least} to {most} bytes. {MAKE}", least = KEY_BYTES[0], most = KEY_BYTES[1])]
    Key(usize),
}

const MAKE: &str = "A key is made by `head -c 32 /dev/urandom | base64`";

impl CursorKeys {
    /// Reads keys: a line `ID KEY` each, the key as base64; lines that are empty or begin with # say nothing.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, BadKeys> {
        let mut keys: Vec<Key> = vec![];
        for (at, line) in text.lines().enumerate().map(|(at, l)| (at + 1, l.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if keys.len() == 2 {
                return Err(BadKeys::TooMany(at));
            }
            let mut words = line.split_whitespace();
            let (Some(id), Some(key), None) = (words.next(), words.next(), words.next()) else {
                return Err(BadKeys::Line(at));
            };
            if !is_id(id) {
                return Err(BadKeys::Id(at));
            }
            if keys.iter().any(|k| k.id == id) {
                return Err(BadKeys::SameId(at));
            }
            let bytes = STANDARD.decode(key).or_else(|_| URL_SAFE.decode(key));
            let bytes = bytes
                .ok()
                .filter(|b| (KEY_BYTES[0]..=KEY_BYTES[1]).contains(&b.len()));
            let mac = bytes.and_then(|b| Hmac::new_from_slice(&b).ok());
            keys.push(Key {
                id: id.into(),
                mac: mac.ok_or(BadKeys::Key(at))?,
            });
        }
        match keys.is_empty() {
            true => Err(BadKeys::None),
            false => Ok(Self(Arc::new(RwLock::new(keys)))),
        }
    }

    /// Goes by other keys from now on, in every clone.
    pub fn replace(&self, with: &Self) {
        let with: Vec<Key> = with.each(|k| Key {
            id: k.id.clone(),
            mac: k.mac.clone(),
        });
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = with;
    }

    /// The ids, the signing key's first.
    pub fn ids(&self) -> Vec<String> {
        self.each(|k| k.id.clone())
    }

    fn each<T>(&self, what: impl Fn(&Key) -> T) -> Vec<T> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().map(what).collect()
    }

    /// The id and the signature of `bytes` after `head` made of that id; `None` where cursors are not signed.
    pub(super) fn sign(
        &self,
        message: impl Fn(&str) -> Vec<u8>,
    ) -> Option<(Vec<u8>, [u8; SIGNATURE])> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.first()?;
        let message = message(&key.id);
        let signature = key.of(&message).finalize().into_bytes();
        Some((message, signature.into()))
    }

    /// Whether a signature is right; `None` where no key has that id.
    pub(super) fn verify(&self, id: &str, message: &[u8], signature: &[u8]) -> Option<bool> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.iter().find(|k| k.id == id)?;
        Some(key.of(message).verify_slice(signature).is_ok())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.each(|_| ()).is_empty()
    }
}

impl Key {
    fn of(&self, message: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(PURPOSE);
        mac.update(message);
        mac
    }
}

pub(super) fn is_id(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=ID_BYTES).contains(&id.len()) && id.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    const TWO: &str = "__________________________________________8";

    #[test]
    fn one_key_or_two_are_read_and_told_by_id_alone() {
        let text = format!("# made on a Monday\n\nnew {ONE}\n  old\t{TWO}  \n");
        let keys = CursorKeys::parse(&text).unwrap();
        assert_eq!(keys.ids(), ["new", "old"]);
        assert_eq!(format!("{keys:?}"), r#"["new", "old"]"#);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line_and_not_repeated() {
        for (text, wrong) in [
            ("".into(), BadKeys::None),
            ("# nothing".into(), BadKeys::None),
            (ONE.to_string(), BadKeys::Line(1)),
            (format!("a {ONE} b"), BadKeys::Line(1)),
            (format!("\nA {ONE}"), BadKeys::Id(2)),
            (format!("{} {ONE}", "a".repeat(17)), BadKeys::Id(1)),
            (format!("a {ONE}\na {TWO}"), BadKeys::SameId(2)),
            (format!("a {ONE}\nb {TWO}\nc {ONE}"), BadKeys::TooMany(3)),
            ("a AAAA".into(), BadKeys::Key(1)),
            (format!("a {}!", &ONE[..43]), BadKeys::Key(1)),
            (format!("a {}", "A".repeat(180)), BadKeys::Key(1)),
        ] {
            let said = CursorKeys::parse(&text).unwrap_err();
            assert_eq!(said, wrong, "{text}");
            assert!(!said.to_string().contains("AAAA"), "{said}");
        }
    }

    #[test]
    fn a_key_that_is_replaced_still_verifies_and_one_that_is_gone_is_unknown() {
        let keys = CursorKeys::parse(&format!("one {ONE}")).unwrap();
        let shared = keys.clone();
        let (message, signature) = keys.sign(|id| id.as_bytes().to_vec()).unwrap();
        assert_eq!(shared.verify("one", &message, &signature), Some(true));
        keys.replace(&CursorKeys::parse(&format!("two {TWO}\none {ONE}")).unwrap());
        assert_eq!(shared.verify("one", &message, &signature), Some(true));
        assert_eq!(shared.verify("two", &message, &signature), Some(false));
        assert_eq!(
            shared.verify("one", &message, &signature[..31]),
            Some(false)
        );
        keys.replace(&CursorKeys::parse(&format!("two {TWO}")).unwrap());
        assert_eq!(shared.verify("one", &message, &signature), None);
    }
}
