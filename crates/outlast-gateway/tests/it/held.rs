//! Callers who know nothing of tasks: rounds of questions, the tools by which they ask for their work, calls that are held for
//! too long, and calls that are made again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast::{Config, MemoryStore, Recovery, Store, SystemClock, TaskServer, Timestamp};
use outlast_core::ManualClock;
use outlast_gateway::{Gateway, GatewayOptions, ToolPolicy, Upstream, When};
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientConfig, ElicitRequestParams,
        ElicitResult, ElicitationAction, ErrorCode, Implementation, InputRequiredResult, ProtocolVersion,
    },
    service::{
        ClientLifecycleMode, Peer, RequestContext, RunningService, ServiceError, ServiceExt,
        serve_client_with_lifecycle,
    },
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::{
    scripted::{Asked, Reply, Scripted, question, said, tool},
    support::{Person, gateway, serve, text},
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

/// A caller of 2026-07-28 without tasks.
async fn modern(server: &TaskServer<Gateway>) -> RunningService<RoleClient, Person> {
    let lifecycle = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
    serve_client_with_lifecycle(Person, serve(server.clone()), lifecycle).await.unwrap()
}

async fn legacy(server: &TaskServer<Gateway>) -> RunningService<RoleClient, Person> {
    Person.serve(serve(server.clone())).await.unwrap()
}

fn params(name: &'static str, arguments: Value) -> CallToolRequestParams {
    let mut params = CallToolRequestParams::new(name);
    params.arguments = arguments.as_object().cloned();
    params
}

async fn call(peer: &Peer<RoleClient>, name: &'static str, arguments: Value) -> Result<String, ErrorData> {
    match peer.call_tool(params(name, arguments)).await {
        Ok(result) => Ok(text(&result)),
        Err(ServiceError::McpError(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

/// The call, carried on with answers to what it asked.
fn answered(state: Option<&str>, answers: Value) -> CallToolRequestParams {
    let mut params = CallToolRequestParams::new("plain");
    params.request_state = state.map(str::to_owned);
    params.input_responses = serde_json::from_value(answers).unwrap();
    params
}

async fn asks(peer: &Peer<RoleClient>, params: CallToolRequestParams) -> InputRequiredResult {
    match peer.call_tool_once(params).await.unwrap() {
        CallToolResponse::InputRequired(asks) => asks,
        other => panic!("it asks nothing: {other:?}"),
    }
}

/// The keys of what is asked, and the messages.
fn questions(asks: &InputRequiredResult) -> Vec<(String, String)> {
    let asked = json!(asks.input_requests);
    let asked = asked.as_object().unwrap().iter();
    asked
        .map(|(key, request)| (key.clone(), request["params"]["message"].as_str().unwrap().to_owned()))
        .collect()
}

fn name(name: &str) -> Value {
    json!({ "action": "accept", "content": { "name": name } })
}

/// A server of 2025-11-25 that asks these one after the other, and says what it was told.
fn asking(messages: &'static [&'static str]) -> Scripted {
    Scripted::legacy(move |asked| {
        Reply::Later(Box::pin(async move {
            let mut told = Vec::new();
            for message in messages {
                let answer = asked.wire.ask("elicitation/create", question(message)).await;
                told.push(answer["content"]["name"].as_str().unwrap_or("nothing").to_owned());
            }
            said(&told.join(" "))
        }))
    })
}

/// A server of 2026-07-28 that asks two things at once, and says what it was told.
fn asking_two() -> Scripted {
    Scripted::new(|asked| match asked.nth {
        0 => Reply::Result(json!({
            "resultType": "input_required", "requestState": "sealed", "inputRequests": {
                "one": { "method": "elicitation/create", "params": question("one?") },
                "two": { "method": "elicitation/create", "params": question("two?") },
            },
        })),
        _ => {
            let told = |key: &str| asked.params["inputResponses"][key]["content"]["name"].clone();
            said(&format!("{} {}", told("one"), told("two")))
        }
    })
}

/// The id that an answer names which says that the work goes on.
fn id_in(told: &str) -> String {
    let id = told.split("id is ").nth(1).unwrap_or_else(|| panic!("it does not go on: {told}"));
    id.split('.').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_caller_of_2026_without_tasks_is_asked_round_by_round() {
    let scripted = asking(&["who?", "whose?"]);
    let server = gateway(scripted.upstream(), When::Now, LONG).await;
    let client = modern(&server).await;
    let peer = client.peer();

    let first = asks(peer, CallToolRequestParams::new("plain")).await;
    let [(who, message)] = &*questions(&first) else { panic!("one question") };
    assert_eq!(message, "who?");
    let first_state = first.request_state.as_deref();
    // A round that brings nothing, or only answers to what was not asked, is asked again.
    for nothing in [json!({}), json!({ "nobody": name("x") })] {
        let again = asks(peer, answered(first_state, nothing)).await;
        assert_eq!((questions(&again), again.request_state.as_deref()), (questions(&first), first_state));
    }
    // So is one whose answer cannot be one.
    for wrong in [json!("Ada"), json!({ "name": "Ada" }), json!({ "action": "perhaps" })] {
        let refused = peer.call_tool_once(answered(first_state, json!({ who: wrong }))).await;
        let Err(ServiceError::McpError(refused)) = refused else { panic!("{wrong} was taken: {refused:?}") };
        assert_eq!(refused.code, ErrorCode::INVALID_PARAMS, "{refused:?}");
    }

    let second = asks(peer, answered(first_state, json!({ who: name("Ada") }))).await;
    let [(whose, message)] = &*questions(&second) else { panic!("one question") };
    assert_eq!(message, "whose?");
    assert_ne!(second.request_state.as_deref(), first_state);
    // The state of a round that is over, and states that nobody gave.
    for state in
        [first_state.unwrap(), "", ".", "x.y", "00000000000000000000000000000000.0", &"9".repeat(100_000)]
    {
        let refused = peer.call_tool_once(answered(Some(state), json!({ who: name("Bob") }))).await;
        let Err(ServiceError::McpError(refused)) = refused else { panic!("{state} was taken: {refused:?}") };
        assert_eq!(refused.code, ErrorCode::INVALID_PARAMS);
        assert!(refused.message.len() < 200, "{}", refused.message);
    }

    let last = answered(second.request_state.as_deref(), json!({ whose: name("Bob") }));
    let CallToolResponse::Complete(result) = peer.call_tool_once(last.clone()).await.unwrap() else {
        panic!("no result")
    };
    assert_eq!(text(&result), "Ada Bob");
    // The answer may have been lost on its way, and the last round comes again.
    let CallToolResponse::Complete(result) = peer.call_tool_once(last).await.unwrap() else {
        panic!("no result")
    };
    assert_eq!(text(&result), "Ada Bob");
    assert_eq!(scripted.asked("tools/call").len(), 1);
}

#[tokio::test]
async fn of_two_questions_that_are_open_one_may_be_answered_first() {
    let scripted = asking_two();
    let server = gateway(scripted.upstream(), When::Now, LONG).await;
    let client = modern(&server).await;
    let round = |state: &str, answers: Value| {
        let mut params = answered(Some(state), answers);
        params.name = "tool".into();
        params
    };

    let mut open = asks(client.peer(), CallToolRequestParams::new("tool")).await;
    while questions(&open).len() < 2 {
        // One of them may be shown before the other is there.
        open = asks(client.peer(), round(open.request_state.as_deref().unwrap(), json!({}))).await;
    }
    let state = open.request_state.unwrap();
    let rest = asks(client.peer(), round(&state, json!({ "two": name("Bob") }))).await;
    assert_eq!(questions(&rest), [("one".to_owned(), "one?".to_owned())]);
    let last = round(&rest.request_state.unwrap(), json!({ "one": name("Ada"), "two": name("Eve") }));
    let CallToolResponse::Complete(result) = client.peer().call_tool_once(last).await.unwrap() else {
        panic!("no result")
    };

    assert_eq!(text(&result), r#""Ada" "Bob""#, "what was answered stays so");
}

#[tokio::test]
async fn the_gateways_own_tools_refuse_what_they_cannot_read_and_say_what_they_want() {
    let server = gateway(asking(&["who?"]).upstream(), When::Now, SHORT).await;
    let client = legacy(&server).await;
    let unknown = "0123456789abcdef0123456789abcdef";

    for tool in ["task_status", "task_result", "task_answer", "task_cancel"] {
        for arguments in [
            json!({}),
            json!({ "task": 7 }),
            json!({ "task": null }),
            json!({ "task": [unknown] }),
            Value::Null,
        ] {
            let refused = call(client.peer(), tool, arguments.clone()).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::INVALID_PARAMS, "{tool} {arguments}");
            assert!(refused.message.contains("`task`"), "{tool} {arguments}: {}", refused.message);
        }
        for id in [unknown, "", "..", "no id", &"9".repeat(200_000)] {
            let arguments = json!({ "task": id, "answers": { "key": name("x") } });
            let refused = call(client.peer(), tool, arguments).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::INVALID_PARAMS, "{tool}: {refused:?}");
            assert!(refused.message.contains("no work"), "{tool}: {}", refused.message);
            assert!(refused.message.len() < 300, "{tool}: {}", refused.message.len());
        }
    }
    for answers in [Value::Null, json!([]), json!("Ada"), json!({})] {
        let arguments = json!({ "task": unknown, "answers": answers });
        let refused = call(client.peer(), "task_answer", arguments).await.unwrap_err();
        assert!(refused.message.contains("`answers`"), "{answers}: {}", refused.message);
    }
}

#[tokio::test]
async fn answers_that_fit_nothing_are_refused_with_what_is_asked_and_late_ones_with_how_it_stands() {
    // Nobody can be asked while the call is held, so the hold ends with the question open.
    let server = gateway(asking(&["who?", "whose?"]).upstream(), When::Now, SHORT).await;
    let slow = Slow::default();
    let client = slow.clone().serve(serve(server)).await.unwrap();
    let peer = client.peer();
    let id = id_in(&call(peer, "plain", json!({})).await.unwrap());
    let status = async || -> Value {
        let status = call(peer, "task_status", json!({ "task": id })).await.unwrap();
        serde_json::from_str(&status).unwrap()
    };
    let key = |status: &Value| status["questions"].as_object().unwrap().keys().next().unwrap().clone();
    let answer =
        async |answers: Value| call(peer, "task_answer", json!({ "task": id, "answers": answers })).await;

    let first = status().await;
    assert_eq!(first["status"], "input_required");
    let who = key(&first);
    for wrong in [json!("Ada"), json!({ "name": "Ada" }), json!({ "action": "perhaps" }), Value::Null] {
        let refused = answer(json!({ &who: wrong })).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::INVALID_PARAMS, "{wrong}: {refused:?}");
    }
    let refused = answer(json!({ "who": name("Ada") })).await.unwrap_err();
    assert!(refused.message.contains("'who'") && refused.message.contains(&who), "{}", refused.message);
    assert_eq!(status().await, first, "nothing of that was taken");

    // One that is right and one that is not: nothing is taken by halves.
    answer(json!({ &who: name("Ada"), "more": name("x") })).await.unwrap_err();
    assert_eq!(status().await, first);
    answer(json!({ &who: name("Ada") })).await.unwrap();
    let second = loop {
        let status = status().await;
        if status["questions"].is_object() && key(&status) != who {
            break status;
        }
    };
    let refused = answer(json!({ &who: name("Bob") })).await.unwrap_err();
    assert!(refused.message.contains(&key(&second)), "{}", refused.message);
    answer(json!({ key(&second): name("Bob") })).await.unwrap();
    let mut result = call(peer, "task_result", json!({ "task": id })).await.unwrap();
    while result != "Ada Bob" {
        result = call(peer, "task_result", json!({ "task": id })).await.unwrap();
    }

    let late = answer(json!({ &who: name("Eve") })).await.unwrap_err();
    assert!(late.message.contains("completed"), "{}", late.message);
    // It was told, and can be asked for again by its id.
    assert_eq!(call(peer, "task_result", json!({ "task": id })).await.unwrap(), "Ada Bob");
    assert_eq!(status().await["status"], "completed");
    let cancelled = call(peer, "task_cancel", json!({ "task": id })).await.unwrap();
    assert!(cancelled.contains("has ended"), "{cancelled}");
}

/// A person who answers a form when they are let to.
#[derive(Clone)]
struct Slow {
    asked: Arc<AtomicUsize>,
    go: Arc<Semaphore>,
}

impl Default for Slow {
    fn default() -> Self {
        Self { asked: Arc::default(), go: Arc::new(Semaphore::new(0)) }
    }
}

impl ClientHandler for Slow {
    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.go.acquire().await.unwrap().forget();
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "name": "Ada" })))
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("test", "1"))
    }
}

#[tokio::test]
async fn a_person_who_answers_after_the_hold_is_heard_and_is_not_asked_twice() {
    let scripted = asking(&["who?"]);
    let server = gateway(scripted.upstream(), When::Now, SHORT).await;
    let slow = Slow::default();
    let client = slow.clone().serve(serve(server)).await.unwrap();

    let told = call(client.peer(), "plain", json!({})).await.unwrap();
    let id = id_in(&told);
    assert!(told.contains("asks") && told.contains("task_answer"), "{told}");
    // The form is still open when the same call comes again.
    id_in(&call(client.peer(), "plain", json!({})).await.unwrap());
    assert_eq!(slow.asked.load(Ordering::SeqCst), 1);

    slow.go.add_permits(1);
    let mut result = call(client.peer(), "task_result", json!({ "task": id })).await.unwrap();
    while result != "Ada" {
        result = call(client.peer(), "task_result", json!({ "task": id })).await.unwrap();
    }
    assert_eq!((slow.asked.load(Ordering::SeqCst), scripted.asked("tools/call").len()), (1, 1));
}

#[tokio::test]
async fn questions_are_answered_one_by_one_from_elsewhere_while_the_form_is_open() {
    let scripted = asking_two();
    let server = gateway(scripted.upstream(), When::Now, SHORT).await;
    let slow = Slow::default();
    let client = slow.clone().serve(serve(server)).await.unwrap();
    let peer = client.peer();
    let id = id_in(&call(peer, "tool", json!({})).await.unwrap());
    let questions = async || -> Vec<String> {
        let status = call(peer, "task_status", json!({ "task": id })).await.unwrap();
        let status: Value = serde_json::from_str(&status).unwrap();
        status["questions"].as_object().map(|asked| asked.keys().cloned().collect()).unwrap_or_default()
    };
    while questions().await.len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    let answer = async |key: &str, said: &str| {
        let arguments = json!({ "task": id, "answers": { key: name(said) } });
        call(peer, "task_answer", arguments).await
    };
    answer("two", "Bob").await.unwrap();
    assert_eq!(questions().await, ["one"]);
    let refused = answer("two", "Eve").await.unwrap_err();
    assert!(refused.message.contains("'one'"), "{}", refused.message);
    answer("one", "Eve").await.unwrap();
    // The person comes too late for both.
    slow.go.add_permits(2);
    let mut result = call(peer, "task_result", json!({ "task": id })).await.unwrap();
    while result.contains("goes on") {
        result = call(peer, "task_result", json!({ "task": id })).await.unwrap();
    }

    assert_eq!(result, r#""Eve" "Bob""#);
}

#[tokio::test]
async fn a_form_that_was_open_when_its_session_ended_is_put_to_the_next_one() {
    let scripted = asking(&["who?"]);
    let server = gateway(scripted.upstream(), When::Now, SHORT).await;
    let gone = Slow::default();
    let client = gone.clone().serve(serve(server.clone())).await.unwrap();
    id_in(&call(client.peer(), "plain", json!({})).await.unwrap());
    client.cancel().await.unwrap();

    let client = legacy(&server).await;
    let mut result = call(client.peer(), "plain", json!({})).await.unwrap();
    while result != "Ada" {
        result = call(client.peer(), "plain", json!({})).await.unwrap();
    }
    assert_eq!(scripted.asked("tools/call").len(), 1);
}

/// A server whose calls end when they are let to, and that says how often it was called.
#[derive(Clone)]
struct Counting {
    scripted: Scripted,
    go: Arc<Semaphore>,
}

impl Counting {
    fn new() -> Self {
        let go = Arc::new(Semaphore::new(0));
        let ends = go.clone();
        let tools = json!([
            tool("tool", json!({})),
            tool("harmless", json!({ "annotations": { "readOnlyHint": true } }))
        ]);
        let scripted = Scripted::with(true, tools, move |asked: Asked| {
            let ends = ends.clone();
            Reply::Later(Box::pin(async move {
                ends.acquire().await.unwrap().forget();
                said(&format!("call {}", asked.nth + 1))
            }))
        });
        Self { scripted, go }
    }

    fn calls(&self) -> usize {
        self.scripted.asked("tools/call").len()
    }

    async fn start(
        &self,
        store: &Arc<dyn Store>,
        hold: Duration,
        policy: Option<ToolPolicy>,
    ) -> TaskServer<Gateway> {
        let mut upstream = self.scripted.upstream();
        if let Some(policy) = policy {
            upstream = upstream.tool("tool", policy);
        }
        self.start_with(store, hold, upstream).await
    }

    async fn start_with(
        &self,
        store: &Arc<dyn Store>,
        hold: Duration,
        upstream: Upstream,
    ) -> TaskServer<Gateway> {
        let mut options = GatewayOptions::default();
        (options.start, options.hold) = (When::Now, hold);
        let mut config = Config::default();
        config.drain = Duration::from_millis(10);
        Gateway::serve(vec![upstream], options, store.clone(), config).await.unwrap()
    }
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(SystemClock))
}

/// Waits until the work of a call has ended, without asking for its result.
async fn until_ended(peer: &Peer<RoleClient>, id: &str) {
    while !call(peer, "task_status", json!({ "task": id })).await.unwrap().contains("completed") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn the_same_call_is_other_work_while_the_first_is_held_and_when_its_result_was_told() {
    let counting = Counting::new();
    let server = counting.start(&memory(), LONG, None).await;
    let client = legacy(&server).await;
    let peer = client.peer();

    // Two at once are two: a model may well throw two dice.
    let (one, other) = (call(peer, "tool", json!({})), call(peer, "tool", json!({})));
    let go = async {
        counting.scripted.until_asked("tools/call", 2).await;
        counting.go.add_permits(2);
    };
    let (one, other, ()) = tokio::join!(one, other, go);
    let mut results = [one.unwrap(), other.unwrap()];
    results.sort();
    assert_eq!(results, ["call 1", "call 2"]);

    counting.go.add_permits(1);
    assert_eq!(call(peer, "tool", json!({})).await.unwrap(), "call 3");
}

#[tokio::test]
async fn the_same_call_waits_for_work_that_goes_on_and_only_where_it_is_the_same() {
    let counting = Counting::new();
    let server = counting.start(&memory(), SHORT, None).await;
    let client = legacy(&server).await;
    let peer = client.peer();
    let id = id_in(&call(peer, "tool", json!({ "a": 1, "b": 2 })).await.unwrap());

    assert_eq!(id_in(&call(peer, "tool", json!({ "b": 2, "a": 1 })).await.unwrap()), id);
    for other in [json!({ "a": 1 }), json!({ "a": 2, "b": 1 }), json!({})] {
        assert_ne!(id_in(&call(peer, "tool", other).await.unwrap()), id);
    }
    assert_ne!(id_in(&call(peer, "harmless", json!({ "a": 1, "b": 2 })).await.unwrap()), id);
    assert_eq!(counting.calls(), 5);
}

#[tokio::test]
async fn after_a_restart_work_that_ended_untold_is_told_to_the_same_call_where_it_may_not_be_done_twice() {
    let (counting, store) = (Counting::new(), memory());
    let first = counting.start(&store, SHORT, None).await;
    let client = legacy(&first).await;
    for tool in ["tool", "harmless"] {
        let id = id_in(&call(client.peer(), tool, json!({})).await.unwrap());
        counting.go.add_permits(1);
        until_ended(client.peer(), &id).await;
    }
    first.shutdown().await;
    first.handler().close().await;

    let second = counting.start(&store, LONG, None).await;
    let client = legacy(&second).await;
    let result = client.peer().call_tool(params("tool", json!({}))).await.unwrap();
    assert_eq!((text(&result), counting.calls()), ("call 1".into(), 2));
    let note = json!(result.content)[1]["text"].as_str().unwrap().to_owned();
    assert!(note.contains("earlier") && note.contains("make the call again"), "{note}");
    // From then on it is told, and what may be done twice is done again at once.
    counting.go.add_permits(2);
    assert_eq!(call(client.peer(), "tool", json!({})).await.unwrap(), "call 3");
    assert_eq!(call(client.peer(), "harmless", json!({})).await.unwrap(), "call 4");
}

#[tokio::test]
async fn after_a_restart_the_operators_word_on_repeats_counts_more_than_the_tools() {
    let (counting, store) = (Counting::new(), memory());
    let mut policy = ToolPolicy::default();
    policy.recovery = Some(Recovery::Rerun);
    let first = counting.start(&store, SHORT, Some(policy.clone())).await;
    let client = legacy(&first).await;
    let id = id_in(&call(client.peer(), "tool", json!({})).await.unwrap());
    counting.go.add_permits(1);
    until_ended(client.peer(), &id).await;
    first.shutdown().await;
    first.handler().close().await;

    let second = counting.start(&store, LONG, Some(policy)).await;
    counting.go.add_permits(1);
    assert_eq!(call(legacy(&second).await.peer(), "tool", json!({})).await.unwrap(), "call 2");
}

#[tokio::test]
async fn after_a_restart_work_whose_caller_waited_to_its_end_counts_as_told_unless_the_end_was_just_now() {
    for (passes, brings) in [(59, "call 1"), (61, "call 2")] {
        let clock = ManualClock::new(Timestamp::from_millis(1_795_968_643_120));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock.clone()));
        let counting = Counting::new();
        let start = async || {
            let mut options = GatewayOptions::default();
            (options.start, options.hold) = (When::Now, LONG);
            let mut config = Config::default();
            (config.drain, config.clock) = (Duration::from_millis(10), Arc::new(clock.clone()));
            Gateway::serve(vec![counting.scripted.upstream()], options, store.clone(), config).await.unwrap()
        };
        counting.go.add_permits(1);
        let first = start().await;
        assert_eq!(call(legacy(&first).await.peer(), "tool", json!({})).await.unwrap(), "call 1");
        // The process may have ended before the answer left, as far as the next one knows.
        first.shutdown().await;
        first.handler().close().await;
        clock.advance(Duration::from_secs(passes));

        let second = start().await;
        counting.go.add_permits(1);
        assert_eq!(
            call(legacy(&second).await.peer(), "tool", json!({})).await.unwrap(),
            brings,
            "{passes} s"
        );
    }
}

#[tokio::test]
async fn after_a_restart_what_was_told_in_the_end_of_a_newer_call_hides_what_an_older_one_left() {
    let (counting, store) = (Counting::new(), memory());
    let first = counting.start(&store, SHORT, None).await;
    let client = legacy(&first).await;
    let id = id_in(&call(client.peer(), "tool", json!({})).await.unwrap());
    counting.go.add_permits(1);
    until_ended(client.peer(), &id).await;
    assert_eq!(call(client.peer(), "tool", json!({})).await.unwrap(), "call 1");
    // The same call anew, which is told that it goes on, and left.
    id_in(&call(client.peer(), "tool", json!({})).await.unwrap());
    first.shutdown().await;
    first.handler().close().await;

    let second = counting.start(&store, LONG, None).await;
    let refused = call(legacy(&second).await.peer(), "tool", json!({})).await.unwrap_err();

    assert!(refused.message.contains("the outcome is unknown"), "{}", refused.message);
    assert_eq!(counting.calls(), 2);
}

#[tokio::test]
async fn a_held_call_is_told_that_its_work_goes_on_when_the_gateway_ends() {
    let scripted = Scripted::legacy(|_| Reply::Hang);
    let mut options = GatewayOptions::default();
    (options.start, options.hold) = (When::Now, LONG);
    let mut config = Config::default();
    config.drain = SHORT;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(SystemClock));
    let server = Gateway::serve(vec![scripted.upstream()], options, store, config).await.unwrap();
    let (old, new) = (legacy(&server).await, modern(&server).await);

    let ends = async {
        scripted.until_asked("tools/call", 2).await;
        server.shutdown().await;
    };
    let (one, other, ()) = tokio::join!(
        call(old.peer(), "plain", json!({ "n": 1 })),
        call(new.peer(), "plain", json!({ "n": 2 })),
        ends
    );

    for told in [one, other] {
        assert!(!id_in(&told.unwrap()).is_empty());
    }
}
