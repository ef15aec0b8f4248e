//! Whose question it is that a server of 2025-11-25 asks while several calls are under way on one connection.
#![allow(deprecated, reason = "logging is deprecated, and still comes")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use outlast_client::{CallOptions, Started, TaskClient};
use rmcp::{
    ClientHandler, RoleClient,
    model::{CallToolRequestParams, LoggingMessageNotificationParam},
    service::NotificationContext,
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::support::{LONG, Person, Reply, Scripted, error, ok, polling, question, text};

const AT: &str = "2026-11-29T10:00:00Z";

fn of_old(status: &str) -> Value {
    json!({ "taskId": "t1", "status": status, "ttl": 60_000, "pollInterval": 100, "createdAt": AT, "lastUpdatedAt": AT })
}

/// A server with a tool that asks in its task, and one that never ends.
fn server(is_http: bool) -> Scripted {
    Scripted::new(move |asked| match asked.method.as_str() {
        "tools/list" => ok(json!({ "tools": [
            { "name": "asks", "inputSchema": { "type": "object" }, "execution": { "taskSupport": "optional" } },
            { "name": "endless", "inputSchema": { "type": "object" } },
        ] })),
        "tools/call" if asked.params["name"] == "endless" => Reply::Hang,
        "tools/call" => ok(json!({ "task": of_old("working") })),
        "tasks/get" => ok(of_old("input_required")),
        "tasks/result" => {
            let (events, stream) = mpsc::unbounded_channel();
            let params = json!({
                "message": "who",
                "requestedSchema": { "type": "object", "properties": { "name": { "type": "string" } } },
                "_meta": { "io.modelcontextprotocol/related-task": { "taskId": "t1" } },
            });
            let question = json!({ "jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": params });
            events.send(question).unwrap();
            tokio::spawn(async move { events.closed().await });
            Reply::Stream(stream)
        }
        // The answer to the question, which has no method.
        "" if is_http => Reply::Http(202, vec![], String::new()),
        "" => Reply::Hang,
        _ => error(-32601, "no"),
    })
    .legacy()
}

#[tokio::test]
async fn a_question_of_a_task_goes_to_the_handler_of_its_call_and_to_nobody_elses() {
    for is_http in [true, false] {
        let scripted = server(is_http);
        let running = scripted.http().await;
        let place = if is_http { running.server() } else { scripted.streams() };
        let (owner, other, rest) = (Person::prompt(), Person::prompt(), Person::prompt());
        let client = TaskClient::builder(place).options(polling()).handler(rest.clone()).build();
        let endless = client.start_tool_with(
            CallToolRequestParams::new("endless"),
            CallOptions::default().with_handler(other.clone()),
        );
        let asks = async {
            scripted.until_asked("tools/call", 1).await;
            let options = CallOptions::default().with_handler(owner.clone());
            let started = client.start_tool_with(CallToolRequestParams::new("asks"), options).await;
            let Ok(Started::Task(handle)) = started else { panic!("no task: {started:?}") };
            tokio::select! {
                ended = handle.wait(LONG) => panic!("the script has no end: {ended:?}"),
                () = scripted.until_asked("", 1) => {}
            }
        };

        tokio::select! {
            ended = endless => panic!("the script has no end: {ended:?}"),
            () = asks => {}
        }

        assert_eq!(owner.asked(), ["who"], "over http: {is_http}");
        assert!(other.asked().is_empty() && rest.asked().is_empty(), "over http: {is_http}");
        assert_eq!(scripted.asked("")[0].id, 77);
    }
}

/// The id of a call, and the way by which it is answered.
type Way = (Value, mpsc::UnboundedSender<Value>);

/// A server that does not say to which call a question belongs, and the ways to it by which its calls are answered.
struct Vague {
    scripted: Scripted,
    calls: Arc<Mutex<Vec<Way>>>,
    client: TaskClient,
}

impl Vague {
    fn new() -> Self {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let noted = calls.clone();
        let scripted = Scripted::new(move |asked| match asked.method.as_str() {
            "tools/list" => ok(json!({ "tools": [{ "name": "tool", "inputSchema": { "type": "object" } }] })),
            "tools/call" => {
                let (events, stream) = mpsc::unbounded_channel();
                noted.lock().unwrap().push((asked.id, events));
                Reply::Stream(stream)
            }
            "" => Reply::Hang,
            _ => error(-32601, "no"),
        })
        .legacy();
        let client = TaskClient::builder(scripted.streams()).options(polling()).build();
        Self { scripted, calls, client }
    }

    /// The `nth` call, once the server has it.
    async fn call(
        &self,
        nth: usize,
        person: &str,
        handler: &(impl ClientHandler + Clone),
    ) -> JoinHandle<bool> {
        let options = CallOptions::default().with_handler(handler.clone()).on_behalf_of(person);
        let client = self.client.clone();
        let call = tokio::spawn(async move {
            client.start_tool_with(CallToolRequestParams::new("tool"), options).await.is_ok()
        });
        self.scripted.until_asked("tools/call", nth + 1).await;
        call
    }

    fn ask(&self, id: u64, message: &str) {
        let mut question = question(message);
        question["jsonrpc"] = "2.0".into();
        question["id"] = id.into();
        self.calls.lock().unwrap()[0].1.send(question).unwrap();
    }

    /// Says something without a word of which call it is about.
    fn log(&self, text: &str) {
        let params = json!({ "level": "info", "data": text });
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params });
        self.calls.lock().unwrap().last().unwrap().1.send(message).unwrap();
    }

    fn answer(&self, nth: usize) {
        let (id, way) = &self.calls.lock().unwrap()[nth];
        way.send(json!({ "jsonrpc": "2.0", "id": id, "result": text("done") })).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_of_one_of_a_persons_calls_is_put_by_another_when_the_first_ends() {
    let vague = Vague::new();
    let (first, second) = (Person::prompt(), Person::silent());
    let _endless = vague.call(0, "ann", &first).await;
    let ends = vague.call(1, "ann", &second).await;

    vague.ask(77, "who");
    second.until_asked(1).await;
    vague.answer(1);

    assert!(ends.await.unwrap());
    vague.scripted.until_asked("", 1).await;
    assert_eq!((first.asked(), second.open()), (vec!["who".to_owned()], 0));
    assert_eq!(vague.scripted.asked("")[0].id, 77);
}

#[tokio::test(start_paused = true)]
async fn questions_at_once_are_put_by_one_call_of_the_person_each() {
    let vague = Vague::new();
    let (first, second) = (Person::silent(), Person::silent());
    let _one = vague.call(0, "ann", &first).await;
    let _other = vague.call(1, "ann", &second).await;

    vague.ask(77, "who");
    second.until_asked(1).await;
    vague.ask(78, "where");

    first.until_asked(1).await;
    assert_eq!((first.asked(), second.asked()), (vec!["where".to_owned()], vec!["who".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_may_be_for_either_of_two_people_is_put_to_nobody() {
    let vague = Vague::new();
    let (ann, bob) = (Person::prompt(), Person::prompt());
    let _one = vague.call(0, "ann", &ann).await;
    let _other = vague.call(1, "bob", &bob).await;

    vague.ask(77, "the secret of one of them?");

    vague.scripted.until_asked("", 1).await;
    assert!(ann.asked().is_empty() && bob.asked().is_empty());
    assert_eq!(vague.scripted.asked("")[0].id, 77);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_came_before_a_call_is_not_put_by_that_call_when_its_own_has_ended() {
    let vague = Vague::new();
    let (ann, bob) = (Person::silent(), Person::prompt());
    let hers = vague.call(0, "ann", &ann).await;
    vague.ask(77, "the secret of ann?");
    ann.until_asked(1).await;
    let _his = vague.call(1, "bob", &bob).await;

    // The tool does without an answer, as it does after a while.
    vague.answer(0);

    assert!(hers.await.unwrap());
    vague.scripted.until_asked("", 1).await;
    assert!(bob.asked().is_empty(), "{:?}", bob.asked());
    assert_eq!((ann.open(), vague.scripted.asked("")[0].id.clone()), (0, 77.into()));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_given_up_a_while_ago_is_no_other_call_to_which_a_log_message_may_belong() {
    let vague = Vague::new();
    let ann = Person::silent();
    let given_up = vague.call(0, "ann", &ann).await;
    vague.ask(77, "who");
    ann.until_asked(1).await;
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    tokio::time::advance(Duration::from_secs(61)).await;

    let (hears, mut heard) = mpsc::unbounded_channel();
    let _call = vague.call(1, "bob", &Ear(hears)).await;
    // It is not known sooner that the call is under way.
    let logs = async {
        loop {
            vague.log("so far");
            if let Ok(heard) = tokio::time::timeout(Duration::from_secs(1), heard.recv()).await {
                break heard;
            }
        }
    };
    assert_eq!(tokio::time::timeout(LONG.unwrap(), logs).await.unwrap().as_deref(), Some("\"so far\""));
}

/// Enough that one of them is asked about sooner than this client has taken breath after it.
const CALLS: usize = 500;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_about_a_call_as_soon_as_it_is_there_is_put_by_it() {
    let asks: Mutex<Option<Way>> = Mutex::default();
    let scripted = Scripted::new(move |asked| match asked.method.as_str() {
        "tools/list" => ok(json!({ "tools": [{ "name": "tool", "inputSchema": { "type": "object" } }] })),
        "tools/call" => {
            let (events, stream) = mpsc::unbounded_channel();
            let mut question = question("who");
            question["jsonrpc"] = "2.0".into();
            question["id"] = 77.into();
            events.send(question).unwrap();
            *asks.lock().unwrap() = Some((asked.id, events));
            Reply::Stream(stream)
        }
        "" => {
            let (id, call) = asks.lock().unwrap().take().unwrap();
            call.send(json!({ "jsonrpc": "2.0", "id": id, "result": text("done") })).unwrap();
            Reply::Hang
        }
        _ => error(-32601, "no"),
    })
    .legacy();
    let (hers, rest) = (Person::prompt(), Person::prompt());
    let client = TaskClient::builder(scripted.streams()).options(polling()).handler(rest.clone()).build();

    for _ in 0..CALLS {
        let options = CallOptions::default().with_handler(hers.clone());
        client.start_tool_with(CallToolRequestParams::new("tool"), options).await.unwrap();
    }

    assert_eq!((hers.asked().len(), rest.asked().len()), (CALLS, 0));
}

/// Writes down what the server logs.
#[derive(Clone)]
struct Ear(mpsc::UnboundedSender<String>);

impl ClientHandler for Ear {
    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let _ = self.0.send(params.data.to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_words_of_one_persons_call_are_not_told_to_another_person() {
    let vague = Vague::new();
    let (said, mut heard) = mpsc::unbounded_channel();
    let ends = vague.call(0, "ann", &Person::prompt()).await;
    let _goes_on = vague.call(1, "bob", &Ear(said)).await;
    vague.answer(0);
    assert!(ends.await.unwrap());

    vague.log("ann's secret");
    // Long after it, what is said is about the only call that there is.
    tokio::time::sleep(Duration::from_secs(2)).await;
    vague.log("of bob");

    assert_eq!(heard.recv().await.as_deref(), Some("\"of bob\""));
}
