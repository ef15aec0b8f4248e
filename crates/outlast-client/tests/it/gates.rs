//! What is refused: answers that break the protocol, and requests that could not work.

use outlast_client::{CallErrorKind, SavedTask, TaskClient};
use rmcp::model::{CallToolRequestParams, ReadResourceRequestParams};
use serde_json::{Value, json};

use crate::support::{
    LONG, Reply, Scripted, ack, completed, created, error, ok, polling, said, started, task, text,
};

fn tool() -> CallToolRequestParams {
    CallToolRequestParams::new("tool")
}

fn saved(server: &str, generation: &str) -> SavedTask {
    let saved = json!({
        "version": 1, "server": server, "taskId": "t1", "tool": "tool", "generation": generation,
        "createdAt": "2026-11-29T10:00:00Z", "firstSeen": "2026-11-29T10:00:00Z",
        "answers": { "who": { "action": "decline" } },
    });
    SavedTask::from_json(&saved.to_string()).unwrap()
}

/// What the first wait for a task says whose polls are answered so.
async fn waited(
    play: impl Fn(usize) -> Reply + Send + Sync + 'static,
) -> (Scripted, Result<String, CallErrorKind>) {
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => play(asked.nth),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let handle = started(&client).await;
    let outcome = handle.wait(LONG).await;
    let outcome = outcome.map(|result| said(&result)).map_err(|error| {
        assert!(error.handle().is_some(), "each end keeps the handle: {error}");
        error.kind().clone()
    });
    (scripted, outcome)
}

#[tokio::test]
async fn c26_a_task_is_followed_and_never_an_empty_success() {
    let (_, outcome) = waited(|_| completed("t1", "the result")).await;
    assert_eq!(outcome.unwrap(), "the result");
}

#[tokio::test]
async fn c26_a_task_of_an_earlier_server_or_one_that_nobody_asked_for_is_an_invalid_response() {
    let of_old = json!({ "task": { "taskId": "t1", "status": "working", "createdAt": "2026-11-29T10:00:00Z",
        "lastUpdatedAt": "2026-11-29T10:00:00Z", "ttl": null } });
    for (legacy, answer) in [
        (true, task("t1", "working", json!({ "resultType": "task" }))),
        // The tool did not say that it can be a task, and it was not asked to.
        (true, of_old.clone()),
        (false, of_old),
    ] {
        let given = answer.clone();
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/call" => ok(given.clone()),
            _ => error(-32601, "no"),
        });
        let scripted = if legacy { scripted.legacy() } else { scripted };
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).options(polling()).build();

        let error = client.call_tool(tool()).await.unwrap_err();

        assert!(matches!(error.kind(), CallErrorKind::InvalidResponse(_)), "{answer}: {error}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn c28_a_task_in_answer_to_anything_but_a_call_is_an_invalid_response() {
    let (_, outcome) = waited(|_| created("t1")).await;
    assert!(matches!(outcome, Err(CallErrorKind::InvalidResponse(_))), "{outcome:?}");

    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" | "resources/read" => created("t1"),
        "tasks/cancel" | "tasks/update" => created("t2"),
        "tasks/get" => ok(task("t1", "working", json!({}))),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let handle = started(&client).await;
    for end in [handle.cancel().await, handle.answer("who", json!({ "action": "decline" })).await] {
        let error = end.unwrap_err();
        assert!(matches!(error.kind(), CallErrorKind::InvalidResponse(_)), "{error}");
    }
    let peer = client.peer().await.unwrap();
    let read = peer.read_resource(ReadResourceRequestParams::new("file:///a")).await;
    assert!(read.is_err(), "{read:?}");
}

#[tokio::test]
async fn a_task_of_a_server_that_offers_none_is_not_asked_about() {
    let scripted = Scripted::new(|_| completed("t1", "no")).introduced(json!({ "tools": {} }));
    let running = scripted.http().await;
    let mut options = polling();
    options.push = true;
    let client = TaskClient::builder(running.server()).options(options).build();
    let handle = client.resume(saved(running.server().name(), "2026-07-28")).await.unwrap();

    for end in [
        handle.get().await.map(drop),
        handle.wait(LONG).await.map(drop),
        handle.answer("who", json!({ "action": "decline" })).await,
        handle.cancel().await,
    ] {
        let error = end.unwrap_err();
        assert!(matches!(error.kind(), CallErrorKind::Unsupported(_)), "{error}");
        assert!(!error.is_retryable());
    }
    assert_eq!(scripted.methods(), ["server/discover"]);
}

#[tokio::test]
async fn a_task_of_the_other_generation_is_not_asked_about() {
    for legacy in [true, false] {
        let scripted = Scripted::new(|_| completed("t1", "no"));
        let scripted = if legacy { scripted.legacy() } else { scripted };
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).options(polling()).build();
        let of = if legacy { "2026-07-28" } else { "2025-11-25" };
        let handle = client.resume(saved(running.server().name(), of)).await.unwrap();

        let error = handle.get().await.unwrap_err();

        assert!(matches!(error.kind(), CallErrorKind::Unsupported(_)), "{error}");
        assert!(scripted.asked("tasks/get").is_empty());
    }
}

#[tokio::test]
async fn both_codes_of_a_missing_capability_say_that_tasks_cannot_be_used() {
    for code in [-32021, -32003] {
        let (_, outcome) = waited(move |_| error(code, "Missing required client capability")).await;
        assert!(matches!(outcome, Err(CallErrorKind::Unsupported(_))), "{code}: {outcome:?}");

        let scripted = Scripted::new(move |_| error(code, "no"));
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).options(polling()).build();
        let error = client.call_tool(tool()).await.unwrap_err();
        assert!(matches!(error.kind(), CallErrorKind::Unsupported(_)), "{code}: {error}");
    }
}

#[tokio::test]
async fn c39_a_time_to_live_that_no_clock_has_is_no_backstop() {
    for ttl in [json!(null), json!(i64::MAX), json!(u64::MAX), json!(1e30), json!(253_402_300_799_999_u64)] {
        let (_, outcome) = waited(move |nth| match nth {
            0 => ok(task("t1", "working", json!({ "ttlMs": ttl }))),
            _ => completed("t1", "done"),
        })
        .await;
        assert_eq!(outcome.as_deref(), Ok("done"));
    }
}

#[tokio::test]
async fn c39_a_state_that_is_none_is_an_invalid_response() {
    for (extra, names) in [
        (json!({ "ttlMs": "60000" }), "ttlMs"),
        (json!({ "createdAt": "yesterday" }), "createdAt"),
        (json!({ "createdAt": null }), "createdAt"),
        (json!({ "status": "paused" }), "status"),
        (json!({ "taskId": 7 }), "taskId"),
        (json!({ "taskId": "t2" }), "task"),
        (json!({ "pollIntervalMs": -5 }), "pollIntervalMs"),
        (json!({ "pollIntervalMs": "5" }), "pollIntervalMs"),
    ] {
        let laid = extra.clone();
        let (scripted, outcome) = waited(move |_| ok(task("t1", "working", laid.clone()))).await;
        let Err(CallErrorKind::InvalidResponse(why)) = outcome else { panic!("{extra}: {outcome:?}") };
        assert!(why.contains(names), "{extra}: {why}");
        assert_eq!(scripted.asked("tasks/get").len(), 1, "{extra}");
    }
}

#[tokio::test]
async fn c39_a_creation_that_is_none_is_an_invalid_response() {
    for extra in [
        json!({ "ttlMs": "60000" }),
        json!({ "createdAt": "yesterday" }),
        json!({ "status": "paused" }),
        json!({ "taskId": 7 }),
        json!({ "taskId": null }),
    ] {
        let mut answer = task("t1", "working", json!({ "resultType": "task" }));
        answer.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let scripted = Scripted::new(move |_| ok(answer.clone()));
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).options(polling()).build();

        let error = client.call_tool(tool()).await.unwrap_err();

        assert!(matches!(error.kind(), CallErrorKind::InvalidResponse(_)), "{extra}: {error}");
        assert!(scripted.asked("tasks/get").is_empty());
    }
}

#[tokio::test]
async fn c40_a_poll_that_fails_is_repeated_and_says_nothing_of_the_task() {
    for message in ["Upstream credential expired", "Task not found in cache, try again"] {
        let (scripted, outcome) = waited(move |nth| match nth {
            0 => error(-32603, message),
            _ => completed("t1", "done"),
        })
        .await;
        assert_eq!(outcome.as_deref(), Ok("done"), "{message}");
        assert_eq!(scripted.asked("tasks/get").len(), 2);
    }
}

#[tokio::test]
async fn a_task_that_is_gone_is_known_by_its_code_or_by_words_that_say_so() {
    for (code, message) in
        [(-32602, "Invalid params"), (-32602, "Task not found"), (-32000, "Unknown task: t1")]
    {
        let (_, outcome) = waited(move |_| error(code, message)).await;
        assert_eq!(outcome, Err(CallErrorKind::Gone), "{code} {message}");
    }
}

#[tokio::test]
async fn a_cancel_that_is_refused_is_confirmed_by_a_look_before_the_task_counts_as_gone() {
    type Look = fn() -> Reply;
    let cases: [(Look, Option<CallErrorKind>); 3] = [
        (|| completed("t1", "done"), None),
        (|| error(-32602, "Invalid params"), Some(CallErrorKind::Gone)),
        (
            || ok(task("t1", "working", json!({}))),
            Some(CallErrorKind::Refused(rmcp::model::ErrorData::invalid_params("Invalid params", None))),
        ),
    ];
    for (look, end) in cases {
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/call" => created("t1"),
            "tasks/cancel" => error(-32602, "Invalid params"),
            "tasks/get" => look(),
            _ => error(-32601, "no"),
        });
        let running = scripted.http().await;
        let client = TaskClient::builder(running.server()).options(polling()).build();
        let handle = started(&client).await;

        let outcome = handle.cancel().await;

        assert_eq!(outcome.err().map(|error| error.kind().clone()), end);
        assert_eq!(scripted.asked("tasks/get").len(), 1);
    }
}

#[tokio::test]
async fn a_server_without_the_methods_says_that_tasks_cannot_be_used() {
    let (_, outcome) = waited(|_| error(-32601, "Method not found")).await;
    assert!(matches!(outcome, Err(CallErrorKind::Unsupported(_))), "{outcome:?}");
}

#[tokio::test]
async fn the_ends_of_a_task_are_told_apart() {
    type Check = fn(&CallErrorKind) -> bool;
    let cases: [(Value, Check); 2] = [
        (
            task("t1", "failed", json!({ "error": { "code": -32050, "message": "broke" } })),
            |end| matches!(end, CallErrorKind::Failed(error) if error.code.0 == -32050),
        ),
        (task("t1", "cancelled", json!({ "statusMessage": "by the owner" })), |end| {
            *end == CallErrorKind::Cancelled(Some("by the owner".into()))
        }),
    ];
    for (state, is_right) in cases {
        let (_, outcome) = waited(move |_| ok(state.clone())).await;
        assert!(outcome.as_ref().is_err_and(is_right), "{outcome:?}");
    }
    let mut failed = text("the tool says no");
    failed["isError"] = true.into();
    let (_, outcome) =
        waited(move |_| ok(task("t1", "completed", json!({ "result": failed.clone() })))).await;
    assert_eq!(outcome.as_deref(), Ok("the tool says no"), "S13: an error of the tool is a result");
}

#[tokio::test]
async fn the_settings_that_the_user_gave_the_extension_are_sent() {
    struct Set;
    impl rmcp::ClientHandler for Set {
        fn get_info(&self) -> rmcp::model::ClientConfig {
            let mut capabilities = rmcp::model::ClientCapabilities::default();
            let settings = json!({ "mine": 1 }).as_object().unwrap().clone();
            capabilities.extensions = Some([("io.modelcontextprotocol/tasks".to_owned(), settings)].into());
            rmcp::model::ClientConfig::new(capabilities, rmcp::model::Implementation::new("set", "1"))
        }
    }
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => completed("t1", "done"),
        _ => ack(),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).handler(Set).build();

    client.call_tool(tool()).await.unwrap();

    for asked in scripted.asked("tools/call").iter().chain(&scripted.asked("tasks/get")) {
        let declared = &asked.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"];
        assert_eq!(declared["io.modelcontextprotocol/tasks"], json!({ "mine": 1 }), "{}", asked.method);
    }
}
