//! Which table a command is about.
//!
//! Lives here: `--table` and `--storage`, judged by the rules of the Experiment resource, and the opening of the table.
//! May use: `api` (rules, typed storage fields, the allow-list of credentials), `table`. Must never come in: a value of
//! a credential in a message.

use std::time::Duration;

use freshet::api::{Experiment, ExperimentSpec, Mode, StoreFamily, storage, validate};
use freshet::table::{Error, Location, Stores, StoresConfig, Table};
use tokio::time::timeout;

use super::exit::Failure;

#[derive(Debug, clap::Args)]
pub struct Place {
    /// The table: s3://bucket/path, gs://…, az://container/path, abfss://…, file:///path, or a path.
    #[arg(long, value_name = "URI")]
    table: String,
    /// How its store is reached: endpoint, region, account, virtualHostedStyle, allowHTTP, or a credential
    /// (aws_access_key_id, …). Without any credential the environment's are used.
    #[arg(long = "storage", value_name = "KEY=VALUE")]
    storage: Vec<String>,
}

/// Names of the resource's fields, and the option that each stands for.
const FIELDS: [(&str, &str); 5] = [
    ("endpoint", "endpoint"),
    ("region", "region"),
    ("account", "account_name"),
    ("virtualhostedstyle", "virtual_hosted_style_request"),
    ("allowhttp", "allow_http"),
];

/// How a command line gives what a manifest has fields for.
const STORAGE: &str = "on a command line, the fields of table.storage and credentials are given as --storage KEY=VALUE";

/// How often, and for how many seconds, a person's command asks a store that does not answer.
const RETRIES: [(&str, &str); 2] = [("client_max_retries", "4"), ("client_retry_timeout", "20")];

/// How long a store may take until a table is open.
const OPEN_WITHIN: Duration = Duration::from_secs(30);

/// A table that is named, and not opened yet.
pub struct Named {
    pub location: Location,
    /// Its address for people: the URI, and the endpoint where one was given.
    pub shown: String,
}

impl Place {
    /// Reads the flags.
    pub fn named(&self) -> Result<Named, Failure> {
        let options = self.storage.iter().map(|option| spelled(option));
        let (mut table, credentials) = storage::from_cli(&self.table, options)
            .map_err(|e| Failure::usage(format!("--storage: {e}")))?;
        if !table.uri.contains("://") {
            let path = table.uri.trim_end_matches('/');
            table.uri = if path.is_empty() { &table.uri } else { path }.to_string();
        }
        let spec = ExperimentSpec {
            table: table.clone(),
            ..Default::default()
        };
        judge("--table", &Experiment::new("table", spec), STORAGE)?;
        let mut options = storage::options(&table);
        options.extend(credentials);
        if table.uri.contains("://") && !table.uri.starts_with("file://") {
            options.extend(RETRIES.map(|(k, v)| (k.to_string(), v.to_string())));
        }
        let endpoint = table.storage.as_ref().and_then(|s| s.endpoint.as_deref());
        let shown = match endpoint {
            Some(endpoint) => format!("{} at {endpoint}", table.uri),
            None => table.uri.clone(),
        };
        Ok(Named {
            location: Location::new(table.uri).with_options(options),
            shown,
        })
    }
}

impl Named {
    /// Opens it.
    pub async fn open(&self) -> Result<Table, Failure> {
        let stores = Stores::new(StoresConfig::default());
        let opened = timeout(OPEN_WITHIN, Table::open(&stores, &self.location)).await;
        let late = Err(Error::StoreUnreachable("open the table in time"));
        opened.unwrap_or(late).map_err(|e| self.failure(&e))
    }

    /// An error of this table.
    pub fn failure(&self, e: &Error) -> Failure {
        Failure::of(&self.shown, e)
    }
}

/// The resource's own rules, told in the words of a command line. `flag` is the one that names the
/// table, whose value may hold a credential by mistake and is not repeated; `more` is how a store's options are given.
pub fn judge(flag: &str, experiment: &Experiment, more: &str) -> Result<(), Failure> {
    if StoreFamily::of_uri(&experiment.spec.table.uri).is_none() {
        let known = "s3://, gs://, az://, abfss:// or file://, or be a path";
        return Err(Failure::usage(format!("{flag} must begin with {known}")));
    }
    let wrong = validate(experiment, Mode::Local);
    if wrong.is_empty() {
        return Ok(());
    }
    let said: Vec<String> = wrong
        .iter()
        .map(|v| said(flag, &v.field, &v.message))
        .collect();
    let said = said.join("; ");
    let more = match said.contains("table.s") {
        true => format!(" ({more})"),
        false => String::new(),
    };
    Err(Failure::usage(format!("{said}{more}")))
}

/// One violation: what it is about, once.
fn said(flag: &str, field: &str, message: &str) -> String {
    let field = field.strip_prefix("spec.").unwrap_or(field);
    match message.strip_prefix(field) {
        Some(rest) if field == "table.uri" => format!("{flag}{rest}"),
        Some(_) => message.to_owned(),
        None if field == "table.uri" || field == "table" => format!("{flag}: {message}"),
        None if field == "metadata.name" => format!("{flag}: the name {message}"),
        None => format!("{field}: {message}"),
    }
}

/// The option as `api` knows it, whether it was spelled as there or as the resource's field.
fn spelled(option: &str) -> String {
    let Some((key, value)) = option.split_once('=') else {
        return option.to_string();
    };
    let lower = key.to_ascii_lowercase();
    let known = FIELDS.iter().find(|(field, _)| *field == lower);
    format!("{}={value}", known.map_or(key, |(_, option)| option))
}
