//! One real cluster, from its start to its end.
//!
//! Lives here: the handle of a cluster that `cluster.py` runs. May use: std and serde_json. Never: a process that is left
//! behind; the cluster ends with the handle, with a panic, and with this process however it is killed, for it ends when
//! its standard input does. A cluster takes seconds to start and half a gigabyte, so tests that can share one use
//! [`Cluster::shared`], each in a namespace of its own.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, OnceLock};

use serde_json::Value;

/// The image of the built binary on a node's cluster; use it with `imagePullPolicy: Never`.
pub const IMAGE: &str = "localhost/freshet:test";

/// What the running cluster said of itself when it was ready.
struct Place {
    folder: PathBuf,
    programs: PathBuf,
    kubeconfig: PathBuf,
    address: String,
    gateway: String,
}

/// The two ends of the conversation with it.
struct Control {
    hears: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

/// A running cluster, reached from this machine by its address.
pub struct Cluster {
    child: Child,
    control: Mutex<Control>,
    place: Place,
}

impl Cluster {
    /// Starts etcd, the API server, the controllers and the scheduler, and waits until they work. Pods stay pending.
    pub fn control_plane() -> Self {
        Self::start(&[])
    }

    /// The one control plane that tests of this process share. Nobody may stop a part of it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Self::control_plane)
    }

    /// A control plane with one node that runs Pods, with the image [`IMAGE`] of the built binary. It takes the CPU of
    /// many, and its Pods know no other image.
    pub fn with_node() -> Self {
        Self::start(&["--node", "--product", env!("CARGO_BIN_EXE_freshet")])
    }

    fn start(arguments: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/cluster.py");
        let mut child = Command::new("python3")
            .args([script, "serve"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Its own group: who kills the tests' group leaves it the time to clear away.
            .process_group(0)
            .spawn()
            .unwrap();
        let mut control = Control {
            hears: child.stdin.take(),
            says: BufReader::new(child.stdout.take().unwrap()),
        };
        let told = control.answer();
        assert!(told["error"].is_null(), "no cluster: {told}");
        let text = |key: &str| told[key].as_str().unwrap().to_owned();
        let place = Place {
            folder: text("folder").into(),
            programs: text("programs").into(),
            kubeconfig: text("kubeconfig").into(),
            address: text("address"),
            gateway: text("gateway"),
        };
        Self {
            child,
            control: Mutex::new(control),
            place,
        }
    }

    /// A kubeconfig of an administrator, which needs no other file.
    pub fn kubeconfig(&self) -> &Path {
        &self.place.kubeconfig
    }

    /// Everything that the cluster keeps on disk: `log/<program>.log`, `audit.log`, etcd's data.
    pub fn folder(&self) -> &Path {
        &self.place.folder
    }

    /// A built program: `kubectl`, `helm`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.place.programs.join(name)
    }

    /// The cluster's address on the one link to this machine.
    pub fn address(&self) -> &str {
        &self.place.address
    }

    /// This machine's address on that link: what listens on it is reached from Pods too.
    pub fn gateway(&self) -> &str {
        &self.place.gateway
    }

    /// A program of the tools as the cluster's administrator.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.program(program));
        command
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.folder().join("cache"))
            .stdin(Stdio::null());
        command
    }

    /// kubectl to its end, whatever that is.
    pub fn kubectl(&self, args: &[&str]) -> Output {
        self.command("kubectl").args(args).output().unwrap()
    }

    /// kubectl, which has to succeed; returns what it printed.
    pub fn kubectl_ok(&self, args: &[&str]) -> String {
        said(&self.kubectl(args), args)
    }

    /// kubectl with a document as its standard input (`-f -`), to its end.
    pub fn kubectl_in(&self, document: &Value, args: &[&str]) -> Output {
        let mut command = self.command("kubectl");
        command.args(args).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let text = document.to_string();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    }

    /// Applies a document, which has to succeed.
    pub fn apply(&self, document: &Value) {
        let args = ["apply", "--server-side", "-f", "-"];
        said(&self.kubectl_in(document, &args), &args);
    }

    /// An object as the API server has it, by its type and name.
    pub fn get(&self, namespace: &str, object: &str) -> Value {
        let args = ["get", object, "-n", namespace, "-o", "json"];
        serde_json::from_str(&self.kubectl_ok(&args)).unwrap()
    }

    /// What was asked of the API server so far, as its audit events (`user.username`, `verb`, `objectRef`,
    /// `responseStatus.code`), without what Kubernetes' own programs ask. An answered request is there; a watch is there
    /// twice, as it begins (`stage` ResponseStarted) and as it ends.
    pub fn requests(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder().join("audit.log")).unwrap();
        // What has no end of line yet is being written.
        let whole = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
        whole
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    }

    /// Makes a namespace.
    pub fn namespace(&self, name: &str) {
        self.kubectl_ok(&["create", "namespace", name]);
    }

    /// Applies `crds/` and waits until the API server serves it.
    pub fn apply_crds(&self) {
        let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/crds");
        self.kubectl_ok(&["apply", "--server-side", "-f", crds]);
        self.kubectl_ok(&[
            "wait",
            "--for=condition=Established",
            "-f",
            crds,
            "--timeout=60s",
        ]);
    }

    /// Kills a program: `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `kubelet`, …
    pub fn stop(&self, program: &str) {
        self.order(&format!("stop {program}"));
    }

    /// Starts a stopped program again; waits until the API server or etcd is ready, where it is one of them.
    pub fn start_again(&self, program: &str) {
        self.order(&format!("start {program}"));
    }

    /// Stops a program in its tracks: its connections stay open and say nothing.
    pub fn pause(&self, program: &str) {
        self.order(&format!("pause {program}"));
    }

    /// Lets a paused program go on.
    pub fn resume(&self, program: &str) {
        self.order(&format!("resume {program}"));
    }

    pub fn stop_apiserver(&self) {
        self.stop("kube-apiserver");
    }

    pub fn start_apiserver(&self) {
        self.start_again("kube-apiserver");
    }

    /// Kills who watches over the cluster, the way an out-of-memory killer would. The cluster ends by it.
    pub fn kill(&self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", "KILL", &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Makes etcd forget every older revision: a watch that resumes from one is told 410.
    pub fn compact_etcd(&self) {
        self.order("compact");
    }

    fn order(&self, order: &str) {
        let mut control = self.control.lock().unwrap();
        writeln!(control.hears.as_mut().unwrap(), "{order}").unwrap();
        let answer = control.answer();
        assert_eq!(answer["ok"], true, "{order}: {answer}");
    }
}

impl Control {
    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("the cluster ended: {e}: {line:?}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A test may have panicked while it held the lock; the end is the same.
        let control = self.control.get_mut().unwrap_or_else(|e| e.into_inner());
        drop(control.hears.take());
        let _ = self.child.wait();
    }
}

/// The standard output of a program that has to have succeeded.
fn said(output: &Output, args: &[&str]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "kubectl {args:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}
