//! turul's server of the generation before, with the tasks of protocol 2025-11-25, in memory: `serve-turul-2025 [PORT]`.
//!
//! It offers the tools that every peer here offers, see `interop/README.md`, without `asks`: a tool of this server gets no
//! way to send its client a request.

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use turul_mcp_protocol::schema::JsonSchema;
use turul_mcp_protocol::tools::{CallToolResult, TaskSupport, ToolExecution, ToolResult};
use turul_mcp_protocol::{McpError, ToolSchema};
use turul_mcp_server::prelude::*;
use turul_mcp_task_storage::InMemoryTaskStorage;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port: u16 = std::env::args().nth(1).map_or(Ok(0), |port| port.parse())?;
    // The server does not say which port it got, so one is looked for before.
    let address: SocketAddr = std::net::TcpListener::bind(("127.0.0.1", port))?.local_addr()?;
    let mut builder = McpServer::builder()
        .name("turul-2025")
        .version("0.3.47")
        .with_task_storage(Arc::new(InMemoryTaskStorage::new()));
    for tool in [Tool::Quick, Tool::Slow, Tool::Fails, Tool::Cancellable] {
        builder = builder.tool(Fixture::new(tool));
    }
    let server = builder.bind_address(address).build().map_err(|error| anyhow::anyhow!("{error}"))?;
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
            input = input.with_properties(HashMap::from([("seconds".to_owned(), JsonSchema::number())]));
        }
        Self { tool, input }
    }
}

impl HasBaseMetadata for Fixture {
    fn name(&self) -> &str {
        match self.tool {
            Tool::Quick => "quick",
            Tool::Slow => "slow",
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

impl HasExecution for Fixture {
    fn execution(&self) -> Option<ToolExecution> {
        let task_support = match self.tool {
            Tool::Quick => TaskSupport::Forbidden,
            Tool::Slow | Tool::Fails => TaskSupport::Optional,
            Tool::Cancellable => TaskSupport::Required,
        };
        Some(ToolExecution { task_support: Some(task_support) })
    }
}

impl HasOutputSchema for Fixture {}
impl HasAnnotations for Fixture {}
impl HasToolMeta for Fixture {}
impl HasIcons for Fixture {}

#[async_trait]
impl McpTool for Fixture {
    async fn call(&self, arguments: Value, _: Option<SessionContext>) -> McpResult<CallToolResult> {
        match self.tool {
            Tool::Quick => said("quick: done"),
            Tool::Slow => {
                let seconds = arguments.get("seconds").and_then(Value::as_f64).unwrap_or(1.0);
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                said("slow: done")
            }
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

fn said(text: &str) -> McpResult<CallToolResult> {
    Ok(CallToolResult::success(vec![ToolResult::text(text)]))
}
