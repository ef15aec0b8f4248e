//! A connection over two byte streams: each message is one line.

use std::{io, sync::Arc, time::Duration};

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use super::{
    asked::{Asked, too_long},
    glance::Glance,
    observed::Observed,
};

/// The longest line that is read, in bytes: as long as an answer over HTTP may be.
pub(crate) const MAX_LINE: usize = 16 << 20;

/// How long the last lines may take to be written when the connection is closed.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Lines on their way to the server at one time; more wait with whoever sends them.
const QUEUED: usize = 64;

/// What is read from.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// What is written to.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A line to write, and who waits until it is written.
type Line = (Vec<u8>, oneshot::Sender<io::Result<()>>);

/// The transport.
///
/// What is no message is logged and skipped. So is a line of more than `max_line` bytes, except that the request which it
/// answers, if it answers one, fails at once.
pub(crate) struct Lines {
    read: BufReader<Reader>,
    // The line as far as it was read. Kept here because `receive` is dropped whenever something else happens.
    line: Vec<u8>,
    overlong: Option<Glance>,
    max_line: usize,
    write: Option<mpsc::Sender<Line>>,
    writing: Option<JoinHandle<()>>,
    asked: Arc<Asked>,
}

impl Lines {
    pub(crate) fn new(read: Reader, write: Writer, observed: Arc<Observed>) -> Lines {
        Lines::with_max_line(read, write, observed, MAX_LINE)
    }

    pub(crate) fn with_max_line(
        read: Reader,
        write: Writer,
        observed: Arc<Observed>,
        max_line: usize,
    ) -> Lines {
        let (sender, queue) = mpsc::channel(QUEUED);
        Lines {
            read: BufReader::new(read),
            line: Vec::new(),
            overlong: None,
            max_line,
            write: Some(sender),
            writing: Some(tokio::spawn(write_all(write, queue))),
            asked: Asked::new(observed),
        }
    }

    /// Closes the writing half once the lines that were accepted are written.
    pub(crate) async fn close_writer(&mut self) {
        self.write = None;
        if let Some(mut writing) = self.writing.take()
            && timeout(LAST_LINES, &mut writing).await.is_err()
        {
            writing.abort();
        }
    }

    /// Reads on until the server has closed its half, and keeps nothing of it.
    pub(crate) async fn drain(&mut self) {
        // Whoever could be told of an error has closed the connection.
        let _ = tokio::io::copy_buf(&mut self.read, &mut tokio::io::sink()).await;
    }

    /// The next line that means something; `None` at the end.
    async fn next(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let read = match self.read.fill_buf().await {
                Ok(read) => read,
                Err(error) => {
                    tracing::warn!(%error, "the connection to the server was lost");
                    return None;
                }
            };
            if read.is_empty() {
                // What has no end is no message.
                return None;
            }
            let end = read.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let taken = end.unwrap_or(read.len());
            if let Some(glance) = &mut self.overlong {
                glance.read(&read[..taken]);
            } else if self.line.len() + taken > self.max_line {
                let glance = self.overlong.insert(Glance::default());
                glance.read(&self.line);
                glance.read(&read[..taken]);
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(&read[..taken]);
            }
            self.read.consume(taken);
            if end.is_some()
                && let Some(message) = self.message()
            {
                return Some(message);
            }
        }
    }

    /// The message of the line that has just ended.
    fn message(&mut self) -> Option<ServerJsonRpcMessage> {
        let line = std::mem::take(&mut self.line);
        if let Some(glance) = self.overlong.take() {
            tracing::warn!(max = self.max_line, "a line of the server was too long; it is skipped");
            let answer = too_long(&glance.answered()?, self.max_line);
            return self.asked.decode(answer.to_string().as_bytes());
        }
        let line = line.trim_ascii();
        if line.is_empty() { None } else { self.asked.decode(line) }
    }
}

impl Transport<RoleClient> for Lines {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let under_way = self.asked.sent(&message);
        let write = self.write.clone();
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let (written, result) = oneshot::channel();
            let write = write.ok_or_else(closed)?;
            write.send((line, written)).await.map_err(|_| closed())?;
            drop(write);
            // It will be written, whether or not anybody waits for that.
            under_way.keep();
            result.await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?
        }
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.next()
    }

    async fn close(&mut self) -> io::Result<()> {
        self.close_writer().await;
        Ok(())
    }
}

/// Writes whole lines: whoever sends one may be dropped in its middle, the line is not.
async fn write_all(mut write: Writer, mut queue: mpsc::Receiver<Line>) {
    while let Some((line, written)) = queue.recv().await {
        let result = async {
            write.write_all(&line).await?;
            write.flush().await
        }
        .await;
        let broken = result.is_err();
        // Nobody may be waiting for it any more.
        let _ = written.send(result);
        if broken {
            // Half a line may have been written, and nothing can come after that.
            return;
        }
    }
    let _ = write.shutdown().await;
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection to the server is closed")
}
