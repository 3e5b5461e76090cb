//! A generation's data file, open for reading.
//!
//! Lives here: fetching a small file whole, in one request, and Lance's file reader over it or over the store. May use:
//! Lance's file reader and scheduler. Never: which rows of a file count.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use lance_core::cache::LanceCache;
use lance_core::deepsize::{Context, DeepSizeOf};
use lance_encoding::decoder::DecoderPlugins;
use lance_file::reader::{FileReader, FileReaderOptions};
use lance_io::object_store::ObjectStore;
use lance_io::scheduler::{ScanScheduler, SchedulerConfig};
use lance_io::traits::Reader;
use lance_table::format::DataFile;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStoreExt as _};

use super::error::{Error, Result};
use super::generation::Generation;

/// How a data file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// In one request, and kept in memory, where it is small.
    Whole,
    /// As its rows are asked for, with about `bytes` on their way at once.
    Ranges {
        /// Bytes.
        bytes: u64,
    },
}

impl Fetch {
    /// Ranges where no budget asks for less.
    pub const RANGES: Self = Self::Ranges {
        bytes: ON_THEIR_WAY,
    };

    fn bytes(self) -> u64 {
        match self {
            Self::Whole => ON_THEIR_WAY,
            Self::Ranges { bytes } => bytes,
        }
    }
}

/// Data files up to this many bytes are fetched whole, in one request.
const WHOLE_FILE: u64 = 16 << 20;
/// Bytes that are on their way at once.
const ON_THEIR_WAY: u64 = 32 << 20;
/// The least and the most bytes of one range of a large page, and of one batch.
const PART: (u64, u64) = (1 << 20, 8 << 20);

/// Opens a data file: whole and in memory where it is small, else through the store.
pub(crate) async fn open_file(
    store: &Arc<ObjectStore>,
    path: &Path,
    file: &DataFile,
    generation: &Generation,
    fetch: Fetch,
) -> Result<FileReader> {
    let size = file.file_size_bytes.get().map(u64::from);
    let scheduler = ScanScheduler::new(
        store.clone(),
        SchedulerConfig::new(fetch.bytes()).with_lite_scheduler(),
    );
    let scheduler = match size {
        Some(size) if fetch == Fetch::Whole && size <= WHOLE_FILE => {
            let bytes = match store.inner.get(path).await {
                Ok(got) => got
                    .bytes()
                    .await
                    .map_err(|e| Error::store("read a generation's rows", e))?,
                Err(StoreError::NotFound { .. }) => {
                    return Err(generation.unreadable("its data file is not there"));
                }
                Err(e) => return Err(Error::store("read a generation's rows", e)),
            };
            if bytes.len() as u64 != size {
                return Err(generation
                    .unreadable(format!("its data file has {} of {size} bytes", bytes.len())));
            }
            scheduler.open_reader(Arc::new(InMemory {
                path: path.clone(),
                bytes,
            }))
        }
        _ => scheduler
            .open_file(path, &file.file_size_bytes)
            .await
            .map_err(|e| generation.wrap("open its data file", e))?,
    };
    let part = (fetch.bytes() / 4).clamp(PART.0, PART.1);
    FileReader::try_open(
        scheduler,
        None,
        Arc::<DecoderPlugins>::default(),
        &LanceCache::no_cache(),
        FileReaderOptions {
            read_chunk_size: part,
            batch_size_bytes: Some(part),
            ..Default::default()
        },
    )
    .await
    .map_err(|e| generation.wrap("open its data file", e))
}

/// A file that is in memory.
#[derive(Debug)]
struct InMemory {
    path: Path,
    bytes: Bytes,
}

impl DeepSizeOf for InMemory {
    fn deep_size_of_children(&self, _: &mut Context) -> usize {
        self.bytes.len()
    }
}

impl Reader for InMemory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn block_size(&self) -> usize {
        64 << 10
    }

    fn io_parallelism(&self) -> usize {
        1
    }

    fn size(&self) -> BoxFuture<'_, object_store::Result<usize>> {
        futures::future::ready(Ok(self.bytes.len())).boxed()
    }

    fn get_range(&self, range: Range<usize>) -> BoxFuture<'static, object_store::Result<Bytes>> {
        let part = (range.end <= self.bytes.len() && range.start <= range.end)
            .then(|| self.bytes.slice(range));
        let part = part.ok_or_else(|| StoreError::Generic {
            store: "memory",
            source: "a range past the file's end".into(),
        });
        futures::future::ready(part).boxed()
    }

    fn get_all(&self) -> BoxFuture<'_, object_store::Result<Bytes>> {
        futures::future::ready(Ok(self.bytes.clone())).boxed()
    }
}
