//! What is sent, and what is never sent.

use std::time::Duration;

use outlast_client::TaskClient;
use rmcp::model::CallToolRequestParams;
use serde_json::json;
use tokio::sync::mpsc;

use crate::support::{
    LONG, Person, Reply, Scripted, ack, asks, completed, created, error, ok, polling, question, started, task,
};

#[tokio::test]
async fn every_request_about_a_task_declares_the_extension_and_none_has_fields_of_another_kind() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", 0) => ok(json!({
            "resultType": "input_required", "requestState": "sealed", "inputRequests": { "a": question("a") }
        })),
        ("tools/call", _) => {
            ok(task("t1", "working", json!({ "resultType": "task", "requestState": "stray" })))
        }
        ("tasks/get", 0 | 1) => ok(task(
            "t1",
            "input_required",
            json!({
                "inputRequests": { "who": question("who") }, "requestState": "stray",
            }),
        )),
        ("tasks/get", 2) => ok(task("t1", "working", json!({}))),
        ("tasks/get", _) => ok(task("t1", "cancelled", json!({}))),
        ("tasks/update" | "tasks/cancel", _) => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).handler(Person::prompt()).build();
    let handle = started(&client).await;
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    scripted.until_asked("tasks/update", 1).await;
    handle.cancel().await.unwrap();
    waiting.await.unwrap().unwrap_err();

    for method in ["tools/call", "tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen"] {
        let asked = scripted.asked(method);
        assert!(!asked.is_empty(), "{method}");
        for asked in asked {
            assert!(asked.declares(), "S1 {method}: {}", asked.params);
            assert!(asked.params.get("task").is_none(), "S4 {method}: {}", asked.params);
            if method.starts_with("tasks/") {
                assert!(asked.params.get("requestState").is_none(), "S16 {method}: {}", asked.params);
                assert_eq!(asked.params["taskId"], "t1");
                assert_eq!(asked.headers["mcp-name"], "t1", "C41");
            }
            assert_eq!(asked.headers["mcp-method"], method, "S29");
        }
    }
    let cancel = &scripted.asked("tasks/cancel")[0].params;
    assert_eq!(
        cancel.as_object().unwrap().keys().filter(|key| *key != "_meta").collect::<Vec<_>>(),
        ["taskId"]
    );
}

#[tokio::test]
async fn c41_the_header_names_the_task_of_the_body_whatever_its_id_is() {
    for (id, header) in [
        ("plain-1", "plain-1"),
        ("täsk \u{1f980}", "=?base64?dMOkc2sg8J+mgA==?="),
        ("two\r\nlines", "=?base64?dHdvDQpsaW5lcw==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
    ] {
        let named = id.to_owned();
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/call" => created(&named),
            "tasks/get" => completed(&named, "done"),
            "tasks/cancel" => ack(),
            _ => error(-32601, "no"),
        });
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).options(polling()).build();
        let handle = started(&client).await;

        handle.cancel().await.unwrap();
        handle.wait(LONG).await.unwrap();

        for asked in scripted.asked("tasks/get").iter().chain(&scripted.asked("tasks/cancel")) {
            assert_eq!(asked.params["taskId"], id);
            assert_eq!(asked.headers["mcp-name"], header);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_that_is_given_up_cancels_a_task_by_a_notification() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" if asked.nth == 0 => asks("t1", &["who"]),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Reply::Hang,
        "subscriptions/listen" => Reply::Stream(mpsc::unbounded_channel().1),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).handler(Person::prompt()).build();
    let handle = started(&client).await;

    handle.wait(Some(Duration::from_secs(2))).await.unwrap_err();
    tokio::time::timeout(Duration::from_secs(1), handle.get()).await.unwrap_err();
    tokio::time::timeout(Duration::from_secs(1), handle.cancel()).await.unwrap_err();
    drop(handle);
    drop(client);
    tokio::time::sleep(Duration::from_secs(100)).await;

    let listens: Vec<_> = scripted.asked("subscriptions/listen").into_iter().map(|asked| asked.id).collect();
    for cancelled in scripted.asked("notifications/cancelled") {
        let request = &cancelled.params["requestId"];
        assert!(listens.contains(request), "only a subscription is ended so: {}", cancelled.params);
    }
    assert!(!scripted.asked("tasks/update").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_before_its_answer_is_cancelled_as_a_request() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => Reply::Hang,
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();
    let mut call = Box::pin(client.call_tool(CallToolRequestParams::new("tool")));
    tokio::select! {
        _ = &mut call => panic!("it is never answered"),
        () = scripted.until_asked("tools/call", 1) => {}
    }

    drop(call);

    scripted.until_asked("notifications/cancelled", 1).await;
    let (call, cancelled) = (&scripted.asked("tools/call")[0], &scripted.asked("notifications/cancelled")[0]);
    assert_eq!(cancelled.params["requestId"], call.id);
    assert!(scripted.asked("tasks/cancel").is_empty());
}
