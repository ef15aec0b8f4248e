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

use crate::tap::User;

/// See the module.
#[derive(Default)]
pub(crate) struct Calls(Mutex<HashMap<RequestId, (ProgressToken, User)>>);

impl Calls {
    /// What comes during a request goes to this handler, until the guard is dropped.
    pub(crate) fn during(self: &Arc<Self>, request: &RequestHandle<RoleClient>, handler: User) -> During {
        self.calls().insert(request.id.clone(), (request.progress_token.clone(), handler));
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
            return Ok(calls.get(id).map(|(_, handler)| handler.clone()));
        }
        let mut handlers = calls.values().map(|(_, handler)| handler);
        match (handlers.next(), handlers.next()) {
            (one, None) => Ok(one.cloned()),
            _ => Err(ErrorData::invalid_request(
                "several calls are being made, and the request does not say to which of them it belongs",
                None,
            )),
        }
    }

    /// Who is to hear of the progress that has this token.
    pub(crate) fn told(&self, progress: &ProgressToken) -> Option<User> {
        self.calls().values().find(|(token, _)| token == progress).map(|(_, handler)| handler.clone())
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<RequestId, (ProgressToken, User)>> {
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
