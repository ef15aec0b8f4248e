//! A call whose connection is lost before its answer: made again where that is safe, once, and otherwise not.

use outlast_client::{CallErrorKind, CallOptions, TaskClient};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};

use crate::support::{Asked, Reply, Scripted, completed, created, error, ok, polling, said, text};

/// What a server without the extension for repeats declares.
fn no_repeats() -> Value {
    json!({ "tools": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

fn key(call: &Asked) -> &Value {
    &call.params["_meta"]["outlast/idempotencyKey"]
}

/// Breaks the connection of the first calls, and answers the next.
fn losing(calls: usize) -> Scripted {
    Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" if asked.nth < calls => Reply::Drop,
        "tools/call" => ok(text("once")),
        _ => error(-32601, "no"),
    })
}

fn tools(annotations: Value) -> Reply {
    ok(json!({
        "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
        "tools": [{ "name": "tool", "inputSchema": { "type": "object" }, "annotations": annotations }],
    }))
}

async fn call(scripted: &Scripted) -> Result<String, CallErrorKind> {
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let result = client.call_tool(CallToolRequestParams::new("tool")).await;
    result.map(|result| said(&result)).map_err(|error| {
        assert!(matches!(error.kind(), CallErrorKind::OutcomeUnknown(_)) != error.is_retryable(), "{error}");
        error.kind().clone()
    })
}

#[tokio::test]
async fn a_call_that_lost_its_connection_is_repeated_once_under_its_key() {
    let scripted = losing(1);

    assert_eq!(call(&scripted).await.unwrap(), "once");

    let calls = scripted.asked("tools/call");
    assert_eq!(calls.len(), 2);
    assert!(key(&calls[0]).is_string());
    assert_eq!(key(&calls[0]), key(&calls[1]));
}

#[tokio::test]
async fn a_call_that_lost_its_connection_twice_has_an_unknown_outcome() {
    let scripted = losing(usize::MAX);

    let end = call(&scripted).await.unwrap_err();

    assert!(matches!(end, CallErrorKind::OutcomeUnknown(_)), "{end}");
    assert_eq!(scripted.asked("tools/call").len(), 2);
}

#[tokio::test]
async fn a_call_to_a_server_that_knows_no_repeats_is_made_once() {
    let scripted = losing(1).introduced(no_repeats());

    let end = call(&scripted).await.unwrap_err();

    assert!(matches!(end, CallErrorKind::OutcomeUnknown(_)), "{end}");
    assert_eq!(scripted.asked("tools/call").len(), 1);
}

#[tokio::test]
async fn a_call_of_a_tool_that_the_server_does_not_name_among_its_repeatable_ones_is_made_once() {
    let scripted = losing(1).introduced(json!({
        "tools": {}, "extensions": { "io.modelcontextprotocol/tasks": {}, "outlast/idempotency": { "tools": ["other"] } }
    }));

    let end = call(&scripted).await.unwrap_err();

    assert!(matches!(end, CallErrorKind::OutcomeUnknown(_)), "{end}");
    assert_eq!(scripted.asked("tools/call").len(), 1);
}

#[tokio::test]
async fn a_tool_that_says_that_twice_is_as_once_is_called_again_by_either_hint() {
    for (annotations, calls) in [
        (json!({ "idempotentHint": true }), 2),
        (json!({ "readOnlyHint": true }), 2),
        (json!({ "idempotentHint": false, "readOnlyHint": false, "destructiveHint": false }), 1),
        (json!({ "idempotentHint": "true" }), 1),
    ] {
        let hints = annotations.clone();
        let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
            ("tools/list", _) => tools(hints.clone()),
            ("tools/call", 0) => Reply::Drop,
            ("tools/call", _) => ok(text("once")),
            _ => error(-32601, "no"),
        })
        .introduced(no_repeats());

        let outcome = call(&scripted).await;

        assert_eq!(outcome.is_ok(), calls == 2, "{annotations}: {outcome:?}");
        assert_eq!(scripted.asked("tools/call").len(), calls, "{annotations}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_in_its_stream_is_a_lost_connection() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", 0) => Reply::Stream(tokio::sync::mpsc::unbounded_channel().1),
        ("tools/call", _) => ok(text("once")),
        _ => error(-32601, "no"),
    });

    assert_eq!(call(&scripted).await.unwrap(), "once");
    assert_eq!(scripted.asked("tools/call").len(), 2);
}

#[tokio::test]
async fn an_answer_of_http_that_says_nothing_of_the_call_leaves_its_outcome_unknown() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => Reply::Http(502, vec![], "bad gateway".into()),
        _ => error(-32601, "no"),
    })
    .introduced(no_repeats());

    let end = call(&scripted).await.unwrap_err();

    assert!(matches!(end, CallErrorKind::OutcomeUnknown(_)), "{end}");
}

#[tokio::test]
async fn a_call_that_never_left_is_no_unknown_outcome() {
    let scripted = losing(0);
    let running = scripted.http().await;
    let server = running.server();
    running.stop().await;
    let client = TaskClient::builder(server).options(polling()).build();

    let error = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::Connection(_)), "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_repeat_that_cannot_reach_the_server_leaves_the_outcome_unknown() {
    let running = std::sync::Arc::new(std::sync::Mutex::new(None::<crate::support::Killable>));
    let killed = running.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => {
            let killed = killed.clone();
            Reply::Later(Box::pin(async move {
                drop(killed.lock().unwrap().take());
                Reply::Drop
            }))
        }
        _ => error(-32601, "no"),
    });
    let server = scripted.killable("127.0.0.1:0").await;
    let address = server.server();
    *running.lock().unwrap() = Some(server);
    let client = TaskClient::builder(address).options(polling()).build();

    let error = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::OutcomeUnknown(_)), "the tool may have run: {error}");
    assert!(!error.is_retryable());
    assert_eq!(scripted.asked("tools/call").len(), 1);
}

#[tokio::test]
async fn a_repeat_waits_for_a_server_that_restarts() {
    let running = std::sync::Arc::new(std::sync::Mutex::new(None::<crate::support::Killable>));
    let killed = running.clone();
    let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", 0) => {
            let killed = killed.clone();
            Reply::Later(Box::pin(async move {
                drop(killed.lock().unwrap().take());
                Reply::Drop
            }))
        }
        ("tools/call", _) => created("t1"),
        ("tasks/get", _) => completed("t1", "once"),
        _ => error(-32601, "no"),
    });
    let server = scripted.killable("127.0.0.1:0").await;
    let address = server.address;
    let client = TaskClient::builder(server.server()).options(polling()).build();
    *running.lock().unwrap() = Some(server);
    let calling = tokio::spawn(async move { client.call_tool(CallToolRequestParams::new("tool")).await });
    scripted.until_asked("tools/call", 1).await;

    let _again = scripted.killable(&address.to_string()).await;

    assert_eq!(said(&calling.await.unwrap().unwrap()), "once");
    let calls = scripted.asked("tools/call");
    assert_eq!(key(&calls[0]), key(&calls[1]));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_came_back_without_knowing_repeats_gets_none() {
    let scripted = std::sync::Arc::new(std::sync::OnceLock::<Scripted>::new());
    let itself = scripted.clone();
    let _ = scripted.set(Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", 0) => {
            let _ = itself.get().unwrap().clone().introduced(no_repeats());
            Reply::Drop
        }
        ("tools/call", _) => ok(text("twice")),
        _ => error(-32601, "no"),
    }));
    let scripted = scripted.get().unwrap();
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();

    let error = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::OutcomeUnknown(_)), "{error}");
    assert_eq!(scripted.asked("tools/call").len(), 1);
}

#[tokio::test]
async fn a_key_that_was_given_is_the_key_of_the_call() {
    let scripted = losing(0);
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let options = CallOptions::default().with_idempotency_key("invoice 7");

    client.call_tool_with(CallToolRequestParams::new("tool"), options).await.unwrap();

    assert_eq!(key(&scripted.asked("tools/call")[0]), "invoice 7");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_longer_than_its_bound_is_not_made_again() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => Reply::Hang,
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();

    let error = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::OutcomeUnknown(_)), "{error}");
    assert_eq!(scripted.asked("tools/call").len(), 1);
    scripted.until_asked("notifications/cancelled", 1).await;
}
