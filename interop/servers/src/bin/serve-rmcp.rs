//! rmcp's own `TaskManager`, as its documentation shows it: `serve-rmcp [PORT]`.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ContentBlock,
    CreateTaskResult, ElicitRequest, ElicitRequestParams, ElicitationSchema, GetTaskParams, GetTaskResult,
    Implementation, InputRequest, JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities,
    ServerConfig, Tool, UpdateTaskParams,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use rmcp::{ErrorData, ServerHandler, object};

#[derive(Clone, Default)]
struct Fixtures {
    tasks: TaskManager,
}

impl ServerHandler for Fixtures {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tasks().build())
            .with_server_info(Implementation::new("rmcp", "3.11.0"))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let none = || object!({ "type": "object" });
        let seconds = object!({ "type": "object", "properties": { "seconds": { "type": "number" } } });
        Ok(ListToolsResult::with_all_items(vec![
            Tool::new("quick", "Answers at once", none()),
            Tool::new("slow", "Takes as long as it is told to", seconds),
            Tool::new("asks", "Asks for a name", none()),
            Tool::new("fails", "Ends in a JSON-RPC error", none()),
            Tool::new("cancellable", "Takes a minute, unless it is cancelled", none()),
        ]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name == "quick" {
            return Ok(text("quick: done").into());
        }
        if !context.client_capabilities().is_some_and(|declared| declared.supports_tasks()) {
            return Err(ErrorData::invalid_request("this tool needs the Tasks extension", None));
        }
        let work: fn(TaskContext, JsonObject) -> rmcp::task_manager::TaskFuture = match &*request.name {
            "slow" => |task, arguments| Box::pin(slow(task, arguments)),
            "asks" => |task, _| Box::pin(asks(task)),
            "fails" => |_, _| Box::pin(fails()),
            "cancellable" => |task, _| Box::pin(cancellable(task)),
            name => return Err(ErrorData::invalid_params(format!("unknown tool: {name}"), None)),
        };
        let arguments = request.arguments.unwrap_or_default();
        let task =
            self.tasks.spawn(TaskOptions::new().with_poll_interval_ms(200), |task| work(task, arguments));
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

async fn slow(task: TaskContext, arguments: JsonObject) -> Result<CallToolResult, TaskExit> {
    task.set_status_message("working slowly");
    let seconds = arguments.get("seconds").and_then(|seconds| seconds.as_f64()).unwrap_or(1.0);
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    Ok(text("slow: done"))
}

async fn asks(task: TaskContext) -> Result<CallToolResult, TaskExit> {
    let schema =
        object!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
    let form = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: "What is your name?".to_owned(),
        requested_schema: ElicitationSchema::from_json_schema(schema)
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?,
    };
    let answer = task.request_input("name", InputRequest::Elicitation(ElicitRequest::new(form))).await?;
    let name = answer.pointer("/content/name").and_then(|name| name.as_str()).unwrap_or("nobody");
    Ok(text(&format!("asks: hello {name}")))
}

async fn fails() -> Result<CallToolResult, TaskExit> {
    tokio::time::sleep(Duration::from_millis(200)).await;
    Err(ErrorData::internal_error("it went wrong, as it should", None).into())
}

async fn cancellable(task: TaskContext) -> Result<CallToolResult, TaskExit> {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs(60)) => Ok(text("cancellable: done")),
        () = task.cancelled() => Err(TaskExit::Cancelled),
    }
}

fn text(text: &str) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let server = Fixtures::default();
    let config = StreamableHttpServerConfig::default().with_json_response(true);
    // The SDK asks for a handler for each request; all of them share the tasks.
    let service: StreamableHttpService<_, LocalSessionManager> =
        StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config);
    let app = axum::Router::new().route_service("/mcp", service);
    Ok(axum::serve(interop_servers::listen().await?, app).await?)
}
