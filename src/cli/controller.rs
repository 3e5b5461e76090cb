//! `freshet controller`: the flags of the role, its configuration file and its exit code.
//!
//! Lives here: reading flags and file into `controller`'s options. May use: `controller`. Must never come in: what the role
//! does.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use freshet::api::GoDuration;
use freshet::cluster::Settings;
use freshet::controller::{self, Error, Options};
use freshet::engine::Config;
use serde_json::json;

use super::Output;
use super::exit::{CODES, Failure, USAGE};
use super::local::stop_on_signal;
use super::say::note;
use super::size;

/// Keep the tables of a cluster's Experiments fresh: watch them, merge, and report in their status. Any number may run;
/// one of them leads and works, the others wait for its Lease.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    /// Defaults, limits, grants and allowed endpoints, in YAML. Read at the start.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Watch this namespace only. May be repeated, or list several with commas; absent means all namespaces.
    #[arg(
        long = "watch-namespace",
        visible_alias = "watch-namespaces",
        value_name = "NAMESPACE",
        value_delimiter = ','
    )]
    namespaces: Vec<String>,
    /// Where /metrics is.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080")]
    metrics_address: SocketAddr,
    /// Where /livez and /readyz are.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8081")]
    health_address: SocketAddr,
    /// Memory that all merges together may use.
    #[arg(long, value_name = "SIZE", default_value = "1Gi", value_parser = size::budget)]
    budget: u64,
    /// How often each table is looked at; 1s, or what the configuration says.
    #[arg(long, value_name = "DURATION", value_parser = poll)]
    poll: Option<Duration>,
    /// The Lease by which one of several leads.
    #[arg(long, value_name = "NAME", default_value = "freshet-controller")]
    lease_name: String,
    /// The Lease's namespace; the process's own where it is not given.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    lease_namespace: Option<String>,
    /// The name of this process, as the Lease and events show it.
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAME",
        default_value = "freshet",
        hide = true
    )]
    pod_name: String,
    /// How logs and the line that says where it listens are written.
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Output,
}

fn poll(text: &str) -> Result<Duration, String> {
    match text.parse::<GoDuration>() {
        Ok(d) if !d.is_zero() => Ok(d.as_duration()),
        Ok(_) => Err("it must be more than nothing, as in 1s".into()),
        Err(e) => Err(format!("{e}; write it as in 1s or 500ms")),
    }
}

/// Reads the configuration file, where one is given.
pub fn settings(file: Option<&Path>) -> Result<Settings, Failure> {
    let Some(file) = file else {
        return Ok(Settings::default());
    };
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|e| Failure::usage(format!("{shown} cannot be read: {}", e.kind())))?;
    Settings::read(&text).map_err(|e| Failure::usage(format!("{}: {shown}: {e}", e.reason())))
}

pub async fn run(args: Args) -> Result<(), Failure> {
    let settings = settings(args.config.as_deref())?;
    let normal = Config {
        // What the chart gives a Pod to end in is longer.
        stop_grace: Duration::from_secs(15),
        ..Config::default()
    };
    let options = Options {
        engine: Config {
            memory_bytes: args.budget,
            poll: args.poll.or(settings.poll).unwrap_or(normal.poll),
            slots: settings.slots.unwrap_or(normal.slots),
            ..normal
        },
        settings,
        namespaces: args.namespaces,
        metrics: args.metrics_address,
        health: args.health_address,
        lease_namespace: args.lease_namespace,
        lease: args.lease_name,
        // A Pod's name may come again; no other process ever had this one. An event takes 128 characters of it.
        me: format!("{:.90}_{}", args.pod_name, uuid::Uuid::new_v4()),
        up: match args.output {
            Output::Text => |up| {
                note(format_args!(
                    "metrics at http://{}/metrics, health at http://{}/readyz",
                    up.metrics, up.health
                ));
            },
            Output::Json => |up| {
                note(format_args!(
                    "{}",
                    json!({ "metrics": up.metrics.to_string(), "health": up.health.to_string() })
                ));
            },
        },
    };
    controller::run(options, stop_on_signal())
        .await
        .map_err(|e| match &e {
            Error::NoCluster(_) | Error::Address(..) => Failure::new(USAGE, e.to_string()),
            Error::Ended(_) => Failure::other(e.to_string()),
        })
}
