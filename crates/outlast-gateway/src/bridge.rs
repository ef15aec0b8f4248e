//! Carries what an upstream asks and says during a call to the one who made the call at the gateway.

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::sync::atomic::{AtomicUsize, Ordering};

use outlast::TaskContext;
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult, ListRootsResult,
        ProgressNotificationParam,
    },
    service::{NotificationContext, RequestContext},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The handler of one call: its questions become those of the task, its progress the task's status.
pub(crate) struct Bridge {
    context: TaskContext,
    asked: AtomicUsize,
}

impl Bridge {
    pub(crate) fn new(context: TaskContext) -> Self {
        Self { context, asked: AtomicUsize::new(0) }
    }

    /// Asks, and gives the answer back. The keys count, so that a call which is made again asks under the same ones, and
    /// answers that were given are not asked for twice.
    async fn ask<T: DeserializeOwned>(&self, method: &str, params: impl Serialize) -> Result<T, ErrorData> {
        let key = format!("upstream-{}", self.asked.fetch_add(1, Ordering::Relaxed) + 1);
        let params = serde_json::to_value(params).unwrap_or_default();
        let request = match params {
            Value::Null => json!({ "method": method }),
            params => json!({ "method": method, "params": params }),
        };
        let mut answers = self.context.ask([(key.as_str(), request)]).await.map_err(ErrorData::from)?;
        serde_json::from_value(answers.remove(&key).unwrap_or_default()).map_err(|_| {
            ErrorData::internal_error("the answer has not the shape that the question asks for", None)
        })
    }
}

impl ClientHandler for Bridge {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.ask("elicitation/create", request).await
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.ask("sampling/createMessage", params).await
    }

    async fn list_roots(&self, _context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.ask("roots/list", Value::Null).await
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.context.progress(params.progress, params.total, params.message.as_deref()).await;
    }
}
