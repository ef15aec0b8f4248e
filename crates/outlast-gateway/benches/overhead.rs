//! What the gateway adds to a fast call: the same calls of the same server, directly and through the gateway, over real
//! sockets, one after another and sixteen at a time. Prints the time of a call and the processor time of the whole process
//! for it, and what each is of the direct call.
//!
//! A call with a key, by which its repeat is recognised, is kept before it is made and when it is done: it takes two syncs of
//! the disk, which the first line measures. One without leaves no trace when it is quick.
//!
//! `cargo bench -p outlast-gateway --bench overhead -- [--calls N]`

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use outlast::Config;
use outlast_client::{Server, TaskClient};
use outlast_gateway::{Gateway, GatewayOptions, Upstream};
use outlast_sqlite::SqliteStore;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use tokio::net::TcpListener;

/// Answers at once.
#[derive(Clone)]
struct Quick;

impl ServerHandler for Quick {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![Tool::new("quick", "a tool", Arc::new(JsonObject::new()))]))
    }

    async fn call_tool(
        &self,
        _request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Ok(CallToolResult::success(vec![ContentBlock::text("done")]).into())
    }
}

fn main() -> anyhow::Result<()> {
    let mut calls = 4_000;
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(name) = arguments.next() {
        anyhow::ensure!(name == "--calls", "there is no option {name}");
        calls = arguments.next().context("--calls needs a number")?.parse()?;
    }
    tokio::runtime::Runtime::new()?.block_on(measure(calls))
}

async fn measure(calls: usize) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let config = StreamableHttpServerConfig::default().with_json_response(true);
    let service: StreamableHttpService<Quick, LocalSessionManager> =
        StreamableHttpService::new(|| Ok(Quick), Arc::default(), config);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let direct = format!("http://{}/mcp", listener.local_addr()?);
    let app = axum::Router::new().route_service("/mcp", service);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let store = Arc::new(SqliteStore::open(directory.path().join("tasks.db"))?);
    let upstreams = vec![Upstream::only(Server::http(direct.clone()))];
    let gateway = Gateway::serve(upstreams, GatewayOptions::default(), store, Config::default()).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let through = format!("http://{}/mcp", listener.local_addr()?);
    tokio::spawn(outlast::http::serve(listener, gateway, std::future::pending()));

    println!("disk: 4 KiB appended and synced in {:.3} ms", sync_time(directory.path())?.as_secs_f64() * 1e3);
    println!("{calls} calls each way; processor time is that of caller, gateway and server together");
    for at_once in [1, 16] {
        let mut base = None;
        for (way, url, keyed) in
            [("direct", &direct, false), ("gateway", &through, false), ("gateway, keyed", &through, true)]
        {
            let client = TaskClient::builder(Server::http(url.clone())).build();
            run(&client, calls / 10, at_once, keyed).await?;
            let before = processor_time()?;
            let mut took = run(&client, calls, at_once, keyed).await?;
            let processor = (processor_time()? - before) / u32::try_from(calls)?;
            took.sort_unstable();
            let line = [took[took.len() / 2], took[took.len() * 99 / 100], processor];
            let base = base.get_or_insert(line);
            let ratio = |n: usize| line[n].as_secs_f64() / base[n].as_secs_f64();
            println!(
                "{at_once:>2} at once, {way:<14}  median {:>7.3} ms {:>5.2}x   99 of 100 {:>7.3} ms {:>5.2}x   processor {:>6.3} ms {:>5.2}x",
                line[0].as_secs_f64() * 1e3,
                ratio(0),
                line[1].as_secs_f64() * 1e3,
                ratio(1),
                line[2].as_secs_f64() * 1e3,
                ratio(2),
            );
        }
    }
    Ok(())
}

async fn run(
    client: &TaskClient,
    calls: usize,
    at_once: usize,
    keyed: bool,
) -> anyhow::Result<Vec<Duration>> {
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let client = client.clone();
        let peer = client.peer().await?;
        callers.spawn(async move {
            let mut took = Vec::with_capacity(calls / at_once);
            for _ in 0..calls / at_once {
                let begun = Instant::now();
                let params = CallToolRequestParams::new("quick");
                if keyed {
                    client.call_tool(params).await?;
                } else {
                    peer.call_tool(params).await?;
                }
                took.push(begun.elapsed());
            }
            anyhow::Ok(took)
        });
    }
    let mut all = Vec::with_capacity(calls);
    while let Some(took) = callers.join_next().await {
        all.extend(took??);
    }
    Ok(all)
}

/// How long the disk takes to keep something.
fn sync_time(directory: &std::path::Path) -> anyhow::Result<Duration> {
    let mut file = std::fs::File::create(directory.join("synced"))?;
    let begun = Instant::now();
    for _ in 0..100 {
        std::io::Write::write_all(&mut file, &[0; 4096])?;
        file.sync_data()?;
    }
    Ok(begun.elapsed() / 100)
}

/// What this process has used of the processors.
fn processor_time() -> anyhow::Result<Duration> {
    let stat =
        std::fs::read_to_string("/proc/self/stat").context("processor time is read from /proc, on Linux")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 10))
}
