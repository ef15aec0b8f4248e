//! An upstream that has everything besides tasks, in either generation of the protocol, and a caller who hears everything.

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::{
    borrow::Cow,
    ops::Range,
    sync::{Arc, Mutex},
};

use outlast::{Config, MemoryStore, SystemClock, TaskServer};
use outlast_client::Server;
use outlast_gateway::{Gateway, GatewayOptions, Upstream};
use rmcp::{
    ClientHandler, ErrorData, RoleClient, RoleServer, ServerHandler,
    model::*,
    service::{
        ClientLifecycleMode, NotificationContext, Peer, RequestContext, RunningService, SubscriptionContext,
        SubscriptionSink, serve_client_with_lifecycle,
    },
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{serve, streams};

/// See the module. It has three of everything, two on a page.
#[derive(Clone)]
pub(crate) struct Rich {
    name: &'static str,
    versions: &'static [ProtocolVersion],
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The method and the `_meta` of what was asked.
    asked: Mutex<Vec<(&'static str, Value)>>,
    /// What was subscribed to and what was taken back, in order.
    subscriptions: Mutex<Vec<String>>,
    levels: Mutex<Vec<LoggingLevel>>,
    sessions: Mutex<Vec<Peer<RoleServer>>>,
    sinks: Mutex<Vec<SubscriptionSink>>,
}

pub(crate) const OLD: &[ProtocolVersion] = &[ProtocolVersion::V_2025_11_25];
pub(crate) const NEW: &[ProtocolVersion] = ProtocolVersion::KNOWN_VERSIONS;

impl Rich {
    pub(crate) fn new(name: &'static str, versions: &'static [ProtocolVersion]) -> Self {
        Self { name, versions, seen: Arc::default() }
    }

    pub(crate) fn server(&self) -> Server {
        streams(self.name, self.clone())
    }

    pub(crate) fn asked(&self, method: &str) -> Vec<Value> {
        let asked = self.seen.asked.lock().unwrap();
        asked.iter().filter(|(asked, _)| *asked == method).map(|(_, meta)| meta.clone()).collect()
    }

    pub(crate) fn subscriptions(&self) -> Vec<String> {
        self.seen.subscriptions.lock().unwrap().clone()
    }

    pub(crate) fn levels(&self) -> Vec<LoggingLevel> {
        self.seen.levels.lock().unwrap().clone()
    }

    /// Tells everyone who is to hear it that a list or a resource has changed.
    pub(crate) async fn changed(&self, what: &str) {
        let (sessions, sinks) =
            (self.seen.sessions.lock().unwrap().clone(), self.seen.sinks.lock().unwrap().clone());
        for session in sessions {
            let _ = match what {
                "tools" => session.notify_tool_list_changed().await,
                "prompts" => session.notify_prompt_list_changed().await,
                "resources" => session.notify_resource_list_changed().await,
                uri => session.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await,
            };
        }
        for sink in sinks {
            let _ = match what {
                "tools" => sink.notify_tool_list_changed().await,
                "prompts" => sink.notify_prompt_list_changed().await,
                "resources" => sink.notify_resource_list_changed().await,
                uri => sink.notify_resource_updated(uri).await,
            };
        }
    }

    fn note(&self, method: &'static str, meta: &RequestMetaObject) {
        self.seen.asked.lock().unwrap().push((method, json!(meta)));
    }

    fn has(&self, uri: &str) -> bool {
        uri.starts_with(&format!("{}://", self.name))
    }
}

/// Which of three things are on a page, and the cursor of the next.
fn page(request: Option<PaginatedRequestParams>) -> Result<(Range<usize>, Option<String>), ErrorData> {
    match request.and_then(|request| request.cursor).as_deref() {
        None => Ok((0..2, Some("rest:2".to_owned()))),
        Some("rest:2") => Ok((2..3, None)),
        Some(other) => Err(ErrorData::invalid_params(format!("no cursor of mine: {other}"), None)),
    }
}

/// What an upstream puts into the `_meta` of its answers.
fn answer_meta(name: &str) -> MetaObject {
    serde_json::from_value(json!({ "example.com/from": name })).unwrap()
}

impl ServerHandler for Rich {
    fn get_info(&self) -> ServerConfig {
        let capabilities = json!({
            "tools": { "listChanged": true }, "prompts": { "listChanged": true }, "completions": {}, "logging": {},
            "resources": { "listChanged": true, "subscribe": true },
        });
        ServerConfig::new(serde_json::from_value(capabilities).unwrap())
            .with_instructions(format!("This is {}.", self.name))
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.versions)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.seen.sessions.lock().unwrap().push(context.peer);
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.note("tools/list", &context.meta);
        let (range, next) = page(request)?;
        let tools = ["meta", "logs", "progresses"][range].iter();
        let mut result = ListToolsResult::with_all_items(
            tools.map(|tool| Tool::new(*tool, "a tool", Arc::default())).collect(),
        );
        result.next_cursor = next;
        Ok(result)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.note("tools/call", &context.meta);
        match request.name.as_ref() {
            "logs" => {
                for level in [LoggingLevel::Info, LoggingLevel::Error] {
                    let said = LoggingMessageNotificationParam::new(
                        level,
                        json!(format!("{level:?} of {}", self.name)),
                    );
                    context.peer.notify_logging_message(said).await.unwrap();
                }
            }
            "progresses" => {
                if let Some(token) = context.meta.get_progress_token() {
                    for step in [1.0, 2.0] {
                        let mut progress = ProgressNotificationParam::new(token.clone(), step);
                        progress.total = Some(2.0);
                        progress.message = Some(format!("step of {}", self.name));
                        context.peer.notify_progress(progress).await.unwrap();
                    }
                }
            }
            _ => {}
        }
        let mut result = CallToolResult::success(vec![ContentBlock::text(json!(context.meta).to_string())]);
        result.meta = Some(answer_meta(self.name));
        Ok(result.into())
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        self.note("prompts/list", &context.meta);
        let (range, next) = page(request)?;
        let prompt = |n| Prompt::new(format!("p{n}"), Some("a prompt"), None);
        let mut result = ListPromptsResult::with_all_items(range.map(prompt).collect());
        result.next_cursor = next;
        Ok(result)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        self.note("prompts/get", &context.meta);
        if !request.name.starts_with('p') {
            return Err(ErrorData::invalid_params(format!("no prompt {}", request.name), None));
        }
        let said = format!("{} of {} with {}", request.name, self.name, json!(request.arguments));
        let mut result = GetPromptResult::new(vec![PromptMessage::new_text(Role::User, said)]);
        result.meta = Some(answer_meta(self.name));
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.note("resources/list", &context.meta);
        let (range, next) = page(request)?;
        let resource = |n| Resource::new(format!("{}://{n}", self.name), format!("r{n}"));
        let mut result = ListResourcesResult::with_all_items(range.map(resource).collect());
        result.next_cursor = next;
        Ok(result)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        self.note("resources/templates/list", &context.meta);
        let (range, next) = page(request)?;
        let template = |n| ResourceTemplate::new(format!("{}://{n}/{{id}}", self.name), format!("t{n}"));
        let mut result = ListResourceTemplatesResult::with_all_items(range.map(template).collect());
        result.next_cursor = next;
        Ok(result)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.note("resources/read", &context.meta);
        if !self.has(&request.uri) {
            return Err(ErrorData::resource_not_found(format!("{} has no such resource", self.name), None));
        }
        let mut result =
            ReadResourceResult::new(vec![ResourceContents::text(format!("in {}", request.uri), request.uri)]);
        result.meta = Some(answer_meta(self.name));
        Ok(result.into())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !self.has(&request.uri) {
            return Err(ErrorData::resource_not_found(format!("{} has no such resource", self.name), None));
        }
        self.seen.subscriptions.lock().unwrap().push(format!("+{}", request.uri));
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.seen.subscriptions.lock().unwrap().push(format!("-{}", request.uri));
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        let mut accepted = requested.clone();
        if let Some(uris) = &mut accepted.resource_subscriptions {
            uris.retain(|uri| self.has(uri));
        }
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let uris = context.accepted().resource_subscriptions.clone().unwrap_or_default();
        self.seen.sinks.lock().unwrap().push(context.sink().clone());
        self.seen.subscriptions.lock().unwrap().extend(uris.iter().map(|uri| format!("+{uri}")));
        context.cancelled().await;
        self.seen.subscriptions.lock().unwrap().extend(uris.iter().map(|uri| format!("-{uri}")));
        Ok(())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.note("completion/complete", &context.meta);
        let of = match &request.r#ref {
            Reference::Prompt(prompt) => prompt.name.clone(),
            Reference::Resource(template) if self.has(&template.uri) => template.uri.clone(),
            _ => return Err(ErrorData::invalid_params("no such template", None)),
        };
        let values =
            vec![format!("{}={} of {of} in {}", request.argument.name, request.argument.value, self.name)];
        Ok(CompleteResult::new(CompletionInfo::new(values).unwrap()))
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.seen.levels.lock().unwrap().push(request.level);
        Ok(())
    }
}

/// A caller without tasks, who notes what it hears.
#[derive(Clone)]
pub(crate) struct Hears(mpsc::UnboundedSender<String>);

impl Hears {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<String>) {
        let (sender, heard) = mpsc::unbounded_channel();
        (Self(sender), heard)
    }
}

impl ClientHandler for Hears {
    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        let _ = self.0.send("tools".to_owned());
    }

    async fn on_prompt_list_changed(&self, _context: NotificationContext<RoleClient>) {
        let _ = self.0.send("prompts".to_owned());
    }

    async fn on_resource_list_changed(&self, _context: NotificationContext<RoleClient>) {
        let _ = self.0.send("resources".to_owned());
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let _ = self.0.send(params.uri);
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let _ = self.0.send(params.data.as_str().unwrap_or_default().to_owned());
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let said = params.message.unwrap_or_default();
        let total = params.total.map(|total| format!("/{total}")).unwrap_or_default();
        let _ = self.0.send(format!("{}{total} {said}", params.progress));
    }
}

/// A connection of such a caller, and what it hears.
pub(crate) struct Caller {
    pub(crate) peer: Peer<RoleClient>,
    pub(crate) heard: mpsc::UnboundedReceiver<String>,
    _running: RunningService<RoleClient, Hears>,
}

impl Caller {
    /// Speaks the newest of these versions with the gateway.
    pub(crate) async fn new(server: &TaskServer<Gateway>, versions: &[ProtocolVersion]) -> Self {
        let (hears, heard) = Hears::new();
        let lifecycle = match versions.contains(&ProtocolVersion::V_2026_07_28) {
            true => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
            false => ClientLifecycleMode::Initialize,
        };
        let running = serve_client_with_lifecycle(hears, serve(server.clone()), lifecycle).await.unwrap();
        Self { peer: running.peer().clone(), heard, _running: running }
    }

    pub(crate) async fn next(&mut self) -> String {
        self.heard.recv().await.unwrap()
    }
}

/// A gateway in front of several upstreams.
pub(crate) async fn in_front_of(upstreams: Vec<Upstream>, options: GatewayOptions) -> TaskServer<Gateway> {
    let store = Arc::new(MemoryStore::new(SystemClock));
    Gateway::serve(upstreams, options, store, Config::default()).await.unwrap()
}
