//! What may be answered to any request whatever.

use std::fmt;

use http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use crate::support::schema;

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// The kind of a legal answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A JSON-RPC result.
    Result,
    /// A JSON-RPC error of this code.
    Error(i64),
    /// A notification was taken, and is not answered.
    Accepted,
    /// The SDK refused the request before it was a JSON-RPC request at all, with a text of this beginning.
    Plain(u16, &'static str),
}

/// All that is ever answered in plain text: the SDK's refusals of what is no JSON-RPC request of this transport.
const PLAIN: [(u16, &str); 10] = [
    (400, "Bad Request: Session ID is required"),
    (400, "Bad Request: Unsupported MCP-Protocol-Version: "),
    (400, "Bad Request: Invalid MCP-Protocol-Version header encoding"),
    (403, "Forbidden: Origin header is not allowed"),
    (404, "Not Found: Session not found"),
    (406, "Not Acceptable: Client must accept both application/json and text/event-stream"),
    (413, "Payload Too Large: request body exceeds "),
    (415, "Unsupported Media Type: Content-Type must be application/json"),
    (415, "fail to deserialize request body "),
    (403, "Forbidden: Invalid Origin header"),
];

impl Answer {
    /// Which legal answer to `request` it is; the error says why it is none.
    pub(crate) fn kind(&self, request: &[u8]) -> Result<Kind, String> {
        let media = self.headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?"));
        match (self.status.as_u16(), media.and_then(|media| media.split(';').next())) {
            (202, None) if self.body.is_empty() => Ok(Kind::Accepted),
            (200 | 400 | 404 | 429, Some("application/json")) => {
                let message = serde_json::from_slice(&self.body).map_err(|error| self.wrong(error))?;
                self.message(&message, request)
            }
            (200, Some("text/event-stream")) => {
                let text = std::str::from_utf8(&self.body).map_err(|error| self.wrong(error))?;
                let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
                let messages = events.filter(|data| !data.trim().is_empty()).map(serde_json::from_str);
                let messages: Vec<Value> =
                    messages.collect::<Result<_, _>>().map_err(|error| self.wrong(error))?;
                self.message(
                    messages.last().ok_or_else(|| self.wrong("a stream without a message"))?,
                    request,
                )
            }
            (status, _) => {
                let text = String::from_utf8_lossy(&self.body);
                let listed = PLAIN.into_iter().find(|(of, begins)| *of == status && text.starts_with(begins));
                let (status, begins) = listed.ok_or_else(|| self.wrong("in no list"))?;
                Ok(Kind::Plain(status, begins))
            }
        }
    }

    fn message(&self, message: &Value, request: &[u8]) -> Result<Kind, String> {
        if message["jsonrpc"] != "2.0" {
            return Err(self.wrong("not JSON-RPC"));
        }
        let asked: Value = serde_json::from_slice(request).unwrap_or_default();
        let has_id = asked["method"].is_string() && (asked["id"].is_string() || asked["id"].is_i64());
        if has_id && message["id"] != asked["id"] {
            return Err(self.wrong("the answer to another request"));
        }
        match (message.get("result"), message.get("error")) {
            (Some(result), None) if self.status == StatusCode::OK && result.is_object() => {
                if result["resultType"] == "task" {
                    schema::check("CreateTaskResult", result);
                } else if result.get("taskId").is_some() {
                    schema::check("GetTaskResult", result);
                }
                Ok(Kind::Result)
            }
            (None, Some(error)) => match (error["code"].as_i64(), error["message"].as_str()) {
                (Some(code), Some(_)) => Ok(Kind::Error(code)),
                _ => Err(self.wrong("an error without code or message")),
            },
            _ => Err(self.wrong("neither a result nor an error")),
        }
    }

    fn wrong(&self, why: impl fmt::Display) -> String {
        let body = String::from_utf8_lossy(&self.body);
        format!("{why}: {} {:?} {body:.1000}", self.status, self.headers)
    }
}
