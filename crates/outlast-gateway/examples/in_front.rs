//! The gateway as a part of a program of your own: in front of a server that speaks HTTP, with its tasks in a file.
//!
//! `cargo run -p outlast-gateway --example in_front -- http://127.0.0.1:9000/mcp 127.0.0.1:8808 tasks.db`

use std::{io::Write, sync::Arc};

use outlast::Config;
use outlast_client::Server;
use outlast_gateway::{Gateway, GatewayOptions, Upstream};
use outlast_sqlite::SqliteStore;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let [url, listen, db] = std::env::args().skip(1).collect::<Vec<_>>().try_into().unwrap_or_else(|_| {
        eprintln!("usage: in_front URL ADDRESS FILE");
        std::process::exit(2)
    });
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let upstream = Upstream::only(Server::http(url));
    let store = Arc::new(SqliteStore::open(db)?);
    let server = Gateway::serve(vec![upstream], GatewayOptions::default(), store, Config::default()).await?;
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    std::io::stdout().flush()?;
    outlast::http::serve(listener, server, async {
        let _ = tokio::signal::ctrl_c().await;
    })
    .await?;
    Ok(())
}
