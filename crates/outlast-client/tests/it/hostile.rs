//! Servers, disks, clocks and callers that do what none should.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use outlast_client::{CallErrorKind, CallOptions, DirStore, HandleStore, SavedTask, TaskClient};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};

use crate::support::{
    LONG, Person, Reply, Running, Scripted, accept, ack, asks, completed, created, error, now, ok, polling,
    said, started, task, text,
};

fn tool() -> CallToolRequestParams {
    CallToolRequestParams::new("tool")
}

fn client(server: outlast_client::Server) -> TaskClient {
    TaskClient::builder(server).options(polling()).build()
}

#[tokio::test(start_paused = true)]
async fn of_many_calls_at_once_to_a_server_that_never_lists_its_tools_none_is_given_up_later_than_the_first()
{
    let scripted = Scripted::new(|_| Reply::Hang);
    let client = client(scripted.streams());
    let began = now();

    let ends = join_all((0..50).map(|_| client.call_tool(tool()))).await;

    assert!(ends.iter().all(Result::is_err));
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_list_of_tools_without_end_is_read_no_further_than_any_list_goes() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/list" => ok(json!({ "tools": [], "nextCursor": "again" })),
        _ => ok(text("done")),
    });
    let running = scripted.http().await;

    let result = client(running.server()).call_tool(tool()).await.unwrap();

    assert_eq!(said(&result), "done");
    assert_eq!(scripted.asked("tools/list").len(), 100);
}

/// A disk that takes what it is given and never says that it has it.
#[derive(Clone, Default)]
struct Hung {
    saves: bool,
}

impl HandleStore for Hung {
    fn save<'a>(&'a self, _: &'a SavedTask) -> BoxFuture<'a, io::Result<()>> {
        if self.saves { async { Ok(()) }.boxed() } else { std::future::pending().boxed() }
    }

    fn remove<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, io::Result<()>> {
        std::future::pending().boxed()
    }

    fn list<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Vec<SavedTask>>> {
        std::future::pending().boxed()
    }
}

fn asking() -> Scripted {
    let answered = AtomicUsize::new(0);
    Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" if answered.load(Ordering::SeqCst) > 0 => completed("t1", "done"),
        "tasks/get" => asks("t1", &["who"]),
        "tasks/update" => {
            answered.fetch_add(1, Ordering::SeqCst);
            ack()
        }
        _ => error(-32601, "no"),
    })
}

#[tokio::test(start_paused = true)]
async fn a_deadline_covers_a_store_that_hangs() {
    let scripted = asking();
    let hung = Hung::default();
    let client = TaskClient::builder(scripted.streams())
        .options(polling())
        .handler(Person::prompt())
        .store(hung.clone())
        .build();
    let began = now();
    let within = CallOptions::default().with_deadline(Duration::from_secs(3));

    let error = client.call_tool_with(tool(), within).await.unwrap_err();

    assert_eq!(error.kind(), &CallErrorKind::Deadline);
    assert!(error.handle().is_some());
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert!(matches!(client.resume_all().await.unwrap_err().kind(), CallErrorKind::Store(_)));

    // The result is there, and only taking the handle out of the store is not.
    let saving = TaskClient::builder(scripted.streams())
        .options(polling())
        .handler(Person::prompt())
        .store(Hung { saves: true })
        .build();
    let handle = started(&saving).await;
    let began = now();
    assert_eq!(said(&handle.wait(Some(Duration::from_secs(3))).await.unwrap()), "done");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_one_that_fails_and_no_task_hangs_with_it() {
    let scripted = asking();
    let person = Person::prompt();
    let client = TaskClient::builder(scripted.streams())
        .options(polling())
        .handler(person.clone())
        .store(Hung::default())
        .build();

    let error = client.start_tool(tool()).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Store(_)), "{error}");

    let wait = error.handle().unwrap().wait(None);
    let result = tokio::time::timeout(Duration::from_secs(600), wait).await.expect("it ends");
    assert_eq!(said(&result.unwrap()), "done");
    assert_eq!(person.asked(), ["who"]);
}

#[tokio::test]
async fn a_clock_that_was_set_costs_no_task() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tasks/get", 0 | 1) => ok(task("t1", "working", json!({ "ttlMs": 3_600_000 }))),
        ("tasks/get", _) => completed("t1", "done"),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let folder = tempfile::tempdir().unwrap();
    // First seen when the clock had not been set yet.
    let saved = SavedTask::from_json(
        &json!({
            "version": 1, "server": running.server().name(), "taskId": "t1", "tool": "tool",
            "createdAt": "2026-11-29T10:00:00Z", "firstSeen": "1970-01-01T00:00:00Z", "generation": "2026-07-28",
        })
        .to_string(),
    )
    .unwrap();
    let store = DirStore::open(folder.path()).unwrap();
    store.save(&saved).await.unwrap();
    let open = || TaskClient::builder(running.server()).options(polling()).store(store.clone()).build();

    let wait = open().resume_all().await.unwrap().remove(0);
    assert_eq!(wait.wait(LONG).await.unwrap_err().kind(), &CallErrorKind::Expired);

    let again = open().resume_all().await.unwrap().remove(0);
    assert_eq!(said(&again.wait(LONG).await.unwrap()), "done");
    assert!(open().resume_all().await.unwrap().is_empty());

    // In the future it is as if it had just been seen.
    let mut early = saved.clone();
    early.first_seen += chrono::TimeDelta::days(100_000);
    let handle = open().resume(early).await.unwrap();
    assert_eq!(said(&handle.wait(LONG).await.unwrap()), "done");
}

#[tokio::test(start_paused = true)]
async fn a_time_to_live_of_nothing_allows_one_look() {
    for ttl in [0, 1] {
        for is_done in [true, false] {
            let scripted = Scripted::new(move |asked| match asked.method.as_str() {
                "tools/call" => ok(task("t1", "working", json!({ "resultType": "task", "ttlMs": ttl }))),
                "tasks/get" if is_done => completed("t1", "done"),
                "tasks/get" => ok(task("t1", "working", json!({ "ttlMs": ttl }))),
                _ => error(-32601, "no"),
            });
            let end = client(scripted.streams()).call_tool(tool()).await;
            match is_done {
                true => assert_eq!(said(&end.unwrap()), "done"),
                false => assert_eq!(end.unwrap_err().kind(), &CallErrorKind::Expired),
            }
            assert!(scripted.asked("tasks/get").len() <= 2);
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn what_is_no_file_in_a_directory_of_handles_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let store = DirStore::open(folder.path()).unwrap();
    std::fs::create_dir(folder.path().join("folder.json")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("dangling.json")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("endless.json")).unwrap();
    let pipe = folder.path().join("pipe.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());

    let listed = tokio::time::timeout(Duration::from_secs(20), store.list("s")).await;
    // A reader that hangs would hang the end of the runtime, too.
    drop(std::fs::OpenOptions::new().read(true).write(true).open(&pipe));

    assert!(listed.expect("it is not read").unwrap().is_empty());
}

/// A server whose task asks once, and which answers calls of `other` at once.
fn with_other() -> Scripted {
    let answered = AtomicUsize::new(0);
    Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" if asked.params["name"] == "other" => ok(text("from the other")),
        "tools/call" => created("t1"),
        "tasks/get" if answered.load(Ordering::SeqCst) > 0 => completed("t1", "done"),
        "tasks/get" => asks("t1", &["who"]),
        "tasks/update" => {
            assert_eq!(asked.params["inputResponses"]["who"]["content"]["name"], "from the other");
            answered.fetch_add(1, Ordering::SeqCst);
            ack()
        }
        _ => error(-32601, "no"),
    })
}

#[tokio::test]
async fn a_handler_may_call_its_own_client_and_close_it_and_drop_it() {
    let scripted = with_other();
    let running: Running = scripted.http().await;
    let own: Arc<Mutex<Option<TaskClient>>> = Arc::default();
    let person = Person::new({
        let own = own.clone();
        move |_| {
            let client = own.lock().unwrap().take();
            async move {
                let client = client.expect("asked once");
                let result = client.call_tool(CallToolRequestParams::new("other")).await.unwrap();
                client.close().await;
                drop(client);
                Ok(accept(&said(&result)))
            }
        }
    });
    let client = TaskClient::builder(running.server()).options(polling()).handler(person.clone()).build();
    let handle = started(&client).await;
    own.lock().unwrap().replace(client);

    let result = tokio::time::timeout(Duration::from_secs(60), handle.wait(LONG)).await.expect("no deadlock");

    assert_eq!(said(&result.unwrap()), "done");
    assert_eq!(person.asked(), ["who"]);
}

#[tokio::test]
async fn a_listener_of_one_wait_that_panics_ends_that_wait_alone() {
    let (scripted, pauses) = (asking(), Arc::new(tokio::sync::Notify::new()));
    let running = scripted.http().await;
    let person = Person::new({
        let pauses = pauses.clone();
        move |name| {
            let pauses = pauses.clone();
            async move {
                pauses.notified().await;
                Ok(accept(&name))
            }
        }
    });
    let client = TaskClient::builder(running.server()).options(polling()).handler(person.clone()).build();
    let handle = started(&client).await;
    let panics = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait_with(LONG, |_| panic!("a fault of the listener")).await }
    });
    assert!(panics.await.unwrap_err().is_panic());
    let waits = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    person.until_asked(1).await;
    pauses.notify_one();

    assert_eq!(said(&waits.await.unwrap().unwrap()), "done");
}

#[tokio::test]
async fn of_many_answers_at_once_and_a_cancel_one_answer_counts_everywhere() {
    let sent: Arc<Mutex<Vec<Value>>> = Arc::default();
    let scripted = Scripted::new({
        let sent = sent.clone();
        move |asked| match asked.method.as_str() {
            "tools/call" => created("t1"),
            "tasks/get" if !sent.lock().unwrap().is_empty() => completed("t1", "done"),
            "tasks/get" => asks("t1", &["who"]),
            "tasks/update" => {
                sent.lock().unwrap().push(asked.params["inputResponses"]["who"].clone());
                ack()
            }
            "tasks/cancel" => ack(),
            _ => error(-32601, "no"),
        }
    });
    let running = scripted.http().await;
    let folder = tempfile::tempdir().unwrap();
    let client = TaskClient::builder(running.server())
        .options(polling())
        .handler(Person::silent())
        .store(DirStore::open(folder.path()).unwrap())
        .build();
    let handle = started(&client).await;
    let wait = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });

    let answers = (0..50).map(|n| {
        let (handle, client) = (handle.clone(), client.clone());
        tokio::spawn(async move {
            // The same task, by every way to it.
            let handle =
                if n % 2 == 0 { handle.clone() } else { client.resume(handle.save()).await.unwrap() };
            if n == 25 {
                handle.cancel().await.unwrap();
            }
            handle.answer("who", json!({ "action": "accept", "content": { "name": n.to_string() } })).await
        })
    });
    for answered in join_all(answers).await {
        answered.unwrap().unwrap();
    }

    assert_eq!(said(&wait.await.unwrap().unwrap()), "done");
    let sent = sent.lock().unwrap().clone();
    assert!(sent.iter().all(|answer| *answer == sent[0]), "{sent:?}");
    assert!(client.resume_all().await.unwrap().is_empty(), "no write came after the removal");
}

#[tokio::test]
async fn a_server_that_asks_without_end_is_not_followed_and_one_that_asks_much_is() {
    for (keys, is_followed) in [(1_000, true), (100_000, false)] {
        let keys: Vec<String> = (0..keys).map(|key| format!("k{key}")).collect();
        let answered = AtomicUsize::new(0);
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/call" => created("t1"),
            "tasks/get" if answered.load(Ordering::SeqCst) >= keys.len() => completed("t1", "done"),
            "tasks/get" => asks("t1", &keys.iter().map(String::as_str).collect::<Vec<_>>()),
            "tasks/update" => {
                let sent = asked.params["inputResponses"].as_object().unwrap().len();
                answered.fetch_add(sent, Ordering::SeqCst);
                ack()
            }
            _ => error(-32601, "no"),
        });
        let running = scripted.http().await;
        let person = Person::prompt();
        let client = TaskClient::builder(running.server()).options(polling()).handler(person.clone()).build();
        let end =
            tokio::time::timeout(Duration::from_secs(60), client.call_tool(tool())).await.expect("in time");
        match is_followed {
            true => assert_eq!(said(&end.unwrap()), "done"),
            false => {
                assert_eq!(end.unwrap_err().kind(), &CallErrorKind::TooManyQuestions);
                assert!(person.asked().is_empty());
            }
        }
    }
}

#[tokio::test]
async fn a_status_message_of_any_length_is_taken_up_to_what_an_answer_may_have() {
    for length in [10 << 20, 20 << 20] {
        let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
            ("tools/call", _) => created("t1"),
            ("tasks/get", 0) => ok(task("t1", "working", json!({ "statusMessage": "x".repeat(length) }))),
            ("tasks/get", _) => completed("t1", "done"),
            _ => error(-32601, "no"),
        });
        let running = scripted.http().await;
        // One that is too long is a poll that failed.
        let result = client(running.server()).call_tool(tool()).await.unwrap();
        assert_eq!(said(&result), "done", "{length}");
    }
}

/// It may be a result, or what the server was sent; errors are shown and logged.
#[tokio::test]
async fn what_a_server_answers_that_cannot_be_read_is_in_no_error() {
    let (json, plain) = ("application/json", "text/plain");
    let garbled = json!({"jsonrpc": "2.0", "id": 77, "result": {"content": "SECRET"}}).to_string();
    for (status, kind, body) in [
        (200, json, "{SECRET"),
        (200, json, &garbled),
        (200, plain, "SECRET"),
        (400, plain, "SECRET"),
        (500, plain, "SECRET"),
    ] {
        let body = body.to_owned();
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/list" => ok(json!({ "tools": [] })),
            _ => Reply::Http(status, vec![("content-type", kind.to_owned())], body.clone()),
        })
        .introduced(json!({ "tools": {} }));
        let running = scripted.http().await;
        let end = client(running.server()).call_tool(tool()).await.unwrap_err();
        assert!(!format!("{end} {end:?}").contains("SECRET"), "{end:?}");
    }
}

#[tokio::test]
async fn a_redirect_that_would_change_the_call_or_lead_elsewhere_is_not_followed() {
    let elsewhere = Scripted::new(|_| ok(text("elsewhere")));
    let other = elsewhere.http().await;
    for status in [301, 302, 303, 307, 308] {
        let to = format!("http://{}/mcp", other.address);
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/list" => ok(json!({ "tools": [] })),
            _ => Reply::Http(status, vec![("location", to.clone())], String::new()),
        })
        .introduced(json!({ "tools": {} }));
        let running = scripted.http().await;
        let end = client(running.server()).call_tool(tool()).await.unwrap_err();
        assert!(matches!(end.kind(), CallErrorKind::OutcomeUnknown(_)), "{status}: {end}");
        assert!(end.to_string().contains(&status.to_string()), "{end}");
    }
    assert!(elsewhere.methods().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_while_a_call_is_unanswered_leaves_its_outcome_unknown() {
    let hint = |hint: bool| {
        json!({ "tools": [{
        "name": "tool", "inputSchema": { "type": "object" }, "annotations": { "idempotentHint": hint },
    }] })
    };
    for (is_repeatable, key, is_lost) in
        [(false, None, false), (false, None, true), (false, Some("k"), false), (true, None, false)]
    {
        let scripted = Scripted::new(move |asked| match (asked.method.as_str(), asked.nth) {
            ("tools/list", _) => ok(hint(is_repeatable)),
            ("tools/call", 0) if is_lost => Reply::Drop,
            _ => Reply::Hang,
        });
        let mut options = CallOptions::default().with_deadline(Duration::from_secs(5));
        options.idempotency_key = key.map(str::to_owned);
        let began = now();

        let error = client(scripted.streams()).call_tool_with(tool(), options).await.unwrap_err();

        assert_eq!(began.elapsed().as_secs(), 5);
        let is_unknown = matches!(error.kind(), CallErrorKind::OutcomeUnknown(_));
        assert_eq!(is_unknown, !is_repeatable && key.is_none(), "{is_repeatable} {key:?}: {error}");
        assert_eq!(error.is_retryable(), !is_unknown, "calling again must not run the tool twice");
    }
}
