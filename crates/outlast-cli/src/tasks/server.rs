//! `outlast tasks get|watch|resume|handles`, and what `answer` and `cancel` do with a handle: a task as its server shows it.

use std::{ffi::OsString, io::Write, pin::pin, time::Duration};

use anyhow::{Context, bail};
use outlast_client::{CallError, SavedTask, Task, TaskClient, TaskHandle};
use outlast_core::Question;
use rmcp::model::CallToolResult;
use serde_json::{Value, json};

use super::{
    answer::{Given, compose},
    show,
};
use crate::{
    call::{
        Asked, Place, Prompter, Reach, Terminal,
        exit::Exit,
        follow::{self, End},
        handles::{self, Handles},
    },
    signals::Signals,
    text,
};

/// How the server of a handle is reached.
#[derive(clap::Args)]
pub(super) struct Server {
    #[command(flatten)]
    reach: Reach,
    /// The URL at which the server of the handle is reached now, where it is another than the handle names
    #[arg(long, value_name = "URL", value_parser = Place::is_url, help_heading = "The server")]
    url: Option<String>,
    /// The server as a command, where none was kept with the handle
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "url")]
    command: Vec<OsString>,
}

/// Show the state of a task as its server tells it, once
#[derive(clap::Args)]
#[command(after_help = crate::call::exit::EXITS)]
pub(super) struct Get {
    /// The handle: its name, its JSON, or a file of it
    handle: String,
    /// Write JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

/// Follow a task to its end, and answer nothing; without a task, show those of a store as they change
///
/// Each state of the task is a line on standard error; the result goes to standard output. The tasks of a store are a list that is
/// kept up to date where it is shown in a terminal, and a line for each change elsewhere.
#[derive(clap::Args)]
#[command(after_help = crate::call::exit::EXITS)]
pub(super) struct Watching {
    /// The handle: its name, its JSON, or a file of it
    handle: Option<String>,
    /// Write the result as JSON
    #[arg(long, requires = "handle")]
    json: bool,
    /// Wait for at most this long, such as 30s
    #[arg(long, value_name = "TIME", value_parser = crate::call::duration, requires = "handle")]
    deadline: Option<Duration>,
    #[command(flatten)]
    server: Server,
}

impl Watching {
    /// Whether it names no task of a server.
    pub(super) fn is_of_store(&self) -> bool {
        self.handle.is_none()
    }

    /// Refuses what would be meant for a server, where no task of one is named.
    pub(super) fn names_no_server(&self) -> anyhow::Result<()> {
        if self.server.is_named() {
            bail!("name the task of that server by its handle; without one, the tasks of a store are shown");
        }
        Ok(())
    }
}

impl From<Watching> for Watch {
    fn from(Watching { handle, json, deadline, server }: Watching) -> Self {
        Self { handle: handle.unwrap_or_default(), json, deadline, server }
    }
}

/// The task that is followed.
#[derive(clap::Args)]
pub(super) struct Watch {
    /// The handle: its name, its JSON, or a file of it
    handle: String,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
    /// Wait for at most this long, such as 30s
    #[arg(long, value_name = "TIME", value_parser = crate::call::duration)]
    deadline: Option<Duration>,
    #[command(flatten)]
    server: Server,
}

/// Take a task up where `outlast call` left it: follow it, and be asked what it asks
///
/// What was answered before is not asked again.
#[derive(clap::Args)]
#[command(after_help = crate::call::exit::EXITS)]
pub(super) struct Resume {
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    asked: Asked,
}

/// List the handles that `outlast call` keeps: those of tasks that have not ended, or whose end nobody here has seen
#[derive(clap::Args)]
pub(super) struct List {
    /// Write JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

impl Server {
    /// Whether the command line says which server, or how it is reached.
    fn is_named(&self) -> bool {
        self.url.is_some() || !self.command.is_empty() || self.reach.is_given()
    }

    /// The handles that are kept.
    pub(super) fn handles(&self) -> anyhow::Result<Handles> {
        self.reach.handles()
    }

    /// A client of the server of `task`, whose questions go to `prompter`.
    async fn take_up(
        self,
        task: SavedTask,
        handles: &Handles,
        prompter: impl FnOnce(&str) -> anyhow::Result<Prompter>,
    ) -> anyhow::Result<(TaskClient, TaskHandle)> {
        let (place, known_as) = match self.url {
            Some(url) => (Place::Url(url), Some(task.server.as_str())),
            None => (Place::of(&task, self.command, handles)?, None),
        };
        let client = place.client(&self.reach, handles, known_as, prompter)?;
        let handle = client.resume(task).await?;
        Ok((client, handle))
    }
}

pub(super) async fn get(args: Get, out: &mut impl Write) -> anyhow::Result<Exit> {
    let handles = args.server.handles()?;
    let saved = handles.find(&args.handle)?;
    let (client, handle) = args.server.take_up(saved, &handles, onlooker).await?;
    let got = handle.get().await;
    client.close().await;
    let task = match got {
        Ok(task) => task,
        Err(error) => return failed(error, &handle),
    };
    if args.json {
        writeln!(out, "{}", text::json(&as_json(&task, handle.tool())))?;
    } else {
        write!(out, "{}", as_text(&task, &handle))?;
    }
    Ok(Exit::Done)
}

pub(super) async fn watch(args: Watch) -> anyhow::Result<Exit> {
    let handles = args.server.handles()?;
    let saved = handles.find(&args.handle)?;
    run(args, saved, &handles, Terminal::new(), onlooker, true).await
}

pub(super) async fn resume(Resume { watch, asked }: Resume) -> anyhow::Result<Exit> {
    let handles = watch.server.handles()?;
    let saved = handles.find(&watch.handle)?;
    let terminal = Terminal::new();
    let prompter = |server: &str| asked.prompter(&terminal, server);
    run(watch, saved, &handles, terminal.clone(), prompter, false).await
}

async fn run(
    args: Watch,
    saved: SavedTask,
    handles: &Handles,
    terminal: Terminal,
    prompter: impl FnOnce(&str) -> anyhow::Result<Prompter>,
    aloud: bool,
) -> anyhow::Result<Exit> {
    let mut signals = Signals::new()?;
    let deadline = pin!(follow::deadline(args.deadline));
    terminal.progress(&format!("{}: taking it up", text::one_line(&saved.tool, 60)));
    let (client, handle) = args.server.take_up(saved, handles, prompter).await?;
    let end = follow::follow(&terminal, &mut signals, &handle, deadline, aloud).await;
    let exit = follow::report(end, Some(&handle), args.json);
    follow::close(&client, &mut signals).await;
    exit
}

pub(super) fn list(args: &List, out: &mut impl Write) -> anyhow::Result<Exit> {
    let tasks = args.reach.handles()?.all()?;
    if args.json {
        let tasks: Vec<_> =
            tasks.iter().map(|task| json!({"name": handles::name(task), "handle": task})).collect();
        writeln!(out, "{}", text::json(&tasks.into()))?;
    } else {
        for task in &tasks {
            let name = handles::name(task);
            let server = text::one_line(&task.server, 200);
            writeln!(out, "{name:40}  {}  {server}", task.first_seen.format("%Y-%m-%dT%H:%M:%SZ"))?;
        }
    }
    Ok(Exit::Done)
}

pub(super) async fn answer(
    saved: SavedTask,
    key: &str,
    given: Given,
    server: Server,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let handles = server.handles()?;
    let (client, handle) = server.take_up(saved, &handles, onlooker).await?;
    let done = give(&handle, key, given, out).await;
    client.close().await;
    match done {
        Err(error) => match error.downcast::<CallError>() {
            Ok(error) => failed(error, &handle),
            Err(error) => Err(error),
        },
        Ok(()) => Ok(Exit::Done),
    }
}

async fn give(handle: &TaskHandle, key: &str, given: Given, out: &mut impl Write) -> anyhow::Result<()> {
    let task = handle.get().await?;
    let Some((_, question)) = task.questions().find(|(asked, _)| *asked == key) else {
        let keys: Vec<_> = task.questions().map(|(key, _)| key).collect();
        let instead = match keys.as_slice() {
            [] => "it asks nothing now".to_owned(),
            keys => format!("it asks under {}", keys.join(", ")),
        };
        bail!("the task is {}; it asks nothing under '{key}': {instead}", follow::status(&task));
    };
    let question =
        Question::new(question.as_value()).context("this question is of no kind that is known here")?;
    let answer = compose(&question, given).with_context(|| format!("no answer to '{key}' was given"))?;
    handle.answer(key, answer).await?;
    writeln!(out, "'{}' is answered", text::printable(key))?;
    Ok(())
}

pub(super) async fn cancel(saved: SavedTask, server: Server, out: &mut impl Write) -> anyhow::Result<Exit> {
    let handles = server.handles()?;
    let (client, handle) = server.take_up(saved, &handles, onlooker).await?;
    let done = async {
        handle.cancel().await?;
        handle.get().await
    };
    let done = done.await;
    if matches!(&done, Ok(task) if task.is_final()) {
        // Its end is told here, and so the handle is of no more use.
        let _ = handle.wait(Some(Duration::ZERO)).await;
    }
    client.close().await;
    match done {
        Ok(task) if task.is_final() => writeln!(out, "the task is {}", follow::status(&task))?,
        Ok(_) => writeln!(out, "the task is asked to end")?,
        Err(error) => return failed(error, &handle),
    }
    Ok(Exit::Done)
}

fn onlooker(_: &str) -> anyhow::Result<Prompter> {
    Ok(Prompter::onlooker())
}

fn failed(error: CallError, handle: &TaskHandle) -> anyhow::Result<Exit> {
    follow::report(End::Error(error), Some(handle), false)
}

fn as_json(task: &Task, tool: &str) -> Value {
    use outlast_client::Detail;
    let mut json = json!({
        "taskId": task.id,
        "tool": tool,
        "status": follow::status(task),
        "statusMessage": task.message,
        "createdAt": task.created_at,
        "lastUpdatedAt": task.updated_at,
        "ttlMs": task.ttl_ms,
        "pollIntervalMs": task.poll_interval_ms,
    });
    match &task.detail {
        Detail::InputRequired(_) => {
            let questions =
                task.questions().map(|(key, question)| (key.to_owned(), question.as_value().clone()));
            json["inputRequests"] = Value::Object(questions.collect());
        }
        Detail::Completed(result) => json["result"] = Value::Object(result.clone()),
        Detail::Failed(error) => json["error"] = json!(error),
        _ => {}
    }
    json
}

fn as_text(task: &Task, handle: &TaskHandle) -> String {
    use outlast_client::Detail;
    let mut lines = Vec::new();
    let mut line =
        |name: &str, value: &str| lines.push(format!("{name:9} {}\n", text::one_line(value, 2_000)));
    line("id", &task.id);
    line("tool", handle.tool());
    line("server", handle.server());
    line("status", &follow::status(task));
    line("message", task.message.as_deref().unwrap_or("-"));
    line("created", &task.created_at.to_rfc3339());
    line("changed", &task.updated_at.to_rfc3339());
    let mut out = lines.concat();
    for (key, question) in task.questions() {
        let asked = match Question::new(question.as_value()) {
            Some(question) => show::asked(&question),
            None => text::json(question.as_value()),
        };
        show::section(&mut out, &format!("question '{}'", text::one_line(key, 200)), &asked);
    }
    match &task.detail {
        Detail::Completed(result) => {
            let value = Value::Object(result.clone());
            let shown = serde_json::from_value::<CallToolResult>(value.clone())
                .map_or_else(|_| text::json(&value), |result| crate::call::shown(&result));
            show::section(&mut out, "result", &shown);
        }
        Detail::Failed(error) => show::section(&mut out, "error", &text::json(&json!(error))),
        _ => {}
    }
    out
}
