//! A server whose slow tool outlasts the connection: `cargo run -p outlast --example hello`.

use outlast::{TaskContext, TaskServer, TaskTool};
use outlast_sqlite::SqliteStore;
use rmcp::{ServerHandler, tool, tool_handler, tool_router};

struct Hello;

#[tool_router]
impl Hello {
    #[tool(description = "Counts to ten, one a second", annotations(idempotent_hint = true))]
    async fn count(&self, ctx: TaskContext) -> String {
        for n in 1..=10 {
            ctx.progress(f64::from(n), Some(10.0), None).await;
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
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8808").await?;
    outlast::http::serve(listener, server, async { drop(tokio::signal::ctrl_c().await) }).await?;
    Ok(())
}
