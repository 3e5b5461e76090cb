//! A cursor's text: round trips, and that nothing else is read as one.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use super::*;

fn keys(text: &[(&str, char)]) -> CursorKeys {
    let line = |(id, c): &(&str, char)| format!("{id} {}\n", c.to_string().repeat(43) + "=");
    // 43 characters of which the last one's two lowest bits are no bits of a byte.
    CursorKeys::parse(&text.iter().map(line).collect::<String>()).unwrap()
}

fn signing() -> CursorKeys {
    keys(&[("elm", 'A')])
}

fn shard() -> impl Strategy<Value = PinnedShard> {
    (0..=PinnedShard::LAST_NAME, 1..FURTHEST, any::<bool>()).prop_map(|(name, version, whole)| {
        PinnedShard {
            name,
            version,
            whole,
        }
    })
}

fn cursors() -> impl Strategy<Value = Cursor> {
    let of = (
        "[a-z]{0,9}",
        "[a-z]{1,20}",
        prop::option::of("[0-9a-f-]{36}"),
    );
    let asked = prop::collection::vec(("[a-z_]{1,12}", any::<u64>()), 0..4);
    let base = (1..FURTHEST, any::<u64>(), prop::option::of(any::<u64>()));
    let shards = || prop::collection::vec(shard(), 0..5);
    let place = (any::<bool>(), any::<u32>(), any::<u32>());
    let place = place.prop_map(|(pending, part, row)| Place { pending, part, row });
    let position = (any::<u64>(), prop::option::of(place));
    let times = (0..i64::MAX, 0..4_000_000_000_000i64);
    let rest = (1..3usize, any::<bool>(), any::<u128>(), any::<u128>());
    (of, asked, base, shards(), shards(), position, times, rest).prop_map(
        |(of, asked, base, pending, idle, position, times, rest)| Cursor {
            experiment: Of {
                namespace: of.0,
                name: of.1,
                uid: of.2,
            },
            asked,
            pin: Pin {
                source: Source::ALL[rest.0],
                base: PinnedBase {
                    version: base.0,
                    made: base.1,
                    e_tag: base.2,
                },
                pending,
                idle,
                across_shards: rest.1,
                read_at: Timestamp::from_nanosecond(times.0.into()).unwrap(),
                digest: rest.2,
                check: rest.3,
            },
            position: Position {
                rows: position.0,
                place: position.1,
            },
            expires: Timestamp::from_millisecond(times.1).unwrap(),
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_signed_or_not(cursor in cursors()) {
        for keys in [CursorKeys::default(), signing()] {
            let text = cursor.write(&keys).unwrap();
            prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
            prop_assert_eq!(Cursor::read(&text, &keys), Ok(cursor.clone()));
        }
    }

    #[test]
    fn a_signed_cursor_with_any_byte_changed_is_refused(cursor in cursors(), bit in 0u8..8) {
        let text = cursor.write(&signing()).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1 << bit;
            prop_assert!(Cursor::read(&URL_SAFE_NO_PAD.encode(other), &signing()).is_err(), "byte {}", at);
        }
    }

    #[test]
    fn a_cursor_that_is_cut_short_or_longer_is_refused(cursor in cursors()) {
        for keys in [CursorKeys::default(), signing()] {
            let text = cursor.write(&keys).unwrap();
            for end in 0..text.len() {
                prop_assert!(Cursor::read(&text[..end], &keys).is_err(), "{} of {}", end, text.len());
            }
            for more in ["A", "AA", "AAA", "AAAA", "="] {
                let longer = format!("{text}{more}");
                prop_assert!(Cursor::read(&longer, &keys).is_err());
            }
        }
    }

    #[test]
    fn an_unsigned_cursor_with_a_byte_changed_is_refused_or_has_one_form(cursor in cursors(), at: prop::sample::Index, to: u8) {
        let keys = CursorKeys::default();
        let mut bytes = URL_SAFE_NO_PAD.decode(cursor.write(&keys).unwrap()).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        let text = URL_SAFE_NO_PAD.encode(bytes);
        if let Ok(read) = Cursor::read(&text, &keys) {
            prop_assert_eq!(read.write(&keys), Some(text));
        }
    }
}

#[test]
fn random_bytes_are_refused_and_never_a_panic() {
    let mut rng = StdRng::seed_from_u64(12);
    for round in 0..60_000 {
        let mut bytes = vec![0; rng.random_range(0..200)];
        rng.fill_bytes(&mut bytes);
        // Most are of the right form and unsigned, so that what follows is read.
        if round % 4 != 0 {
            bytes.splice(0..bytes.len().min(2), [FORMAT, 0]);
        }
        let text = URL_SAFE_NO_PAD.encode(&bytes);
        let _ = Cursor::read(&text, &CursorKeys::default());
        assert!(Cursor::read(&text, &signing()).is_err());
    }
    for text in ["", "%", "äö", "AA==", "a b", "\0", "🌲"] {
        assert_eq!(
            Cursor::read(text, &signing()),
            Err(Refused::Malformed),
            "{text}"
        );
    }
}

fn one() -> Cursor {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    cursors().new_tree(&mut runner).unwrap().current()
}

#[test]
fn another_release_and_another_key_are_told_apart_from_forgery() {
    let text = one().write(&signing()).unwrap();
    let mut bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
    bytes[0] = 2;
    let later = URL_SAFE_NO_PAD.encode(bytes);
    assert_eq!(Cursor::read(&later, &signing()), Err(Refused::Format(2)));
    let other_key = keys(&[("oak", 'A')]);
    assert_eq!(Cursor::read(&text, &other_key), Err(Refused::Key));
    assert_eq!(
        Cursor::read(&text, &CursorKeys::default()),
        Err(Refused::Key)
    );
    let same_id = keys(&[("elm", 'Q')]);
    assert_eq!(Cursor::read(&text, &same_id), Err(Refused::Forged));
    let unsigned = one().write(&CursorKeys::default()).unwrap();
    assert_eq!(Cursor::read(&unsigned, &signing()), Err(Refused::Forged));
}

#[test]
fn a_replica_with_the_other_key_first_reads_it() {
    let text = one().write(&keys(&[("elm", 'A'), ("oak", 'Q')])).unwrap();
    let other = keys(&[("oak", 'Q'), ("elm", 'A')]);
    assert_eq!(Cursor::read(&text, &other), Ok(one()));
}

#[test]
fn a_cursor_over_many_shards_fits_a_request_and_over_too_many_is_none() {
    let over = |shards: u64| {
        let mut cursor = one();
        cursor.pin.pending = (0..shards)
            .map(|n| PinnedShard {
                name: n * 77_777,
                version: 3 + n * 5,
                whole: false,
            })
            .collect();
        cursor.write(&signing()).map(|text| text.len())
    };
    assert!(over(500).unwrap() <= LONGEST);
    assert_eq!(over(5_000), None);
}

#[test]
fn numbers_beyond_their_bounds_are_refused() {
    let keys = CursorKeys::default();
    let changes: [fn(&mut Cursor); 5] = [
        |c| c.pin.base.version = 0,
        |c| c.pin.base.version = FURTHEST + 1,
        |c| c.experiment.name = "n".repeat(254),
        |c| c.asked = vec![("a".into(), 1); 33],
        |c| {
            let none = PinnedShard {
                name: 1,
                version: 1,
                whole: false,
            };
            (c.pin.source, c.pin.idle) = (Source::Fragments, vec![none]);
        },
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut cursor = one();
        change(&mut cursor);
        let text = cursor.write(&keys).unwrap();
        assert_eq!(Cursor::read(&text, &keys), Err(Refused::Malformed), "{at}");
    }
}
