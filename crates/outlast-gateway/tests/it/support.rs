//! An upstream that knows nothing of tasks, and the ways to a gateway in front of it.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast::{Config, MemoryStore, Store, SystemClock, TaskServer};
use outlast_client::Server;
use outlast_gateway::{Gateway, GatewayOptions, Upstream, When};
use rmcp::{
    ClientHandler, ErrorData, RoleClient, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig,
        ContentBlock, ElicitRequestParams, ElicitResult, ElicitationAction, Implementation, JsonObject,
        ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion,
        ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
    },
    service::{RequestContext, ServiceExt},
};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// A server as there are many: tools, and no word of tasks.
#[derive(Clone, Default)]
pub(crate) struct Plain {
    /// Lets the slow tool end.
    pub(crate) go: Arc<Notify>,
    /// How often the slow tool was called.
    pub(crate) calls: Arc<AtomicUsize>,
    /// How many calls of it were cancelled.
    pub(crate) cancelled: Arc<AtomicUsize>,
}

struct Cancels(Arc<AtomicUsize>, bool);

impl Drop for Cancels {
    fn drop(&mut self) {
        if !self.1 {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn said(text: &str) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

impl ServerHandler for Plain {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    /// Servers as there are many speak what was spoken before tasks, in which a server may ask during a call.
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(&[ProtocolVersion::V_2025_11_25])
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = |name| Tool::new(name, "a tool", Arc::new(JsonObject::new()));
        let harmless = ToolAnnotations::default().read_only(true);
        Ok(ListToolsResult::with_all_items(vec![
            tool("quick"),
            tool("slow"),
            tool("slow_and_harmless").with_annotations(harmless),
            tool("asks"),
            tool("dies"),
        ]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match request.name.as_ref() {
            "quick" => Ok(said(&format!("quick {}", json!(request.arguments)))),
            "slow" | "slow_and_harmless" => {
                self.calls.fetch_add(1, Ordering::SeqCst);
                let mut cancels = Cancels(self.cancelled.clone(), false);
                if let Some(token) = context.meta.get_progress_token() {
                    let mut progress = ProgressNotificationParam::new(token, 1.0);
                    progress.message = Some("half of it".into());
                    context.peer.notify_progress(progress).await.unwrap();
                }
                tokio::select! {
                    () = self.go.notified() => {
                        cancels.1 = true;
                        Ok(said("slow"))
                    }
                    () = context.ct.cancelled() => Err(ErrorData::internal_error("cancelled", None)),
                }
            }
            "asks" => {
                let asked: ElicitRequestParams = serde_json::from_value(json!({
                    "mode": "form", "message": "who?",
                    "requestedSchema": { "type": "object", "properties": { "name": { "type": "string" } } }
                }))
                .unwrap();
                let answer = context.peer.create_elicitation(asked).await;
                let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
                Ok(said(&json!(answer.content).to_string()))
            }
            _ => Err(ErrorData::invalid_params("no such tool", None)),
        }
    }
}

/// A caller that says a name to whoever asks.
pub(crate) struct Person;

impl ClientHandler for Person {
    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "name": "Ada" })))
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("test", "1"))
    }
}

/// A way to a handler: each connection is served anew.
pub(crate) fn streams<H: ServerHandler + Clone>(name: &str, handler: H) -> Server {
    Server::streams(name, move || {
        let handler = handler.clone();
        async move {
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            tokio::spawn(async move {
                if let Ok(running) = handler.serve(ours).await {
                    let _ = running.waiting().await;
                }
            });
            Ok(tokio::io::split(theirs))
        }
    })
}

/// One connection to a gateway. Boxed, since what serves one is deep.
pub(crate) fn serve(server: TaskServer<Gateway>) -> tokio::io::DuplexStream {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let served: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
        if let Ok(running) = server.serve(ours).await {
            let _ = running.waiting().await;
        }
    });
    tokio::spawn(served);
    theirs
}

/// A gateway with a store of its own in front of an upstream.
pub(crate) async fn gateway(upstream: Upstream, start: When, hold: Duration) -> TaskServer<Gateway> {
    gateway_on(Arc::new(MemoryStore::new(SystemClock)), upstream, start, hold).await
}

pub(crate) async fn gateway_on(
    store: Arc<dyn Store>,
    upstream: Upstream,
    start: When,
    hold: Duration,
) -> TaskServer<Gateway> {
    let mut options = GatewayOptions::default();
    options.start = start;
    options.hold = hold;
    Gateway::serve(vec![upstream], options, store, Config::default()).await.unwrap()
}

pub(crate) fn text(result: &CallToolResult) -> String {
    let result: Value = serde_json::to_value(result).unwrap();
    result["content"][0]["text"].as_str().unwrap_or_default().to_owned()
}
