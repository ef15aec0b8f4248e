//! The gateway as a handler of the SDK: what is about tools becomes a task, and all else is passed on.

#![deny(
    clippy::missing_trait_methods,
    reason = "a new method of the SDK must not fall to its default unseen"
)]
#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::{borrow::Cow, time::Duration};

use outlast::{Owner, TaskContext};
use outlast_client::is_unauthorized;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, CancelledNotificationParam,
        CompleteRequestParams, CompleteResult, CustomNotification, CustomRequest, CustomResult,
        DiscoverResult, ErrorCode, GetPromptRequestParams, GetPromptResponse, GetSkillRequestParams,
        GetSkillResult, GetTaskParams, GetTaskResult, InitializeRequestParams, InitializeResult,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListSkillsResult,
        ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion,
        ReadResourceDirectoryRequestParams, ReadResourceDirectoryResult, ReadResourceRequestParams,
        ReadResourceResponse, Reference, RequestMetaObject, ServerConfig, ServerResult,
        SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
        UpdateTaskParams,
    },
    service::{NotificationContext, RequestContext, ServiceError, SubscriptionContext},
};

use crate::{
    bridge::Bridge,
    call,
    caller::Caller,
    changes,
    gateway::{Gateway, Person},
    hold, names, own_tools,
    results::Typed,
    upstream::{ANSWER_PATIENCE, LIST_PATIENCE, not_let_in, unreachable_upstream},
    watched,
};

/// Waits for the answer of an upstream to what is no call of a tool.
pub(crate) async fn bounded<T>(
    patience: Duration,
    asked: impl Future<Output = Result<T, ServiceError>>,
) -> Result<T, ErrorData> {
    match tokio::time::timeout(patience, asked).await {
        Ok(answer) => answer.map_err(answered),
        Err(_) => {
            tracing::warn!("an upstream does not answer");
            Err(unreachable_upstream())
        }
    }
}

/// The `_meta` of a request as an upstream gets it.
fn passed_on(context: &RequestContext<RoleServer>) -> Option<RequestMetaObject> {
    let mut meta = context.meta.clone();
    call::strip(&mut meta);
    (!meta.0.0.is_empty()).then_some(meta)
}

/// One page of a list that goes through all upstreams. An upstream that cannot be reached, or has no such list, is passed
/// over, so that it hides no other.
macro_rules! page {
    ($gateway:expr, $request:expr, $context:expr, $list:ident, $items:ident, |$upstream:ident, $item:ident| $each:expr) => {{
        let upstreams = &$gateway.inner.upstreams;
        let caller = $gateway.caller(&$context.extensions);
        let cursor = $request.as_ref().and_then(|request| request.cursor.as_deref());
        let stranger = || ErrorData::invalid_params("the cursor is none that this server gave", None);
        let (first, mut theirs) = names::read_cursor(cursor).ok_or_else(stranger)?;
        if first >= upstreams.len() {
            return Err(stranger());
        }
        let mut found = (Vec::new(), None);
        for (n, $upstream) in upstreams.iter().enumerate().skip(first) {
            let goes_on = theirs.is_some();
            let mut params = PaginatedRequestParams::default().with_cursor(theirs.take());
            params.meta = passed_on($context);
            let lane = $upstream.for_caller(&caller);
            let asked = match &lane {
                Ok(lane) => lane.ask(&caller).await,
                Err(error) => Err(error.clone()),
            };
            let page = match asked {
                Ok(asked) => bounded(LIST_PATIENCE, asked.$list(Some(params))).await,
                // Half a list would be taken for all that there is when the names in the settings are checked.
                Err(error) if $gateway.inner.server.get().is_none() => return Err(error),
                Err(error) => Err(error),
            };
            match page {
                Ok(mut page) => {
                    // What is learnt of it is this caller's.
                    #[allow(unused_variables, reason = "of some lists nothing is learnt")]
                    let $upstream = lane.as_ref().unwrap_or($upstream);
                    for $item in &mut page.$items {
                        $each
                    }
                    let more = n + 1 < upstreams.len();
                    let next = match page.next_cursor {
                        Some(next) => Some(names::cursor(n, Some(&next))),
                        None => more.then(|| names::cursor(n + 1, None)),
                    };
                    found = (page.$items, next);
                    break;
                }
                Err(error) if upstreams.len() == 1 => return Err(error),
                // The gateway's own list, of what its callers alone are shown.
                Err(_) if $upstream.forwards() && !caller.is_remote => {}
                // It is there, and did not give this cursor.
                Err(error) if goes_on && error.code == ErrorCode::INVALID_PARAMS => return Err(error),
                Err(error) => tracing::warn!(?error, upstream = $upstream.name(), "a list was passed over"),
            }
        }
        found
    }};
}

/// Asks each upstream in turn for what only one of them has; the last refusal is the answer where none has it.
macro_rules! first {
    ($gateway:expr, $context:expr, $peer:ident => $ask:expr) => {{
        let mut refusal = unreachable_upstream();
        let caller = $gateway.caller(&$context.extensions);
        for upstream in &$gateway.inner.upstreams {
            let asked = match upstream.for_caller(&caller) {
                Ok(lane) => lane.ask(&caller).await,
                Err(error) => Err(error),
            };
            match asked {
                Ok($peer) => match bounded(ANSWER_PATIENCE, $ask).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => refusal = error,
                },
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }};
}

/// An upstream's answer that is an error is the gateway's answer, too; one that did not come is told without its reason.
fn answered(error: ServiceError) -> ErrorData {
    match error {
        ServiceError::McpError(error) => error,
        error if is_unauthorized(&error) => {
            tracing::warn!(
                "an upstream does not let the gateway in; its token or headers are not what it wants"
            );
            not_let_in()
        }
        other => {
            tracing::warn!(error = %other, "an upstream gave no answer");
            unreachable_upstream()
        }
    }
}

fn unknown(what: &str) -> ErrorData {
    ErrorData::invalid_params(format!("this server has no such {what}"), None)
}

impl ServerHandler for Gateway {
    fn get_info(&self) -> ServerConfig {
        self.describe(None)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let task = TaskContext::from_request(&context);
        if !task.is_task() {
            return hold::call(self, request, context).await;
        }
        let name = request.name.to_string();
        let (upstream, tool) = self.named(&name).ok_or_else(|| unknown("tool"))?;
        let listener = self.inner.listeners.of(&context.meta);
        let bridge = Bridge::new(task.clone(), &context, listener);
        let person =
            context.extensions.get::<Person>().map_or_else(|| task.step_id(""), |person| person.0.clone());
        let owner = Owner::new(person.as_str());
        let work = self.begin(&owner, task.step_id(""), context.extensions.get());
        let upstream = upstream.for_work(&owner, &work)?;
        let request = call::for_upstream(request, tool, passed_on(&context));
        call::call(&upstream, task, bridge, person.into(), work, request).await.map(Into::into)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let (mut tools, next) = page!(self, request, &context, list_tools, tools, |upstream, tool| {
            upstream.learn(tool);
            tool.name = names::outside(upstream.name(), &tool.name).into();
        });
        if !hold::declares(&context) {
            // A call that is held for too long is answered with words, which hosts refuse of a tool that promises more.
            tools.iter_mut().for_each(|tool| tool.output_schema = None);
            if next.is_none() {
                tools.extend(own_tools::tools(self, &Caller::of(&context.extensions)).await);
            }
        }
        let mut result = ListToolsResult::with_all_items(tools);
        result.next_cursor = next;
        Ok(result)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let (upstream, tool) = self.named(name)?;
        // Of one that gets its callers' own tokens none: it is not said who asks.
        upstream.known(tool)
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let (prompts, next) = page!(self, request, &context, list_prompts, prompts, |upstream, prompt| {
            prompt.name = names::outside(upstream.name(), &prompt.name);
        });
        let mut result = ListPromptsResult::with_all_items(prompts);
        result.next_cursor = next;
        Ok(result)
    }

    async fn get_prompt(
        &self,
        mut request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let name = request.name.clone();
        let (upstream, prompt) = self.named(&name).ok_or_else(|| unknown("prompt"))?;
        request.name = prompt.to_owned();
        request.meta = passed_on(&context);
        let caller = self.caller(&context.extensions);
        let asked = upstream.for_caller(&caller)?.ask(&caller).await?;
        let got = bounded(ANSWER_PATIENCE, asked.get_prompt_once(request)).await;
        got.map(Typed::typed)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let (resources, next) =
            page!(self, request, &context, list_resources, resources, |upstream, _resource| {});
        let mut result = ListResourcesResult::with_all_items(resources);
        result.next_cursor = next;
        Ok(result)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let (templates, next) = page!(
            self,
            request,
            &context,
            list_resource_templates,
            resource_templates,
            |upstream, _template| {}
        );
        let mut result = ListResourceTemplatesResult::with_all_items(templates);
        result.next_cursor = next;
        Ok(result)
    }

    async fn read_resource(
        &self,
        mut request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        request.meta = passed_on(&context);
        let read: Result<ReadResourceResponse, ErrorData> =
            async { first!(self, context, peer => peer.read_resource_once(request.clone())) }.await;
        read.map(Typed::typed)
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let caller = self.caller(&context.extensions);
        self.inner.sessions.watch(&self.inner, &caller, &context.peer, &request.uri).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let _ = self.caller(&context.extensions);
        self.inner.sessions.unwatch(&context.peer, &request.uri);
        Ok(())
    }

    async fn complete(
        &self,
        mut request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        request.meta = passed_on(&context);
        if let Reference::Prompt(reference) = &mut request.r#ref {
            let name = reference.name.clone();
            let (upstream, prompt) = self.named(&name).ok_or_else(|| unknown("prompt"))?;
            reference.name = prompt.to_owned();
            let caller = self.caller(&context.extensions);
            let asked = upstream.for_caller(&caller)?.ask(&caller).await?;
            let completed = bounded(ANSWER_PATIENCE, asked.complete(request)).await;
            return completed.map(Typed::typed);
        }
        let completed: Result<CompleteResult, ErrorData> =
            async { first!(self, context, peer => peer.complete(request.clone())) }.await;
        completed.map(Typed::typed)
    }

    async fn set_level(
        &self,
        mut request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let caller = self.caller(&context.extensions);
        let (all, own) = self.inner.sessions.set_level(&self.inner, &caller, &context.peer, request.level);
        for upstream in &self.inner.upstreams {
            request.level = if upstream.forwards() { own } else { all };
            if let Ok(lane) = upstream.for_caller(&caller)
                && let Ok(asked) = lane.ask(&caller).await
                // There each call says what is to be logged.
                && !watched::is_modern(&asked.peer)
                && let Err(error) = bounded(ANSWER_PATIENCE, asked.set_level(request.clone())).await
            {
                tracing::debug!(?error, upstream = upstream.name(), "an upstream takes no log level");
            }
        }
        Ok(())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let mut refusal = unreachable_upstream();
        let caller = self.caller(&context.extensions);
        for upstream in &self.inner.upstreams {
            let theirs = CustomRequest::new(request.method.clone(), request.params.clone());
            let asked = match upstream.for_caller(&caller) {
                Ok(lane) => lane.ask(&caller).await,
                Err(error) => Err(error),
            };
            let answer = match asked {
                Ok(asked) => bounded(ANSWER_PATIENCE, asked.custom(theirs)).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(ServerResult::CustomResult(result)) => return Ok(result),
                Ok(other) => return Ok(CustomResult::new(serde_json::to_value(other).unwrap_or_default())),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    async fn list_skills(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListSkillsResult, ErrorData> {
        first!(self, context, peer => peer.list_skills(request.clone()))
    }

    async fn get_skill(
        &self,
        request: GetSkillRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetSkillResult, ErrorData> {
        first!(self, context, peer => peer.get_skill(request.clone()))
    }

    async fn read_resource_directory(
        &self,
        request: ReadResourceDirectoryRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceDirectoryResult, ErrorData> {
        first!(self, context, peer => peer.read_resource_directory(request.clone()))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        if context.peer.peer_info().is_none() {
            context.peer.set_peer_info(request.clone());
        }
        let caller = self.caller(&context.extensions);
        self.introduce_to(&caller).await;
        Negotiated(self.describe(Some(&caller))).negotiate_initialize(&request)
    }

    fn negotiate_initialize(&self, request: &InitializeRequestParams) -> Result<InitializeResult, ErrorData> {
        Negotiated(self.get_info()).negotiate_initialize(request)
    }

    async fn discover(&self, context: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let caller = self.caller(&context.extensions);
        self.introduce_to(&caller).await;
        Negotiated(self.describe(Some(&caller))).discover(context).await
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }

    async fn ping(&self, context: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        let _ = self.caller(&context.extensions);
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        // The SDK leaves out what the upstreams do not offer. The caller sees what was accepted.
        let mut accepted = requested.clone();
        if let Some(uris) = &mut accepted.resource_subscriptions {
            uris.truncate(watched::MAX_WATCHED);
        }
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let caller = self.caller(&context.request_context().extensions);
        changes::serve(&self.inner, &caller, &context).await;
        Ok(())
    }

    // The wrapper serves tasks itself.
    async fn get_task(
        &self,
        _request: GetTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        Err(unknown("task"))
    }

    async fn update_task(
        &self,
        _request: UpdateTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Err(unknown("task"))
    }

    async fn cancel_task(
        &self,
        _request: CancelTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Err(unknown("task"))
    }

    async fn on_cancelled(
        &self,
        _params: CancelledNotificationParam,
        _context: NotificationContext<RoleServer>,
    ) {
    }

    async fn on_progress(
        &self,
        _params: ProgressNotificationParam,
        _context: NotificationContext<RoleServer>,
    ) {
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let caller = self.caller(&context.extensions);
        self.inner.sessions.add(&self.inner, &caller, context.peer);
    }

    async fn on_roots_list_changed(&self, _context: NotificationContext<RoleServer>) {}

    async fn on_custom_notification(
        &self,
        _params: CustomNotification,
        _context: NotificationContext<RoleServer>,
    ) {
    }
}

/// A handler that is nothing but its description, for what the SDK derives from one.
struct Negotiated(ServerConfig);

#[allow(clippy::missing_trait_methods, reason = "the defaults are what it is for")]
impl ServerHandler for Negotiated {
    fn get_info(&self) -> ServerConfig {
        self.0.clone()
    }
}
