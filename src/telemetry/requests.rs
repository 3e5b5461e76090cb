//! Counting the requests that go to object stores.
//!
//! Lives here: `CountedStores`, which wraps every store that Lance opens and tells `Metrics` of each request: its kind
//! and how it ended. May use: object_store's traits, Lance's hook for wrapping. Must never come in: a path, a bucket or
//! an error's text as a label.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use lance_io::object_store::WrappingObjectStore;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

use super::Metrics;

/// Wraps stores so that their requests are counted: give it to the table room's `StoresConfig::wrapper`.
#[derive(Debug, Clone)]
pub struct CountedStores {
    metrics: Arc<Metrics>,
}

impl CountedStores {
    /// Counts into `metrics`.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }
}

impl WrappingObjectStore for CountedStores {
    fn wrap(&self, _: &str, inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        let metrics = self.metrics.clone();
        Arc::new(Counted { inner, metrics })
    }

    fn wrap_paginated(
        &self,
        _: &str,
        inner: Arc<dyn PaginatedListStore>,
    ) -> Option<Arc<dyn PaginatedListStore>> {
        let metrics = self.metrics.clone();
        Some(Arc::new(CountedPages { inner, metrics }))
    }
}

/// How a request ended: one of a closed set.
fn result_of<T>(result: &Result<T>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(Error::NotFound { .. }) => "not_found",
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => "conflict",
        Err(Error::NotModified { .. }) => "not_modified",
        Err(Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) => "denied",
        Err(_) => "error",
    }
}

#[derive(Debug)]
struct Counted {
    inner: Arc<dyn ObjectStore>,
    metrics: Arc<Metrics>,
}

impl Counted {
    fn count<T>(&self, operation: &'static str, result: Result<T>) -> Result<T> {
        self.metrics.store_request(operation, result_of(&result));
        result
    }

    /// Counts a listing once: by its first error, else as one that went well when it ends.
    fn count_list(
        &self,
        items: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let metrics = self.metrics.clone();
        let mut failed = false;
        items
            .map(Some)
            .chain(futures::stream::once(futures::future::ready(None)))
            .filter_map(move |item| {
                match &item {
                    Some(Err(e)) if !failed => {
                        failed = true;
                        metrics.store_request("list", result_of::<()>(&Err(kind(e))));
                    }
                    None if !failed => metrics.store_request("list", "ok"),
                    _ => {}
                }
                futures::future::ready(item)
            })
            .boxed()
    }
}

/// An error of the same kind, with nothing of its text.
fn kind(e: &Error) -> Error {
    let (path, source) = (String::new(), "".into());
    match e {
        Error::NotFound { .. } => Error::NotFound { path, source },
        Error::PermissionDenied { .. } => Error::PermissionDenied { path, source },
        Error::Unauthenticated { .. } => Error::Unauthenticated { path, source },
        _ => Error::Generic { store: "", source },
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Counted {
    async fn put_opts(&self, at: &Path, data: PutPayload, o: PutOptions) -> Result<PutResult> {
        self.count("put", self.inner.put_opts(at, data, o).await)
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        o: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.count("put_multipart", self.inner.put_multipart_opts(at, o).await)
    }

    async fn get_opts(&self, at: &Path, o: GetOptions) -> Result<GetResult> {
        let operation = if o.head { "head" } else { "get" };
        self.count(operation, self.inner.get_opts(at, o).await)
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.count("get", self.inner.get_ranges(at, ranges).await)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let metrics = self.metrics.clone();
        self.inner
            .delete_stream(locations)
            .inspect(move |done| metrics.store_request("delete", result_of(done)))
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.count_list(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.count_list(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.count("list", self.inner.list_with_delimiter(prefix).await)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, o: CopyOptions) -> Result<()> {
        self.count("copy", self.inner.copy_opts(from, to, o).await)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, o: RenameOptions) -> Result<()> {
        self.count("rename", self.inner.rename_opts(from, to, o).await)
    }
}

struct CountedPages {
    inner: Arc<dyn PaginatedListStore>,
    metrics: Arc<Metrics>,
}

#[async_trait]
impl PaginatedListStore for CountedPages {
    async fn list_paginated(
        &self,
        prefix: Option<&str>,
        o: PaginatedListOptions,
    ) -> Result<PaginatedListResult> {
        let result = self.inner.list_paginated(prefix, o).await;
        self.metrics.store_request("list", result_of(&result));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    #[tokio::test]
    async fn requests_are_counted_by_kind_and_end() {
        let metrics = Arc::new(Metrics::new());
        let store = CountedStores::new(metrics.clone()).wrap("", Arc::new(InMemory::new()));
        store.put(&"a".into(), "x".into()).await.unwrap();
        store.get(&"a".into()).await.unwrap();
        store.head(&"a".into()).await.unwrap();
        store.get(&"b".into()).await.unwrap_err();
        let listed: Vec<_> = store.list(None).collect().await;
        assert_eq!(listed.len(), 1);
        store.delete(&"a".into()).await.unwrap();
        let text = metrics.render();
        for want in [
            r#"operation="put",result="ok"} 1"#,
            r#"operation="get",result="ok"} 1"#,
            r#"operation="head",result="ok"} 1"#,
            r#"operation="get",result="not_found"} 1"#,
            r#"operation="list",result="ok"} 1"#,
            r#"operation="delete",result="ok"} 1"#,
        ] {
            assert!(text.contains(want), "{want} in {text}");
        }
    }
}
