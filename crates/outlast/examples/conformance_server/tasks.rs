//! The fixtures of the Tasks extension.
//!
//! Nothing in these tools makes a task: that is up to [`policies`], on which [`TaskServer`](outlast::TaskServer)
//! acts. A tool only uses its [`TaskContext`], which works in a task and in an ordinary call.

use std::time::Duration;

use outlast::{Elicited, Recovery, Start, TaskContext, TaskTool};
use rmcp::ErrorData;
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject, Tool};
use rmcp::object;
use rmcp::schemars::JsonSchema;
use rmcp::service::{RequestContext, RoleServer};
use serde::Deserialize;
use tokio::time::sleep;

use crate::questions::{ask_form, only};
use crate::requests::{answer, arguments, filled_in, no_arguments, one_text, text_argument};

/// The tools that become tasks, and how. All others are answered at once.
pub(crate) fn policies() -> [(&'static str, TaskTool); 6] {
    [
        ("slow_compute", TaskTool::optional()),
        ("failing_job", TaskTool::required()),
        ("protocol_error_job", TaskTool::optional()),
        ("confirm_delete", TaskTool::required()),
        ("multi_input", TaskTool::required()),
        ("test_tool_with_task", TaskTool::required().start(Start::AfterInput)),
    ]
    // After a crash they may simply run again: they change nothing but the task itself.
    .map(|(name, tool)| (name, tool.recovery(Recovery::Rerun)))
}

pub(crate) fn tools() -> Vec<Tool> {
    table().into_iter().map(|(name, description, schema)| Tool::new(name, description, schema)).collect()
}

pub(crate) fn has(name: &str) -> bool {
    table().iter().any(|row| row.0 == name)
}

pub(crate) async fn call(
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let task = TaskContext::from_request(&context);
    let argument = |name| text_argument(request.arguments.as_ref(), name);
    match &*request.name {
        "greet" => Ok(text(format!("Hello, {}!", argument("name")?))),
        "slow_compute" => slow_compute(arguments(request.arguments)?, &task).await,
        "failing_job" => failing_job().await,
        "protocol_error_job" => {
            Err(ErrorData::internal_error("the job ends in an error of the protocol", None))
        }
        "confirm_delete" => confirm_delete(&argument("filename")?, &task).await,
        "multi_input" => multi_input(&task).await,
        "test_tool_with_task" => Ok(ask_then_work(&request)),
        name => Err(ErrorData::invalid_params(format!("unknown tool: {name}"), None)),
    }
}

fn table() -> [(&'static str, &'static str, JsonObject); 7] {
    [
        ("greet", "Greets at once", one_text("name")),
        (
            "slow_compute",
            "Takes as long as it is told to",
            object!({
                "type": "object",
                "properties": { "seconds": { "type": "number" }, "label": { "type": "string" } },
                "required": ["seconds", "label"]
            }),
        ),
        ("failing_job", "Works for a moment, then says that it failed", no_arguments()),
        ("protocol_error_job", "Ends in a JSON-RPC error", no_arguments()),
        ("confirm_delete", "Pretends to delete a file, once that is confirmed", one_text("filename")),
        ("multi_input", "Asks two things at once", no_arguments()),
        ("test_tool_with_task", "Asks first, and then becomes a task", no_arguments()),
    ]
}

#[derive(Deserialize)]
struct SlowCompute {
    seconds: f64,
    label: String,
}

async fn slow_compute(
    SlowCompute { seconds, label }: SlowCompute,
    task: &TaskContext,
) -> Result<CallToolResponse, ErrorData> {
    let duration = Duration::try_from_secs_f64(seconds)
        .map_err(|error| ErrorData::invalid_params(format!("seconds: {error}"), None))?;
    tokio::select! {
        () = sleep(duration) => Ok(text(format!("slow_compute({label}) finished after {seconds}s"))),
        () = task.cancelled() => Err(task.cancel_error()),
    }
}

async fn failing_job() -> Result<CallToolResponse, ErrorData> {
    sleep(Duration::from_millis(300)).await;
    Ok(CallToolResult::error(vec![ContentBlock::text("This job always fails.")]).into())
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Confirmation {
    confirm: bool,
}

async fn confirm_delete(filename: &str, task: &TaskContext) -> Result<CallToolResponse, ErrorData> {
    let question = format!("Delete {filename}?");
    Ok(text(match task.elicit("confirm", &question).await? {
        Elicited::Accept(Confirmation { confirm: true }) => format!("{filename} would now be gone."),
        Elicited::Accept(_) | Elicited::Decline | Elicited::Cancel => format!("{filename} stays."),
    }))
}

async fn multi_input(task: &TaskContext) -> Result<CallToolResponse, ErrorData> {
    let question = |message| {
        let fields = object!({ "name": { "type": "string" }, "confirm": { "type": "boolean" } });
        ask_form(message, fields, &["name"])
    };
    let questions = [("first", question("Who is first?")), ("second", question("And who is second?"))];
    let answers = task.ask(questions).await?;
    let name = |key: &str| filled_in(&answers[key], "name");
    Ok(text(format!("First {}, then {}.", name("first"), name("second"))))
}

/// The question comes before there is a task, so it goes to the caller as a round of the call (S16).
fn ask_then_work(request: &CallToolRequestParams) -> CallToolResponse {
    const KEY: &str = "user_name";
    let Some(answer) = answer(request.input_responses.as_ref(), KEY) else {
        let fields = object!({ "name": { "type": "string" } });
        return only(KEY, ask_form("What is your name?", fields, &["name"])).into();
    };
    text(format!("Hello, {}, said the task.", filled_in(answer, "name")))
}

fn text(text: String) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}
