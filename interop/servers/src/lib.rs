//! What the servers here share: where they listen, and what they say about it.

use std::io::Write;

use tokio::net::TcpListener;

/// Listens on the loopback port that the command names, or on one of the system's choice, and says where.
pub async fn listen() -> anyhow::Result<TcpListener> {
    let port: u16 = std::env::args().nth(1).map_or(Ok(0), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on http://{}/mcp", listener.local_addr()?)?;
    stdout.flush()?;
    Ok(listener)
}
