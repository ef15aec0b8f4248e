//! What a server says on its own reaches the user's handler, too.
#![allow(deprecated, reason = "logging is deprecated, and still comes")]

use outlast_client::TaskClient;
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        CallToolRequestParams, CustomNotification, LoggingMessageNotificationParam, ProgressNotificationParam,
    },
    service::NotificationContext,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{LONG, Reply, Scripted, completed, created, error, ok, started, task, text};

/// Hears everything and writes it down.
#[derive(Clone)]
struct Ear(mpsc::UnboundedSender<String>);

impl ClientHandler for Ear {
    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let _ = self.0.send(format!("progress {}", params.progress));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let _ = self.0.send(format!("log {}", params.data));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        let _ = self.0.send("tools".into());
    }

    async fn on_task_status(
        &self,
        params: rmcp::model::TaskStatusNotificationParams,
        _: NotificationContext<RoleClient>,
    ) {
        let _ = self.0.send(format!("task {}", serde_json::to_value(params).unwrap()["status"]));
    }

    async fn on_custom_notification(&self, custom: CustomNotification, _: NotificationContext<RoleClient>) {
        let _ = self.0.send(format!("{} {}", custom.method, custom.params.unwrap_or_default()["taskId"]));
    }
}

fn notification(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

#[tokio::test]
async fn pushes_of_a_task_reach_the_users_own_listener_and_the_wait() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => {
            ok(task("t1", "working", json!({ "resultType": "task", "pollIntervalMs": 3_600_000 })))
        }
        "subscriptions/listen" => {
            let (pushes, stream) = mpsc::unbounded_channel();
            let agreed = json!({ "notifications": { "taskIds": ["t1"] } });
            for (method, params) in [
                ("notifications/subscriptions/acknowledged", agreed),
                ("notifications/tasks", task("t1", "working", json!({}))),
                // Malformed, for the wait: it is dropped there, and is the user's to judge.
                ("notifications/tasks", json!({ "taskId": "t1", "status": "paused" })),
                ("notifications/tasks", json!({ "status": "working" })),
                ("notifications/tasks", task("another", "working", json!({}))),
                ("notifications/tasks", task("t1", "completed", json!({ "result": text("pushed") }))),
            ] {
                pushes.send(notification(method, &params)).unwrap();
            }
            Reply::Stream(stream)
        }
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let (heard, mut ear) = mpsc::unbounded_channel();
    let client = TaskClient::new(running.server(), Ear(heard));
    let handle = started(&client).await;

    handle.wait(LONG).await.unwrap();

    let mut all = Vec::new();
    while !all.iter().any(|heard: &String| heard == "task \"completed\"") {
        all.push(ear.recv().await.unwrap());
    }
    for expected in ["task \"working\"", "notifications/tasks \"t1\"", "notifications/tasks null"] {
        assert!(all.iter().any(|heard| heard == expected), "{expected}: {all:?}");
    }
    assert!(scripted.asked("tasks/get").is_empty());
}

#[tokio::test]
async fn what_comes_along_with_a_call_reaches_the_users_own_listeners() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => {
            let (events, stream) = mpsc::unbounded_channel();
            for (method, params) in [
                ("notifications/progress", json!({ "progressToken": 1, "progress": 0.5 })),
                ("notifications/message", json!({ "level": "info", "data": "so far" })),
                ("notifications/tools/list_changed", json!({})),
                ("notifications/of-our-own", json!({ "taskId": "t9" })),
            ] {
                events.send(notification(method, &params)).unwrap();
            }
            events.send(json!({ "jsonrpc": "2.0", "id": asked.id, "result": text("done") })).unwrap();
            Reply::Stream(stream)
        }
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let (heard, mut ear) = mpsc::unbounded_channel();
    let client = TaskClient::new(running.server(), Ear(heard));

    client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(ear.recv().await.unwrap());
    }
    all.sort();
    assert_eq!(all, ["log \"so far\"", "notifications/of-our-own \"t9\"", "progress 0.5", "tools"]);
}

#[tokio::test]
async fn a_listener_that_panics_harms_no_wait() {
    struct Panics;
    impl ClientHandler for Panics {
        async fn on_task_status(
            &self,
            _: rmcp::model::TaskStatusNotificationParams,
            _: NotificationContext<RoleClient>,
        ) {
            panic!("the listener of the user");
        }
    }
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => completed("t1", "done"),
        "subscriptions/listen" => {
            let (pushes, stream) = mpsc::unbounded_channel();
            pushes.send(notification("notifications/tasks", &task("t1", "working", json!({})))).unwrap();
            Reply::Stream(stream)
        }
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::new(running.server(), Panics);

    client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();
}
