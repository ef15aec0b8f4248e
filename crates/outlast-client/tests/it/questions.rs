//! The questions of a task: each is put once and answered once, whatever happens on the way (S18-S20, S30).
#![allow(deprecated, reason = "sampling and roots are still kinds of question (S19)")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use futures::StreamExt;
use outlast_client::{CallError, CallErrorKind, SavedTask, Started, TaskClient, TaskHandle};
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, CreateMessageRequestParams,
        CreateMessageResult, ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData, Implementation,
        ListRootsResult, Root, SamplingMessage,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc as channel};

use crate::support::{
    Asked, LONG, Person, Reply, Scripted, accept, ack, asks, completed, created, error, now, ok, polling,
    question, task,
};

async fn start(client: &TaskClient) -> TaskHandle {
    match client.start_tool(CallToolRequestParams::new("tool")).await.unwrap() {
        Started::Task(handle) => handle,
        other => panic!("no task: {other:?}"),
    }
}

fn client(server: outlast_client::Server, person: &Person) -> TaskClient {
    TaskClient::builder(server).options(polling()).handler(person.clone()).build()
}

/// A server of one task, which asks by these keys until each has an answer, and then is done. `before` may answer a request
/// in its place.
fn asking(
    keys: &'static [&'static str],
    before: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static,
) -> Scripted {
    let answered = Mutex::new(serde_json::Map::new());
    Scripted::new(move |asked| {
        if let Some(reply) = before(&asked) {
            return reply;
        }
        let mut answered = answered.lock().unwrap();
        match asked.method.as_str() {
            "tools/call" => created("t1"),
            "tasks/get" => {
                let open: Vec<&str> =
                    keys.iter().copied().filter(|key| !answered.contains_key(*key)).collect();
                if open.is_empty() { completed("t1", "done") } else { asks("t1", &open) }
            }
            "tasks/update" => {
                answered.extend(asked.params["inputResponses"].as_object().unwrap().clone());
                ack()
            }
            "tasks/cancel" => ack(),
            _ => error(-32601, "no"),
        }
    })
}

fn nothing(_: &Asked) -> Option<Reply> {
    None
}

/// The answers that came to a server, by key, in order.
fn answers(scripted: &Scripted) -> Vec<(String, String)> {
    let updates = scripted.asked("tasks/update").into_iter();
    let each = updates.flat_map(|update| update.params["inputResponses"].as_object().unwrap().clone());
    each.map(|(key, answer)| (key, answer["content"]["name"].as_str().unwrap_or_default().to_owned()))
        .collect()
}

fn unanswered(error: &CallError) -> (&str, &ErrorData) {
    match error.kind() {
        CallErrorKind::Unanswered { key, error } => (key, error),
        other => panic!("not unanswered: {other:?}"),
    }
}

/// A person who answers every kind of question.
#[derive(Clone, Default)]
struct Everything(Arc<Mutex<Vec<Value>>>);

impl ClientHandler for Everything {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.0.lock().unwrap().push(serde_json::to_value(&request).unwrap());
        Ok(match request {
            ElicitRequestParams::UrlElicitationParams { .. } => ElicitResult::new(ElicitationAction::Accept),
            _ => accept("Ada"),
        })
    }

    async fn create_message(
        &self,
        request: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.0.lock().unwrap().push(serde_json::to_value(&request).unwrap());
        Ok(CreateMessageResult::new(SamplingMessage::assistant_text("a poem"), "model".into()))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.0.lock().unwrap().push(json!("roots"));
        Ok(ListRootsResult::new(vec![Root::new("file:///here")]))
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities: ClientCapabilities = serde_json::from_value(
            json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} }),
        )
        .unwrap();
        ClientConfig::new(capabilities, Implementation::new("test", "1"))
    }
}

fn every_kind() -> Value {
    json!({
        "form": question("who"),
        "url": { "method": "elicitation/create", "params": {
            "mode": "url", "message": "pay", "url": "https://example.com/pay", "elicitationId": "e1",
        } },
        "sampling": { "method": "sampling/createMessage", "params": {
            "messages": [{ "role": "user", "content": { "type": "text", "text": "a poem" } }], "maxTokens": 10,
        } },
        "roots": { "method": "roots/list" },
    })
}

#[tokio::test]
async fn a_question_of_any_kind_is_put_as_it_would_be_outside_a_task() {
    let scripted = Scripted::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("tools/call", _) => created("t1"),
        ("tasks/get", 0) => ok(task("t1", "input_required", json!({ "inputRequests": every_kind() }))),
        ("tasks/get", _) => completed("t1", "done"),
        ("tasks/update", _) => ack(),
        _ => error(-32601, "no"),
    });
    let running = scripted.http().await;
    let person = Everything::default();
    let client = TaskClient::builder(running.server()).options(polling()).handler(person.clone()).build();

    start(&client).await.wait(LONG).await.unwrap();

    let asked = person.0.lock().unwrap().clone();
    assert_eq!(asked.len(), 4, "{asked:?}");
    assert!(asked.iter().any(|request| request["url"] == "https://example.com/pay"), "{asked:?}");
    assert!(
        asked.iter().any(|request| request["requestedSchema"]["required"] == json!(["name"])),
        "{asked:?}"
    );
    let mut sent = serde_json::Map::new();
    for update in scripted.asked("tasks/update") {
        sent.extend(update.params["inputResponses"].as_object().unwrap().clone());
    }
    assert_eq!(sent["form"], json!({ "action": "accept", "content": { "name": "Ada" } }));
    assert_eq!(sent["url"]["action"], "accept");
    assert_eq!(sent["sampling"]["content"]["text"], "a poem");
    assert_eq!(sent["roots"]["roots"][0]["uri"], "file:///here");
}

#[tokio::test]
async fn a_kind_that_was_not_declared_is_refused_as_it_would_be_outside_a_task() {
    let kinds = every_kind();
    for kind in ["url", "sampling", "roots"] {
        let asked = json!({ "k": kinds[kind] });
        let scripted = Scripted::new(move |request| match request.method.as_str() {
            "tools/call" => created("t1"),
            "tasks/get" => ok(task("t1", "input_required", json!({ "inputRequests": asked }))),
            _ => error(-32601, "no"),
        });
        let running = scripted.http().await;
        // This one declares forms, and nothing else.
        let person = Person::prompt();

        let error = start(&client(running.server(), &person)).await.wait(LONG).await.unwrap_err();

        let (key, refusal) = unanswered(&error);
        assert_eq!((key, refusal.code.0), ("k", -32600), "{kind}");
        assert!(error.is_retryable() && error.handle().is_some());
        assert!(person.asked().is_empty() && scripted.asked("tasks/update").is_empty(), "{kind}");
    }
}

#[tokio::test]
async fn a_question_that_is_no_request_ends_the_wait_and_keeps_the_handle() {
    for odd in [json!(5), json!({ "method": "ping" }), json!({ "method": "elicitation/create", "params": 7 })]
    {
        let scripted = Scripted::new(move |request| match request.method.as_str() {
            "tools/call" => created("t1"),
            "tasks/get" => ok(task("t1", "input_required", json!({ "inputRequests": { "k": odd } }))),
            _ => error(-32601, "no"),
        });
        let running = scripted.http().await;

        let error = start(&client(running.server(), &Person::prompt())).await.wait(LONG).await.unwrap_err();

        assert_eq!(unanswered(&error).0, "k");
        assert!(error.handle().is_some());
    }
}

#[tokio::test]
async fn c36_the_same_key_on_ten_polls_is_one_prompt() {
    let scripted = asking(&["who"], nothing);
    let running = scripted.http().await;
    let typing = Arc::new(Notify::new());
    let person = Person::new({
        let typing = typing.clone();
        move |message| {
            let typing = typing.clone();
            async move {
                typing.notified().await;
                Ok(accept(&message))
            }
        }
    });
    let handle = start(&client(running.server(), &person)).await;

    let wait = tokio::spawn(async move { handle.wait(LONG).await });
    scripted.until_asked("tasks/get", 10).await;
    assert_eq!(person.asked(), ["who"]);
    typing.notify_one();

    wait.await.unwrap().unwrap();
    assert_eq!(person.asked(), ["who"]);
    assert_eq!(answers(&scripted), [("who".to_owned(), "who".to_owned())]);
}

#[tokio::test]
async fn c35_one_handler_fails_and_the_answers_to_the_others_are_kept_and_sent() {
    let scripted = asking(&["a", "b", "c"], nothing);
    let running = scripted.http().await;
    let failed = AtomicBool::new(false);
    let person = Person::new(move |message| {
        let fails = message == "b" && !failed.swap(true, Ordering::SeqCst);
        async move {
            match fails {
                true => Err(ErrorData::internal_error("the terminal is gone", None)),
                false => Ok(accept(&message)),
            }
        }
    });
    let handle = start(&client(running.server(), &person)).await;

    let error = handle.wait(LONG).await.unwrap_err();

    assert_eq!(unanswered(&error).0, "b");
    assert!(error.is_retryable());
    let mut sent: Vec<String> = answers(&scripted).into_iter().map(|(key, _)| key).collect();
    sent.sort();
    assert_eq!(sent, ["a", "c"]);

    error.into_handle().unwrap().wait(LONG).await.unwrap();
    let mut asked = person.asked();
    assert_eq!(asked.pop().unwrap(), "b", "only what was not answered is asked again");
    asked.sort();
    assert_eq!(asked, ["a", "b", "c"]);
    assert_eq!(answers(&scripted).len(), 3);
}

#[tokio::test]
async fn a_handler_that_panics_is_one_that_failed() {
    let scripted = asking(&["who"], nothing);
    let running = scripted.http().await;
    let times = AtomicUsize::new(0);
    let person = Person::new(move |message| {
        let first = times.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            assert!(!first, "a fault of the handler");
            Ok(accept(&message))
        }
    });
    let handle = start(&client(running.server(), &person)).await;

    let error = handle.wait(LONG).await.unwrap_err();
    assert_eq!(unanswered(&error).0, "who");
    handle.wait(LONG).await.unwrap();
    assert_eq!(person.asked(), ["who", "who"]);
}

#[tokio::test]
async fn c33_cancelling_closes_the_prompt_and_opens_no_other() {
    let cancelled = AtomicBool::new(false);
    let polls_after = AtomicUsize::new(0);
    let scripted = asking(&["who", "where"], move |asked| match asked.method.as_str() {
        "tasks/cancel" => {
            cancelled.store(true, Ordering::SeqCst);
            None
        }
        // The work takes its time to end, and asks on meanwhile.
        "tasks/get" if cancelled.load(Ordering::SeqCst) => {
            match polls_after.fetch_add(1, Ordering::SeqCst) < 3 {
                true => Some(asks("t1", &["who", "where", "another"])),
                false => Some(ok(task("t1", "cancelled", json!({ "statusMessage": "as asked" })))),
            }
        }
        _ => None,
    });
    let running = scripted.http().await;
    let person = Person::silent();
    let handle = start(&client(running.server(), &person)).await;
    let wait = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    person.until_open(2).await;

    handle.cancel().await.unwrap();

    let error = wait.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), &CallErrorKind::Cancelled(Some("as asked".into())));
    assert_eq!(scripted.asked("tasks/cancel").len(), 1);
    assert_eq!((person.asked().len(), person.open()), (2, 0));
    assert!(scripted.asked("tasks/update").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_is_lost_is_said_again_by_who_waits_and_one_that_is_refused_puts_the_questions_again() {
    let scripted = asking(&["who"], |asked| match (asked.method.as_str(), asked.nth) {
        ("tasks/cancel", 0) => Some(Reply::Drop),
        ("tasks/cancel", 1) => Some(error(-32603, "the database is away")),
        ("tasks/cancel", _) => Some(error(-32601, "this one cannot be cancelled")),
        _ => None,
    });
    let first = AtomicBool::new(true);
    let person = Person::new(move |message| {
        let is_first = first.swap(false, Ordering::SeqCst);
        async move {
            match is_first {
                true => std::future::pending().await,
                false => Ok(accept(&message)),
            }
        }
    });
    let handle = start(&client(scripted.streams(), &person)).await;
    let wait = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    person.until_open(1).await;

    let error = handle.cancel().await.unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::Connection(_)), "{error}");
    assert!(error.is_retryable());
    wait.await.unwrap().unwrap();
    assert_eq!(scripted.asked("tasks/cancel").len(), 3);
    assert_eq!(
        person.asked(),
        ["who", "who"],
        "closed when it was cancelled, put again when that was refused"
    );
}

#[tokio::test]
async fn c37_an_update_that_is_lost_is_sent_again_and_the_person_is_not_asked_again() {
    // The first time it is lost on its way back, with the task still asking.
    let scripted =
        asking(&["who"], |asked| (asked.method == "tasks/update" && asked.nth < 2).then_some(Reply::Drop));
    let running = scripted.http().await;
    let person = Person::prompt();
    let handle = start(&client(running.server(), &person)).await;

    handle.wait(LONG).await.unwrap();

    assert_eq!(person.asked(), ["who"]);
    assert_eq!(answers(&scripted), vec![("who".to_owned(), "who".to_owned()); 3]);
}

#[tokio::test]
async fn a_server_that_is_away_while_a_person_answers_gets_the_answer_when_it_is_back() {
    let scripted = asking(&["who"], nothing);
    let running = scripted.http().await;
    let address = running.address;
    let away = Arc::new(Notify::new());
    let person = Person::new({
        let away = away.clone();
        move |message| {
            let away = away.clone();
            async move {
                away.notified().await;
                Ok(accept(&message))
            }
        }
    });
    let handle = start(&client(running.server(), &person)).await;
    let wait = tokio::spawn(async move { handle.wait(LONG).await });
    person.until_asked(1).await;

    running.stop().await;
    away.notify_one();
    person.until_open(0).await;
    let running = scripted.http_at(address).await;

    wait.await.unwrap().unwrap();
    assert_eq!(person.asked(), ["who"]);
    drop(running);
}

#[tokio::test]
async fn waits_at_once_on_one_task_put_a_question_once_and_all_get_the_result() {
    let scripted = asking(&["who"], nothing);
    let running = scripted.http().await;
    let person = Person::prompt();
    let client = client(running.server(), &person);
    let handle = start(&client).await;
    // A handle that was written down and taken up in the same process is the same task.
    let again = client.resume(handle.save()).await.unwrap();
    let mut updates = Box::pin(again.updates());

    let states = async {
        let mut last = None;
        while let Some(state) = updates.next().await {
            last = Some(state.unwrap());
        }
        last.unwrap()
    };
    let (one, two, last) = tokio::join!(handle.wait(LONG), again.wait(LONG), states);

    assert!(one.is_ok() && two.is_ok() && last.is_completed());
    assert_eq!(person.asked(), ["who"]);
    assert_eq!(answers(&scripted).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_leaves_closes_the_prompt_only_when_nobody_else_waits() {
    let scripted = asking(&["who"], nothing);
    let person = Person::silent();
    let handle = start(&client(scripted.streams(), &person)).await;
    let long = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(Some(Duration::from_secs(60))).await }
    });
    person.until_asked(1).await;

    let begun = now();
    let error = handle.wait(Some(Duration::from_secs(5))).await.unwrap_err();
    assert_eq!((error.kind(), begun.elapsed().as_secs()), (&CallErrorKind::Deadline, 5));
    assert_eq!(person.open(), 1, "the other one still waits");

    // The handler has what is left of the deadline, and not more.
    let error = long.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), &CallErrorKind::Deadline);
    person.until_open(0).await;
    assert!((59..=60).contains(&begun.elapsed().as_secs()));
    assert_eq!(person.asked(), ["who"]);
}

#[tokio::test(start_paused = true)]
async fn a_prompt_closes_when_the_time_to_live_of_its_task_has_passed() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => ok(task(
            "t1",
            "input_required",
            json!({ "ttlMs": 0, "inputRequests": { "who": question("who") } }),
        )),
        _ => error(-32601, "no"),
    });
    let person = Person::silent();
    let handle = start(&client(scripted.streams(), &person)).await;

    let error = handle.wait(LONG).await.unwrap_err();

    assert_eq!(error.kind(), &CallErrorKind::Expired);
    person.until_open(0).await;
}

/// A server that pushes: the answer to `subscriptions/listen`, and where to send the states.
fn pushes() -> (Mutex<Option<channel::UnboundedReceiver<Value>>>, channel::UnboundedSender<Value>) {
    let (sender, receiver) = channel::unbounded_channel();
    let acknowledged = json!({
        "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
        "params": { "notifications": { "taskIds": ["t1"] } },
    });
    sender.send(acknowledged).unwrap();
    (Mutex::new(Some(receiver)), sender)
}

fn pushed(state: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/tasks", "params": state })
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_pushed_and_polled_is_put_once() {
    let (receiver, sender) = pushes();
    let scripted = asking(&["who"], move |asked| match asked.method.as_str() {
        "subscriptions/listen" => Some(Reply::Stream(receiver.lock().unwrap().take().unwrap())),
        _ => None,
    });
    let person = Person::new(|message| async move {
        // Pushes and the slow polls beside them go on meanwhile.
        tokio::time::sleep(Duration::from_secs(90)).await;
        Ok(accept(&message))
    });
    let client = TaskClient::builder(scripted.streams()).handler(person.clone()).build();
    let handle = start(&client).await;
    let wait = tokio::spawn(async move { handle.wait(LONG).await });

    for second in 1..20 {
        let at = format!("2026-11-29T10:01:{second:02}Z");
        let state = json!({ "lastUpdatedAt": at, "inputRequests": { "who": question("who") } });
        sender.send(pushed(task("t1", "input_required", state))).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    wait.await.unwrap().unwrap();

    assert_eq!(person.asked(), ["who"]);
    assert_eq!(answers(&scripted).len(), 1);
    assert!(scripted.asked("tasks/get").len() >= 3, "it was polled beside the pushes");
}

#[tokio::test]
async fn an_answer_that_was_not_delivered_rides_in_the_handle_and_is_sent_by_the_next_process() {
    let refuses = Arc::new(AtomicBool::new(true));
    let scripted = asking(&["who"], {
        let refuses = refuses.clone();
        move |asked| (asked.method == "tasks/update" && refuses.load(Ordering::SeqCst)).then_some(Reply::Drop)
    });
    let running = scripted.http().await;
    let first = client(running.server(), &Person::prompt());
    let handle = start(&first).await;
    let wait = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    scripted.until_asked("tasks/update", 1).await;
    wait.abort();
    let _ = wait.await;
    let saved = SavedTask::from_json(&handle.to_json()).unwrap();
    assert_eq!(saved.answers["who"]["content"]["name"], "who");
    drop((first, handle));

    refuses.store(false, Ordering::SeqCst);
    let person = Person::prompt();
    let second = client(running.server(), &person);
    second.resume(saved).await.unwrap().wait(LONG).await.unwrap();

    assert!(person.asked().is_empty());
    assert_eq!(answers(&scripted).pop().unwrap().1, "who");
}

#[tokio::test]
async fn a_key_whose_answer_the_server_has_is_not_put_by_the_next_process_though_the_server_still_shows_it() {
    let polls = AtomicUsize::new(0);
    let scripted = asking(&["who"], move |asked| {
        let still_shown = asked.method == "tasks/get" && polls.fetch_add(1, Ordering::SeqCst) < 5;
        still_shown.then(|| asks("t1", &["who"]))
    });
    let running = scripted.http().await;
    let first = client(running.server(), &Person::prompt());
    let handle = start(&first).await;
    let wait = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    scripted.until_asked("tasks/update", 1).await;
    scripted.until_asked("tasks/get", 3).await;
    wait.abort();
    let _ = wait.await;
    let saved = handle.save();
    assert!(saved.delivered.contains("who"), "{saved:?}");
    drop((first, handle));

    let person = Person::prompt();
    client(running.server(), &person).resume(saved).await.unwrap().wait(LONG).await.unwrap();

    assert!(person.asked().is_empty());
    assert_eq!(answers(&scripted).len(), 1);
}

#[tokio::test]
async fn a_rejection_frees_the_keys_whose_answers_it_was_and_no_others() {
    for code in [-32602, -32600] {
        let scripted = asking(&["a", "b"], move |asked| {
            let first_of_a =
                asked.nth == 0 || asked.params["inputResponses"]["a"]["content"]["name"] == "bad";
            (asked.method == "tasks/update" && first_of_a).then(|| error(code, "the answer does not fit"))
        });
        let running = scripted.http().await;
        let times = AtomicUsize::new(0);
        let go = Arc::new(Notify::new());
        let person = Person::new({
            let go = go.clone();
            move |message| {
                let (go, nth) = (go.clone(), times.fetch_add(1, Ordering::SeqCst));
                async move {
                    match message.as_str() {
                        "b" => go.notified().await,
                        _ if nth < 2 => return Ok(accept("bad")),
                        _ => {}
                    }
                    Ok(accept(&message))
                }
            }
        });
        let handle = start(&client(running.server(), &person)).await;
        let wait = tokio::spawn(async move { handle.wait(LONG).await });

        person.until_asked(3).await;
        go.notify_one();
        wait.await.unwrap().unwrap();

        let mut asked = person.asked();
        asked.sort();
        assert_eq!(asked, ["a", "a", "b"], "{code}");
        let last: Vec<_> = answers(&scripted).into_iter().filter(|(_, name)| name != "bad").collect();
        assert_eq!(last.len(), 2, "{code}: {last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_that_fails_for_a_reason_of_the_server_is_no_rejection() {
    let scripted = asking(&["who"], |asked| {
        (asked.method == "tasks/update" && asked.nth < 3).then(|| match asked.nth {
            0 => error(-32603, "the database is away"),
            1 => error(-32000, "not now"),
            _ => Reply::Hang,
        })
    });
    let person = Person::prompt();
    let handle = start(&client(scripted.streams(), &person)).await;

    handle.wait(LONG).await.unwrap();

    assert_eq!(person.asked(), ["who"]);
    assert_eq!(answers(&scripted).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_refused_answer_is_the_persons_fault_only_if_a_later_look_still_finds_the_task() {
    // A poll is on its way when the task is deleted; it says that the task asks, and comes after the refusal.
    let refused = Arc::new(Notify::new());
    let scripted = Scripted::new({
        move |asked| match (asked.method.as_str(), asked.nth) {
            ("tools/call", _) => created("t1"),
            ("tasks/get", 0) => asks("t1", &["who"]),
            ("tasks/get", 1) => {
                let refused = refused.clone();
                Reply::Later(Box::pin(async move {
                    refused.notified().await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    asks("t1", &["who"])
                }))
            }
            ("tasks/update", _) => {
                refused.notify_one();
                error(-32602, "unknown task")
            }
            _ => error(-32602, "unknown task"),
        }
    });
    let person = Person::new(|message| async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(accept(&message))
    });
    let handle = start(&client(scripted.streams(), &person)).await;

    let error = handle.wait(LONG).await.unwrap_err();

    assert_eq!(error.kind(), &CallErrorKind::Gone);
    assert_eq!(person.asked(), ["who"]);
}

#[tokio::test(start_paused = true)]
async fn rounds_of_questions_are_capped_and_those_without_an_answer_do_not_count() {
    // It asks another question after each answer, for ever.
    let round = AtomicUsize::new(0);
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => created("t1"),
        "tasks/get" => asks("t1", &[&format!("k{}", round.load(Ordering::SeqCst))]),
        "tasks/update" => {
            round.fetch_add(1, Ordering::SeqCst);
            ack()
        }
        _ => error(-32601, "no"),
    });
    let times = AtomicUsize::new(0);
    let person = Person::new(move |message| {
        let nth = times.fetch_add(1, Ordering::SeqCst);
        async move {
            match nth {
                0 | 1 => Err(ErrorData::internal_error("no", None)),
                2 => std::future::pending().await,
                _ => Ok(accept(&message)),
            }
        }
    });
    let mut options = polling();
    options.max_rounds = 3;
    let client = TaskClient::builder(scripted.streams()).options(options).handler(person.clone()).build();
    let handle = start(&client).await;
    for _ in 0..2 {
        assert_eq!(unanswered(&handle.wait(LONG).await.unwrap_err()).0, "k0");
    }
    let error = handle.wait(Some(Duration::from_secs(5))).await.unwrap_err();
    assert_eq!(error.kind(), &CallErrorKind::Deadline);

    let error = handle.wait(LONG).await.unwrap_err();

    assert_eq!(error.kind(), &CallErrorKind::TooManyQuestions);
    assert!(error.handle().is_some() && !error.is_retryable());
    assert_eq!(person.asked(), ["k0", "k0", "k0", "k0", "k1", "k2"]);
    // Another wait is no way round it.
    let error = handle.wait(LONG).await.unwrap_err();
    assert_eq!(error.kind(), &CallErrorKind::TooManyQuestions);
    assert_eq!(person.asked().len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_late_answer_of_a_withdrawn_question_is_dropped_and_its_key_is_held_until_its_prompt_has_gone() {
    let (at, sees) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let scripted = asking(&["who"], {
        let (at, sees) = (at.clone(), sees.clone());
        move |asked| {
            let withdraws = asked.method == "tasks/get" && at.load(Ordering::SeqCst) == 1;
            withdraws.then(|| {
                sees.store(true, Ordering::SeqCst);
                ok(task("t1", "working", json!({})))
            })
        }
    });
    let running = scripted.http().await;
    // A handler that blocks its thread cannot be closed before it comes back.
    let (release, blocked) = mpsc::channel::<()>();
    let (blocked, times) = (Arc::new(Mutex::new(blocked)), AtomicUsize::new(0));
    let person = Person::new(move |message| {
        let (blocked, nth) = (blocked.clone(), times.fetch_add(1, Ordering::SeqCst));
        async move {
            if nth == 0 {
                let _ = blocked.lock().unwrap().recv();
                return Ok(accept("late"));
            }
            Ok(accept(&message))
        }
    });
    let handle = start(&client(running.server(), &person)).await;
    let wait = tokio::spawn(async move { handle.wait(LONG).await });
    person.until_asked(1).await;

    at.store(1, Ordering::SeqCst);
    let seen = scripted.asked("tasks/get").len();
    scripted.until_asked("tasks/get", seen + 3).await;
    assert!(sees.load(Ordering::SeqCst));
    at.store(2, Ordering::SeqCst);
    let seen = scripted.asked("tasks/get").len();
    scripted.until_asked("tasks/get", seen + 3).await;
    assert_eq!(person.asked().len(), 1, "no second prompt beside one that is still there");
    release.send(()).unwrap();

    wait.await.unwrap().unwrap();
    assert_eq!(person.asked(), ["who", "who"]);
    assert_eq!(answers(&scripted), [("who".to_owned(), "who".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_elsewhere_closes_the_prompt_and_the_first_answer_counts() {
    // The server takes its time to show that it has the answer.
    let polls = AtomicUsize::new(0);
    let scripted = asking(&["who"], move |asked| {
        let still_shown = asked.method == "tasks/get" && polls.fetch_add(1, Ordering::SeqCst) < 100;
        still_shown.then(|| asks("t1", &["who"]))
    });
    let person = Person::silent();
    let handle = start(&client(scripted.streams(), &person)).await;
    let wait = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait(LONG).await }
    });
    person.until_open(1).await;

    handle.answer("who", json!({ "action": "accept", "content": { "name": "Ada" } })).await.unwrap();

    tokio::time::timeout(Duration::from_secs(1), person.until_open(0)).await.expect("the prompt is closed");
    let sent = scripted.asked("tasks/update").len();
    handle.answer("who", json!({ "action": "accept", "content": { "name": "Bob" } })).await.unwrap();
    assert_eq!(scripted.asked("tasks/update").len(), sent, "the server has the answer");
    wait.await.unwrap().unwrap();
    assert_eq!(person.asked(), ["who"]);
    assert!(answers(&scripted).iter().all(|(_, name)| name == "Ada"));
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_elsewhere_that_meets_a_failing_server_is_kept_and_one_that_is_refused_is_not() {
    let scripted = asking(&["who"], |asked| match (asked.method.as_str(), asked.nth) {
        ("tasks/update", 0) => Some(error(-32603, "the database is away")),
        ("tasks/update", 1) => Some(Reply::Drop),
        ("tasks/update", 2) => Some(error(-32602, "it does not fit")),
        _ => None,
    });
    let person = Person::prompt();
    let handle = start(&client(scripted.streams(), &person)).await;
    let answer = |name: &str| json!({ "action": "accept", "content": { "name": name } });

    let error = handle.answer("who", answer("Ada")).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Refused(error) if error.code.0 == -32603), "{error}");
    assert!(error.is_retryable());
    assert_eq!(handle.save().answers["who"], answer("Ada"));
    let error = handle.answer("who", answer("Bob")).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Connection(_)), "{error}");
    assert_eq!(handle.save().answers["who"], answer("Ada"), "the first answer counts");
    let error = handle.answer("who", answer("Bob")).await.unwrap_err();
    assert!(matches!(error.kind(), CallErrorKind::Refused(error) if error.code.0 == -32602), "{error}");
    assert!(handle.save().answers.is_empty());

    handle.answer("who", answer("Eve")).await.unwrap();
    handle.wait(LONG).await.unwrap();
    assert!(person.asked().is_empty());
    let names: Vec<_> = answers(&scripted).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["Ada", "Ada", "Ada", "Eve"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_sent_though_a_state_in_between_did_not_ask_for_it() {
    // One of several machines behind an address is behind: it says "working" when the question is asked already.
    let scripted = asking(&["who"], |asked| match (asked.method.as_str(), asked.nth) {
        ("tasks/get", 1 | 2) => Some(ok(task("t1", "working", json!({})))),
        ("tasks/update", 0 | 1) => Some(error(-32603, "away")),
        _ => None,
    });
    let person = Person::prompt();
    let handle = start(&client(scripted.streams(), &person)).await;

    handle.wait(LONG).await.unwrap();

    assert_eq!(person.asked(), ["who"]);
}
