//! How a [`TaskServer`] is put together.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use outlast_core::{Filter, InvalidSpec, Owner, Status, Store, ToolVersion};
use rmcp::{
    RoleServer, ServerHandler,
    model::{ClientJsonRpcMessage, Extensions, ServerJsonRpcMessage, ServerResult, Tool},
    service::serve_directly_with_ct,
    transport::OneshotTransport,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    OwnerFn, Shared, TaskRequestFn, TaskServer, TaskTool,
    attempt::{HandlerRunner, peer_info},
    carry::Carry,
    default_owner,
    push::Feed,
    repeats,
};
use outlast_runtime::{Config, Runtime};

/// Puts a [`TaskServer`] together; made by [`TaskServer::builder`].
#[must_use]
pub struct TaskServerBuilder<H> {
    handler: H,
    store: Option<Arc<dyn Store>>,
    tools: HashMap<String, TaskTool>,
    default_tool: TaskTool,
    config: Config,
    owner: Arc<OwnerFn>,
    carries: Vec<Carry>,
    on_task_request: Option<Arc<TaskRequestFn>>,
    lists_all: bool,
}

/// Why a server cannot be put together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No store was given.
    #[error("a task server needs a store; call `store` with one, for example a `SqliteStore`")]
    NoStore,
    /// A tool's terms cannot be kept.
    #[error("the tool '{tool}' is set up wrongly")]
    Tool {
        /// The tool.
        tool: String,
        /// What is wrong.
        source: InvalidSpec,
    },
    /// A name was given terms that the handler does not list.
    #[error("the handler lists no tool '{0}'; check the name given to `tool`")]
    UnknownTool(String),
    /// A setting cannot be kept.
    #[error("{0}")]
    Config(String),
}

impl<H: ServerHandler> TaskServerBuilder<H> {
    pub(super) fn new(handler: H) -> Self {
        Self {
            handler,
            store: None,
            tools: HashMap::new(),
            default_tool: TaskTool::default(),
            config: Config::default(),
            owner: Arc::new(default_owner),
            carries: Vec::new(),
            on_task_request: None,
            lists_all: true,
        }
    }

    /// Where tasks are kept.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Where tasks are kept, for a store that is shared already.
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// How calls of the tool `name` run.
    pub fn tool(mut self, name: impl Into<String>, tool: TaskTool) -> Self {
        self.tools.insert(name.into(), tool);
        self
    }

    /// How calls of every other tool run. By default a call that takes longer than three seconds becomes a task.
    pub fn default_tool(mut self, tool: TaskTool) -> Self {
        self.default_tool = tool;
        self
    }

    /// The handler takes calls of tools that it does not list, for now or ever: one that stands for other servers cannot
    /// list the tools of those that are down. So the unfinished tasks in the store are taken up whether or not their tool is
    /// listed, and those that another process begins later once their owner asks this one about them.
    pub fn unlisted_tools(mut self) -> Self {
        self.lists_all = false;
        self
    }

    /// Limits and paces.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Whose request it is, where [`default_owner`] does not know.
    pub fn owner(mut self, owner: impl Fn(&Extensions) -> Owner + Send + Sync + 'static) -> Self {
        self.owner = Arc::new(owner);
        self
    }

    /// Carries part of a request's context along with its task: `capture` takes it from the request's extensions (where
    /// [`http::request::Parts`] is), and `restore` puts it into the extensions that the tool sees, on every attempt and
    /// in synchronous calls too. It is stored with the task, so it must hold no credential.
    ///
    /// ```
    /// # use outlast::TaskServer;
    /// # use rmcp::model::Extensions;
    /// # #[derive(Clone)] struct MyHandler;
    /// # impl rmcp::ServerHandler for MyHandler {}
    /// #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// struct Tenant(String);
    ///
    /// let builder = TaskServer::builder(MyHandler).carry(
    ///     |request: &Extensions| request.get::<http::request::Parts>()?.extensions.get::<Tenant>().cloned(),
    ///     // A `#[tool]` function takes it as `Extension<Tenant>`.
    ///     |tenant: Tenant, seen: &mut Extensions| drop(seen.insert(tenant)),
    /// );
    /// # let _ = builder;
    /// ```
    pub fn carry<T, C, R>(mut self, capture: C, restore: R) -> Self
    where
        T: Serialize + DeserializeOwned,
        C: Fn(&Extensions) -> Option<T> + Send + Sync + 'static,
        R: Fn(T, &mut Extensions) + Send + Sync + 'static,
    {
        self.carries.push(Carry::new(capture, restore));
        self
    }

    /// Is told of each `tasks/get`, `tasks/update` and `tasks/cancel` before it is carried out: its extensions, and what
    /// [`TaskContext::step_id`](super::TaskContext::step_id) of the empty key is in the task that it names, which may be
    /// somebody else's or none. For a tool that needs of its task's owner what must not be kept, such as a credential: each
    /// request brings it anew.
    pub fn on_task_request(mut self, told: impl Fn(&Extensions, &str) + Send + Sync + 'static) -> Self {
        self.on_task_request = Some(Arc::new(told));
        self
    }

    /// Starts the server's runtime, which first takes up what an earlier process left.
    ///
    /// # Errors
    /// [`BuildError`] says what is set up wrongly.
    pub async fn build(self) -> Result<TaskServer<H>, BuildError> {
        let store = self.store.ok_or(BuildError::NoStore)?;
        for (name, tool) in &self.tools {
            tool.check(name).map_err(|source| BuildError::Tool { tool: name.clone(), source })?;
        }
        let default = |source| BuildError::Tool { tool: "every other tool".to_owned(), source };
        self.default_tool.check("default").map_err(default)?;

        let handler = Arc::new(self.handler);
        let listed = list_tools(&handler).await;
        if let Some(listed) = &listed {
            let names: BTreeSet<&str> = listed.iter().map(|tool| &*tool.name).collect();
            if let Some(unknown) = self.tools.keys().find(|name| !names.contains(name.as_str())) {
                return Err(BuildError::UnknownTool(unknown.clone()));
            }
        }
        let carries: Arc<[Carry]> = self.carries.into();
        let runner = HandlerRunner { handler: handler.clone(), carries: carries.clone() };
        let left = if self.lists_all { BTreeSet::new() } else { unfinished_tools(&*store).await };
        let runtime = Runtime::start(store, self.config, Arc::new(runner)).map_err(BuildError::Config)?;
        let catalog: HashMap<_, _> = listed
            .unwrap_or_default()
            .into_iter()
            .map(|tool| (tool.name.clone().into_owned(), tool))
            .collect();
        self.tools.keys().chain(catalog.keys()).for_each(|name| outlast_core::tell_tool_apart(name));
        for name in self.tools.keys().chain(catalog.keys()).chain(&left) {
            let version = self.tools.get(name).unwrap_or(&self.default_tool).version_name();
            runtime.serve(ToolVersion::new(name.clone(), version));
        }
        let feed = Arc::new(Feed::default());
        tokio::spawn(feed.clone().follow(runtime.hints()));
        Ok(TaskServer(Arc::new(Shared {
            handler,
            runtime,
            repeats: repeats::declared(&self.default_tool, &self.tools),
            tools: self.tools,
            default_tool: self.default_tool,
            catalog: Mutex::new(catalog),
            owner: self.owner,
            carries,
            on_task_request: self.on_task_request,
            lists_all: self.lists_all,
            feed,
        })))
    }
}

/// The tools of the tasks that an earlier process left.
async fn unfinished_tools(store: &dyn Store) -> BTreeSet<String> {
    const PAGE: u32 = 500;
    let mut tools = BTreeSet::new();
    for status in [Status::Working, Status::InputRequired] {
        let mut after = None;
        loop {
            let filter = Filter { status: Some(status), ..Filter::default() };
            match store.list(filter, after, PAGE).await {
                Ok(page) => {
                    tools.extend(page.tasks.iter().map(|task| task.spec.tool.clone()));
                    after = page.next;
                }
                Err(error) => {
                    tracing::warn!(%error, "the unfinished tasks cannot be listed; those of tools that are not listed wait");
                    break;
                }
            }
            if after.is_none() {
                break;
            }
        }
    }
    tools
}

/// The handler's tools, asked for as a client would; `None` when it will not tell without a caller.
pub(super) async fn list_tools<H: ServerHandler>(handler: &Arc<H>) -> Option<Vec<Tool>> {
    const PAGES: usize = 100;
    const PATIENCE: Duration = Duration::from_secs(5);
    let mut tools = Vec::new();
    let mut cursor = None;
    for _ in 0..PAGES {
        let page = tokio::time::timeout(PATIENCE, list_page(handler, cursor)).await.ok()??;
        tools.extend(page.tools);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Some(tools);
        }
    }
    None
}

async fn list_page<H: ServerHandler>(
    handler: &Arc<H>,
    cursor: Option<String>,
) -> Option<rmcp::model::ListToolsResult> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "outlast", "version": env!("CARGO_PKG_VERSION")},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut params = json!({"_meta": meta});
    if let Some(cursor) = cursor {
        params["cursor"] = cursor.into();
    }
    let request: ClientJsonRpcMessage =
        serde_json::from_value(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}))
            .ok()?;
    let (transport, mut messages) = OneshotTransport::<RoleServer>::new(request);
    let service =
        serve_directly_with_ct(handler.clone(), transport, Some(peer_info()), CancellationToken::new());
    tokio::spawn(service.waiting());
    while let Some(message) = messages.recv().await {
        match message {
            ServerJsonRpcMessage::Response(response) => match response.result {
                ServerResult::ListToolsResult(page) => return Some(page),
                _ => return None,
            },
            ServerJsonRpcMessage::Error(_) => return None,
            _ => {}
        }
    }
    None
}
