//! TLS for whoever serves beyond this machine, with a certificate that may be renewed under it.
//!
//! Lives here: `Certificate`, read from two files and again when they change, and `TlsListener`, which hands on connections
//! whose handshake is done. May use: tokio-rustls. Must never come in: a key in a message, a handshake that others wait for, a
//! certificate of our own making.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::server::TlsStream;

/// The files are read again this often.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes under way at once.
const HANDSHAKES: usize = 512;

/// Why there is no certificate to serve with. Nothing of a file's content is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{0} cannot be read: {1}")]
    Unreadable(PathBuf, io::ErrorKind),
    /// A file holds something else.
    #[error("{0} holds no {1} in PEM")]
    Malformed(PathBuf, &'static str),
    /// The two do not belong together, or are of a kind that is not known.
    #[error(
        "the key {1} does not belong to the first certificate of {0}, or is of a kind that is not known"
    )]
    Apart(PathBuf, PathBuf),
}

impl Error {
    /// The kind's name.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Unreadable(..) => "CertificateUnreadable",
            Error::Malformed(..) => "CertificateMalformed",
            Error::Apart(..) => "CertificateAndKeyApart",
        }
    }
}

/// A certificate chain and its key, as two files last held them when both were good.
pub struct Certificate {
    files: [PathBuf; 2],
    held: Mutex<(Texts, Arc<CertifiedKey>)>,
    provider: Arc<CryptoProvider>,
}

/// What the two files hold.
type Texts = [Vec<u8>; 2];

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({})", self.files[0].display())
    }
}

impl Certificate {
    /// Reads both files.
    ///
    /// # Errors
    /// Names the file that is not as it should be.
    pub fn read(chain: &Path, key: &Path) -> Result<Arc<Self>, Error> {
        let files = [chain.to_owned(), key.to_owned()];
        let provider = Arc::new(aws_lc_rs::default_provider());
        let texts = texts(&files)?;
        let held = Mutex::new((texts.clone(), made(&files, &texts, &provider)?));
        Ok(Arc::new(Self {
            files,
            held,
            provider,
        }))
    }

    /// Looks at the files again. Gives back whether another certificate is served from now on.
    ///
    /// # Errors
    /// Where a file is not as it should be; the last good ones are served on.
    pub fn look(&self) -> Result<bool, Error> {
        let texts = texts(&self.files)?;
        if self.held().0 == texts {
            return Ok(false);
        }
        let made = made(&self.files, &texts, &self.provider)?;
        *self.held() = (texts, made);
        Ok(true)
    }

    /// Looks again and again. One that cannot be used is told once.
    pub async fn follow(self: Arc<Self>) {
        let mut told = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let own = self.clone();
            let Ok(looked) = tokio::task::spawn_blocking(move || own.look()).await else {
                continue;
            };
            match looked {
                Ok(renewed) => {
                    told = None;
                    if renewed {
                        tracing::info!("another certificate is served from now on");
                    }
                }
                Err(e) if told.as_ref() != Some(&e) => {
                    tracing::error!(
                        reason = e.reason(),
                        "the last good certificate is served on: {e}"
                    );
                    told = Some(e);
                }
                Err(_) => {}
            }
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, (Texts, Arc<CertifiedKey>)> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.held().1.clone())
    }
}

fn texts(files: &[PathBuf; 2]) -> Result<Texts, Error> {
    let read =
        |file: &PathBuf| std::fs::read(file).map_err(|e| Error::Unreadable(file.clone(), e.kind()));
    Ok([read(&files[0])?, read(&files[1])?])
}

fn made(
    files: &[PathBuf; 2],
    texts: &Texts,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, Error> {
    let malformed = |at: usize, what| Error::Malformed(files[at].clone(), what);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&texts[0]).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain = chain.ok_or_else(|| malformed(0, "certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(&texts[1]).map_err(|_| malformed(1, "private key"))?;
    let made = CertifiedKey::from_der(chain, key, provider);
    let apart = |_| Error::Apart(files[0].clone(), files[1].clone());
    made.map(Arc::new).map_err(apart)
}

/// Hands on connections that speak TLS. A handshake holds up nobody else.
#[derive(Debug)]
pub struct TlsListener {
    address: SocketAddr,
    done: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    accepting: JoinHandle<()>,
}

impl TlsListener {
    /// Listens where `listener` does, with what `certificate` holds at each handshake.
    ///
    /// # Errors
    /// Where the listener has no address, or the cryptography lacks a version of TLS.
    pub fn new(listener: TcpListener, certificate: Arc<Certificate>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let config = ServerConfig::builder_with_provider(certificate.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth();
        let mut config = config.with_cert_resolver(certificate);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let (tell, done) = mpsc::channel(1);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let accepting = tokio::spawn(accept(listener, acceptor, tell));
        Ok(Self {
            address,
            done,
            accepting,
        })
    }
}

async fn accept(
    mut listener: TcpListener,
    acceptor: TlsAcceptor,
    tell: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        // Closed by nobody.
        let Ok(permit) = handshakes.clone().acquire_owned().await else {
            return;
        };
        let (stream, from) = Listener::accept(&mut listener).await;
        let (acceptor, tell) = (acceptor.clone(), tell.clone());
        tokio::spawn(async move {
            let done = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
            if let Ok(Ok(stream)) = done {
                // A server that is gone takes no more.
                let _ = tell.send((stream, from)).await;
            }
            drop(permit);
        });
    }
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.done.recv().await {
            Some(connection) => connection,
            // The task that accepts never ends by itself.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A certificate of a name in a folder, by OpenSSL's own program.
    fn make(folder: &Path, name: &str) -> [PathBuf; 2] {
        let files = ["crt", "key"].map(|end| folder.join(format!("{name}.{end}")));
        let subject = format!("/CN={name}");
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
            .args(["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-subj", &subject, "-out"])
            .arg(&files[0])
            .arg("-keyout")
            .arg(&files[1])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        files
    }

    #[test]
    fn a_renewed_certificate_is_taken_up_and_a_broken_one_leaves_the_last_good_one() {
        let folder = tempfile::tempdir().unwrap();
        let [chain, key] = make(folder.path(), "alder");
        let certificate = Certificate::read(&chain, &key).unwrap();
        let first = certificate.held().1.clone();
        assert_eq!(certificate.look(), Ok(false));

        let [other_chain, other_key] = make(folder.path(), "birch");
        // Half of a renewal, as it is seen between two writes.
        std::fs::copy(&other_chain, &chain).unwrap();
        let apart = Error::Apart(chain.clone(), key.clone());
        assert_eq!(certificate.look(), Err(apart));
        assert!(Arc::ptr_eq(&first, &certificate.held().1));
        std::fs::copy(&other_key, &key).unwrap();
        assert_eq!(certificate.look(), Ok(true));
        assert!(!Arc::ptr_eq(&first, &certificate.held().1));
        assert_eq!(certificate.look(), Ok(false));

        std::fs::write(&key, "no key").unwrap();
        let malformed = Error::Malformed(key.clone(), "private key");
        assert_eq!(certificate.look(), Err(malformed));
        std::fs::remove_file(&key).unwrap();
        let gone = Error::Unreadable(key, io::ErrorKind::NotFound);
        assert_eq!(certificate.look(), Err(gone));
        assert!(certificate.resolves());
    }

    impl Certificate {
        fn resolves(&self) -> bool {
            !self.held().1.cert.is_empty()
        }
    }
}
