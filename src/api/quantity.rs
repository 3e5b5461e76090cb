//! Kubernetes quantities of bytes: `256Mi`, `1Gi`, `1G`, `4096`.
//!
//! One type holds the value, its text form, and its schema, so that what the API server accepts and what we read are
//! the same language: whole numbers of bytes, no fractions, no milli. It may use serde and schemars.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The pattern of a [`Quantity`]: whole bytes, or a whole number of one unit.
pub const QUANTITY_PATTERN: &str = r"^([0-9]{1,18}|[0-9]{1,6}(k|Ki|M|Mi|G|Gi)|[0-9]{1,5}(T|Ti))$";

/// The longest text of a [`Quantity`], in characters.
pub const QUANTITY_MAX_LENGTH: u32 = 18;

/// Units, in the order in which a value tries them when it is written: suffix, bytes, the most of them that are
/// written.
const UNITS: [(&str, u64, u64); 8] = [
    ("Ti", 1 << 40, 99_999),
    ("Gi", 1 << 30, 999_999),
    ("Mi", 1 << 20, 999_999),
    ("Ki", 1 << 10, 999_999),
    ("T", 1_000_000_000_000, 99_999),
    ("G", 1_000_000_000, 999_999),
    ("M", 1_000_000, 999_999),
    ("k", 1_000, 999_999),
];

const MAX_BYTES: u64 = 999_999_999_999_999_999;

/// A number of bytes, at most [`Quantity::MAX`]; larger ones saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity(u64);

/// Why a text is not a [`Quantity`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QuantityError(&'static str);

impl QuantityError {
    /// The name of this failure.
    pub fn reason(&self) -> &'static str {
        "InvalidQuantity"
    }
}

/// What to write instead of a text that is no quantity.
pub const QUANTITY_REMEDY: &str = "write a whole number of bytes with one of the units k, Ki, M, Mi, G, Gi, T, Ti or none, as in 256Mi or 1Gi";

impl Quantity {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// The largest quantity, just below 10^18 bytes.
    pub const MAX: Self = Self(MAX_BYTES);

    /// This many bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(if bytes > MAX_BYTES { MAX_BYTES } else { bytes })
    }

    /// This many mebibytes.
    pub const fn from_mebibytes(mebibytes: u64) -> Self {
        Self::from_bytes(mebibytes.saturating_mul(1 << 20))
    }

    /// This many gibibytes.
    pub const fn from_gibibytes(gibibytes: u64) -> Self {
        Self::from_bytes(gibibytes.saturating_mul(1 << 30))
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        if number.is_empty() {
            return Err(QuantityError(
                "a quantity begins with a whole number, and has no sign",
            ));
        }
        if number.len() > 18 {
            return Err(QuantityError("a quantity has at most 18 digits"));
        }
        let value = number
            .parse::<u64>()
            .map_err(|_| QuantityError("a quantity begins with a whole number"))?;
        if suffix.is_empty() {
            return Ok(Self::from_bytes(value));
        }
        let (_, unit, most) = UNITS.iter().find(|(name, ..)| *name == suffix).ok_or(
            QuantityError(
                "the unit of a quantity is k, Ki, M, Mi, G, Gi, T or Ti, and its number is whole",
            ),
        )?;
        if number.len() > most.to_string().len() {
            return Err(QuantityError(
                "a quantity with a unit has at most 6 digits, with T or Ti at most 5",
            ));
        }
        Ok(Self::from_bytes(value * unit))
    }
}

/// The largest unit that divides the value, binary ones first.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = UNITS.iter().find(|(_, unit, most)| {
            self.0 > 0 && self.0.is_multiple_of(*unit) && self.0 / unit <= *most
        });
        match fitting {
            Some((suffix, unit, _)) => write!(f, "{}{suffix}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse()
            .map_err(|e| serde::de::Error::custom(format!("{e}; {QUANTITY_REMEDY}")))
    }
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": QUANTITY_PATTERN,
            "minLength": 1,
            "maxLength": QUANTITY_MAX_LENGTH,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regex::Regex;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, bytes, canonical) in [
            ("0", 0, "0"),
            ("4096", 4096, "4Ki"),
            ("4097", 4097, "4097"),
            ("256Mi", 268_435_456, "256Mi"),
            ("1Gi", 1_073_741_824, "1Gi"),
            ("1024Mi", 1_073_741_824, "1Gi"),
            ("1536Mi", 1_610_612_736, "1536Mi"),
            ("1G", 1_000_000_000, "1G"),
            ("1k", 1_000, "1k"),
            ("0Gi", 0, "0"),
            ("99999Ti", 99_999 << 40, "99999Ti"),
            ("999999999999999999", MAX_BYTES, "999999999999999999"),
        ] {
            let parsed: Quantity = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(parsed.bytes(), bytes, "{text}");
            assert_eq!(parsed.to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_a_reason() {
        for text in [
            "",
            "Mi",
            "-1",
            "+1",
            "1.5Gi",
            "1e3",
            "1K",
            "1KiB",
            "1 Mi",
            "1m",
            "1Pi",
            "1234567Mi",
            "100000Ti",
            "٥Mi",
            "1234567890123456789",
        ] {
            assert!(
                !text
                    .parse::<Quantity>()
                    .expect_err(text)
                    .to_string()
                    .is_empty()
            );
        }
    }

    proptest! {
        #[test]
        fn every_quantity_survives_its_text_form(bytes in prop_oneof![0..=MAX_BYTES, (0..=999_999u64).prop_map(|n| n << 20)]) {
            let quantity = Quantity::from_bytes(bytes);
            let text = quantity.to_string();
            prop_assert_eq!(text.parse::<Quantity>(), Ok(quantity));
            prop_assert!(Regex::new(QUANTITY_PATTERN).unwrap().is_match(&text));
        }

        #[test]
        fn the_parser_and_the_pattern_agree(text in "[0-9]{0,20}(k|K|Ki|M|Mi|G|Gi|T|Ti|Pi|m|)") {
            prop_assert_eq!(text.parse::<Quantity>().is_ok(), Regex::new(QUANTITY_PATTERN).unwrap().is_match(&text));
        }
    }
}
