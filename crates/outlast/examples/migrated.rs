//! Where [`docs/migrating.md`](../../../docs/migrating.md) arrives: a tool that takes long, and one that asks first.
//!
//! `cargo run -p outlast --example migrated`, and in another terminal:
//!
//! ```sh
//! outlast call http://127.0.0.1:8808/mcp index --arg pages=60
//! outlast call http://127.0.0.1:8808/mcp remove --arg entry=bees
//! ```

use std::time::Duration;

use outlast::{Elicited, Recovery, TaskContext, TaskServer, TaskTool};
use outlast_sqlite::SqliteStore;
use rmcp::{
    ErrorData, ServerHandler, handler::server::wrapper::Parameters, schemars, tool, tool_handler, tool_router,
};
use serde::Deserialize;

#[derive(Deserialize, schemars::JsonSchema)]
struct Index {
    /// How many pages there are.
    pages: u32,
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Remove {
    /// Its name.
    entry: String,
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Confirm {
    /// Shall it be removed?
    confirm: bool,
}

pub struct Archive;

#[tool_router]
impl Archive {
    #[tool(description = "Reads the pages of the archive into its index")]
    async fn index(
        &self,
        Parameters(Index { pages }): Parameters<Index>,
        ctx: TaskContext,
    ) -> Result<String, ErrorData> {
        for page in 1..=pages {
            if ctx.is_cancelled() {
                return Err(ctx.cancel_error());
            }
            ctx.progress(f64::from(page), Some(f64::from(pages)), Some("reading")).await;
            ctx.scope("page", page).step("read", async || Ok(read(page).await?)).await?;
        }
        Ok(format!("{pages} pages are indexed"))
    }

    #[tool(description = "Removes an entry, once that is confirmed")]
    async fn remove(
        &self,
        Parameters(Remove { entry }): Parameters<Remove>,
        ctx: TaskContext,
    ) -> Result<String, ErrorData> {
        match ctx.elicit("sure", &format!("Remove {entry}?")).await? {
            Elicited::Accept(Confirm { confirm: true }) => {}
            _ => return Ok("nothing was removed".to_owned()),
        }
        ctx.step("erase", async || Ok(erase(&entry).await?)).await?;
        Ok(format!("{entry} is removed"))
    }
}

#[tool_handler]
impl ServerHandler for Archive {}

async fn read(page: u32) -> Result<(), ErrorData> {
    println!("reading page {page}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(())
}

async fn erase(entry: &str) -> Result<(), ErrorData> {
    println!("erasing {entry}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteStore::open("archive.db")?;
    let server = TaskServer::builder(Archive)
        .store(store)
        .tool("index", TaskTool::optional().recovery(Recovery::Rerun))
        .tool("remove", TaskTool::required().recovery(Recovery::Rerun))
        .build()
        .await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8808").await?;
    outlast::http::serve(listener, server, async { drop(tokio::signal::ctrl_c().await) }).await?;
    Ok(())
}
