//! Carries what an upstream asks and says during a call to the one who made the call at the gateway.

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use outlast::TaskContext;
use rmcp::{
    ClientHandler, ErrorData, RoleClient, RoleServer,
    model::{
        ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
        ElicitRequestParams, ElicitResult, ListRootsResult, ProgressNotificationParam, ProgressToken,
        RequestId,
    },
    service::{NotificationContext, Peer, RequestContext},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The handler of one call: its questions become those of the task, its progress the task's status.
pub(crate) struct Bridge {
    context: TaskContext,
    /// What the caller can be asked.
    capabilities: ClientCapabilities,
    /// A caller who waits and wants to hear of progress.
    listener: Option<Listener>,
    asked: AtomicUsize,
    keys: Mutex<HashMap<String, usize>>,
}

/// Where progress is told to a caller whose call is held open.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    pub(crate) peer: Peer<RoleServer>,
    pub(crate) token: ProgressToken,
}

impl Bridge {
    pub(crate) fn new(
        context: TaskContext,
        capabilities: ClientCapabilities,
        listener: Option<Listener>,
    ) -> Self {
        Self { context, capabilities, listener, asked: AtomicUsize::new(0), keys: Mutex::default() }
    }

    /// The key of a question: the upstream's own, where it has one, told apart from an earlier one of the same name.
    fn key(&self, id: &RequestId) -> String {
        let RequestId::String(theirs) = id else {
            return format!("upstream-{}", self.asked.fetch_add(1, Ordering::Relaxed) + 1);
        };
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let times = keys.entry(theirs.to_string()).or_default();
        *times += 1;
        match *times {
            1 => theirs.to_string(),
            times => format!("{theirs}-{times}"),
        }
    }

    /// Asks, and gives the answer back. The keys count, so that a call which is made again asks under the same ones, and
    /// answers that were given are not asked for twice.
    async fn ask<T: DeserializeOwned>(
        &self,
        context: &RequestContext<RoleClient>,
        method: &str,
        params: impl Serialize,
    ) -> Result<T, ErrorData> {
        let key = self.key(&context.id);
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
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.ask(&context, "elicitation/create", request).await
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.ask(&context, "sampling/createMessage", params).await
    }

    async fn list_roots(&self, context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.ask(&context, "roots/list", Value::Null).await
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.context.progress(params.progress, params.total, params.message.as_deref()).await;
        if let Some(Listener { peer, token }) = &self.listener {
            let mut progress = params;
            progress.progress_token = token.clone();
            // A caller who left needs no progress.
            let _ = peer.notify_progress(progress).await;
        }
    }

    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(self.capabilities.clone(), crate::upstream::implementation())
    }
}
