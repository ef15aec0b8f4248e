//! What the messages of a server look like, and what becomes of those that look otherwise.

use std::{sync::Arc, sync::Mutex, time::Duration};

use outlast_client::{CallErrorKind, TaskClient};
use rmcp::{
    ClientHandler, RoleClient,
    model::{CallToolRequestParams, CustomNotification},
    service::NotificationContext,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::support::{
    LONG, Person, Reply, Scripted, ack, asks, completed, created, error, now, ok, polling, said, started,
    task, text,
};

/// The end of a call of a server that creates a task by `creation`, and then answers a poll with `state`.
async fn end_of(creation: Value, state: Value) -> Result<String, CallErrorKind> {
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => ok(creation.clone()),
        "tasks/get" => ok(state.clone()),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let call = client.call_tool(CallToolRequestParams::new("tool"));
    let end = tokio::time::timeout(Duration::from_secs(20), call).await.expect("it ends");
    end.map(|result| said(&result)).map_err(|error| error.kind().clone())
}

fn creation(extra: Value) -> Value {
    let mut value = task("t1", "working", json!({ "resultType": "task" }));
    value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    value
}

fn done(extra: Value) -> Value {
    let mut value = task("t1", "completed", json!({ "result": text("done") }));
    value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    value
}

fn is_invalid(end: &Result<String, CallErrorKind>, names: &str) -> bool {
    matches!(end, Err(CallErrorKind::InvalidResponse(why)) if why.contains(names))
}

#[tokio::test]
async fn the_result_in_a_task_is_complete_where_it_says_what_it_is() {
    let mut result = text("done");
    for kind in [json!("complete"), Value::Null] {
        match &kind {
            Value::Null => drop(result.as_object_mut().unwrap().remove("resultType")),
            kind => result["resultType"] = kind.clone(),
        }
        let end = end_of(creation(json!({})), done(json!({ "result": result }))).await;
        assert_eq!(end.unwrap(), "done", "{kind}");
    }
    for kind in [json!("task"), json!("input_required"), json!("other"), json!(5)] {
        result["resultType"] = kind.clone();
        let end = end_of(creation(json!({})), done(json!({ "result": result }))).await;
        assert!(is_invalid(&end, "resultType"), "{kind}: {end:?}");
    }
}

#[tokio::test]
async fn an_extra_task_member_is_ignored() {
    let extra = json!({ "task": { "taskId": "other", "status": "failed" } });
    assert_eq!(end_of(creation(extra.clone()), done(extra)).await.unwrap(), "done");
}

#[tokio::test]
async fn fields_of_the_wrong_shape_are_an_invalid_response_at_the_creation_and_later() {
    for (field, value) in [
        ("taskId", json!(7)),
        ("taskId", json!("")),
        ("taskId", Value::Null),
        ("status", json!("paused")),
        ("status", json!(1)),
        ("pollIntervalMs", json!(-1)),
        ("pollIntervalMs", json!(0.5)),
        ("pollIntervalMs", json!("100")),
        ("createdAt", json!("today")),
        ("ttlMs", json!("60000")),
    ] {
        let odd = json!({ field: value });
        let end = end_of(creation(odd.clone()), done(json!({}))).await;
        assert!(is_invalid(&end, field), "{odd} at the creation: {end:?}");
        let end = end_of(creation(json!({})), done(odd.clone())).await;
        assert!(is_invalid(&end, field), "{odd} later: {end:?}");
    }
    let end = end_of(creation(json!({})), done(json!({ "taskId": "t2" }))).await;
    assert!(is_invalid(&end, "another task"), "{end:?}");
    for state in [json!([]), json!("x"), Value::Null, creation(json!({}))] {
        let end = end_of(creation(json!({})), state.clone()).await;
        assert!(matches!(end, Err(CallErrorKind::InvalidResponse(_))), "{state}: {end:?}");
    }
}

#[tokio::test]
async fn an_invalid_response_keeps_the_handle_and_waiting_again_is_no_use() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0) => ok(json!({ "taskId": "t1" })),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    let error = started(&client).await.wait(LONG).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::InvalidResponse(_)) && !error.is_retryable());
    // A caller who knows better may.
    assert_eq!(said(&error.into_handle().unwrap().wait(LONG).await.unwrap()), "done");
}

/// The end of a task whose question is answered, and whose server acknowledges that with `acknowledgement`.
async fn acknowledged(acknowledgement: Value) -> (Result<String, CallErrorKind>, usize) {
    let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0..4) => asks("t1", &["who"]),
        ("tasks/get", _) => completed("t1", "done"),
        ("tasks/update", _) => ok(acknowledgement.clone()),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).handler(Person::prompt()).build();
    let end = started(&client).await.wait(LONG).await;
    (
        end.map(|result| said(&result)).map_err(|error| error.kind().clone()),
        scripted.asked("tasks/update").len(),
    )
}

#[tokio::test]
async fn an_empty_object_is_an_acknowledgement() {
    for acknowledgement in [json!({}), json!({ "resultType": "complete" }), json!({ "_meta": { "x": 1 } })] {
        let (end, updates) = acknowledged(acknowledgement.clone()).await;
        assert_eq!((end.unwrap().as_str(), updates), ("done", 1), "{acknowledgement}");
    }
    for odd in [json!([]), json!("ok"), json!({ "resultType": "task" }), json!({ "resultType": 7 })] {
        let (end, _) = acknowledged(odd.clone()).await;
        assert!(matches!(end, Err(CallErrorKind::InvalidResponse(_))), "{odd}: {end:?}");
    }
}

fn pushed(state: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/tasks", "params": state })
}

#[tokio::test(start_paused = true)]
async fn a_malformed_notification_is_dropped_and_takes_no_good_one_with_it() {
    let (sender, receiver) = mpsc::unbounded_channel();
    let receiver = Mutex::new(Some(receiver));
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => ok(task("t1", "working", json!({}))),
        "subscriptions/listen" => Reply::Stream(receiver.lock().unwrap().take().unwrap()),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).build();
    let handle = started(&client).await;
    let wait = tokio::spawn(async move { handle.wait(LONG).await });
    let acknowledged = json!({
        "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
        "params": { "notifications": { "taskIds": ["t1"] } },
    });
    sender.send(acknowledged).unwrap();
    scripted.until_asked("tasks/get", 1).await;
    let polls = scripted.asked("tasks/get").len();
    let begun = now();

    for odd in [
        json!({ "taskId": "t1" }),
        json!({ "taskId": 5, "status": "completed" }),
        json!({ "taskId": "t1", "status": "completed", "createdAt": "2026-11-29T10:00:00Z" }),
        json!([]),
        task("t2", "failed", json!({ "error": { "code": 1, "message": "of another" } })),
    ] {
        sender.send(pushed(&odd)).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(!wait.is_finished());
    // All at once: what comes after the good one does not hide it.
    sender.send(pushed(&done(json!({ "lastUpdatedAt": "2026-11-29T10:00:05Z" })))).unwrap();
    for _ in 0..3 {
        sender.send(pushed(&json!({ "taskId": "t1", "status": "paused" }))).unwrap();
    }

    assert_eq!(said(&wait.await.unwrap().unwrap()), "done");
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(scripted.asked("tasks/get").len(), polls);
}

/// A listener to what the SDK has no name for.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<(String, Value)>>>, Arc<Notify>);

impl ClientHandler for Listener {
    async fn on_custom_notification(
        &self,
        notification: CustomNotification,
        _: NotificationContext<RoleClient>,
    ) {
        let params = notification.params.unwrap_or_default();
        self.0.lock().unwrap().push((notification.method, params));
        self.1.notify_one();
    }
}

#[tokio::test]
async fn a_notification_of_the_earlier_generation_keeps_its_shape() {
    let state = json!({
        "taskId": "t1", "status": "working", "ttl": 60_000, "pollInterval": 100,
        "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
    });
    let sent = state.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/list" => ok(json!({ "tools": [{
            "name": "tool", "inputSchema": { "type": "object" }, "execution": { "taskSupport": "optional" }
        }] })),
        "tools/call" => ok(json!({ "task": state })),
        "tasks/get" => {
            // It rides on the answer to a poll.
            let (sender, receiver) = mpsc::unbounded_channel();
            let status = json!({ "jsonrpc": "2.0", "method": "notifications/tasks/status", "params": state });
            sender.send(status).unwrap();
            let mut ended = state.clone();
            ended["status"] = "completed".into();
            sender.send(json!({ "jsonrpc": "2.0", "id": asked.id, "result": ended })).unwrap();
            Reply::Stream(receiver)
        }
        "tasks/result" => ok(json!({ "content": [{ "type": "text", "text": "of old" }] })),
        _ => error(-32601, "no"),
    })
    .legacy();
    let running = scripted.http().await;
    let listener = Listener::default();
    let client = TaskClient::builder(running.server()).options(polling()).handler(listener.clone()).build();

    assert_eq!(said(&client.call_tool(CallToolRequestParams::new("tool")).await.unwrap()), "of old");

    listener.1.notified().await;
    assert_eq!(*listener.0.lock().unwrap(), [("notifications/tasks/status".to_owned(), sent)]);
}

#[tokio::test(start_paused = true)]
async fn c30_any_interval_of_a_server_gives_a_sane_pace() {
    let at = |interval: Value| {
        let mut state = task("t1", "working", json!({}));
        match interval {
            Value::Null => drop(state.as_object_mut().unwrap().remove("pollIntervalMs")),
            interval => state["pollIntervalMs"] = interval,
        }
        ok(state)
    };
    let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0) => at(Value::Null),
        ("tasks/get", 1) => at(json!(0)),
        ("tasks/get", 2) => at(json!(7000)),
        ("tasks/get", 3) => at(json!(200)),
        ("tasks/get", 4) => at(json!(1e15)),
        ("tasks/get", 5) => at(json!(u64::MAX)),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();

    started(&client).await.wait(None).await.unwrap();

    let pauses: Vec<u64> =
        scripted.pauses("tasks/get").iter().map(|pause| u64::try_from(pause.as_millis()).unwrap()).collect();
    let hour = 3_600_000;
    let sane =
        [(500, 2000), (50, 1000), (7000, 7800), (200, 300), (hour, hour * 11 / 10), (hour, hour * 11 / 10)];
    assert_eq!(pauses.len(), sane.len());
    for (pause, (least, most)) in pauses.iter().zip(sane) {
        assert!((least..=most + 10).contains(pause), "{pauses:?}");
    }
}

#[tokio::test]
async fn c31_the_same_instant_written_otherwise_is_the_same_task() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0) => ok(task("t1", "working", json!({ "createdAt": "2026-11-29T10:00:00+00:00" }))),
        ("tasks/get", 1) => {
            ok(task("t1", "working", json!({ "createdAt": "2026-11-29T15:30:00.000+05:30" })))
        }
        ("tasks/get", _) => completed("t1", "done"),
        ("tasks/cancel", _) => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    assert_eq!(said(&started(&client).await.wait(LONG).await.unwrap()), "done");
}
