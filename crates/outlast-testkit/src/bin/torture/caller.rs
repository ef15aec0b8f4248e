//! A caller whose server may die under it. It knows HTTP and JSON, and nothing of this project.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client as Http, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::ledger::{Answered, Shown};

/// The server went away before its whole answer was here.
#[derive(Debug)]
pub(crate) struct Gone;

/// Where requests go: to one server after the other, of those that are up.
pub(crate) struct Front {
    /// The servers by their numbers; `None` is down.
    up: watch::Sender<Vec<Option<String>>>,
    turn: AtomicUsize,
    /// How many requests were told to try again.
    pub(crate) try_again: AtomicUsize,
}

impl Front {
    pub(crate) fn new(urls: impl IntoIterator<Item = String>) -> Arc<Self> {
        let up = watch::Sender::new(urls.into_iter().map(Some).collect());
        Arc::new(Self { up, turn: AtomicUsize::new(0), try_again: AtomicUsize::new(0) })
    }

    /// Whether there is another server to go to when one does not answer.
    pub(crate) fn is_many(&self) -> bool {
        self.up.borrow().len() > 1
    }

    pub(crate) fn up(&self, number: usize, url: &str) {
        self.up.send_modify(|up| up[number] = Some(url.to_owned()));
    }

    /// Nothing is sent there any more, and nobody waits any longer for what it has not answered.
    pub(crate) fn down(&self, number: usize) {
        self.up.send_modify(|up| up[number] = None);
    }

    fn next(&self) -> Option<(usize, String)> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let up = self.up.borrow();
        let mut numbers = (0..up.len()).map(|number| (turn + number) % up.len());
        numbers.find_map(|number| Some((number, up[number].clone()?)))
    }

    async fn until_down(&self, number: usize, url: &str) {
        let mut up = self.up.subscribe();
        // The sender is in `self`.
        let _ = up.wait_for(|up| up[number].as_deref() != Some(url)).await;
    }
}

/// What a server says whose store does not answer.
const TRY_AGAIN: &str = "try again";

/// One owner of tasks.
#[derive(Clone)]
pub(crate) struct Caller {
    http: Http<HttpConnector, Full<Bytes>>,
    front: Arc<Front>,
    token: String,
}

impl Caller {
    /// The owner of this number.
    pub(crate) fn new(front: &Arc<Front>, owner: usize) -> Self {
        let http = Http::builder(TokioExecutor::new()).build_http();
        Self { http, front: front.clone(), token: format!("Bearer owner {owner}") }
    }

    /// Sends a request to the server whose turn it is; its result, or its error as text. One of many servers may say that
    /// its store does not answer, which is no answer to what was asked.
    async fn request(&self, method: &str, name: &str, params: Value) -> Result<Answered<Value>, Gone> {
        let (number, url) = self.front.next().ok_or(Gone)?;
        let answered = tokio::select! {
            answered = self.exchange(&url, method, name, params) => answered?,
            () = self.front.until_down(number, &url) => return Err(Gone),
        };
        match answered {
            Answered::Error(error) if self.front.is_many() && error.contains(TRY_AGAIN) => {
                self.front.try_again.fetch_add(1, Ordering::Relaxed);
                Err(Gone)
            }
            answered => Ok(answered),
        }
    }

    async fn exchange(
        &self,
        url: &str,
        method: &str,
        name: &str,
        mut params: Value,
    ) -> Result<Answered<Value>, Gone> {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "torture", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": {
                "elicitation": {"form": {}},
                "extensions": {"io.modelcontextprotocol/tasks": {}},
            },
        });
        for (key, value) in meta.as_object().into_iter().flatten() {
            params["_meta"][key] = value.clone();
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let request = Request::post(url)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", method)
            .header("mcp-name", name)
            .header("authorization", &self.token)
            .body(Full::from(body))
            .expect("the request is whole");
        let response = self.http.request(request).await.map_err(|_| Gone)?;
        let bytes = response.into_body().collect().await.map_err(|_| Gone)?.to_bytes();
        Ok(match serde_json::from_slice::<Value>(&bytes) {
            Ok(mut answer) if answer.get("result").is_some() => Answered::Result(answer["result"].take()),
            Ok(answer) => Answered::Error(answer["error"].to_string()),
            Err(_) => Answered::Error(format!("no JSON: {}", String::from_utf8_lossy(&bytes))),
        })
    }

    /// Calls a tool. With a key the call may be sent again.
    pub(crate) async fn call(
        &self,
        tool: &str,
        arguments: Value,
        key: Option<&str>,
    ) -> Result<Answered<Value>, Gone> {
        let mut params = json!({"name": tool, "arguments": arguments, "_meta": {}});
        if let Some(key) = key {
            params["_meta"]["outlast/idempotencyKey"] = key.into();
        }
        self.request("tools/call", tool, params).await
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Answered<Shown>, Gone> {
        let answered = self.request("tasks/get", id, json!({"taskId": id})).await?;
        Ok(match answered {
            Answered::Result(result) => Answered::Result(Shown::new(result)),
            Answered::Error(error) => Answered::Error(error),
        })
    }

    /// Answers these questions, each with this name.
    pub(crate) async fn answer(
        &self,
        id: &str,
        answers: &[(String, String)],
    ) -> Result<Answered<Value>, Gone> {
        let accept = |name: &String| json!({"action": "accept", "content": {"name": name}});
        let answers: serde_json::Map<_, _> =
            answers.iter().map(|(key, name)| (key.clone(), accept(name))).collect();
        self.request("tasks/update", id, json!({"taskId": id, "inputResponses": answers})).await
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<Answered<Value>, Gone> {
        self.request("tasks/cancel", id, json!({"taskId": id})).await
    }
}
