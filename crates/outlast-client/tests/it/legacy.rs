//! Servers of the 2025-11-25 generation behind the same interface.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use outlast_client::{CallErrorKind, CallOptions, TaskClient, TaskHandle};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::support::{LONG, Person, Reply, Scripted, error, ok, polling, said, started};

const AT: &str = "2026-11-29T10:00:00Z";

fn tool() -> CallToolRequestParams {
    CallToolRequestParams::new("tool")
}

/// A task as that generation writes it.
fn of_old(status: &str) -> Value {
    json!({ "taskId": "t1", "status": status, "ttl": 60_000, "pollInterval": 100, "createdAt": AT, "lastUpdatedAt": AT })
}

fn made() -> Reply {
    ok(json!({ "task": of_old("working") }))
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn listed(support: &str) -> Reply {
    ok(json!({ "tools": [{
        "name": "tool", "inputSchema": { "type": "object" }, "execution": { "taskSupport": support }
    }] }))
}

/// A server of that generation whose tool can be a task.
fn server(play: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Scripted {
    Scripted::new(move |asked| match asked.method.as_str() {
        "tools/list" => listed("optional"),
        "tools/call" => made(),
        method => play(method, asked.nth),
    })
    .legacy()
}

#[tokio::test]
async fn a_plain_call_is_a_plain_call() {
    for (support, capabilities) in [
        ("forbidden", json!({ "tools": {}, "tasks": { "requests": { "tools": { "call": {} } } } })),
        // What a tool says counts only where the server offers it.
        ("optional", json!({ "tools": {} })),
    ] {
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/list" => listed(support),
            "tools/call" => ok(text("at once")),
            _ => error(-32601, "no"),
        })
        .legacy()
        .introduced(capabilities);
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).options(polling()).build();

        assert_eq!(said(&client.call_tool(tool()).await.unwrap()), "at once");
        assert!(scripted.asked("tools/call")[0].params.get("task").is_none(), "{support}");
    }
}

#[tokio::test]
async fn a_server_that_was_asked_for_a_task_may_answer_at_once() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/list" => listed("optional"),
        "tools/call" => ok(text("at once")),
        _ => error(-32601, "no"),
    })
    .legacy();
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let options = CallOptions::default().with_ttl_ms(90_000);

    assert_eq!(said(&client.call_tool_with(tool(), options).await.unwrap()), "at once");
    assert_eq!(scripted.asked("tools/call")[0].params["task"], json!({ "ttl": 90_000 }));
}

#[tokio::test]
async fn a_task_that_is_cancelled_ends_so() {
    let cancelled = Arc::new(Mutex::new(false));
    let scripted = server({
        let cancelled = cancelled.clone();
        move |method, _| match method {
            "tasks/get" if *cancelled.lock().unwrap() => ok(of_old("cancelled")),
            "tasks/get" => ok(of_old("working")),
            "tasks/cancel" => {
                *cancelled.lock().unwrap() = true;
                ok(of_old("cancelled"))
            }
            _ => error(-32601, "no"),
        }
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let handle = started(&client).await;

    handle.cancel().await.unwrap();

    let error = handle.wait(LONG).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Cancelled(_)), "{error}");
    assert!(scripted.asked("tasks/result").is_empty());
}

#[tokio::test]
async fn a_cancel_that_comes_too_late_is_none() {
    let scripted = server(|method, _| match method {
        "tasks/get" => ok(of_old("completed")),
        "tasks/result" => ok(text("too late")),
        // What that generation has to say to a cancel of a final task.
        "tasks/cancel" => error(-32602, "Cannot cancel task: already in terminal status 'completed'"),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let handle = started(&client).await;

    handle.cancel().await.unwrap();

    assert_eq!(said(&handle.wait(LONG).await.unwrap()), "too late");
}

#[tokio::test]
async fn a_question_of_a_task_comes_with_its_result_and_goes_to_the_handler() {
    // The question rides on the stream that answers `tasks/result`; the answer to it comes as a message of its own.
    let stream = Arc::new(Mutex::new(None::<mpsc::UnboundedSender<Value>>));
    let (answered, was_answered) = oneshot::channel::<Value>();
    let answered = Mutex::new(Some(answered));
    let scripted = Scripted::new({
        let stream = stream.clone();
        move |asked| match asked.method.as_str() {
            "tools/list" => listed("optional"),
            "tools/call" => made(),
            "tasks/get" => ok(of_old("input_required")),
            "tasks/result" => {
                let (events, receiver) = mpsc::unbounded_channel();
                let question = json!({
                    "message": "who", "requestedSchema": { "type": "object", "properties": { "name": { "type": "string" } } }
                });
                events
                    .send(json!({ "jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": question }))
                    .unwrap();
                *stream.lock().unwrap() = Some(events);
                Reply::Stream(receiver)
            }
            // The answer to the question has no method.
            "" => {
                if let Some(answered) = answered.lock().unwrap().take() {
                    let _ = answered.send(asked.params);
                }
                Reply::Http(202, vec![], String::new())
            }
            _ => error(-32601, "no"),
        }
    })
    .legacy();
    let running = scripted.http().await;
    let person = Person::prompt();
    let client = TaskClient::builder(running.server()).options(polling()).handler(person.clone()).build();
    let handle = started(&client).await;
    let waiting = tokio::spawn(async move { handle.wait(LONG).await });

    was_answered.await.unwrap();
    assert_eq!(person.asked(), ["who"]);
    let request = scripted.asked("tasks/result")[0].id.clone();
    let events = stream.lock().unwrap().clone().unwrap();
    events.send(json!({ "jsonrpc": "2.0", "id": request, "result": text("with a name") })).unwrap();

    assert_eq!(said(&waiting.await.unwrap().unwrap()), "with a name");
    assert_eq!(scripted.asked("tasks/result").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_had_is_not_asked_for_in_a_busy_loop() {
    let scripted = server(|method, nth| match method {
        "tasks/get" if nth < 100 => ok(of_old("input_required")),
        "tasks/get" => ok(of_old("completed")),
        "tasks/result" if nth < 3 => error(-32603, "Upstream credential expired"),
        "tasks/result" => ok(text("done")),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();

    let result = client.call_tool(tool()).await.unwrap();

    assert_eq!(said(&result), "done", "and no end of the task");
    let pauses = scripted.pauses("tasks/result");
    assert!(pauses.iter().all(|pause| *pause >= Duration::from_millis(250)), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_result_that_fails_for_too_long_ends_the_wait_although_polls_succeed() {
    let scripted = server(|method, _| match method {
        "tasks/get" => ok(of_old("input_required")),
        "tasks/result" => error(-32603, "Upstream credential expired"),
        _ => error(-32601, "no"),
    });
    let mut options = polling();
    options.give_up_after = Duration::from_secs(30);
    let client = TaskClient::builder(scripted.streams()).options(options).build();
    let handle = started(&client).await;

    let error = handle.wait(LONG).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::Refused(error) if error.code.0 == -32603), "{error}");
    assert!(error.handle().is_some());
}

#[tokio::test]
async fn a_task_that_failed_ends_with_its_own_error_whatever_its_code() {
    for code in [-32602, -32603, -32050] {
        let scripted = server(move |method, _| match method {
            "tasks/get" => ok(of_old("failed")),
            "tasks/result" => error(code, "the arguments make no sense"),
            _ => error(-32601, "no"),
        });
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).options(polling()).build();

        let error = client.call_tool(tool()).await.unwrap_err();

        assert!(
            matches!(error.kind(), CallErrorKind::Failed(error) if error.code.0 == i32::try_from(code).unwrap()),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_task_that_is_gone_is_known_by_words_alone() {
    for gone in [
        json!({ "message": "Task not found" }),
        json!({ "code": -32603, "message": "Failed to retrieve task: Task not found" }),
        json!({ "code": 0, "message": "No such task: t1" }),
        json!({ "code": -32602, "message": "Invalid params" }),
    ] {
        let said = gone.clone();
        let scripted = server(move |method, _| match method {
            "tasks/get" => Reply::Error(said.clone()),
            _ => error(-32601, "no"),
        });
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).options(polling()).build();

        let error = client.call_tool(tool()).await.unwrap_err();

        assert_eq!(*error.kind(), CallErrorKind::Gone, "{gone}");
    }
}

#[tokio::test]
async fn a_session_that_ended_ends_its_tasks_and_not_the_calls_to_come() {
    let scripted = server(|method, _| match method {
        "tasks/get" => ok(of_old("working")),
        _ => error(-32601, "no"),
    });
    scripted.set_session("first");
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let handle = started(&client).await;
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    scripted.until_asked("tasks/get", 1).await;

    scripted.set_session("second");

    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), CallErrorKind::SessionEnded);
    assert!(!error.is_retryable());
    let polls = scripted.asked("tasks/get").len();
    let next = started(&client).await;
    assert_eq!(scripted.asked("tools/call")[1].headers["mcp-session-id"], "second");
    assert_eq!(*handle.get().await.unwrap_err().kind(), CallErrorKind::SessionEnded);
    assert_eq!(*handle.cancel().await.unwrap_err().kind(), CallErrorKind::SessionEnded);
    assert_eq!(scripted.asked("tasks/get").len(), polls, "the old handle asks nothing of the next session");
    assert_eq!(next.id(), handle.id(), "though the id is the same");
    assert!(next.get().await.unwrap().is_working());
}

#[tokio::test]
async fn a_call_is_refused_with_its_session_and_not_made_in_the_next() {
    let scripted = server(|_, _| error(-32601, "no"));
    scripted.set_session("first");
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    started(&client).await;

    scripted.set_session("second");
    let error = client.call_tool(tool()).await.unwrap_err();

    assert_eq!(*error.kind(), CallErrorKind::SessionEnded);
    assert!(error.is_retryable(), "the server did not look at it");
    assert_eq!(scripted.asked("tools/call").len(), 1);
    started(&client).await;
    assert_eq!(scripted.asked("tools/call").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_lost_in_a_session_is_not_repeated_in_the_next() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/list" => ok(json!({ "tools": [{
            "name": "tool", "inputSchema": { "type": "object" }, "annotations": { "idempotentHint": true }
        }] })),
        "tools/call" => Reply::Drop,
        _ => error(-32601, "no"),
    })
    .legacy();
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();

    let error = client.call_tool(tool()).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::OutcomeUnknown(_)), "{error}");
    assert_eq!(scripted.asked("tools/call").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_started_again_does_not_know_the_tasks_of_the_last_one() {
    let scripted = server(|method, nth| match (method, nth) {
        ("tasks/get", 0) => Reply::Drop,
        ("tasks/get", _) => ok(of_old("working")),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();
    let handle = started(&client).await;

    let error = handle.wait(LONG).await.unwrap_err();

    assert_eq!(*error.kind(), CallErrorKind::SessionEnded);
    assert_eq!(scripted.connections(), 2);
    assert_eq!(scripted.asked("tasks/get").len(), 1);
    // The same id in the next process is another task.
    let next = started(&client).await;
    assert!(next.get().await.unwrap().is_working());
}

#[tokio::test(start_paused = true)]
async fn the_same_id_created_again_within_a_session_is_a_new_lifetime() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/list", _) => listed("optional"),
        ("tools/call", nth) => {
            let mut task = of_old("working");
            task["createdAt"] = format!("2026-11-29T1{nth}:00:00Z").into();
            ok(json!({ "task": task }))
        }
        ("tasks/get", _) => {
            let mut task = of_old("working");
            task["createdAt"] = "2026-11-29T11:00:00Z".into();
            ok(task)
        }
        _ => error(-32601, "no"),
    })
    .legacy();
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();
    let old = started(&client).await;

    let new = started(&client).await;

    assert_eq!(*old.get().await.unwrap_err().kind(), CallErrorKind::AnotherTask);
    assert!(new.get().await.unwrap().is_working());
}

#[tokio::test]
async fn the_tasks_that_a_server_lists_are_taken_up() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.params["cursor"].as_str()) {
        ("tasks/list", None) => ok(json!({ "tasks": [of_old("working")], "nextCursor": "more" })),
        ("tasks/list", Some("more")) => {
            let mut other = of_old("completed");
            other["taskId"] = "t2".into();
            ok(json!({ "tasks": [other] }))
        }
        ("tasks/get", _) => {
            let mut task = of_old("completed");
            task["taskId"] = asked.params["taskId"].clone();
            ok(task)
        }
        ("tasks/result", _) => ok(text(asked.params["taskId"].as_str().unwrap())),
        _ => error(-32601, "no"),
    })
    .legacy()
    .introduced(json!({ "tools": {}, "tasks": { "list": {}, "requests": { "tools": { "call": {} } } } }));
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    let tasks = client.list_tasks().await.unwrap();

    assert_eq!(tasks.iter().map(TaskHandle::id).collect::<Vec<_>>(), ["t1", "t2"]);
    for task in &tasks {
        assert_eq!(said(&task.wait(LONG).await.unwrap()), task.id());
    }
}

#[tokio::test]
async fn asking_for_a_list_where_there_is_none_is_an_error_without_a_request() {
    for scripted in [Scripted::new(|_| ok(json!({ "tasks": [] }))), server(|_, _| ok(json!({ "tasks": [] })))]
    {
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).options(polling()).build();

        let error = client.list_tasks().await.unwrap_err();

        assert!(matches!(error.kind(), CallErrorKind::Unsupported(_)), "{error}");
        assert_eq!(scripted.asked("tasks/list").len(), 0);
    }
}
