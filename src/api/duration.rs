//! Go-style durations, as every duration of the resource is written: `90s`, `10m`, `1h30m`, `500ms`.
//!
//! One type holds the value, its text form, and its schema, so that what the API server accepts and what we read are
//! the same language. It may use serde and schemars; clocks and calendars stay out.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The pattern of a [`GoDuration`]: hours, minutes, seconds, milliseconds, in this order, each at most once.
pub const DURATION_PATTERN: &str = r"^([0-9]{1,5}(\.[0-9]{1,3})?h)?([0-9]{1,6}(\.[0-9]{1,3})?m)?([0-9]{1,6}(\.[0-9]{1,3})?s)?([0-9]{1,6}(\.[0-9]{1,3})?ms)?$";

/// The longest text of a [`GoDuration`], in characters.
pub const DURATION_MAX_LENGTH: u32 = 48;

/// Units in the order in which they may appear: suffix, microseconds, digits before the point.
const UNITS: [(&str, u64, usize); 4] = [
    ("h", 3_600_000_000, 5),
    ("m", 60_000_000, 6),
    ("s", 1_000_000, 6),
    ("ms", 1_000, 6),
];

/// The longest duration that has a text form, in microseconds: `99999h59m59s999.999ms`.
const MAX_MICROS: u64 = 100_000 * 3_600_000_000 - 1;

/// A span of time, kept in whole microseconds and at most [`GoDuration::MAX`]; longer ones saturate.
///
/// Reads `90s`, `1h30m`, `1.5h`, `500ms`; writes the shortest canonical form (`1m30s`, `1h30m`, `500ms`, `0s`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(u64);

/// Why a text is not a [`GoDuration`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DurationError(&'static str);

impl DurationError {
    /// The name of this failure.
    pub fn reason(&self) -> &'static str {
        "InvalidDuration"
    }
}

/// What to write instead of a text that is no duration.
pub const DURATION_REMEDY: &str =
    "write hours, minutes, seconds, milliseconds in this order, as in 90s, 10m, 1h30m or 500ms";

impl GoDuration {
    /// No time at all, `0s`.
    pub const ZERO: Self = Self(0);
    /// The longest duration, somewhat over 11 years.
    pub const MAX: Self = Self(MAX_MICROS);

    /// A duration of whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(1_000_000))
    }

    /// A duration of whole minutes.
    pub const fn from_mins(mins: u64) -> Self {
        Self::from_secs(mins.saturating_mul(60))
    }

    /// A duration of whole hours.
    pub const fn from_hours(hours: u64) -> Self {
        Self::from_mins(hours.saturating_mul(60))
    }

    /// A duration of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_micros(millis.saturating_mul(1_000))
    }

    const fn from_micros(micros: u64) -> Self {
        Self(if micros > MAX_MICROS {
            MAX_MICROS
        } else {
            micros
        })
    }

    /// The same span as the standard library's type.
    pub const fn as_duration(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// The sum, at most [`GoDuration::MAX`].
    pub const fn saturating_add(self, other: Self) -> Self {
        Self::from_micros(self.0.saturating_add(other.0))
    }

    /// Whether this is `0s`.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

/// Cuts to whole microseconds and saturates at [`GoDuration::MAX`].
impl From<Duration> for GoDuration {
    fn from(value: Duration) -> Self {
        Self::from_micros(u64::try_from(value.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<GoDuration> for Duration {
    fn from(value: GoDuration) -> Self {
        value.as_duration()
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        if text.is_empty() {
            return Err(DurationError("a duration is empty"));
        }
        let mut rest = text;
        let mut micros = 0u64;
        let mut next = 0;
        while !rest.is_empty() {
            let (number, after) = split_number(rest)?;
            let letters = after
                .find(|c: char| !c.is_ascii_alphabetic())
                .unwrap_or(after.len());
            let (unit, tail) = after.split_at(letters);
            let at = UNITS
                .iter()
                .position(|(suffix, ..)| *suffix == unit)
                .ok_or(DurationError(
                    "a number of a duration needs a unit: h, m, s or ms",
                ))?;
            if at < next {
                return Err(DurationError(
                    "the units of a duration stand in the order h, m, s, ms, each once",
                ));
            }
            next = at + 1;
            micros += scaled(number, UNITS[at].1, UNITS[at].2)?;
            rest = tail;
        }
        Ok(Self::from_micros(micros))
    }
}

/// Splits `12.5s…` into `12.5` and `s…`.
fn split_number(text: &str) -> Result<(&str, &str), DurationError> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    if end == 0 {
        return Err(DurationError(
            "a duration is numbers with units, and has no sign",
        ));
    }
    Ok(text.split_at(end))
}

/// `number` of a unit of `unit` microseconds, in microseconds. At most 3 digits stand behind the point, so the result
/// is exact, and four of them never overflow.
fn scaled(number: &str, unit: u64, digits: usize) -> Result<u64, DurationError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || whole.len() > digits {
        return Err(DurationError(
            "a number of a duration has 1 to 6 digits (hours at most 5) before its point",
        ));
    }
    if fraction.is_empty() || fraction.len() > 3 || fraction.contains('.') {
        return Err(DurationError(
            "a number of a duration has 1 to 3 digits behind its point",
        ));
    }
    let parse = |s: &str| {
        s.parse::<u64>()
            .map_err(|_| DurationError("a duration is numbers with units"))
    };
    let thousandths = parse(&format!("{fraction:0<3}"))?;
    Ok(parse(whole)? * unit + thousandths * unit / 1000)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (suffix, unit, _) in &UNITS[..3] {
            if rest >= *unit {
                write!(f, "{}{suffix}", rest / unit)?;
                rest %= unit;
            }
        }
        match (rest / 1000, rest % 1000) {
            (0, 0) => Ok(()),
            (millis, 0) => write!(f, "{millis}ms"),
            (millis, micros) => write!(
                f,
                "{millis}.{}ms",
                format!("{micros:03}").trim_end_matches('0')
            ),
        }
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse()
            .map_err(|e| serde::de::Error::custom(format!("{e}; {DURATION_REMEDY}")))
    }
}

impl JsonSchema for GoDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "GoDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": DURATION_PATTERN,
            "minLength": 2,
            "maxLength": DURATION_MAX_LENGTH,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regex::Regex;

    #[test]
    fn durations_are_read_as_go_reads_them_and_written_in_one_canonical_form() {
        for (text, micros, canonical) in [
            ("90s", 90_000_000, "1m30s"),
            ("10m", 600_000_000, "10m"),
            ("1h30m", 5_400_000_000, "1h30m"),
            ("1.5h", 5_400_000_000, "1h30m"),
            ("500ms", 500_000, "500ms"),
            ("1.5ms", 1_500, "1.5ms"),
            ("0.001ms", 1, "0.001ms"),
            ("24h", 86_400_000_000, "24h"),
            ("1h0m5s", 3_605_000_000, "1h5s"),
            ("0s", 0, "0s"),
            ("00h", 0, "0s"),
            ("99999h59m59s999.999ms", MAX_MICROS, "99999h59m59s999.999ms"),
            ("99999h999999m", MAX_MICROS, "99999h59m59s999.999ms"),
        ] {
            let parsed: GoDuration = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(parsed.0, micros, "{text}");
            assert_eq!(parsed.to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_a_reason() {
        for text in [
            "", "5", "s", "-5s", "+5s", "5 s", " 5s", "5s ", "5S", "5d", "1m1h", "1s1s", "1..5s",
            ".5s", "5.s", "1.2345s", "1234567s", "123456h", "5µs", "٥s", "1e3s", "0", "1h30",
            "5ms5s",
        ] {
            let error = text.parse::<GoDuration>().expect_err(text);
            assert!(!error.to_string().is_empty(), "{text}");
        }
    }

    #[test]
    fn a_giant_text_is_refused_without_being_worked_through() {
        assert!("9".repeat(10_000_000).parse::<GoDuration>().is_err());
        assert!("1s".repeat(5_000_000).parse::<GoDuration>().is_err());
    }

    proptest! {
        #[test]
        fn every_duration_survives_its_text_form(micros in 0..=MAX_MICROS) {
            let duration = GoDuration(micros);
            let text = duration.to_string();
            prop_assert_eq!(text.parse::<GoDuration>(), Ok(duration));
            prop_assert!(Regex::new(DURATION_PATTERN).unwrap().is_match(&text));
            prop_assert!(text.len() >= 2 && text.len() <= DURATION_MAX_LENGTH as usize);
        }

        #[test]
        fn the_parser_and_the_pattern_agree(text in "[0-9.]{0,7}(h|m|s|ms|d|)[0-9.]{0,4}(h|m|s|ms|)") {
            let by_pattern = text.len() >= 2 && Regex::new(DURATION_PATTERN).unwrap().is_match(&text);
            prop_assert_eq!(text.parse::<GoDuration>().is_ok(), by_pattern, "{}", text);
        }
    }
}
