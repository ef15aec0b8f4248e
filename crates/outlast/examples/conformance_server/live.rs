//! Tools that talk to the client while they run, or that read something of the request besides its arguments.
//!
//! Asking in the middle of a call is for sessions of 2025-11-25 and older; since then there are
//! [`rounds`](crate::rounds).
#![expect(deprecated, reason = "the protocol means to drop logging and sampling; the suite tests them")]

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock,
    ElicitRequestParams, LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam,
    ProtocolVersion, SamplingCapability, Tool,
};
use rmcp::object;
use rmcp::service::{RequestContext, RoleServer, ServiceError};
use tokio::time::sleep;

use crate::changes::{Change, Changes};
use crate::questions::{completion, form};
use crate::requests::{no_arguments, one_text, text_argument};

const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn tools() -> Vec<Tool> {
    let table = [
        ("test_tool_with_logging", "Logs while it works", no_arguments()),
        ("test_tool_with_progress", "Reports its progress", no_arguments()),
        ("test_sampling", "Has the client's model answer a prompt", one_text("prompt")),
        ("test_elicitation", "Asks the user for a name and an address", one_text("message")),
        ("test_elicitation_sep1034_defaults", "Asks with a form that has defaults", no_arguments()),
        ("test_elicitation_sep1330_enums", "Asks with a form that has choices", no_arguments()),
        ("test_reconnection", "Takes a moment, so that a client can lose its stream", no_arguments()),
        (
            "test_custom_header",
            "Has an argument that goes into a header as well",
            object!({
                "type": "object",
                "properties": { "value": { "type": "string", "x-mcp-header": "Value" } },
                "required": ["value"]
            }),
        ),
        ("test_trigger_tool_change", "Announces that the tools have changed", no_arguments()),
        ("test_trigger_prompt_change", "Announces that the prompts have changed", no_arguments()),
        ("test_missing_capability", "Works only for a client that offers sampling", no_arguments()),
        ("test_logging_tool", "Logs once, if the request wants that", no_arguments()),
    ];
    table.into_iter().map(|(name, description, schema)| Tool::new(name, description, schema)).collect()
}

pub(crate) async fn call(
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
    changes: &Changes,
) -> Result<CallToolResponse, ErrorData> {
    let argument = |name| text_argument(request.arguments.as_ref(), name);
    let text = match &*request.name {
        "test_tool_with_logging" => {
            log(&context, "Tool execution started").await?;
            sleep(PAUSE).await;
            log(&context, "Tool processing data").await?;
            sleep(PAUSE).await;
            log(&context, "Tool execution completed").await?;
            "Logged three times.".to_owned()
        }
        "test_tool_with_progress" => {
            for done in [0.0, 50.0, 100.0] {
                progress(&context, done).await?;
                sleep(PAUSE).await;
            }
            "Reported progress.".to_owned()
        }
        "test_sampling" => sample(&context, &argument("prompt")?).await?,
        "test_elicitation" => elicit(&context, user_form(&argument("message")?)).await?,
        "test_elicitation_sep1034_defaults" => elicit(&context, form_with_defaults()).await?,
        "test_elicitation_sep1330_enums" => elicit(&context, form_with_choices()).await?,
        "test_reconnection" => {
            sleep(2 * PAUSE).await;
            "Still here.".to_owned()
        }
        "test_custom_header" => argument("value")?,
        "test_trigger_tool_change" => {
            changes.announce(Change::Tools);
            "Announced.".to_owned()
        }
        "test_trigger_prompt_change" => {
            changes.announce(Change::Prompts);
            "Announced.".to_owned()
        }
        "test_missing_capability" => {
            if context.client_capabilities().is_none_or(|declared| declared.sampling.is_none()) {
                let mut required = ClientCapabilities::default();
                required.sampling = Some(SamplingCapability::default());
                return Err(ErrorData::missing_required_client_capability(required));
            }
            "The client offers sampling.".to_owned()
        }
        "test_logging_tool" => {
            log(&context, "Tool execution started").await?;
            "Logged, if that was wanted.".to_owned()
        }
        name => return Err(ErrorData::invalid_params(format!("unknown tool: {name}"), None)),
    };
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

/// Sends a message at `info`. Since 2026-07-28 a request says whether it wants any; an older session gets all.
async fn log(context: &RequestContext<RoleServer>, message: &str) -> Result<(), ErrorData> {
    let wanted = match context.meta.log_level() {
        Some(level) => matches!(level, LoggingLevel::Debug | LoggingLevel::Info),
        None => context.protocol_version().is_none_or(|version| version < ProtocolVersion::V_2026_07_28),
    };
    if wanted {
        let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, message.into());
        context.peer.notify_logging_message(message).await.map_err(unreachable)?;
    }
    Ok(())
}

/// Says how much of 100 is done, to a client that gave a token for it.
async fn progress(context: &RequestContext<RoleServer>, done: f64) -> Result<(), ErrorData> {
    if let Some(token) = context.meta.get_progress_token() {
        let progress = ProgressNotificationParam::new(token, done).with_total(100.0);
        context.peer.notify_progress(progress).await.map_err(unreachable)?;
    }
    Ok(())
}

async fn sample(context: &RequestContext<RoleServer>, prompt: &str) -> Result<String, ErrorData> {
    let result = context.peer.create_message(completion(prompt, 100)).await.map_err(unreachable)?;
    let blocks = result.message.content.into_vec();
    let text = blocks.iter().find_map(|block| block.as_text()).map_or("no text", |block| &block.text);
    Ok(format!("LLM response: {text}"))
}

async fn elicit(
    context: &RequestContext<RoleServer>,
    form: ElicitRequestParams,
) -> Result<String, ErrorData> {
    let answer = context.peer.create_elicitation(form).await.map_err(unreachable)?;
    let content = answer.content.unwrap_or_default();
    Ok(format!("User response: {:?}, {content}", answer.action))
}

/// A session that cannot be asked is not the tool's failure, so it is an error of the protocol.
fn unreachable(error: ServiceError) -> ErrorData {
    ErrorData::internal_error(format!("the client cannot be reached: {error}"), None)
}

fn user_form(message: &str) -> ElicitRequestParams {
    let properties = object!({
        "username": { "type": "string", "description": "User's response" },
        "email": { "type": "string", "description": "User's email address" }
    });
    form(message, properties, &["username", "email"])
}

/// SEP-1034: a default for every kind of property.
fn form_with_defaults() -> ElicitRequestParams {
    let properties = object!({
        "name": { "type": "string", "default": "John Doe" },
        "age": { "type": "integer", "default": 30 },
        "score": { "type": "number", "default": 95.5 },
        "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
        "verified": { "type": "boolean", "default": true }
    });
    form("Please check these values", properties, &[])
}

/// SEP-1330: every way to offer a choice.
fn form_with_choices() -> ElicitRequestParams {
    let properties = object!({
        "untitledSingle": { "type": "string", "enum": ["option1", "option2", "option3"] },
        "titledSingle": {
            "type": "string",
            "oneOf": [
                { "const": "value1", "title": "First Option" },
                { "const": "value2", "title": "Second Option" },
                { "const": "value3", "title": "Third Option" }
            ]
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"]
        },
        "untitledMulti": {
            "type": "array",
            "items": { "type": "string", "enum": ["option1", "option2", "option3"] }
        },
        "titledMulti": {
            "type": "array",
            "items": {
                "anyOf": [
                    { "const": "value1", "title": "First Choice" },
                    { "const": "value2", "title": "Second Choice" },
                    { "const": "value3", "title": "Third Choice" }
                ]
            }
        }
    });
    form("Please choose", properties, &[])
}
