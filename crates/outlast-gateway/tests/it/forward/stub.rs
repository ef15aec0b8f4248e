//! The upstream of these tests, the gateway in front of it, and those who call it.

use std::{
    collections::BTreeSet,
    convert::Infallible,
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
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub(super) const LONG: Duration = Duration::from_secs(60);
pub(super) const PACE: Duration = Duration::from_millis(100);
pub(super) const CHALLENGE: &str = "Bearer error=\"invalid_token\"";

/// A request as the upstream got it: its method, its `Authorization` without the scheme, and its session.
pub(super) type Seen = (String, String, String);

/// An upstream that answers each request with the token that came with it.
#[derive(Clone)]
pub(super) struct Stub(Arc<Inner>);

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
    pub(super) fn new(legacy: bool) -> Self {
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
    pub(super) fn lets_in(&self, tokens: &[&'static str]) {
        *self.0.good.lock().unwrap() = tokens.iter().copied().collect();
    }

    /// Takes its tasks for those of callers with a token alone.
    pub(super) fn knows_owners(&self) {
        self.0.has_owners.store(true, Ordering::SeqCst);
    }

    /// Lets its tasks end.
    pub(super) fn ends(&self) {
        self.0.is_done.store(true, Ordering::SeqCst);
        self.0.news.send_modify(|count| *count += 1);
    }

    pub(super) async fn serve(&self) -> String {
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

    pub(super) fn answer(&self, headers: &HeaderMap, body: &[u8]) -> Response {
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

    pub(super) fn result(&self, method: &str, token: &str, params: &Value) -> Option<Value> {
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
    pub(super) fn tokens(&self, method: &str) -> Vec<String> {
        let seen = self.0.seen.lock().unwrap();
        seen.iter().filter(|(asked, ..)| asked == method).map(|(_, token, _)| token.clone()).collect()
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.0.seen.lock().unwrap().clone()
    }

    /// Waits until a method was asked for with this token, so many times.
    pub(super) async fn until_seen(&self, method: &str, token: &str, times: usize) {
        let is_seen = |_: &usize| self.tokens(method).iter().filter(|seen| *seen == token).count() >= times;
        let mut news = self.0.news.subscribe();
        tokio::time::timeout(LONG, news.wait_for(is_seen)).await.expect(method).unwrap();
    }
}

/// A subscription to everything that was asked for, on which nothing is ever said.
pub(super) fn acknowledged(message: &Value) -> Response {
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
pub(super) async fn serve(server: TaskServer<Gateway>) -> String {
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

pub(super) async fn gateway(upstreams: Vec<Upstream>, store: Arc<dyn Store>) -> TaskServer<Gateway> {
    gateway_with(Config::default(), upstreams, store).await
}

pub(super) async fn gateway_with(
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
pub(super) async fn in_front(stub: &Stub) -> [Caller; 2] {
    let upstream = Upstream::only(Server::http(stub.serve().await)).forward_authorization();
    let server = gateway(vec![upstream], Arc::new(MemoryStore::new(SystemClock))).await;
    let address = serve(server).await;
    ["ann-1", "bob-1"].map(|token| Caller { address: address.clone(), token })
}

/// A caller of 2026-07-28 with a token.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) address: String,
    pub(super) token: &'static str,
}

impl Caller {
    pub(super) fn with(&self, token: &'static str) -> Self {
        Self { token, ..self.clone() }
    }

    pub(super) async fn ask(&self, method: &str, params: Value) -> Result<Value, Value> {
        self.ask_as(method, params, true).await
    }

    /// The answer to a request: its `result` or `error`.
    pub(super) async fn ask_as(
        &self,
        method: &str,
        mut params: Value,
        knows_tasks: bool,
    ) -> Result<Value, Value> {
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

    pub(super) async fn post(&self, body: &Value, headers: &str) -> String {
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

    pub(super) async fn start(&self, tool: &str) -> String {
        let created = self.ask("tools/call", json!({ "name": tool })).await.unwrap();
        created["taskId"].as_str().unwrap_or_else(|| panic!("no task: {created}")).to_owned()
    }

    pub(super) async fn get(&self, id: &str) -> Value {
        self.ask("tasks/get", json!({ "taskId": id })).await.unwrap()
    }

    pub(super) async fn until(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
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
    pub(super) async fn ended(&self, id: &str) -> String {
        let task = self.until(id, is_final).await;
        task["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{task}")).to_owned()
    }
}

pub(super) fn message(answer: &str) -> Result<Value, Value> {
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

pub(super) fn is_final(task: &Value) -> bool {
    matches!(task["status"].as_str(), Some("completed" | "failed" | "cancelled"))
}

pub(super) fn waits(task: &Value) -> bool {
    task["statusMessage"].as_str().is_some_and(|said| said.contains("waits for the caller's next request"))
}
