//! Calls of callers who know nothing of tasks. Their call is work of a task all the same, and is held open for them; when
//! that takes too long, the answer says that the work goes on, and by which tools it is asked for.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use outlast::{TaskServer, WeakTaskServer};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities,
        ContentBlock, DetailedTask, GetTaskParams, InputRequests, InputRequiredResult, InputResponses,
        JsonObject, ProgressNotificationParam, ProtocolVersion, RequestMetaObject, TASKS_EXTENSION_ID,
        TaskPayload, UpdateTaskParams,
    },
    service::RequestContext,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{
    asking::{self, Unanswered as NoAnswer},
    bridge::{Listener, Logs},
    clock,
    gateway::Gateway,
    own_tools::OwnNames,
    remembered::{Digest, Remembered},
    repeats::digest_of,
};

/// What stands in a `requestState` between the id of the work and the digest of what it asks.
const STATE: char = '.';

/// What is said with a result that the caller may have been told before, and may take for that of a call made now.
const EARLIER: &str = "This is the result of an earlier call that was the same. The gateway was started again since, and cannot \
    know whether it was told then. To have the work done again, make the call again.";

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
    mut context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    gateway.discard_ticket(&mut context.extensions);
    let server = gateway
        .inner
        .server
        .get()
        .and_then(WeakTaskServer::upgrade)
        .ok_or_else(|| ErrorData::internal_error("the gateway is starting or ending; try again", None))?;
    let until = clock::now() + gateway.hold(&request.name);
    let names = OwnNames::of(gateway, &gateway.caller(&context.extensions)).await;
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
    let mut again = context.clone();
    again.extensions.insert(Again);
    let (context, first) = (again, Mutex::new(Some(context)));
    let held = Held { gateway, server, context, first, until, names, is_modern };
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

/// Marks what the gateway asks about work for a caller who waits, once it has asked for the first time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Again;

/// Whether a call is one that the gateway makes for a caller who waits.
pub(crate) fn comes_back(context: &RequestContext<RoleServer>) -> bool {
    context.extensions.get::<ComesBack>().is_some()
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

pub(crate) struct Held<'g> {
    gateway: &'g Gateway,
    pub(crate) server: TaskServer<Gateway>,
    pub(crate) context: RequestContext<RoleServer>,
    /// For the first look at the work, which counts as a request of the caller about it.
    first: Mutex<Option<RequestContext<RoleServer>>>,
    /// Until when the call is held.
    until: Instant,
    pub(crate) names: OwnNames,
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
        let mut unanswered = Unanswered { held: self, id, digest, is_answered: false };
        tokio::select! {
            answer = self.wait(id, Some(digest), tells) => {
                unanswered.is_answered = true;
                answer
            }
            () = self.context.ct.cancelled() => {
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
    pub(crate) async fn look(&self, id: &str) -> Result<DetailedTask, ErrorData> {
        loop {
            let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let context = first.unwrap_or_else(|| self.context.clone());
            match self.server.get_task(GetTaskParams::new(id), context).await {
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

    /// Holds the call until the task ends, asks, or takes too long, or the gateway ends. `tells` says that nobody else tells the
    /// caller of progress.
    pub(crate) async fn wait(
        &self,
        id: &str,
        digest: Option<Digest>,
        tells: bool,
    ) -> Result<CallToolResponse, ErrorData> {
        let gateway_ends = async {
            self.server.shutting_down().await;
            // What ends in this time is told.
            tokio::time::sleep(self.gateway.inner.drain).await;
        };
        tokio::select! {
            biased;
            answer = self.follow(id, digest, tells) => answer,
            () = gateway_ends => Ok(self.goes_on(id, digest, false)),
        }
    }

    async fn follow(
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
            let mut asks = false;
            match task.payload {
                TaskPayload::Completed { result } => {
                    let mut result = read(result)?;
                    if digest.is_some() && self.remembered().had_ended(id) {
                        result.content.push(ContentBlock::text(EARLIER));
                    }
                    self.forget(id);
                    return Ok(result.into());
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
                    asks = true;
                    let form = asking::put(self.gateway, &self.context, id, input_requests, &mut presented);
                    if let Some(form) = form {
                        match within(until, form).await {
                            Some(Ok(Ok(()))) => {}
                            Some(Ok(Err(NoAnswer::Refused(error)))) => {
                                self.end(id).await;
                                return Err(error);
                            }
                            Some(Ok(Err(NoAnswer::Left)) | Err(_)) | None => {
                                return Ok(self.goes_on(id, digest, true));
                            }
                        }
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
                return Ok(self.goes_on(id, digest, asks));
            }
            tokio::time::sleep(PAUSE).await;
            let _ = within(until.min(clock::now() + LOOK), hints.next()).await;
        }
    }

    fn goes_on(&self, id: &str, digest: Option<Digest>, asks: bool) -> CallToolResponse {
        if let Some(digest) = digest {
            self.remembered().insert(digest, id.to_owned());
        }
        CallToolResult::success(vec![ContentBlock::text(self.names.goes_on(id, asks))]).into()
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

    pub(crate) async fn update(&self, id: &str, answers: InputResponses) -> Result<(), ErrorData> {
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
}

/// A call that is held and not answered yet. Dropped so, the same call finds its work.
struct Unanswered<'h> {
    held: &'h Held<'h>,
    id: &'h str,
    digest: Digest,
    is_answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.held.remembered().insert(self.digest, self.id.to_owned());
        }
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

fn read(result: JsonObject) -> Result<CallToolResult, ErrorData> {
    serde_json::from_value(Value::Object(result))
        .map_err(|_| ErrorData::internal_error("the result has not the shape of one", None))
}

async fn within<T>(until: Instant, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout_at(until, work).await.ok()
}
