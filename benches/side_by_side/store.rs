//! A local folder behind a store that counts every request and adds a fixed time to it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use lance_io::object_store::WrappingObjectStore;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

/// Counts of requests.
#[derive(Debug, Default)]
pub struct Counts {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub wal_reads: AtomicU64,
}

impl Counts {
    /// Requests since the last call: reads, writes, and those of them under `_mem_wal/`.
    pub fn take(&self) -> (u64, u64, u64) {
        let take = |c: &AtomicU64| c.swap(0, Ordering::Relaxed);
        (take(&self.reads), take(&self.writes), take(&self.wal_reads))
    }
}

/// Adds `delay` to every request and counts it.
#[derive(Debug, Clone, Default)]
pub struct Slow {
    pub delay: Duration,
    pub counts: Arc<Counts>,
}

impl WrappingObjectStore for Slow {
    fn wrap(&self, _prefix: &str, inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(SlowStore {
            inner,
            slow: self.clone(),
        })
    }

    fn wrap_paginated(
        &self,
        _: &str,
        _: Arc<dyn PaginatedListStore>,
    ) -> Option<Arc<dyn PaginatedListStore>> {
        None
    }
}

#[derive(Debug)]
struct SlowStore {
    inner: Arc<dyn ObjectStore>,
    slow: Slow,
}

impl fmt::Display for SlowStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {:?} a request", self.inner, self.slow.delay)
    }
}

impl SlowStore {
    async fn read(&self, at: &Path) {
        self.slow.counts.reads.fetch_add(1, Ordering::Relaxed);
        if at.as_ref().contains("_mem_wal") {
            self.slow.counts.wal_reads.fetch_add(1, Ordering::Relaxed);
        }
        self.wait().await;
    }

    async fn write(&self) {
        self.slow.counts.writes.fetch_add(1, Ordering::Relaxed);
        self.wait().await;
    }

    async fn wait(&self) {
        if !self.slow.delay.is_zero() {
            tokio::time::sleep(self.slow.delay).await;
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for SlowStore {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.write().await;
        self.inner.put_opts(at, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.write().await;
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.read(at).await;
        self.inner.get_opts(at, options).await
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.read(at).await;
        self.inner.get_ranges(at, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.slow.counts.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.slow.counts.reads.fetch_add(1, Ordering::Relaxed);
        let (listed, delay) = (self.inner.list(prefix), self.slow.delay);
        futures::stream::once(async move {
            tokio::time::sleep(delay).await;
            listed
        })
        .flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.read(prefix.unwrap_or(&Path::default())).await;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.write().await;
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.write().await;
        self.inner.rename_opts(from, to, options).await
    }
}
