//! Calls of callers who know nothing of tasks. Their call is work of a task all the same, and is held open for them; when
//! that takes too long, the answer says that the work goes on, and by which tools it is asked for.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use outlast::{TaskServer, default_owner};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities,
        ContentBlock, GetTaskParams, InputRequest, InputRequests, InputRequiredResult, InputResponses,
        JsonObject, ProgressNotificationParam, ProtocolVersion, RequestMetaObject, TASKS_EXTENSION_ID,
        TaskPayload, Tool, UpdateTaskParams,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{bridge::Listener, clock, proxy::Gateway};

const STATUS: &str = "task_status";
const RESULT: &str = "task_result";
const ANSWER: &str = "task_answer";
const CANCEL: &str = "task_cancel";

/// What stands in a `requestState` between the id of the work and the digest of what it asks.
const STATE: char = '.';

/// How long a look at a task waits for its next change before it looks anyway, in case a hint was lost.
const LOOK: Duration = Duration::from_secs(2);
/// The shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Whether a request declares the extension (S1).
pub(crate) fn declares(context: &RequestContext<RoleServer>) -> bool {
    context
        .meta
        .client_capabilities()
        .and_then(|capabilities| capabilities.extensions)
        .is_some_and(|extensions| extensions.contains_key(TASKS_EXTENSION_ID))
}

/// The tools by which work is asked for that goes on after its call was answered.
pub(crate) fn tools() -> Vec<Tool> {
    let id = json!({ "type": "string", "description": "The id that the answer to the call named" });
    let schema = |more: Value| {
        let mut properties = json!({ "task": id });
        for (name, field) in more.as_object().into_iter().flatten() {
            properties[name] = field.clone();
        }
        let required: Vec<&String> = properties.as_object().into_iter().flat_map(JsonObject::keys).collect();
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        Arc::new(schema.as_object().cloned().unwrap_or_default())
    };
    let answers = json!({ "answers": {
        "type": "object",
        "description": "By the key of each question, its result, such as {\"action\": \"accept\", \"content\": {...}}"
    }});
    vec![
        Tool::new(
            STATUS,
            "How far the work is that an earlier call began, and what it asks",
            schema(json!({})),
        ),
        Tool::new(
            RESULT,
            "The result of the work that an earlier call began; waits for it for a while",
            schema(json!({})),
        ),
        Tool::new(ANSWER, "Answers questions of the work that an earlier call began", schema(answers)),
        Tool::new(CANCEL, "Asks for the end of the work that an earlier call began", schema(json!({}))),
    ]
}

/// A call by somebody who does not declare the extension. Boxed, since it comes back through the server to the gateway.
pub(crate) fn call(
    gateway: &Gateway,
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> BoxFuture<'_, Result<CallToolResponse, ErrorData>> {
    Box::pin(hold(gateway, request, context))
}

async fn hold(
    gateway: &Gateway,
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let server = gateway
        .inner
        .server
        .get()
        .cloned()
        .ok_or_else(|| ErrorData::internal_error("the gateway is still starting; try again", None))?;
    let until = clock::now() + gateway.hold(&request.name);
    let held = Held { gateway, server, until, is_modern: is_modern(&context), context: declaring(context) };
    if let Some(answer) = held.own_tool(&request).await {
        return answer;
    }
    // A caller of 2026-07-28 was asked by an answer, and comes back with what the person said.
    if let Some(state) = &request.request_state {
        let id = held.opened(state).await?;
        held.update(&id, request.input_responses.clone().unwrap_or_default()).await?;
        return held.wait(&id, digest(&held.context, &request), true).await;
    }
    let digest = digest(&held.context, &request);
    if let Some(id) = held.known(&digest)
        && held.server.get_task(GetTaskParams::new(id.clone()), held.context.clone()).await.is_ok()
    {
        return held.wait(&id, digest, true).await;
    }
    let mut context = held.context.clone();
    let listening = gateway.inner.listeners.listen(&mut context);
    match held.server.call_tool(request, context).await? {
        CallToolResponse::Task(created) => {
            held.wait(&created.task.task_id, digest, listening.is_none()).await
        }
        other => Ok(other),
    }
}

fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.meta.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

/// The request as one that declares the extension, and otherwise what its caller can do.
fn declaring(mut context: RequestContext<RoleServer>) -> RequestContext<RoleServer> {
    let mut capabilities: ClientCapabilities = context.client_capabilities().unwrap_or_default();
    capabilities.extensions.get_or_insert_default().entry(TASKS_EXTENSION_ID.to_owned()).or_default();
    context.meta.set_client_capabilities(capabilities);
    context.meta.set_protocol_version(ProtocolVersion::V_2026_07_28);
    context.extensions.insert(ComesBack);
    context
}

/// Marks a call that the gateway makes for a caller who waits, so that it becomes a task whatever is settled for callers.
#[derive(Debug, Clone, Copy)]
struct ComesBack;

/// Whether a call is one that the gateway makes for a caller who waits.
pub(crate) fn comes_back(context: &RequestContext<RoleServer>) -> bool {
    context.extensions.get::<ComesBack>().is_some()
}

/// What makes two calls the same: who makes them, and what is asked.
fn digest(context: &RequestContext<RoleServer>, request: &CallToolRequestParams) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(format!("{:?}", default_owner(&context.extensions)));
    digest.update([0]);
    digest.update(request.name.as_bytes());
    digest.update([0]);
    digest.update(json!(request.arguments).to_string());
    digest.finalize().into()
}

/// The callers who wait, by a mark that goes along with the call. Only in memory: who waits is gone when the gateway is.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Mutex<HashMap<String, Listener>>);

/// The mark in the `_meta` of a call by which the gateway finds who waits for it.
const LISTENER: &str = "outlast-gateway/listener";

impl Listeners {
    /// Marks a call whose caller wants to hear of progress, for as long as the guard lives.
    fn listen(&self, context: &mut RequestContext<RoleServer>) -> Option<Listening<'_>> {
        let token = context.meta.get_progress_token()?;
        // Not to be guessed, so that no other call can be told for this one.
        let mut mark = [0; 16];
        getrandom::fill(&mut mark).ok()?;
        let mark: String = mark.iter().map(|byte| format!("{byte:02x}")).collect();
        context.meta.0.0.insert(LISTENER.to_owned(), mark.clone().into());
        let listener = Listener { peer: context.peer.clone(), token };
        self.listeners().insert(mark.clone(), listener);
        Some(Listening { listeners: self, mark })
    }

    /// Who waits for the call with this `_meta`.
    pub(crate) fn of(&self, meta: &RequestMetaObject) -> Option<Listener> {
        let mark = meta.0.0.get(LISTENER)?.as_str()?;
        self.listeners().get(mark).cloned()
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<String, Listener>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Listening<'l> {
    listeners: &'l Listeners,
    mark: String,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.listeners.listeners().remove(&self.mark);
    }
}

struct Held<'g> {
    gateway: &'g Gateway,
    server: TaskServer<Gateway>,
    context: RequestContext<RoleServer>,
    /// Until when the call is held.
    until: Instant,
    is_modern: bool,
}

impl Held<'_> {
    /// The work that this call began earlier, and whose result was not fetched yet.
    fn known(&self, digest: &[u8; 32]) -> Option<String> {
        self.gateway.inner.held.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    fn remember(&self, digest: [u8; 32], id: &str) {
        self.gateway.inner.held.lock().unwrap_or_else(PoisonError::into_inner).insert(digest, id.to_owned());
    }

    /// The result of the work is told, so the same call begins anew.
    fn forget(&self, id: &str) {
        self.gateway.inner.held.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, held| held != id);
    }

    /// The work that a `requestState` names, which must be the one that was given out for what the work asks now.
    async fn opened(&self, state: &str) -> Result<String, ErrorData> {
        let refused = || {
            ErrorData::invalid_params(
                "the requestState is none that this server gave, or an answered one",
                None,
            )
        };
        let id = state.split(STATE).next().filter(|id| !id.is_empty()).ok_or_else(refused)?;
        let task = self
            .server
            .get_task(GetTaskParams::new(id), self.context.clone())
            .await
            .map_err(|_| refused())?
            .task;
        match &task.payload {
            TaskPayload::InputRequired { input_requests } if sealed(id, input_requests) != state => {
                Err(refused())
            }
            _ => Ok(id.to_owned()),
        }
    }

    /// Holds the call until the task ends, asks, or takes too long. `tells` says that nobody else tells the caller of progress.
    async fn wait(&self, id: &str, digest: [u8; 32], tells: bool) -> Result<CallToolResponse, ErrorData> {
        let until = self.until;
        let mut hints = self.server.watch();
        let mut told = String::new();
        let mut steps = 0_u32;
        let mut presented = BTreeSet::new();
        loop {
            let task = self.server.get_task(GetTaskParams::new(id), self.context.clone()).await?.task;
            match task.payload {
                TaskPayload::Completed { result } => {
                    self.forget(id);
                    return read(result).map(Into::into);
                }
                TaskPayload::Failed { error } => {
                    self.forget(id);
                    let error = serde_json::from_value(Value::Object(error));
                    return Err(error.unwrap_or_else(|_| ErrorData::internal_error("the work failed", None)));
                }
                TaskPayload::Cancelled => {
                    self.forget(id);
                    return Err(ErrorData::internal_error("the work was cancelled", None));
                }
                TaskPayload::InputRequired { input_requests } if self.is_modern => {
                    let state = sealed(id, &input_requests);
                    let asks = InputRequiredResult::new(Some(input_requests), Some(state));
                    return Ok(CallToolResponse::InputRequired(asks));
                }
                TaskPayload::InputRequired { input_requests } => {
                    let fresh: InputRequests =
                        input_requests.into_iter().filter(|(key, _)| presented.insert(key.clone())).collect();
                    let answers = within(until, self.ask(fresh)).await;
                    match answers {
                        Some(answers) => self.update(id, answers?).await?,
                        None => return Ok(self.goes_on(id, digest)),
                    }
                }
                _ => {}
            }
            if let Some(message) = task.task.status_message.filter(|_| tells)
                && message != told
            {
                steps += 1;
                self.progress(steps, &message).await;
                told = message;
            }
            if clock::now() >= until {
                return Ok(self.goes_on(id, digest));
            }
            tokio::time::sleep(PAUSE).await;
            let _ = within(until.min(clock::now() + LOOK), hints.next()).await;
        }
    }

    fn goes_on(&self, id: &str, digest: [u8; 32]) -> CallToolResponse {
        self.remember(digest, id);
        let text = format!(
            "The work goes on and is not done yet. Its id is {id}. Ask for it with {RESULT} (waits for the result), {STATUS} \
             (how far it is), {ANSWER} (answers what it asks) or {CANCEL}, each with {{\"task\": \"{id}\"}}; or make the same \
             call again, which waits for the same work."
        );
        let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
        result.structured_content = None;
        result.into()
    }

    /// Puts questions to a caller who can be asked while a call is held: one with a session.
    async fn ask(&self, requests: InputRequests) -> Result<InputResponses, ErrorData> {
        let mut answers = BTreeMap::new();
        for (key, request) in requests {
            let answer = match request {
                InputRequest::Elicitation(request) => {
                    self.context.peer.create_elicitation(request.params).await.map(|answer| json!(answer))
                }
                #[allow(deprecated, reason = "still a kind of question (S19)")]
                InputRequest::CreateMessage(request) => {
                    self.context.peer.create_message(request.params).await.map(|answer| json!(answer))
                }
                #[allow(deprecated, reason = "still a kind of question (S19)")]
                InputRequest::ListRoots(_) => {
                    self.context.peer.list_roots().await.map(|answer| json!(answer))
                }
                _ => continue,
            };
            match answer {
                Ok(answer) => drop(answers.insert(key, answer)),
                Err(error) => {
                    tracing::debug!(%error, "a caller gave no answer to a question");
                    return Err(ErrorData::internal_error(
                        "the caller gave no answer to a question of the work",
                        None,
                    ));
                }
            }
        }
        Ok(answers)
    }

    async fn update(&self, id: &str, answers: InputResponses) -> Result<(), ErrorData> {
        if answers.is_empty() {
            return Ok(());
        }
        self.server.update_task(UpdateTaskParams::new(id, answers), self.context.clone()).await
    }

    async fn progress(&self, steps: u32, message: &str) {
        let Some(token) = self.context.meta.get_progress_token() else { return };
        let mut progress = ProgressNotificationParam::new(token, f64::from(steps));
        progress.message = Some(message.to_owned());
        // A caller who left needs no progress.
        let _ = self.context.peer.notify_progress(progress).await;
    }

    /// The answer of one of the gateway's own tools; none where the call is of another.
    async fn own_tool(&self, request: &CallToolRequestParams) -> Option<Result<CallToolResponse, ErrorData>> {
        let name = request.name.as_ref();
        if ![STATUS, RESULT, ANSWER, CANCEL].contains(&name) {
            return None;
        }
        let argument = |name: &str| request.arguments.as_ref().and_then(|arguments| arguments.get(name));
        let Some(id) = argument("task").and_then(Value::as_str) else {
            return Some(Err(ErrorData::invalid_params(
                "`task` is the id that the answer to the call named",
                None,
            )));
        };
        let answers = argument("answers").and_then(Value::as_object);
        Some(match name {
            RESULT => self.wait(id, [0; 32], true).await,
            STATUS => self.status(id).await,
            CANCEL => {
                let cancel = CancelTaskParams::new(id);
                let asked = self.server.cancel_task(cancel, self.context.clone()).await;
                asked.map(|()| say("The work was asked to end."))
            }
            _ => match answers {
                Some(answers) => {
                    let answers = answers.iter().map(|(key, answer)| (key.clone(), answer.clone())).collect();
                    self.update(id, answers).await.map(|()| say("The answers were given to the work."))
                }
                None => Err(ErrorData::invalid_params("`answers` is an object of answers by key", None)),
            },
        })
    }

    async fn status(&self, id: &str) -> Result<CallToolResponse, ErrorData> {
        let task = self.server.get_task(GetTaskParams::new(id), self.context.clone()).await?.task;
        let mut status = json!({ "status": task.task.status, "message": task.task.status_message });
        if let TaskPayload::InputRequired { input_requests } = task.payload {
            status["questions"] = json!(input_requests);
        }
        Ok(say(&status.to_string()))
    }
}

/// The `requestState` of a question: the work, and a digest of what it asks, which is another one for each round. It gives no
/// right to anything: the work is its owner's, whoever knows the state.
fn sealed(id: &str, asks: &InputRequests) -> String {
    let mut digest = Sha256::new();
    digest.update(id);
    for key in asks.keys() {
        digest.update([0]);
        digest.update(key);
    }
    let digest: String = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{id}{STATE}{digest}")
}

fn say(text: &str) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

fn read(result: JsonObject) -> Result<CallToolResult, ErrorData> {
    serde_json::from_value(Value::Object(result))
        .map_err(|_| ErrorData::internal_error("the result has not the shape of one", None))
}

async fn within<T>(until: Instant, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout_at(until, work).await.ok()
}
