//! A request of a caller on its way to an upstream: with the caller's own `Authorization` header, where the upstream gets that.

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use outlast_client::{Authorization, is_unauthorized};
use rmcp::{
    RoleClient,
    model::{
        ClientRequest, CompleteRequest, CompleteRequestParams, CompleteResult, CustomRequest, GetExtensions,
        GetPromptRequest, GetPromptRequestParams, GetPromptResponse, GetSkillRequest, GetSkillRequestParams,
        GetSkillResult, ListPromptsRequest, ListPromptsResult, ListResourceTemplatesRequest,
        ListResourceTemplatesResult, ListResourcesRequest, ListResourcesResult, ListSkillsRequest,
        ListSkillsResult, ListToolsRequest, ListToolsResult, PaginatedRequestParams,
        ReadResourceDirectoryRequest, ReadResourceDirectoryRequestParams, ReadResourceDirectoryResult,
        ReadResourceRequest, ReadResourceRequestParams, ReadResourceResponse, ServerResult, SetLevelRequest,
        SetLevelRequestParams,
    },
    service::{Peer, ServiceError},
};

use crate::upstream::refused_caller;

/// The way of one request. The SDK's own keeps answers for the next who asks, where the upstream says that they may be kept; with
/// a caller's header nothing is kept.
pub(crate) struct Asked {
    pub(crate) peer: Peer<RoleClient>,
    /// Where the upstream gets its callers' own: that of this caller.
    pub(crate) brings: Option<Authorization>,
}

impl Asked {
    async fn send(
        &self,
        mut request: ClientRequest,
        brings: &Authorization,
    ) -> Result<ServerResult, ServiceError> {
        request.extensions_mut().insert(brings.clone());
        self.peer.send_request(request).await.map_err(|error| match is_unauthorized(&error) {
            true => ServiceError::McpError(refused_caller(brings)),
            false => error,
        })
    }

    /// A request of no kind that is known.
    pub(crate) async fn custom(&self, request: CustomRequest) -> Result<ServerResult, ServiceError> {
        let request = ClientRequest::CustomRequest(request);
        match &self.brings {
            None => self.peer.send_request(request).await,
            Some(brings) => self.send(request, brings).await,
        }
    }
}

/// A request of the SDK: one of a page, or any other.
macro_rules! request {
    ($Request:ident, Page, $params:ident) => {
        $Request { params: $params, ..$Request::default() }
    };
    ($Request:ident, $Params:ident, $params:ident) => {
        $Request::new($params)
    };
}

/// The requests that the SDK has methods for, by the same names.
macro_rules! requests {
    ($($method:ident($Request:ident, $Params:ident) -> $Result:ty { $($answer:pat => $result:expr),+ })*) => {
        impl Asked {$(
            pub(crate) async fn $method(&self, params: $Params) -> Result<$Result, ServiceError> {
                let Some(brings) = &self.brings else { return self.peer.$method(params).await };
                let request = request!($Request, $Params, params);
                match self.send(ClientRequest::$Request(request), brings).await? {
                    $($answer => Ok($result),)+
                    _ => Err(ServiceError::UnexpectedResponse),
                }
            }
        )*}
    };
}

type Page = Option<PaginatedRequestParams>;

requests! {
    list_tools(ListToolsRequest, Page) -> ListToolsResult { ServerResult::ListToolsResult(page) => page }
    list_prompts(ListPromptsRequest, Page) -> ListPromptsResult { ServerResult::ListPromptsResult(page) => page }
    list_resources(ListResourcesRequest, Page) -> ListResourcesResult {
        ServerResult::ListResourcesResult(page) => page
    }
    list_resource_templates(ListResourceTemplatesRequest, Page) -> ListResourceTemplatesResult {
        ServerResult::ListResourceTemplatesResult(page) => page
    }
    list_skills(ListSkillsRequest, Page) -> ListSkillsResult { ServerResult::ListSkillsResult(page) => page }
    get_skill(GetSkillRequest, GetSkillRequestParams) -> GetSkillResult {
        ServerResult::GetSkillResult(skill) => skill
    }
    read_resource_directory(ReadResourceDirectoryRequest, ReadResourceDirectoryRequestParams)
        -> ReadResourceDirectoryResult { ServerResult::ListResourcesResult(entries) => entries }
    get_prompt_once(GetPromptRequest, GetPromptRequestParams) -> GetPromptResponse {
        ServerResult::GetPromptResult(prompt) => GetPromptResponse::Complete(prompt),
        ServerResult::InputRequiredResult(asks) => GetPromptResponse::InputRequired(asks)
    }
    read_resource_once(ReadResourceRequest, ReadResourceRequestParams) -> ReadResourceResponse {
        ServerResult::ReadResourceResult(read) => ReadResourceResponse::Complete(read),
        ServerResult::InputRequiredResult(asks) => ReadResourceResponse::InputRequired(asks)
    }
    complete(CompleteRequest, CompleteRequestParams) -> CompleteResult {
        ServerResult::CompleteResult(completed) => completed
    }
    set_level(SetLevelRequest, SetLevelRequestParams) -> () { ServerResult::EmptyResult(_) => () }
}
