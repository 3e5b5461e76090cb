//! Writers that run in Pods, as rollout workers do: pylance's own, each with a shard.
//!
//! Lives here: `Writers`, a Job of them over one table, and their judgement. May use: the release, `writer.py` and the Python
//! environment of the tests with real clients. Never: Freshet, and a truth that was read from the table.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::IMAGE;
use crate::release::Release;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/writer.py");
const OF: usize = 2;

/// The Python with pylance, and where it and what it is made of lie.
pub fn python() -> (PathBuf, Vec<PathBuf>) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/venvs.py");
    let made = Command::new("python3").args([script, "clients"]).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{made:?}");
    let text = String::from_utf8(made.stdout).unwrap();
    let python = PathBuf::from(text.lines().last().unwrap());
    let asks = "import sys; print(sys.prefix); print(sys.base_prefix)";
    let told = Command::new(&python).args(["-c", asks]).output().unwrap();
    let text = String::from_utf8(told.stdout).unwrap();
    let mut places: Vec<_> = text.lines().map(PathBuf::from).collect();
    let system = ["/usr", "/lib", "/lib64"].map(PathBuf::from);
    places.retain(|p| !p.starts_with("/usr"));
    places.extend(system.into_iter().filter(|p| p.is_dir()));
    places.push(Path::new(SCRIPT).parent().unwrap().to_owned());
    (python, places)
}

/// Two writers of one table, each in a Pod of its own.
pub struct Writers {
    python: PathBuf,
    uri: String,
    options: String,
    exp: (&'static str, &'static str),
}

impl Writers {
    /// Makes the table of an Experiment's name and starts them; they write until they are told to end.
    pub fn start(release: &Release, exp: (&'static str, &'static str)) -> Self {
        let (python, places) = python();
        let options = json!(release.store.writer_options()).to_string();
        let made = Self {
            python,
            uri: release.store.uri(exp.1),
            options,
            exp,
        };
        made.run(&["make", &made.uri], "");
        for shard in 0..OF {
            release.cluster.apply(&made.job(shard, &places));
        }
        made
    }

    fn name(&self, shard: usize) -> String {
        format!("{}-writer-{shard}", self.exp.1)
    }

    fn job(&self, shard: usize, places: &[PathBuf]) -> Value {
        let mount = |(n, at): (usize, &PathBuf)| json!({ "name": format!("place-{n}"), "mountPath": at, "readOnly": true });
        let volume = |(n, at): (usize, &PathBuf)| json!({ "name": format!("place-{n}"), "hostPath": { "path": at, "type": "Directory" } });
        let args = [shard, OF].map(|n| n.to_string());
        let command = [
            &[self.python.to_str().unwrap(), SCRIPT, "write", &self.uri],
            &args.each_ref().map(String::as_str)[..],
        ];
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": { "name": self.name(shard), "namespace": self.exp.0 },
            "spec": { "backoffLimit": 0, "template": { "spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": "writer",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": command.concat(),
                    "env": [
                        { "name": "STORAGE", "value": self.options },
                        { "name": "RUST_LOG", "value": "off" },
                    ],
                    "securityContext": { "runAsUser": 0 },
                    "volumeMounts": places.iter().enumerate().map(mount).collect::<Vec<_>>(),
                }],
                "volumes": places.iter().enumerate().map(volume).collect::<Vec<_>>(),
            } } },
        })
    }

    /// `writer.py` on this machine.
    fn run(&self, args: &[&str], input: &str) {
        let mut child = Command::new(&self.python)
            .arg(SCRIPT)
            .args(args)
            .envs([("STORAGE", &*self.options), ("RUST_LOG", "off")])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let done = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{args:?}: {said}");
    }

    /// Tells them to end, and waits until they have ended well; what each wrote at last, a line for each.
    pub fn end(&self, release: &Release) -> String {
        let truth = |shard| {
            let job = format!("job/{}", self.name(shard));
            let namespace = self.exp.0;
            let asks = "import os, signal; os.kill(1, signal.SIGUSR1)";
            let python = self.python.to_str().unwrap();
            let exec = ["exec", &job, "-n", namespace, "--", python, "-c", asks];
            release.cluster.kubectl_ok(&exec);
            let done = ["--for=condition=Complete", "--timeout=120s"];
            let args = [&["wait", &job, "-n", namespace], &done[..]].concat();
            release.cluster.kubectl_ok(&args);
            let logs = ["logs", &job, "-n", namespace, "--tail=1"];
            release.cluster.kubectl_ok(&logs)
        };
        (0..OF).map(truth).collect()
    }

    /// Judges the base by what they wrote. Everything has to be merged before.
    pub fn judge(&self, truth: &str) {
        self.run(&["judge", &self.uri], truth);
    }
}
