//! Questions of held work, put to callers who have a session. A person may take longer than their call is held; the form is
//! open then, and what is written into it counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use outlast::WeakTaskServer;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{InputRequest, InputRequests, InputResponses, UpdateTaskParams},
    service::{RequestContext, ServiceError},
};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::gateway::{Gateway, Inner};

/// The questions that somebody looks at now: the work, and the key of the question.
#[derive(Debug, Default)]
pub(crate) struct OpenForms(Mutex<BTreeSet<(String, String)>>);

/// Why questions have no answer.
pub(crate) enum Unanswered {
    /// The caller has left.
    Left,
    /// The caller cannot be asked this, or the work does not take what it said.
    Refused(ErrorData),
}

/// Puts the questions of some work to the caller that nobody looks at yet, and gives the work the answers, whether or not anybody
/// waits for that here. None where there is nothing to put; those that are put are noted in `presented`.
pub(crate) fn put(
    gateway: &Gateway,
    context: &RequestContext<RoleServer>,
    id: &str,
    mut requests: InputRequests,
    presented: &mut BTreeSet<String>,
) -> Option<JoinHandle<Result<(), Unanswered>>> {
    {
        let mut open = gateway.inner.forms.open();
        requests.retain(|key, _| !presented.contains(key) && open.insert((id.to_owned(), key.clone())));
    }
    if requests.is_empty() {
        return None;
    }
    presented.extend(requests.keys().cloned());
    let shown = Shown {
        gateway: Arc::downgrade(&gateway.inner),
        id: id.to_owned(),
        keys: requests.keys().cloned().collect(),
    };
    let (server, context) = (gateway.inner.server.get().cloned(), context.clone());
    Some(tokio::spawn(async move {
        let answers = ask(&context, requests).await?;
        let Some(server) = server.as_ref().and_then(WeakTaskServer::upgrade) else {
            return Err(Unanswered::Left);
        };
        let update = UpdateTaskParams::new(shown.id.clone(), answers);
        server.update_task(update, context).await.map_err(Unanswered::Refused)
    }))
}

async fn ask(
    context: &RequestContext<RoleServer>,
    requests: InputRequests,
) -> Result<InputResponses, Unanswered> {
    let mut answers = BTreeMap::new();
    for (key, request) in requests {
        let is_elicitation = matches!(request, InputRequest::Elicitation(_));
        let answer = match request {
            InputRequest::Elicitation(request) => {
                context.peer.create_elicitation(request.params).await.map(|answer| json!(answer))
            }
            #[allow(deprecated, reason = "still a kind of question (S19)")]
            InputRequest::CreateMessage(request) => {
                context.peer.create_message(request.params).await.map(|answer| json!(answer))
            }
            #[allow(deprecated, reason = "still a kind of question (S19)")]
            InputRequest::ListRoots(_) => context.peer.list_roots().await.map(|answer| json!(answer)),
            _ => continue,
        };
        match answer {
            Ok(answer) => drop(answers.insert(key, answer)),
            Err(ServiceError::TransportClosed | ServiceError::TransportSend(_)) => {
                return Err(Unanswered::Left);
            }
            // Whoever asks finds that the person closed the question, and may do without an answer.
            Err(ServiceError::McpError(error)) if is_elicitation => {
                tracing::debug!(%error, "a caller refused a question");
                answers.insert(key, json!({ "action": "cancel" }));
            }
            Err(error) => {
                tracing::debug!(%error, "a caller gave no answer to a question");
                let message = "the caller gave no answer to a question of the work";
                return Err(Unanswered::Refused(ErrorData::internal_error(message, None)));
            }
        }
    }
    Ok(answers)
}

impl OpenForms {
    fn open(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Questions are shown to somebody for as long as this lives.
struct Shown {
    gateway: Weak<Inner>,
    id: String,
    keys: Vec<String>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        let Some(gateway) = self.gateway.upgrade() else { return };
        let mut open = gateway.forms.open();
        for key in &self.keys {
            open.remove(&(self.id.clone(), key.clone()));
        }
    }
}
