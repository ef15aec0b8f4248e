//! How a task can end for the one who waits: each end has its own error, which keeps the handle and says whether waiting again
//! makes sense.

use std::time::Duration;

use outlast_client::{CallError, CallErrorKind, HandleStore, TaskClient};
use serde_json::{Value, json};

use crate::support::{
    Asked, LONG, Person, Reply, Scripted, created, error, now, ok, polling, said, started, task,
};

/// Waits for a task whose polls are answered so, over HTTP; gives the error, and whether the handle is still kept.
async fn wait(polls: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> (CallError, bool) {
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => polls(&asked),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let folder = tempfile::tempdir().unwrap();
    let store = outlast_client::DirStore::open(folder.path()).unwrap();
    let client = TaskClient::builder(running.server())
        .options(polling())
        .handler(Person::silent())
        .store(store.clone())
        .build();
    let end = started(&client).await.wait(Some(Duration::from_secs(2))).await.unwrap_err();
    let is_kept = !store.list(running.server().name()).await.unwrap().is_empty();
    (end, is_kept)
}

fn state(status: &str, extra: Value) -> Reply {
    ok(task("t1", status, extra))
}

#[tokio::test]
async fn each_end_is_an_error_of_its_own_that_keeps_the_handle() {
    type Polls = fn(&Asked) -> Reply;
    type Is = fn(&CallErrorKind) -> bool;
    // What the server says, what it means; whether waiting again makes sense, and whether the handle is still kept.
    let ends: [(&str, Polls, Is, bool, bool); 10] = [
        (
            "failed",
            |_| state("failed", json!({ "error": { "code": -32050, "message": "broke", "data": 7 } })),
            |end| matches!(end, CallErrorKind::Failed(error) if error.code.0 == -32050 && error.data == Some(json!(7))),
            false,
            false,
        ),
        (
            "cancelled",
            |_| state("cancelled", json!({ "statusMessage": "by the owner" })),
            |end| *end == CallErrorKind::Cancelled(Some("by the owner".into())),
            false,
            false,
        ),
        ("deadline", |_| state("working", json!({})), |end| *end == CallErrorKind::Deadline, true, true),
        (
            "deadline of a question",
            |_| {
                state(
                    "input_required",
                    json!({ "inputRequests": { "who": crate::support::question("who") } }),
                )
            },
            |end| *end == CallErrorKind::Deadline,
            true,
            true,
        ),
        (
            "expired",
            |_| state("working", json!({ "ttlMs": 1 })),
            |end| *end == CallErrorKind::Expired,
            false,
            true,
        ),
        ("gone", |_| error(-32602, "Task not found"), |end| *end == CallErrorKind::Gone, false, false),
        (
            "another task",
            |_| {
                state(
                    "completed",
                    json!({ "createdAt": "2026-11-29T12:00:00Z", "result": { "content": [] } }),
                )
            },
            |end| *end == CallErrorKind::AnotherTask,
            false,
            false,
        ),
        (
            "no declaration",
            |_| error(-32021, "Missing required client capability"),
            |end| matches!(end, CallErrorKind::Unsupported(_)),
            false,
            true,
        ),
        (
            "an invalid response",
            |_| state("completed", json!({})),
            |end| matches!(end, CallErrorKind::InvalidResponse(why) if why.contains("result")),
            false,
            true,
        ),
        (
            "authorization",
            |_| Reply::Http(401, vec![("www-authenticate", "Bearer scope=\"tasks\"".into())], String::new()),
            |end| matches!(end, CallErrorKind::Unauthorized(challenge) if challenge.contains("tasks")),
            true,
            true,
        ),
    ];
    for (name, polls, is_right, retry, kept) in ends {
        let (end, is_kept) = wait(polls).await;
        assert!(is_right(end.kind()), "{name}: {end:?}");
        assert_eq!(end.handle().map(outlast_client::TaskHandle::id), Some("t1"), "{name}");
        assert_eq!(end.is_retryable(), retry, "{name}");
        assert_eq!(is_kept, kept, "{name}");
        assert_eq!(end.to_string().contains("can be waited for again"), retry, "{name}: {end}");
    }
}

#[tokio::test]
async fn an_error_of_the_tool_is_its_result() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => state(
            "completed",
            json!({ "result": { "content": [{ "type": "text", "text": "no" }], "isError": true } }),
        ),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();
    let handle = started(&client).await;
    let result = handle.wait(LONG).await.unwrap();
    assert_eq!((result.is_error, said(&result).as_str()), (Some(true), "no"));
    assert!(handle.is_completed() && handle.is_final() && !handle.needs_input());
    // What is known to have ended is not asked about again.
    let polls = scripted.asked("tasks/get").len();
    assert!(handle.get().await.unwrap().is_completed());
    handle.wait(LONG).await.unwrap();
    handle.cancel().await.unwrap();
    assert_eq!(scripted.asked("tasks/get").len(), polls);
    assert!(scripted.asked("tasks/cancel").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_every_request_for_too_long_ends_the_wait_and_not_the_task() {
    for (name, polls) in [
        ("fails", (|| error(-32603, "Upstream credential expired")) as fn() -> Reply),
        ("hangs", || Reply::Hang),
        ("hangs up", || Reply::Drop),
    ] {
        let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
            ("tools/call", _) => created("t1"),
            ("tasks/get", 0..60) => polls(),
            ("tasks/get", _) => crate::support::completed("t1", "done"),
            _ => error(-32601, "no"),
        });
        let mut options = polling();
        options.give_up_after = Duration::from_secs(300);
        let client = TaskClient::builder(scripted.streams()).options(options).build();
        let handle = started(&client).await;
        let begun = now();

        let end = handle.wait(None).await.unwrap_err();

        assert!((300..400).contains(&begun.elapsed().as_secs()), "{name}: {:?}", begun.elapsed());
        assert!(
            matches!(end.kind(), CallErrorKind::Refused(_) | CallErrorKind::Connection(_)),
            "{name}: {end}"
        );
        assert!(end.is_retryable(), "{name}");
        // The caller is more patient.
        let mut handle = end.into_handle().unwrap();
        let result = loop {
            match handle.wait(None).await {
                Ok(result) => break result,
                Err(end) => handle = end.into_handle().unwrap(),
            }
        };
        assert_eq!(said(&result), "done", "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_backstop_follows_the_time_to_live() {
    // 10 s at first, which the server makes longer, then takes away, then sets again: how long a wait lasts, by the last word.
    for (ttls, lasts) in [
        (vec![json!(10_000)], 10..12),
        (vec![json!(10_000), json!(60_000)], 60..62),
        (vec![json!(60_000), json!(10_000)], 10..12),
        (vec![json!(10_000), Value::Null], 200..201),
        (vec![Value::Null, json!(30_000)], 30..32),
        (vec![json!(10_000), json!(u64::MAX)], 200..201),
    ] {
        let shown = ttls.clone();
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/call" => created("t1"),
            "tasks/get" => {
                let ttl = shown.get(asked.nth / 5).or(shown.last()).unwrap();
                state("working", json!({ "ttlMs": ttl, "pollIntervalMs": 1000 }))
            }
            _ => error(-32601, "no"),
        });
        let client = TaskClient::builder(scripted.streams()).options(polling()).build();
        // The time to live counts from when the task was first seen.
        let begun = now();
        let handle = started(&client).await;

        let end = handle.wait(Some(Duration::from_secs(200))).await.unwrap_err();

        let expected = if lasts.start == 200 { CallErrorKind::Deadline } else { CallErrorKind::Expired };
        assert_eq!(end.kind(), &expected, "{ttls:?}");
        assert!(lasts.contains(&begun.elapsed().as_secs()), "{ttls:?}: {:?}", begun.elapsed());
    }
}
