//! A store that remembers what was asked of it.
//!
//! Lives here: `Recorded`, a wrapper for the table room's stores that keeps every request's operation and path. May use:
//! object_store's traits. Never: a change of what is asked or answered.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use lance_io::object_store::WrappingObjectStore;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Requests, in their order.
#[derive(Debug, Clone, Default)]
pub struct Recorded(Arc<Mutex<Vec<String>>>);

impl Recorded {
    fn add(&self, operation: &str, path: impl fmt::Display) {
        self.0.lock().unwrap().push(format!("{operation} {path}"));
    }

    /// The requests since the last call.
    pub fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl WrappingObjectStore for Recorded {
    fn wrap(&self, _: &str, inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(Store {
            inner,
            seen: self.clone(),
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
struct Store {
    inner: Arc<dyn ObjectStore>,
    seen: Recorded,
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Store {
    async fn put_opts(&self, at: &Path, data: PutPayload, o: PutOptions) -> Result<PutResult> {
        self.seen.add("put", at);
        self.inner.put_opts(at, data, o).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        o: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.seen.add("put", at);
        self.inner.put_multipart_opts(at, o).await
    }

    async fn get_opts(&self, at: &Path, o: GetOptions) -> Result<GetResult> {
        self.seen.add(if o.head { "head" } else { "get" }, at);
        self.inner.get_opts(at, o).await
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.seen.add("get", at);
        self.inner.get_ranges(at, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let seen = self.seen.clone();
        let locations = locations.inspect(move |at| {
            if let Ok(at) = at {
                seen.add("delete", at);
            }
        });
        self.inner.delete_stream(locations.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.seen
            .add("list", prefix.map(Path::as_ref).unwrap_or(""));
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.seen
            .add("list", prefix.map(Path::as_ref).unwrap_or(""));
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, o: CopyOptions) -> Result<()> {
        self.seen.add("put", to);
        self.inner.copy_opts(from, to, o).await
    }
}
