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

use outlast::{AskError, Elicited, TaskContext};
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
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    files::{self, Hashed},
    own::{OWN, OwnFiles},
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
            hashed = self.hash(path, recursive, None, &task) => Ok(Json(hashed?)),
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

    /// Hashes the files of a folder, asks for a title and a format in one go, and writes a report into a new file.
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
        let hashed = tokio::select! {
            hashed = self.hash(folder, false, Some(&file), &task) => hashed?,
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
        let contents = format.write(&title, &hashed);
        let (to, bytes) = (file.clone(), contents.len());
        blocking(move || files::write_new(&to, &contents)).await??;
        Ok(Json(Report { file, title, files: hashed.files.len(), bytes }))
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

    /// Fails: with a tool error, which completes a task, or with an error of the protocol, which fails it.
    #[tool(annotations(title = "Fail", read_only_hint = true, open_world_hint = false))]
    async fn failing_job(
        &self,
        Parameters(FailingJob { kind }): Parameters<FailingJob>,
    ) -> Result<String, Failure> {
        Err(match kind {
            FailureKind::Tool => "this job always fails".into(),
            FailureKind::Protocol => {
                Failure::Protocol(ErrorData::internal_error("this job always ends in a protocol error", None))
            }
        })
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
        folder: PathBuf,
        recursive: bool,
        except: Option<&Path>,
        task: &TaskContext,
    ) -> Result<Folder, Failure> {
        let own = self.own.clone();
        let (folder, mut listed) = blocking(move || {
            let folder = std::path::absolute(&folder).map_err(|error| error.to_string())?;
            let listed = files::list(&folder, recursive)?.into_iter().map(|file| (own.contain(&file), file));
            let listed = listed.collect::<Vec<_>>();
            Ok::<_, String>((folder, listed))
        })
        .await??;
        if let Some(except) = except.and_then(|file| std::path::absolute(file).ok()) {
            listed.retain(|(_, file)| *file != except);
        }
        let (mut files, mut skipped) = (Vec::with_capacity(listed.len()), Vec::new());
        for (done, (is_own, file)) in listed.iter().enumerate() {
            let name = file.strip_prefix(&folder).unwrap_or(file).to_string_lossy().into_owned();
            let hashed = if *is_own {
                Err(OWN.to_owned())
            } else {
                files::hash(&name, file).await.map_err(|error| error.to_string())
            };
            match hashed {
                Ok(hashed) => files.push(hashed),
                Err(reason) => skipped.push(Skipped { name: name.clone(), reason }),
            }
            progress(task, done + 1, listed.len(), &name).await;
        }
        let (total_bytes, sha256) = (files.iter().map(|file| file.bytes).sum(), files::hash_listing(&files));
        Ok(Folder { folder, files, skipped, total_bytes, sha256 })
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

/// A folder whose files were hashed.
#[derive(Serialize, JsonSchema)]
struct Folder {
    /// The folder's whole path.
    folder: PathBuf,
    /// Its files, by name.
    files: Vec<Hashed>,
    /// Files that were not read.
    skipped: Vec<Skipped>,
    /// The size of all of them.
    total_bytes: u64,
    /// The SHA-256 of the lines that `sha256sum` prints for these files.
    sha256: String,
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

/// A file that nothing was done with.
#[derive(Serialize, JsonSchema)]
struct Skipped {
    /// The file.
    name: String,
    /// Why.
    reason: String,
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

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Format {
    Markdown,
    Json,
}

/// A report that was written.
#[derive(Serialize, JsonSchema)]
struct Report {
    /// The file that it is in.
    file: PathBuf,
    /// Its title.
    title: String,
    /// How many files it lists.
    files: usize,
    /// Its size.
    bytes: usize,
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

async fn progress(task: &TaskContext, done: usize, total: usize, what: &str) {
    task.progress(done as f64, Some(total as f64), Some(what)).await;
}

/// Work on the file system that is short, away from the threads that serve.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        ErrorData::internal_error(format!("the work on files ended early: {error}"), None).into()
    })
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

impl Format {
    /// The report. Nothing in it depends on when it is written, so that writing it twice is writing it once.
    fn write(self, title: &str, folder: &Folder) -> String {
        match self {
            Self::Json => format!("{:#}\n", json!({"title": title, "folder": folder})),
            Self::Markdown => {
                let rows: String = folder
                    .files
                    .iter()
                    .map(|file| format!("| {} | {} | `{}` |\n", file.name, file.bytes, file.sha256))
                    .collect();
                format!(
                    "# {title}\n\n{} files in {}, {} bytes.\n\n| file | bytes | SHA-256 |\n|---|---|---|\n{rows}",
                    folder.files.len(),
                    folder.folder.display(),
                    folder.total_bytes,
                )
            }
        }
    }
}
