//! What a call comes to.

use outlast_client::{CallErrorKind, Started, TaskClient};
use rmcp::model::CallToolRequestParams;
use serde_json::json;

use crate::support::{
    LONG, Person, Scripted, ack, asks, completed, created, error, now, ok, polling, question, said, task,
    text,
};

#[tokio::test]
async fn a_result_that_comes_at_once_is_the_result() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => ok(text("at once")),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    let result = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    assert_eq!(said(&result), "at once");
    let call = &scripted.asked("tools/call")[0];
    assert!(call.declares(), "S1: {}", call.params);
    assert!(call.params["_meta"]["outlast/idempotencyKey"].is_string());
}

#[tokio::test]
async fn a_task_is_polled_and_gives_its_result() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0) => ok(task("t1", "working", json!({}))),
        ("tasks/get", _) => completed("t1", "in the end"),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    let result = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    assert_eq!(said(&result), "in the end");
    for get in scripted.asked("tasks/get") {
        assert!(get.declares());
        assert_eq!(get.params["taskId"], "t1");
        assert_eq!(get.headers["mcp-name"], "t1", "C41");
    }
}

#[tokio::test]
async fn a_question_of_a_task_goes_to_the_handler_and_its_answer_to_the_server() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0 | 1) => asks("t1", &["who"]),
        ("tasks/get", _) => completed("t1", "done"),
        ("tasks/update", _) => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let person = Person::prompt();
    let client = TaskClient::builder(running.server()).options(polling()).handler(person.clone()).build();

    let Started::Task(handle) = client.start_tool(CallToolRequestParams::new("tool")).await.unwrap() else {
        panic!("no task")
    };
    let result = handle.wait(LONG).await.unwrap();

    assert_eq!(said(&result), "done");
    assert_eq!(person.asked(), ["who"]);
    let update = &scripted.asked("tasks/update")[0];
    assert_eq!(
        update.params["inputResponses"],
        json!({ "who": { "action": "accept", "content": { "name": "who" } } })
    );
    assert!(update.params.get("requestState").is_none());
}

#[tokio::test]
async fn what_a_server_asks_before_it_has_a_task_is_answered_first() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", 0) => ok(json!({
            "resultType": "input_required", "requestState": "sealed", "inputRequests": { "who": question("who") }
        })),
        ("tools/call", _) => created("t1"),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).handler(Person::prompt()).build();

    let result = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    assert_eq!(said(&result), "done");
    let second = &scripted.asked("tools/call")[1].params;
    assert_eq!(second["requestState"], "sealed");
    assert_eq!(second["inputResponses"]["who"]["content"], json!({ "name": "who" }));
}

#[tokio::test(start_paused = true)]
async fn c29_the_first_poll_comes_at_the_pace_of_the_creation() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => ok(task("t1", "working", json!({ "resultType": "task", "pollIntervalMs": 5000 }))),
        "tasks/get" => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();
    let Started::Task(handle) = client.start_tool(CallToolRequestParams::new("tool")).await.unwrap() else {
        panic!("no task")
    };

    let begun = now();
    handle.wait(LONG).await.unwrap();

    let waited = begun.elapsed().as_millis();
    assert!((5_000..=5_600).contains(&waited), "{waited} ms");
}

#[tokio::test]
async fn c26_a_task_from_a_server_that_offers_none_is_no_success() {
    let scripted = Scripted::new(|_| created("t1")).introduced(json!({ "tools": {} }));
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    let error = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::InvalidResponse(_)), "{error}");
}

#[tokio::test]
async fn a_task_of_the_earlier_generation_gives_its_result_too() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/list", _) => ok(json!({ "tools": [{
            "name": "tool", "inputSchema": { "type": "object" }, "execution": { "taskSupport": "optional" }
        }] })),
        ("tools/call", _) => ok(json!({ "task": {
            "taskId": "t1", "status": "working", "ttl": 60_000, "pollInterval": 100,
            "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
        } })),
        ("tasks/get", nth) => ok(json!({
            "taskId": "t1", "status": if nth == 0 { "working" } else { "completed" }, "ttl": null, "pollInterval": 100,
            "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
        })),
        ("tasks/result", _) => ok(json!({ "content": [{ "type": "text", "text": "of old" }] })),
        _ => error(-32601, "no"),
    })
    .legacy();
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    let result = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    assert_eq!(said(&result), "of old");
    assert_eq!(scripted.asked("tools/call")[0].params["task"], json!({}));
    assert!(scripted.asked("tasks/get").iter().all(|get| get.params.get("task").is_none()));
}
