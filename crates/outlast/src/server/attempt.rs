//! Runs one attempt of a tool over a connection of its own.
//!
//! The request that created a task is over when its answer leaves, and its cancellation token and peer with it. So each
//! attempt serves the stored request over an in-process, one-shot connection: a tool sees a whole request context whose
//! token is the task's own. The connection itself is never cancelled, because the SDK then drops a result that comes
//! later than two seconds after; the attempt ends the tool by dropping its future.

use std::{borrow::Cow, collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc};

use async_trait::async_trait;
use futures::FutureExt;
use outlast_core::{Call, Payload, TaskError};
use rmcp::{
    ErrorData, Peer, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientJsonRpcMessage, Implementation,
        InitializeRequestParams, ProtocolVersion, ServerConfig, ServerJsonRpcMessage, ServerNotification,
        ServerResult, Tool,
    },
    service::{RequestContext, serve_directly_with_ct},
    transport::OneshotTransport,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    carry::{self, Carry},
    context::{TaskContext, is_cancel_exit, progress_text, question},
    wire,
};
use outlast_runtime::{Ended, Round, Run, Runner};

/// Runs calls on the user's handler.
pub(crate) struct HandlerRunner<H> {
    pub(crate) handler: Arc<H>,
    pub(crate) carries: Arc<[Carry]>,
}

#[async_trait]
impl<H: ServerHandler> Runner for HandlerRunner<H> {
    async fn run(&self, call: Call, round: Option<Round>, run: Run) -> Ended {
        let request = match request(&call.params, round.as_ref()) {
            Ok(request) => request,
            Err(error) => {
                tracing::error!(%error, "a stored call is no request");
                return Ended::Error(TaskError::internal(
                    "the stored call cannot be read by this version of the server",
                ));
            }
        };
        let attempt = Attempt {
            handler: self.handler.clone(),
            carries: self.carries.clone(),
            context: call.context,
            run: run.clone(),
        };
        let (transport, mut messages) = OneshotTransport::<RoleServer>::new(request);
        let service = serve_directly_with_ct(attempt, transport, Some(peer_info()), CancellationToken::new());
        tokio::spawn(service.waiting());
        while let Some(message) = messages.recv().await {
            match message {
                ServerJsonRpcMessage::Response(response) => return ended(response.result),
                ServerJsonRpcMessage::Error(error)
                    if is_cancel_exit(&error.error) && run.cancel().is_cancelled() =>
                {
                    return Ended::Cancelled;
                }
                ServerJsonRpcMessage::Error(error) => return Ended::Error(wire::task_error(&error.error)),
                ServerJsonRpcMessage::Notification(notification) => {
                    // While the call is no task its caller is there to be told; a failure means that they left.
                    if let Some(caller) = run.caller::<Peer<RoleServer>>() {
                        let _ = caller.send_notification(notification.notification.clone()).await;
                    }
                    // A tool that knows nothing of tasks reports progress so.
                    if let ServerNotification::ProgressNotification(progress) = notification.notification {
                        let progress = progress.params;
                        run.relay_status(progress_text(
                            progress.progress,
                            progress.total,
                            progress.message.as_deref(),
                        ));
                    }
                }
                // Nobody is there to answer it; what asks must use the task's own questions.
                ServerJsonRpcMessage::Request(_) => {}
            }
        }
        Ended::Error(TaskError::internal("the tool ended without an answer"))
    }
}

/// The handler of the in-process connection: the user's tool, with the task's context.
struct Attempt<H> {
    handler: Arc<H>,
    carries: Arc<[Carry]>,
    context: Option<Payload>,
    run: Run,
}

impl<H: ServerHandler> ServerHandler for Attempt<H> {
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        mut context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        context.ct = self.run.cancel().clone();
        let tool = request.name.clone();
        let call = async {
            carry::restore(&self.carries, self.context.as_ref(), &mut context.extensions);
            context.extensions.insert(TaskContext::of_run(self.run.clone()));
            self.handler.call_tool(request, context).await
        };
        match self.run.attend(catching(&tool, call)).await {
            Some(response) => match response? {
                CallToolResponse::Task(_) => Err(ErrorData::internal_error(
                    "the tool answered with a task of its own inside a task; whoever runs the server has to let the tool \
                     work itself, or name it `TaskTool::never()`",
                    None,
                )),
                response => Ok(response),
            },
            // The tool's future is dropped by now. What this returns is seen by nobody.
            None => Err(ErrorData::internal_error("the work was unloaded", None)),
        }
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.handler.get_tool(name)
    }

    fn get_info(&self) -> ServerConfig {
        self.handler.get_info()
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        self.handler.supported_protocol_versions()
    }
}

/// A panic in the handler answers its request instead of hanging it; `what` is the tool or the method.
pub(crate) async fn catching<T>(
    what: &str,
    call: impl Future<Output = Result<T, ErrorData>>,
) -> Result<T, ErrorData> {
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!(what, "the handler panicked");
        Err(ErrorData::internal_error("the handler panicked; what it was doing is lost", None))
    })
}

fn ended(result: ServerResult) -> Ended {
    let whole = match serde_json::to_value(&result) {
        // Whoever reads it back could not.
        Ok(whole) if is_deeper(&whole, MAX_DEPTH) => {
            return Ended::Error(TaskError::internal("the tool's result is nested too deeply to be kept"));
        }
        Ok(whole) => Payload::from_value(&whole),
        Err(error) => return Ended::Error(TaskError::internal(error.to_string())),
    };
    let ServerResult::InputRequiredResult(asked) = result else { return Ended::Result(whole) };
    let questions = asked.input_requests.unwrap_or_default().into_iter().map(|(key, request)| {
        let (_, question) = question("", &key, request)?;
        Ok((key, question))
    });
    match questions.collect::<Result<_, crate::AskError>>() {
        Ok(questions) => Ended::InputRequired { questions, state: asked.request_state, whole },
        Err(error) => Ended::Error(wire::task_error(&error.into())),
    }
}

/// How deeply a result may be nested: as deeply as JSON is read, less what is wrapped around it.
const MAX_DEPTH: usize = 120;

fn is_deeper(value: &Value, than: usize) -> bool {
    let mut children: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(object) => Box::new(object.values()),
        _ => return false,
    };
    than == 0 || children.any(|child| is_deeper(child, than - 1))
}

/// The stored request as a message, carried on by a round's answers.
fn request(params: &Payload, round: Option<&Round>) -> Result<ClientJsonRpcMessage, serde_json::Error> {
    let mut params = params.to_value();
    if let (Some(round), Value::Object(params)) = (round, &mut params) {
        let answers: BTreeMap<_, _> =
            round.answers.iter().map(|(key, answer)| (key.as_str(), answer.to_value())).collect();
        params.insert("inputResponses".to_owned(), json!(answers));
        match &round.state {
            Some(state) => drop(params.insert("requestState".to_owned(), state.clone().into())),
            None => drop(params.remove("requestState")),
        }
    }
    serde_json::from_value(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))
}

/// The peer of a connection that has none: the request says for itself what its client can do.
pub(crate) fn peer_info() -> InitializeRequestParams {
    InitializeRequestParams::new(ClientCapabilities::default(), Implementation::default())
        .with_protocol_version(ProtocolVersion::V_2026_07_28)
}
