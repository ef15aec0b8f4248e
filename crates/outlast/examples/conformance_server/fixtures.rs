//! The handler: what it offers, and which module answers.
#![expect(deprecated, reason = "the protocol means to drop logging; the suite still tests it")]

use std::{io, path::Path, sync::Arc};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, GetPromptRequestParams, GetPromptResponse, Implementation,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, RoleServer, SubscriptionContext};
use rmcp::{ErrorData, ServerHandler};

use crate::changes::Changes;
use crate::rounds::States;
use crate::{answers, live, prompts, resources, rounds, tasks};

/// Every fixture of the suite. Clones share the subscriptions and the key of the sealed states: each request may
/// get a handler of its own, and one request's tool has to reach another's stream.
#[derive(Clone)]
pub(crate) struct Fixtures {
    tools: Arc<[Tool]>,
    states: States,
    changes: Changes,
}

impl Fixtures {
    /// # Errors
    ///
    /// When the system has no random bytes for the key.
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        Ok(Self::with(States::new()?, Changes::default()))
    }

    /// Those of one of several replicas, which share what a folder holds.
    ///
    /// # Errors
    ///
    /// When the folder has no key.
    pub(crate) fn shared(folder: &Path) -> io::Result<Self> {
        Ok(Self::with(States::shared(folder)?, Changes::shared(folder)?))
    }

    fn with(states: States, changes: Changes) -> Self {
        // The suite calls the first tool of the list without arguments and without tasks: it must want neither.
        let tools = [answers::tools(), live::tools(), rounds::tools(), tasks::tools()];
        Self { tools: tools.into_iter().flatten().collect(), states, changes }
    }
}

impl ServerHandler for Fixtures {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_resources_list_changed()
            .enable_logging()
            .enable_completions()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("outlast-conformance", env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.to_vec()))
    }

    /// The transport reads a tool's `x-mcp-header` here.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Some(result) = answers::call(&request.name) {
            return Ok(result.into());
        }
        let declared = context.client_capabilities().unwrap_or_default();
        if let Some(response) = rounds::call(&request, &declared, &self.states) {
            return response;
        }
        if tasks::has(&request.name) {
            return tasks::call(request, context).await;
        }
        live::call(request, context, &self.changes).await
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(prompts::list()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        prompts::get(request)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(resources::list()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&request.uri).map(Into::into)
    }

    /// Everything that the capabilities above announce; rmcp takes the rest away.
    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.changes.forward_to(&context).await;
        Ok(())
    }

    /// No level is kept: every fixture logs at `info`, which is what the suite asks for.
    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    /// Any uri will do, as no resource of this server ever changes.
    async fn subscribe(
        &self,
        _: SubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }
}
