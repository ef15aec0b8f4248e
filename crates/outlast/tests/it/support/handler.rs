//! The tools of the test server.

use std::collections::BTreeMap;

use outlast::{Elicited, TaskContext};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult,
        ListToolsResult, NumberOrString, PaginatedRequestParams, ProgressNotificationParam, ProgressToken,
        ServerCapabilities, ServerConfig, SubscriptionFilter, Tool, ToolAnnotations,
    },
    service::{RequestContext, SubscriptionContext},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{durable, gates::Gates};

/// What an authentication layer knows about a caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub(crate) tenant: String,
}

#[derive(Clone, Default)]
pub(crate) struct Handler {
    pub(crate) gates: Gates,
}

/// Every tool, whether running it twice does no harm, and what it does.
const TOOLS: &[(&str, bool, &str)] = &[
    ("quick", true, "answers at once"),
    ("gated", true, "waits at the gate that its argument names, or for a cancel"),
    ("once", false, "waits at a gate, and must not run twice"),
    ("deaf", true, "waits at a gate and hears no cancel"),
    ("busy", true, "holds its thread until its gate opens"),
    ("is_error", true, "ends with a tool error"),
    ("fails", true, "ends with a JSON-RPC error"),
    ("panics", true, "panics"),
    ("asks", true, "asks one question"),
    ("asks_two", true, "asks two questions at once"),
    ("asks_twice", true, "asks two questions under one key"),
    ("asks_all", true, "asks every kind of question at once"),
    ("asks_model", true, "asks the client's model, and does without where it may not"),
    ("rounds", false, "asks by two rounds of multi-round-trip"),
    ("later", false, "asks its caller to come back later, twice"),
    ("claims", true, "says whose claims it sees"),
    ("talks", true, "says what it does, and waits at a gate"),
    ("big", true, "returns as many bytes as it is told to"),
    ("hasty", true, "asks, and drops its question before it is written"),
    ("fickle", true, "drops a question on its first run and needs its answer on the second"),
    ("falls_back", true, "asks two things at once, and one of them alone where that is refused"),
    ("bad_sample", true, "asks the client's model with parameters that are none"),
    ("asks_peer", true, "asks its caller in the way of older protocols"),
    ("chatty", true, "reports progress a thousand times in the way of tools that know no tasks"),
    ("two_gates", true, "waits at two gates, one after the other"),
    ("deep", true, "returns deeply nested structured content"),
];

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = |(name, idempotent, description): &(&'static str, bool, &'static str)| {
            Tool::new(*name, *description, object(json!({"type": "object"})))
                .with_annotations(ToolAnnotations::new().idempotent(*idempotent))
        };
        Ok(ListToolsResult::with_all_items(TOOLS.iter().chain(durable::TOOLS).map(tool).collect()))
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, subscription: SubscriptionContext) -> Result<(), ErrorData> {
        self.gates.wait("tools changed").await;
        if subscription.requested().prompts_list_changed == Some(true) {
            // What such a stream may not carry.
            let progress = ProgressNotificationParam::new(ProgressToken(NumberOrString::Number(1)), 1.0);
            subscription.request_context().peer.notify_progress(progress).await.ok();
        }
        subscription.sink().notify_tool_list_changed().await.ok();
        self.gates.wait("tools done").await;
        Ok(())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let task = TaskContext::from_request(&context);
        let arguments = Value::Object(request.arguments.clone().unwrap_or_default());
        let gate = arguments["gate"].as_str().unwrap_or("gate");
        match &*request.name {
            "quick" => Ok(text("quick")),
            "gated" | "once" => tokio::select! {
                () = self.gates.wait(gate) => Ok(text("through")),
                () = task.cancelled() => {
                    self.gates.wait("heard").await;
                    Err(task.cancel_error())
                }
            },
            "deaf" => {
                self.gates.wait(gate).await;
                Ok(text("through"))
            }
            "busy" => {
                let (gates, gate) = (self.gates.clone(), gate.to_owned());
                tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(gates.wait(&gate)));
                Ok(text("through"))
            }
            "is_error" => Ok(CallToolResult::error(vec![ContentBlock::text("it went wrong")]).into()),
            "fails" => Err(ErrorData::invalid_params("it cannot be done", Some(json!({"why": "no"})))),
            "panics" => panic!("the tool panics on purpose"),
            "asks" => ask(&task).await,
            "asks_two" => {
                let answers = task.ask([("first", form("First?")), ("second", form("Second?"))]).await?;
                Ok(text(&format!(
                    "{} {}",
                    answers["first"]["content"]["name"], answers["second"]["content"]["name"]
                )))
            }
            "asks_all" => {
                let sample = json!({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5});
                let (url, model, roots) = tokio::join!(
                    task.elicit_url("url", "Pay here", "https://pay.example/1"),
                    task.sample("model", sample),
                    task.roots("roots"),
                );
                let url = url? == Elicited::Accept(());
                Ok(text(&format!("{url} {} {}", model?["model"], roots?[0]["uri"])))
            }
            "asks_twice" => {
                task.ask([("same", form("One?"))]).await?;
                task.ask([("same", form("Two?"))]).await?;
                Ok(text("unreachable"))
            }
            "asks_model" => {
                let params = json!({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5});
                match task.sample("model", params).await {
                    Ok(answer) => Ok(text(&format!("model said {}", answer["content"]["text"]))),
                    Err(error) => Ok(text(&format!("without: {error}"))),
                }
            }
            "rounds" => Ok(rounds(&request)),
            "later" => Ok(later(&request)),
            "claims" => {
                let seen = context.extensions.get::<Claims>().map_or("nobody", |claims| &claims.tenant);
                let stored = text(&format!("tenant {seen}"));
                if task.is_task() {
                    self.gates.wait(gate).await;
                }
                Ok(stored)
            }
            "talks" => {
                for n in 0..100 {
                    task.status(format!("step {n}"));
                }
                self.gates.wait(gate).await;
                Ok(text("said enough"))
            }
            "chatty" => {
                let token = context.meta.get_progress_token().expect("the caller gave one");
                for n in 0..1_000 {
                    let progress = rmcp::model::ProgressNotificationParam::new(token.clone(), f64::from(n));
                    let _ = context.peer.notify_progress(progress).await;
                }
                Ok(text("said enough"))
            }
            "two_gates" => {
                self.gates.wait(gate).await;
                self.gates.wait("after").await;
                Ok(text("through"))
            }
            "hasty" => {
                tokio::select! {
                    biased;
                    _ = task.ask([("dropped", form("Nobody waits for this"))]) => {}
                    () = std::future::ready(()) => {}
                }
                self.gates.wait(gate).await;
                Ok(text("did without"))
            }
            "fickle" => {
                if self.gates.count("first") == 0 {
                    let asking = task.ask([("q", form("Q?"))]);
                    tokio::select! {
                        _ = asking => {}
                        () = self.gates.wait("first") => {}
                    }
                    self.gates.wait("crash").await;
                }
                self.gates.wait("second").await;
                Ok(text(&format!("{:?}", task.ask([("q", form("Q?"))]).await?)))
            }
            "falls_back" => {
                let sample = json!({"method": "sampling/createMessage", "params": {
                    "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5}});
                match task.ask([("form", form("Form?")), ("model", sample)]).await {
                    Ok(_) => Ok(text("both")),
                    Err(_) => {
                        Ok(text(&task.ask([("form", form("Form?"))]).await?["form"]["action"].to_string()))
                    }
                }
            }
            "bad_sample" => match task.sample("model", json!({})).await {
                Ok(_) => Ok(text("answered")),
                Err(error) => Ok(text(&format!("without: {error}"))),
            },
            "asks_peer" => {
                #[allow(deprecated)]
                let roots = context.peer.list_roots().await;
                Ok(text(&format!("{}", roots.is_ok())))
            }
            "deep" => {
                let nested = (0..200).fold(json!("bottom"), |inner, _| json!({ "in": inner }));
                Ok(CallToolResult::structured(nested).into())
            }
            "big" => Ok(text(&"x".repeat(arguments["bytes"].as_u64().unwrap_or(0) as usize))),
            other => durable::call(other, &arguments, &task, &self.gates).await,
        }
    }
}

async fn ask(task: &TaskContext) -> Result<CallToolResponse, ErrorData> {
    #[derive(Deserialize, rmcp::schemars::JsonSchema)]
    #[schemars(crate = "rmcp::schemars")]
    struct Name {
        name: String,
    }
    Ok(match task.elicit::<Name>("who", "Who are you?").await? {
        Elicited::Accept(Name { name }) => text(&format!("hello {name}")),
        Elicited::Decline => text("declined"),
        Elicited::Cancel => text("closed"),
    })
}

/// Asks `a`, then `b`, then greets both; what it learned travels in the request state.
fn rounds(request: &CallToolRequestParams) -> CallToolResponse {
    let answer = |key: &str| {
        request.input_responses.as_ref()?.get(key)?["content"]["name"].as_str().map(str::to_owned)
    };
    match (request.request_state.as_deref(), answer("a"), answer("b")) {
        (Some(state), _, Some(b)) if state.starts_with("a=") => text(&format!("{state} b={b}")),
        (_, Some(a), _) => round("b", &format!("a={a}")),
        _ => round("a", "begun"),
    }
}

fn round(key: &str, state: &str) -> CallToolResponse {
    let question: BTreeMap<_, _> = [(key.to_owned(), serde_json::from_value(form("Next?")).unwrap())].into();
    InputRequiredResult::new(Some(question), Some(state.to_owned())).into()
}

fn later(request: &CallToolRequestParams) -> CallToolResponse {
    match request.request_state.as_deref() {
        None => InputRequiredResult::from_request_state("once").into(),
        Some("once") => InputRequiredResult::from_request_state("twice").into(),
        Some(state) => text(state),
    }
}

/// A form that asks for a name, as a wire request.
pub(crate) fn form(message: &str) -> Value {
    json!({"method": "elicitation/create", "params": {
        "mode": "form",
        "message": message,
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    }})
}

fn text(text: &str) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

fn object(value: Value) -> serde_json::Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}
