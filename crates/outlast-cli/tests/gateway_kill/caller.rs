//! A client whose gateway may die under it.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::upstream::AT_WORK;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The gateway went away before its whole answer was here.
#[derive(Debug)]
pub(crate) struct Gone;

/// What a call came to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Called {
    Task(String),
    /// Its caller knows nothing of tasks, and was told that the work of this id goes on.
    GoesOn(String),
    /// A result, as a task would show it.
    Result(Value),
    /// An error, as a task would show it.
    Error(Value),
}

/// One owner of tasks.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    address: String,
    owner: u64,
}

impl Caller {
    /// The owner of this number.
    pub(crate) fn new(address: &str, owner: u64) -> Self {
        Self { address: address.to_owned(), owner }
    }

    /// Sends a request and returns the answer, whether that is a result or an error.
    fn send(&self, method: &str, name: &str, params: Value) -> Result<Value, Gone> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let (address, length, owner) = (&self.address, body.len(), self.owner);
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\
            Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
            Authorization: Bearer owner-{owner}\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n\
            Mcp-Name: {name}\r\n\r\n{body}"
        );
        let answer = (|| {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        })();
        let answer = answer.map_err(|_| Gone)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or(Gone)?;
        // Half an answer is none.
        serde_json::from_str(body).map_err(|_| Gone)
    }

    /// The result of a request that must not be refused, save because it was asked for too often.
    fn request(&self, method: &str, id: &str, mut params: Value) -> Result<Option<Value>, Gone> {
        params["_meta"] = meta(true);
        params["taskId"] = id.into();
        let mut answer = self.send(method, id, params)?;
        if answer["error"]["data"]["retryAfterMs"].is_u64() {
            return Ok(None);
        }
        assert!(answer["result"].is_object(), "{method} was answered with {answer}");
        Ok(Some(answer["result"].take()))
    }

    /// Makes a call under a key, so that it may be made again. A caller who `is_held` knows of neither tasks nor keys.
    pub(crate) fn call(&self, label: &str, tool: &str, is_held: bool) -> Result<Called, Gone> {
        let mut meta = meta(!is_held);
        if !is_held {
            meta["outlast/idempotencyKey"] = label.into();
        }
        let params = json!({"name": tool, "arguments": {"label": label}, "_meta": meta});
        let mut answer = self.send("tools/call", tool, params)?;
        if answer["error"].is_object() {
            return Ok(Called::Error(answer["error"].take()));
        }
        let result = answer["result"].take();
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        if let Some(id) = result["taskId"].as_str() {
            return Ok(Called::Task(id.to_owned()));
        }
        if let Some((_, rest)) = text.split_once("Its id is ") {
            return Ok(Called::GoesOn(rest.split('.').next().unwrap().to_owned()));
        }
        assert!(result.is_object(), "{tool} was answered with {answer}");
        Ok(Called::Result(result))
    }

    /// What a task is; none when that was asked for too often.
    pub(crate) fn get(&self, id: &str) -> Result<Option<Shown>, Gone> {
        let mut shown = self.request("tasks/get", id, json!({}))?;
        if let Some(fields) = shown.as_mut().and_then(Value::as_object_mut) {
            // The one field that changes with time alone.
            fields.remove("pollIntervalMs");
        }
        Ok(shown.map(Shown))
    }

    pub(crate) fn answer(&self, id: &str, key: &str, name: &str) -> Result<(), Gone> {
        let answer = json!({"action": "accept", "content": {"name": name}});
        self.acknowledged("tasks/update", id, json!({"inputResponses": {key: answer}}))
    }

    pub(crate) fn cancel(&self, id: &str) -> Result<(), Gone> {
        self.acknowledged("tasks/cancel", id, json!({}))
    }

    fn acknowledged(&self, method: &str, id: &str, params: Value) -> Result<(), Gone> {
        let acknowledged = self.request(method, id, params)?;
        assert_eq!(acknowledged, Some(json!({"resultType": "complete"})), "{method}");
        Ok(())
    }
}

/// The declaration that each request makes.
fn meta(knows_tasks: bool) -> Value {
    let extensions = if knows_tasks { json!({"io.modelcontextprotocol/tasks": {}}) } else { json!({}) };
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "extensions": extensions},
    })
}

/// What `tasks/get` returned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shown(pub(crate) Value);

impl Shown {
    pub(crate) fn status(&self) -> &str {
        self.0["status"].as_str().unwrap()
    }

    pub(crate) fn is_final(&self) -> bool {
        matches!(self.status(), "completed" | "failed" | "cancelled")
    }

    pub(crate) fn is_at_work(&self) -> bool {
        self.0["statusMessage"].as_str().is_some_and(|message| message.contains(AT_WORK))
    }

    /// The outstanding questions, by key.
    pub(crate) fn questions(&self) -> &Value {
        &self.0["inputRequests"]
    }

    /// The keys of the outstanding questions.
    pub(crate) fn asks(&self) -> Vec<String> {
        self.questions().as_object().map(|asks| asks.keys().cloned().collect()).unwrap_or_default()
    }
}
