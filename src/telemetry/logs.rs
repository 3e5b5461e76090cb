//! Setting up logs.
//!
//! Lives here: `init`, which sends `tracing`'s events to standard error as text or as JSON lines, and the one message of
//! Lance's that is dropped because it is wrong: it reports MemWAL's own index, which has no fields by design, as an
//! error at every merge. May use: tracing-subscriber. Must never come in: a credential.

use std::io::IsTerminal;
use std::str::FromStr;

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, fmt};

/// The form of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// For people; colours where standard error is a terminal.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            _ => Err("a log format is text or json".into()),
        }
    }
}

/// Why logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not one.
    #[error("the log filter is wrong: {0}; write for example `info` or `freshet=debug,lance=warn`")]
    Filter(#[from] ParseError),
    /// The process has set up logs before.
    #[error("logs are set up already")]
    Twice(#[from] TryInitError),
}

/// Sends this process's events to standard error. `filter` is in the form of `RUST_LOG`, such as `info,freshet=debug`.
///
/// # Errors
/// `Filter` where the filter cannot be read, `Twice` where logs are set up already.
pub fn init(format: Format, filter: &str) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(filter)?;
    // Where nobody reads on, a line is lost; telling so on the same stderr would panic.
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let lines = match format {
        Format::Json => lines.json().flatten_event(true).boxed(),
        Format::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines.with_filter(Sense))
        .try_init()?;
    Ok(())
}

/// Lets everything pass but the message that says nothing.
struct Sense;

impl<S> Filter<S> for Sense {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if !event.metadata().target().starts_with("lance::index") {
            return true;
        }
        let mut noise = Noise(false);
        event.record(&mut noise);
        !noise.0
    }
}

/// Whether an event's message is about the fields of MemWAL's own index.
struct Noise(bool);

impl Visit for Noise {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 |= field.name() == "message"
            && format!("{value:?}").contains("__lance_mem_wal has no fields");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_message_about_memwals_own_index_is_dropped_and_all_else_kept() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = fmt::layer().with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(Sense));
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(target: "lance::index", "Index __lance_mem_wal has no fields");
            tracing::error!(target: "lance::index", "Index by_id is broken");
            tracing::info!(target: "freshet", "__lance_mem_wal has no fields, we say");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("by_id is broken"));
        assert!(text.contains("we say"));
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn a_wrong_filter_is_named() {
        let e = init(Format::Text, "freshet=loud").unwrap_err();
        assert!(e.to_string().starts_with("the log filter is wrong"), "{e}");
    }
}
