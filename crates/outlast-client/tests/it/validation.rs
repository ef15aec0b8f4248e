//! Structured results are checked against the output schema that was in force at the call.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use outlast_client::{CallError, CallErrorKind, SavedTask, TaskClient};
use rmcp::model::{CallToolRequestParams, CallToolResult};
use serde_json::{Value, json};

use crate::support::{LONG, Reply, Scripted, created, error, ok, polling, started, task};

/// A tool whose structured result has a number by this name.
fn tools(field: &str) -> Reply {
    ok(json!({ "tools": [{
        "name": "tool", "inputSchema": { "type": "object" }, "execution": { "taskSupport": "optional" },
        "outputSchema": { "type": "object", "properties": { field: { "type": "integer" } }, "required": [field] },
    }] }))
}

fn structured(content: Value) -> Value {
    json!({ "content": [], "structuredContent": content, "isError": false })
}

fn done(result: Value) -> Reply {
    ok(task("t1", "completed", json!({ "result": result })))
}

/// A server with a tool whose schema asks for `n`, later for `m`, and whose result, as a task, is this.
fn server(result: Value) -> Scripted {
    Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
        ("tools/list", 0) => tools("n"),
        ("tools/list", _) => tools("m"),
        ("tools/call", _) => created("t1"),
        ("tasks/get", _) => done(result.clone()),
        _ => error(-32601, "no"),
    })
}

fn client(scripted: &crate::support::Running) -> TaskClient {
    TaskClient::builder(scripted.server()).options(polling()).build()
}

fn call(client: &TaskClient) -> impl Future<Output = Result<CallToolResult, CallError>> {
    client.call_tool(CallToolRequestParams::new("tool"))
}

fn misfits(end: Result<CallToolResult, CallError>) -> CallError {
    let error = end.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::OutputSchema(_)), "{error}");
    assert!(!error.is_retryable());
    error
}

#[tokio::test]
async fn c27_the_result_of_a_task_is_checked_against_the_definition_in_force_at_the_call() {
    let running = server(structured(json!({ "n": 1 }))).http().await;
    let client_one = client(&running);
    let handle = started(&client_one).await;
    // The tool changes while the task runs, and another client has seen that.
    let client_two = client(&running);
    misfits(call(&client_two).await);

    handle.wait(LONG).await.unwrap();

    for content in [json!({ "m": 1 }), json!({ "n": "1" }), json!(5), Value::Null] {
        let mut result = structured(content.clone());
        if content.is_null() {
            result.as_object_mut().unwrap().remove("structuredContent");
        }
        let running = server(result).http().await;
        let error = misfits(call(&client(&running)).await);
        assert_eq!(error.handle().unwrap().id(), "t1", "{content}");
        assert!(error.handle().unwrap().is_completed());
    }
}

#[tokio::test]
async fn the_schema_travels_in_the_handle() {
    let scripted = server(structured(json!({ "m": 1 })));
    let running = scripted.http().await;
    let text = started(&client(&running)).await.to_json();

    // By now the tool is another one, which this process never asks for.
    let second = client(&running);
    let handle = second.resume(SavedTask::from_json(&text).unwrap()).await.unwrap();

    misfits(handle.wait(LONG).await);
    assert_eq!(scripted.asked("tools/list").len(), 1);
}

#[tokio::test]
async fn a_bare_id_is_not_checked() {
    let running = server(structured(json!("whatever"))).http().await;
    let mut bare = started(&client(&running)).await.save();
    bare.output_schema = None;

    let result = client(&running).resume(bare).await.unwrap().wait(LONG).await.unwrap();

    assert_eq!(result.structured_content, Some(json!("whatever")));
}

#[tokio::test]
async fn a_result_that_comes_at_once_is_checked_too() {
    for (content, fits) in [(json!({ "n": 1 }), true), (json!({ "n": "1" }), false)] {
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/list" => tools("n"),
            "tools/call" => ok(structured(content.clone())),
            _ => error(-32601, "no"),
        });
        let running = scripted.http().await;
        let end = call(&client(&running)).await;
        match fits {
            true => drop(end.unwrap()),
            false => assert!(misfits(end).handle().is_none()),
        }
    }
}

#[tokio::test]
async fn a_result_of_the_earlier_generation_is_checked_too() {
    for (content, fits) in [(json!({ "n": 1 }), true), (json!({ "n": "1" }), false)] {
        let state = |status: &str| {
            json!({
                "taskId": "t1", "status": status, "ttl": null, "pollInterval": 100,
                "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
            })
        };
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/list" => tools("n"),
            "tools/call" => ok(json!({ "task": state("working") })),
            "tasks/get" => ok(state("completed")),
            "tasks/result" => ok(structured(content.clone())),
            _ => error(-32601, "no"),
        })
        .legacy();
        let running = scripted.http().await;
        let end = call(&client(&running)).await;
        match fits {
            true => drop(end.unwrap()),
            false => assert!(misfits(end).handle().is_some()),
        }
    }
}

#[tokio::test]
async fn a_definition_that_was_refreshed_after_a_header_mismatch_is_the_one_in_force() {
    // A server answers so with HTTP 400 (S29); some with 200.
    for status in [400, 200] {
        let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
            ("tools/list", 0) => tools("n"),
            ("tools/list", _) => tools("m"),
            ("tools/call", 0) => {
                let refusal = json!({
                    "jsonrpc": "2.0", "id": asked.id, "error": { "code": -32020, "message": "Header mismatch" },
                });
                let json = ("content-type", "application/json".to_owned());
                Reply::Http(status, vec![json], refusal.to_string())
            }
            ("tools/call", _) => created("t1"),
            ("tasks/get", _) => done(structured(json!({ "m": 1 }))),
            _ => error(-32601, "no"),
        });
        let running = scripted.http().await;

        let result = call(&client(&running)).await.unwrap();

        assert_eq!(result.structured_content, Some(json!({ "m": 1 })), "{status}");
        assert_eq!(scripted.asked("tools/call").len(), 2);
    }
}

#[tokio::test]
async fn an_error_of_the_tool_is_not_checked() {
    let running =
        server(json!({ "content": [{ "type": "text", "text": "no" }], "isError": true })).http().await;
    assert_eq!(call(&client(&running)).await.unwrap().is_error, Some(true));
}

#[tokio::test]
async fn a_client_that_checks_nothing_takes_what_comes_also_by_a_handle_of_one_that_does() {
    let running = server(structured(json!({ "n": "one" }))).http().await;
    let saved = started(&client(&running)).await.save();
    assert!(saved.output_schema.is_some());
    let mut options = polling();
    options.validate_output = false;
    let lax = TaskClient::builder(running.server()).options(options).build();

    call(&lax).await.unwrap();
    lax.resume(saved).await.unwrap().wait(LONG).await.unwrap();
}

#[tokio::test]
async fn a_tool_that_is_on_a_later_page_is_checked() {
    let pages = Arc::new(AtomicUsize::new(0));
    let scripted = Scripted::new({
        let pages = pages.clone();
        move |asked| match asked.method.as_str() {
            "tools/list" => match pages.fetch_add(1, Ordering::SeqCst) {
                0 => ok(json!({ "tools": [], "nextCursor": "2" })),
                _ => tools("n"),
            },
            "tools/call" => ok(structured(json!({}))),
            _ => error(-32601, "no"),
        }
    });
    let running = scripted.http().await;
    misfits(call(&client(&running)).await);
    assert_eq!(pages.load(Ordering::SeqCst), 2);
}
