//! Keys of rows as bytes, and sets of them.
//!
//! Lives here: `KeyCodec` (key columns to comparable bytes, composite keys too) and `KeySet` (which generation and offset
//! holds the newest version of a key). Keys are compared whole, never by their hash alone. May use: arrow. Never: Lance.

use arrow_array::{ArrayRef, RecordBatch};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{ArrowError, DataType};
use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

/// Turns key columns into bytes that are equal just when the keys are.
pub(crate) struct KeyCodec {
    types: Vec<DataType>,
    converter: RowConverter,
}

impl KeyCodec {
    /// A codec for key columns of these types, in key order.
    pub fn new(types: Vec<DataType>) -> Result<Self, ArrowError> {
        let converter = RowConverter::new(types.iter().cloned().map(SortField::new).collect())?;
        Ok(Self { types, converter })
    }

    /// The keys of a batch whose key columns are at `columns`; other encodings of a type are cast.
    pub fn encode(&self, batch: &RecordBatch, columns: &[usize]) -> Result<Rows, ArrowError> {
        let arrays = columns
            .iter()
            .zip(&self.types)
            .map(|(at, wanted)| {
                let array = batch.column(*at);
                if array.data_type() == wanted {
                    Ok(array.clone())
                } else {
                    arrow_cast::cast(array, wanted)
                }
            })
            .collect::<Result<Vec<ArrayRef>, _>>()?;
        self.converter.convert_columns(&arrays)
    }

    /// The key columns of some encoded keys.
    pub fn decode<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        let parser = self.converter.parser();
        self.converter
            .convert_rows(keys.into_iter().map(|k| parser.parse(k)))
    }
}

/// The hash by which keys are placed, and by which a set too large for its budget is cut into parts.
pub(crate) fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// Where the newest version of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The generation's position in the chunk, newest first.
    pub generation: u32,
    /// The row's offset in it.
    pub offset: u32,
}

/// What adding a version of a key found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    /// The first, hence newest, version.
    Newest,
    /// A later row of the same generation takes the place of this one.
    Instead(Place),
    /// A newer generation holds the key.
    Older,
}

/// A set of keys, each with the place of its newest version. About 30 bytes a key besides the key itself.
#[derive(Default)]
pub(crate) struct KeySet {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    places: Vec<Place>,
    table: HashTable<u32>,
}

impl KeySet {
    /// How many keys.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes that the set holds.
    pub fn size(&self) -> usize {
        self.bytes.capacity()
            + self.ends.capacity() * 8
            + self.places.capacity() * 8
            + self.table.capacity() * 5
    }

    /// The key at a position.
    pub fn key(&self, at: u32) -> &[u8] {
        let at = at as usize;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at]]
    }

    /// Adds a version of a key. Generations have to come newest first, rows of one in any order.
    pub fn add(&mut self, key: &[u8], place: Place) -> Added {
        let hash = hash(key);
        if let Some(at) = self.find(hash, key) {
            let held = &mut self.places[at as usize];
            if held.generation != place.generation || held.offset >= place.offset {
                return Added::Older;
            }
            return Added::Instead(std::mem::replace(held, place));
        }
        let at = self.ends.len() as u32;
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
        self.places.push(place);
        let (bytes, ends) = (&self.bytes, &self.ends);
        self.table.insert_unique(hash, at, |other| {
            let other = *other as usize;
            let start = if other == 0 { 0 } else { ends[other - 1] };
            xxh3_64(&bytes[start..ends[other]])
        });
        Added::Newest
    }

    /// The position of a key.
    pub fn position(&self, key: &[u8]) -> Option<u32> {
        self.find(hash(key), key)
    }

    /// The place of the key at a position.
    pub fn place(&self, at: u32) -> Place {
        self.places[at as usize]
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.table.find(hash, |at| self.key(*at) == key).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{BinaryArray, Int64Array, StringArray};
    use arrow_schema::{Field, Schema};
    use std::sync::Arc;

    fn at(generation: u32, offset: u32) -> Place {
        Place { generation, offset }
    }

    #[test]
    fn the_newest_generation_holds_a_key() {
        let mut set = KeySet::default();
        assert_eq!(set.add(b"a", at(0, 5)), Added::Newest);
        assert_eq!(set.add(b"a", at(1, 9)), Added::Older);
        assert_eq!(set.place(set.position(b"a").unwrap()), at(0, 5));
    }

    #[test]
    fn the_later_row_of_one_generation_holds_a_key() {
        let mut set = KeySet::default();
        set.add(b"a", at(0, 5));
        assert_eq!(set.add(b"a", at(0, 7)), Added::Instead(at(0, 5)));
        assert_eq!(set.add(b"a", at(0, 6)), Added::Older);
    }

    #[test]
    fn many_keys_are_each_found_once() {
        let mut set = KeySet::default();
        for i in 0..10_000u32 {
            assert_eq!(set.add(&i.to_le_bytes(), at(0, i)), Added::Newest);
        }
        assert_eq!(set.len(), 10_000);
        for i in 0..10_000u32 {
            assert_eq!(
                set.key(set.position(&i.to_le_bytes()).unwrap()),
                i.to_le_bytes()
            );
        }
        assert_eq!(set.position(&10_000u32.to_le_bytes()), None);
    }

    #[test]
    fn composite_keys_do_not_run_into_each_other() {
        let codec = KeyCodec::new(vec![DataType::Utf8, DataType::Utf8]).unwrap();
        let schema = Arc::new(Schema::new(vec![
            Field::new("a", DataType::Utf8, false),
            Field::new("b", DataType::Utf8, false),
        ]));
        let a = StringArray::from(vec!["ab", "a", "", "abc"]);
        let b = StringArray::from(vec!["c", "bc", "abc", ""]);
        let batch = RecordBatch::try_new(schema, vec![Arc::new(a), Arc::new(b)]).unwrap();
        let rows = codec.encode(&batch, &[0, 1]).unwrap();
        let mut set = KeySet::default();
        for i in 0..4 {
            assert_eq!(
                set.add(rows.row(i).as_ref(), at(0, i as u32)),
                Added::Newest
            );
        }
    }

    #[test]
    fn keys_decode_to_the_values_they_were_made_of() {
        let codec = KeyCodec::new(vec![DataType::Int64, DataType::Binary]).unwrap();
        let schema = Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int64, false),
            Field::new("b", DataType::Binary, false),
        ]));
        let (a, b) = (
            Int64Array::from(vec![i64::MIN, 0, i64::MAX]),
            BinaryArray::from_vec(vec![b"", b"\0", b"\xff"]),
        );
        let batch =
            RecordBatch::try_new(schema, vec![Arc::new(a.clone()), Arc::new(b.clone())]).unwrap();
        let rows = codec.encode(&batch, &[0, 1]).unwrap();
        let back = codec
            .decode(rows.iter().map(|r| r.data()).collect::<Vec<_>>())
            .unwrap();
        assert_eq!(back[0].as_ref(), &a as &dyn arrow_array::Array);
        assert_eq!(back[1].as_ref(), &b as &dyn arrow_array::Array);
    }
}
