//! The demo's tools: an ordinary SDK handler. What makes their calls tasks is said where the server is put together;
//! here a tool only takes a [`TaskContext`], which works in a task and in a plain call.
//!
//! All of them may run again after a crash. The first ones change nothing; the others are written so that doing it
//! twice is doing it once, and say so in their annotations.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use outlast::{AskError, Elicited, StepError, TaskContext};
use rmcp::{
    ErrorData, Json, ServerHandler,
    handler::server::{tool::IntoCallToolResult, wrapper::Parameters},
    model::{
        CallToolResponse, CallToolResult, ContentBlock, ElicitationSchema, Implementation,
        ServerCapabilities, ServerConfig,
    },
    schemars::{self, JsonSchema},
    tool, tool_handler, tool_router,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::{
    every_field,
    files::{self, Folder, Hashed, Skipped},
    own::{OWN, OwnFiles},
    report::{self, Format, Report},
};

/// The handler. It holds nothing of a task: what that needs to know is in its arguments and its journal.
#[derive(Debug, Clone)]
pub(super) struct DemoTools {
    own: Arc<OwnFiles>,
}

#[tool_router]
impl DemoTools {
    /// Computes the SHA-256 of every file in a folder, and one over all of them. Says how far it is, and stops between
    /// two reads when it is cancelled.
    #[tool(annotations(title = "Hash a folder", read_only_hint = true, open_world_hint = false))]
    async fn hash_folder(
        &self,
        Parameters(HashFolder { path, recursive }): Parameters<HashFolder>,
        task: TaskContext,
    ) -> Result<Json<Folder>, Failure> {
        // Reading may be dropped anywhere.
        tokio::select! {
            hashed = self.hash(&path, recursive, None, &task) => {
                let hashed = hashed?;
                // This is where a caller learns it: other tools take a folder by its whole real path alone.
                let folder = tokio::fs::canonicalize(&path).await.unwrap_or(path);
                Ok(Json(Folder { folder, ..hashed }))
            }
            () = task.cancelled() => Err(task.cancel_error().into()),
        }
    }

    /// Deletes files in a folder, after a person confirmed the list of them. Only regular files directly in the folder
    /// are deleted; links are not followed.
    #[tool(annotations(
        title = "Delete files",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn delete_files(
        &self,
        Parameters(DeleteFiles { folder, names }): Parameters<DeleteFiles>,
        task: TaskContext,
    ) -> Result<Json<Deletion>, Failure> {
        files::check_real_folder(&folder)?;
        if names.is_empty() {
            return Err("name at least one file".into());
        }
        if let Some(name) = names.iter().find(|name| !files::is_plain_name(name)) {
            return Err(format!("{name:?} is not the name of a file directly in the folder").into());
        }
        // The question says just what was asked for, so that an answer from before a crash is still about the same.
        let question = format!("Delete these files in {} for good?\n{}", folder.display(), names.join("\n"));
        let answer = task.elicit::<Confirmation>("confirm", &question).await?;
        let agreed = matches!(answer, Elicited::Accept(Confirmation { confirm: true }));

        let mut deletion = Deletion { folder: folder.clone(), deleted: Vec::new(), skipped: Vec::new() };
        for (done, name) in names.iter().enumerate() {
            // What is gone is gone: a cancel now ends with a result that says how far it came.
            let outcome = if !agreed {
                Err("that was not confirmed".to_owned())
            } else if task.is_cancelled() {
                Err("the work was cancelled before".to_owned())
            } else {
                let (own, folder, name) = (self.own.clone(), folder.clone(), name.clone());
                blocking(move || {
                    if own.contain(&folder.join(&name)) {
                        Err(OWN.to_owned())
                    } else {
                        files::delete(&folder, &name)
                    }
                })
                .await?
            };
            match outcome {
                Ok(()) => deletion.deleted.push(name.clone()),
                Err(reason) => deletion.skipped.push(Skipped { name: name.clone(), reason }),
            }
            progress(&task, done + 1, names.len(), name).await;
        }
        Ok(Json(deletion))
    }

    /// Hashes the files of a folder, asks for a title and a format in one go, and writes a report into a new file. The
    /// same call with the same answers finds its report when it has been written already.
    #[tool(annotations(
        title = "Write a report",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn make_report(
        &self,
        Parameters(MakeReport { folder, file }): Parameters<MakeReport>,
        task: TaskContext,
    ) -> Result<Json<Report>, Failure> {
        if self.own.contain(&file) {
            return Err(format!("{} is left as it is: {OWN}", file.display()).into());
        }
        let target = file.clone();
        blocking(move || report::check(&target)).await??;
        let hashed = tokio::select! {
            hashed = self.hash(&folder, false, Some(&file), &task) => hashed?,
            () = task.cancelled() => return Err(task.cancel_error().into()),
        };
        let questions = [
            ("title", form::<Title>("What is the title of the report?")?),
            ("format", form::<Layout>("In which format do you want it?")?),
        ];
        let answers = task.ask(questions).await?;
        let (Some(Title { title }), Some(Layout { format })) =
            (accepted(&answers["title"])?, accepted(&answers["format"])?)
        else {
            return Err("no report was written, because a question was declined".into());
        };
        Ok(Json(blocking(move || report::write(&file, &title, format, &hashed)).await??))
    }

    /// Asks for a form with a field of each kind, after a web page to open when one is given, and gives back what was
    /// entered. It does nothing with it.
    #[tool(annotations(title = "Fill in a form", read_only_hint = true, open_world_hint = false))]
    async fn fill_form(
        &self,
        Parameters(FillForm { page }): Parameters<FillForm>,
        task: TaskContext,
    ) -> Result<Json<Entered>, Failure> {
        if let Some(page) = page {
            let opened = task.elicit_url("page", "Please read this page first.", &page).await?;
            if !matches!(opened, Elicited::Accept(())) {
                return Err("nothing was entered, because the page was not read".into());
            }
        }
        task.status("one form to fill in");
        let answers = task.ask([("form", every_field::question("Please book a table."))]).await?;
        match accepted(&answers["form"])? {
            Some(entered) => Ok(Json(Entered { entered })),
            None => Err("nothing was entered".into()),
        }
    }

    /// Counts the seconds, says each one, and stops at once when it is cancelled.
    #[tool(annotations(title = "Count", read_only_hint = true, open_world_hint = false))]
    async fn count(
        &self,
        Parameters(Count { seconds }): Parameters<Count>,
        task: TaskContext,
    ) -> Result<Json<Counted>, Failure> {
        if !(1..=3_600).contains(&seconds) {
            return Err("seconds must be from 1 to 3600".into());
        }
        for second in 1..=seconds {
            tokio::select! {
                () = sleep(Duration::from_secs(1)) => {}
                () = task.cancelled() => return Err(task.cancel_error().into()),
            }
            task.progress(second.into(), Some(seconds.into()), Some("counting")).await;
        }
        Ok(Json(Counted { counted: seconds }))
    }

    /// Fails: with a tool error, which completes a task, or with an error of the protocol, which fails it. The latter in
    /// two steps, one that works and one that fails until the file `until` exists, so that the failed task can be started
    /// again and go on from there.
    #[tool(annotations(title = "Fail", read_only_hint = true, open_world_hint = false))]
    async fn failing_job(
        &self,
        Parameters(FailingJob { kind, until }): Parameters<FailingJob>,
        task: TaskContext,
    ) -> Result<String, Failure> {
        if let FailureKind::Tool = kind {
            return Err("this job always fails".into());
        }
        let ticket: String = task.step("prepare", || async { ticket() }).await?;
        let deliver = || async {
            match &until {
                Some(file) if tokio::fs::try_exists(file).await? => Ok(()),
                Some(file) => Err(StepError::last(format!("there is no file {}", file.display()))),
                None => Err(StepError::last("this job always ends in a protocol error")),
            }
        };
        task.step("deliver", deliver).await?;
        Ok(format!("delivered with the ticket {ticket}"))
    }

    /// Panics, as a tool with a bug does. The task fails; the server goes on.
    #[tool(annotations(title = "Panic", read_only_hint = true, open_world_hint = false))]
    async fn panic_job(&self) -> String {
        panic!("this job always panics")
    }
}

impl DemoTools {
    /// Tools that leave the server's `own` files alone.
    pub(super) fn new(own: OwnFiles) -> Self {
        Self { own: Arc::new(own) }
    }

    /// The names of the tools.
    pub(super) fn names() -> Vec<String> {
        Self::tool_router().list_all().into_iter().map(|tool| tool.name.into_owned()).collect()
    }

    /// Hashes the files of `folder`, but for `except`, and says after each how far it is.
    async fn hash(
        &self,
        folder: &Path,
        recursive: bool,
        except: Option<&Path>,
        task: &TaskContext,
    ) -> Result<Folder, Failure> {
        let (own, listing) = (self.own.clone(), folder.to_owned());
        let except = except.and_then(|file| std::path::absolute(file).ok());
        let (left, listed) = blocking(move || {
            let mut listed = files::list(&listing, recursive)?;
            listed.retain(|file| except.is_none() || std::path::absolute(file).ok() != except);
            Ok::<_, String>(listed.into_iter().partition::<Vec<_>, _>(|file| own.contain(file)))
        })
        .await??;
        let name = |file: &Path| file.strip_prefix(folder).unwrap_or(file).to_string_lossy().into_owned();
        let mut skipped: Vec<_> =
            left.iter().map(|file| Skipped { name: name(file), reason: OWN.to_owned() }).collect();
        let (mut files, mut to_read) = (Vec::with_capacity(listed.len()), listed.len());
        for file in &listed {
            match files::hash(&name(file), file).await {
                Ok(hashed) => files.push(hashed),
                Err(error) => {
                    to_read -= 1;
                    skipped.push(Skipped { name: name(file), reason: error.to_string() });
                }
            }
            if let Some(Hashed { name, .. }) = files.last() {
                progress(task, files.len(), to_read, name).await;
            }
        }
        let (total_bytes, sha256) = (files.iter().map(|file| file.bytes).sum(), files::hash_listing(&files));
        Ok(Folder { folder: folder.to_owned(), files, skipped, total_bytes, sha256 })
    }
}

#[tool_handler]
impl ServerHandler for DemoTools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("outlast-demo", env!("CARGO_PKG_VERSION")))
            .with_instructions("Tools on the files of this machine, whose calls become durable tasks.")
    }
}

#[derive(Deserialize, JsonSchema)]
struct HashFolder {
    /// The folder; a relative path begins where the server runs.
    path: PathBuf,
    /// Whether to go into the folders in it too.
    #[serde(default)]
    recursive: bool,
}

#[derive(Deserialize, JsonSchema)]
struct DeleteFiles {
    /// The folder, by its whole real path.
    folder: PathBuf,
    /// The names of the files in it.
    names: Vec<String>,
}

#[derive(Deserialize, JsonSchema)]
struct Confirmation {
    /// Whether to delete them.
    confirm: bool,
}

/// What was deleted and what was not.
#[derive(Serialize, JsonSchema)]
struct Deletion {
    /// The folder.
    folder: PathBuf,
    /// The files that are gone.
    deleted: Vec<String>,
    /// The files that it did nothing with.
    skipped: Vec<Skipped>,
}

#[derive(Deserialize, JsonSchema)]
struct MakeReport {
    /// The folder to report on; a relative path begins where the server runs.
    folder: PathBuf,
    /// The file to write; one that exists is left as it is.
    file: PathBuf,
}

#[derive(Deserialize, JsonSchema)]
struct Title {
    /// What stands above the report.
    title: String,
}

#[derive(Deserialize, JsonSchema)]
struct Layout {
    format: Format,
}

#[derive(Deserialize, JsonSchema)]
struct FillForm {
    /// The address of a web page that is to be read first.
    page: Option<String>,
}

/// What was entered.
#[derive(Serialize, JsonSchema)]
struct Entered {
    /// The fields by their names.
    entered: Map<String, Value>,
}

#[derive(Deserialize, JsonSchema)]
struct Count {
    /// How long to count, from 1 to 3600.
    seconds: u32,
}

/// How far it counted.
#[derive(Serialize, JsonSchema)]
struct Counted {
    /// The last number.
    counted: u32,
}

#[derive(Deserialize, JsonSchema)]
struct FailingJob {
    #[serde(default)]
    kind: FailureKind,
    /// The file without which a job with an error of the protocol fails; none for one that always does.
    until: Option<PathBuf>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum FailureKind {
    #[default]
    Tool,
    Protocol,
}

/// How a tool fails: for the model to read and do better, or as a request that went wrong (S13).
enum Failure {
    Tool(String),
    Protocol(ErrorData),
}

impl IntoCallToolResult for Failure {
    fn into_call_tool_result(self) -> Result<CallToolResponse, ErrorData> {
        match self {
            Self::Tool(message) => Ok(CallToolResult::error(vec![ContentBlock::text(message)]).into()),
            Self::Protocol(error) => Err(error),
        }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Tool(message)
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        Self::Tool(message.to_owned())
    }
}

impl From<ErrorData> for Failure {
    fn from(error: ErrorData) -> Self {
        Self::Protocol(error)
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        Self::Protocol(error.into())
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        Self::Protocol(error.into())
    }
}

/// What a job gets once and needs to the end.
fn ticket() -> Result<String, StepError> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{:08x}", u32::from_be_bytes(bytes)))
}

async fn progress(task: &TaskContext, done: usize, total: usize, what: &str) {
    task.progress(done as f64, Some(total as f64), Some(what)).await;
}

/// Work on the file system that is short, away from the threads that serve.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ErrorData::internal_error("the work on files ended early", None).into())
}

/// A question that asks for a form of type `T`.
fn form<T: JsonSchema>(message: &str) -> Result<Value, Failure> {
    let schema = ElicitationSchema::from_type::<T>()
        .map_err(|error| ErrorData::internal_error(format!("the form cannot be asked: {error}"), None))?;
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    Ok(json!({"method": "elicitation/create", "params": params}))
}

/// The form that was filled in; `None` when it was not.
fn accepted<T: DeserializeOwned>(answer: &Value) -> Result<Option<T>, Failure> {
    if answer["action"] != "accept" {
        return Ok(None);
    }
    let form = serde_json::from_value(answer["content"].clone());
    form.map(Some).map_err(|error| Failure::Tool(format!("an answer does not fit its question: {error}")))
}
