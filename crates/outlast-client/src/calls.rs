//! The calls of a connection that have handlers of their own, so that what the server asks and says during a call reaches the
//! one who made it, and nobody else.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rmcp::{
    ErrorData, RoleClient,
    model::{ProgressToken, RequestId},
    service::{InboundStreamOrigin, RequestContext, RequestHandle},
};
use serde_json::Value;

use crate::tap::User;

/// In the `_meta` of what a server of 2025-11-25 asks during a task: the task.
const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// See the module.
#[derive(Default)]
pub(crate) struct Calls(Mutex<HashMap<RequestId, UnderWay>>);

/// A request during which a server may ask.
struct UnderWay {
    token: ProgressToken,
    /// The task whose questions come during the request, where it is not a call.
    task: Option<String>,
    /// Who is asked, where that is not the handler of the client.
    handler: Option<User>,
}

impl Calls {
    /// What comes during a call goes to this handler, until the guard is dropped.
    pub(crate) fn during(self: &Arc<Self>, call: &RequestHandle<RoleClient>, handler: User) -> During {
        self.insert(call, None, Some(handler))
    }

    /// What a task asks, which comes during a request for its result, goes to this handler until the guard is dropped; to the
    /// client's, if it is none.
    pub(crate) fn during_task(
        self: &Arc<Self>,
        request: &RequestHandle<RoleClient>,
        task: &str,
        handler: Option<User>,
    ) -> During {
        self.insert(request, Some(task.to_owned()), handler)
    }

    fn insert(
        self: &Arc<Self>,
        request: &RequestHandle<RoleClient>,
        task: Option<String>,
        handler: Option<User>,
    ) -> During {
        let under_way = UnderWay { token: request.progress_token.clone(), task, handler };
        self.calls().insert(request.id.clone(), under_way);
        During { calls: self.clone(), id: request.id.clone() }
    }

    /// Who is to answer a request of the server; none for the handler of the client.
    ///
    /// # Errors
    ///
    /// When the request came during several calls and does not say to which it belongs: what is meant for one person must not
    /// be shown to another.
    pub(crate) fn asked(&self, context: &RequestContext<RoleClient>) -> Result<Option<User>, ErrorData> {
        let calls = self.calls();
        if let Some(InboundStreamOrigin::OutboundRequest(id)) = context.extensions.get() {
            return Ok(calls.get(id).and_then(|call| call.handler.clone()));
        }
        let related = context.meta.0.0.get(RELATED_TASK);
        if let Some(task) = related.and_then(|related| related.get("taskId")).and_then(Value::as_str) {
            let mut tasks = calls.values().filter(|call| call.task.as_deref() == Some(task));
            return Ok(tasks.next().and_then(|call| call.handler.clone()));
        }
        let mut all = calls.values();
        match (all.next(), all.next()) {
            (one, None) => Ok(one.and_then(|call| call.handler.clone())),
            _ => Err(ErrorData::invalid_request(
                "several calls are being made, and the request does not say to which of them it belongs",
                None,
            )),
        }
    }

    /// Who is to hear of the progress that has this token.
    pub(crate) fn told(&self, progress: &ProgressToken) -> Option<User> {
        self.calls().values().find(|call| call.token == *progress).and_then(|call| call.handler.clone())
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<RequestId, UnderWay>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request is under way that has a handler of its own.
pub(crate) struct During {
    calls: Arc<Calls>,
    id: RequestId,
}

impl Drop for During {
    fn drop(&mut self) {
        self.calls.calls().remove(&self.id);
    }
}
