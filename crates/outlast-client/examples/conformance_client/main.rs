//! The client that the official MCP conformance suite runs (`scripts/conformance.sh --client`).
//!
//! The suite appends the URL of its server, and names the scenario in `MCP_CONFORMANCE_SCENARIO`; some scenarios say in
//! `MCP_CONFORMANCE_CONTEXT` which tools to call with what. The client does what any client does: looks around, calls each
//! tool with arguments that fit, and takes the defaults of every form.

mod oauth;

use std::collections::BTreeMap;

use anyhow::Context;
use outlast_client::{CallErrorKind, Server, TaskClient};
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult,
        ElicitationAction, ErrorData, GetPromptRequestParams, Implementation, JsonObject,
        ReadResourceRequestParams,
    },
    service::{Peer, RequestContext},
};
use serde_json::{Value, json};

/// The tool to which one scenario wants the schema of another tool sent back.
const SCHEMA_ECHO: &str = "json_schema_echo";

/// Accepts every form, with the defaults of its fields.
struct Accepts;

impl ClientHandler for Accepts {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let request = serde_json::to_value(request).unwrap_or_default();
        let fields = request.pointer("/requestedSchema/properties").and_then(Value::as_object);
        let defaults: BTreeMap<&String, &Value> = fields
            .into_iter()
            .flatten()
            .filter_map(|(name, field)| Some((name, field.get("default")?)))
            .collect();
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!(defaults)))
    }

    #[allow(deprecated, reason = "the suite asks for every capability that a client can have")]
    fn get_info(&self) -> ClientConfig {
        let capabilities =
            ClientCapabilities::builder().enable_elicitation().enable_sampling().enable_roots().build();
        ClientConfig::new(
            capabilities,
            Implementation::new("outlast-conformance-client", env!("CARGO_PKG_VERSION")),
        )
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = std::env::args().nth(1).context("usage: conformance_client URL")?;
    let context = match std::env::var("MCP_CONFORMANCE_CONTEXT") {
        Ok(context) => serde_json::from_str(&context)?,
        Err(_) => Value::Null,
    };
    let server = Server::http(url.clone()).authorize(oauth::OAuth::new(url, context.clone()));
    let client = TaskClient::new(server, Accepts);
    let peer = client.peer().await?;
    for (name, arguments) in calls(&peer, &context).await? {
        let mut params = CallToolRequestParams::new(name.clone());
        params.arguments = Some(arguments);
        match client.call_tool(params).await {
            Ok(result) => println!("{name}: {}", json!(result)),
            // A tool may refuse what it was given; the suite judges by what it received.
            Err(error) if matches!(error.kind(), CallErrorKind::Failed(_)) => println!("{name}: {error}"),
            Err(error) => return Err(error).context(name),
        }
    }
    look_around(&peer).await;
    client.close().await;
    Ok(())
}

/// The calls that the scenario names, or one of each tool.
async fn calls(peer: &Peer<RoleClient>, context: &Value) -> anyhow::Result<Vec<(String, JsonObject)>> {
    let tools = peer.list_all_tools().await?;
    if let Some(named) = context.get("toolCalls").and_then(Value::as_array) {
        let read = |call: &Value| {
            Some((call.get("name")?.as_str()?.to_owned(), call.get("arguments")?.as_object()?.clone()))
        };
        return named
            .iter()
            .map(|call| read(call).context("a call names a tool and its arguments"))
            .collect();
    }
    if tools.iter().any(|tool| tool.name == SCHEMA_ECHO) {
        let focal =
            tools.iter().find(|tool| tool.name != SCHEMA_ECHO).context("the scenario has two tools")?;
        let arguments = JsonObject::from_iter([("schema".to_owned(), json!(focal.input_schema))]);
        return Ok(vec![(SCHEMA_ECHO.to_owned(), arguments)]);
    }
    Ok(tools.into_iter().map(|tool| (tool.name.to_string(), fitting(&tool.input_schema))).collect())
}

/// Arguments that fit a schema of primitive fields.
fn fitting(schema: &JsonObject) -> JsonObject {
    let fields = schema.get("properties").and_then(Value::as_object);
    let value = |field: &Value| match field.get("type").and_then(Value::as_str) {
        Some("number" | "integer") => json!(5),
        Some("boolean") => json!(true),
        Some("string") => json!("text"),
        Some("array") => json!([]),
        _ => json!({}),
    };
    fields.into_iter().flatten().map(|(name, field)| (name.clone(), value(field))).collect()
}

/// Resources and prompts, as far as the server has them.
async fn look_around(peer: &Peer<RoleClient>) {
    let Some(info) = peer.peer_info() else { return };
    if info.capabilities.resources.is_some()
        && let Ok(resources) = peer.list_all_resources().await
    {
        for resource in resources {
            let read = peer.read_resource(ReadResourceRequestParams::new(resource.uri.clone())).await;
            println!("{}: {}", resource.uri, read.is_ok());
        }
    }
    if info.capabilities.prompts.is_some()
        && let Ok(prompts) = peer.list_all_prompts().await
    {
        for prompt in prompts {
            let got = peer.get_prompt(GetPromptRequestParams::new(prompt.name.clone())).await;
            println!("{}: {}", prompt.name, got.is_ok());
        }
    }
}
