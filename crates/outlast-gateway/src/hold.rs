//! Calls of callers who know nothing of tasks. Their call is work of a task all the same, and is held open for them; when
//! that takes too long, the answer says that the work goes on, and by which tools it is asked for.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use outlast::{Owner, Status, Store, StoreError, TaskServer, WeakTaskServer, default_owner};
use outlast_core::Filter;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities,
        ContentBlock, DetailedTask, GetTaskParams, InputRequest, InputRequests, InputRequiredResult,
        InputResponses, JsonObject, ProgressNotificationParam, ProtocolVersion, RequestMetaObject,
        TASKS_EXTENSION_ID, TaskPayload, Tool, UpdateTaskParams,
    },
    service::{RequestContext, ServiceError},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{
    bridge::{Listener, Logs},
    clock,
    gateway::Gateway,
    remembered::{Digest, Remembered},
};

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
pub(crate) async fn tools(gateway: &Gateway) -> Vec<Tool> {
    let names = OwnNames::of(gateway).await;
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
            names.outside(STATUS),
            "How far the work is that an earlier call began, and what it asks",
            schema(json!({})),
        ),
        Tool::new(
            names.outside(RESULT),
            "The result of the work that an earlier call began; waits for it for a while",
            schema(json!({})),
        ),
        Tool::new(
            names.outside(ANSWER),
            "Answers questions of the work that an earlier call began",
            schema(answers),
        ),
        Tool::new(
            names.outside(CANCEL),
            "Asks for the end of the work that an earlier call began",
            schema(json!({})),
        ),
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
        .and_then(WeakTaskServer::upgrade)
        .ok_or_else(|| ErrorData::internal_error("the gateway is starting or ending; try again", None))?;
    let until = clock::now() + gateway.hold(&request.name);
    let names = OwnNames::of(gateway).await;
    let is_modern = is_modern(&context);
    let mut context = declaring(context);
    let logs = match is_modern {
        true => Logs::of(&context.meta),
        false => gateway.inner.sessions.logs(&context.peer),
    };
    if let Logs::From(level) = logs {
        // An upstream of 2026-07-28 logs what the request asks for.
        context.meta.set_log_level(level);
    }
    let held = Held { gateway, server, context, until, names, is_modern };
    if let Some(answer) = held.own_tool(&request).await {
        return answer;
    }
    // A caller of 2026-07-28 was asked by an answer, and comes back with what the person said.
    if let Some(state) = &request.request_state {
        let id = held.opened(state).await?;
        held.carry_on(&id, request.input_responses.clone().unwrap_or_default()).await?;
        let digest = digest_of(&held.context, &request);
        return held.wait_unless_left(&id, digest, true).await;
    }
    let digest = digest_of(&held.context, &request);
    if let Some(id) = held.known(&digest)
        && held.server.get_task(GetTaskParams::new(id.clone()), held.context.clone()).await.is_ok()
    {
        return held.wait(&id, Some(digest), true).await;
    }
    let mut context = held.context.clone();
    let listening = gateway.inner.listeners.listen(&mut context, logs);
    match held.server.call_tool(request, context).await? {
        CallToolResponse::Task(created) => {
            held.wait_unless_left(&created.task.task_id, digest, listening.is_none()).await
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
    context.meta.0.0.insert(HELD.to_owned(), true.into());
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
fn digest(owner: &Owner, name: &str, arguments: Option<&JsonObject>) -> Digest {
    let mut digest = Sha256::new();
    for part in [owner.as_str(), name] {
        // With its length, so that no two calls have the same bytes.
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.update(json!(arguments).to_string());
    digest.finalize().into()
}

fn digest_of(context: &RequestContext<RoleServer>, request: &CallToolRequestParams) -> Digest {
    digest(&default_owner(&context.extensions), &request.name, request.arguments.as_ref())
}

/// The calls whose work an earlier process left, so that the same call finds it again.
pub(crate) async fn left_by_earlier(store: &dyn Store) -> Result<Remembered, StoreError> {
    const PAGE: u32 = 500;
    let mut remembered = Remembered::default();
    for status in [Status::Working, Status::InputRequired] {
        let mut after = None;
        loop {
            let filter = Filter { status: Some(status), ..Filter::default() };
            let page = store.list(filter, after, PAGE).await?;
            for task in page.tasks {
                let Some(call) = store.call(task.id).await? else { continue };
                let Ok(request) = call.params.decode::<CallToolRequestParams>() else { continue };
                if request.meta.is_some_and(|meta| meta.0.0.contains_key(HELD)) {
                    let digest = digest(&task.owner, &request.name, request.arguments.as_ref());
                    remembered.insert(digest, task.id.to_string());
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(remembered)
}

/// The names of the tools that the gateway adds.
struct OwnNames {
    prefix: String,
}

impl OwnNames {
    /// An upstream's own tools keep their names; where it has one that is called like the gateway's, those are called otherwise.
    async fn of(gateway: &Gateway) -> Self {
        let mut prefix = String::new();
        // Of several upstreams the tools carry names, which no tool of the gateway begins with.
        if let [upstream] = &*gateway.inner.upstreams
            && upstream.name().is_none()
        {
            let mut names = [STATUS, RESULT, ANSWER, CANCEL].iter();
            while let Some(name) = names.next() {
                if upstream.find(&format!("{prefix}{name}")).await.is_some() {
                    prefix.push_str("gateway_");
                    names = [STATUS, RESULT, ANSWER, CANCEL].iter();
                }
            }
        }
        Self { prefix }
    }

    fn outside(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn inside<'n>(&self, name: &'n str) -> Option<&'n str> {
        let name = name.strip_prefix(&*self.prefix)?;
        [STATUS, RESULT, ANSWER, CANCEL].contains(&name).then_some(name)
    }
}

/// The callers who wait, by a mark that goes along with the call. Only in memory: who waits is gone when the gateway is.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Mutex<HashMap<String, Listener>>);

/// The mark in the `_meta` of a call by which the gateway finds who waits for it.
pub(crate) const LISTENER: &str = "outlast-gateway/listener";
/// The mark in the `_meta` of a call that its caller knows nothing of tasks.
pub(crate) const HELD: &str = "outlast-gateway/held";

impl Listeners {
    /// Marks a call whose caller waits for it, for as long as the guard lives.
    fn listen(&self, context: &mut RequestContext<RoleServer>, logs: Logs) -> Option<Listening<'_>> {
        let token = context.meta.get_progress_token();
        // Not to be guessed, so that no other call can be told for this one.
        let mut mark = [0; 16];
        getrandom::fill(&mut mark).ok()?;
        let mark: String = mark.iter().map(|byte| format!("{byte:02x}")).collect();
        context.meta.0.0.insert(LISTENER.to_owned(), mark.clone().into());
        let listener = Listener { peer: context.peer.clone(), token, logs };
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
    names: OwnNames,
    is_modern: bool,
}

impl Held<'_> {
    /// The work that this call began earlier, and whose result was not fetched yet.
    fn known(&self, digest: &Digest) -> Option<String> {
        self.remembered().get(digest).map(str::to_owned)
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.gateway.inner.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of the work is told, so the same call begins anew.
    fn forget(&self, id: &str) {
        self.remembered().forget(id);
    }

    /// Holds a call until its caller leaves. A host that gives up leaves its work running, which the same call finds again.
    async fn wait_unless_left(
        &self,
        id: &str,
        digest: Digest,
        tells: bool,
    ) -> Result<CallToolResponse, ErrorData> {
        tokio::select! {
            answer = self.wait(id, Some(digest), tells) => answer,
            () = self.context.ct.cancelled() => {
                self.remembered().insert(digest, id.to_owned());
                let message = "the call was cancelled; its work goes on, and the same call waits for it again";
                Err(ErrorData::internal_error(message, None))
            }
        }
    }

    /// Asks for the end of work that nobody will ask for.
    async fn end(&self, id: &str) {
        self.forget(id);
        if let Err(error) = self.server.cancel_task(CancelTaskParams::new(id), self.context.clone()).await {
            tracing::warn!(%error, "work that nobody waits for could not be cancelled");
        }
    }

    /// The state of the work, as often as that may be asked for.
    async fn look(&self, id: &str) -> Result<DetailedTask, ErrorData> {
        loop {
            match self.server.get_task(GetTaskParams::new(id), self.context.clone()).await {
                Ok(result) => return Ok(result.task),
                // Several calls may wait for the same work.
                Err(error) => match error.data.as_ref().and_then(|data| data["retryAfterMs"].as_u64()) {
                    Some(wait) => tokio::time::sleep(Duration::from_millis(wait).max(PAUSE)).await,
                    None => return Err(error),
                },
            }
        }
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
        let task = self.look(id).await.map_err(|_| refused())?;
        match &task.payload {
            TaskPayload::InputRequired { input_requests } if sealed(id, input_requests) != state => {
                Err(refused())
            }
            _ => Ok(id.to_owned()),
        }
    }

    /// Holds the call until the task ends, asks, or takes too long. `tells` says that nobody else tells the caller of progress.
    async fn wait(
        &self,
        id: &str,
        digest: Option<Digest>,
        tells: bool,
    ) -> Result<CallToolResponse, ErrorData> {
        let until = self.until;
        let mut hints = self.server.watch();
        let mut told = String::new();
        let mut steps = 0_u32;
        let mut presented = BTreeSet::new();
        loop {
            let task = self.look(id).await?;
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
                        Some(Ok(answers)) => self.update(id, answers).await?,
                        Some(Err(error)) => {
                            self.end(id).await;
                            return Err(error);
                        }
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

    fn goes_on(&self, id: &str, digest: Option<Digest>) -> CallToolResponse {
        if let Some(digest) = digest {
            self.remembered().insert(digest, id.to_owned());
        }
        let [status, result, answer, cancel] =
            [STATUS, RESULT, ANSWER, CANCEL].map(|name| self.names.outside(name));
        let text = format!(
            "The work goes on and is not done yet. Its id is {id}. Ask for it with {result} (waits for the result), {status} \
             (how far it is), {answer} (answers what it asks) or {cancel}, each with {{\"task\": \"{id}\"}}; or make the same \
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
            let is_elicitation = matches!(request, InputRequest::Elicitation(_));
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
                // Whoever asks finds that the person closed the question, and may do without an answer.
                Err(ServiceError::McpError(error)) if is_elicitation => {
                    tracing::debug!(%error, "a caller refused a question");
                    answers.insert(key, json!({ "action": "cancel" }));
                }
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

    /// Gives the work the answers of a round. A round whose answer was lost comes again, when the work has gone on.
    async fn carry_on(&self, id: &str, answers: InputResponses) -> Result<(), ErrorData> {
        match self.look(id).await?.payload {
            TaskPayload::InputRequired { input_requests } => {
                let open = answers.into_iter().filter(|(key, _)| input_requests.contains_key(key));
                self.update(id, open.collect()).await
            }
            _ => Ok(()),
        }
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
        let name = self.names.inside(&request.name)?;
        let argument = |name: &str| request.arguments.as_ref().and_then(|arguments| arguments.get(name));
        let Some(id) = argument("task").and_then(Value::as_str) else {
            return Some(Err(ErrorData::invalid_params(
                "`task` is the id that the answer to the call named",
                None,
            )));
        };
        let answers = argument("answers").and_then(Value::as_object);
        Some(match name {
            RESULT => self.wait(id, None, true).await,
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
        let task = self.look(id).await?;
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
