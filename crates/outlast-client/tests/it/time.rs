//! What time a wait takes, and what it leaves when it is over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use outlast_client::{CallErrorKind, CallOptions, Server, TaskClient};
use rmcp::model::CallToolRequestParams;
use serde_json::json;

use crate::support::{
    LONG, Person, Reply, Scripted, ack, asks, completed, created, error, now, ok, polling, question, said,
    started, task, text,
};

const SECOND: Duration = Duration::from_secs(1);

fn tool() -> CallToolRequestParams {
    CallToolRequestParams::new("tool")
}

fn within(deadline: Duration) -> CallOptions {
    CallOptions::default().with_deadline(deadline)
}

/// A server that takes what is sent and never says a word; counts those who connect.
fn mute() -> (Server, Arc<AtomicUsize>) {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let server = Server::streams("mute", move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let (client, server) = tokio::io::duplex(1 << 20);
            tokio::spawn(async move {
                let (mut read, _write) = tokio::io::split(server);
                tokio::io::copy(&mut read, &mut tokio::io::sink()).await
            });
            Ok(tokio::io::split(client))
        }
    });
    (server, connections)
}

#[tokio::test]
async fn a_spent_budget_does_no_io() {
    let scripted = Scripted::new(|_| created("t1"));
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    let call = client.call_tool_with(tool(), within(Duration::ZERO)).await.unwrap_err();
    let start = client.start_tool_with(tool(), within(Duration::ZERO)).await.unwrap_err();

    assert_eq!((call.kind(), start.kind()), (&CallErrorKind::Deadline, &CallErrorKind::Deadline));
    assert!(scripted.methods().is_empty(), "{:?}", scripted.methods());

    let handle = started(&client).await;
    let before = scripted.methods();
    let wait = handle.wait(Some(Duration::ZERO)).await.unwrap_err();
    assert_eq!(*wait.kind(), CallErrorKind::Deadline);
    assert_eq!(scripted.methods(), before);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_covers_the_handshake_which_the_next_call_joins() {
    let (server, connections) = mute();
    let client = TaskClient::builder(server).options(polling()).build();
    let begun = now();

    let (first, second) = tokio::join!(
        client.call_tool_with(tool(), within(5 * SECOND)),
        client.call_tool_with(tool(), within(8 * SECOND)),
    );
    assert_eq!(*first.unwrap_err().kind(), CallErrorKind::Deadline);
    assert_eq!(*second.unwrap_err().kind(), CallErrorKind::Deadline);
    assert_eq!(begun.elapsed().as_secs(), 8);
    let third = client.call_tool(tool()).await.unwrap_err();

    assert!(matches!(third.kind(), CallErrorKind::Connection(_)), "{third}");
    assert_eq!(begun.elapsed().as_secs(), 30, "the bound of the first handshake");
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_never_comes_about_is_given_up() {
    let server = Server::streams("unreachable", || {
        std::future::pending::<std::io::Result<(tokio::io::Empty, tokio::io::Sink)>>()
    });
    let client = TaskClient::builder(server).options(polling()).build();

    let error = client.call_tool(tool()).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::Connection(_)), "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_socket_that_accepts_and_never_answers_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut options = polling();
    options.connect_timeout = Duration::from_millis(100);
    let client = TaskClient::builder(Server::http(format!("http://{address}/mcp"))).options(options).build();

    let error = client.call_tool(tool()).await.unwrap_err();
    let deadline = client.call_tool_with(tool(), within(Duration::from_millis(10))).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::Connection(_)), "{error}");
    assert_eq!(*deadline.kind(), CallErrorKind::Deadline);
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_is_never_answered_is_given_up_and_repeated() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0 | 1) => Reply::Hang,
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();

    let result = client.call_tool(tool()).await.unwrap();

    assert_eq!(said(&result), "done");
    assert!(scripted.pauses("tasks/get").iter().all(|pause| *pause >= 30 * SECOND && *pause < 35 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn an_answer_and_a_cancel_that_are_never_acknowledged_are_given_up() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => ok(task("t1", "working", json!({}))),
        "tasks/update" | "tasks/cancel" => Reply::Hang,
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();
    let handle = started(&client).await;

    for end in [handle.answer("who", json!({ "action": "decline" })).await, handle.cancel().await] {
        let error = end.unwrap_err();
        assert!(matches!(error.kind(), CallErrorKind::Connection(_)), "{error}");
        assert!(error.is_retryable() && error.handle().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_deadline_is_given_up_too_and_so_is_the_list_of_tools() {
    for hangs in ["tools/call", "tools/list"] {
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            method if method == hangs => Reply::Hang,
            _ => error(-32601, "no"),
        });
        let client = TaskClient::builder(scripted.streams()).options(polling()).build();
        let begun = now();

        let error = client.call_tool(tool()).await.unwrap_err();

        assert!(begun.elapsed() <= 2 * 601 * SECOND, "{hangs}: {:?}", begun.elapsed());
        assert!(
            matches!(error.kind(), CallErrorKind::OutcomeUnknown(_) | CallErrorKind::Connection(_)),
            "{hangs}: {error}"
        );
        assert_eq!(matches!(error.kind(), CallErrorKind::OutcomeUnknown(_)), hangs == "tools/call");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_bounded_by_the_deadline() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => asks("t1", &["who"]),
        _ => error(-32601, "no"),
    });
    let person = Person::silent();
    let client = TaskClient::builder(scripted.streams()).options(polling()).handler(person.clone()).build();
    let begun = now();

    let error = client.call_tool_with(tool(), within(5 * SECOND)).await.unwrap_err();

    assert_eq!(*error.kind(), CallErrorKind::Deadline);
    assert_eq!(begun.elapsed().as_secs(), 5);
    assert!(error.handle().is_some(), "C32");
    person.until_open(0).await;
    assert_eq!(person.asked(), ["who"]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_asked_before_there_is_a_task_is_bounded_by_the_deadline() {
    let scripted = Scripted::new(|_| {
        ok(json!({
            "resultType": "input_required", "requestState": "s", "inputRequests": { "who": question("who") }
        }))
    });
    let person = Person::silent();
    let client = TaskClient::builder(scripted.streams()).options(polling()).handler(person.clone()).build();

    let error = client.call_tool_with(tool(), within(5 * SECOND)).await.unwrap_err();

    assert_eq!(*error.kind(), CallErrorKind::Deadline);
    person.until_open(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_bounded_by_the_time_to_live() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => ok(task(
            "t1",
            "input_required",
            json!({
                "ttlMs": 20_000, "inputRequests": { "who": question("who") }
            }),
        )),
        _ => error(-32601, "no"),
    });
    let person = Person::silent();
    let client = TaskClient::builder(scripted.streams()).options(polling()).handler(person.clone()).build();
    let begun = now();

    let error = client.call_tool(tool()).await.unwrap_err();

    assert_eq!(*error.kind(), CallErrorKind::Expired);
    assert!((15..=21).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert!(error.handle().is_some());
    person.until_open(0).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_waits_the_shorter_ends_and_the_prompt_stays_for_the_longer() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => asks("t1", &["who"]),
        "tasks/update" => ack(),
        _ => error(-32601, "no"),
    });
    let person = Person::new(|message| async move {
        tokio::time::sleep(20 * SECOND).await;
        Ok(crate::support::accept(&message))
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).handler(person.clone()).build();
    let handle = started(&client).await;

    let (short, long) = tokio::join!(handle.wait(Some(5 * SECOND)), handle.wait(Some(40 * SECOND)));

    assert_eq!(*short.unwrap_err().kind(), CallErrorKind::Deadline);
    assert_eq!(*long.unwrap_err().kind(), CallErrorKind::Deadline);
    assert_eq!(person.asked(), ["who"], "asked once, and the answer was sent");
    assert_eq!(scripted.asked("tasks/update").len(), 1);
    assert_eq!(person.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn updates_beside_a_wait_poll_no_more_than_the_wait_alone() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", nth @ 0..=3) => {
            ok(task("t1", "working", json!({ "pollIntervalMs": 1_000, "statusMessage": format!("{nth}") })))
        }
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::builder(scripted.streams()).options(polling()).build();
    let handle = started(&client).await;

    let (states, result) = tokio::join!(handle.updates().collect::<Vec<_>>(), handle.wait(LONG));

    assert_eq!(said(&result.unwrap()), "done");
    let states: Vec<_> = states.into_iter().map(Result::unwrap).collect();
    let messages: Vec<_> = states.iter().filter_map(|state| state.message.as_deref()).collect();
    assert_eq!(messages, ["0", "1", "2", "3"]);
    assert!(states.last().unwrap().is_completed());
    assert_eq!(scripted.asked("tasks/get").len(), 5);
}

#[tokio::test(start_paused = true)]
async fn c34_a_wait_that_is_dropped_polls_no_more_and_leaves_the_task_alone() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => asks("t1", &["who"]),
        _ => error(-32601, "no"),
    });
    let person = Person::silent();
    let client = TaskClient::builder(scripted.streams()).options(polling()).handler(person.clone()).build();
    let mut call = Box::pin(client.call_tool(tool()));
    tokio::select! {
        _ = &mut call => panic!("nobody answers"),
        () = person.until_asked(1) => {}
    }

    drop(call);

    person.until_open(0).await;
    let polls = scripted.asked("tasks/get").len();
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(scripted.asked("tasks/get").len(), polls);
    assert!(scripted.asked("tasks/cancel").is_empty());
    assert!(scripted.asked("notifications/cancelled").is_empty());
}

#[tokio::test]
async fn c32_who_gave_up_can_go_on_or_cancel_with_the_handle_in_the_error() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0) => ok(task("t1", "working", json!({}))),
        ("tasks/get", _) => completed("t1", "late"),
        ("tasks/cancel", _) => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    let error = client.call_tool_with(tool(), within(Duration::from_millis(150))).await.unwrap_err();

    assert_eq!(*error.kind(), CallErrorKind::Deadline);
    assert!(error.is_retryable(), "{error}");
    let handle = error.into_handle().expect("the task goes on");
    handle.cancel().await.unwrap();
    assert_eq!(scripted.asked("tasks/cancel")[0].params["taskId"], "t1");
    assert_eq!(said(&handle.wait(LONG).await.unwrap()), "late");
}

#[tokio::test]
async fn c32_a_question_that_is_refused_ends_the_wait_with_the_handle() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => asks("t1", &["who"]),
        "tasks/cancel" => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let person = Person::new(|_| async { Err(rmcp::model::ErrorData::invalid_request("not me", None)) });
    let client = TaskClient::builder(running.server()).options(polling()).handler(person).build();

    let error = client.call_tool(tool()).await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::Unanswered { key, .. } if key == "who"), "{error}");
    error.handle().expect("the task goes on").cancel().await.unwrap();
}

#[tokio::test]
async fn a_deadline_beyond_the_clock_is_none() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => ok(text("done")),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let client = TaskClient::builder(running.server()).options(polling()).build();

    assert_eq!(said(&client.call_tool_with(tool(), within(Duration::MAX)).await.unwrap()), "done");
}

#[tokio::test(start_paused = true)]
async fn a_push_does_not_end_the_last_look_that_the_time_to_live_allows() {
    let (pushes, stream) = tokio::sync::mpsc::unbounded_channel();
    let stream = std::sync::Mutex::new(Some(stream));
    let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0) => ok(task("t1", "working", json!({ "ttlMs": 10_000, "pollIntervalMs": 60_000 }))),
        ("tasks/get", _) => {
            let working = task("t1", "working", json!({ "ttlMs": 10_000, "pollIntervalMs": 60_000 }));
            let push = json!({ "jsonrpc": "2.0", "method": "notifications/tasks", "params": working });
            let pushes = pushes.clone();
            Reply::Later(Box::pin(async move {
                // It was sent before the task ended, and is heard before the answer.
                pushes.send(push).unwrap();
                tokio::time::sleep(SECOND).await;
                completed("t1", "just in time")
            }))
        }
        ("subscriptions/listen", 0) => Reply::Stream(stream.lock().unwrap().take().unwrap()),
        _ => error(-32601, "no"),
    });
    let client = TaskClient::new(scripted.streams(), ());

    let result = client.call_tool(tool()).await.unwrap();

    assert_eq!(said(&result), "just in time");
}
