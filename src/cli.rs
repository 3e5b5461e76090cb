//! The command line: which role the process takes, what it is told, and how it ends.
//!
//! Lives here: the commands, logging, signals, and the run of one command to its exit code. May use: every room. Must
//! never come in: what a role does; that is `engine`'s, `local`'s, `controller`'s and `reader`'s business.
//! Results go to stdout, logs and errors to stderr; an error is one line that says what is so and what to do.

mod backlog;
mod controller;
mod crds;
mod demo;
mod exit;
mod local;
mod merge;
mod place;
mod reader;
mod say;
mod size;
mod wait;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use freshet::telemetry;

use exit::{CODES, Failure};
use say::remark;

/// Keeps Lance tables that are written through MemWAL fresh.
#[derive(Debug, Parser)]
#[command(name = "freshet", version, after_help = CODES, arg_required_else_help = true, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    role: Role,
    /// Log more to stderr; twice for the store's and Lance's own words. FRESHET_LOG=filter for full control.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Role {
    Merge(merge::Args),
    Backlog(backlog::Args),
    Wait(wait::Args),
    Local(local::Args),
    Controller(controller::Args),
    Reader(reader::Args),
    Demo(demo::Args),
    Crds(crds::Args),
}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs: one document.
    Json,
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = match cli.role {
        Role::Local(_) | Role::Controller(_) | Role::Reader(_) => "info",
        _ => "error",
    };
    let format = match &cli.role {
        Role::Local(args) if args.output == Output::Json => telemetry::Format::Json,
        Role::Controller(args) if args.output == Output::Json => telemetry::Format::Json,
        Role::Reader(args) if args.output == Output::Json => telemetry::Format::Json,
        _ => telemetry::Format::Text,
    };
    if let Err(failure) = log(cli.verbose, level, format) {
        remark(format_args!("freshet: {failure}"));
        return ExitCode::from(failure.code);
    }
    let done = std::panic::catch_unwind(move || run(cli.role)).unwrap_or_else(|_| {
        Err(Failure::other(
            "an internal fault; what was committed is whole, please report it with what `-v` says",
        ))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            remark(format_args!("freshet: {failure}"));
            ExitCode::from(failure.code)
        }
    }
}

fn run(role: Role) -> Result<(), Failure> {
    match role {
        Role::Crds(args) => crds::run(&args),
        Role::Local(args) => in_runtime(local::run(args)),
        Role::Controller(args) => in_runtime(controller::run(args)),
        Role::Reader(args) => in_runtime(reader::run(args)),
        Role::Demo(args) => in_runtime(demo::run(args)),
        Role::Merge(args) => in_runtime(merge::run(args)),
        Role::Backlog(args) => in_runtime(backlog::run(args)),
        Role::Wait(args) => in_runtime(wait::run(args)),
    }
}

/// Logs go to stderr: our own from `level` on, those of Lance and the stores only when asked for.
fn log(verbose: u8, level: &str, format: telemetry::Format) -> Result<(), Failure> {
    let filter = match verbose {
        0 => format!("off,freshet={level}"),
        1 => "off,freshet=debug".to_string(),
        _ => "info,freshet=trace".to_string(),
    };
    let filter = std::env::var("FRESHET_LOG").unwrap_or(filter);
    telemetry::init(format, &filter).map_err(|e| Failure::usage(format!("FRESHET_LOG: {e}")))
}

/// Runs a command until it ends or a signal comes. Work that is dropped has committed all of it or nothing.
fn in_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::other(format!("the process cannot start its threads: {e}")))?;
    let done = runtime.block_on(work);
    // What still runs in threads is of no use to anybody any more.
    runtime.shutdown_background();
    done
}

/// Ends when the process is asked to: SIGINT or SIGTERM.
async fn asked_to_stop() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    }
}
