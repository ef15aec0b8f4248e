//! A server on standard input and output.

use rmcp::{ServerHandler, ServiceExt, transport::stdio};

use super::TaskServer;

/// Serves on standard input and output until the client closes its end or `shutdown` resolves, then gives unfinished
/// work back to the store.
///
/// # Errors
/// When the connection cannot be set up.
pub async fn serve<H: ServerHandler>(
    server: TaskServer<H>,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let mut shutdown = std::pin::pin!(shutdown);
    let running = tokio::select! {
        running = server.clone().serve(stdio()) => running.map_err(std::io::Error::other)?,
        () = &mut shutdown => {
            server.shutdown().await;
            return Ok(());
        }
    };
    let stop = running.cancellation_token();
    tokio::select! {
        _ = running.waiting() => {}
        () = &mut shutdown => {
            stop.cancel();
            server.shutdown().await;
            return Ok(());
        }
    }
    // The client is gone; who asks for the end now does not want to wait for the work either.
    tokio::select! {
        () = server.shutdown() => {}
        () = &mut shutdown => {}
    }
    Ok(())
}
