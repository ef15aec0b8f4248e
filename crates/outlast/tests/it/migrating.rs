//! `docs/migrating.md`: a client gets the same from the server before and from the one after, and the page quotes both as
//! they are.

#[allow(unreachable_pub, reason = "it is quoted as a program of its own")]
mod before;

#[path = "../../examples/migrated.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is a program of its own")]
mod after;

use outlast::{Recovery, TaskServer, TaskServerBuilder, TaskTool};
use outlast_sqlite::SqliteStore;
use rmcp::ServerHandler;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::support::{Client, server::config};

/// A server that ends with its test.
struct Served {
    client: Client,
    serving: JoinHandle<()>,
    _data: TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn listen() -> (TcpListener, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(format!("http://{}/mcp", listener.local_addr().unwrap()));
    (listener, client)
}

async fn serve<H: ServerHandler>(builder: TaskServerBuilder<H>) -> Served {
    let data = TempDir::new().unwrap();
    let store = SqliteStore::open(data.path().join("tasks.db")).unwrap();
    let server = builder.store(store).config(config()).build().await.unwrap();
    let (listener, client) = listen().await;
    let serving = tokio::spawn(async move {
        outlast::http::serve(listener, server, std::future::pending()).await.unwrap();
    });
    Served { client, serving, _data: data }
}

fn confirm(yes: bool) -> Value {
    json!({"sure": {"action": "accept", "content": {"confirm": yes}}})
}

/// What a client does with these two tools, as it is the same everywhere.
async fn walk(client: &Client) {
    let text = |state: &Value| state["result"]["content"][0]["text"].as_str().unwrap().to_owned();

    let id = client.task("index", json!({"pages": 2})).await;
    assert_eq!(text(&client.until(&id, "completed").await), "2 pages are indexed");
    assert_eq!(client.state(&id).await["statusMessage"], "reading (2/2)");
    let quick = client.undeclared().call("index", json!({"pages": 1})).await;
    assert_eq!(quick.result()["content"][0]["text"], "1 pages are indexed");
    let id = client.task("index", json!({"pages": 1_000_000})).await;
    client.cancel(&id).await.result();
    client.until(&id, "cancelled").await;

    let asks = async || {
        let id = client.task("remove", json!({"entry": "bees"})).await;
        let asked = client.until(&id, "input_required").await;
        assert_eq!(asked["inputRequests"]["sure"]["params"]["message"], "Remove bees?");
        id
    };
    for (yes, end) in [(true, "bees is removed"), (false, "nothing was removed")] {
        let id = asks().await;
        client.update(&id, confirm(yes)).await.result();
        assert_eq!(text(&client.until(&id, "completed").await), end);
    }
    let id = asks().await;
    client.cancel(&id).await.result();
    client.until(&id, "cancelled").await;
    client.undeclared().call("remove", json!({"entry": "bees"})).await.error();
    assert_eq!(client.get("none").await.code(), -32602);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_before_is_one_that_works() {
    let (listener, client) = listen().await;
    let serving = tokio::spawn(before::serve(listener));
    walk(&client).await;
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_the_same_from_the_server_after() {
    let builder = TaskServer::builder(after::Archive)
        .tool("index", TaskTool::optional().recovery(Recovery::Rerun))
        .tool("remove", TaskTool::required().recovery(Recovery::Rerun));
    walk(&serve(builder).await.client).await;
}

/// A server can be moved tool by tool.
#[tokio::test(flavor = "multi_thread")]
async fn tools_that_are_never_tasks_keep_those_that_they_make_themselves() {
    let builder = TaskServer::builder(before::Archive::default())
        .tool("index", TaskTool::never())
        .tool("remove", TaskTool::never());
    walk(&serve(builder).await.client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_makes_a_task_of_its_own_inside_a_task_is_told_what_to_do() {
    let builder = TaskServer::builder(before::Archive::default()).default_tool(TaskTool::optional());
    let server = serve(builder).await;
    let id = server.client.task("index", json!({"pages": 1})).await;
    let failed = server.client.until(&id, "failed").await;
    assert!(failed["error"]["message"].as_str().unwrap().contains("TaskTool::never()"), "{failed}");
}

/// A quote may leave lines out, with a line that is `// ...` and nothing else.
#[test]
fn the_page_quotes_the_servers_as_they_are() {
    let normal = |text: &str| {
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    };
    let page = include_str!("../../../../docs/migrating.md");
    let sources =
        [include_str!("migrating/before.rs"), include_str!("../../examples/migrated.rs")].map(normal);
    let quotes: Vec<&str> =
        page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(quotes.len() > 3, "the page has lost its code");
    for quote in quotes {
        for part in normal(quote).split("// ...").map(str::trim) {
            assert!(sources.iter().any(|source| source.contains(part)), "in none of the servers:\n{part}");
        }
    }
}
