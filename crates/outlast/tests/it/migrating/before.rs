//! The server of `docs/migrating.md` before it is moved, with the SDK's own tasks.

use std::sync::Arc;

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    handler::server::{tool::ToolCallContext, wrapper::Parameters},
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ContentBlock,
        CreateTaskResult, ElicitRequest, ElicitRequestParams, ElicitationSchema, GetTaskParams,
        GetTaskResult, InputRequest, ServerCapabilities, ServerConfig, UpdateTaskParams,
    },
    schemars,
    service::RequestContext,
    task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions},
    tool, tool_handler, tool_router,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpListener;

#[derive(Deserialize, schemars::JsonSchema)]
struct Index {
    /// How many pages there are.
    pages: u32,
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Remove {
    /// Its name.
    entry: String,
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Confirm {
    /// Shall it be removed?
    #[allow(dead_code, reason = "it is there for its schema")]
    confirm: bool,
}

#[derive(Clone, Default)]
pub struct Archive {
    tasks: TaskManager,
}

#[tool_router]
impl Archive {
    #[tool(description = "Reads the pages of the archive into its index")]
    async fn index(
        &self,
        Parameters(Index { pages }): Parameters<Index>,
    ) -> Result<CallToolResult, ErrorData> {
        for page in 1..=pages {
            read(page).await?;
        }
        Ok(text(format!("{pages} pages are indexed")))
    }

    #[tool(description = "Removes an entry, once that is confirmed")]
    async fn remove(&self, _: Parameters<Remove>) -> Result<CallToolResult, ErrorData> {
        Err(ErrorData::invalid_request("only a client that knows tasks can be asked", None))
    }
}

#[tool_handler]
impl ServerHandler for Archive {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tasks().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let knows_tasks = context.client_capabilities().is_some_and(|client| client.supports_tasks());
        let arguments = Value::Object(request.arguments.clone().unwrap_or_default());
        let invalid = |error: serde_json::Error| ErrorData::invalid_params(error.to_string(), None);
        let task = match &*request.name {
            "index" if knows_tasks => {
                let wanted = serde_json::from_value(arguments).map_err(invalid)?;
                self.tasks.spawn(TaskOptions::new(), |task| Box::pin(index(task, wanted)))
            }
            "remove" if knows_tasks => {
                let wanted = serde_json::from_value(arguments).map_err(invalid)?;
                self.tasks.spawn(TaskOptions::new(), |task| Box::pin(remove(task, wanted)))
            }
            _ => return Self::tool_router().call(ToolCallContext::new(self, request, context)).await,
        };
        Ok(CallToolResponse::Task(CreateTaskResult::new(task)))
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        Ok(GetTaskResult::new(self.tasks.get_task(&request.task_id)?))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.cancel_task(&request.task_id)
    }
}

async fn index(task: TaskContext, Index { pages }: Index) -> Result<CallToolResult, TaskExit> {
    for page in 1..=pages {
        if task.is_cancel_requested() {
            return Err(TaskExit::Cancelled);
        }
        task.set_status_message(format!("reading ({page}/{pages})"));
        read(page).await?;
    }
    Ok(text(format!("{pages} pages are indexed")))
}

async fn remove(task: TaskContext, Remove { entry }: Remove) -> Result<CallToolResult, TaskExit> {
    let form = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: format!("Remove {entry}?"),
        requested_schema: ElicitationSchema::from_type::<Confirm>()
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?,
    };
    let answer = task.request_input("sure", InputRequest::Elicitation(ElicitRequest::new(form))).await?;
    if answer["action"] != "accept" || answer["content"]["confirm"] != true {
        return Ok(text("nothing was removed".to_owned()));
    }
    erase(&entry).await?;
    Ok(text(format!("{entry} is removed")))
}

fn text(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

async fn read(_page: u32) -> Result<(), ErrorData> {
    tokio::task::yield_now().await;
    Ok(())
}

async fn erase(_entry: &str) -> Result<(), ErrorData> {
    Ok(())
}

pub async fn serve(listener: TcpListener) -> std::io::Result<()> {
    let archive = Archive::default();
    // The SDK asks for a handler for each request; the clones share the tasks.
    let service: StreamableHttpService<_, LocalSessionManager> = StreamableHttpService::new(
        move || Ok(archive.clone()),
        Arc::default(),
        StreamableHttpServerConfig::default(),
    );
    axum::serve(listener, axum::Router::new().route_service("/mcp", service)).await
}
