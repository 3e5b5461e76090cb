//! One process of the built binary.
//!
//! Lives here: running it to its end or in the background, and folders before and after. May use: std. Never: a time limit
//! as a verdict; patience only ends what hangs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Until what hangs is a failure.
const PATIENCE: Duration = Duration::from_secs(300);

/// How a process ended.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_freshet"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn freshet(args: &[&str]) -> Done {
    let output = command(args).output().unwrap();
    Done {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs it, and it has to end with `code`.
pub fn expect(code: i32, args: &[&str]) -> Done {
    let done = freshet(args);
    assert_eq!(done.code, Some(code), "{args:?}: {done:?}");
    done
}

/// Starts it; what it says is thrown away.
pub fn start(args: &[&str], env: &[(&str, &str)]) -> Running {
    let child = command(args)
        .envs(env.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Running(child)
}

/// A process that is killed when the test is done with it.
pub struct Running(Child);

impl Running {
    /// Waits until `what` is so; fails where the process ends before.
    pub fn until(&mut self, name: &str, mut what: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !what() {
            let ended = self.0.try_wait().unwrap();
            assert!(ended.is_none(), "{name}: it ended before, with {ended:?}");
            assert!(
                begun.elapsed() < PATIENCE,
                "{name}: it did not come to that"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Its exit code, once it has ended by itself.
    pub fn code(mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every file below a folder, with its size and time of writing.
pub fn tree(folder: &Path) -> BTreeMap<String, (u64, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            // What a live writer or merger renames away between listing and looking is not there.
            let Ok(meta) = entry.metadata() else { continue };
            match meta.is_dir() {
                true => todo.push(entry.path()),
                false => {
                    let name = entry.path().to_string_lossy().into_owned();
                    found.insert(name, (meta.len(), meta.modified().unwrap()));
                }
            }
        }
    }
    found
}

/// Directories of generations below a table's shards.
pub fn generations(table: &Path) -> usize {
    let shards = std::fs::read_dir(table.join("_mem_wal")).unwrap();
    let inside = shards.flat_map(|s| std::fs::read_dir(s.unwrap().path()).unwrap());
    let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name();
    inside
        .filter(|e| e.as_ref().is_ok())
        .map(name)
        .filter(|n| n.to_string_lossy().contains("_gen_"))
        .count()
}
