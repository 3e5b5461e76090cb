//! Store servers, each a process of a test's own.
//!
//! Lives here: `Server` (versitygw or Azurite on a free port, with one bucket), the places of tables in it, and spelled-out
//! options to open them. A world includes it with `#[path = "../stores/servers.rs"] mod servers;`. May use: the programs that
//! `tools/build.py` keeps. Never: a server that outlives its test.

// Each world uses a part.
#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use freshet::api::{SecretRef, StorageSpec, TableSpec, storage};
use freshet::table::Location;
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::{HttpRequest, HttpRequestBody};
use tempfile::TempDir;

/// Until what hangs is a failure.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A part of every secret: no output may hold it.
pub const MARK: &str = "HiddenAlderYew";
/// The bucket, or container, that every server has.
pub const BUCKET: &str = "maze-runs";
const ACCESS_KEY: &str = "alder-access";
const ACCOUNT: &str = "alderstore";

/// Which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    S3,
    Azure,
}

/// The folder of the built servers; builds what is missing of them.
fn tools() -> &'static Path {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    HOME.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/tools/build.py");
        for args in [vec![script], vec![script, "--print"]] {
            let made = Command::new("python3").args(&args).output().unwrap();
            let said = String::from_utf8_lossy(&made.stdout).trim().to_string();
            let wrong = String::from_utf8_lossy(&made.stderr);
            assert!(made.status.success(), "{said}\n{wrong}");
            if args.len() == 2 {
                return PathBuf::from(said);
            }
        }
        unreachable!("the last command returns");
    })
}

/// A program of the built servers.
pub fn program(name: &str) -> Command {
    Command::new(tools().join(name))
}

/// A process that ends with its test.
pub struct Guarded(Child);

impl Guarded {
    pub fn spawn(mut command: Command) -> Self {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(quiet.stderr(Stdio::null()).spawn().unwrap())
    }

    /// Sends it a signal, as in `STOP`.
    pub fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits until it listens; whether it does: false where it ended, as it does when somebody took the port before it.
    pub fn listens(&mut self, at: SocketAddr) -> bool {
        let begun = Instant::now();
        loop {
            if self.0.try_wait().unwrap().is_some() {
                return false;
            }
            if std::net::TcpStream::connect(at).is_ok() {
                return true;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not listen at {at}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Guarded {
    fn end(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.end();
    }
}

/// The address of tests that nobody else reaches.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// An address that nothing listened on a moment ago.
pub fn free() -> SocketAddr {
    free_on(LOOPBACK)
}

fn free_on(host: IpAddr) -> SocketAddr {
    let held = TcpListener::bind((host, 0)).unwrap();
    held.local_addr().unwrap()
}

/// Starts a program that is told where to listen; anew where the port was taken meanwhile.
pub fn start(command: impl Fn(SocketAddr) -> Command) -> (Guarded, SocketAddr) {
    start_on(LOOPBACK, command)
}

fn start_on(host: IpAddr, command: impl Fn(SocketAddr) -> Command) -> (Guarded, SocketAddr) {
    for _ in 0..10 {
        let at = free_on(host);
        let mut running = Guarded::spawn(command(at));
        if running.listens(at) {
            return (running, at);
        }
    }
    panic!("it does not start");
}

/// A store server with one bucket.
pub struct Server {
    pub kind: Kind,
    pub at: SocketAddr,
    process: Guarded,
    dir: TempDir,
    /// The part of an S3 server's secret that changes.
    turn: u32,
}

impl Server {
    pub async fn start(kind: Kind) -> Self {
        Self::start_on(LOOPBACK, kind).await
    }

    /// The same, at an address of this machine that others reach.
    pub async fn start_on(host: IpAddr, kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (process, at) = match kind {
            Kind::S3 => {
                std::fs::create_dir_all(dir.path().join("root").join(BUCKET)).unwrap();
                std::fs::create_dir_all(dir.path().join("beside")).unwrap();
                start_on(host, |at| s3(at, dir.path(), &s3_secret(0)))
            }
            Kind::Azure => start_on(host, |at| azure(at, dir.path())),
        };
        let made = Self {
            kind,
            at,
            process,
            dir,
            turn: 0,
        };
        if kind == Kind::Azure {
            made.make_container().await;
        }
        made
    }

    /// Stops it in its tracks: connections stay open and say nothing.
    pub fn pause(&self) {
        self.process.signal("STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.process.signal("CONT");
    }

    /// Serves the same from now on, to another secret alone: an S3 server's keys are rotated.
    pub fn rotate(&mut self) {
        assert_eq!(self.kind, Kind::S3);
        self.turn += 1;
        let command = s3(self.at, self.dir.path(), &s3_secret(self.turn));
        self.process.end();
        self.process = Guarded::spawn(command);
        assert!(self.process.listens(self.at), "its port was taken");
    }

    async fn make_container(&self) {
        let account = self.endpoint(self.at);
        let url = format!("{account}/{BUCKET}?restype=container");
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = reqwest::Method::PUT;
        *request.uri_mut() = url.parse().unwrap();
        let length = reqwest::header::CONTENT_LENGTH;
        request.headers_mut().insert(length, 0.into());
        let key = AzureAccessKey::try_new(&azure_key()).unwrap();
        let key = AzureCredential::AccessKey(key);
        let signer = AzureAuthorizer::new(&key, ACCOUNT);
        signer.try_authorize(&mut request).unwrap();
        let headers = request.headers().clone();
        let put = reqwest::Client::new().put(&url).headers(headers);
        let answer = put.send().await.unwrap();
        assert!(answer.status().is_success(), "{answer:?}");
    }

    /// The endpoint as a spec names it, reached at an address: the server's own or a proxy's.
    pub fn endpoint(&self, at: SocketAddr) -> String {
        match self.kind {
            Kind::S3 => format!("http://{at}"),
            Kind::Azure => format!("http://{at}/{ACCOUNT}"),
        }
    }

    /// The URI of a table.
    pub fn uri(&self, name: &str) -> String {
        match self.kind {
            Kind::S3 => format!("s3://{BUCKET}/{name}"),
            Kind::Azure => format!("az://{BUCKET}/{name}"),
        }
    }

    /// The table as a spec declares it.
    pub fn spec(&self, name: &str) -> TableSpec {
        let storage = StorageSpec {
            endpoint: Some(self.endpoint(self.at)),
            region: (self.kind == Kind::S3).then(|| "us-east-1".into()),
            account: (self.kind == Kind::Azure).then(|| ACCOUNT.into()),
            allow_http: Some(true),
            ..Default::default()
        };
        TableSpec {
            uri: self.uri(name),
            storage: Some(storage),
            secret_ref: Some(SecretRef {
                name: "maze-keys".into(),
            }),
            read_secret_ref: None,
        }
    }

    /// The keys of the Secret that opens it.
    pub fn secret(&self) -> BTreeMap<String, String> {
        let keys = match self.kind {
            Kind::S3 => vec![
                ("aws_access_key_id", ACCESS_KEY.to_string()),
                ("aws_secret_access_key", s3_secret(self.turn)),
            ],
            Kind::Azure => vec![("azure_storage_account_key", azure_key())],
        };
        let owned = keys.into_iter().map(|(k, v)| (k.to_string(), v));
        owned.collect()
    }

    /// A table's location, made of its spec and its Secret as the roles make it.
    pub fn location(&self, name: &str) -> Location {
        self.location_through(name, self.at)
    }

    /// The same, reached through a proxy.
    pub fn location_through(&self, name: &str, at: SocketAddr) -> Location {
        let mut spec = self.spec(name);
        spec.storage.as_mut().unwrap().endpoint = Some(self.endpoint(at));
        let credentials = storage::credentials_for(&spec, self.secret()).unwrap();
        Location::new(spec.uri.clone())
            .with_options(storage::options(&spec))
            .with_options(credentials)
    }

    /// The options that a writer opens a table with.
    pub fn writer_options(&self) -> HashMap<String, String> {
        self.location("any").options.into_iter().collect()
    }

    /// A command line's `--table … --storage …`, with options put in place of others of their key.
    pub fn flags(&self, name: &str, instead: &[(&str, &str)]) -> Vec<String> {
        let endpoint = self.endpoint(self.at);
        let mut options = match self.kind {
            Kind::S3 => vec![("region", "us-east-1".to_string())],
            Kind::Azure => vec![("account", ACCOUNT.to_string())],
        };
        options.push(("endpoint", endpoint));
        options.push(("allowHTTP", "true".into()));
        let mut options: BTreeMap<String, String> = options
            .into_iter()
            .map(|(k, v)| (k.to_string(), v))
            .collect();
        options.extend(self.secret());
        for (key, value) in instead {
            options.insert(key.to_string(), value.to_string());
        }
        let mut flags = vec!["--table".to_string(), self.uri(name)];
        for (key, value) in options.iter().filter(|(_, v)| !v.is_empty()) {
            flags.extend(["--storage".to_string(), format!("{key}={value}")]);
        }
        flags
    }
}

fn s3_secret(turn: u32) -> String {
    format!("{MARK}S3Secret{turn}")
}

fn azure_key() -> String {
    // The key as it is written is what may not be seen.
    format!("{MARK}{}", BASE64_STANDARD.encode([7u8; 48]))
        .chars()
        .take(64)
        .collect()
}

fn s3(at: SocketAddr, dir: &Path, secret: &str) -> Command {
    let mut command = program("versitygw");
    command
        .args(["--access", ACCESS_KEY, "--secret", secret])
        .args(["--quiet", "--keep-alive"])
        .args(["--port", &at.to_string(), "posix", "--sidecar"])
        .args([dir.join("beside"), dir.join("root")]);
    command
}

fn azure(at: SocketAddr, dir: &Path) -> Command {
    let mut command = program("azurite/run");
    command
        .args(["--blobHost", &at.ip().to_string()])
        .args(["--blobPort", &at.port().to_string()])
        .args(["--skipApiVersionCheck", "--disableTelemetry", "--silent"])
        .args(["--inMemoryPersistence"])
        .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{}", azure_key()))
        .current_dir(dir);
    command
}
