//! What it costs to get a result by way of a task: the same tool called plainly, as a task whose end is pushed, and as a
//! task that is polled, one call after another over a real socket, on SQLite. Prints medians, and what each way adds to the
//! plain call.
//!
//! `cargo bench -p outlast-client --bench call -- [--calls N]`

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use outlast::{Start, TaskServer, TaskTool};
use outlast_client::{ClientOptions, Server, TaskClient};
use outlast_sqlite::SqliteStore;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject, ListToolsResult,
        PaginatedRequestParams, Tool,
    },
    service::RequestContext,
};
use serde_json::json;

/// Sleeps for as long as it is told, whatever it is called.
#[derive(Clone)]
struct Sleeper;

impl ServerHandler for Sleeper {
    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = |name| Tool::new(name, "sleeps", Arc::new(JsonObject::new()));
        Ok(ListToolsResult::with_all_items(["plain", "pushed", "polled"].map(tool).into()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let ms = arguments.get("ms").and_then(serde_json::Value::as_u64).unwrap_or_default();
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        Ok(CallToolResult::success(vec![ContentBlock::text("slept")]).into())
    }
}

fn main() -> anyhow::Result<()> {
    let mut calls = 100;
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(name) = arguments.next() {
        anyhow::ensure!(name == "--calls", "there is no option {name}");
        calls = arguments.next().context("--calls needs a number")?.parse()?;
    }
    tokio::runtime::Runtime::new()?.block_on(measure(calls))
}

async fn measure(calls: usize) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let store = SqliteStore::open(directory.path().join("tasks.db"))?;
    let task = TaskTool::required().start(Start::Now);
    let server = TaskServer::builder(Sleeper)
        .store(store)
        .tool("pushed", task.clone())
        .tool("polled", task.poll_interval(Duration::from_millis(100)))
        .tool("plain", TaskTool::never())
        .build()
        .await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    tokio::spawn(outlast::http::serve(listener, server, std::future::pending()));

    let client = |push: bool| {
        let mut options = ClientOptions::default();
        options.push = push;
        TaskClient::builder(Server::http(url.clone())).options(options).build()
    };
    let ways = [
        ("plain", "plain", client(false)),
        ("pushed", "pushed", client(true)),
        ("polled", "polled", client(false)),
    ];
    println!("{calls} calls each way, medians; the polled task says that it is to be polled every 100 ms");
    for ms in [0_u64, 50, 500] {
        let mut plain = Duration::ZERO;
        for (way, tool, client) in &ways {
            // The handshake and the list of tools are no part of a call.
            call(client, tool, 0).await?;
            let mut took = Vec::with_capacity(calls);
            for _ in 0..calls {
                took.push(call(client, tool, ms).await?);
            }
            took.sort_unstable();
            let median = took[took.len() / 2];
            if *way == "plain" {
                plain = median;
            }
            println!(
                "tool of {ms:>3} ms, {way:<6} {:>8.2} ms, {:>+8.2} ms, {:>6.2}x",
                median.as_secs_f64() * 1e3,
                (median.as_secs_f64() - plain.as_secs_f64()) * 1e3,
                median.as_secs_f64() / plain.as_secs_f64(),
            );
        }
    }
    Ok(())
}

async fn call(client: &TaskClient, tool: &'static str, ms: u64) -> anyhow::Result<Duration> {
    let mut params = CallToolRequestParams::new(tool);
    params.arguments = json!({ "ms": ms }).as_object().cloned();
    let begun = Instant::now();
    client.call_tool(params).await?;
    Ok(begun.elapsed())
}
