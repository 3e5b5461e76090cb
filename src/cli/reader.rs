//! `freshet reader`: the flags of the role, its configuration file and its exit code.
//!
//! Lives here: reading flags and file into `reader`'s options. May use: `reader`. Must never come in: what the role does.

use std::net::SocketAddr;
use std::path::PathBuf;

use freshet::reader::{self, Error, Options, Security};
use freshet::server::Config;
use serde_json::json;

use super::Output;
use super::controller::settings;
use super::exit::{CODES, Failure, USAGE};
use super::local::stop_on_signal;
use super::say::note;

/// Serve the records of a cluster's Experiments to whoever the cluster says may read them. Any number may run; none of them
/// writes anything.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    /// Grants and allowed endpoints, in YAML: the controller's own file. Read at the start.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve this namespace only. May be repeated, or list several with commas; absent means all namespaces.
    #[arg(
        long = "watch-namespace",
        visible_alias = "watch-namespaces",
        value_name = "NAMESPACE",
        value_delimiter = ','
    )]
    namespaces: Vec<String>,
    /// The namespace of paths that name none, as /api/v1/experiments/run-7; the process's own where it is not given.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    namespace: Option<String>,
    /// Where records are served.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// The certificate chain to serve with, in PEM. Read again when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Its key, in PEM. Read again when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_key_file: Option<PathBuf>,
    /// Serve without TLS: tokens and records are seen by whoever sees the network.
    #[arg(long, conflicts_with = "tls_cert_file")]
    plain_http: bool,
    /// Whom tokens have to be for, as in `kubectl create token --audience`.
    #[arg(long, value_name = "AUDIENCE", default_value = "freshet.dev", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    audience: String,
    /// Requests for records of one caller at once; beyond is 429.
    #[arg(long, value_name = "N", default_value_t = Config::default().per_caller)]
    per_caller: usize,
    /// Where /metrics is, without TLS and for whoever asks.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080")]
    metrics_address: SocketAddr,
    /// Where /livez and /readyz are, likewise.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8081")]
    health_address: SocketAddr,
    /// How logs and the line that says where it listens are written.
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Output,
}

pub async fn run(args: Args) -> Result<(), Failure> {
    let security = match (args.tls_cert_file, args.tls_key_file) {
        (Some(certificate), Some(key)) => Security::Tls { certificate, key },
        _ if args.plain_http => Security::Plain,
        _ => {
            return Err(Failure::usage(
                "how is it to be served? give --tls-cert-file and --tls-key-file, or --plain-http where something else keeps the network from others' eyes",
            ));
        }
    };
    let options = Options {
        settings: settings(args.config.as_deref())?,
        namespaces: args.namespaces,
        namespace: args.namespace,
        listen: args.listen,
        security,
        audience: args.audience,
        metrics: args.metrics_address,
        health: args.health_address,
        server: Config {
            per_caller: args.per_caller,
            ..Config::default()
        },
        up: match args.output {
            Output::Text => |up| {
                note(format_args!(
                    "records at {}, metrics at http://{}/metrics, health at http://{}/readyz",
                    address(up),
                    up.metrics,
                    up.health
                ));
            },
            Output::Json => |up| {
                note(format_args!(
                    "{}",
                    json!({
                        "address": address(up),
                        "metrics": up.metrics.to_string(),
                        "health": up.health.to_string(),
                    })
                ));
            },
        },
    };
    reader::run(options, stop_on_signal())
        .await
        .map_err(|e| match &e {
            Error::NoCluster(_) | Error::Address(..) | Error::Tls(_) => {
                Failure::new(USAGE, format!("{}: {e}", e.reason()))
            }
            Error::Ended(_) => Failure::other(e.to_string()),
        })
}

fn address(up: &reader::Up) -> String {
    let scheme = if up.tls { "https" } else { "http" };
    format!("{scheme}://{}", up.address)
}
