//! A cursor as text, and back.
//!
//! Lives here: `Cursor`, what it says, and its one form: base64url of a format's number, the id of the key that signed
//! it, the fields in their order, and the signature. Every number is held to its bounds, and nothing in it is a path or a
//! name that is looked up. May use: the keys. Must never come in: a clock, a catalog, or a store.
//!
//! ```text
//! format 1 | key id | experiment | parameters | base | shards | position | times | digests | HMAC-SHA256
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;

use super::keys::{CursorKeys, ID_BYTES, SIGNATURE, is_id};
use crate::table::{Pin, PinnedBase, PinnedShard, Place, Position, Source};

/// The form that is written, and the only one that is read.
const FORMAT: u8 = 1;
/// The longest text of a cursor: with path and parameters it has to fit a request line that proxies let pass.
pub(super) const LONGEST: usize = 6 << 10;
/// Bytes that every cursor has, of whatever format.
const LEAST: usize = 48;
/// No store counts so far, and nothing is added to what does.
const FURTHEST: u64 = u64::MAX >> 1;

/// What a cursor says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::server) struct Cursor {
    /// The experiment whose records it walks over.
    pub experiment: Of,
    /// The parameters that it was made for, with digests of their values.
    pub asked: Vec<(String, u64)>,
    /// The snapshot.
    pub pin: Pin,
    /// Where the next page begins.
    pub position: Position,
    /// Until when it is taken.
    pub expires: Timestamp,
}

/// An experiment, and which of all that had its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::server) struct Of {
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
}

/// Why a text is no cursor of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Refused {
    /// It is not one at all, or a part of one.
    Malformed,
    /// It has no signature, or a wrong one.
    Forged,
    /// It is of a form of another release.
    Format(u8),
    /// It is signed by a key that this server does not have.
    Key,
}

impl Cursor {
    /// Its text; `None` where it would be too long.
    pub fn write(&self, keys: &CursorKeys) -> Option<String> {
        let of = |id: &str| {
            let mut out = Writer(vec![FORMAT]);
            out.text(id);
            self.fields(&mut out);
            out.0
        };
        let bytes = match keys.sign(of) {
            Some((mut bytes, signature)) => {
                bytes.extend(signature);
                bytes
            }
            None => of(""),
        };
        let text = URL_SAFE_NO_PAD.encode(bytes);
        (text.len() <= LONGEST).then_some(text)
    }

    /// Reads one, and whether it is ours.
    pub fn read(text: &str, keys: &CursorKeys) -> Result<Self, Refused> {
        if text.len() > LONGEST {
            return Err(Refused::Malformed);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text);
        let bytes = bytes.map_err(|_| Refused::Malformed)?;
        // What is shorter than any release's is none at all.
        let format = *bytes
            .first()
            .filter(|_| bytes.len() >= LEAST)
            .ok_or(Refused::Malformed)?;
        if format != FORMAT {
            return Err(Refused::Format(format));
        }
        let mut rest = Reader(&bytes[1..]);
        let id = rest.text(ID_BYTES).ok_or(Refused::Malformed)?;
        if id.is_empty() {
            if !keys.is_empty() {
                return Err(Refused::Forged);
            }
        } else {
            if !is_id(&id) {
                return Err(Refused::Malformed);
            }
            let end = bytes.len().checked_sub(SIGNATURE);
            let end = end.ok_or(Refused::Malformed)?;
            let (message, signature) = bytes.split_at(end);
            match keys.verify(&id, message, signature) {
                None => return Err(Refused::Key),
                Some(false) => return Err(Refused::Forged),
                Some(true) => {}
            }
            let fields = rest.0.len().checked_sub(SIGNATURE);
            rest = Reader(&rest.0[..fields.ok_or(Refused::Malformed)?]);
        }
        let cursor = Self::of(&mut rest).filter(|_| rest.0.is_empty());
        cursor.ok_or(Refused::Malformed)
    }

    fn fields(&self, out: &mut Writer) {
        let of = &self.experiment;
        out.text(&of.namespace);
        out.text(&of.name);
        out.text(of.uid.as_deref().unwrap_or_default());
        out.number(self.asked.len() as u64);
        for (name, digest) in &self.asked {
            out.text(name);
            out.0.extend(digest.to_le_bytes());
        }
        let pin = &self.pin;
        let source = Source::ALL.iter().position(|s| *s == pin.source);
        let place = self.position.place;
        let flags = source.unwrap_or(0) as u8
            | u8::from(pin.across_shards) << 2
            | u8::from(pin.base.e_tag.is_some()) << 3
            | u8::from(place.is_some()) << 4
            | u8::from(place.is_some_and(|p| p.pending)) << 5;
        out.0.push(flags);
        out.number(pin.base.version);
        out.0.extend(pin.base.made.to_le_bytes());
        out.0
            .extend(pin.base.e_tag.into_iter().flat_map(u64::to_le_bytes));
        for shards in [&pin.pending, &pin.idle] {
            out.number(shards.len() as u64);
            for shard in shards {
                out.0.extend(&shard.name.to_le_bytes()[..5]);
                out.number(shard.version << 1 | u64::from(shard.whole));
            }
        }
        out.number(self.position.rows);
        if let Some(place) = place {
            out.number(place.part.into());
            out.number(place.row.into());
        }
        let read_at = i64::try_from(pin.read_at.as_nanosecond()).unwrap_or(i64::MAX);
        out.0.extend(read_at.to_le_bytes());
        out.0.extend(self.expires.as_millisecond().to_le_bytes());
        out.0.extend(pin.digest.to_le_bytes());
        out.0.extend(pin.check.to_le_bytes());
    }

    fn of(rest: &mut Reader) -> Option<Self> {
        let experiment = Of {
            namespace: rest.text(253)?,
            name: rest.text(253)?,
            uid: Some(rest.text(128)?).filter(|uid| !uid.is_empty()),
        };
        let mut asked = vec![];
        for _ in 0..rest.number(32)? {
            asked.push((rest.text(64)?, u64::from_le_bytes(rest.bytes()?)));
        }
        let [flags] = rest.bytes()?;
        let has = |bit: u8| flags >> bit & 1 == 1;
        let source = *Source::ALL.get(usize::from(flags & 3))?;
        if flags >> 6 != 0 || has(5) && !has(4) {
            return None;
        }
        let version = rest.number(FURTHEST)?;
        let made = u64::from_le_bytes(rest.bytes()?);
        let e_tag = match has(3) {
            true => Some(u64::from_le_bytes(rest.bytes()?)),
            false => None,
        };
        let (pending, idle) = (rest.shards()?, rest.shards()?);
        let any = !(pending.is_empty() && idle.is_empty());
        if version == 0 || any && source == Source::Fragments {
            return None;
        }
        let rows = rest.number(u64::MAX)?;
        let place = match has(4) {
            true => Some(Place {
                pending: has(5),
                part: rest.number(u32::MAX.into())? as u32,
                row: rest.number(u32::MAX.into())? as u32,
            }),
            false => None,
        };
        let read_at = i64::from_le_bytes(rest.bytes()?);
        let expires = i64::from_le_bytes(rest.bytes()?);
        let pin = Pin {
            source,
            base: PinnedBase {
                version,
                made,
                e_tag,
            },
            pending,
            idle,
            across_shards: has(2),
            read_at: Timestamp::from_nanosecond(read_at.into()).ok()?,
            digest: u128::from_le_bytes(rest.bytes()?),
            check: u128::from_le_bytes(rest.bytes()?),
        };
        Some(Self {
            experiment,
            asked,
            pin,
            position: Position { rows, place },
            expires: Timestamp::from_millisecond(expires).ok()?,
        })
    }
}

struct Writer(Vec<u8>);

impl Writer {
    /// Seven bits a byte, the lowest first.
    fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend(text.as_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number up to `most`, in the one way in which it is written.
    fn number(&mut self, most: u64) -> Option<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.bytes()?;
            let bits = u64::from(byte & 0x7f);
            // What would be shifted out, and zeros that say nothing.
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                return None;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                return (n <= most).then_some(n);
            }
        }
        None
    }

    fn text(&mut self, longest: usize) -> Option<String> {
        let size = self.number(longest as u64)? as usize;
        let (text, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// As many as there are bytes for: a count alone takes no memory.
    fn shards(&mut self) -> Option<Vec<PinnedShard>> {
        let mut shards = vec![];
        for _ in 0..self.number(LONGEST as u64)? {
            let name: [u8; 5] = self.bytes()?;
            let mut wide = [0; 8];
            wide[..5].copy_from_slice(&name);
            let version = self.number(u64::MAX)?;
            shards.push(PinnedShard {
                name: u64::from_le_bytes(wide),
                version: version >> 1,
                whole: version & 1 == 1,
            });
        }
        Some(shards)
    }
}

#[cfg(test)]
mod tests;
