//! Standard input as the SDK is to see it: each line with its task filter moved aside, and none without an end.

use std::collections::VecDeque;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader, DuplexStream, duplex};

use super::aside::move_aside;

/// What the SDK reads in place of a line that is too long: it answers with an error, and the connection goes on.
const TOO_LONG: &[u8] = b"{\"jsonrpc\":\"2.0\",\"error\":\"a line was too long\"}\n";

/// How many subscriptions are ended with their client: those that were begun last. Without it the SDK would wait five
/// seconds for each to answer by itself.
const ENDED: usize = 1_000;

/// Bytes on their way to the SDK at one time.
const BUFFER: usize = 64 << 10;

/// The lines of `input`, of at most `max` bytes each.
pub(crate) fn lines(input: impl AsyncRead + Send + Unpin + 'static, max: usize) -> DuplexStream {
    let (ours, theirs) = duplex(BUFFER);
    tokio::spawn(async move {
        // Either end of it is closed: there is nobody to tell.
        let _ = pass_on(BufReader::new(input), ours, max).await;
    });
    theirs
}

async fn pass_on(
    mut input: BufReader<impl AsyncRead + Unpin>,
    mut output: DuplexStream,
    max: usize,
) -> std::io::Result<()> {
    let mut line = Vec::new();
    let mut too_long = false;
    let mut begun = VecDeque::new();
    loop {
        let available = input.fill_buf().await?;
        if available.is_empty() {
            // What has no end is no message.
            for id in begun {
                output.write_all(&cancelled(&id)).await?;
            }
            return output.shutdown().await;
        }
        let end = available.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let taken = end.unwrap_or(available.len());
        too_long |= line.len() + taken > max;
        if !too_long {
            line.extend_from_slice(&available[..taken]);
        }
        input.consume(taken);
        if end.is_none() {
            continue;
        }
        if std::mem::take(&mut too_long) {
            tracing::warn!(max, "a message on standard input was too long and was dropped");
            output.write_all(TOO_LONG).await?;
        } else if let Some(mut moved) = move_aside(&line) {
            moved.message.push(b'\n');
            output.write_all(&moved.message).await?;
            if begun.len() == ENDED {
                begun.pop_front();
            }
            begun.push_back(moved.id);
        } else {
            output.write_all(&line).await?;
        }
        line = Vec::new();
    }
}

/// What a client sends that wants no more of a subscription.
fn cancelled(id: &Value) -> Vec<u8> {
    let params = json!({"requestId": id});
    format!("{}\n", json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn read(input: &'static [u8], max: usize) -> String {
        let mut text = String::new();
        lines(input, max).read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn lines_pass_as_they_are_and_a_filter_of_tasks_is_moved() {
        assert_eq!(read(b"one\r\n\ntwo\nno end", 100).await, "one\r\n\ntwo\n");
        let listen = br#"{"id":"a","method":"subscriptions/listen","params":{"notifications":{"taskIds":[]}}}
{"id":7,"method":"tasks/get"}
"#;
        let moved = r#"{"id":"a","method":"subscriptions/listen","params":{"x-notifications":{"taskIds":[]}}}
{"id":7,"method":"tasks/get"}
"#;
        // The client is gone after that, and its subscription with it.
        let ended = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}
"#;
        assert_eq!(read(listen, 100).await, format!("{moved}{ended}"));
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_told_of_and_the_next_one_passes() {
        let text = read(b"0123456789\n01234567\n", 9).await;
        assert_eq!(text, format!("{}01234567\n", std::str::from_utf8(TOO_LONG).unwrap()));
        let long = Box::leak(vec![b'x'; 1 << 20].into_boxed_slice());
        assert_eq!(read(long, 1_000).await, "", "nor is it kept without an end");
    }
}
