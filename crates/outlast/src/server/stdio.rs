//! A server on standard input and output.

use rmcp::{ServerHandler, ServiceExt, service::ServerInitializeError};
use tokio::io::{stdin, stdout};

use super::{TaskServer, push::lines::lines};

/// The longest message, in bytes: as long as an HTTP request may be.
const MAX_LINE: usize = 4 << 20;

/// Serves on standard input and output until the client closes its end or `shutdown` resolves, then gives unfinished
/// work back to the store.
///
/// A client that leaves before its first message is served, too: there was nothing to do for it.
///
/// # Errors
/// When the connection cannot be set up.
pub async fn serve<H: ServerHandler>(
    server: TaskServer<H>,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let mut shutdown = std::pin::pin!(shutdown);
    let running = tokio::select! {
        running = server.clone().serve((lines(stdin(), MAX_LINE), stdout())) => running,
        () = &mut shutdown => {
            server.shutdown().await;
            return Ok(());
        }
    };
    let served = match running {
        Ok(running) => {
            let stop = running.cancellation_token();
            tokio::select! {
                _ = running.waiting() => Ok(()),
                () = &mut shutdown => {
                    stop.cancel();
                    server.shutdown().await;
                    return Ok(());
                }
            }
        }
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(std::io::Error::other(error)),
    };
    // The client is gone; who asks for the end now does not want to wait for the work either.
    tokio::select! {
        () = server.shutdown() => {}
        () = &mut shutdown => {}
    }
    served
}
