//! The newest version of every pending key, and the base rows that those keys hide.
//!
//! Lives here: `Held`, what is kept of one table between reads (keys of its pending generations; the choice among them;
//! the base rows that they hide), and `Chosen`, the rows that live. May use: keys of generations, key sets, `find`. Never:
//! a page's rows.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use futures::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use lance::Dataset;
use lance_core::datatypes::Schema;
use roaring::RoaringBitmap;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::super::base::{Table, e_tag, key_fields};
use super::super::error::{Error, Result};
use super::super::find::{Found, Within, find};
use super::super::generation::{Facts, Generation};
use super::super::keys::{Added, KeyCodec, KeySet, Place, hash};
use super::super::merge::{check_keys, key_types};
use super::super::newest::newest_first;
use super::super::snapshot::Snapshot;
use super::hidden::{Fragments, Hidden};
use super::keyed::{FILES_KIB, Keys};
use super::{ReadError, ReadLimits, SCAN_BYTES, Source, whole};

/// Generations whose keys are read at once.
const AT_ONCE: usize = 32;
/// Keys that are compared at once; more are compared in parts, so that a set of them stays small.
const KEYS_AT_ONCE: u64 = 1 << 21;

/// The pending rows that live, generation by generation.
#[derive(Default)]
pub(super) struct Chosen {
    pub parts: Vec<Live>,
}

pub(super) struct Live {
    pub keys: Arc<Keys>,
    pub rows: RoaringBitmap,
    /// Living rows in the parts before this one.
    before: u64,
}

impl Live {
    /// Some of its rows, by their offsets, ascending.
    pub fn wanted(&self, offsets: Vec<u32>) -> Wanted {
        self.keys.wanted(offsets)
    }
}

/// Rows of one generation, by their offsets, ascending.
pub(super) struct Wanted {
    pub generation: Generation,
    pub facts: Arc<Facts>,
    pub offsets: Vec<u32>,
}

impl Chosen {
    pub fn new(keys: &[Arc<Keys>], live: Vec<RoaringBitmap>) -> Self {
        let mut before = 0;
        let parts = keys.iter().zip(live).map(|(keys, rows)| {
            let part = Live {
                keys: keys.clone(),
                before,
                rows,
            };
            before += part.rows.len();
            part
        });
        Self {
            parts: parts.collect(),
        }
    }

    /// Living rows.
    pub fn rows(&self) -> u64 {
        self.parts.last().map_or(0, |p| p.before + p.rows.len())
    }

    /// When the oldest generation was flushed.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.parts.iter().map(|p| p.keys.facts.flushed_at).min()
    }

    /// The generations and offsets of the living rows at these positions.
    pub fn places(&self, wanted: Range<u64>) -> Vec<Wanted> {
        let first = self
            .parts
            .partition_point(|p| p.before + p.rows.len() <= wanted.start);
        let mut out = vec![];
        for part in &self.parts[first..] {
            if part.before >= wanted.end {
                break;
            }
            let from = wanted.start.max(part.before) - part.before;
            let to = wanted.end.min(part.before + part.rows.len()) - part.before;
            let Some(start) = part.rows.select(from as u32).filter(|_| from < to) else {
                continue;
            };
            let rows = part.rows.range(start..).take((to - from) as usize);
            out.push(part.wanted(rows.collect()));
        }
        out
    }
}

/// A pending generation, and why it cannot be read.
pub(super) type Unreadable = (Generation, Error);

type Path = (Uuid, String);

fn path(generation: &Generation) -> Path {
    (generation.shard, generation.path.clone())
}

/// What base rows are hidden, and by which generations' keys.
#[derive(Clone)]
struct Over {
    base: (u64, Option<String>, u128),
    covered: BTreeSet<Path>,
    hidden: Hidden,
    fragments: Arc<Fragments>,
}

/// What is kept of one table.
#[derive(Default)]
pub(super) struct Held {
    keys: HashMap<Path, Arc<Keys>>,
    chosen: Option<(Vec<Path>, Arc<Chosen>)>,
    over: Option<Over>,
    bytes: u64,
}

impl Held {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keys that are held, here or for others, for one look at another snapshot.
    pub fn seed(&self, others: Vec<Arc<Keys>>) -> Self {
        let mut keys = self.keys.clone();
        keys.extend(others.into_iter().map(|k| (path(&k.generation), k)));
        Self {
            keys,
            over: self.over.clone(),
            ..Default::default()
        }
    }

    /// What a source is made of at a snapshot: the pending rows that live, and for `all` the base rows that are shown.
    pub async fn view(
        &mut self,
        table: &Table,
        snapshot: &Snapshot,
        source: Source,
        limits: &ReadLimits,
    ) -> Result<(Arc<Chosen>, Option<Arc<Fragments>>), ReadError> {
        let chosen = self.choose(table, snapshot, limits).await;
        if matches!(chosen, Err(ReadError::KeysTooLarge { .. })) {
            *self = Self::default();
        }
        let chosen = chosen?;
        let fragments = match source {
            Source::All => Some(self.fragments(snapshot, &chosen).await?),
            _ => None,
        };
        Ok((chosen, fragments))
    }

    fn weigh(&mut self) {
        let keys: u64 = self.keys.values().map(|k| k.size()).sum();
        let chosen = self.chosen.iter().flat_map(|(_, c)| &c.parts);
        let live: u64 = chosen.map(|p| p.rows.serialized_size() as u64).sum();
        let over = self.over.as_ref();
        let over = over.map_or(0, |o| {
            o.hidden.addresses.serialized_size() as u64
                + o.fragments.bytes()
                + o.covered.len() as u64 * 96
        });
        self.bytes = keys + live + over;
    }

    /// The pending rows of a snapshot that live. Reads the keys of generations that were not seen before.
    async fn choose(
        &mut self,
        table: &Table,
        snapshot: &Snapshot,
        limits: &ReadLimits,
    ) -> Result<Arc<Chosen>, ReadError> {
        let pending = pending(snapshot, limits)?;
        let paths: Vec<Path> = pending.iter().map(path).collect();
        if let Some((_, chosen)) = self.chosen.as_ref().filter(|(p, _)| *p == paths) {
            return Ok(chosen.clone());
        }
        let unreadable = self.read(table, &snapshot.base, &pending, limits).await?;
        if let Some((_, e)) = unreadable.into_iter().next() {
            return Err(e.into());
        }
        let keys = self.all(&paths)?;
        let keyed = !key_fields(snapshot.base.schema()).is_empty();
        let held = keys.clone();
        let live = tokio::task::spawn_blocking(move || newest(&held, keyed))
            .await
            .map_err(|e| Error::Bug(format!("choosing the newest rows ended badly: {e}")))?;
        let chosen = Arc::new(Chosen::new(&keys, live));
        self.chosen = Some((paths, chosen.clone()));
        self.weigh();
        Ok(chosen)
    }

    /// The keys of a snapshot's pending generations that can be read, and those that cannot, each shard's oldest first.
    pub async fn readable(
        &mut self,
        table: &Table,
        snapshot: &Snapshot,
        limits: &ReadLimits,
    ) -> Result<(Vec<Arc<Keys>>, Vec<Unreadable>), ReadError> {
        let pending = pending(snapshot, limits)?;
        let unreadable = self.read(table, &snapshot.base, &pending, limits).await?;
        let readable = pending.iter().filter_map(|g| self.keys.get(&path(g)));
        let readable = readable.cloned().collect();
        self.weigh();
        Ok((readable, unreadable))
    }

    /// Reads the keys of generations that are not held, forgets those of others, and gives back what cannot be read.
    async fn read(
        &mut self,
        table: &Table,
        base: &Arc<Dataset>,
        pending: &[Generation],
        limits: &ReadLimits,
    ) -> Result<Vec<Unreadable>, ReadError> {
        let wanted: HashSet<Path> = pending.iter().map(path).collect();
        self.keys.retain(|path, _| wanted.contains(path));
        let key = key_fields(base.schema());
        check_keys(base.schema(), &key)?;
        let codec = codec(base.schema(), &key)?;
        let files = Semaphore::new(FILES_KIB as usize);
        let missing: Vec<Generation> = pending
            .iter()
            .filter(|g| !self.keys.contains_key(&path(g)))
            .cloned()
            .collect();
        let mut held: u64 = self.keys.values().map(|k| k.size()).sum();
        let (key, codec, files) = (&key, codec.as_ref(), &files);
        let reads: Vec<_> = missing
            .into_iter()
            .map(|g| {
                let generation = g.clone();
                let read = Keys::read(table, base, g, key, codec, files);
                read.map(|read| (generation, read)).boxed()
            })
            .collect();
        let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
        let mut unreadable = vec![];
        while let Some((generation, read)) = reads.next().await {
            let keys = match read {
                Ok(keys) => keys,
                Err(e) if e.poisoned().is_some() => {
                    unreadable.push((generation, e));
                    continue;
                }
                Err(e) => return Err(e.into()),
            };
            held += keys.size();
            if held > limits.key_bytes {
                return Err(ReadError::KeysTooLarge {
                    limit: limits.key_bytes,
                });
            }
            self.keys.insert(path(&keys.generation), Arc::new(keys));
        }
        unreadable.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(unreadable)
    }

    fn all(&self, paths: &[Path]) -> Result<Vec<Arc<Keys>>> {
        let found = paths.iter().map(|path| self.keys.get(path).cloned());
        found
            .collect::<Option<_>>()
            .ok_or_else(|| Error::Bug("keys of a generation were not kept".into()))
    }

    /// The base rows of a snapshot that are not hidden by what was chosen of the same snapshot. Only the keys of
    /// generations that are new since the last look at this base version are looked for in it.
    async fn fragments(
        &mut self,
        snapshot: &Snapshot,
        chosen: &Chosen,
    ) -> Result<Arc<Fragments>, ReadError> {
        let base = &snapshot.base;
        let identity = (
            base.version_id(),
            e_tag(base).map(str::to_string),
            base.manifest().timestamp_nanos,
        );
        let covered: BTreeSet<Path> = chosen
            .parts
            .iter()
            .map(|p| path(&p.keys.generation))
            .collect();
        let mut before = self
            .over
            .take()
            .filter(|o| o.base == identity && o.covered.is_subset(&covered));
        if let Some(over) = before.take_if(|o| o.covered == covered) {
            let fragments = over.fragments.clone();
            self.over = Some(over);
            return Ok(fragments);
        }
        let (mut hidden, seen) = before.map(|o| (o.hidden, o.covered)).unwrap_or_default();
        let fresh: Vec<Path> = covered.difference(&seen).cloned().collect();
        let fresh = self.all(&fresh)?;
        hidden.addresses |= shadowed(base, fresh).await?;
        let fragments = Arc::new(Fragments::of(base, &hidden).await?);
        self.over = Some(Over {
            base: identity,
            covered,
            hidden,
            fragments: fragments.clone(),
        });
        self.weigh();
        Ok(fragments)
    }
}

/// The generations to show, shard by shard, oldest first.
fn pending(snapshot: &Snapshot, limits: &ReadLimits) -> Result<Vec<Generation>, ReadError> {
    whole(snapshot)?;
    let mut out = vec![];
    for shard in &snapshot.shards {
        if let Some(number) = shard.doubled() {
            return Err(Error::UnsupportedManifest {
                shard: shard.state.shard,
                what: format!(
                    "it lists two directories for generation {number}; remove the wrong one by hand"
                ),
            }
            .into());
        }
        out.extend(shard.pending.iter().cloned());
    }
    if out.len() > limits.generations {
        return Err(ReadError::TooManyPending {
            pending: out.len(),
            limit: limits.generations,
        });
    }
    Ok(out)
}

pub(super) fn codec(schema: &Schema, key: &[(String, i32)]) -> Result<Option<KeyCodec>> {
    if key.is_empty() {
        return Ok(None);
    }
    KeyCodec::new(key_types(schema, key)?)
        .map(Some)
        .map_err(|e| Error::Bug(format!("keys of a hashable type: {e}")))
}

/// The rows of each generation that hold the newest version of a key and are no deletes.
fn newest(keys: &[Arc<Keys>], keyed: bool) -> Vec<RoaringBitmap> {
    if !keyed {
        let all = keys
            .iter()
            .map(|k| k.offsets.iter().copied().collect::<RoaringBitmap>() - &k.dead);
        return all.collect();
    }
    let ages: Vec<_> = keys
        .iter()
        .map(|k| (&k.generation, k.facts.as_ref()))
        .collect();
    let order = newest_first(&ages);
    let mut live = vec![RoaringBitmap::new(); keys.len()];
    let rows: u64 = keys.iter().map(|k| k.offsets.len() as u64).sum();
    let of = rows.div_ceil(KEYS_AT_ONCE).max(1);
    for part in 0..of {
        let mut set = KeySet::default();
        for at in order.iter().copied() {
            let generation = &keys[at];
            for (row, offset) in generation.offsets.iter().enumerate() {
                let key = generation.key(row);
                if of > 1 && hash(key) % of != part {
                    continue;
                }
                let place = Place {
                    generation: at as u32,
                    offset: *offset,
                };
                match set.add(key, place) {
                    Added::Older => continue,
                    Added::Instead(before) => {
                        live[at].remove(before.offset);
                    }
                    Added::Newest => {}
                }
                if !generation.dead.contains(*offset) {
                    live[at].insert(*offset);
                }
            }
        }
    }
    live
}

/// Addresses of the base rows whose key one of these generations holds.
async fn shadowed(base: &Arc<Dataset>, keys: Vec<Arc<Keys>>) -> Result<roaring::RoaringTreemap> {
    let fields = key_fields(base.schema());
    let mut found = Found::default();
    let Some(codec) = codec(base.schema(), &fields)? else {
        return Ok(found.addresses);
    };
    let rows: u64 = keys.iter().map(|k| k.offsets.len() as u64).sum();
    let of = rows.div_ceil(KEYS_AT_ONCE);
    // Row ids are not asked for: no row of a generation counts as living here.
    let live = vec![RoaringBitmap::new()];
    for part in 0..of {
        let keys = keys.clone();
        let set = tokio::task::spawn_blocking(move || distinct(&keys, part, of));
        let set = set
            .await
            .map_err(|e| Error::Bug(format!("gathering keys ended badly: {e}")))?;
        let within = Within {
            base,
            keys: &fields,
            budget: SCAN_BYTES,
        };
        find(within, &codec, &set, &live, &mut found, None).await?;
    }
    Ok(found.addresses)
}

fn distinct(keys: &[Arc<Keys>], part: u64, of: u64) -> KeySet {
    let mut set = KeySet::default();
    let place = Place {
        generation: 0,
        offset: 0,
    };
    for generation in keys {
        for row in 0..generation.offsets.len() {
            let key = generation.key(row);
            if of == 1 || hash(key) % of == part {
                set.add(key, place);
            }
        }
    }
    set
}
