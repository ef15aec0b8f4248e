//! A server that answers as a script says, over HTTP on a real socket, or over byte streams where time is stepped; and a
//! person who answers as a test says.

use std::{
    collections::HashMap,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use outlast_client::{ClientOptions, Server};
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData,
        Implementation,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    sync::{mpsc, watch},
};

/// One request as the server got it.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) params: Value,
    /// How many requests of this method came before it.
    pub(crate) nth: usize,
    pub(crate) id: Value,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) at: tokio::time::Instant,
}

impl Asked {
    /// Whether the request itself declares the extension (S1).
    pub(crate) fn declares(&self) -> bool {
        self.params
            .pointer("/_meta/io.modelcontextprotocol~1clientCapabilities/extensions/io.modelcontextprotocol~1tasks")
            .is_some()
    }
}

/// What a script answers.
pub(crate) enum Reply {
    /// A result.
    Result(Value),
    /// A JSON-RPC error.
    Error(Value),
    /// An HTTP answer that is no JSON-RPC: status, headers, body.
    Http(u16, Vec<(&'static str, String)>, String),
    /// The connection is closed without an answer.
    Drop,
    /// No answer ever comes.
    Hang,
    /// Messages as they are sent into the channel, on a stream of events, and then the end of it.
    Stream(mpsc::UnboundedReceiver<Value>),
    /// Once the future is ready, what it gives.
    Later(Pin<Box<dyn Future<Output = Reply> + Send>>),
}

/// A result.
pub(crate) fn ok(value: Value) -> Reply {
    Reply::Result(value)
}

/// A JSON-RPC error.
pub(crate) fn error(code: i64, message: &str) -> Reply {
    Reply::Error(json!({ "code": code, "message": message }))
}

/// An empty acknowledgement.
pub(crate) fn ack() -> Reply {
    ok(json!({ "resultType": "complete" }))
}

/// A tool result with a text.
pub(crate) fn text(text: &str) -> Value {
    json!({ "resultType": "complete", "content": [{ "type": "text", "text": text }], "isError": false })
}

/// A task on the wire. `extra` is laid over it.
pub(crate) fn task(id: &str, status: &str, extra: Value) -> Value {
    let mut value = json!({
        "resultType": "complete", "taskId": id, "status": status, "ttlMs": null, "pollIntervalMs": 100,
        "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
    });
    for (key, field) in extra.as_object().into_iter().flatten() {
        value[key] = field.clone();
    }
    value
}

/// The answer to a call that became a task.
pub(crate) fn created(id: &str) -> Reply {
    ok(task(id, "working", json!({ "resultType": "task" })))
}

/// The state of a task that is done, with a text.
pub(crate) fn completed(id: &str, said: &str) -> Reply {
    let done = json!({ "result": text(said), "lastUpdatedAt": "2026-11-29T10:09:00Z" });
    ok(task(id, "completed", done))
}

/// The state of a task that asks for names, by these keys.
pub(crate) fn asks(id: &str, keys: &[&str]) -> Reply {
    let questions: serde_json::Map<String, Value> =
        keys.iter().map(|key| ((*key).to_owned(), question(key))).collect();
    ok(task(id, "input_required", json!({ "inputRequests": questions })))
}

/// A question for a name.
pub(crate) fn question(message: &str) -> Value {
    json!({
        "method": "elicitation/create",
        "params": {
            "message": message,
            "requestedSchema": {
                "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"]
            }
        }
    })
}

type Play = dyn Fn(Asked) -> Reply + Send + Sync;

/// A server that answers as its script says, and remembers what it was asked. The handshake is answered by itself: of
/// 2026-07-28 with tasks, or as [`Scripted::introduced`] says.
#[derive(Clone)]
pub(crate) struct Scripted {
    inner: Arc<Inner>,
}

struct Inner {
    play: Box<Play>,
    introduction: Mutex<Introduction>,
    asked: Mutex<Vec<Asked>>,
    news: watch::Sender<usize>,
    connections: AtomicUsize,
    /// Counts how often every connection over streams was closed.
    closed: watch::Sender<usize>,
}

#[derive(Clone)]
struct Introduction {
    legacy: bool,
    capabilities: Value,
    /// The session that a legacy server gives, over HTTP.
    session: Option<String>,
}

impl Scripted {
    pub(crate) fn new(play: impl Fn(Asked) -> Reply + Send + Sync + 'static) -> Self {
        let capabilities = json!({
            "tools": {}, "extensions": { "io.modelcontextprotocol/tasks": {}, "outlast/idempotency": {} }
        });
        Self {
            inner: Arc::new(Inner {
                play: Box::new(play),
                introduction: Mutex::new(Introduction { legacy: false, capabilities, session: None }),
                asked: Mutex::default(),
                news: watch::channel(0).0,
                connections: AtomicUsize::new(0),
                closed: watch::channel(0).0,
            }),
        }
    }

    /// Declares these capabilities instead.
    pub(crate) fn introduced(self, capabilities: Value) -> Self {
        self.inner.introduction.lock().unwrap().capabilities = capabilities;
        self
    }

    /// Speaks 2025-11-25 and nothing later.
    pub(crate) fn legacy(self) -> Self {
        {
            let mut introduction = self.inner.introduction.lock().unwrap();
            introduction.legacy = true;
            introduction.capabilities =
                json!({ "tools": {}, "tasks": { "requests": { "tools": { "call": {} } } } });
        }
        self
    }

    /// Gives this session to those who connect from now on, and knows no other.
    pub(crate) fn set_session(&self, session: &str) {
        self.inner.introduction.lock().unwrap().session = Some(session.to_owned());
    }

    /// The requests of a method, in order.
    pub(crate) fn asked(&self, method: &str) -> Vec<Asked> {
        self.inner.asked.lock().unwrap().iter().filter(|asked| asked.method == method).cloned().collect()
    }

    /// How long after each other the requests of a method came.
    pub(crate) fn pauses(&self, method: &str) -> Vec<Duration> {
        let asked = self.asked(method);
        asked.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
    }

    /// Every method that came, in order.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.inner.asked.lock().unwrap().iter().map(|asked| asked.method.clone()).collect()
    }

    /// Waits until so many requests of a method have come.
    pub(crate) async fn until_asked(&self, method: &str, times: usize) {
        let mut news = self.inner.news.subscribe();
        news.wait_for(|_| self.asked(method).len() >= times).await.unwrap();
    }

    /// Closes every connection that there is over streams.
    pub(crate) fn hang_up(&self) {
        self.inner.closed.send_modify(|times| *times += 1);
    }

    /// How many connections were made; of HTTP, handshakes.
    pub(crate) fn connections(&self) -> usize {
        self.inner.connections.load(Ordering::SeqCst)
    }

    /// Serves HTTP on a socket of this machine, until what it gives is dropped.
    pub(crate) async fn http(&self) -> Running {
        self.http_at("127.0.0.1:0".parse().unwrap()).await
    }

    /// Serves HTTP at an address.
    pub(crate) async fn http_at(&self, address: SocketAddr) -> Running {
        let listener = loop {
            // A port that was used just now may take a moment to be free.
            match tokio::net::TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let address = listener.local_addr().unwrap();
        let router = axum::Router::new()
            .route("/mcp", axum::routing::post(post).get(|| async { StatusCode::METHOD_NOT_ALLOWED }))
            .with_state(self.clone());
        let serve = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Running { address, serve }
    }

    /// Serves byte streams, a new pair for each connection.
    pub(crate) fn streams(&self) -> Server {
        let scripted = self.clone();
        Server::streams("scripted", move || {
            let streams = scripted.connect_for(usize::MAX);
            async move { Ok(streams) }
        })
    }

    /// Serves a pair of byte streams, until so many requests are answered.
    pub(crate) fn connect_for(
        &self,
        requests: usize,
    ) -> (tokio::io::ReadHalf<tokio::io::DuplexStream>, tokio::io::WriteHalf<tokio::io::DuplexStream>) {
        let (client, server) = tokio::io::duplex(1 << 20);
        let (read, write) = tokio::io::split(server);
        tokio::spawn(self.clone().lines(read, write, requests));
        tokio::io::split(client)
    }

    async fn lines(
        self,
        read: impl tokio::io::AsyncRead + Unpin,
        mut write: impl tokio::io::AsyncWrite + Unpin,
        mut requests: usize,
    ) {
        let (answers, mut outgoing) = mpsc::unbounded_channel::<Option<Value>>();
        let mut lines = BufReader::new(read).lines();
        let mut closed = self.inner.closed.subscribe();
        loop {
            tokio::select! {
                line = lines.next_line() => {
                    let Ok(Some(line)) = line else { return };
                    let message: Value = serde_json::from_str(&line).unwrap();
                    let Some(reply) = self.reply(&message, HashMap::new()) else { continue };
                    let (id, answers) = (message["id"].clone(), answers.clone());
                    tokio::spawn(async move {
                        let mut reply = reply;
                        while let Reply::Later(later) = reply {
                            reply = later.await;
                        }
                        match reply {
                            Reply::Hang => {}
                            Reply::Drop => drop(answers.send(None)),
                            Reply::Stream(mut messages) => {
                                while let Some(message) = messages.recv().await {
                                    let _ = answers.send(Some(message));
                                }
                            }
                            other => drop(answers.send(Some(envelope(&id, other)))),
                        }
                    });
                }
                _ = closed.changed() => return,
                answer = outgoing.recv() => {
                    let Some(Some(answer)) = answer else { return };
                    write.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
                    requests -= 1;
                    if requests == 0 {
                        return;
                    }
                }
            }
        }
    }

    /// The reply to a message; none to a notification.
    fn reply(&self, message: &Value, headers: HashMap<String, String>) -> Option<Reply> {
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let nth = self.inner.asked.lock().unwrap().iter().filter(|asked| asked.method == method).count();
        let params = message.get("params").cloned().unwrap_or_default();
        let (id, at) = (message["id"].clone(), now());
        let asked = Asked { method: method.clone(), params, nth, id, headers, at };
        self.inner.asked.lock().unwrap().push(asked.clone());
        self.inner.news.send_modify(|count| *count += 1);
        message.get("id")?;
        let Introduction { legacy, capabilities, .. } = self.inner.introduction.lock().unwrap().clone();
        Some(match method.as_str() {
            "server/discover" if legacy => error(-32601, "Method not found"),
            "server/discover" => {
                self.inner.connections.fetch_add(1, Ordering::SeqCst);
                ok(json!({
                    "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
                    "ttlMs": 0, "cacheScope": "private",
                    "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "scripted", "version": "1" } },
                }))
            }
            "initialize" => {
                self.inner.connections.fetch_add(1, Ordering::SeqCst);
                ok(json!({
                    "protocolVersion": "2025-11-25", "capabilities": capabilities,
                    "serverInfo": { "name": "scripted", "version": "1" },
                }))
            }
            "ping" => ok(json!({})),
            _ => (self.inner.play)(asked),
        })
    }
}

/// A server that is running; dropped, it is gone, with all its connections.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    serve: tokio::task::JoinHandle<()>,
}

impl Running {
    pub(crate) fn server(&self) -> Server {
        Server::http(format!("http://{}/mcp", self.address))
    }

    /// Stops listening. Connections that are open end with their next request.
    pub(crate) async fn stop(mut self) {
        self.serve.abort();
        let _ = (&mut self.serve).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.serve.abort();
    }
}

/// A server in a runtime of its own; dropped, it is killed: its sockets are closed in the middle of whatever they do.
pub(crate) struct Killable {
    pub(crate) address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Killable {
    pub(crate) fn server(&self) -> Server {
        Server::http(format!("http://{}/mcp", self.address))
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Scripted {
    /// Serves HTTP until it is killed.
    pub(crate) async fn killable(&self, address: &str) -> Killable {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (scripted, address) = (self.clone(), address.parse().unwrap());
        let running = runtime.spawn(async move { scripted.http_at(address).await }).await.unwrap();
        let address = running.address;
        runtime.spawn(async move {
            let _running = running;
            std::future::pending::<()>().await;
        });
        Killable { address, runtime: Some(runtime) }
    }
}

fn envelope(id: &Value, reply: Reply) -> Value {
    match reply {
        Reply::Result(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Reply::Error(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
        _ => unreachable!("only answers have envelopes"),
    }
}

async fn post(State(scripted): State<Scripted>, headers: HeaderMap, body: Bytes) -> Response {
    let message: Value = serde_json::from_slice(&body).unwrap();
    let named =
        headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    let session = scripted.inner.introduction.lock().unwrap().session.clone();
    let theirs = headers.get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
    if message["method"] != "initialize" && theirs.is_some() && theirs != session {
        return StatusCode::NOT_FOUND.into_response();
    }
    let Some(mut reply) = scripted.reply(&message, named) else {
        return StatusCode::ACCEPTED.into_response();
    };
    while let Reply::Later(later) = reply {
        reply = later.await;
    }
    match reply {
        Reply::Http(status, headers, body) => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(Body::from(body)).unwrap()
        }
        // A body that breaks off is a connection that breaks off.
        Reply::Drop => {
            let broken = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("gone")) });
            Response::builder()
                .header("content-type", "application/json")
                .header("content-length", "1000")
                .body(Body::from_stream(broken))
                .unwrap()
        }
        Reply::Hang => std::future::pending().await,
        Reply::Stream(messages) => {
            let events = futures::stream::unfold(messages, |mut messages| async move {
                let message = messages.recv().await?;
                Some((format!("data: {message}\n\n"), messages))
            });
            Response::builder()
                .header("content-type", "text/event-stream")
                .body(Body::from_stream(events.map(Ok::<_, std::io::Error>)))
                .unwrap()
        }
        reply => {
            let session = scripted.inner.introduction.lock().unwrap().session.clone();
            let mut response = Response::builder().header("content-type", "application/json");
            if let Some(session) = session.filter(|_| message["method"] == "initialize") {
                response = response.header("mcp-session-id", session);
            }
            response.body(Body::from(envelope(&message["id"], reply).to_string())).unwrap()
        }
    }
}

/// A person who is asked for names.
#[derive(Clone)]
pub(crate) struct Person {
    inner: Arc<PersonInner>,
}

type Answering = Pin<Box<dyn Future<Output = Result<ElicitResult, ErrorData>> + Send>>;

struct PersonInner {
    answer: Box<dyn Fn(String) -> Answering + Send + Sync>,
    asked: Mutex<Vec<String>>,
    open: AtomicUsize,
    news: watch::Sender<usize>,
}

impl Person {
    /// Answers each question at once.
    pub(crate) fn prompt() -> Self {
        Self::new(|message| async move { Ok(accept(&message)) })
    }

    /// Is asked, and never says a word.
    pub(crate) fn silent() -> Self {
        Self::new(|_| std::future::pending())
    }

    pub(crate) fn new<F>(answer: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<ElicitResult, ErrorData>> + Send + 'static,
    {
        Self {
            inner: Arc::new(PersonInner {
                answer: Box::new(move |message| Box::pin(answer(message))),
                asked: Mutex::default(),
                open: AtomicUsize::new(0),
                news: watch::channel(0).0,
            }),
        }
    }

    /// The messages of the questions that were put, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.inner.asked.lock().unwrap().clone()
    }

    /// How many prompts are open.
    pub(crate) fn open(&self) -> usize {
        self.inner.open.load(Ordering::SeqCst)
    }

    pub(crate) async fn until_asked(&self, times: usize) {
        self.inner.news.subscribe().wait_for(|_| self.asked().len() >= times).await.unwrap();
    }

    pub(crate) async fn until_open(&self, prompts: usize) {
        self.inner.news.subscribe().wait_for(|_| self.open() == prompts).await.unwrap();
    }
}

/// The answer of a person who says a name.
pub(crate) fn accept(name: &str) -> ElicitResult {
    ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "name": name }))
}

struct Open(Arc<PersonInner>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        self.0.news.send_modify(|count| *count += 1);
    }
}

impl ClientHandler for Person {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let message =
            serde_json::to_value(&request).unwrap()["message"].as_str().unwrap_or_default().to_owned();
        self.inner.open.fetch_add(1, Ordering::SeqCst);
        let _open = Open(self.inner.clone());
        self.inner.asked.lock().unwrap().push(message.clone());
        self.inner.news.send_modify(|count| *count += 1);
        (self.inner.answer)(message).await
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("test", "1"))
    }
}

/// The clock of the tests, which some of them step.
#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// The text of a result.
pub(crate) fn said(result: &rmcp::model::CallToolResult) -> String {
    serde_json::to_value(result).unwrap()["content"][0]["text"].as_str().unwrap().to_owned()
}

/// Calls `tool`, which becomes a task.
pub(crate) async fn started(client: &outlast_client::TaskClient) -> outlast_client::TaskHandle {
    match client.start_tool(rmcp::model::CallToolRequestParams::new("tool")).await.unwrap() {
        outlast_client::Started::Task(handle) => handle,
        other => panic!("no task: {other:?}"),
    }
}

/// Options for tests that need no pushes: fewer requests to script.
pub(crate) fn polling() -> ClientOptions {
    let mut options = ClientOptions::default();
    options.push = false;
    options
}

/// A deadline that is there to end a test that hangs, and is never reached by one that passes.
pub(crate) const LONG: Option<Duration> = Some(Duration::from_secs(300));
