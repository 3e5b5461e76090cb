//! One process of the built binary, in an environment that is told here and nowhere else.
//!
//! Lives here: running it to its end or in the background, with what it said. May use: std. Never: a cloud's variable of
//! the machine that the test runs on.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use crate::servers::MARK;

/// How a process ended.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

fn command(args: &[String], env: &[(&str, String)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_freshet"));
    command.args(args).stdin(Stdio::null()).env_clear();
    for key in ["PATH", "TMPDIR"] {
        command.envs(std::env::var_os(key).map(|v| (key, v)));
    }
    // No file of the machine's user, and no identity of the machine.
    command.env("HOME", "/nowhere");
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    command.envs(env.iter().map(|(k, v)| (k, v)));
    command
}

/// Runs it to its end; it must never show a secret.
pub async fn freshet(args: Vec<String>, env: Vec<(&'static str, String)>) -> Done {
    let ran = tokio::task::spawn_blocking(move || command(&args, &env).output().unwrap());
    let output = ran.await.unwrap();
    let done = Done {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    assert!(!done.out.contains(MARK), "a secret is shown: {}", done.out);
    assert!(!done.err.contains(MARK), "a secret is shown: {}", done.err);
    done
}

/// A role that runs until its test is done with it.
pub struct Running {
    child: Child,
    /// The first line that it said.
    pub said: String,
}

/// Starts it and waits for its first line.
pub async fn start(args: Vec<String>, env: Vec<(&'static str, String)>) -> Running {
    let started = tokio::task::spawn_blocking(move || {
        let mut child = command(&args, &env)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        Running { child, said }
    });
    started.await.unwrap()
}

impl Running {
    /// Ends it; all that it wrote to its log.
    pub fn end(mut self) -> String {
        self.child.kill().unwrap();
        let mut log = String::new();
        let mut err = self.child.stderr.take().unwrap();
        err.read_to_string(&mut log).unwrap();
        log
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
