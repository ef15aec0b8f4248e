//! The servers behind the gateway: one set of tools, without tasks and with them. Each tells in its result whose call it was
//! and what it was answered.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::OpenOptions,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use outlast::{Config, Recovery, Start, TaskContext, TaskServer, TaskTool};
use outlast_sqlite::SqliteStore;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject, ListToolsResult,
        PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ServerCapabilities, ServerConfig,
        Tool, ToolAnnotations,
    },
    service::{RequestContext, ServiceExt},
    transport::{
        stdio,
        streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService},
    },
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::sleep};

use crate::process::LISTENING;

/// What work says that is behind its gate.
pub(crate) const AT_WORK: &str = "at work";

/// Those whose name ends in `once` must not run twice.
const TOOLS: [&str; 10] = [
    "quick",
    "tool_error",
    "fails",
    "works",
    "works_once",
    "late_once",
    "asks",
    "asks_once",
    "asks_then_works",
    "cleans",
];

/// What the test and the upstreams share: a folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn of(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    fn gate(&self, label: &str) -> PathBuf {
        self.0.join(format!("gate-{label}"))
    }

    /// Lets the work of one call through.
    pub(crate) fn open(&self, label: &str) {
        std::fs::write(self.gate(label), "").unwrap();
    }

    /// Lets all work through, now and later.
    pub(crate) fn open_all(&self) {
        self.open("all");
    }

    async fn pass(&self, label: &str) {
        while !self.gate(label).exists() && !self.gate("all").exists() {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// One more call that is carried out: what no crash takes back, of the upstream neither.
    fn note_call(&self, label: &str) {
        let mut calls = OpenOptions::new().append(true).create(true).open(self.0.join("calls")).unwrap();
        // In one piece, since several write.
        calls.write_all(format!("{label}\n").as_bytes()).unwrap();
        calls.sync_data().unwrap();
    }

    /// How often each call was carried out.
    pub(crate) fn calls(&self) -> BTreeMap<String, u32> {
        let mut calls = BTreeMap::new();
        for label in std::fs::read_to_string(self.0.join("calls")).unwrap_or_default().lines() {
            *calls.entry(label.to_owned()).or_default() += 1;
        }
        calls
    }
}

/// What an upstream process does until it is killed, or its input ends.
pub(crate) fn serve(directory: &Path, kind: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let tools = Tools { folder: Folder::of(directory), has_tasks: kind == "tasks" };
    match kind {
        "piped" => {
            // The test harness has left a line unfinished.
            println!();
            runtime.block_on(async { tools.serve(stdio()).await.unwrap().waiting().await.unwrap() });
            std::process::exit(0);
        }
        "plain" => runtime.block_on(serve_plain(tools)),
        _ => runtime.block_on(serve_tasks(tools, directory)),
    }
}

/// It must not outlive the test, however that ends.
fn end_with_the_test() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}

async fn listen() -> TcpListener {
    end_with_the_test();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // The test harness may have left a line unfinished.
    print!("\n{LISTENING}http://{}/mcp\n", listener.local_addr().unwrap());
    std::io::stdout().flush().unwrap();
    listener
}

async fn serve_plain(tools: Tools) {
    let config = StreamableHttpServerConfig::default().with_legacy_session_mode(true);
    let service = StreamableHttpService::new(
        move || Ok(tools.clone()),
        Arc::<rmcp::transport::streamable_http_server::session::local::LocalSessionManager>::default(),
        config,
    );
    let router = axum::Router::new().route_service("/mcp", service);
    axum::serve(listen().await, router).await.unwrap();
}

async fn serve_tasks(tools: Tools, directory: &Path) {
    let mut config = Config::default();
    config.max_running = 1_000;
    config.max_running_per_owner = 1_000;
    config.max_open_per_owner = 10_000;
    let store = SqliteStore::open(directory.join("upstream.db")).unwrap();
    let mut server = TaskServer::builder(tools).store(store).config(config);
    for tool in TOOLS {
        let recovery = if is_once(tool) { Recovery::Fail } else { Recovery::Rerun };
        server = server.tool(tool, TaskTool::optional().start(Start::Now).recovery(recovery));
    }
    let server = server.build().await.unwrap();
    outlast::http::serve(listen().await, server, std::future::pending()).await.unwrap();
}

fn is_once(tool: &str) -> bool {
    tool.ends_with("once")
}

#[derive(Debug, Clone)]
struct Tools {
    folder: Folder,
    has_tasks: bool,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        if self.has_tasks {
            Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
        } else {
            Cow::Borrowed(&[ProtocolVersion::V_2025_11_25])
        }
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = Arc::new(JsonObject::from_iter([("type".into(), "object".into())]));
        let tool = |name| {
            let tool = Tool::new(name, "is behind a gateway that is killed", schema.clone());
            let annotations = ToolAnnotations::default();
            // Either is enough to be called again.
            tool.with_annotations(match name {
                "works" => annotations.idempotent(true),
                _ => annotations.read_only(!is_once(name)),
            })
        };
        Ok(ListToolsResult::with_all_items(TOOLS.map(tool).to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.clone().unwrap_or_default();
        let label = arguments["label"].as_str().unwrap();
        self.folder.note_call(label);
        let call = Call { tools: self, label, task: TaskContext::from_request(&context), context: &context };
        match &*request.name {
            "quick" => Ok(text(format!("{label} quick"))),
            "tool_error" => {
                Ok(CallToolResult::error(vec![ContentBlock::text(format!("{label} wrong"))]).into())
            }
            "fails" => {
                Err(ErrorData::invalid_params(format!("{label} fails"), Some(json!({"label": label}))))
            }
            "works" | "works_once" | "late_once" => {
                call.work().await?;
                Ok(text(format!("{label} worked")))
            }
            "asks" | "asks_once" => Ok(text(format!("{label} told {}", call.who().await?))),
            "asks_then_works" => {
                let who = call.who().await?;
                call.work().await?;
                Ok(text(format!("{label} told {who}")))
            }
            "cleans" => tokio::select! {
                biased;
                () = call.task.cancelled() => {
                    call.work().await?;
                    Err(call.task.cancel_error())
                }
                worked = call.work() => worked.map(|()| text(format!("{label} worked"))),
            },
            other => Err(ErrorData::invalid_params(format!("there is no tool '{other}'"), None)),
        }
    }
}

struct Call<'c> {
    tools: &'c Tools,
    label: &'c str,
    task: TaskContext,
    context: &'c RequestContext<RoleServer>,
}

impl Call<'_> {
    /// Says that it is at work, and waits for its gate. Without tasks it hears of a cancel.
    async fn work(&self) -> Result<(), ErrorData> {
        if self.task.is_task() {
            self.task.status(AT_WORK);
            self.tools.folder.pass(self.label).await;
            return Ok(());
        }
        if let Some(token) = self.context.meta.get_progress_token() {
            let mut progress = ProgressNotificationParam::new(token, 1.0);
            progress.message = Some(AT_WORK.into());
            // Whoever called may be gone.
            let _ = self.context.peer.notify_progress(progress).await;
        }
        tokio::select! {
            () = self.tools.folder.pass(self.label) => Ok(()),
            () = self.context.ct.cancelled() => Err(ErrorData::internal_error("cancelled", None)),
        }
    }

    async fn who(&self) -> Result<String, ErrorData> {
        let question = json!({
            "mode": "form", "message": format!("Who is {}?", self.label),
            "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        });
        if self.task.is_task() {
            let question = json!({"method": "elicitation/create", "params": question});
            let answers = self.task.ask([("who", question)]).await?;
            return name(&answers["who"]);
        }
        let question = serde_json::from_value(question).unwrap();
        let answer = self.context.peer.create_elicitation(question).await;
        let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        name(&json!(answer))
    }
}

fn name(answer: &Value) -> Result<String, ErrorData> {
    let name = answer["content"]["name"].as_str().map(str::to_owned);
    name.ok_or_else(|| ErrorData::internal_error("everybody answers here", None))
}

fn text(text: String) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}
