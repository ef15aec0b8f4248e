//! Tasks and their changes under the SDK's own service, in a router and a serve loop of one's own:
//! `cargo run -p outlast --example own_router`.

use std::sync::Arc;

use axum::{Router, routing::get};
use outlast::{TaskContext, TaskServer, TaskTool};
use outlast_sqlite::SqliteStore;
use rmcp::{
    ServerHandler, tool, tool_handler, tool_router,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};

struct Hello;

#[tool_router]
impl Hello {
    #[tool(description = "Counts to ten, one a second", annotations(idempotent_hint = true))]
    async fn count(&self, ctx: TaskContext) -> String {
        for n in 1..=10 {
            ctx.status(format!("{n} of 10"));
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        "done".to_owned()
    }
}

#[tool_handler]
impl ServerHandler for Hello {}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteStore::open("hello.db")?;
    let server = TaskServer::builder(Hello).store(store).tool("count", TaskTool::optional()).build().await?;
    let options = outlast::http::Options::default();
    // The SDK's service, with the settings that you have; the token ends its streams.
    let config = StreamableHttpServerConfig::default().with_cancellation_token(options.cancel.child_token());
    let shared = server.clone();
    let mcp: StreamableHttpService<_, LocalSessionManager> =
        StreamableHttpService::new(move || Ok(shared.clone()), Arc::default(), config);
    // The layer goes around the MCP route alone, and what authenticates around the layer.
    let app = Router::new()
        .route_service("/mcp", mcp)
        .layer(outlast::http::layer(&options))
        .route("/health", get(|| async { "ok" }));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:8808").await?;
    let stop = async move {
        let _ = tokio::signal::ctrl_c().await;
        // Ends the streams of subscribers, and must come before the loop waits for its connections.
        server.shutdown().await;
        options.cancel.cancel();
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    Ok(())
}
