//! A server with one tool, behind the layer.

use std::{net::SocketAddr, sync::Arc};

use outlast::{MemoryStore, SystemClock, TaskServer, TaskTool, http};
use outlast_auth::Auth;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

#[derive(Clone)]
struct Tools;

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![Tool::new("work", "works", Arc::new(JsonObject::new()))]))
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Ok(CallToolResult::success(vec![ContentBlock::text("done")]).into())
    }
}

/// Where clients are told that the server is.
pub(crate) const RESOURCE: &str = "https://tools.example.com/mcp";

/// Serves, and says where.
pub(crate) async fn serve(auth: Auth) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serve_on(listener, auth).await;
    address
}

/// Serves at a place that is known already.
pub(crate) async fn serve_on(listener: TcpListener, auth: Auth) {
    let server = TaskServer::builder(Tools)
        .store(MemoryStore::new(SystemClock))
        .tool("work", TaskTool::required())
        .build()
        .await
        .unwrap();
    let router = auth.protect(http::router(&server, &http::Options::default()));
    tokio::spawn(async move { axum::serve(listener, router).await });
}

/// An answer, as far as it matters here.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) challenge: Option<String>,
    pub(crate) retry_after: Option<String>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The error that the challenge names.
    pub(crate) fn error(&self) -> Option<&str> {
        self.challenge.as_deref()?.split_once("error=\"")?.1.split('"').next()
    }

    pub(crate) async fn of(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        Self {
            status: response.status().as_u16(),
            challenge: header("www-authenticate"),
            retry_after: header("retry-after"),
            body: response.text().await.unwrap(),
        }
    }
}

pub(crate) fn client() -> reqwest::Client {
    // Of tests in one process the first installs it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().tls_certs_only([]).build().unwrap()
}

/// A request of protocol 2026-07-28 with this `Authorization`.
pub(crate) async fn ask(to: SocketAddr, authorization: Option<&str>, method: &str, params: Value) -> Answer {
    let mut params = params;
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } },
    });
    let name =
        params.get("name").or(params.get("taskId")).and_then(Value::as_str).unwrap_or_default().to_owned();
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let mut request = client()
        .post(format!("http://{to}/mcp"))
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", method)
        .header("mcp-name", name)
        .body(body.to_string());
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    Answer::of(request).await
}

/// Calls the tool.
pub(crate) async fn call(to: SocketAddr, authorization: Option<&str>) -> Answer {
    ask(to, authorization, "tools/call", json!({ "name": "work", "arguments": {} })).await
}
