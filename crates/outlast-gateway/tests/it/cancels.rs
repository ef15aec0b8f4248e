//! Cancels that come at the worst moment: a task that an upstream has made must not run on with nobody who knows of it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use outlast::{MemoryStore, Store, SystemClock, TaskServer};
use outlast_client::{CallErrorKind, SavedTask, Started, TaskClient, TaskHandle};
use outlast_core::{By, Event};
use outlast_gateway::{Gateway, GatewayOptions, When};
use rmcp::{ClientHandler, model::CallToolRequestParams};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    scripted::{Reply, Scripted, task},
    support::streams,
};

const LONG: Duration = Duration::from_secs(60);
/// Enough that a wrong turn which is taken half the time is taken.
const TASKS: usize = 8;

struct Mute;

impl ClientHandler for Mute {}

/// Makes a task of each call, once it may, which ends when it is cancelled and no sooner.
fn makes_tasks(may_answer: watch::Receiver<bool>) -> Scripted {
    let cancelled = Arc::new(Mutex::new(Vec::<String>::new()));
    Scripted::new(move |asked| {
        let id = asked.params["taskId"].as_str().unwrap_or_default().to_owned();
        match asked.method.as_str() {
            "tools/call" => {
                let (id, mut may_answer) = (format!("theirs-{}", asked.nth), may_answer.clone());
                Reply::Later(Box::pin(async move {
                    may_answer.wait_for(|may| *may).await.unwrap();
                    task(&id, "working", json!({ "resultType": "task" }))
                }))
            }
            "tasks/cancel" => {
                cancelled.lock().unwrap().push(id);
                Reply::Result(json!({ "resultType": "complete" }))
            }
            "tasks/get" if cancelled.lock().unwrap().contains(&id) => task(&id, "cancelled", json!({})),
            "tasks/get" => task(&id, "working", json!({})),
            _ => Reply::Error(-32601, "no"),
        }
    })
}

async fn gateway(store: &Arc<dyn Store>, scripted: &Scripted) -> TaskServer<Gateway> {
    let mut options = GatewayOptions::default();
    options.start = When::Now;
    let mut config = outlast::Config::default();
    config.drain = Duration::ZERO;
    Gateway::serve(vec![scripted.upstream()], options, store.clone(), config).await.unwrap()
}

async fn start(client: &TaskClient, tool: &'static str) -> TaskHandle {
    match client.start_tool(CallToolRequestParams::new(tool)).await.unwrap() {
        Started::Task(handle) => handle,
        other => panic!("no task: {other:?}"),
    }
}

async fn ends_cancelled(handle: &TaskHandle) {
    let error = handle.wait(Some(LONG)).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Cancelled(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_was_asked_for_before_a_restart_reaches_the_upstreams_task_after_it() {
    let (_open, may_answer) = watch::channel(true);
    let scripted = makes_tasks(may_answer);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(SystemClock));
    let first = gateway(&store, &scripted).await;
    let client = TaskClient::new(streams("gateway", first.clone()), Mute);
    let mut saved = Vec::new();
    for _ in 0..TASKS {
        saved.push(start(&client, "tool").await.to_json());
    }
    // A gateway that follows a task has it in its journal.
    let followed = || {
        let ids = scripted.asked("tasks/get").into_iter();
        ids.map(|asked| asked.params["taskId"].to_string()).collect::<BTreeSet<_>>().len()
    };
    while followed() < TASKS {
        scripted.until_asked("tasks/get", scripted.asked("tasks/get").len() + 1).await;
    }
    client.close().await;
    first.shutdown().await;
    for saved in &saved {
        let id = SavedTask::from_json(saved).unwrap().task_id.parse().unwrap();
        store.apply(id, By::Operator, vec![Event::Cancel]).await.unwrap();
    }
    assert!(scripted.asked("tasks/cancel").is_empty());

    let second = gateway(&store, &scripted).await;

    let client = TaskClient::new(streams("gateway", second), Mute);
    for saved in &saved {
        ends_cancelled(&client.resume(SavedTask::from_json(saved).unwrap()).await.unwrap()).await;
    }
    assert_eq!(scripted.asked("tasks/cancel").len(), TASKS, "each task of the upstream is ended");
    assert_eq!(scripted.asked("tools/call").len(), TASKS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_while_the_upstream_makes_a_task_of_the_call_reaches_that_task() {
    let (open, may_answer) = watch::channel(false);
    let scripted = makes_tasks(may_answer);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(SystemClock));
    let server = gateway(&store, &scripted).await;
    let client = TaskClient::new(streams("gateway", server), Mute);
    let handle = start(&client, "tool").await;
    scripted.until_asked("tools/call", 1).await;

    handle.cancel().await.unwrap();
    open.send(true).unwrap();

    ends_cancelled(&handle).await;
    assert_eq!(scripted.asked("tasks/cancel").len(), 1, "the task of the upstream is ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_cancelled_before_a_restart_is_not_made_again_and_is_cancelled() {
    let (_closed, may_answer) = watch::channel(false);
    let scripted = makes_tasks(may_answer);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(SystemClock));
    let first = gateway(&store, &scripted).await;
    let client = TaskClient::new(streams("gateway", first.clone()), Mute);
    let mut saved = Vec::new();
    for tool in ["tool", "harmless"].into_iter().cycle().take(TASKS) {
        saved.push(start(&client, tool).await.to_json());
    }
    scripted.until_asked("tools/call", TASKS).await;
    client.close().await;
    first.shutdown().await;
    for saved in &saved {
        let id = SavedTask::from_json(saved).unwrap().task_id.parse().unwrap();
        store.apply(id, By::Operator, vec![Event::Cancel]).await.unwrap();
    }

    let second = gateway(&store, &scripted).await;

    let client = TaskClient::new(streams("gateway", second), Mute);
    for saved in &saved {
        ends_cancelled(&client.resume(SavedTask::from_json(saved).unwrap()).await.unwrap()).await;
    }
    assert_eq!(scripted.asked("tools/call").len(), TASKS, "none is made again");
}
