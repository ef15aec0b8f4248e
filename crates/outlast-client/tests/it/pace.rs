//! How often a server is asked: never faster than it said, and at all.

use std::time::Duration;

use outlast_client::{CallErrorKind, TaskClient};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{
    Asked, LONG, Person, Reply, Scripted, ack, asks, completed, created, error, now, ok, polling, said,
    started, task,
};

const SECOND: Duration = Duration::from_secs(1);

fn every(ms: u64) -> Value {
    json!({ "pollIntervalMs": ms })
}

fn made(ms: u64) -> Reply {
    ok(task("t1", "working", json!({ "resultType": "task", "pollIntervalMs": ms })))
}

fn working(ms: u64) -> Reply {
    ok(task("t1", "working", every(ms)))
}

fn at_least(pauses: &[Duration], least: Duration) {
    assert!(pauses.iter().all(|pause| *pause >= least), "{pauses:?}");
}

/// The acknowledgement of a listen, as a stream carries it.
fn agreed(listen: &Asked) -> Value {
    json!({
        "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
        "params": {
            "_meta": { "io.modelcontextprotocol/subscriptionId": listen.id },
            "notifications": { "taskIds": ["t1"] },
        },
    })
}

/// A push.
fn pushed(state: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/tasks", "params": state })
}

fn done() -> Value {
    let result = json!({ "content": [{ "type": "text", "text": "pushed" }] });
    task("t1", "completed", json!({ "result": result, "lastUpdatedAt": "2026-11-29T10:09:00Z" }))
}

#[tokio::test(start_paused = true)]
async fn the_newest_answer_sets_the_pace() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(1_000),
        ("tasks/get", 0) => working(8_000),
        ("tasks/get", 1) => working(200),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();

    client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    let pauses = scripted.pauses("tasks/get");
    assert!(pauses[0] >= 8 * SECOND && pauses[0] <= 9 * SECOND, "{pauses:?}");
    assert!(pauses[1] >= SECOND / 5 && pauses[1] <= SECOND / 4, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_failed_is_repeated_no_faster_than_the_server_asked() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(5_000),
        ("tasks/get", 0..=2) => error(-32603, "not now"),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();

    client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    at_least(&scripted.pauses("tasks/get"), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn failures_of_a_server_that_names_no_pace_back_off() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(100),
        ("tasks/get", 0..=9) => error(-32603, "not now"),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();

    client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    let pauses = scripted.pauses("tasks/get");
    assert!(pauses[0] <= SECOND, "{pauses:?}");
    assert!(pauses[9] >= 15 * SECOND && pauses[9] <= 31 * SECOND, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn short_waits_one_after_the_other_poll_as_one_long_wait_does() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(5_000),
        ("tasks/get", 0..=3) => working(5_000),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();
    let handle = started(&client).await;
    let begun = now();

    let result = loop {
        match handle.wait(Some(SECOND)).await {
            Ok(result) => break result,
            Err(error) => assert_eq!(*error.kind(), CallErrorKind::Deadline),
        }
        assert!(begun.elapsed() < 60 * SECOND, "no wait was long enough to look");
    };

    assert_eq!(said(&result), "done");
    at_least(&scripted.pauses("tasks/get"), 5 * SECOND);
    assert_eq!(scripted.asked("tasks/get").len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asked_for_peace_has_it_from_the_next_wait_too() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(100),
        ("tasks/get", 0) => Reply::Error(
            json!({ "code": -32000, "message": "slow down", "data": { "retryAfterMs": 60_000 } }),
        ),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();
    let handle = started(&client).await;

    let early = handle.wait(Some(10 * SECOND)).await.unwrap_err();
    handle.wait(LONG).await.unwrap();

    assert_eq!(*early.kind(), CallErrorKind::Deadline);
    at_least(&scripted.pauses("tasks/get"), 60 * SECOND);
}

#[tokio::test]
async fn the_retry_after_of_http_is_waited_for() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", 0) => Reply::Http(429, vec![("retry-after", "1".into())], String::new()),
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0) => Reply::Http(503, vec![("retry-after", "1".into())], "busy".into()),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    at_least(&scripted.pauses("tools/call"), SECOND);
    at_least(&scripted.pauses("tasks/get"), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_for_too_long_ends_the_wait_and_not_the_task() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => made(1_000),
        "tasks/get" => error(-32603, "the store is away"),
        _ => error(-32601, "no"),
    });
    let mut options = polling();
    options.give_up_after = 60 * SECOND;
    let client = TaskClient::builder(scripted.streams()).options(options).build();
    let begun = now();

    let error = client.call_tool(CallToolRequestParams::new("tool")).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::Refused(error) if error.code.0 == -32603), "{error}");
    assert!(error.handle().is_some_and(|handle| !handle.is_final()));
    assert!((60 * SECOND..=120 * SECOND).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert!(scripted.asked("tasks/cancel").is_empty());
}

#[tokio::test(start_paused = true)]
async fn answers_that_cannot_be_delivered_for_too_long_end_the_wait_although_polls_succeed() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => made(1_000),
        "tasks/get" => asks("t1", &["who"]),
        "tasks/update" => error(-32603, "the store is away"),
        _ => error(-32601, "no"),
    });
    let mut options = polling();
    options.give_up_after = 60 * SECOND;
    let person = Person::prompt();
    let client = TaskClient::builder(scripted.streams()).options(options).handler(person.clone()).build();
    let handle = started(&client).await;

    let error = handle.wait(LONG).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::Refused(error) if error.code.0 == -32603), "{error}");
    assert_eq!(person.asked(), ["who"]);
    assert!(handle.to_json().contains("\"answers\""), "the answer is kept: {}", handle.to_json());
}

#[tokio::test(start_paused = true)]
async fn a_cancel_makes_no_poll_come_sooner_than_the_server_asked() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(5_000),
        ("tasks/get", 0) => ok(task(
            "t1",
            "input_required",
            json!({
                "pollIntervalMs": 5_000, "inputRequests": { "who": crate::support::question("who") }
            }),
        )),
        ("tasks/get", 1) => working(5_000),
        ("tasks/get", _) => ok(task("t1", "cancelled", json!({}))),
        ("tasks/cancel", _) => ack(),
        _ => error(-32601, "no"),
    });
    let person = Person::silent();
    let client = TaskClient::builder(scripted.streams()).options(polling()).handler(person.clone()).build();
    let handle = started(&client).await;
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    person.until_asked(1).await;

    handle.cancel().await.unwrap();

    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Cancelled(_)), "{error}");
    at_least(&scripted.pauses("tasks/get"), 5 * SECOND);
}

/// A server that pushes what the test sends, once it has agreed to.
fn pushing() -> (Scripted, mpsc::UnboundedSender<Value>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (again, receiver) = (sender.clone(), std::sync::Mutex::new(Some(receiver)));
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => made(1_000),
        "tasks/get" => working(1_000),
        "subscriptions/listen" => match receiver.lock().unwrap().take() {
            Some(stream) => {
                again.send(agreed(&asked)).unwrap();
                Reply::Stream(stream)
            }
            None => error(-32601, "no more"),
        },
        _ => error(-32601, "no"),
    });
    (scripted, sender)
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_pushed_is_polled_seldom_and_ends_with_the_push() {
    let (scripted, pushes) = pushing();
    let client = TaskClient::new(scripted.streams(), ());
    let handle = started(&client).await;
    let waiting = tokio::spawn(async move { handle.wait(LONG).await });
    scripted.until_asked("subscriptions/listen", 1).await;
    let begun = now();

    tokio::time::sleep(100 * SECOND).await;
    pushes.send(pushed(&done())).unwrap();

    assert_eq!(said(&waiting.await.unwrap().unwrap()), "pushed");
    assert!(begun.elapsed() < 101 * SECOND);
    assert!(scripted.asked("tasks/get").len() <= 4, "{:?}", scripted.pauses("tasks/get"));
}

#[tokio::test]
async fn a_push_over_http_brings_the_result_long_before_the_next_poll() {
    let sender = std::sync::Arc::new(std::sync::Mutex::new(None));
    let keep = sender.clone();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => made(3_600_000),
        "subscriptions/listen" => {
            let (pushes, stream) = mpsc::unbounded_channel();
            pushes.send(agreed(&asked)).unwrap();
            *keep.lock().unwrap() = Some(pushes);
            Reply::Stream(stream)
        }
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::new(running.server(), ());
    let handle = started(&client).await;
    let waiting = tokio::spawn(async move { handle.wait(LONG).await });
    scripted.until_asked("subscriptions/listen", 1).await;

    let pushes = sender.lock().unwrap().clone().unwrap();
    pushes.send(pushed(&done())).unwrap();

    assert_eq!(said(&waiting.await.unwrap().unwrap()), "pushed");
    let listen = &scripted.asked("subscriptions/listen")[0];
    assert!(listen.declares(), "S6: {}", listen.params);
    assert_eq!(listen.params["notifications"], json!({ "taskIds": ["t1"] }));
    assert!(scripted.asked("tasks/get").is_empty());
}

#[tokio::test]
async fn polling_covers_over_http_when_the_pushes_break() {
    let sender = std::sync::Arc::new(std::sync::Mutex::new(None));
    let keep = sender.clone();
    let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(100),
        ("tasks/get", 0) => working(100),
        ("tasks/get", _) => completed("t1", "polled"),
        ("subscriptions/listen", 0) => {
            let (pushes, stream) = mpsc::unbounded_channel();
            pushes.send(agreed(&asked)).unwrap();
            pushes.send(pushed(&task("t1", "working", every(100)))).unwrap();
            *keep.lock().unwrap() = Some(pushes);
            Reply::Stream(stream)
        }
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::new(running.server(), ());
    let handle = started(&client).await;
    let mut updates = Box::pin(handle.updates());
    futures::StreamExt::next(&mut updates).await.unwrap().unwrap();
    scripted.until_asked("subscriptions/listen", 1).await;

    // The stream breaks off without its result.
    drop(sender.lock().unwrap().take());

    let result = handle.wait(Some(20 * SECOND)).await.unwrap();
    assert_eq!(said(&result), "polled", "and not 30 s later, at the pace beside pushes");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_push_is_asked_to_once_and_polled_at_its_pace() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(1_000),
        ("tasks/get", 0..=20) => working(1_000),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "Method not found"),
    });
    let client = TaskClient::new(scripted.streams(), ());

    client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    assert_eq!(scripted.asked("subscriptions/listen").len(), 1);
    assert!(scripted.pauses("tasks/get").iter().all(|pause| *pause <= SECOND * 11 / 10 + SECOND / 100));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_agrees_to_push_and_hangs_up_each_time_is_asked_ever_less_often() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => made(60_000),
        "tasks/get" => working(60_000),
        "subscriptions/listen" => {
            let (pushes, stream) = mpsc::unbounded_channel();
            pushes.send(agreed(&asked)).unwrap();
            pushes.send(pushed(&task("t1", "working", every(60_000)))).unwrap();
            pushes
                .send(json!({ "jsonrpc": "2.0", "id": asked.id, "result": { "resultType": "complete" } }))
                .unwrap();
            Reply::Stream(stream)
        }
        _ => error(-32601, "no"),
    });
    let client = TaskClient::new(scripted.streams(), ());
    let handle = started(&client).await;

    handle.wait(Some(600 * SECOND)).await.unwrap_err();

    let listens = scripted.asked("subscriptions/listen").len();
    assert!((5..=60).contains(&listens), "{listens} in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_listen_is_not_repeated_sooner_than_the_server_asked() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(10_000),
        ("tasks/get", _) if asked.nth < 20 => working(10_000),
        ("tasks/get", _) => completed("t1", "done"),
        ("subscriptions/listen", 0) => {
            Reply::Error(json!({ "code": -32000, "message": "busy", "data": { "retryAfterMs": 90_000 } }))
        }
        _ => error(-32601, "no"),
    });
    let client = TaskClient::new(scripted.streams(), ());

    client.call_tool(CallToolRequestParams::new("tool")).await.unwrap();

    assert_eq!(scripted.asked("subscriptions/listen").len(), 2);
    at_least(&scripted.pauses("subscriptions/listen"), 90 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_pushes_the_same_again_and_again_is_polled_all_the_same() {
    let (pushes, stream) = mpsc::unbounded_channel();
    let stream = std::sync::Mutex::new(Some(stream));
    let first = pushes.clone();
    let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(1_000),
        ("tasks/get", 0 | 1) => working(1_000),
        ("tasks/get", _) => completed("t1", "polled"),
        ("subscriptions/listen", 0) => {
            first.send(agreed(&asked)).unwrap();
            Reply::Stream(stream.lock().unwrap().take().unwrap())
        }
        _ => error(-32601, "no"),
    });
    let client = TaskClient::new(scripted.streams(), ());
    let handle = started(&client).await;
    let waiting = tokio::spawn(async move { handle.wait(LONG).await });

    for _ in 0..120 {
        tokio::time::sleep(SECOND).await;
        let _ = pushes.send(pushed(&task("t1", "working", every(1_000))));
    }

    assert!(waiting.is_finished(), "polls: {:?}", scripted.pauses("tasks/get"));
    assert_eq!(said(&waiting.await.unwrap().unwrap()), "polled");
}

#[tokio::test(start_paused = true)]
async fn a_push_does_not_bring_the_next_poll_of_a_server_that_asked_for_peace() {
    let (pushes, stream) = mpsc::unbounded_channel();
    let stream = std::sync::Mutex::new(Some(stream));
    let first = pushes.clone();
    let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => made(100),
        ("tasks/get", 0) => Reply::Error(
            json!({ "code": -32000, "message": "slow down", "data": { "retryAfterMs": 120_000 } }),
        ),
        ("tasks/get", _) => completed("t1", "done"),
        ("subscriptions/listen", 0) => {
            first.send(agreed(&asked)).unwrap();
            Reply::Stream(stream.lock().unwrap().take().unwrap())
        }
        _ => error(-32601, "no"),
    });
    let client = TaskClient::new(scripted.streams(), ());
    let handle = started(&client).await;
    let waiting = tokio::spawn(async move { handle.wait(LONG).await });
    scripted.until_asked("tasks/get", 1).await;

    pushes.send(pushed(&task("t1", "working", every(100)))).unwrap();

    waiting.await.unwrap().unwrap();
    at_least(&scripted.pauses("tasks/get"), 120 * SECOND);
}
