//! turul's server with its Tasks extension, in memory: `serve-turul [PORT]`.
//!
//! It offers the five tools that every peer here offers; see `interop/README.md`.

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use turul_mcp_ext_tasks::InMemoryTaskStore;
use turul_mcp_protocol::elicitation::{ElicitRequest, ElicitationSchema, PrimitiveSchemaDefinition};
use turul_mcp_protocol::input_required::{InputRequest, InputRequests, InputResponse};
use turul_mcp_protocol::tools::{CallToolResult, ToolResult};
use turul_mcp_protocol::{McpError, ToolSchema};
use turul_mcp_server::prelude::*;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port: u16 = std::env::args().nth(1).map_or(Ok(0), |port| port.parse())?;
    // The server does not say which port it got, so one is looked for before.
    let address: SocketAddr = std::net::TcpListener::bind(("127.0.0.1", port))?.local_addr()?;
    let server = McpServer::builder()
        .name("turul")
        .version("0.4.5")
        .with_ext_tasks(Arc::new(InMemoryTaskStore::new()))
        .tool(Fixture::new(Tool::Quick))
        .ext_task_tool(Fixture::new(Tool::Slow))
        .ext_task_tool_required(Fixture::new(Tool::Asks))
        .ext_task_tool(Fixture::new(Tool::Fails))
        .ext_task_tool(Fixture::new(Tool::Cancellable))
        .bind_address(address)
        .build()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    tokio::spawn(announce(address));
    server.run().await.map_err(|error| anyhow::anyhow!("{error}"))
}

/// Says where the server is, once it is there.
async fn announce(address: SocketAddr) {
    while tokio::net::TcpStream::connect(address).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "listening on http://{address}/mcp").and_then(|()| stdout.flush());
}

#[derive(Clone, Copy)]
enum Tool {
    Quick,
    Slow,
    Asks,
    Fails,
    Cancellable,
}

struct Fixture {
    tool: Tool,
    input: ToolSchema,
}

impl Fixture {
    fn new(tool: Tool) -> Self {
        let mut input = ToolSchema::object();
        if let Tool::Slow = tool {
            input =
                input.with_properties(HashMap::from([("seconds".to_owned(), json!({ "type": "number" }))]));
        }
        Self { tool, input }
    }
}

impl HasBaseMetadata for Fixture {
    fn name(&self) -> &str {
        match self.tool {
            Tool::Quick => "quick",
            Tool::Slow => "slow",
            Tool::Asks => "asks",
            Tool::Fails => "fails",
            Tool::Cancellable => "cancellable",
        }
    }
}

impl HasDescription for Fixture {
    fn description(&self) -> Option<&str> {
        Some(match self.tool {
            Tool::Quick => "Answers at once",
            Tool::Slow => "Takes as long as it is told to",
            Tool::Asks => "Asks for a name",
            Tool::Fails => "Ends in a JSON-RPC error",
            Tool::Cancellable => "Takes a minute, unless it is cancelled",
        })
    }
}

impl HasInputSchema for Fixture {
    fn input_schema(&self) -> &ToolSchema {
        &self.input
    }
}

impl HasOutputSchema for Fixture {}
impl HasAnnotations for Fixture {}
impl HasToolMeta for Fixture {}
impl HasIcons for Fixture {}

#[async_trait]
impl McpTool for Fixture {
    async fn call(&self, arguments: Value, session: Option<SessionContext>) -> McpResult<CallToolResult> {
        match self.tool {
            Tool::Quick => said("quick: done"),
            Tool::Slow => {
                let seconds = arguments.get("seconds").and_then(Value::as_f64).unwrap_or(1.0);
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                said("slow: done")
            }
            Tool::Asks => asks(session),
            Tool::Fails => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                Err(McpError::tool_execution("it went wrong, as it should"))
            }
            // A cancel ends the task from outside: turul gives a tool no word of it.
            Tool::Cancellable => {
                tokio::time::sleep(Duration::from_secs(60)).await;
                said("cancellable: done")
            }
        }
    }
}

/// The tool is called again with the answer, as in a round of an ordinary call.
fn asks(session: Option<SessionContext>) -> McpResult<CallToolResult> {
    let Some(responses) = session.and_then(|session| session.input_responses()) else {
        let name =
            ElicitationSchema::new().with_property("name".to_owned(), PrimitiveSchemaDefinition::string());
        let question = InputRequest::Elicit(ElicitRequest::new_form("What is your name?", name));
        return Err(McpError::InputRequired {
            input_requests: Some(InputRequests::from_iter([("name".to_owned(), question)])),
            request_state: None,
        });
    };
    let name = match responses.get("name") {
        Some(InputResponse::Elicit(answer)) => {
            answer.content.as_ref().and_then(|form| form.get("name")?.as_str())
        }
        _ => None,
    };
    said(&format!("asks: hello {}", name.unwrap_or("nobody")))
}

fn said(text: &str) -> McpResult<CallToolResult> {
    Ok(CallToolResult::success(vec![ToolResult::text(text)]))
}
