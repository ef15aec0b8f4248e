//! What the command says of itself: logs, spans for a collector, metrics for a scraper.

pub(crate) mod metrics;
mod otlp;
mod settings;

use std::{
    env,
    io::{self, IsTerminal as _},
};

use anyhow::bail;
use tracing_subscriber::{EnvFilter, Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

pub(crate) use self::otlp::Export;

/// The variable that says how log lines look.
const LOG: &str = "OUTLAST_LOG";

/// Sends log lines to standard error, and for a server spans to the collector that the environment names.
///
/// To be called inside of the runtime: that carries the export.
///
/// # Errors
/// When what is set cannot be done.
pub(crate) fn begin(is_server: bool) -> anyhow::Result<Export> {
    // The SDK warns of each tool that fails and each connection that cannot be made, which is no news to the one who is
    // told so anyway; and it takes a caller that leaves before the answer for an error.
    let quiet = "warn,outlast_gateway=info,rmcp=error,rmcp::service=off,rmcp::transport::worker=off";
    let asked = env::var(EnvFilter::DEFAULT_ENV).ok().filter(|asked| !asked.is_empty());
    let filter = asked.as_deref().map(EnvFilter::try_new);
    let is_unread = matches!(filter, Some(Err(_)));
    let filter = filter.and_then(Result::ok).unwrap_or_else(|| EnvFilter::new(quiet));
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = match env::var(LOG).as_deref() {
        Err(_) | Ok("" | "text") => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        Ok("json") => lines.json().flatten_event(true).boxed(),
        Ok(_) => {
            bail!("{LOG} is neither text nor json, and says how log lines look; correct it or leave it out")
        }
    };
    let (export, spans) = if is_server { otlp::begin()? } else { (Export::none(), None) };
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans).init();
    if is_unread {
        tracing::warn!("{} says nothing that can be read, and is not heeded", EnvFilter::DEFAULT_ENV);
    }
    export.announce();
    Ok(export)
}
