//! A client that sends exactly what a test wants sent.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client as Http, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};

use super::{everything, schema};

/// A caller of one identity, with one set of declared capabilities.
#[derive(Clone)]
pub(crate) struct Client {
    pub(super) http: Http<HttpConnector, Full<Bytes>>,
    pub(crate) url: String,
    pub(crate) token: Option<String>,
    pub(crate) capabilities: Value,
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// The JSON-RPC message, of a plain answer or the last event of a stream.
    pub(crate) body: Value,
}

impl Reply {
    #[track_caller]
    pub(crate) fn result(&self) -> &Value {
        assert!(
            self.body.get("result").is_some(),
            "an error came instead of a result: {} {}",
            self.status,
            self.text
        );
        &self.body["result"]
    }

    #[track_caller]
    pub(crate) fn error(&self) -> &Value {
        assert!(self.body.get("error").is_some(), "a result came instead of an error: {}", self.text);
        &self.body["error"]
    }

    #[track_caller]
    pub(crate) fn code(&self) -> i64 {
        self.error()["code"].as_i64().unwrap()
    }
}

impl Client {
    pub(crate) fn new(url: String) -> Self {
        let http = Http::builder(TokioExecutor::new()).build_http();
        Self { http, url, token: None, capabilities: everything() }
    }

    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    pub(crate) fn declaring(&self, capabilities: Value) -> Self {
        Self { capabilities, ..self.clone() }
    }

    /// The same caller who declares nothing of tasks.
    pub(crate) fn undeclared(&self) -> Self {
        self.declaring(json!({"elicitation": {}}))
    }

    /// `params` with this caller's `_meta`.
    pub(crate) fn params(&self, mut params: Value) -> Value {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        for (key, value) in meta.as_object().unwrap() {
            params["_meta"][key] = value.clone();
        }
        params
    }

    /// The headers that the protocol wants for this request.
    pub(crate) fn headers(&self, method: &str, params: &Value) -> Vec<(String, String)> {
        let mut headers = vec![
            ("content-type".to_owned(), "application/json".to_owned()),
            ("accept".to_owned(), "application/json, text/event-stream".to_owned()),
            ("mcp-protocol-version".to_owned(), "2026-07-28".to_owned()),
            ("mcp-method".to_owned(), method.to_owned()),
        ];
        let name = if method.starts_with("tasks/") { &params["taskId"] } else { &params["name"] };
        // A name that cannot stand in a header, or would fill it, is left out, as C55 allows.
        let fits = |name: &&str| name.len() < 200 && name.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
        if let Some(name) = name.as_str().filter(fits) {
            headers.push(("mcp-name".to_owned(), name.to_owned()));
        }
        if let Some(token) = &self.token {
            headers.push(("authorization".to_owned(), format!("Bearer {token}")));
        }
        headers
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        headers: &[(String, String)],
        body: impl Into<Bytes>,
    ) -> Reply {
        self.try_send(method, headers, body).await.expect("the server is there")
    }

    /// The same to a server that may die meanwhile: then there is no answer.
    pub(crate) async fn try_send(
        &self,
        method: Method,
        headers: &[(String, String)],
        body: impl Into<Bytes>,
    ) -> Option<Reply> {
        let mut request = Request::builder().method(method).uri(&self.url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = self.http.request(request.body(Full::new(body.into())).unwrap()).await.ok()?;
        let (parts, body) = response.into_parts();
        let text = String::from_utf8_lossy(&body.collect().await.ok()?.to_bytes()).into_owned();
        let last_event =
            text.lines().rev().find_map(|line| line.strip_prefix("data: ").or(line.strip_prefix("data:")));
        let body = serde_json::from_str(last_event.unwrap_or(&text)).unwrap_or(Value::Null);
        Some(Reply { status: parts.status, headers: parts.headers, text, body })
    }

    /// Sends a request as the protocol wants it.
    pub(crate) async fn request(&self, method: &str, params: Value) -> Reply {
        self.try_request(method, params).await.expect("the server is there")
    }

    /// The same to a server that may die meanwhile: then there is no answer.
    pub(crate) async fn try_request(&self, method: &str, params: Value) -> Option<Reply> {
        let params = self.params(params);
        let headers = self.headers(method, &params);
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string();
        self.try_send(Method::POST, &headers, body).await
    }

    /// Opens a session as clients of 2025-11-25 do.
    pub(crate) async fn initialize_session(&self, capabilities: Value) -> Session {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "0"},
        });
        let mut session = Session { client: self.clone(), id: None };
        let reply = session.legacy("initialize", params).await;
        reply.result();
        session.id = Some(reply.headers["mcp-session-id"].to_str().unwrap().to_owned());
        let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
        let reply = self.send(Method::POST, &session.headers(), done).await;
        assert!(reply.status.is_success(), "{}", reply.text);
        session
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Reply {
        self.request("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Calls a tool that must answer with a task, and returns its id.
    pub(crate) async fn task(&self, tool: &str, arguments: Value) -> String {
        let reply = self.call(tool, arguments).await;
        let result = reply.result();
        assert_eq!(result["resultType"], "task", "{}", reply.text);
        schema::check("CreateTaskResult", result);
        result["taskId"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn get(&self, id: &str) -> Reply {
        self.request("tasks/get", json!({"taskId": id})).await
    }

    pub(crate) async fn cancel(&self, id: &str) -> Reply {
        self.request("tasks/cancel", json!({"taskId": id})).await
    }

    pub(crate) async fn update(&self, id: &str, answers: Value) -> Reply {
        self.request("tasks/update", json!({"taskId": id, "inputResponses": answers})).await
    }

    /// The task as it is now.
    pub(crate) async fn state(&self, id: &str) -> Value {
        let state = self.get(id).await.result().clone();
        schema::check("GetTaskResult", &state);
        state
    }

    /// Polls until the task is in `status`; fails when it is final in another one.
    pub(crate) async fn until(&self, id: &str, status: &str) -> Value {
        loop {
            let state = self.state(id).await;
            if state["status"] == status {
                return state;
            }
            let over = ["completed", "failed", "cancelled"].iter().any(|end| state["status"] == *end);
            assert!(!over, "waited for {status} and got {state:#}");
            tokio::task::yield_now().await;
        }
    }
}

/// A session of protocol 2025-11-25.
pub(crate) struct Session {
    client: Client,
    id: Option<String>,
}

impl Session {
    fn headers(&self) -> Vec<(String, String)> {
        let mut headers = vec![
            ("content-type".to_owned(), "application/json".to_owned()),
            ("accept".to_owned(), "application/json, text/event-stream".to_owned()),
        ];
        if let Some(id) = &self.id {
            headers.push(("mcp-session-id".to_owned(), id.clone()));
            headers.push(("mcp-protocol-version".to_owned(), "2025-11-25".to_owned()));
        }
        headers
    }

    /// Sends a request exactly as given, without a `_meta` of ours.
    pub(crate) async fn legacy(&self, method: &str, params: Value) -> Reply {
        let body = json!({"jsonrpc": "2.0", "id": 3, "method": method, "params": params}).to_string();
        self.client.send(Method::POST, &self.headers(), body).await
    }
}

/// The answer of a person who filled in the form.
pub(crate) fn accept(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}
