//! A report that is written once, whatever happens to its server. Start it, order a report, and kill the server wherever
//! you like, with Ctrl-C or `kill -9`. Start it again, and it goes on where it was: no line is printed twice.
//!
//! ```sh
//! cargo run -p outlast --example report
//!
//! # In another terminal: order one ...
//! curl -s localhost:8808/mcp -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' \
//!   -H 'mcp-protocol-version: 2026-07-28' -H 'mcp-method: tools/call' -H 'mcp-name: report' -d '{"jsonrpc": "2.0",
//!   "id": 1, "method": "tools/call", "params": {"name": "report", "arguments": {"topic": "bees"}, "_meta": {
//!   "io.modelcontextprotocol/protocolVersion": "2026-07-28",
//!   "io.modelcontextprotocol/clientInfo": {"name": "curl", "version": "8"},
//!   "io.modelcontextprotocol/clientCapabilities":
//!     {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}}}}'
//!
//! # ... see how far it is, and answer its question, also while the server is down.
//! cargo run -p outlast-cli -- tasks --db report.db list
//! cargo run -p outlast-cli -- tasks --db report.db show ID
//! cargo run -p outlast-cli -- tasks --db report.db answer ID
//! ```

use std::time::Duration;

use outlast::{Elicited, Recovery, StepError, TaskContext, TaskServer, TaskTool};
use outlast_sqlite::SqliteStore;
use rmcp::{
    ErrorData, ServerHandler, handler::server::wrapper::Parameters, schemars, tool, tool_handler, tool_router,
};
use serde::Deserialize;

#[derive(Deserialize, schemars::JsonSchema)]
pub struct Order {
    /// What the report is about.
    topic: String,
    /// Without pauses.
    #[serde(default)]
    hurry: bool,
}

/// What the person who ordered the report is asked.
#[derive(Deserialize, schemars::JsonSchema)]
struct Approval {
    /// Shall it be published?
    publish: bool,
}

pub struct Reports;

#[tool_router]
impl Reports {
    #[tool(description = "Writes a report, asks whether to publish it, and does so after an embargo")]
    async fn report(
        &self,
        Parameters(order): Parameters<Order>,
        ctx: TaskContext,
    ) -> Result<String, ErrorData> {
        let (pause, embargo) = if order.hurry {
            (Duration::ZERO, Duration::from_millis(50))
        } else {
            (Duration::from_secs(2), Duration::from_secs(20))
        };
        // Each section is a step: once it is written it is in the task's journal, and never written again.
        let mut report = String::new();
        for chapter in ["past", "present", "future"] {
            ctx.status(format!("writing about the {chapter} of {}", order.topic));
            let text: String =
                ctx.scope("chapter", chapter).step("write", || write(&order.topic, chapter, pause)).await?;
            report.push_str(&text);
        }
        // Nothing of this is in memory while the question waits, for days if need be.
        match ctx.elicit::<Approval>("approve", &format!("Publish this?\n{report}")).await? {
            Elicited::Accept(Approval { publish: true }) => {}
            _ => return Ok("the report was not published".to_owned()),
        }
        ctx.status("under embargo");
        ctx.sleep("embargo", embargo).await?;
        let edition: u32 = ctx.step("publish", || publish(pause)).await?;
        Ok(format!("edition {edition}:\n{report}"))
    }
}

async fn write(topic: &str, chapter: &str, pause: Duration) -> Result<String, StepError> {
    println!("writing about the {chapter} of {topic}");
    tokio::time::sleep(pause).await;
    Ok(format!("The {chapter} of {topic} is a long story.\n"))
}

async fn publish(pause: Duration) -> Result<u32, StepError> {
    println!("publishing");
    tokio::time::sleep(pause).await;
    Ok(1)
}

#[tool_handler]
impl ServerHandler for Reports {}

/// Always a task, and taken up again after a crash.
pub fn terms() -> TaskTool {
    TaskTool::required().recovery(Recovery::Rerun)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteStore::open("report.db")?;
    let server = TaskServer::builder(Reports).store(store).tool("report", terms()).build().await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8808").await?;
    println!("reports are ordered at http://127.0.0.1:8808/mcp");
    outlast::http::serve(listener, server, async { drop(tokio::signal::ctrl_c().await) }).await?;
    Ok(())
}
