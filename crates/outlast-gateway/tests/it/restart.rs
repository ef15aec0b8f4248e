//! A gateway that stops in the middle of calls, and one that is started after it on the same store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outlast::{Store, TaskServer};
use outlast_client::{CallErrorKind, SavedTask, Started, TaskClient, TaskHandle};
use outlast_gateway::{Gateway, When};
use outlast_sqlite::SqliteStore;
use rmcp::{ClientHandler, model::CallToolRequestParams, service::ServiceExt};
use serde_json::json;

use crate::{
    scripted::{Reply, Scripted, said, task},
    support::{gateway_on, serve, streams, text},
};

const LONG: Duration = Duration::from_secs(60);

struct Mute;

impl ClientHandler for Mute {}

/// A store on disk, and the gateways that run on it one after the other.
struct Site {
    dir: tempfile::TempDir,
    scripted: Scripted,
}

impl Site {
    fn new(scripted: &Scripted) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), scripted: scripted.clone() }
    }

    async fn start(&self, hold: Duration) -> TaskServer<Gateway> {
        let store: Arc<dyn Store> = loop {
            // The gateway before this one may still be on its way out.
            match SqliteStore::open(self.dir.path().join("store.db")) {
                Ok(store) => break Arc::new(store),
                Err(_) => tokio::task::yield_now().await,
            }
        };
        gateway_on(store, self.scripted.upstream(), When::Now, hold).await
    }
}

async fn start_call(client: &TaskClient, name: &'static str) -> TaskHandle {
    match client.start_tool(CallToolRequestParams::new(name)).await.unwrap() {
        Started::Task(handle) => handle,
        other => panic!("no task: {other:?}"),
    }
}

async fn resumed(server: &TaskServer<Gateway>, saved: &str) -> TaskHandle {
    let client = TaskClient::new(streams("gateway", server.clone()), Mute);
    client.resume(SavedTask::from_json(saved).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn c50_an_upstreams_task_is_followed_again_after_a_restart() {
    let over = Arc::new(AtomicBool::new(false));
    let ends = over.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => task("theirs", "working", json!({ "resultType": "task" })),
        "tasks/get" if ends.load(Ordering::SeqCst) => {
            let result = json!({ "content": [{ "type": "text", "text": "in the end" }] });
            task("theirs", "completed", json!({ "result": result }))
        }
        "tasks/get" => task("theirs", "working", json!({})),
        _ => Reply::Error(-32601, "no"),
    });
    let site = Site::new(&scripted);
    let first = site.start(LONG).await;
    let saved = {
        let client = TaskClient::new(streams("gateway", first.clone()), Mute);
        let handle = start_call(&client, "tool").await;
        scripted.until_asked("tasks/get", 1).await;
        client.close().await;
        handle.to_json()
    };

    drop(first);
    over.store(true, Ordering::SeqCst);
    let second = site.start(LONG).await;

    let result = resumed(&second, &saved).await.wait(Some(LONG)).await.unwrap();
    assert_eq!(text(&result), "in the end");
    assert_eq!(scripted.asked("tools/call").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_harmless_calls_are_made_again_and_of_others_the_outcome_is_unknown() {
    let second_time = Arc::new(AtomicBool::new(false));
    let ends = second_time.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" if ends.load(Ordering::SeqCst) => said("again"),
        "tools/call" => Reply::Hang,
        _ => Reply::Error(-32601, "no"),
    });
    let site = Site::new(&scripted);
    let first = site.start(LONG).await;
    let saved = {
        let client = TaskClient::new(streams("gateway", first.clone()), Mute);
        let handles = [start_call(&client, "harmless").await, start_call(&client, "tool").await];
        scripted.until_asked("tools/call", 2).await;
        client.close().await;
        handles.map(|handle| handle.to_json())
    };

    drop(first);
    second_time.store(true, Ordering::SeqCst);
    let second = site.start(LONG).await;

    let result = resumed(&second, &saved[0]).await.wait(Some(LONG)).await.unwrap();
    assert_eq!(text(&result), "again");
    let error = resumed(&second, &saved[1]).await.wait(Some(LONG)).await.unwrap_err();
    let CallErrorKind::Failed(error) = error.kind() else { panic!("{error}") };
    assert!(error.message.contains("the outcome is unknown"), "{error:?}");
    assert_eq!(scripted.asked("tools/call").len(), 3, "one of the two was made again");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_the_same_call_of_a_caller_without_tasks_finds_its_work() {
    let over = Arc::new(AtomicBool::new(false));
    let ends = over.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => task("theirs", "working", json!({ "resultType": "task" })),
        "tasks/get" if ends.load(Ordering::SeqCst) => {
            let result = json!({ "content": [{ "type": "text", "text": "in the end" }] });
            task("theirs", "completed", json!({ "result": result }))
        }
        "tasks/get" => task("theirs", "working", json!({})),
        _ => Reply::Error(-32601, "no"),
    });
    let site = Site::new(&scripted);
    let first = site.start(Duration::from_millis(300)).await;
    let client = Mute.serve(serve(first.clone())).await.unwrap();
    let told = client.peer().call_tool(CallToolRequestParams::new("tool")).await.unwrap();
    assert!(text(&told).contains("task_result"), "{}", text(&told));
    client.cancel().await.unwrap();

    drop(first);
    let second = site.start(LONG).await;
    over.store(true, Ordering::SeqCst);
    let client = Mute.serve(serve(second)).await.unwrap();
    let result = client.peer().call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    assert_eq!(text(&result), "in the end");
    assert_eq!(scripted.asked("tools/call").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn e3_of_200_tasks_in_flight_none_is_lost_and_none_is_doubled() {
    const TASKS: usize = 200;
    let over = Arc::new(AtomicBool::new(false));
    let ends = over.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        // Each call is another task, named after what was asked.
        "tools/call" => {
            let id = asked.params["arguments"]["n"].to_string();
            task(&id, "working", json!({ "resultType": "task" }))
        }
        "tasks/get" => {
            let id = asked.params["taskId"].as_str().unwrap();
            if !ends.load(Ordering::SeqCst) {
                return task(id, "working", json!({}));
            }
            let result = json!({ "content": [{ "type": "text", "text": id }] });
            task(id, "completed", json!({ "result": result }))
        }
        _ => Reply::Error(-32601, "no"),
    });
    let site = Site::new(&scripted);
    let first = site.start(LONG).await;
    let mut saved = Vec::new();
    {
        let client = TaskClient::new(streams("gateway", first.clone()), Mute);
        for n in 0..TASKS {
            let mut params = CallToolRequestParams::new("tool");
            params.arguments = json!({ "n": n }).as_object().cloned();
            let Started::Task(handle) = client.start_tool(params).await.unwrap() else { panic!("no task") };
            saved.push(handle.to_json());
        }
        scripted.until_asked("tasks/get", 10).await;
        client.close().await;
    }

    drop(first);
    over.store(true, Ordering::SeqCst);
    let second = site.start(LONG).await;

    let client = TaskClient::new(streams("gateway", second), Mute);
    for (n, saved) in saved.iter().enumerate() {
        let handle = client.resume(SavedTask::from_json(saved).unwrap()).await.unwrap();
        match handle.wait(Some(LONG)).await {
            Ok(result) => assert_eq!(text(&result), n.to_string()),
            // It was under way when the gateway stopped.
            Err(error) => assert!(error.to_string().contains("the outcome is unknown"), "{n}: {error}"),
        }
    }
    let mut called: Vec<String> =
        scripted.asked("tools/call").iter().map(|call| call.params["arguments"]["n"].to_string()).collect();
    let all = called.len();
    called.sort_unstable();
    called.dedup();
    assert_eq!(called.len(), all, "a call was made twice");
}
