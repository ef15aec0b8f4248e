//! Whether a server tells its clients of changes.

use std::time::Duration;

use anyhow::{Context, bail};
use outlast_client::{Started, TaskClient};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Whether the server acknowledges a subscription to a task, or why it does not. The client takes push where there is
/// any and polls where there is none, and shows neither: so it is asked for here by hand.
pub async fn offered(client: &TaskClient, url: &str) -> anyhow::Result<Result<(), String>> {
    let Started::Task(task) = client.start_tool(crate::tool("cancellable")).await? else {
        bail!("expected a task")
    };
    let said = listen(url, task.id()).await;
    task.cancel().await?;
    let said = said?;
    if let Some(error) = said.get("error") {
        return Ok(Err(format!("it refuses the subscription: {error}")));
    }
    match said.pointer("/params/notifications/taskIds").and_then(Value::as_array) {
        Some(ids) if ids.iter().any(|id| id == task.id()) => Ok(Ok(())),
        _ => Ok(Err(format!("it acknowledges a subscription without the task: {}", said["params"]))),
    }
}

/// The first message of the answer.
async fn listen(url: &str, task: &str) -> anyhow::Result<Value> {
    const VERSION: &str = "2026-07-28";
    let request = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "subscriptions/listen",
        "params": {
            "notifications": { "taskIds": [task] },
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": VERSION,
                "io.modelcontextprotocol/clientInfo": { "name": "interop", "version": "1" },
                "io.modelcontextprotocol/clientCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } },
            },
        },
    });
    let (address, path) =
        url.strip_prefix("http://").and_then(|url| url.split_once('/')).context("no such url")?;
    let body = request.to_string();
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    let head = format!(
        "POST /{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: {VERSION}\r\n\
         mcp-method: subscriptions/listen\r\ncontent-length: {}\r\n\r\n",
        body.len(),
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    let message = async {
        // A stream has no end: its first event will do. What else is in an answer does not look like a message.
        let mut lines = stream.lines();
        while let Some(line) = lines.next_line().await? {
            let line = line.strip_prefix("data:").unwrap_or(&line).trim();
            if let Ok(message @ Value::Object(_)) = serde_json::from_str(line) {
                return Ok(message);
            }
        }
        bail!("no message in the answer")
    };
    tokio::time::timeout(Duration::from_secs(5), message).await.context("no acknowledgement within 5 s")?
}
