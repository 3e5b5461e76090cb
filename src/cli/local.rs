//! `freshet local`: the flags of the role, its signals and its exit code.
//!
//! Lives here: reading flags into `local`'s options. May use: `local`, `api`'s rules. Must never come in: what the role
//! does.

use std::net::SocketAddr;
use std::path::PathBuf;

use freshet::api::{Defaults, Experiment, ExperimentSpec, TableSpec};
use freshet::engine::Config;
use freshet::local::{self, Options};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::exit::{CODES, Failure, INTERRUPTED, USAGE};
use super::place::judge;
use super::say::{note, remark};
use super::size;
use super::{Output, asked_to_stop};

/// Keep the experiments of some manifests fresh and serve their records, in this one process, without a cluster.
/// Manifests are read again when they change; a broken edit keeps the last good state.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    /// A manifest, or a directory of *.yaml and *.yml manifests. May be repeated.
    #[arg(short, long = "filename", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,
    /// A table without a manifest, under the defaults. May be repeated.
    #[arg(long = "table", value_name = "NAME=URI")]
    tables: Vec<String>,
    /// Where to listen. Anything but this machine's own address serves the records to whoever can reach it.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// Where Secrets lie as files, DIR/<name>/<key>; credentials come from the environment where a table names none.
    #[arg(long, value_name = "DIR")]
    secrets: Option<PathBuf>,
    /// A file of one or two lines `ID KEY`, the key as base64 of 32 bytes or more: cursors are signed with the first and
    /// taken with either. It is read again when it changes. Without it cursors are not signed.
    #[arg(long, value_name = "FILE")]
    cursor_key_file: Option<PathBuf>,
    /// Memory that all merges together may use.
    #[arg(long, value_name = "SIZE", default_value = "1Gi", value_parser = size::budget)]
    budget: u64,
    /// How logs and the line that says that it is up are written.
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Output,
}

/// Name and URI. What is neither may hold a credential, so it is not repeated.
fn named(given: &str) -> Result<(&str, &str), Failure> {
    match given.split_once('=') {
        // A URI alone may hold a `=` too.
        Some((name, uri)) if !name.is_empty() && !uri.is_empty() && !name.contains([':', '/']) => {
            Ok((name, uri))
        }
        _ => Err(Failure::usage(
            "--table: write it as NAME=URI, as in runs=/data/runs.lance",
        )),
    }
}

fn experiment(given: &str) -> Result<Experiment, Failure> {
    let (name, uri) = named(given)?;
    let uri = match uri.contains("://") || uri == "/" {
        true => uri,
        false => uri.trim_end_matches('/'),
    };
    let table = TableSpec {
        uri: uri.to_string(),
        ..Default::default()
    };
    let spec = ExperimentSpec {
        table,
        ..Default::default()
    };
    let experiment = Experiment::new(name, spec);
    let more = "a table with options of its store needs a manifest, see -f";
    judge(&format!("--table {name}"), &experiment, more)?;
    Ok(experiment)
}

pub async fn run(args: Args) -> Result<(), Failure> {
    if args.files.is_empty() && args.tables.is_empty() {
        return Err(Failure::usage(
            "nothing to keep fresh; give manifests with -f FILE|DIR, or tables with --table NAME=URI",
        ));
    }
    let tables: Result<Vec<_>, _> = args.tables.iter().map(|given| experiment(given)).collect();
    let options = Options {
        files: args.files,
        tables: tables?,
        secrets: args.secrets,
        cursor_keys: args.cursor_key_file,
        listen: args.listen,
        engine: Config {
            memory_bytes: args.budget,
            ..Default::default()
        },
        defaults: Defaults::default(),
        up: match args.output {
            Output::Text => |up| {
                note(format_args!(
                    "{} experiments, served at http://{}",
                    up.experiments, up.address
                ))
            },
            Output::Json => |up| {
                note(format_args!(
                    "{}",
                    json!({ "experiments": up.experiments, "address": format!("http://{}", up.address) })
                ))
            },
        },
    };
    let stop = stop_on_signal();
    local::run(options, stop).await.map_err(failure)
}

/// A token that the first signal cancels; the second ends the process at once.
pub fn stop_on_signal() -> CancellationToken {
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        let signal = asked_to_stop().await;
        tracing::info!(signal, "stops; a second signal ends it at once");
        told.cancel();
        asked_to_stop().await;
        std::process::exit(i32::from(INTERRUPTED));
    });
    stop
}

/// How the role's errors end the process.
pub fn failure(e: local::Error) -> Failure {
    match &e {
        local::Error::Manifests(lines) => {
            // One mistake a line: people's editors jump to them.
            for line in lines.lines() {
                remark(line);
            }
            Failure::new(
                USAGE,
                "the manifests are wrong, see above; nothing was started",
            )
        }
        local::Error::AddressInUse(_) | local::Error::Address(..) | local::Error::CursorKeys(_) => {
            Failure::new(USAGE, e.to_string())
        }
        local::Error::Server(_) | local::Error::Engine => Failure::other(e.to_string()),
    }
}
