//! Whose question it is that a server of 2025-11-25 asks while several calls are under way on one connection.

use outlast_client::{CallOptions, Started, TaskClient};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{LONG, Person, Reply, Scripted, error, ok, polling};

const AT: &str = "2026-11-29T10:00:00Z";

fn of_old(status: &str) -> Value {
    json!({ "taskId": "t1", "status": status, "ttl": 60_000, "pollInterval": 100, "createdAt": AT, "lastUpdatedAt": AT })
}

/// A server with a tool that asks in its task, and one that never ends.
fn server(is_http: bool) -> Scripted {
    Scripted::new(move |asked| match asked.method.as_str() {
        "tools/list" => ok(json!({ "tools": [
            { "name": "asks", "inputSchema": { "type": "object" }, "execution": { "taskSupport": "optional" } },
            { "name": "endless", "inputSchema": { "type": "object" } },
        ] })),
        "tools/call" if asked.params["name"] == "endless" => Reply::Hang,
        "tools/call" => ok(json!({ "task": of_old("working") })),
        "tasks/get" => ok(of_old("input_required")),
        "tasks/result" => {
            let (events, stream) = mpsc::unbounded_channel();
            let params = json!({
                "message": "who",
                "requestedSchema": { "type": "object", "properties": { "name": { "type": "string" } } },
                "_meta": { "io.modelcontextprotocol/related-task": { "taskId": "t1" } },
            });
            let question = json!({ "jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": params });
            events.send(question).unwrap();
            tokio::spawn(async move { events.closed().await });
            Reply::Stream(stream)
        }
        // The answer to the question, which has no method.
        "" if is_http => Reply::Http(202, vec![], String::new()),
        "" => Reply::Hang,
        _ => error(-32601, "no"),
    })
    .legacy()
}

#[tokio::test]
async fn a_question_of_a_task_goes_to_the_handler_of_its_call_and_to_nobody_elses() {
    for is_http in [true, false] {
        let scripted = server(is_http);
        let running = scripted.http().await;
        let place = if is_http { running.server() } else { scripted.streams() };
        let (owner, other, rest) = (Person::prompt(), Person::prompt(), Person::prompt());
        let client = TaskClient::builder(place).options(polling()).handler(rest.clone()).build();
        let endless = client.start_tool_with(
            CallToolRequestParams::new("endless"),
            CallOptions::default().with_handler(other.clone()),
        );
        let asks = async {
            scripted.until_asked("tools/call", 1).await;
            let options = CallOptions::default().with_handler(owner.clone());
            let started = client.start_tool_with(CallToolRequestParams::new("asks"), options).await;
            let Ok(Started::Task(handle)) = started else { panic!("no task: {started:?}") };
            tokio::select! {
                ended = handle.wait(LONG) => panic!("the script has no end: {ended:?}"),
                () = scripted.until_asked("", 1) => {}
            }
        };

        tokio::select! {
            ended = endless => panic!("the script has no end: {ended:?}"),
            () = asks => {}
        }

        assert_eq!(owner.asked(), ["who"], "over http: {is_http}");
        assert!(other.asked().is_empty() && rest.asked().is_empty(), "over http: {is_http}");
        assert_eq!(scripted.asked("")[0].id, 77);
    }
}
