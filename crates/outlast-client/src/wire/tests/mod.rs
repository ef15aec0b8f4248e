//! Connections over real sockets and real processes, to servers that follow a script.

mod child;
mod http;
mod lines;

use std::{sync::Arc, time::Duration};

use rmcp::{
    ClientHandler, RoleClient,
    model::{ClientRequest, CustomNotification, CustomRequest, ProtocolVersion, ServerResult},
    service::{
        ClientInitializeError, ClientLifecycleMode, NotificationContext, RunningService, ServiceError,
        serve_client_with_lifecycle,
    },
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Observed, RawNotification, Refused, WireError, raw_notification, raw_result};
use crate::Server;

/// What arrives where the user's handler will be.
struct Handler(mpsc::UnboundedSender<RawNotification>);

impl ClientHandler for Handler {
    async fn on_custom_notification(
        &self,
        notification: CustomNotification,
        _context: NotificationContext<RoleClient>,
    ) {
        let _ = self.0.send(raw_notification(&notification).unwrap());
    }
}

/// A client on one connection.
struct Client {
    service: RunningService<RoleClient, Handler>,
    notifications: mpsc::UnboundedReceiver<RawNotification>,
    observed: Arc<Observed>,
}

impl Client {
    async fn connect(server: &Server) -> Client {
        Client::try_connect(server).await.unwrap()
    }

    async fn try_connect(server: &Server) -> Result<Client, ClientInitializeError> {
        let observed = Arc::<Observed>::default();
        let wire = server.connect(observed.clone()).await.unwrap();
        let (sender, notifications) = mpsc::unbounded_channel();
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        };
        let service = soon(serve_client_with_lifecycle(Handler(sender), wire, lifecycle)).await?;
        Ok(Client { service, notifications, observed })
    }

    /// The raw result of a custom request.
    async fn ask(&self, method: &str, params: Value) -> Result<Value, ServiceError> {
        let request = ClientRequest::CustomRequest(CustomRequest::new(method, Some(params)));
        soon(self.service.send_request(request)).await.map(raw_result)
    }

    async fn notified(&mut self) -> (String, Value) {
        let notification = soon(self.notifications.recv()).await.unwrap();
        (notification.method, notification.params)
    }

    async fn close(mut self) {
        soon(self.service.close()).await.unwrap();
    }
}

/// Fails a test that waits for what does not come.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it does not come")
}

/// What the error of a request means.
fn refused(result: Result<Value, ServiceError>) -> Refused {
    match result {
        Err(ServiceError::TransportSend(error)) => WireError::of(&error).unwrap().refused(),
        other => panic!("not refused by the transport: {other:?}"),
    }
}

/// The JSON-RPC error of a request.
fn mcp_error(result: Result<Value, ServiceError>) -> Value {
    match result {
        Err(ServiceError::McpError(error)) => serde_json::to_value(error).unwrap(),
        other => panic!("no error of the server: {other:?}"),
    }
}

/// A result that the SDK would decode with loss.
fn lossy() -> Value {
    json!({
        "content": [{"type": "text", "text": "done"}], "resultType": "complete",
        "task": {"taskId": "t", "ttl": 60000.0}, "ttlMs": 60000.0, "later": {"x": null},
    })
}

#[test]
fn the_sdk_alone_would_lose_some_of_it() {
    let decoded: ServerResult = serde_json::from_value(lossy()).unwrap();
    assert_ne!(raw_result(decoded), lossy());
}

/// How a server of the 2026-07-28 generation introduces itself.
fn discovered() -> Value {
    json!({
        "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
        "capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {"unknown": 1.0}}},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "modern", "version": "1", "unknown": 1.0}},
    })
}

/// How one of the 2025-11-25 generation does.
fn initialized() -> Value {
    json!({
        "protocolVersion": "2025-11-25", "serverInfo": {"name": "legacy", "version": "1"},
        "capabilities": {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}},
    })
}
