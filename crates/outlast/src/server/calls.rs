//! `tools/call`: which calls become tasks, and what their callers are answered (S3 to S5, S15, S16).

use std::{sync::Arc, time::Duration};

use outlast_core::{Applied, By, Call, Created, Event, IdempotencyKey, NewTask, Payload, Task, TraceParent};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, InputRequiredResult,
    },
    service::RequestContext,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::{
    Decision, Mode, Start, TaskServer, attempt::catching, carry, context::TaskContext, gate, measure, wire,
};
use outlast_runtime::{Ended, Inline, Run, random_id};

/// How long a tool of [`Start::AfterInput`] may run before it asks.
const INPUT_PATIENCE: Duration = Duration::from_secs(1);

/// The `_meta` key by which a caller may safely repeat a call.
const IDEMPOTENCY_KEY: &str = "outlast/idempotencyKey";

impl<H: ServerHandler> TaskServer<H> {
    pub(super) async fn handle_call(
        &self,
        mut request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.meta.is_none() {
            request.meta = Some(context.meta.clone());
        }
        let policy = self.policy(&request.name);
        let declared = gate::declared(&context.meta);
        let start = match (policy.mode, &declared) {
            (Mode::Never, _) | (Mode::Optional, None) => None,
            (Mode::Required, None) => return Err(gate::undeclared()),
            (mode, Some(_)) => match policy.decide.as_ref().map(|decide| decide(&request, &context)) {
                None => Some(policy.start),
                Some(Decision::Task(start)) => Some(start),
                // An author who wants every call to be a task cannot want this one not to be.
                Some(Decision::Sync) if mode == Mode::Required => Some(policy.start),
                Some(Decision::Sync) => None,
            },
        };
        match (start, declared) {
            (Some(start), Some(capabilities)) => {
                self.call_as_task(request, context, &capabilities, start).await
            }
            _ => self.call_synchronously(request, context).await,
        }
    }

    async fn call_synchronously(
        &self,
        request: CallToolRequestParams,
        mut context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let task_context = TaskContext::from_request(&context);
        context.extensions.insert(task_context);
        carry::pass_on(&self.0.carries, &mut context.extensions);
        let tool = request.name.clone();
        catching(&tool, self.0.handler.call_tool(request, context)).await
    }

    async fn call_as_task(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
        capabilities: &ClientCapabilities,
        start: Start,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = request.name.clone();
        let answered = self.answer_as_task(request, context, capabilities, start).await;
        let answer = match &answered {
            Ok(CallToolResponse::Task(_)) => "task",
            Ok(_) => "inline",
            Err(_) => "error",
        };
        measure::called(&tool, answer);
        answered
    }

    async fn answer_as_task(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
        capabilities: &ClientCapabilities,
        start: Start,
    ) -> Result<CallToolResponse, ErrorData> {
        let always_task = self.policy(&request.name).mode == Mode::Required;
        let new = self.new_task(&request, &context, capabilities)?;
        let patience = match start {
            Start::Now => return self.call_now(new).await,
            Start::After(patience) => patience,
            Start::AfterInput => INPUT_PATIENCE,
        };
        // Also of a tool that asks first: what it asks then goes through the task (S16). Nor may anything begin that
        // another process would have to begin again, or that a suspect could take with it.
        if new.idempotency.is_some() || self.0.runtime.begins_nothing() {
            return self.call_durably(new, patience, always_task, context.ct).await;
        }
        let run = Run::inline(new.id, new.spec.asks).with_caller(context.peer.clone());
        let caller_left = context.ct.clone();
        match self.0.runtime.begin_inline(new, patience, always_task, run, caller_left).await {
            Inline::Ended(ended) => inline_response(ended),
            Inline::Task(task) => Ok(self.created(&task)),
            Inline::NotCreated(created) => self.answer_created(*created),
            Inline::CallerLeft => {
                Err(ErrorData::internal_error("the caller left before the call became a task", None))
            }
            Inline::Failed(error) => Err(wire::store_failed(&error)),
        }
    }

    /// The task exists, durably, before its id leaves (S15).
    async fn call_now(&self, new: NewTask) -> Result<CallToolResponse, ErrorData> {
        let created = self.0.runtime.begin(new).await.map_err(|error| wire::store_failed(&error))?;
        self.answer_created(created)
    }

    /// A task from its start, so that a repeat finds it and any process can run it; the call is still answered inline when
    /// it is over soon.
    async fn call_durably(
        &self,
        new: NewTask,
        patience: Duration,
        always_task: bool,
        caller_left: CancellationToken,
    ) -> Result<CallToolResponse, ErrorData> {
        let created = self.0.runtime.begin(new).await.map_err(|error| wire::store_failed(&error))?;
        let (Created::Created { task, .. } | Created::Existing(task)) = created else {
            return self.answer_created(created);
        };
        if always_task {
            return Ok(self.created(&task));
        }
        let settled = tokio::select! {
            settled = tokio::time::timeout(patience, self.settled(&task)) => settled.ok().flatten(),
            () = caller_left.cancelled() => None,
        };
        match settled {
            Some(task) => inline_task(&task).unwrap_or_else(|| Ok(self.created(&task))),
            None => Ok(self.created(&task)),
        }
    }

    /// Waits until the task is final or asks something.
    async fn settled(&self, task: &Task) -> Option<Task> {
        let mut hints = self.watch();
        loop {
            let now = self.0.runtime.get(task.id).await.ok()??;
            if now.status() != outlast_core::Status::Working {
                return Some(now);
            }
            loop {
                match hints.next().await? {
                    outlast_core::Hint::Changed(id) if id != task.id => {}
                    _ => break,
                }
            }
        }
    }

    fn new_task(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
        capabilities: &ClientCapabilities,
    ) -> Result<NewTask, ErrorData> {
        let config = self.0.runtime.config();
        let name = &*request.name;
        let policy = self.policy(name);
        let mut spec = policy.spec(name, self.tool(name).as_ref(), &config.task);
        spec.asks = gate::asks(capabilities);
        spec.trace = trace_parent(context);
        let owner = self.owner(&context.extensions);
        let call = Call {
            params: stored_params(request, context)?,
            context: carry::capture(&self.0.carries, &context.extensions),
        };
        if call.params.len() > config.argument_bytes {
            let message =
                format!("the parameters of a task may have at most {} bytes", config.argument_bytes);
            return Err(ErrorData::invalid_params(message, None));
        }
        let idempotency = idempotency_key(request, context)?;
        let mut new = NewTask::new(random_id(), owner, spec, call);
        new.idempotency = idempotency;
        new.max_open = config.max_open_per_owner;
        Ok(new)
    }

    fn answer_created(&self, created: Created) -> Result<CallToolResponse, ErrorData> {
        match created {
            Created::Created { task, .. } | Created::Existing(task) => Ok(self.created(&task)),
            Created::KeyReused => {
                let message = "this idempotency key was used for another request; use a new key";
                Err(ErrorData::invalid_params(message, None))
            }
            Created::KeySpent => {
                let message = "the task of this idempotency key was kept for its time and is gone; \
                    running the request again would be a second run; use a new key if that is wanted";
                Err(ErrorData::invalid_params(message, None))
            }
            Created::OverQuota => {
                let message =
                    "this caller has as many unfinished tasks as allowed; wait for one to end or cancel one";
                Err(wire::slow_down(message, Duration::from_secs(5)))
            }
        }
    }

    pub(super) fn created(&self, task: &Task) -> CallToolResponse {
        wire::created(task, self.0.runtime.config().clock.now()).into()
    }

    /// Applies what a caller sends to a task of its own.
    pub(super) async fn apply_for(
        &self,
        id: outlast_core::TaskId,
        by: By,
        events: Vec<Event>,
    ) -> Result<Applied, ErrorData> {
        self.0.runtime.apply(id, by, events).await.map_err(|error| wire::store_failed(&error))
    }
}

/// Where the caller is in a trace: as its request says (SEP-414), or the HTTP request that brought it.
fn trace_parent(context: &RequestContext<RoleServer>) -> Option<TraceParent> {
    let header = || {
        let parts = context.extensions.get::<http::request::Parts>()?;
        parts.headers.get("traceparent")?.to_str().ok()
    };
    // What is no traceparent is as none, as the standard asks.
    context.meta.get_traceparent().or_else(header)?.parse().ok()
}

/// The answer to a call that ended before it became a task.
fn inline_response(ended: Ended) -> Result<CallToolResponse, ErrorData> {
    let unreadable = |error: serde_json::Error| {
        ErrorData::internal_error(format!("the tool's answer is no result: {error}"), None)
    };
    match ended {
        Ended::Result(result) => Ok(result.decode::<CallToolResult>().map_err(unreadable)?.into()),
        Ended::InputRequired { whole, .. } => {
            Ok(whole.decode::<InputRequiredResult>().map_err(unreadable)?.into())
        }
        Ended::Error(error) => Err(wire::error_data(&error)),
        Ended::Cancelled | Ended::Dropped => Err(ErrorData::internal_error("the call was cancelled", None)),
    }
}

/// The inline answer of a task that ended with one.
fn inline_task(task: &Task) -> Option<Result<CallToolResponse, ErrorData>> {
    match &task.state {
        outlast_core::TaskState::Completed { result } => Some(inline_response(Ended::Result(result.clone()))),
        outlast_core::TaskState::Failed { error } => Some(Err(wire::error_data(error))),
        _ => None,
    }
}

/// The request as each attempt will see it: with its `_meta`, which says what the client can do.
fn stored_params(
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<Payload, ErrorData> {
    let mut request = request.clone();
    let mut meta = context.meta.clone();
    if meta.protocol_version().is_none()
        && let Some(version) = context.protocol_version()
    {
        meta.set_protocol_version(version);
    }
    request.meta = Some(meta);
    Payload::encode(&request).map_err(|error| ErrorData::invalid_params(error.to_string(), None))
}

/// The caller's key, with a digest of everything of the request that is not `_meta`.
fn idempotency_key(
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<Option<IdempotencyKey>, ErrorData> {
    let Some(key) = context.meta.0.0.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = key.as_str().filter(|key| (1..=256).contains(&key.len()));
    let key =
        key.ok_or_else(|| ErrorData::invalid_params("an idempotency key is text of 1 to 256 bytes", None))?;
    let mut bare = request.clone();
    bare.meta = None;
    // Objects are written with sorted keys, so that the order in which a client wrote them does not count.
    let canonical = serde_json::to_value(&bare).map(|value| sorted(&value).to_string()).unwrap_or_default();
    Ok(Some(IdempotencyKey { key: Arc::from(key), request: Sha256::digest(canonical).into() }))
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut entries: Vec<_> =
                object.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}
