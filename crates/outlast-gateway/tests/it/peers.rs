//! What servers and hosts as they are published do, and the SDK's own do not.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
    time::Duration,
};

use outlast_client::{Started, TaskClient};
use outlast_gateway::{Upstream, When};
use rmcp::{
    ClientHandler, ErrorData, RoleServer, ServerHandler,
    model::{
        ArgumentInfo, CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities,
        CompleteRequestParams, CompleteResult, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
        JsonObject, ListToolsResult, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams,
        ReadResourceResponse, ReadResourceResult, Reference, ResultType, ServerCapabilities, ServerConfig,
        Tool,
    },
    service::{RequestContext, ServiceExt},
};
use serde_json::json;

use crate::support::{gateway, serve, streams};

const LONG: Duration = Duration::from_secs(60);

/// A server of 2025-11-25, whose tool promises a structured result.
#[derive(Clone, Default)]
struct Old {
    /// What the last call's client had declared.
    declared: Arc<Mutex<Option<ClientCapabilities>>>,
}

impl ServerHandler for Old {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_prompts().enable_resources();
        ServerConfig::new(capabilities.enable_completions().build())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(&[ProtocolVersion::V_2025_11_25])
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut tool = Tool::new("tool", "a tool", Arc::new(JsonObject::new()));
        tool.output_schema =
            json!({ "type": "object", "required": ["said"] }).as_object().cloned().map(Arc::new);
        Ok(ListToolsResult::with_all_items(vec![tool]))
    }

    async fn call_tool(
        &self,
        _request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        *self.declared.lock().unwrap() = context.peer.peer_info().map(|info| info.capabilities.clone());
        Ok(CallToolResult::structured(json!({ "said": "done" })).into())
    }

    async fn get_prompt(
        &self,
        _request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        Ok(GetPromptResult::new(vec![]).into())
    }

    async fn read_resource(
        &self,
        _request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        Ok(ReadResourceResult::new(vec![]).into())
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Ok(CompleteResult::default())
    }
}

struct Host;

impl ClientHandler for Host {}

fn tool() -> CallToolRequestParams {
    CallToolRequestParams::new("tool")
}

#[tokio::test]
async fn results_of_a_server_of_2025_say_what_they_are_to_a_caller_of_2026() {
    for start in [When::After(LONG), When::Now] {
        let server = gateway(Upstream::only(streams("old", Old::default())), start, LONG).await;
        let client = TaskClient::new(streams("gateway", server), Host);

        let result = match client.start_tool(tool()).await.unwrap() {
            Started::Ready(result) => result,
            Started::Task(task) => task.wait(Some(LONG)).await.unwrap(),
        };

        assert_eq!(result.result_type, Some(ResultType::COMPLETE), "{start:?}");
        let peer = client.peer().await.unwrap();
        let GetPromptResponse::Complete(prompt) =
            peer.get_prompt_once(GetPromptRequestParams::new("p")).await.unwrap()
        else {
            panic!("no prompt")
        };
        assert_eq!(prompt.result_type, Some(ResultType::COMPLETE));
        let ReadResourceResponse::Complete(resource) =
            peer.read_resource_once(ReadResourceRequestParams::new("r://1")).await.unwrap()
        else {
            panic!("no resource")
        };
        assert_eq!(resource.result_type, Some(ResultType::COMPLETE));
        let argument: ArgumentInfo = serde_json::from_value(json!({ "name": "a", "value": "b" })).unwrap();
        for reference in [Reference::for_prompt("p"), Reference::for_resource("r://1")] {
            let completed =
                peer.complete(CompleteRequestParams::new(reference, argument.clone())).await.unwrap();
            assert_eq!(completed.result_type, Some(ResultType::COMPLETE));
        }
    }
}

#[tokio::test]
async fn a_tool_promises_no_structure_to_callers_who_may_be_told_that_the_work_goes_on() {
    let server = gateway(Upstream::only(streams("old", Old::default())), When::Now, LONG).await;

    let host = Host.serve(serve(server.clone())).await.unwrap();
    let tools = host.peer().list_all_tools().await.unwrap();
    assert!(tools.iter().all(|tool| tool.output_schema.is_none()), "{tools:?}");
    let result = host.peer().call_tool(tool()).await.unwrap();
    assert_eq!(result.structured_content, Some(json!({ "said": "done" })));

    let client = TaskClient::new(streams("gateway", server), Host);
    let tools = client.peer().await.unwrap().list_all_tools().await.unwrap();
    assert!(tools.iter().any(|tool| tool.output_schema.is_some()), "{tools:?}");
}

#[tokio::test]
async fn an_upstream_hears_of_all_that_callers_can_be_asked() {
    let old = Old::default();
    let server = gateway(Upstream::only(streams("old", old.clone())), When::Now, LONG).await;
    let client = TaskClient::new(streams("gateway", server), Host);

    client.call_tool(tool()).await.unwrap();

    let declared = old.declared.lock().unwrap().clone().unwrap();
    let elicitation = declared.elicitation.unwrap();
    assert!(elicitation.form.is_some() && elicitation.url.is_some(), "{elicitation:?}");
    assert!(declared.sampling.is_some() && declared.roots.is_some());
}
