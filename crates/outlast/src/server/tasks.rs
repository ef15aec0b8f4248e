//! `tasks/get`, `tasks/update` and `tasks/cancel` (S6, S10, S20, S22, S25).

use outlast_core::{Applied, By, Event, Illegal, InputKey, Owner, Payload, Task, TaskId, ToolVersion};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CancelTaskParams, CustomRequest, CustomResult, ErrorCode, GetTaskParams, GetTaskResult,
        RequestMetaObject, UpdateTaskParams,
    },
    service::RequestContext,
};

use super::{TaskServer, gate, http::RetryAfter, measure, push::aside::LISTEN, wire};

impl<H: ServerHandler> TaskServer<H> {
    pub(super) async fn handle_get(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let Some((owner, id)) = self.admit(&request.task_id, &context)? else {
            return self.elsewhere(self.0.handler.get_task(request, context)).await;
        };
        if let Err(wait) = self.0.runtime.may_poll(&owner, id) {
            measure::polled("slowed");
            RetryAfter::tell(&context.extensions, wait);
            return Err(wire::slow_down(
                "this task is polled faster than allowed; follow its pollIntervalMs",
                wait,
            ));
        }
        measure::polled("served");
        let task = self.0.runtime.get(id).await.map_err(|error| wire::store_failed(&error))?;
        match task.filter(|task| self.readable(task, &owner)) {
            Some(task) => {
                self.serve_tool_of(&task);
                wire::detailed(&task, self.0.runtime.config().clock.now())
            }
            None => self.elsewhere(self.0.handler.get_task(request, context)).await,
        }
    }

    pub(super) async fn handle_update(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let Some((owner, id)) = self.admit(&request.task_id, &context)? else {
            return self.elsewhere(self.0.handler.update_task(request, context)).await;
        };
        // A key that no question can have is a key that no question has: ignored (S20).
        let answers = request.input_responses.iter().filter_map(|(key, answer)| {
            Some(Event::Answer { key: InputKey::new(&**key).ok()?, answer: Payload::from_value(answer) })
        });
        match self.apply_for(id, By::Owner(owner), answers.collect()).await? {
            Applied::Applied(task) | Applied::Absorbed(task) => {
                self.serve_tool_of(&task);
                Ok(())
            }
            Applied::Illegal(illegal @ (Illegal::AnswerShape { .. } | Illegal::Limit { .. })) => {
                Err(ErrorData::invalid_params(format!("{illegal}; no answer was taken"), None))
            }
            Applied::Illegal(illegal) => Err(ErrorData::invalid_params(illegal.to_string(), None)),
            Applied::NotFound | Applied::Fenced => {
                self.elsewhere(self.0.handler.update_task(request, context)).await
            }
        }
    }

    pub(super) async fn handle_cancel(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let Some((owner, id)) = self.admit(&request.task_id, &context)? else {
            return self.elsewhere(self.0.handler.cancel_task(request, context)).await;
        };
        match self.apply_for(id, By::Owner(owner), vec![Event::Cancel]).await? {
            Applied::Applied(task) | Applied::Absorbed(task) => {
                self.serve_tool_of(&task);
                Ok(())
            }
            Applied::Illegal(illegal) => Err(ErrorData::invalid_params(illegal.to_string(), None)),
            Applied::NotFound | Applied::Fenced => {
                self.elsewhere(self.0.handler.cancel_task(request, context)).await
            }
        }
    }

    /// Requests whose parameters the SDK could not read arrive here (S7, S25).
    pub(super) async fn handle_custom(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        match &*request.method {
            "tasks/get" | "tasks/update" | "tasks/cancel" => {
                let own = request.params.as_ref().and_then(|params| params.get("_meta"));
                let own = own.and_then(|meta| serde_json::from_value::<RequestMetaObject>(meta.clone()).ok());
                if gate::declared(&context.meta).or_else(|| gate::declared(&own?)).is_none() {
                    return Err(gate::undeclared());
                }
                let id = request.params.as_ref().and_then(|params| params.get("taskId"));
                if id.is_some_and(serde_json::Value::is_string) {
                    return Err(ErrorData::invalid_params(
                        "inputResponses is an object of results by key",
                        None,
                    ));
                }
                Err(wire::no_such_task())
            }
            // Its filter was moved aside, or is none.
            LISTEN => self.handle_listen(request, context).await,
            // Its parameters could not be read, so there is nothing that a handler could do with it.
            "tools/call" => {
                let message = "tools/call needs a name, and arguments that are an object";
                Err(ErrorData::invalid_params(message, None))
            }
            "tasks/list" | "tasks/result" => {
                Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None))
            }
            _ => self.0.handler.on_custom_request(request, context).await,
        }
    }

    /// Checks the declaration and reads the id; `None` when it cannot be one of ours.
    fn admit(
        &self,
        id: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<Option<(Owner, TaskId)>, ErrorData> {
        gate::declared(&context.meta).ok_or_else(gate::undeclared)?;
        let id: Option<TaskId> = id.parse().ok();
        if let (Some(id), Some(told)) = (id, &self.0.on_task_request) {
            told(&context.extensions, &outlast_runtime::step_id(id, ""));
        }
        Ok(id.map(|id| (self.owner(&context.extensions), id)))
    }

    /// Has the task taken up by this process, where the handler takes calls of tools that it does not list: another process may
    /// have begun it after this one had looked at what there was.
    fn serve_tool_of(&self, task: &Task) {
        if !self.0.lists_all && !task.is_final() {
            let version = self.policy(&task.spec.tool).version_name();
            self.0.runtime.serve(ToolVersion::new(&*task.spec.tool, version));
        }
    }

    /// A foreign task and one whose time is over look like one that never was (S25).
    fn readable(&self, task: &Task, owner: &Owner) -> bool {
        task.owner == *owner
    }

    /// Asks a handler that has tasks of its own; otherwise there is no such task.
    async fn elsewhere<T>(&self, inner: impl Future<Output = Result<T, ErrorData>>) -> Result<T, ErrorData> {
        if self.0.handler.get_info().capabilities.supports_tasks() {
            inner.await
        } else {
            Err(wire::no_such_task())
        }
    }
}
