//! `freshet demo`: its flags, its signals and its exit code.
//!
//! Lives here: reading flags into the demo's options. May use: `local`. Must never come in: what the demo does.

use std::net::SocketAddr;
use std::path::PathBuf;

use freshet::local::demo::{self, Error, Options};

use super::exit::{CODES, CORRUPT, Failure, USAGE};
use super::{Output, local};

/// Show Freshet at work: writers roll out into a new table through MemWAL, the engine merges behind them, and the records
/// are served. Needs nothing but a folder and a port.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    /// Where the table is made, and stays. Else in a temporary folder that is removed at the end.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Where to listen.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// Writers, each with a shard of its own.
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..=64))]
    writers: u16,
    /// End after so many seconds of writing, with a summary. Else Ctrl-C does.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// How the summary is written; with json nothing else is.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

pub async fn run(args: Args) -> Result<(), Failure> {
    let options = Options {
        dir: args.dir,
        listen: args.listen,
        writers: args.writers.into(),
        seconds: args.seconds,
        json: args.output == Output::Json,
    };
    let stop = local::stop_on_signal();
    demo::run(options, stop).await.map_err(|e| match e {
        Error::Role(e) => local::failure(e),
        Error::NotOurs(_) | Error::Folder { .. } => Failure::new(USAGE, e.to_string()),
        Error::Wrong(_) => Failure::new(CORRUPT, e.to_string()),
        Error::Writer(_) => Failure::other(e.to_string()),
    })
}
