//! Outlast, with its store in a file that goes with it: `serve-outlast [PORT]`.

use std::time::Duration;

use outlast::{Elicited, Recovery, TaskContext, TaskServer, TaskTool};
use outlast_sqlite::SqliteStore;
use rmcp::{
    ErrorData, ServerHandler, handler::server::wrapper::Parameters, schemars, tool, tool_handler, tool_router,
};
use serde::Deserialize;

#[derive(Deserialize, schemars::JsonSchema)]
struct Slow {
    #[serde(default = "one")]
    seconds: f64,
}

fn one() -> f64 {
    1.0
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Name {
    name: String,
}

struct Fixtures;

#[tool_router]
impl Fixtures {
    #[tool(description = "Answers at once")]
    async fn quick(&self) -> String {
        "quick: done".to_owned()
    }

    #[tool(description = "Takes as long as it is told to")]
    async fn slow(&self, Parameters(Slow { seconds }): Parameters<Slow>, ctx: TaskContext) -> String {
        ctx.status("working slowly");
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        "slow: done".to_owned()
    }

    #[tool(description = "Asks for a name")]
    async fn asks(&self, ctx: TaskContext) -> Result<String, ErrorData> {
        Ok(match ctx.elicit("name", "What is your name?").await? {
            Elicited::Accept(Name { name }) => format!("asks: hello {name}"),
            Elicited::Decline | Elicited::Cancel => "asks: hello nobody".to_owned(),
        })
    }

    #[tool(description = "Ends in a JSON-RPC error")]
    async fn fails(&self) -> Result<String, ErrorData> {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Err(ErrorData::internal_error("it went wrong, as it should", None))
    }

    #[tool(description = "Takes a minute, unless it is cancelled")]
    async fn cancellable(&self, ctx: TaskContext) -> Result<String, ErrorData> {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(60)) => Ok("cancellable: done".to_owned()),
            () = ctx.cancelled() => Err(ctx.cancel_error()),
        }
    }
}

#[tool_handler(name = "outlast", version = "0.1.0")]
impl ServerHandler for Fixtures {}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let folder = tempfile::tempdir()?;
    let mut server = TaskServer::builder(Fixtures)
        .store(SqliteStore::open(folder.path().join("tasks.db"))?)
        .tool("quick", TaskTool::never());
    for tool in ["slow", "fails", "cancellable"] {
        server = server.tool(tool, TaskTool::optional().recovery(Recovery::Rerun));
    }
    let server = server.tool("asks", TaskTool::required().recovery(Recovery::Rerun)).build().await?;
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    Ok(outlast::http::serve(interop_servers::listen().await?, server, stop).await?)
}
