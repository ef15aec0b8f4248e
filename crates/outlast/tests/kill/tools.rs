//! The tools of the server that is killed. Each tells in its result whose call it was and what it was answered.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use outlast::{Elicited, Recovery, TaskContext, TaskTool};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult,
        JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::support::handler::form;

/// The status message of work that is behind its gate.
pub(crate) const AT_WORK: &str = "at work";

/// The tools, and whether they may run again.
const TOOLS: [(&str, Recovery); 12] = [
    ("quick", Recovery::Rerun),
    ("tool_error", Recovery::Rerun),
    ("fails", Recovery::Rerun),
    ("panics", Recovery::Rerun),
    ("works", Recovery::Rerun),
    ("works_once", Recovery::Fail),
    ("cleans", Recovery::Rerun),
    ("asks", Recovery::Rerun),
    ("asks_then_works", Recovery::Rerun),
    ("asks_two", Recovery::Rerun),
    ("rounds", Recovery::Fail),
    ("rounds_then_work", Recovery::Rerun),
];

pub(crate) fn recovery(tool: &str) -> Recovery {
    TOOLS.iter().find(|(name, _)| *name == tool).unwrap().1
}

pub(crate) fn policies() -> impl Iterator<Item = (&'static str, TaskTool)> {
    TOOLS.into_iter().map(|(name, recovery)| (name, TaskTool::required().recovery(recovery)))
}

/// What the test and the tools share: a folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn of(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    fn gate(&self, label: &str) -> PathBuf {
        self.0.join(format!("gate-{label}"))
    }

    /// Lets the work of one task through.
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

    /// One more run of a tool: an effect outside of the server, which no crash takes back.
    fn note_run(&self, label: &str) {
        let mut runs = OpenOptions::new().append(true).create(true).open(self.0.join("runs")).unwrap();
        runs.write_all(format!("{label}\n").as_bytes()).unwrap();
    }

    /// How often the tool of each task was run.
    pub(crate) fn runs(&self) -> BTreeMap<String, u32> {
        let mut runs = BTreeMap::new();
        for label in std::fs::read_to_string(self.0.join("runs")).unwrap_or_default().lines() {
            *runs.entry(label.to_owned()).or_default() += 1;
        }
        runs
    }
}

/// The handler of the server.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    pub(crate) folder: Folder,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool =
            |name| Tool::new(name, "is killed", JsonObject::from_iter([("type".into(), "object".into())]));
        Ok(ListToolsResult::with_all_items(TOOLS.iter().map(|(name, _)| tool(*name)).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let task = TaskContext::from_request(&context);
        let arguments = request.arguments.clone().unwrap_or_default();
        let label = arguments["label"].as_str().unwrap();
        self.folder.note_run(label);
        match &*request.name {
            "quick" => Ok(text(format!("{label} quick"))),
            "tool_error" => {
                Ok(CallToolResult::error(vec![ContentBlock::text(format!("{label} wrong"))]).into())
            }
            "fails" => {
                Err(ErrorData::invalid_params(format!("{label} fails"), Some(json!({"label": label}))))
            }
            "panics" => panic!("{label} panics on purpose"),
            "works" | "works_once" => {
                self.work(label, &task).await;
                Ok(text(format!("{label} worked")))
            }
            "cleans" => tokio::select! {
                biased;
                () = task.cancelled() => {
                    self.work(label, &task).await;
                    Err(task.cancel_error())
                }
                () = self.work(label, &task) => Ok(text(format!("{label} worked"))),
            },
            "asks" => Ok(text(format!("{label} told {}", who(&task).await?))),
            "asks_then_works" => {
                let who = who(&task).await?;
                self.work(label, &task).await;
                Ok(text(format!("{label} told {who}")))
            }
            "asks_two" => {
                let answers = task.ask([("first", form("First?")), ("second", form("Second?"))]).await?;
                let [first, second] = ["first", "second"].map(|key| name(&answers[key]));
                Ok(text(format!("{label} told {first} {second}")))
            }
            tool @ ("rounds" | "rounds_then_work") => {
                let answer = |key| request.input_responses.as_ref()?.get(key).map(name);
                match (request.request_state.as_deref(), answer("a"), answer("b")) {
                    (Some(a), _, Some(b)) => {
                        if tool == "rounds_then_work" {
                            self.work(label, &task).await;
                        }
                        Ok(text(format!("{label} told {a} {b}")))
                    }
                    (_, Some(a), _) => Ok(round("b", a)),
                    _ => Ok(round("a", "begun".to_owned())),
                }
            }
            other => Err(ErrorData::invalid_params(format!("there is no tool '{other}'"), None)),
        }
    }
}

impl Tools {
    async fn work(&self, label: &str, task: &TaskContext) {
        task.status(AT_WORK);
        self.folder.pass(label).await;
    }
}

async fn who(task: &TaskContext) -> Result<String, ErrorData> {
    #[derive(Deserialize, rmcp::schemars::JsonSchema)]
    #[schemars(crate = "rmcp::schemars")]
    struct Name {
        name: String,
    }
    match task.elicit("who", "Who?").await? {
        Elicited::Accept(Name { name }) => Ok(name),
        Elicited::Decline | Elicited::Cancel => {
            Err(ErrorData::internal_error("everybody answers here", None))
        }
    }
}

fn name(answer: &Value) -> String {
    answer["content"]["name"].as_str().unwrap().to_owned()
}

/// A round that asks one question; what was answered before travels in the request state.
fn round(key: &str, state: String) -> CallToolResponse {
    let question = serde_json::from_value(form("Next?")).unwrap();
    InputRequiredResult::new(Some(BTreeMap::from([(key.to_owned(), question)])), Some(state)).into()
}

fn text(text: String) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}
