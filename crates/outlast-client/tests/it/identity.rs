//! Which task a handle is of: through restarts of the server, lost connections, and sessions.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use outlast_client::{CallErrorKind, CallOptions, DirStore, SavedTask, Started, TaskClient};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};

use crate::support::{
    LONG, Person, Reply, Scripted, ack, asks, completed, created, error, ok, polling, question, said,
    started, task,
};

fn tool() -> CallToolRequestParams {
    CallToolRequestParams::new("tool")
}

/// When the task was created that has the id after the restart.
const AFTER: &str = "2026-11-29T11:30:00Z";

fn after(status: &str, mut extra: Value) -> Value {
    extra["createdAt"] = AFTER.into();
    extra["lastUpdatedAt"] = AFTER.into();
    task("t1", status, extra)
}

fn saved(server: &str) -> SavedTask {
    let saved = json!({
        "version": 1, "server": server, "taskId": "t1", "tool": "tool", "generation": "2026-07-28",
        "createdAt": "2026-11-29T10:00:00Z", "firstSeen": "2026-11-29T10:00:00Z",
        "answers": { "who": { "action": "accept", "content": { "name": "of the old task" } } },
    });
    SavedTask::from_json(&saved.to_string()).unwrap()
}

#[tokio::test]
async fn c38_the_old_handle_is_refused_and_its_answers_never_reach_the_new_task() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tasks/get" => ok(after("input_required", json!({ "inputRequests": { "who": question("who") } }))),
        "tasks/update" | "tasks/cancel" => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let person = Person::prompt();
    for what in ["wait", "get", "cancel", "answer"] {
        let client = TaskClient::builder(running.server()).options(polling()).handler(person.clone()).build();
        let handle = client.resume(saved(running.server().name())).await.unwrap();

        let end = match what {
            "wait" => handle.wait(LONG).await.map(drop),
            "get" => handle.get().await.map(drop),
            "cancel" => handle.cancel().await,
            _ => handle.answer("other", json!({ "action": "decline" })).await,
        };

        let error = end.unwrap_err();
        assert_eq!(*error.kind(), CallErrorKind::AnotherTask, "{what}");
        assert!(!error.is_retryable());
    }
    assert!(scripted.asked("tasks/update").is_empty());
    assert!(scripted.asked("tasks/cancel").is_empty());
    assert!(person.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn c38_an_answer_that_was_lost_with_the_server_does_not_reach_its_next_task() {
    let restarted = Arc::new(AtomicBool::new(false));
    let is_new = restarted.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" if is_new.load(Ordering::SeqCst) => {
            ok(after("input_required", json!({ "inputRequests": { "who": question("who") } })))
        }
        "tasks/get" => asks("t1", &["who"]),
        // The answer takes the server down.
        "tasks/update" if !is_new.swap(true, Ordering::SeqCst) => Reply::Drop,
        "tasks/update" => ack(),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).handler(Person::prompt()).build();

    let error = client.call_tool(tool()).await.unwrap_err();

    assert_eq!(*error.kind(), CallErrorKind::AnotherTask);
    assert_eq!(scripted.asked("tasks/update").len(), 1);
    assert!(restarted.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn c38_a_cancel_after_a_lost_connection_does_not_reach_the_next_task() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0) => Reply::Drop,
        ("tasks/get", _) => ok(after("working", json!({}))),
        ("tasks/cancel", _) => ack(),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();
    let handle = started(&client).await;
    handle.get().await.unwrap_err();

    let error = handle.cancel().await.unwrap_err();

    assert_eq!(*error.kind(), CallErrorKind::AnotherTask);
    assert!(scripted.asked("tasks/cancel").is_empty());
}

#[tokio::test]
async fn the_same_id_created_again_is_a_new_lifetime() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", 0) => created("t1"),
        ("tools/call", _) => ok(after("working", json!({ "resultType": "task" }))),
        ("tasks/get", _) => {
            let result = json!({ "content": [{ "type": "text", "text": "of the new task" }] });
            ok(after("completed", json!({ "result": result })))
        }
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let old = started(&client).await;
    let waiting = tokio::spawn({
        let old = old.clone();
        async move { old.wait(LONG).await }
    });

    let new = started(&client).await;

    assert_eq!(*waiting.await.unwrap().unwrap_err().kind(), CallErrorKind::AnotherTask);
    assert_eq!(*old.cancel().await.unwrap_err().kind(), CallErrorKind::AnotherTask);
    assert_eq!(said(&new.wait(LONG).await.unwrap()), "of the new task");
}

#[tokio::test]
async fn two_calls_under_one_key_that_are_one_task_share_its_answers() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0..=4) => asks("t1", &["who"]),
        ("tasks/get", _) => completed("t1", "done"),
        ("tasks/update", _) => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let person = Person::prompt();
    let client = TaskClient::builder(running.server()).options(polling()).handler(person.clone()).build();
    let under_key = || CallOptions::default().with_idempotency_key("invoice 7");
    let Started::Task(first) = client.start_tool_with(tool(), under_key()).await.unwrap() else {
        panic!("no task")
    };
    let waiting = tokio::spawn(async move { first.wait(LONG).await });
    person.until_asked(1).await;

    let second = client.call_tool_with(tool(), under_key()).await.unwrap();

    assert_eq!(said(&second), "done");
    assert_eq!(said(&waiting.await.unwrap().unwrap()), "done");
    assert_eq!(person.asked(), ["who"]);
}

#[tokio::test]
async fn a_call_under_a_key_after_a_restart_of_the_caller_goes_on_with_what_was_written_down() {
    let directory = tempfile::tempdir().unwrap();
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0) => asks("t1", &["who"]),
        ("tasks/get", _) => asks("t1", &["who", "what"]),
        ("tasks/update", _) => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let mut asked = Vec::new();
    for _ in 0..2 {
        let person = Person::prompt();
        let client = TaskClient::builder(running.server())
            .options(polling())
            .handler(person.clone())
            .store(DirStore::open(directory.path()).unwrap())
            .build();
        let options = CallOptions::default()
            .with_idempotency_key("invoice 7")
            .with_deadline(std::time::Duration::from_secs(1));
        client.call_tool_with(tool(), options).await.unwrap_err();
        asked.extend(person.asked());
    }

    asked.sort();
    assert_eq!(asked, ["what", "who"], "each once");
}

#[tokio::test(start_paused = true)]
async fn a_reconnect_without_a_session_keeps_the_answers() {
    let times = AtomicUsize::new(0);
    let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", _) if times.load(Ordering::SeqCst) < 3 => asks("t1", &["who"]),
        ("tasks/get", _) => completed("t1", "done"),
        ("tasks/update", _) if times.fetch_add(1, Ordering::SeqCst) < 2 => Reply::Drop,
        ("tasks/update", _) => ack(),
        _ => error(-32601, "no"),
    });
    let person = Person::prompt();
    let client = TaskClient::builder(scripted.streams()).options(polling()).handler(person.clone()).build();

    let result = client.call_tool(tool()).await.unwrap();

    assert_eq!(said(&result), "done");
    assert_eq!(person.asked(), ["who"]);
    assert!(scripted.connections() >= 3);
    let sent: Vec<Value> =
        scripted.asked("tasks/update").iter().map(|update| update.params["inputResponses"].clone()).collect();
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|answers| *answers == sent[0]));
}

#[tokio::test]
async fn a_final_state_that_was_seen_counts_when_the_server_is_gone() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => completed("t1", "seen"),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let handle = started(&client).await;
    assert!(handle.get().await.unwrap().is_completed());

    running.stop().await;

    assert_eq!(said(&handle.wait(LONG).await.unwrap()), "seen");
    assert!(handle.is_completed() && handle.is_final());
    handle.cancel().await.unwrap();
    assert_eq!(scripted.asked("tasks/get").len(), 1);
}

#[tokio::test]
async fn a_handle_of_another_server_is_refused() {
    let scripted = Scripted::new(|_| error(-32601, "no"));
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    let error = client.resume(saved("http://elsewhere.example:80/mcp")).await.unwrap_err();

    assert_eq!(*error.kind(), CallErrorKind::OtherServer);
    assert!(scripted.methods().is_empty());
}

#[tokio::test]
async fn two_handles_to_one_task_are_one_as_long_as_one_is_alive() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0..=2) => asks("t1", &["who"]),
        ("tasks/get", _) => completed("t1", "done"),
        ("tasks/update", _) => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let person = Person::prompt();
    let client = TaskClient::builder(running.server()).options(polling()).handler(person.clone()).build();
    let first = started(&client).await;
    let second = client.resume(SavedTask::from_json(&first.to_json()).unwrap()).await.unwrap();

    let (first, second) = tokio::join!(first.wait(LONG), second.wait(LONG));

    assert_eq!((said(&first.unwrap()), said(&second.unwrap())), ("done".into(), "done".into()));
    assert_eq!(person.asked(), ["who"]);
    assert_eq!(scripted.asked("tasks/update").len(), 1);
}

#[tokio::test]
async fn an_old_handle_that_is_taken_up_does_not_part_the_handles_of_the_new_task() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => ok(after("working", json!({ "resultType": "task" }))),
        ("tasks/get", 0..=3) => {
            ok(after("input_required", json!({ "inputRequests": { "who": question("who") } })))
        }
        ("tasks/get", _) => {
            let result = json!({ "content": [{ "type": "text", "text": "done" }] });
            ok(after("completed", json!({ "result": result })))
        }
        ("tasks/update", _) => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let person = Person::prompt();
    let client = TaskClient::builder(running.server()).options(polling()).handler(person.clone()).build();
    let new = started(&client).await;

    let old = client.resume(saved(running.server().name())).await.unwrap();
    let again = client.resume(SavedTask::from_json(&new.to_json()).unwrap()).await.unwrap();

    let (first, second) = tokio::join!(new.wait(LONG), again.wait(LONG));
    assert_eq!((said(&first.unwrap()), said(&second.unwrap())), ("done".into(), "done".into()));
    assert_eq!(person.asked(), ["who"]);
    assert_eq!(*old.get().await.unwrap_err().kind(), CallErrorKind::AnotherTask);
}
