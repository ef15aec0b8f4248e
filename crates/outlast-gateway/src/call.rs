//! One call, made at an upstream as the work of a task.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use outlast::{StepError, TaskContext, place_in_trace};
use outlast_client::{Authorization, CallError, CallErrorKind, CallOptions, SavedTask, Started, TaskHandle};
use rmcp::{
    ErrorData,
    model::{CallToolRequestParams, CallToolResult, ErrorCode, RequestMetaObject},
};
use tokio::sync::oneshot;
use tracing::Span;

use crate::{
    authorized::{Next, Waits, regained},
    bridge::Bridge,
    clock,
    results::Typed,
    upstream::{Unreached, Upstream, not_let_in, refused_caller, unreachable_upstream},
    works::Work,
};

/// The step that says that the call was made, so that it is not made twice.
const SENT: &str = "sent";
/// The step that holds the task which the upstream made of the call: what another process needs to go on with it.
const TASK: &str = "task";

/// How long a call that is made again waits for an upstream that is away: it may come back more slowly than the gateway. A
/// call that is made for the first time is tried once, for its caller can decide.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long an upstream that makes tasks of calls is heard out when a call is cancelled: the task that it may be making would
/// run on, and nobody could end it.
const HEARING: Duration = Duration::from_secs(3);

/// What a call brought.
enum Called {
    Ended(Result<CallToolResult, ErrorData>),
    /// The upstream made a task of it; this is its handle.
    Task(String),
}

/// Makes a call at an upstream, once.
///
/// A gateway that stopped in the middle of a call cannot know what became of it. The call is made again where its tool says
/// that this is harmless, and is `failed` otherwise; a task that the upstream made of it is followed again.
///
/// Boxed, because it is far larger than any other request that the gateway passes on.
pub(crate) fn call(
    upstream: &Upstream,
    context: TaskContext,
    bridge: Bridge,
    person: Arc<str>,
    work: Arc<Work>,
    request: CallToolRequestParams,
) -> BoxFuture<'_, Result<CallToolResult, ErrorData>> {
    Box::pin(make(upstream, context, Arc::new(bridge), person, work, request))
}

async fn make(
    upstream: &Upstream,
    context: TaskContext,
    bridge: Arc<Bridge>,
    person: Arc<str>,
    work: Arc<Work>,
    request: CallToolRequestParams,
) -> Result<CallToolResult, ErrorData> {
    if upstream.forwards() {
        regained(upstream, &context, &work).await?;
    }
    let tool = request.name.to_string();
    let mut is_first = false;
    let sent = || {
        is_first = true;
        async { Ok(upstream.may_repeat(&tool).await) }
    };
    // Settled before the call is made: afterwards nobody may be there to ask.
    let may_repeat: bool = context.step(SENT, sent).await?;
    let may_call = is_first || may_repeat;

    // A result is no step of its own: the next write ends the task with it.
    let (end, ended) = oneshot::channel();
    let mut end = Some(end);
    let made = async || {
        let called = if context.is_cancelled() {
            Called::Ended(Err(context.cancel_error()))
        } else if !may_call {
            return Err(StepError::last(
                "the gateway stopped while the call ran, and its tool may not be called twice: the outcome is unknown",
            ));
        } else {
            let patience = if is_first { Duration::ZERO } else { PATIENCE };
            let call = Call {
                upstream,
                context: &context,
                bridge: bridge.clone(),
                person: person.clone(),
                work: &work,
                patience,
                waits: !is_first || work.has_lost_it(),
            };
            call.start(request.clone()).await
        };
        match called {
            Called::Task(handle) => Ok(handle),
            Called::Ended(outcome) => {
                let _ = end.take().map(|end| end.send(outcome));
                // Dropped here: a step that fails is tried again and counted as failed, and this one is neither.
                std::future::pending().await
            }
        }
    };
    // Not given up for a cancel: a task that the upstream has made is in no other place, and has to be ended.
    let task: Result<String, StepError> = tokio::select! {
        task = context.step(TASK, made) => task,
        Ok(outcome) = ended => return outcome.map(Typed::typed),
    };
    follow(upstream, &context, bridge, &work, &task?).await.map(Typed::typed)
}

/// A call that is to be made.
struct Call<'c> {
    upstream: &'c Upstream,
    context: &'c TaskContext,
    bridge: Arc<Bridge>,
    person: Arc<str>,
    work: &'c Arc<Work>,
    /// How long an upstream is waited for that is away.
    patience: Duration,
    /// Whether it is waited for the owner's next request where the upstream does not let the call in. Else the caller is there,
    /// and is told.
    waits: bool,
}

impl Call<'_> {
    async fn start(&self, request: CallToolRequestParams) -> Called {
        let Self { upstream, context, work, .. } = self;
        let until = clock::now() + self.patience;
        let mut waits = Waits::default();
        loop {
            let tried = work.authorization();
            let reached = tokio::select! {
                reached = upstream.reach() => reached,
                () = context.cancelled() => return Called::Ended(Err(context.cancel_error())),
            };
            let called = match reached {
                Ok(()) => self.make(request.clone()).await,
                Err(Unreached::NotLetIn) => Err(NotLetIn),
                // Also, what an upstream says of why it does not let the gateway in is not for callers.
                Err(Unreached::Away) if clock::now() >= until => {
                    return Called::Ended(Err(unreachable_upstream()));
                }
                Err(Unreached::Away) => continue,
            };
            match called {
                Ok(called) => return called,
                Err(NotLetIn) if !self.waits => {
                    let brought = tried.unwrap_or_else(Authorization::none);
                    return Called::Ended(Err(refused_caller(&brought)));
                }
                Err(NotLetIn) => match waits.next(upstream, context, work, tried.as_ref()).await {
                    Next::Again => {}
                    Next::Cancelled => return Called::Ended(Err(context.cancel_error())),
                    Next::GivenUp(refusal) => return Called::Ended(Err(refusal)),
                },
            }
        }
    }

    /// Makes the call.
    ///
    /// # Errors
    /// When the upstream, which gets its callers' own tokens, does not let it in, and so has not looked at it.
    async fn make(&self, request: CallToolRequestParams) -> Result<Called, NotLetIn> {
        let Self { upstream, context, .. } = self;
        // A key that is the same on every attempt, for upstreams that know what to do with it.
        let mut options = CallOptions::default()
            .with_idempotency_key(context.step_id(TASK))
            .with_handler(self.bridge.clone())
            .on_behalf_of(self.person.clone());
        if upstream.forwards() {
            options = options.with_authorization(self.work.source());
        }
        let mut call = pin!(upstream.client().start_tool_with(request, options));
        let started = tokio::select! {
            // What has come already counts.
            biased;
            started = &mut call => Some(started),
            () = context.cancelled() => match upstream.client().offers_tasks().await {
                true => tokio::time::timeout(HEARING, call).await.ok(),
                false => None,
            },
        };
        // Dropped, the call is cancelled at the upstream.
        let Some(started) = started else { return Ok(Called::Ended(Err(context.cancel_error()))) };
        Ok(match started {
            Ok(Started::Ready(result)) => Called::Ended(Ok(result)),
            Ok(Started::Task(handle)) => Called::Task(handle.to_json()),
            Err(error) => match error.handle() {
                Some(handle) => Called::Task(handle.to_json()),
                None if upstream.forwards() && is_not_let_in(&error) => return Err(NotLetIn),
                None => Called::Ended(Err(error.answer().cloned().unwrap_or_else(|| refusal(error.kind())))),
            },
        })
    }
}

/// An upstream that gets its callers' own tokens does not accept this one.
struct NotLetIn;

fn is_not_let_in(error: &CallError) -> bool {
    matches!(error.kind(), CallErrorKind::Unauthorized(_))
}

/// Follows a task of the upstream to its end.
async fn follow(
    upstream: &Upstream,
    context: &TaskContext,
    bridge: Arc<Bridge>,
    work: &Arc<Work>,
    saved: &str,
) -> Result<CallToolResult, ErrorData> {
    let saved =
        SavedTask::from_json(saved).map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    let handle = upstream.client().resume(saved).await.map_err(|error| refusal(error.kind()))?;
    let mut handle = handle.with_handler(Arc::new(bridge.of_task()));
    if upstream.forwards() {
        handle = handle.with_authorization(work.source());
    }
    let mut waits = Waits::default();
    loop {
        let tried = work.authorization();
        let wait = wait(&handle, context);
        tokio::pin!(wait);
        let result = tokio::select! {
            result = &mut wait => result,
            () = context.cancelled() => {
                cancel(&handle).await;
                // The upstream decides how a task ends that was asked to (S22).
                return outcome(wait.await, context);
            }
        };
        match &result {
            Err(error) if upstream.forwards() && is_not_let_in(error) => {
                match waits.next(upstream, context, work, tried.as_ref()).await {
                    Next::Again => continue,
                    Next::Cancelled => {
                        // The request that asks for the end has brought a token, if any has.
                        cancel(&handle).await;
                        return outcome(self::wait(&handle, context).await, context);
                    }
                    Next::GivenUp(refusal) => {
                        cancel(&handle).await;
                        return Err(refusal);
                    }
                }
            }
            // The gateway gives it up, and nobody else knows of it.
            Err(_) if !handle.is_final() => cancel(&handle).await,
            _ => {}
        }
        return outcome(result, context);
    }
}

/// Waits for the end of a task of the upstream, and says what it says of itself.
fn wait(
    handle: &TaskHandle,
    context: &TaskContext,
) -> impl Future<Output = Result<CallToolResult, CallError>> {
    let said = context.clone();
    handle.wait_with(None, move |task| {
        if let Some(message) = &task.message {
            said.status(message);
        }
    })
}

async fn cancel(handle: &TaskHandle) {
    if let Err(error) = handle.cancel().await {
        tracing::warn!(%error, "a task of an upstream could not be cancelled");
    }
}

fn outcome(
    result: Result<CallToolResult, CallError>,
    context: &TaskContext,
) -> Result<CallToolResult, ErrorData> {
    result.map_err(|error| match error.kind() {
        CallErrorKind::Cancelled(_) | CallErrorKind::Unauthorized(_) if context.is_cancelled() => {
            context.cancel_error()
        }
        kind => refusal(kind),
    })
}

/// What the caller is told of an end without a result. Nothing of the upstream's address is in it.
fn refusal(kind: &CallErrorKind) -> ErrorData {
    match kind {
        CallErrorKind::Failed(error) | CallErrorKind::Unanswered { error, .. } => error.clone(),
        CallErrorKind::Connection(why) => {
            tracing::warn!(why, "an upstream cannot be reached");
            unreachable_upstream()
        }
        CallErrorKind::Unauthorized(_) => {
            // It is the gateway that is asked to, and nothing that its caller shows would help.
            tracing::warn!(
                "an upstream does not let the gateway in; its token or headers are not what it wants"
            );
            not_let_in()
        }
        CallErrorKind::OutcomeUnknown(why) => {
            tracing::warn!(why, "an upstream was lost in the middle of a call");
            ErrorData::internal_error(
                "the server behind this gateway ended in the middle of the call; whether the call was carried out is unknown",
                None,
            )
        }
        CallErrorKind::Busy(delay) => {
            let data = delay.map(|delay| serde_json::json!({ "retryAfterMs": delay.as_millis() }));
            ErrorData::new(ErrorCode(-32000), "the server behind this gateway takes no more calls now", data)
        }
        other => ErrorData::internal_error(format!("the server behind this gateway: {other}"), None),
    }
}

/// The parameters as the upstream gets them: under its own name of the tool, and without what is between the caller and the
/// gateway.
pub(crate) fn for_upstream(
    mut request: CallToolRequestParams,
    tool: &str,
    meta: Option<RequestMetaObject>,
) -> CallToolRequestParams {
    request.name = tool.to_owned().into();
    // Answers without a state are for whoever asks them again; those with one were for the gateway.
    if request.request_state.take().is_some() {
        request.input_responses = None;
    }
    request.meta = meta;
    // Where spans are exported, the upstream's are part of the attempt that makes the call.
    if let Some(place) = place_in_trace(&Span::current()) {
        request.meta.get_or_insert_default().set_traceparent(place.to_string());
    }
    request
}

/// Takes what is between the caller and the gateway out of a `_meta`.
pub(crate) fn strip(meta: &mut RequestMetaObject) {
    for own in OWN_META {
        meta.0.0.remove(*own);
    }
}

/// What the SDK and the client write anew for each hop.
const OWN_META: &[&str] = &[
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "progressToken",
    "outlast/idempotencyKey",
    crate::hold::LISTENER,
    crate::hold::HELD,
];
