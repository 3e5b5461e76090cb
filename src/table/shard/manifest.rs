//! A shard's manifest, decoded.
//!
//! Lives here: what makes a manifest unusable (empty, cut short, another's, counted out of range), and telling whether it
//! says more than this Lance can write back (contract 8). May use: Lance's manifest types. Never: a request to a store.

use bytes::Bytes;
use lance_index::mem_wal::ShardManifest;
use lance_table::format::pb;
use prost::Message;
use uuid::Uuid;

use super::super::error::{Error, Result};

/// No writer's count comes so far. What lies beyond is no count, and nothing may be added to it.
const FURTHEST: u64 = u64::MAX >> 1;

/// Decodes the newest manifest of a shard out of the file of `version`, and says whether encoding it again keeps every
/// field.
///
/// # Errors
/// `UnsupportedManifest` where it cannot be used.
pub(super) fn decode(shard: Uuid, version: u64, bytes: Bytes) -> Result<(ShardManifest, bool)> {
    let bad = |what: &str| Error::UnsupportedManifest {
        shard,
        what: format!(
            "its newest manifest, version {version}, {what}; put a whole copy of that file back, until then nothing of the shard is merged or deleted"
        ),
    };
    if bytes.is_empty() {
        return Err(bad("is empty"));
    }
    let proto = pb::ShardManifest::decode(bytes.clone())
        .map_err(|_| bad("cannot be read: it is cut short, or no manifest at all"))?;
    let manifest = ShardManifest::try_from(proto)
        .map_err(|_| bad("cannot be read: it is cut short, or parts of it are missing"))?;
    if manifest.shard_id != shard {
        return Err(bad("is that of another shard"));
    }
    if manifest.version != version {
        return Err(bad("is that of another version"));
    }
    if counts(&manifest).any(|n| n > FURTHEST) {
        return Err(bad("counts further than any writer comes"));
    }
    // Merged, it would mark as merged what the writer has yet to flush under the numbers up to it.
    let mut listed = manifest.sstables.iter();
    if listed.any(|s| s.generation >= manifest.current_generation) {
        return Err(bad("lists a generation that its writer has not come to"));
    }
    let again = pb::ShardManifest::from(&manifest).encode_to_vec();
    let supported = match (fields(&bytes), fields(&again)) {
        (Some(before), Some(after)) => before == after,
        _ => false,
    };
    Ok((manifest, supported))
}

/// Everything in a manifest that its writer adds to.
fn counts(m: &ShardManifest) -> impl Iterator<Item = u64> {
    let own = [
        m.version,
        m.writer_epoch,
        m.replay_after_wal_entry_position,
        m.wal_entry_position_last_seen,
        m.current_generation,
    ];
    own.into_iter()
        .chain(m.sstables.iter().map(|s| s.generation))
}

/// A message's fields as (tag, value bytes), sorted: two encodings of one message compare equal whatever their order.
/// `None` where the bytes are no message.
fn fields(mut buf: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut out = Vec::new();
    while !buf.is_empty() {
        let tag = varint(&mut buf)?;
        let size = match tag & 7 {
            0 => {
                let mut rest = buf;
                varint(&mut rest)?;
                buf.len() - rest.len()
            }
            1 => 8,
            2 => varint(&mut buf)? as usize,
            5 => 4,
            _ => return None,
        };
        let (value, rest) = buf.split_at_checked(size)?;
        out.push((tag, value.to_vec()));
        buf = rest;
    }
    out.sort();
    Some(out)
}

fn varint(buf: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = buf.split_first()?;
        *buf = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use lance_index::mem_wal::SsTable;

    use super::*;

    fn manifest() -> ShardManifest {
        ShardManifest {
            shard_id: Uuid::from_u128(7),
            version: 3,
            shard_spec_id: 0,
            shard_field_values: Default::default(),
            writer_epoch: 2,
            replay_after_wal_entry_position: 4,
            wal_entry_position_last_seen: 5,
            current_generation: 6,
            sstables: vec![],
            status: Default::default(),
        }
    }

    #[test]
    fn a_manifest_of_this_lance_is_supported() {
        let bytes = pb::ShardManifest::from(&manifest()).encode_to_vec();
        let (read, supported) = decode(Uuid::from_u128(7), 3, bytes.into()).unwrap();
        assert!(supported);
        assert_eq!(read.current_generation, 6);
    }

    #[test]
    fn a_manifest_with_a_field_of_a_newer_client_is_not_supported() {
        let mut bytes = pb::ShardManifest::from(&manifest()).encode_to_vec();
        bytes.extend([0xf8, 0x07, 0x01]); // field 127, varint 1
        assert!(!decode(Uuid::from_u128(7), 3, bytes.into()).unwrap().1);
    }

    fn refused(version: u64, bytes: impl Into<Bytes>) -> String {
        let e = decode(Uuid::from_u128(7), version, bytes.into()).unwrap_err();
        assert_eq!(e.reason(), "UnsupportedManifest");
        e.to_string()
    }

    #[test]
    fn bytes_that_are_no_manifest_are_refused_by_name() {
        assert!(refused(3, vec![0xff; 9]).contains("version 3, cannot be read"));
        assert!(refused(3, vec![]).contains("version 3, is empty"));
    }

    #[test]
    fn a_manifest_that_is_cut_short_anywhere_never_reads_as_one_that_lists_less() {
        let mut whole = manifest();
        whole.sstables = (1..4)
            .map(|n| SsTable::unmeasured(n, format!("0badcafe_gen_{n}")))
            .collect();
        let bytes = pb::ShardManifest::from(&whole).encode_to_vec();
        for end in 0..bytes.len() {
            refused(3, bytes[..end].to_vec());
        }
    }

    #[test]
    fn a_manifest_of_another_shard_or_version_is_refused() {
        let bytes = pb::ShardManifest::from(&manifest()).encode_to_vec();
        assert!(refused(4, bytes.clone()).contains("another version"));
        let e = decode(Uuid::from_u128(8), 3, bytes.into()).unwrap_err();
        assert!(e.to_string().contains("another shard"));
    }

    #[test]
    fn a_manifest_that_lists_what_its_writer_has_not_come_to_is_refused() {
        for (number, listed) in [(5, true), (6, false), (7, false)] {
            let mut m = manifest();
            let path = format!("0badcafe_gen_{number}");
            m.sstables = vec![SsTable::unmeasured(number, path)];
            let bytes = pb::ShardManifest::from(&m).encode_to_vec();
            let read = decode(Uuid::from_u128(7), 3, bytes.into());
            assert_eq!(read.is_ok(), listed, "{number}");
        }
    }

    #[test]
    fn a_manifest_that_counts_to_the_end_of_numbers_is_refused() {
        let changes: [fn(&mut ShardManifest); 5] = [
            |m| m.writer_epoch = u64::MAX,
            |m| m.replay_after_wal_entry_position = u64::MAX,
            |m| m.wal_entry_position_last_seen = u64::MAX - 1,
            |m| m.current_generation = u64::MAX,
            |m| {
                m.sstables = vec![SsTable::unmeasured(
                    u64::MAX,
                    "0badcafe_gen_18446744073709551615".into(),
                )];
            },
        ];
        for change in changes {
            let mut m = manifest();
            change(&mut m);
            let bytes = pb::ShardManifest::from(&m).encode_to_vec();
            assert!(refused(3, bytes).contains("further than any writer"));
        }
        let mut m = manifest();
        m.version = u64::MAX;
        let bytes = pb::ShardManifest::from(&m).encode_to_vec();
        assert!(refused(u64::MAX, bytes).contains("further than any writer"));
    }

    #[test]
    fn the_order_of_fields_does_not_matter() {
        let one = [0x08, 0x01, 0x12, 0x01, b'x'];
        let two = [0x12, 0x01, b'x', 0x08, 0x01];
        assert_eq!(fields(&one), fields(&two));
    }
}
