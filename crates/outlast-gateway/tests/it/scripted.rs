//! An upstream that answers as a script says, over byte streams, and does whatever an upstream can do wrong.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use outlast_client::Server;
use outlast_gateway::Upstream;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    sync::{mpsc, oneshot, watch},
};

/// What a script answers.
pub(crate) enum Reply {
    Result(Value),
    Error(i64, &'static str),
    /// No answer ever comes.
    Hang,
    /// The connection is closed without an answer.
    Drop,
    /// These bytes, as they are.
    Raw(Vec<u8>),
    /// Once the future is ready, what it gives.
    Later(Pin<Box<dyn Future<Output = Reply> + Send>>),
}

/// One request as the upstream got it, and the way back.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) params: Value,
    pub(crate) nth: usize,
    pub(crate) id: Value,
    pub(crate) wire: Wire,
}

/// The connection that a request came by.
#[derive(Clone)]
pub(crate) struct Wire {
    lines: mpsc::UnboundedSender<Option<Vec<u8>>>,
    asking: Arc<Mutex<HashMap<String, oneshot::Sender<Value>>>>,
}

impl Wire {
    pub(crate) fn say(&self, message: &Value) {
        let _ = self.lines.send(Some(format!("{message}\n").into_bytes()));
    }

    /// Says something that is no message.
    pub(crate) fn say_raw(&self, line: &str) {
        let _ = self.lines.send(Some(format!("{line}\n").into_bytes()));
    }

    /// Asks the client by a request of its own, and gives the answer: its `result` or `error`.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Value {
        static IDS: AtomicUsize = AtomicUsize::new(0);
        let id = format!("ask-{}", IDS.fetch_add(1, Ordering::SeqCst));
        let (sender, answer) = oneshot::channel();
        self.asking.lock().unwrap().insert(id.clone(), sender);
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        answer.await.unwrap_or_default()
    }
}

type Play = dyn Fn(Asked) -> Reply + Send + Sync;

/// See the module. The handshake and `tools/list` are answered by themselves.
#[derive(Clone)]
pub(crate) struct Scripted(Arc<Inner>);

struct Inner {
    play: Box<Play>,
    legacy: bool,
    capabilities: Value,
    tools: Value,
    version: Mutex<&'static str>,
    hangs_up_at: Mutex<&'static str>,
    asked: Mutex<Vec<Asked>>,
    news: watch::Sender<usize>,
    connections: AtomicUsize,
}

/// A tool as a list names it.
pub(crate) fn tool(name: &str, more: Value) -> Value {
    let mut tool = json!({ "name": name, "inputSchema": { "type": "object" } });
    for (key, field) in more.as_object().into_iter().flatten() {
        tool[key] = field.clone();
    }
    tool
}

pub(crate) fn said(text: &str) -> Reply {
    Reply::Result(json!({ "resultType": "complete", "content": [{ "type": "text", "text": text }] }))
}

pub(crate) fn question(message: &str) -> Value {
    json!({
        "mode": "form", "message": message,
        "requestedSchema": { "type": "object", "properties": { "name": { "type": "string" } } }
    })
}

/// A task on the wire of 2026-07-28. `extra` is laid over it.
pub(crate) fn task(id: &str, status: &str, extra: Value) -> Reply {
    let mut value = json!({
        "resultType": "complete", "taskId": id, "status": status, "ttlMs": null, "pollIntervalMs": 50,
        "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
    });
    for (key, field) in extra.as_object().into_iter().flatten() {
        value[key] = field.clone();
    }
    Reply::Result(value)
}

impl Scripted {
    /// Of 2026-07-28, with tasks.
    pub(crate) fn new(play: impl Fn(Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::with(
            false,
            json!([
                tool("tool", json!({})),
                tool("harmless", json!({ "annotations": { "readOnlyHint": true } }))
            ]),
            play,
        )
    }

    /// Of 2025-11-25.
    pub(crate) fn legacy(play: impl Fn(Asked) -> Reply + Send + Sync + 'static) -> Self {
        let takes_tasks = json!({ "execution": { "taskSupport": "optional" } });
        Self::with(true, json!([tool("tool", takes_tasks), tool("plain", json!({}))]), play)
    }

    pub(crate) fn with(
        legacy: bool,
        tools: Value,
        play: impl Fn(Asked) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let capabilities = match legacy {
            false => json!({ "tools": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } }),
            true => {
                json!({ "tools": { "listChanged": true }, "tasks": { "requests": { "tools": { "call": {} } } } })
            }
        };
        Self(Arc::new(Inner {
            play: Box::new(play),
            legacy,
            capabilities,
            tools,
            version: Mutex::new("2026-07-28"),
            hangs_up_at: Mutex::default(),
            asked: Mutex::default(),
            news: watch::channel(0).0,
            connections: AtomicUsize::new(0),
        }))
    }

    /// Claims to speak this version and no other.
    pub(crate) fn speaking(self, version: &'static str) -> Self {
        *self.0.version.lock().unwrap() = version;
        self
    }

    /// Closes the connection where it is asked this.
    pub(crate) fn hanging_up_at(self, method: &'static str) -> Self {
        *self.0.hangs_up_at.lock().unwrap() = method;
        self
    }

    pub(crate) fn upstream(&self) -> Upstream {
        Upstream::only(self.server())
    }

    pub(crate) fn server(&self) -> Server {
        let scripted = self.clone();
        Server::streams("scripted", move || {
            let (client, server) = tokio::io::duplex(1 << 20);
            let (read, write) = tokio::io::split(server);
            tokio::spawn(scripted.clone().serve(read, write));
            async move { Ok(tokio::io::split(client)) }
        })
    }

    /// The requests of a method, in order.
    pub(crate) fn asked(&self, method: &str) -> Vec<Asked> {
        self.0.asked.lock().unwrap().iter().filter(|asked| asked.method == method).cloned().collect()
    }

    /// Waits until so many requests of a method have come.
    pub(crate) async fn until_asked(&self, method: &str, times: usize) {
        self.0.news.subscribe().wait_for(|_| self.asked(method).len() >= times).await.unwrap();
    }

    pub(crate) fn connections(&self) -> usize {
        self.0.connections.load(Ordering::SeqCst)
    }

    async fn serve(
        self,
        read: impl tokio::io::AsyncRead + Unpin,
        mut write: impl tokio::io::AsyncWrite + Unpin,
    ) {
        let (lines, mut outgoing) = mpsc::unbounded_channel();
        let wire = Wire { lines, asking: Arc::default() };
        let mut incoming = BufReader::new(read).lines();
        loop {
            tokio::select! {
                line = incoming.next_line() => {
                    let Ok(Some(line)) = line else { return };
                    self.hear(&serde_json::from_str(&line).unwrap(), &wire);
                }
                line = outgoing.recv() => {
                    let Some(Some(line)) = line else { return };
                    if write.write_all(&line).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn hear(&self, message: &Value, wire: &Wire) {
        let Some(method) = message["method"].as_str() else {
            let id = message["id"].as_str().unwrap_or_default();
            if let Some(asking) = wire.asking.lock().unwrap().remove(id) {
                let answer = message.get("result").or(message.get("error")).cloned();
                let _ = asking.send(answer.unwrap_or_default());
            }
            return;
        };
        let nth = self.asked(method).len();
        let params = message.get("params").cloned().unwrap_or_default();
        let asked =
            Asked { method: method.to_owned(), params, nth, id: message["id"].clone(), wire: wire.clone() };
        self.0.asked.lock().unwrap().push(asked.clone());
        self.0.news.send_modify(|count| *count += 1);
        if message.get("id").is_none() {
            return;
        }
        let reply = match (method, self.0.legacy) {
            (method, _) if method == *self.0.hangs_up_at.lock().unwrap() => Reply::Drop,
            ("server/discover", false) => {
                self.0.connections.fetch_add(1, Ordering::SeqCst);
                Reply::Result(json!({
                    "resultType": "complete", "supportedVersions": [*self.0.version.lock().unwrap()], "capabilities": self.0.capabilities,
                    "ttlMs": 0, "cacheScope": "private",
                    "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "scripted", "version": "1" } },
                }))
            }
            ("server/discover", true) => Reply::Error(-32601, "Method not found"),
            ("initialize", true) => {
                self.0.connections.fetch_add(1, Ordering::SeqCst);
                Reply::Result(json!({
                    "protocolVersion": "2025-11-25", "capabilities": self.0.capabilities,
                    "serverInfo": { "name": "scripted", "version": "1" },
                }))
            }
            ("tools/list", _) if !self.0.tools.is_null() => Reply::Result(json!({
                "resultType": "complete", "tools": self.0.tools, "ttlMs": 60_000, "cacheScope": "private",
            })),
            _ => (self.0.play)(asked.clone()),
        };
        let wire = wire.clone();
        tokio::spawn(async move {
            let mut reply = reply;
            while let Reply::Later(later) = reply {
                reply = later.await;
            }
            let id = asked.id;
            match reply {
                Reply::Result(result) => wire.say(&json!({ "jsonrpc": "2.0", "id": id, "result": result })),
                Reply::Error(code, message) => {
                    let error = json!({ "code": code, "message": message });
                    wire.say(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
                }
                Reply::Raw(bytes) => drop(wire.lines.send(Some(bytes))),
                Reply::Drop => drop(wire.lines.send(None)),
                Reply::Hang | Reply::Later(_) => {}
            }
        });
    }
}
