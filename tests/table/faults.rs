//! A store that loses the answer to one write, refuses one, or carries one out only later.
//!
//! Lives here: `Faults`, wrapped around a merger's local store and armed for one write of its next work. May use:
//! object_store. Never: a fault by chance; the schedule says which write it is.

use std::sync::{Arc, Mutex};

use futures::stream::BoxStream;
use lance_io::object_store::WrappingObjectStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

/// What becomes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trick {
    /// It is done, and its answer is lost.
    LostAnswer,
    /// It is not done.
    Refused,
    /// It is answered by an error, and done once its sender has long given up.
    Late,
}

type Write = (Arc<dyn ObjectStore>, Path, PutPayload, PutOptions);

/// Which write is played a trick on, if any.
#[derive(Debug, Default, Clone)]
pub struct Faults {
    armed: Arc<Mutex<Option<(usize, Trick)>>>,
    late: Arc<Mutex<Vec<Late>>>,
}

struct Late(Write);

impl std::fmt::Debug for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.1)
    }
}

impl Faults {
    /// Plays a trick on the write after `skip` others.
    pub fn arm(&self, skip: usize, trick: Trick) {
        *self.armed.lock().unwrap() = Some((skip, trick));
    }

    /// Plays no trick any more; whether one was still to be played.
    pub fn disarm(&self) -> bool {
        self.armed.lock().unwrap().take().is_some()
    }

    /// Carries out what was late.
    pub async fn release(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap());
        for Late((store, path, payload, options)) in late {
            // Somebody else's object may be there by now: then the store refuses it, as it should.
            let _ = store.put_opts(&path, payload, options).await;
        }
    }

    fn next(&self) -> Option<Trick> {
        let mut armed = self.armed.lock().unwrap();
        match armed.as_mut()? {
            (0, _) => armed.take().map(|a| a.1),
            (skip, _) => {
                *skip -= 1;
                None
            }
        }
    }
}

impl WrappingObjectStore for Faults {
    fn wrap(&self, _: &str, inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(Store {
            inner,
            faults: self.clone(),
        })
    }

    fn wrap_paginated(
        &self,
        _: &str,
        inner: Arc<dyn object_store::list::PaginatedListStore>,
    ) -> Option<Arc<dyn object_store::list::PaginatedListStore>> {
        Some(inner)
    }
}

#[derive(Debug)]
struct Store {
    inner: Arc<dyn ObjectStore>,
    faults: Faults,
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

fn failed<T>() -> Result<T> {
    Err(object_store::Error::Generic {
        store: "faulty",
        source: "the connection was reset".into(),
    })
}

#[async_trait::async_trait]
impl ObjectStore for Store {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        match self.faults.next() {
            None => self.inner.put_opts(path, payload, options).await,
            Some(Trick::LostAnswer) => {
                self.inner.put_opts(path, payload, options).await?;
                failed()
            }
            Some(Trick::Refused) => failed(),
            Some(Trick::Late) => {
                let write = (self.inner.clone(), path.clone(), payload, options);
                self.faults.late.lock().unwrap().push(Late(write));
                failed()
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        match self.faults.next() {
            Some(Trick::LostAnswer) => {
                self.inner.copy_opts(from, to, options).await?;
                failed()
            }
            Some(Trick::Refused | Trick::Late) => failed(),
            None => self.inner.copy_opts(from, to, options).await,
        }
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        match self.faults.next() {
            Some(Trick::LostAnswer) => {
                self.inner.rename_opts(from, to, options).await?;
                failed()
            }
            Some(Trick::Refused | Trick::Late) => failed(),
            None => self.inner.rename_opts(from, to, options).await,
        }
    }
}
