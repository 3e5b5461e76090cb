//! `freshet crds`: the CustomResourceDefinition, from the code.
//!
//! Lives here: writing it to a folder or to stdout. May use: `api`. Must never come in: a cluster.

use std::path::PathBuf;

use freshet::api::crd::crd_yaml;
use serde_json::json;

use super::Output;
use super::exit::{CODES, Failure};
use super::say::say;

/// Write the CustomResourceDefinitions, as the code defines them, into a folder.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    /// The folder.
    #[arg(long, default_value = "crds")]
    dir: PathBuf,
    /// Write to stdout, and to no file.
    #[arg(long)]
    stdout: bool,
    /// How the answer is written.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

const FILE: &str = "freshet.dev_experiments.yaml";

pub fn run(args: &Args) -> Result<(), Failure> {
    if args.stdout {
        return say(crd_yaml().trim_end());
    }
    let file = args.dir.join(FILE);
    std::fs::create_dir_all(&args.dir)
        .and_then(|()| std::fs::write(&file, crd_yaml()))
        .map_err(|e| Failure::other(format!("{} cannot be written: {e}", file.display())))?;
    match args.output {
        Output::Text => say(format_args!("wrote {}", file.display())),
        Output::Json => say(format_args!(
            "{:#}",
            json!({ "wrote": [file.display().to_string()] })
        )),
    }
}
