//! The server that the official MCP conformance suite is run against: `scripts/conformance.sh`.
//!
//! The fixtures are an ordinary rmcp handler, [`fixtures::Fixtures`]; what makes some of its tools tasks is the
//! table in [`tasks::policies`]. Names, texts and schemas are the suite's, the rest is how one would write it.
//!
//! ```sh
//! cargo run -p outlast --example conformance_server -- --listen 127.0.0.1:3000 --db tasks.db
//! ```
//!
//! With `--store postgres://...` and `--shared FOLDER` it is one of several on that database, which share the key in the folder. Without either it is a server without tasks.

mod answers;
mod changes;
mod fixtures;
mod live;
mod media;
mod prompts;
mod questions;
mod requests;
mod resources;
mod rounds;
mod tasks;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use outlast::{Store, TaskServer, TaskTool};
use outlast_postgres::PostgresStore;
use outlast_sqlite::SqliteStore;
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use tokio::net::TcpListener;

use crate::fixtures::Fixtures;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Options { listen, db, store, shared } = Options::parse(std::env::args().skip(1))?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let listener = TcpListener::bind(&listen).await?;
    announce(&listener)?;
    let store: Arc<dyn Store> = match (db, store) {
        (Some(file), _) => Arc::new(SqliteStore::open(file)?),
        (None, Some(url)) => Arc::new(PostgresStore::connect(&url, Default::default()).await?),
        (None, None) => return plain(listener).await,
    };

    let fixtures = match shared {
        Some(folder) => Fixtures::shared(&folder)?,
        None => Fixtures::new()?,
    };
    let mut server = TaskServer::builder(fixtures).shared_store(store).default_tool(TaskTool::never());
    for (tool, policy) in tasks::policies() {
        server = server.tool(tool, policy);
    }
    let server = server.build().await?;

    outlast::http::serve(listener, server, terminated()).await?;
    Ok(())
}

/// The same tools on a server that knows nothing of tasks, as a gateway may have behind it.
async fn plain(listener: TcpListener) -> Result<(), Box<dyn Error>> {
    let fixtures = Fixtures::new()?;
    let config =
        StreamableHttpServerConfig::default().with_json_response(true).with_legacy_session_mode(true);
    let service: StreamableHttpService<Fixtures, LocalSessionManager> =
        StreamableHttpService::new(move || Ok(fixtures.clone()), Arc::default(), config);
    let app = axum::Router::new().route_service("/mcp", service);
    axum::serve(listener, app).with_graceful_shutdown(terminated()).await?;
    Ok(())
}

struct Options {
    listen: String,
    /// The file, or else the database, where the tasks are; without, there are none.
    db: Option<PathBuf>,
    store: Option<String>,
    /// What replicas share beside their tasks.
    shared: Option<PathBuf>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut listen, mut db, mut store, mut shared) = (None, None, None, None);
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--listen" => listen = Some(value),
                "--db" => db = Some(value.into()),
                "--store" => store = Some(value),
                "--shared" => shared = Some(value.into()),
                _ => {
                    let expected = "--listen ADDR [--db FILE | --store URL --shared FOLDER]";
                    return Err(format!("unknown argument {flag}: expected {expected}"));
                }
            }
        }
        Ok(Self { listen: listen.ok_or("--listen ADDR is missing")?, db, store, shared })
    }
}

/// Says where the server is: with port 0 nobody knows before, and a script waits for this line.
fn announce(listener: &TcpListener) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on http://{}/mcp", listener.local_addr()?)?;
    stdout.flush()
}

/// Resolves when the process is told to end: ctrl-c, or SIGTERM where there is one.
async fn terminated() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut sigterm) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = sigterm.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
