//! `outlast tasks show`.

use std::{fmt::Write as _, io::Write};

use outlast_admin::{
    form::describe_fields,
    history::{self, Happening},
    operate,
    view::{attempts, detail, retention, trace, unserved, work},
};
use outlast_core::{
    Clock, Live, Question, QuestionKind, Store, Task, TaskId, TaskState, Timestamp, ToolVersion,
};
use outlast_sqlite::SystemClock;
use serde_json::{Value, json};

use crate::text;

/// Show everything about a task: its call, its questions, its history, how it ended
#[derive(clap::Args)]
pub(super) struct Args {
    /// The task
    id: TaskId,
    /// Show the values of steps and the answers in the history too, which may be secrets
    #[arg(long)]
    values: bool,
    /// Write JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(store: &dyn Store, args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let task = operate::find(store, args.id).await.map_err(super::refused)?;
    let call = store.call(args.id).await?;
    let arguments = call.map_or(Value::Null, |call| call.params.to_value()["arguments"].take());
    let history = history::history(&task, &operate::journal(store, args.id).await?);
    let served = ToolVersion::served_by(&store.workers().await?);
    let shown = Shown { task: &task, served, arguments, history, values: args.values };
    if args.json {
        writeln!(out, "{}", text::json(&shown.as_json()))?;
    } else {
        write!(out, "{}", shown.as_text(SystemClock.now()))?;
    }
    Ok(())
}

/// A task and what belongs to it.
struct Shown<'a> {
    task: &'a Task,
    /// What the last server on the store served.
    served: Vec<ToolVersion>,
    arguments: Value,
    history: Vec<Happening>,
    values: bool,
}

impl Shown<'_> {
    fn as_json(&self) -> Value {
        let Self { task, served, arguments, history, values } = self;
        let mut json = detail(task, served);
        json["arguments"] = arguments.clone();
        json["history"] = history::as_json(history, *values);
        match &task.state {
            TaskState::Live(live) => {
                let questions =
                    live.questions.iter().map(|(key, asked)| (key.to_string(), asked.request().to_value()));
                json["inputRequests"] = Value::Object(questions.collect());
            }
            TaskState::Completed { result } => json["result"] = result.to_value(),
            TaskState::Failed { error } => json["error"] = json!(error),
            TaskState::Cancelled => {}
        }
        json
    }

    fn as_text(&self, now: Timestamp) -> String {
        let Self { task, served, arguments, history, values } = self;
        let spec = &task.spec;
        let mut out = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(out, "{name:9} {}", text::one_line(value, 2_000));
        };
        let version =
            if spec.version.is_empty() { String::new() } else { format!(", version {}", spec.version) };
        line("id", &task.id.to_string());
        line("tool", &format!("{}{version}", spec.tool));
        line("status", task.status().as_str());
        line("message", task.status_message.as_deref().unwrap_or("-"));
        line("owner", &text::owner(&task.owner));
        line("created", &at(task.created_at, now));
        line("changed", &at(task.updated_at, now));
        line("kept", &retention(task));
        if let TaskState::Live(live) = &task.state {
            line("work", &work(live, now));
            if unserved(task, served) {
                line(
                    "served",
                    "by no server: the last one on this file does not serve this tool in this version",
                );
            }
            if let Some(cancelled) = live.cancel {
                line("cancel", &format!("asked for at {}", at(cancelled, now)));
            }
        }
        line("attempts", &attempts(task));
        if let Some(trace) = trace(task) {
            line("trace", &trace);
        }
        section(&mut out, "arguments", &text::json(arguments));
        if let TaskState::Live(Live { questions, .. }) = &task.state {
            for (key, question) in questions {
                section(&mut out, &format!("question '{}'", text::printable(key.as_str())), &asked(question));
            }
        }
        match &task.state {
            TaskState::Completed { result } => section(&mut out, "result", &text::json(&result.to_value())),
            TaskState::Failed { error } => section(&mut out, "error", &text::json(&json!(error))),
            TaskState::Live(_) | TaskState::Cancelled => {}
        }
        section(&mut out, "history", &history::as_text(history, *values));
        out
    }
}

/// Adds a text under a title to `out`.
pub(super) fn section(out: &mut String, title: &str, text: &str) {
    let _ = writeln!(out, "\n{title}");
    for line in text.lines() {
        let _ = writeln!(out, "  {line}");
    }
}

fn at(instant: Timestamp, now: Timestamp) -> String {
    format!("{instant} ({} ago)", text::span(now.since(instant)))
}

/// What a question asks, and with which fields.
pub(super) fn asked(question: &Question) -> String {
    let request = question.request().to_value();
    let params = &request["params"];
    let message = text::printable(params["message"].as_str().unwrap_or_default());
    match question.kind() {
        QuestionKind::ElicitForm => {
            let fields = describe_fields(&params["requestedSchema"]).into_iter();
            let fields = fields.map(|(name, takes)| text::one_line(&format!("{name}: {takes}"), 200));
            std::iter::once(message).chain(fields).collect::<Vec<_>>().join("\n")
        }
        QuestionKind::ElicitUrl => {
            format!("{message}\n{}", text::printable(params["url"].as_str().unwrap_or_default()))
        }
        _ => text::json(&request),
    }
}
