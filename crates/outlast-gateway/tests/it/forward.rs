//! Upstreams that get their callers' own `Authorization` headers: each its own, and nothing of another's.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use outlast::{Config, MemoryStore, Principal, Store, SystemClock, TaskServer, http};
use outlast_client::Server;
use outlast_gateway::{Gateway, GatewayOptions, Upstream, When};
use outlast_sqlite::SqliteStore;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

const LONG: Duration = Duration::from_secs(60);
const PACE: Duration = Duration::from_millis(100);
const CHALLENGE: &str = "Bearer error=\"invalid_token\"";

/// A request as the upstream got it: its method, its `Authorization` without the scheme, and its session.
type Seen = (String, String, String);

/// An upstream that answers each request with the token that came with it.
#[derive(Clone)]
struct Stub(Arc<Inner>);

struct Inner {
    legacy: bool,
    seen: Mutex<Vec<Seen>>,
    news: watch::Sender<usize>,
    /// The tokens that are let in; all where there are none.
    good: Mutex<BTreeSet<&'static str>>,
    sessions: AtomicUsize,
    is_done: AtomicBool,
    /// Whether its tasks are not those of callers without a token.
    has_owners: AtomicBool,
}

impl Stub {
    fn new(legacy: bool) -> Self {
        Self(Arc::new(Inner {
            legacy,
            seen: Mutex::default(),
            news: watch::channel(0).0,
            good: Mutex::default(),
            sessions: AtomicUsize::new(0),
            is_done: AtomicBool::new(false),
            has_owners: AtomicBool::new(false),
        }))
    }

    /// Lets in these tokens and no others from now on.
    fn lets_in(&self, tokens: &[&'static str]) {
        *self.0.good.lock().unwrap() = tokens.iter().copied().collect();
    }

    /// Lets its tasks end.
    fn ends(&self) {
        self.0.is_done.store(true, Ordering::SeqCst);
        self.0.news.send_modify(|count| *count += 1);
    }

    async fn serve(&self) -> String {
        let stub = self.clone();
        let answer = move |headers: HeaderMap, body: Bytes| {
            let stub = stub.clone();
            async move {
                let answer = stub.answer(&headers, &body);
                // A tool that answers when the tasks end.
                if String::from_utf8_lossy(&body).contains("\"name\":\"held\"") {
                    let is_done = |_: &usize| stub.0.is_done.load(Ordering::SeqCst);
                    let _ = stub.0.news.subscribe().wait_for(is_done).await;
                }
                answer
            }
        };
        let app = axum::Router::new().route("/mcp", axum::routing::post(answer));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        url
    }

    fn answer(&self, headers: &HeaderMap, body: &[u8]) -> Response {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let token =
            text("authorization").map(|value| value.strip_prefix("Bearer ").unwrap_or(&value).to_owned());
        let token = token.unwrap_or_else(|| "nobody".to_owned());
        let message: Value = serde_json::from_slice(body).unwrap();
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let session = text("mcp-session-id").unwrap_or_default();
        self.0.seen.lock().unwrap().push((method.clone(), token.clone(), session));
        self.0.news.send_modify(|count| *count += 1);
        {
            let good = self.0.good.lock().unwrap();
            if !good.is_empty() && !good.contains(token.as_str()) {
                return (StatusCode::UNAUTHORIZED, [("www-authenticate", CHALLENGE)]).into_response();
            }
        }
        if message.get("id").is_none() {
            return StatusCode::ACCEPTED.into_response();
        }
        // Of its tasks it does not tell.
        if method == "subscriptions/listen" && message["params"]["notifications"]["taskIds"].is_null() {
            return acknowledged(&message);
        }
        let outcome = match self.result(&method, &token, &message["params"]) {
            // Without a token one is another caller, who has no tasks.
            Some(_)
                if method.starts_with("tasks/")
                    && token == "nobody"
                    && self.0.has_owners.load(Ordering::SeqCst) =>
            {
                json!({
                    "jsonrpc": "2.0", "id": message["id"], "error": { "code": -32602, "message": "no such task" },
                })
            }
            Some(mut result) => {
                if !self.0.legacy && result["resultType"].is_null() {
                    result["resultType"] = "complete".into();
                }
                json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })
            }
            None => json!({
                "jsonrpc": "2.0", "id": message["id"], "error": { "code": -32601, "message": "Method not found" },
            }),
        };
        let mut response =
            ([(header::CONTENT_TYPE, "application/json")], outcome.to_string()).into_response();
        if method == "initialize" {
            let session = format!("s{}", self.0.sessions.fetch_add(1, Ordering::SeqCst));
            response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
        }
        response
    }

    fn result(&self, method: &str, token: &str, params: &Value) -> Option<Value> {
        let tool = |name: &str| {
            json!({
                "name": name, "inputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true },
                "execution": { "taskSupport": if name == "slow" { "optional" } else { "forbidden" } },
            })
        };
        let content = json!([{ "type": "text", "text": token }]);
        let capabilities = json!({
            "tools": {}, "prompts": {}, "resources": { "subscribe": true }, "completions": {}, "logging": {},
            "extensions": { "io.modelcontextprotocol/tasks": {} }, "tasks": { "requests": { "tools": { "call": {} } } },
        });
        let instructions = format!("for {token}");
        let task = |status: &str| {
            json!({
                "taskId": "theirs", "status": status, "ttlMs": null, "ttl": null, "pollIntervalMs": 50, "pollInterval": 50,
                "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
            })
        };
        let is_done = self.0.is_done.load(Ordering::SeqCst);
        Some(match method {
            "server/discover" if !self.0.legacy => json!({
                "supportedVersions": ["2026-07-28"], "capabilities": capabilities, "instructions": instructions,
                "ttlMs": 60_000, "cacheScope": "public",
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "stub", "version": "1" } },
            }),
            "initialize" if self.0.legacy => json!({
                "protocolVersion": "2025-11-25", "capabilities": capabilities, "instructions": instructions,
                "serverInfo": { "name": "stub", "version": "1" },
            }),
            "tools/list" => json!({
                "tools": [tool("tool"), tool("slow"), tool(&format!("of_{token}"))], "ttlMs": 60_000, "cacheScope": "public",
            }),
            "prompts/list" => json!({
                "prompts": [{ "name": format!("p_{token}") }], "ttlMs": 60_000, "cacheScope": "public",
            }),
            "prompts/get" => json!({ "description": token, "messages": [] }),
            "resources/list" => json!({
                "resources": [{ "uri": format!("a://{token}"), "name": "a" }], "ttlMs": 60_000, "cacheScope": "public",
            }),
            "resources/templates/list" => json!({
                "resourceTemplates": [{ "uriTemplate": format!("a://{token}/{{x}}"), "name": "a" }],
                "ttlMs": 60_000, "cacheScope": "public",
            }),
            "resources/read" => json!({
                "contents": [{ "uri": "a://1", "text": token }], "ttlMs": 60_000, "cacheScope": "public",
            }),
            "completion/complete" => json!({ "completion": { "values": [token] } }),
            "resources/subscribe"
            | "resources/unsubscribe"
            | "logging/setLevel"
            | "tasks/update"
            | "tasks/cancel" => json!({}),
            "tools/call" if params["name"] == "slow" && self.0.legacy => json!({ "task": task("working") }),
            "tools/call" if params["name"] == "slow" => {
                let mut created = task("working");
                created["resultType"] = "task".into();
                created
            }
            "tools/call" | "tasks/result" => json!({ "content": content }),
            "tasks/get" if is_done && !self.0.legacy => {
                let mut ended = task("completed");
                ended["result"] = json!({ "content": content });
                ended
            }
            "tasks/get" if is_done => task("completed"),
            "tasks/get" => task("working"),
            "custom/echo" => json!({ "who": token }),
            _ => return None,
        })
    }

    /// The tokens with which a method was asked for, in order.
    fn tokens(&self, method: &str) -> Vec<String> {
        let seen = self.0.seen.lock().unwrap();
        seen.iter().filter(|(asked, ..)| asked == method).map(|(_, token, _)| token.clone()).collect()
    }

    fn seen(&self) -> Vec<Seen> {
        self.0.seen.lock().unwrap().clone()
    }

    /// Waits until a method was asked for with this token, so many times.
    async fn until_seen(&self, method: &str, token: &str, times: usize) {
        let is_seen = |_: &usize| self.tokens(method).iter().filter(|seen| *seen == token).count() >= times;
        let mut news = self.0.news.subscribe();
        tokio::time::timeout(LONG, news.wait_for(is_seen)).await.expect(method).unwrap();
    }
}

/// A subscription to everything that was asked for, on which nothing is ever said.
fn acknowledged(message: &Value) -> Response {
    let said = json!({
        "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
        "params": {
            "notifications": message["params"]["notifications"],
            "_meta": { "io.modelcontextprotocol/subscriptionId": message["id"] },
        },
    });
    let first = futures::stream::iter([Ok::<_, Infallible>(format!("data: {said}\n\n"))]);
    let body = Body::from_stream(first.chain(futures::stream::pending()));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// A gateway over HTTP that knows people: of the token `ann-2` the person is `ann`.
async fn serve(server: TaskServer<Gateway>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = http::Options::default();
    let person = axum::middleware::map_request(async |mut request: axum::extract::Request| {
        let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let person = token.and_then(|token| token.strip_prefix("Bearer ")?.split('-').next());
        if let Some(person) = person.map(str::to_owned) {
            request.extensions_mut().insert(Principal::new(person));
        }
        request
    });
    let router = http::router(&server, &options).layer(person);
    tokio::spawn(async move {
        http::serve_router(listener, router, server, &options, std::future::pending()).await
    });
    address
}

async fn gateway(upstreams: Vec<Upstream>, store: Arc<dyn Store>) -> TaskServer<Gateway> {
    gateway_with(Config::default(), upstreams, store).await
}

async fn gateway_with(
    mut config: Config,
    upstreams: Vec<Upstream>,
    store: Arc<dyn Store>,
) -> TaskServer<Gateway> {
    let mut options = GatewayOptions::default();
    options.start = When::Now;
    options.hold = LONG;
    config.drain = Duration::ZERO;
    Gateway::serve(upstreams, options, store, config).await.unwrap()
}

/// A gateway in front of the stub, which forwards, and its two callers.
async fn in_front(stub: &Stub) -> [Caller; 2] {
    let upstream = Upstream::only(Server::http(stub.serve().await)).forward_authorization();
    let server = gateway(vec![upstream], Arc::new(MemoryStore::new(SystemClock))).await;
    let address = serve(server).await;
    ["ann-1", "bob-1"].map(|token| Caller { address: address.clone(), token })
}

/// A caller of 2026-07-28 with a token.
#[derive(Clone)]
struct Caller {
    address: String,
    token: &'static str,
}

impl Caller {
    fn with(&self, token: &'static str) -> Self {
        Self { token, ..self.clone() }
    }

    async fn ask(&self, method: &str, params: Value) -> Result<Value, Value> {
        self.ask_as(method, params, true).await
    }

    /// The answer to a request: its `result` or `error`.
    async fn ask_as(&self, method: &str, mut params: Value, knows_tasks: bool) -> Result<Value, Value> {
        let extensions = match knows_tasks {
            true => json!({ "io.modelcontextprotocol/tasks": {} }),
            false => json!({}),
        };
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": { "extensions": extensions },
        });
        let name = ["name", "uri", "taskId"].iter().find_map(|key| params[*key].as_str());
        let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let headers = format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}");
        message(&self.post(&body, &headers).await)
    }

    async fn post(&self, body: &Value, headers: &str) -> String {
        let body = body.to_string();
        let authorization = match self.token {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n{authorization}{headers}\
            Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\r\n{body}",
            self.address,
            body.len(),
        );
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await.expect("an answer").unwrap();
        answer
    }

    async fn start(&self, tool: &str) -> String {
        let created = self.ask("tools/call", json!({ "name": tool })).await.unwrap();
        created["taskId"].as_str().unwrap_or_else(|| panic!("no task: {created}")).to_owned()
    }

    async fn get(&self, id: &str) -> Value {
        self.ask("tasks/get", json!({ "taskId": id })).await.unwrap()
    }

    async fn until(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let looks = async {
            loop {
                match self.ask("tasks/get", json!({ "taskId": id })).await {
                    Ok(task) if is_so(&task) => break task,
                    Ok(_) | Err(_) => tokio::time::sleep(PACE).await,
                }
            }
        };
        tokio::time::timeout(LONG, looks).await.expect("the task is so in time")
    }

    /// What a call of a tool brings, which says whose token the upstream got.
    async fn ended(&self, id: &str) -> String {
        let task = self.until(id, is_final).await;
        task["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{task}")).to_owned()
    }
}

fn message(answer: &str) -> Result<Value, Value> {
    let found = answer.lines().find_map(|line| {
        serde_json::from_str::<Value>(line.strip_prefix("data: ").unwrap_or(line))
            .ok()
            .filter(Value::is_object)
    });
    let mut found = found.unwrap_or_else(|| panic!("no message in {answer}"));
    match found.get("error") {
        Some(error) => Err(error.clone()),
        None => Ok(found["result"].take()),
    }
}

fn is_final(task: &Value) -> bool {
    matches!(task["status"].as_str(), Some("completed" | "failed" | "cancelled"))
}

fn waits(task: &Value) -> bool {
    task["statusMessage"].as_str().is_some_and(|said| said.contains("waits for the caller's next request"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_of_a_caller_carries_that_callers_header() {
    let stub = Stub::new(false);
    for caller in in_front(&stub).await {
        let token = caller.token;
        let ask = async |method: &str, params: Value| caller.ask(method, params).await.unwrap().to_string();
        for (method, params) in [
            ("tools/list", json!({})),
            ("prompts/list", json!({})),
            ("resources/list", json!({})),
            ("resources/templates/list", json!({})),
            ("prompts/get", json!({ "name": "p" })),
            ("resources/read", json!({ "uri": "a://1" })),
            (
                "completion/complete",
                json!({ "ref": { "type": "ref/prompt", "name": "p" }, "argument": { "name": "a", "value": "" } }),
            ),
            ("custom/echo", json!({})),
            ("server/discover", json!({})),
        ] {
            let answer = ask(method, params).await;
            assert!(answer.contains(token), "{method}: {answer}");
        }
        let id = caller.start("tool").await;
        assert_eq!(caller.ended(&id).await, token);
        let held =
            caller.ask_as("tools/call", json!({ "name": "tool", "arguments": { "n": 1 } }), false).await;
        assert_eq!(held.unwrap()["content"][0]["text"], token);
    }
    let others: Vec<_> = stub.seen().into_iter().filter(|(_, token, _)| token == "nobody").collect();
    assert_eq!(others, [], "the gateway asks nothing for itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_header_is_forwarded_unless_that_is_set() {
    let stub = Stub::new(false);
    let upstream = Upstream::only(Server::http(stub.serve().await));
    let server = gateway(vec![upstream], Arc::new(MemoryStore::new(SystemClock))).await;
    let caller = Caller { address: serve(server).await, token: "ann-1" };
    let id = caller.start("slow").await;
    stub.until_seen("tasks/get", "nobody", 1).await;
    caller.ask("tools/list", json!({})).await.unwrap();
    caller.ask("tasks/cancel", json!({ "taskId": id })).await.unwrap();
    stub.until_seen("tasks/cancel", "nobody", 1).await;
    assert!(stub.seen().iter().all(|(_, token, _)| token == "nobody"), "{:?}", stub.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_owner_was_told_is_not_shown_to_another() {
    let stub = Stub::new(false);
    let [ann, bob] = in_front(&stub).await;
    for method in
        ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover"]
    {
        for (caller, other) in [(&ann, "bob-1"), (&bob, "ann-1"), (&ann, "bob-1")] {
            let told = caller.ask(method, json!({})).await.unwrap().to_string();
            assert!(told.contains(caller.token) && !told.contains(other), "{method}: {told}");
        }
    }
    // The same call of another is another call, and its work is not there for the first one.
    let call = json!({ "name": "tool", "arguments": { "same": true } });
    for caller in [&ann, &bob] {
        let told = caller.ask_as("tools/call", call.clone(), false).await.unwrap();
        assert_eq!(told["content"][0]["text"], caller.token);
    }
    let id = ann.start("slow").await;
    bob.ask("tasks/get", json!({ "taskId": id })).await.unwrap_err();
    bob.ask("tasks/cancel", json!({ "taskId": id })).await.unwrap_err();
    assert!(
        !stub.tokens("tasks/get").contains(&"bob-1".to_owned()),
        "bob's request lets ann's work in nowhere"
    );
    assert_eq!(stub.tokens("tasks/cancel"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_an_upstream_is_one_owners_alone() {
    let stub = Stub::new(true);
    let [ann, bob] = in_front(&stub).await;
    let calls = [&ann, &bob, &ann, &bob].map(async |caller| {
        let id = caller.start("tool").await;
        assert_eq!(caller.ended(&id).await, caller.token);
    });
    futures::future::join_all(calls).await;
    let seen = stub.seen();
    let sessions: BTreeSet<(&str, &str)> = seen
        .iter()
        .filter(|(_, _, session)| !session.is_empty())
        .map(|(_, token, session)| (session.as_str(), token.as_str()))
        .collect();
    assert_eq!(sessions.len(), 2, "{sessions:?}");
    assert_eq!(sessions.iter().map(|(session, _)| *session).collect::<BTreeSet<_>>().len(), 2);
    assert_eq!(stub.tokens("initialize").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tokens_of_one_owner_are_not_mixed() {
    let stub = Stub::new(false);
    let [ann, _] = in_front(&stub).await;
    let other = ann.with("ann-2");
    let id = ann.start("slow").await;
    stub.until_seen("tasks/get", "ann-1", 1).await;
    for caller in [&other, &ann, &other] {
        let listed = caller.ask("resources/list", json!({})).await.unwrap().to_string();
        assert!(listed.contains(caller.token), "{listed}");
        let called = caller.start("tool").await;
        assert_eq!(caller.ended(&called).await, caller.token);
    }
    let read = ann.ask("resources/read", json!({ "uri": "a://1" })).await.unwrap().to_string();
    assert!(read.contains("ann-1"), "{read}");
    // A task goes on with the token of its own call, until a request about it brings another.
    assert!(stub.tokens("tasks/get").iter().all(|token| token == "ann-1"), "{:?}", stub.tokens("tasks/get"));
    other.get(&id).await;
    stub.until_seen("tasks/get", "ann-2", 1).await;
    other.ask("tasks/cancel", json!({ "taskId": id })).await.unwrap();
    stub.until_seen("tasks/cancel", "ann-2", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_made_for_its_own_caller() {
    let stub = Stub::new(false);
    let [ann, bob] = in_front(&stub).await;
    let subscribed = [&ann, &bob].map(|caller| {
        let caller = caller.clone();
        tokio::spawn(async move {
            let filter = json!({ "toolsListChanged": true, "resourceSubscriptions": ["a://1"] });
            caller.ask("subscriptions/listen", json!({ "notifications": filter })).await
        })
    });
    for token in ["ann-1", "bob-1"] {
        // One for the lists, and one for the resource.
        stub.until_seen("subscriptions/listen", token, 2).await;
    }
    assert!(!stub.tokens("subscriptions/listen").contains(&"nobody".to_owned()));
    subscribed.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_upstream_is_told_to_the_caller_and_to_no_other() {
    for legacy in [false, true] {
        let stub = Stub::new(legacy);
        stub.lets_in(&["bob-1"]);
        let [ann, bob] = in_front(&stub).await;
        for (method, params) in [
            ("tools/list", json!({})),
            ("prompts/get", json!({ "name": "p" })),
            ("resources/read", json!({ "uri": "a://1" })),
        ] {
            let refused = ann.ask(method, params).await.unwrap_err();
            let message = refused["message"].as_str().unwrap();
            assert!(
                message.contains("401") && message.contains("a token that it accepts"),
                "{method}: {refused}"
            );
            assert!(!message.contains("ann-1"));
        }
        let id = ann.start("tool").await;
        let failed = ann.until(&id, is_final).await;
        assert_eq!(failed["status"], "failed");
        assert!(failed["error"]["message"].as_str().unwrap().contains("401"), "{failed}");
        let held = ann.ask_as("tools/call", json!({ "name": "tool" }), false).await.unwrap_err();
        assert!(held["message"].as_str().unwrap().contains("401"), "{held}");
        let nobody = ann.with("").ask("tools/list", json!({})).await.unwrap_err();
        assert!(nobody["message"].as_str().unwrap().contains("this request has none"), "{nobody}");

        let id = bob.start("tool").await;
        assert_eq!(bob.ended(&id).await, "bob-1");
        // The upstream counts as there, so that the next token of the same owner is tried at once.
        stub.lets_in(&["ann-2", "bob-1"]);
        assert!(
            ann.with("ann-2").ask("tools/list", json!({})).await.unwrap().to_string().contains("of_ann-2")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_token_expires_waits_for_its_owner() {
    for legacy in [false, true] {
        let stub = Stub::new(legacy);
        let [ann, bob] = in_front(&stub).await;
        let id = ann.start("slow").await;
        stub.until_seen("tasks/get", "ann-1", 1).await;

        stub.lets_in(&["ann-2", "bob-1"]);
        let waiting = ann.until(&id, |task| waits(task) || is_final(task)).await;
        assert_eq!(waiting["status"], "working", "{waiting}");
        // Neither the same token again nor another owner's is of use.
        bob.ask("tools/list", json!({})).await.unwrap();
        assert!(!is_final(&ann.get(&id).await));
        stub.ends();
        // Any request of the owner brings the new one.
        ann.with("ann-2").ask("prompts/list", json!({})).await.unwrap();
        assert_eq!(ann.with("ann-2").ended(&id).await, "ann-2");
        assert!(!stub.tokens("tasks/get").contains(&"bob-1".to_owned()));
    }
}

struct Site(tempfile::TempDir, String);

impl Site {
    async fn new(stub: &Stub) -> Self {
        Self(tempfile::tempdir().unwrap(), stub.serve().await)
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("store.db")
    }

    /// A gateway on the file; it ends when the runtime that it was started on does.
    async fn start(&self) -> TaskServer<Gateway> {
        self.start_on(self.store().await).await
    }

    async fn store(&self) -> Arc<dyn Store> {
        loop {
            match SqliteStore::open(self.file()) {
                Ok(store) => break Arc::new(store),
                // The gateway before this one may still be on its way out.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    /// Runs a gateway in which ann has a task that goes on at the upstream, and ends the gateway. Gives the task.
    async fn left_by_earlier(&self, stub: &Stub) -> String {
        // A runtime of its own, with which all of the gateway ends at once.
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let runtime = tokio::runtime::Runtime::new().unwrap();
                    runtime.block_on(async {
                        let ann = Caller { address: serve(self.start().await).await, token: "ann-1" };
                        let id = ann.start("slow").await;
                        stub.until_seen("tasks/get", "ann-1", 1).await;
                        id
                    })
                })
                .join()
                .unwrap()
        })
    }

    async fn start_on(&self, store: Arc<dyn Store>) -> TaskServer<Gateway> {
        let upstream = Upstream::only(Server::http(self.1.clone())).forward_authorization();
        gateway(vec![upstream], store).await
    }
}

fn holds(folder: &Path, secret: &str) -> bool {
    let files = std::fs::read_dir(folder).unwrap();
    files
        .map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .any(|bytes| bytes.windows(secret.len()).any(|window| window == secret.as_bytes()))
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_a_task_waits_for_its_owners_next_request_and_goes_on() {
    let stub = Stub::new(false);
    // An answer of this upstream would bring the token into the store by itself.
    stub.lets_in(&["ann-1", "ann-2"]);
    let site = Site::new(&stub).await;
    let first = site.left_by_earlier(&stub).await;
    assert!(holds(site.0.path(), "theirs"), "the task is in the file");
    assert!(!holds(site.0.path(), "ann-1"), "and the token is not");

    let ann = Caller { address: serve(site.start().await).await, token: "ann-2" };
    stub.ends();
    let bob = ann.with("bob-1");
    bob.ask("tools/list", json!({})).await.unwrap_err();
    assert!(!stub.tokens("tasks/get").contains(&"bob-1".to_owned()));
    // The owner's look at the task, or any other request.
    assert_eq!(ann.ended(&first).await, "ann-2");
    assert_eq!(stub.tokens("tools/call"), ["ann-1"], "it was called once");
}

/// The status message of a task once it is so, as the store has it.
async fn stored_message(store: &dyn Store, id: &str, is_so: impl Fn(&str) -> bool) -> String {
    let is_said = async {
        loop {
            let task = store.get(id.parse().unwrap()).await.unwrap().unwrap();
            let message = task.status_message.as_deref().unwrap_or_default().to_owned();
            if task.status().is_final() || is_so(&message) {
                return message;
            }
            tokio::time::sleep(PACE).await;
        }
    };
    tokio::time::timeout(LONG, is_said).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn work_whose_token_was_lost_asks_nothing_as_somebody_else() {
    // It lets in everybody, and who comes without a token is somebody else.
    let stub = Stub::new(false);
    stub.0.has_owners.store(true, Ordering::SeqCst);
    let site = Site::new(&stub).await;
    let id = site.left_by_earlier(&stub).await;
    let before = stub.seen().len();

    let store = site.store().await;
    let ann = Caller { address: serve(site.start_on(store.clone()).await).await, token: "ann-2" };
    let said = stored_message(&*store, &id, |message| message.contains("waits for the caller's")).await;
    assert!(said.contains("waits for the caller's next request"), "{said}");
    assert_eq!(stub.seen().len(), before, "{:?}", stub.seen());
    stub.ends();
    assert_eq!(ann.ended(&id).await, "ann-2");
    assert!(!stub.seen().iter().any(|(_, token, _)| token == "nobody"), "{:?}", stub.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn work_of_another_gateway_goes_on_where_its_owner_comes() {
    let stub = Stub::new(false);
    let url = stub.serve().await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(SystemClock));
    let start =
        || gateway(vec![Upstream::only(Server::http(url.clone())).forward_authorization()], store.clone());
    // The second has looked at what there is before the first begins anything.
    let (first, second) = (start().await, start().await);
    let ann = Caller { address: serve(first.clone()).await, token: "ann-1" };
    let id = ann.start("slow").await;
    stub.until_seen("tasks/get", "ann-1", 1).await;
    first.shutdown().await;
    stub.ends();
    let ann = Caller { address: serve(second).await, token: "ann-2" };
    assert_eq!(ann.ended(&id).await, "ann-2");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_whose_token_was_lost_can_be_cancelled_at_the_upstream() {
    let stub = Stub::new(false);
    let site = Site::new(&stub).await;
    let id = site.left_by_earlier(&stub).await;
    let store = site.store().await;
    let ann = Caller { address: serve(site.start_on(store.clone()).await).await, token: "ann-2" };
    stored_message(&*store, &id, |message| message.contains("waits for the caller's")).await;
    ann.ask("tasks/cancel", json!({ "taskId": id })).await.unwrap();
    stub.until_seen("tasks/cancel", "ann-2", 1).await;
    stub.ends();
    ann.until(&id, is_final).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_two_headers_is_made_with_none_although_its_owner_had_one_before() {
    let stub = Stub::new(false);
    let [ann, _] = in_front(&stub).await;
    ann.ask("tools/list", json!({})).await.unwrap();
    let caller = ann.with("ann-1\r\nAuthorization: Bearer ann-2");
    let id = caller.start("tool").await;
    assert_eq!(caller.ended(&id).await, "nobody");
    assert_eq!(stub.tokens("tools/call"), ["nobody"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_for_a_token_can_be_cancelled() {
    let stub = Stub::new(false);
    let [ann, _] = in_front(&stub).await;
    let id = ann.start("slow").await;
    stub.until_seen("tasks/get", "ann-1", 1).await;
    stub.lets_in(&["ann-2"]);
    ann.until(&id, waits).await;
    ann.ask("tasks/cancel", json!({ "taskId": id })).await.unwrap();
    let ended = ann.until(&id, is_final).await;
    assert_eq!(ended["status"], "cancelled", "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_its_turn_is_made_with_the_token_of_its_caller() {
    let stub = Stub::new(false);
    let upstream = Upstream::only(Server::http(stub.serve().await)).forward_authorization();
    let mut config = Config::default();
    config.max_running = 1;
    let server = gateway_with(config, vec![upstream], Arc::new(MemoryStore::new(SystemClock))).await;
    let ann = Caller { address: serve(server.clone()).await, token: "ann-1" };
    let running = ann.start("held").await;
    stub.until_seen("tools/call", "ann-1", 1).await;
    let waiting = ann.with("bob-1").start("tool").await;
    assert_eq!(server.load().await.unwrap().retained.ready, 1, "it waits");
    stub.ends();
    assert_eq!(ann.ended(&running).await, "ann-1");
    assert_eq!(ann.with("bob-1").ended(&waiting).await, "bob-1");
    assert_eq!(stub.tokens("tools/call"), ["ann-1", "bob-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_people_each_token_is_an_owner() {
    let stub = Stub::new(true);
    let upstream = Upstream::only(Server::http(stub.serve().await)).forward_authorization();
    let server = gateway(vec![upstream], Arc::new(MemoryStore::new(SystemClock))).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { http::serve(listener, server, std::future::pending()).await });
    for token in ["ann-1", "ann-2"] {
        let caller = Caller { address: address.clone(), token };
        let id = caller.start("tool").await;
        assert_eq!(caller.ended(&id).await, token);
    }
    assert_eq!(stub.tokens("initialize"), ["ann-1", "ann-2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_a_caller_hears_by_the_callers_own_token() {
    let stub = Stub::new(true);
    for caller in in_front(&stub).await {
        let hello = json!({
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": { "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
        });
        let opened = caller.post(&hello, "").await;
        let session =
            opened.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap().to_owned();
        let told = message(&opened).unwrap();
        assert_eq!(told["instructions"], format!("for {}", caller.token));
        let headers = format!("Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n");
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        caller.post(&initialized, &headers).await;
        for (method, params) in [
            ("resources/subscribe", json!({ "uri": "a://1" })),
            ("logging/setLevel", json!({ "level": "error" })),
            ("resources/unsubscribe", json!({ "uri": "a://1" })),
        ] {
            let asked = json!({ "jsonrpc": "2.0", "id": 2, "method": method, "params": params });
            message(&caller.post(&asked, &headers).await).unwrap();
            stub.until_seen(method, caller.token, 1).await;
        }
    }
    assert!(stub.seen().iter().all(|(_, token, _)| token != "nobody"), "{:?}", stub.seen());
    for method in ["resources/subscribe", "resources/unsubscribe", "logging/setLevel"] {
        assert_eq!(stub.tokens(method), ["ann-1", "bob-1"], "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_beside_it_gets_no_callers_header_and_is_known_from_the_start() {
    let (forwarding, plain) = (Stub::new(false), Stub::new(false));
    let upstreams = vec![
        Upstream::named("own", Server::http(forwarding.serve().await)).forward_authorization(),
        Upstream::named("plain", Server::http(plain.serve().await)),
    ];
    let server = gateway(upstreams, Arc::new(MemoryStore::new(SystemClock))).await;
    let ann = Caller { address: serve(server).await, token: "ann-1" };
    let mut names = Vec::new();
    let mut params = json!({});
    loop {
        let page = ann.ask("tools/list", params).await.unwrap();
        names.extend(page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()));
        match page.get("nextCursor").filter(|cursor| !cursor.is_null()) {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None => break,
        }
    }
    assert_eq!(
        names,
        ["own__tool", "own__slow", "own__of_ann-1", "plain__tool", "plain__slow", "plain__of_nobody"]
    );
    for (tool, token) in [("own__tool", "ann-1"), ("plain__tool", "nobody")] {
        let id = ann.start(tool).await;
        assert_eq!(ann.ended(&id).await, token);
    }
    assert!(forwarding.seen().iter().all(|(_, token, _)| token == "ann-1"), "{:?}", forwarding.seen());
    assert!(plain.seen().iter().all(|(_, token, _)| token == "nobody"), "{:?}", plain.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_not_reached_over_http_cannot_be_forwarded_to() {
    let store = Arc::new(MemoryStore::new(SystemClock));
    let upstream = Upstream::only(Server::command("my-server", [] as [&str; 0])).forward_authorization();
    let refused = Gateway::serve(vec![upstream], GatewayOptions::default(), store, Config::default()).await;
    assert!(refused.unwrap_err().to_string().contains("not reached over HTTP"));
}
