//! The wrapper as a `ServerHandler`: what is about tasks is done here, and all else is passed on.

#![deny(
    clippy::missing_trait_methods,
    reason = "a new method of the SDK must not fall to its default unseen"
)]
#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::borrow::Cow;

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, CancelledNotificationParam,
        CompleteRequestParams, CompleteResult, CustomNotification, CustomRequest, CustomResult,
        DiscoverResult, ExtensionCapabilities, GetPromptRequestParams, GetPromptResponse,
        GetSkillRequestParams, GetSkillResult, GetTaskParams, GetTaskResult, InitializeRequestParams,
        InitializeResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
        ListSkillsResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
        ProtocolVersion, ReadResourceDirectoryRequestParams, ReadResourceDirectoryResult,
        ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig,
        SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, TASKS_EXTENSION_ID, Tool,
        UnsubscribeRequestParams, UpdateTaskParams,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
};

use super::{TaskServer, attempt::catching, repeats};

impl<H: ServerHandler> TaskServer<H> {
    /// Declares the extension (S2), and which calls a client may repeat safely, unless the handler has said so itself.
    fn with_tasks(&self, mut capabilities: ServerCapabilities) -> ServerCapabilities {
        let extensions = capabilities.extensions.get_or_insert_with(ExtensionCapabilities::new);
        extensions.entry(TASKS_EXTENSION_ID.to_owned()).or_default();
        if let Some(repeats) = &self.0.repeats {
            extensions.entry(repeats::EXTENSION.to_owned()).or_insert_with(|| repeats.clone());
        }
        capabilities
    }
}

/// Passes requests on, so that a panic in the handler answers its request.
macro_rules! pass_on {
    ($($method:ident($params:ty) -> $result:ty;)*) => {$(
        async fn $method(
            &self,
            request: $params,
            context: RequestContext<RoleServer>,
        ) -> Result<$result, ErrorData> {
            catching(stringify!($method), async { self.0.handler.$method(request, context).await }).await
        }
    )*};
}

/// Passes notifications on.
macro_rules! pass_on_notifications {
    ($($method:ident($params:ty);)*) => {$(
        async fn $method(&self, notification: $params, context: NotificationContext<RoleServer>) {
            self.0.handler.$method(notification, context).await;
        }
    )*};
}

impl<H: ServerHandler> ServerHandler for TaskServer<H> {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.0.handler.get_info();
        info.capabilities = self.with_tasks(info.capabilities);
        info
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let mut result = catching("initialize", self.0.handler.initialize(request, context)).await?;
        result.capabilities = self.with_tasks(result.capabilities);
        Ok(result)
    }

    fn negotiate_initialize(&self, request: &InitializeRequestParams) -> Result<InitializeResult, ErrorData> {
        let mut result = self.0.handler.negotiate_initialize(request)?;
        result.capabilities = self.with_tasks(result.capabilities);
        Ok(result)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        self.0.handler.supported_protocol_versions()
    }

    async fn discover(&self, context: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let mut result = catching("discover", self.0.handler.discover(context)).await?;
        result.capabilities = self.with_tasks(result.capabilities);
        Ok(result)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        catching("call_tool", self.handle_call(request, context)).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        catching("get_task", self.handle_get(request, context)).await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        catching("update_task", self.handle_update(request, context)).await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        catching("cancel_task", self.handle_cancel(request, context)).await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        catching("on_custom_request", self.handle_custom(request, context)).await
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let result = catching("list_tools", self.0.handler.list_tools(request, context)).await?;
        self.learn(&result.tools);
        Ok(result)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.0.handler.get_tool(name)
    }

    async fn ping(&self, context: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        catching("ping", self.0.handler.ping(context)).await
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        self.0.handler.accepted_subscription_filter(requested)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        catching("listen", self.0.handler.listen(context)).await
    }

    pass_on! {
        complete(CompleteRequestParams) -> CompleteResult;
        set_level(SetLevelRequestParams) -> ();
        get_prompt(GetPromptRequestParams) -> GetPromptResponse;
        list_prompts(Option<PaginatedRequestParams>) -> ListPromptsResult;
        list_resources(Option<PaginatedRequestParams>) -> ListResourcesResult;
        list_resource_templates(Option<PaginatedRequestParams>) -> ListResourceTemplatesResult;
        read_resource(ReadResourceRequestParams) -> ReadResourceResponse;
        subscribe(SubscribeRequestParams) -> ();
        unsubscribe(UnsubscribeRequestParams) -> ();
        list_skills(Option<PaginatedRequestParams>) -> ListSkillsResult;
        get_skill(GetSkillRequestParams) -> GetSkillResult;
        read_resource_directory(ReadResourceDirectoryRequestParams) -> ReadResourceDirectoryResult;
    }

    pass_on_notifications! {
        on_cancelled(CancelledNotificationParam);
        on_progress(ProgressNotificationParam);
        on_custom_notification(CustomNotification);
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.0.handler.on_initialized(context).await;
    }

    async fn on_roots_list_changed(&self, context: NotificationContext<RoleServer>) {
        self.0.handler.on_roots_list_changed(context).await;
    }
}
