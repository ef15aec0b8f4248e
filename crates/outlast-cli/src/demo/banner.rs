//! What the demo prints when it begins to serve.

use std::path::Path;

use serde_json::{Value, json};

use super::tools::DemoTools;
use crate::{store::Place, text::shell_word};

/// Where the server is, and what to do with it. Its first line is for scripts too.
pub(super) fn banner(url: &str, store: &Place) -> String {
    let db = match store {
        // What `tasks` reads where none is named needs no naming.
        Place::File(file) if file == Path::new(super::DB) => String::new(),
        Place::File(file) => format!(" --db {}", shell_word(&file.to_string_lossy())),
        // Without its password, which is not for a screen.
        Place::Database(_) => format!(" --store {}", shell_word(&store.to_string())),
    };
    let curl = curl(url, "hash_folder", &json!({"path": "."}));
    let tools = DemoTools::names().join(", ");
    format!(
        "listening on {url}\n\n\
        The tools are {tools}.\n\
        In another terminal, call one, and be asked what it asks:\n\n\
        outlast call {url} make_report --arg folder=. --arg file=report.md\n\n\
        By hand, this starts a task that hashes the files of the server's folder:\n\n\
        {curl}\n\n\
        See what became of a call, answer what a task asks, and end one:\n\n\
        outlast tasks list{db}\n\
        outlast tasks show{db} ID\n\
        outlast tasks answer{db} ID KEY --accept FIELD=VALUE\n\
        outlast tasks cancel{db} ID\n\n\
        Ctrl-C stops the server. Its tasks stay in {store}, and go on when it is started again.\n"
    )
}

/// A command that calls `tool` and says, as each request has to (S1), that its caller knows tasks and can be asked.
fn curl(url: &str, tool: &str, arguments: &Value) -> String {
    let body = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": tool,
            "arguments": arguments,
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "curl", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {
                    "elicitation": {},
                    "extensions": {"io.modelcontextprotocol/tasks": {}},
                },
            },
        },
    });
    format!(
        "curl -sS {url} \\\n  \
        -H 'Content-Type: application/json' \\\n  \
        -H 'Accept: application/json, text/event-stream' \\\n  \
        -H 'MCP-Protocol-Version: 2026-07-28' \\\n  \
        -H 'Mcp-Method: tools/call' \\\n  \
        -H 'Mcp-Name: {tool}' \\\n  \
        -d {}",
        shell_word(&body.to_string())
    )
}
