//! Two callers of one gateway, over HTTP, who know nothing of each other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outlast::{Config, MemoryStore, Store, SystemClock, TaskServer};
use outlast_gateway::{Gateway, GatewayOptions, When};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::scripted::{Asked, Reply, Scripted, question, said, task};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);
const PACE: Duration = Duration::from_millis(100);

/// A caller with a token, or without one.
#[derive(Clone)]
struct Caller {
    address: String,
    token: Option<&'static str>,
    /// Whether it declares the extension.
    knows_tasks: bool,
}

impl Caller {
    /// The same caller, by a host that knows nothing of tasks.
    fn without_tasks(&self) -> Self {
        Self { knows_tasks: false, ..self.clone() }
    }

    /// All that came back, as it came.
    async fn text(&self, method: &str, mut params: Value) -> String {
        let extensions =
            if self.knows_tasks { json!({ "io.modelcontextprotocol/tasks": {} }) } else { json!({}) };
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": { "elicitation": {}, "extensions": extensions },
        });
        for (key, value) in meta.as_object().unwrap() {
            params["_meta"][key] = value.clone();
        }
        let name = params["name"].as_str().or(params["taskId"].as_str()).unwrap_or_default().to_owned();
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let token = self.token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n{token}\
            Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
            MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\nMcp-Name: {name}\r\n\r\n{body}",
            self.address,
            body.len(),
        );
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer
    }

    /// The answer to a request: its `result` or `error`.
    async fn ask(&self, method: &str, params: Value) -> Result<Value, Value> {
        let text = self.text(method, params).await;
        let message = text.lines().find_map(|line| {
            serde_json::from_str::<Value>(line.strip_prefix("data: ").unwrap_or(line))
                .ok()
                .filter(Value::is_object)
        });
        let mut message = message.unwrap_or_else(|| panic!("no message in {text}"));
        match message.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(message["result"].take()),
        }
    }

    async fn call(&self, tool: &str, arguments: Value) -> Result<Value, Value> {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Makes a call that becomes a task, under a key if there is one, and gives the task's id.
    async fn start(&self, key: Option<&str>, arguments: Value) -> String {
        let mut params = json!({ "name": "tool", "arguments": arguments });
        if let Some(key) = key {
            params["_meta"] = json!({ "outlast/idempotencyKey": key });
        }
        let created = self.ask("tools/call", params).await.unwrap();
        created["taskId"].as_str().unwrap_or_else(|| panic!("no task: {created}")).to_owned()
    }

    async fn get(&self, id: &str) -> Value {
        self.ask("tasks/get", json!({ "taskId": id })).await.unwrap()
    }

    async fn until(&self, id: &str, status: &str) -> Value {
        loop {
            let task = self.get(id).await;
            if task["status"] == status {
                return task;
            }
            let is_final = matches!(task["status"].as_str(), Some("completed" | "failed" | "cancelled"));
            assert!(!is_final, "it is not {status}: {task}");
            tokio::time::sleep(PACE).await;
        }
    }

    async fn answer(&self, id: &str, key: &str, name: &str) -> Result<Value, Value> {
        self.ask("tasks/update", json!({ "taskId": id, "inputResponses": { key: accept(name) } })).await
    }
}

fn accept(name: &str) -> Value {
    json!({ "action": "accept", "content": { "name": name } })
}

fn text_of(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}

/// The id that a caller without tasks was told.
fn told_id(result: &Value) -> String {
    let (_, rest) = text_of(result).split_once("Its id is ").unwrap_or_else(|| panic!("{result}"));
    rest.split('.').next().unwrap().to_owned()
}

/// A gateway over HTTP, and two who call it.
async fn serve(server: TaskServer<Gateway>) -> [Caller; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { outlast::http::serve(listener, server, std::future::pending()).await });
    ["ann", "bob"].map(|token| Caller { address: address.clone(), token: Some(token), knows_tasks: true })
}

async fn gateway(store: &Arc<dyn Store>, scripted: &Scripted, hold: Duration) -> TaskServer<Gateway> {
    let mut options = GatewayOptions::default();
    (options.start, options.hold) = (When::Now, hold);
    let mut config = Config::default();
    config.drain = Duration::ZERO;
    Gateway::serve(vec![scripted.upstream()], options, store.clone(), config).await.unwrap()
}

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(SystemClock))
}

async fn in_front(scripted: &Scripted, hold: Duration) -> [Caller; 2] {
    serve(gateway(&store(), scripted, hold).await).await
}

fn who(asked: &Asked) -> String {
    asked.params["arguments"]["for"].as_str().unwrap_or_default().to_owned()
}

fn elicits(of: &str) -> Value {
    json!({ "method": "elicitation/create", "params": question(&format!("who is {of}?")) })
}

/// Answers each call with a task of its own, which asks, and ends with the answer.
fn asks_in_tasks() -> Scripted {
    let answers = Arc::new(std::sync::Mutex::new(std::collections::HashMap::<String, String>::new()));
    Scripted::new(move |asked| {
        let id = asked.params["taskId"].as_str().unwrap_or_default().to_owned();
        match asked.method.as_str() {
            "tools/call" => task(&who(&asked), "working", json!({ "resultType": "task" })),
            "tasks/update" => {
                let name =
                    asked.params["inputResponses"]["q"]["content"]["name"].as_str().unwrap().to_owned();
                answers.lock().unwrap().insert(id, name);
                Reply::Result(json!({ "resultType": "complete" }))
            }
            "tasks/get" => match answers.lock().unwrap().get(&id) {
                Some(name) => {
                    let text = format!("{id} is {name}");
                    let result = json!({ "content": [{ "type": "text", "text": text }] });
                    task(&id, "completed", json!({ "result": result }))
                }
                None => task(&id, "input_required", json!({ "inputRequests": { "q": elicits(&id) } })),
            },
            _ => Reply::Error(-32601, "no"),
        }
    })
}

/// Asks by an answer to the call, and ends with what it is told.
fn asks_in_rounds() -> Scripted {
    Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => match asked.params["inputResponses"]["q"]["content"]["name"].as_str() {
            Some(name) => said(&format!("{} is {name}", asked.params["requestState"].as_str().unwrap())),
            None => Reply::Result(json!({
                "resultType": "input_required", "requestState": who(&asked),
                "inputRequests": { "q": elicits(&who(&asked)) },
            })),
        },
        _ => Reply::Error(-32601, "no"),
    })
}

/// Asks during the call, by a request that does not say to which call it belongs, while `at_once` calls are under way.
fn asks_in_calls(at_once: usize) -> Scripted {
    let all = Arc::new(tokio::sync::Barrier::new(at_once));
    let tools = json!([{ "name": "tool", "inputSchema": { "type": "object" } }]);
    Scripted::with(true, tools, move |asked| match asked.method.as_str() {
        "tools/call" => {
            let (of, wire, all) = (who(&asked), asked.wire.clone(), all.clone());
            Reply::Later(Box::pin(async move {
                all.wait().await;
                let answer = wire.ask("elicitation/create", question(&format!("who is {of}?"))).await;
                all.wait().await;
                let name = answer["content"]["name"].as_str().map(|name| format!("{of} is {name}"));
                said(&name.unwrap_or_else(|| answer["message"].to_string()))
            }))
        }
        _ => Reply::Error(-32601, "no"),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_reaches_the_one_whose_call_asks_it_and_nobody_else() {
    for scripted in [asks_in_tasks(), asks_in_rounds()] {
        let callers = in_front(&scripted, LONG).await;
        let mut ids = Vec::new();
        for caller in &callers {
            ids.push(caller.start(None, json!({ "for": caller.token })).await);
        }

        let mut keys = Vec::new();
        for (caller, id) in callers.iter().zip(&ids) {
            let asking = caller.until(id, "input_required").await;
            let asked = asking["inputRequests"].as_object().unwrap();
            assert_eq!(asked.len(), 1, "{asking}");
            let (key, request) = asked.iter().next().unwrap();
            assert_eq!(request["params"]["message"], format!("who is {}?", caller.token.unwrap()));
            keys.push(key.clone());
        }
        // The other one's answer goes nowhere, although it knows id and key.
        for (caller, n) in callers.iter().zip([1, 0]) {
            caller.answer(&ids[n], &keys[n], "an intruder").await.unwrap_err();
        }
        for ((caller, id), key) in callers.iter().zip(&ids).zip(&keys) {
            let of = caller.token.unwrap();
            caller.answer(id, key, &format!("{of} herself")).await.unwrap();
            let done = caller.until(id, "completed").await;
            assert_eq!(text_of(&done["result"]), format!("{of} is {of} herself"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_may_be_either_callers_is_shown_to_neither() {
    let callers = in_front(&asks_in_calls(2), LONG).await;
    let mut ids = Vec::new();
    for caller in &callers {
        ids.push(caller.start(None, json!({ "for": caller.token })).await);
    }

    for (caller, id) in callers.iter().zip(&ids) {
        let done = caller.until(id, "completed").await;
        let refusal = text_of(&done["result"]);
        assert!(refusal.contains("does not say to which call it belongs"), "{refusal}");
    }

    // One at a time there is no doubt.
    for caller in in_front(&asks_in_calls(1), LONG).await {
        let of = caller.token.unwrap();
        let id = caller.start(None, json!({ "for": of })).await;
        let asking = caller.until(&id, "input_required").await;
        let key = asking["inputRequests"].as_object().unwrap().keys().next().unwrap();
        caller.answer(&id, key, "herself").await.unwrap();
        let done = caller.until(&id, "completed").await;
        assert_eq!(text_of(&done["result"]), format!("{of} is herself"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_elses_task_is_as_little_there_as_one_that_never_was() {
    let scripted = asks_in_tasks();
    let [ann, bob] = in_front(&scripted, SHORT).await;
    let id = ann.start(None, json!({ "for": "ann" })).await;
    ann.until(&id, "input_required").await;
    let never = "0".repeat(id.len());
    let nobody = Caller { token: None, ..bob.clone() };

    for other in [&bob, &nobody] {
        for (method, more) in [
            ("tasks/get", json!({})),
            ("tasks/update", json!({ "inputResponses": { "task-q": accept("an intruder") } })),
            ("tasks/cancel", json!({})),
        ] {
            let refusal = async |id: &str| {
                let mut params = more.clone();
                params["taskId"] = id.into();
                other.ask(method, params).await.expect_err(method)
            };
            assert_eq!(refusal(&id).await, refusal(&never).await, "{method}");
        }
        for tool in ["task_status", "task_result", "task_answer", "task_cancel"] {
            let other = other.without_tasks();
            let refusal = async |id: &str| {
                let answers = json!({ "task-q": accept("an intruder") });
                other.call(tool, json!({ "task": id, "answers": answers })).await.expect_err(tool)
            };
            assert_eq!(refusal(&id).await, refusal(&never).await, "{tool}");
        }
    }

    assert_eq!(ann.get(&id).await["status"], "input_required");
    for untouched in ["tasks/update", "tasks/cancel"] {
        assert!(scripted.asked(untouched).is_empty(), "{untouched} reached the upstream");
    }
    let status = ann.without_tasks().call("task_status", json!({ "task": id })).await.unwrap();
    assert!(text_of(&status).contains("who is ann?"), "it is hers by whatever host: {status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_listens_for_somebody_elses_task_hears_nothing() {
    let [ann, bob] = in_front(&asks_in_tasks(), LONG).await;
    let anns = ann.start(None, json!({ "for": "ann" })).await;
    let bobs = bob.start(None, json!({ "for": "bob" })).await;

    // The stream ends with the last task that is followed: with his own.
    let heard = async {
        bob.text("subscriptions/listen", json!({ "notifications": { "taskIds": [anns, bobs] } })).await
    };
    let end_both = async {
        for (caller, id) in [(&ann, &anns), (&bob, &bobs)] {
            let asking = caller.until(id, "input_required").await;
            let key = asking["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
            caller.answer(id, &key, "somebody").await.unwrap();
            caller.until(id, "completed").await;
        }
    };
    let (heard, ()) = tokio::join!(heard, end_both);

    assert!(heard.contains(&bobs), "{heard}");
    assert!(!heard.contains(&anns) && !heard.contains("ann is"), "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_call_under_the_same_key_is_another_call_for_another_caller() {
    let scripted = Scripted::new(|asked| match asked.method.as_str() {
        "tools/call" => said(&format!("call {}", asked.nth)),
        _ => Reply::Error(-32601, "no"),
    });
    let callers = in_front(&scripted, LONG).await;

    let mut results = Vec::new();
    for caller in &callers {
        let id = caller.start(Some("key"), json!({ "a": 1 })).await;
        assert_eq!(caller.start(Some("key"), json!({ "a": 1 })).await, id, "a repeat is the same call");
        results.push(text_of(&caller.until(&id, "completed").await["result"]).to_owned());
    }

    assert_eq!(results, ["call 0", "call 1"]);
    let keys = scripted.asked("tools/call").into_iter();
    let keys: Vec<Value> = keys.map(|call| call.params["_meta"]["outlast/idempotencyKey"].clone()).collect();
    assert!(keys.len() == 2 && keys[0].is_string() && keys[0] != keys[1], "{keys:?}");
}

/// Each call is a task of its own, which is over when it may be.
fn counts(over: &Arc<AtomicBool>) -> Scripted {
    let over = over.clone();
    Scripted::new(move |asked| match asked.method.as_str() {
        "tools/call" => task(&format!("call {}", asked.nth), "working", json!({ "resultType": "task" })),
        "tasks/get" => {
            let id = asked.params["taskId"].as_str().unwrap();
            let result = json!({ "content": [{ "type": "text", "text": id }] });
            match over.load(Ordering::SeqCst) {
                true => task(id, "completed", json!({ "result": result })),
                false => task(id, "working", json!({})),
            }
        }
        _ => Reply::Error(-32601, "no"),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_call_of_two_callers_without_tasks_is_the_work_of_each() {
    let over = Arc::new(AtomicBool::new(false));
    let scripted = counts(&over);
    let store = store();
    let first = gateway(&store, &scripted, SHORT).await;
    let callers = serve(first.clone()).await.map(|caller| caller.without_tasks());

    let mut ids = Vec::new();
    for caller in &callers {
        let id = told_id(&caller.call("tool", json!({ "a": 1 })).await.unwrap());
        let again = told_id(&caller.call("tool", json!({ "a": 1 })).await.unwrap());
        assert_eq!(again, id, "a repeat waits for the same work");
        ids.push(id);
    }
    assert_ne!(ids[0], ids[1]);
    assert_eq!(scripted.asked("tools/call").len(), 2);

    // So it is after a restart.
    first.shutdown().await;
    over.store(true, Ordering::SeqCst);
    let second = gateway(&store, &scripted, LONG).await;
    let callers = serve(second).await.map(|caller| caller.without_tasks());
    for (n, caller) in callers.iter().enumerate().rev() {
        let result = caller.call("tool", json!({ "a": 1 })).await.unwrap();
        assert_eq!(text_of(&result), format!("call {n}"));
    }
    assert_eq!(scripted.asked("tools/call").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_answers_a_question_that_somebody_else_was_asked_while_their_call_was_held() {
    let scripted = asks_in_tasks();
    let [ann, bob] = in_front(&scripted, LONG).await.map(|caller| caller.without_tasks());
    let asked = ann.call("tool", json!({ "for": "ann" })).await.unwrap();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let answering = |name: &str| {
        json!({
            "name": "tool", "arguments": { "for": "ann" }, "requestState": asked["requestState"],
            "inputResponses": { key.clone(): accept(name) },
        })
    };

    let refusal = bob.ask("tools/call", answering("an intruder")).await.unwrap_err();
    assert_eq!(refusal["code"], -32602, "{refusal}");
    let result = ann.ask("tools/call", answering("herself")).await.unwrap();

    assert_eq!(text_of(&result), "ann is herself");
    assert_eq!(scripted.asked("tasks/update").len(), 1);
}
