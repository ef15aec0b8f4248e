//! An agent in twenty lines: goes on with what an earlier run left, then calls a tool and prints what it gives.
//!
//! `cargo run -p outlast-client --example agent -- http://127.0.0.1:8808/mcp count '{"seconds": 20}'`; kill it while it waits,
//! and start it again.

use outlast_client::{DirStore, Server, TaskClient};
use rmcp::model::CallToolRequestParams;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let [url, tool, arguments] =
        std::env::args().skip(1).collect::<Vec<_>>().try_into().unwrap_or_else(|_| {
            eprintln!("usage: agent URL TOOL ARGUMENTS");
            std::process::exit(2)
        });
    let client = TaskClient::builder(Server::http(url)).store(DirStore::open("agent-handles")?).build();
    for task in client.resume_all().await? {
        println!("{} from before: {:?}", task.tool(), task.wait(None).await?.content);
    }
    let mut params = CallToolRequestParams::new(tool);
    params.arguments = serde_json::from_str(&arguments)?;
    println!("{:?}", client.call_tool(params).await?.content);
    Ok(())
}
