//! A call as a person sees it: how it goes, what Ctrl-C does, and how it ends.

use std::{future, pin::pin, time::Duration};

use futures::{FutureExt, StreamExt, future::Fuse};
use outlast_client::{CallError, CallErrorKind, Task, TaskClient, TaskHandle};
use rmcp::model::CallToolResult;

use super::{
    exit::Exit,
    handles, output,
    terminal::{Terminal, Urgent},
};
use crate::{
    signals::{Signal, Signals},
    text,
};

/// The most that is shown of what a server says of an error.
const LONGEST: usize = 4_000;

/// How following a task ended, as seen from here.
pub(crate) enum End {
    Result(CallToolResult),
    Error(CallError),
    /// Nobody here waits any more; the task goes on.
    Left,
}

/// Follows a task to its end, unless whoever is at the terminal says otherwise. With `aloud`, each state is a line.
pub(crate) async fn follow(
    terminal: &Terminal,
    signals: &mut Signals,
    handle: &TaskHandle,
    deadline: impl Future<Output = ()>,
    aloud: bool,
) -> End {
    let mut wait = pin!(handle.wait(None));
    let mut states = pin!(show(terminal, handle, aloud).fuse());
    let mut deadline = pin!(deadline);
    let mut asking = pin!(Fuse::terminated());
    let mut cancelling = pin!(Fuse::terminated());
    let mut is_asking = false;
    let end = loop {
        tokio::select! {
            end = &mut wait => break end.map_or_else(End::Error, End::Result),
            () = &mut states => {}
            () = &mut deadline => break deadline_passed(handle).await,
            signal = signals.next() => {
                if signal == Signal::Terminate || is_asking || !terminal.is_attended() {
                    break End::Left;
                }
                is_asking = true;
                asking.set(ask(terminal).fuse());
            }
            choice = &mut asking => {
                is_asking = false;
                match choice {
                    Choice::Cancel => {
                        terminal.say("asking the task to end");
                        cancelling.set(handle.cancel().fuse());
                    }
                    Choice::Leave => break End::Left,
                    Choice::GoOn => {}
                }
            }
            cancelled = &mut cancelling => if let Err(error) = cancelled {
                terminal.say(&text::printable(&format!("the task could not be asked to end: {error}")));
            },
        }
    };
    terminal.clear();
    end
}

/// The deadline that a wait which is over at once is refused with: the error is the client's, and keeps the handle.
async fn deadline_passed(handle: &TaskHandle) -> End {
    handle.wait(Some(Duration::ZERO)).await.map_or_else(End::Error, End::Result)
}

enum Choice {
    Cancel,
    Leave,
    GoOn,
}

async fn ask(terminal: &Terminal) -> Choice {
    let mut urgent: Urgent<'_> = terminal.urgent().await;
    let mut prompt = "\nCancel the task, detach from it, or go on? (c, d or g; Ctrl-C again detaches): ";
    loop {
        let Some(line) = urgent.line(prompt).await else { return Choice::Leave };
        match line.trim().to_lowercase().as_str() {
            "c" | "cancel" => return Choice::Cancel,
            "d" | "detach" => return Choice::Leave,
            "g" | "go" | "go on" | "" => return Choice::GoOn,
            _ => prompt = "c cancels the task, d detaches from it, g goes on: ",
        }
    }
}

async fn show(terminal: &Terminal, handle: &TaskHandle, aloud: bool) {
    let mut told = String::new();
    let mut states = pin!(handle.updates());
    while let Some(Ok(task)) = states.next().await {
        let words = state(&task);
        terminal.progress(&format!("{}: {words}", text::one_line(handle.tool(), 60)));
        // The end is told by whoever follows the task.
        if aloud && !task.is_final() && words != told {
            terminal.say(&words);
            told = words;
        }
    }
}

/// A state on one line, printable.
pub(crate) fn state(task: &Task) -> String {
    let status = status(task);
    let keys = task.questions().map(|(key, _)| text::one_line(key, 60)).collect::<Vec<_>>().join(", ");
    let asks = if keys.is_empty() { String::new() } else { format!(", asks {keys}") };
    let message = task.message.as_deref().filter(|message| !message.is_empty());
    let message = message.map_or_else(String::new, |message| format!(" - {}", text::one_line(message, 300)));
    format!("{status}{asks}{message}")
}

/// A status by its name in the protocol.
pub(crate) fn status(task: &Task) -> String {
    serde_json::to_value(task.status())
        .ok()
        .and_then(|name| name.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Writes how a call ended: the result to standard output, everything else to standard error.
pub(crate) fn report(end: End, handle: Option<&TaskHandle>, json: bool) -> anyhow::Result<Exit> {
    match end {
        End::Result(result) => {
            write_result(&result, json)?;
            if result.is_error == Some(true) {
                text::note(format_args!("outlast: the tool ended with an error"));
                return Ok(Exit::ToolError);
            }
            Ok(Exit::Done)
        }
        End::Error(error) => {
            text::note(format_args!("outlast: {}", text::bounded(&said(error.kind()), LONGEST)));
            let handle = error.handle().or(handle).filter(|_| error.is_retryable());
            if let Some(handle) = handle {
                say_how_to_go_on(handle);
            }
            Ok(exit(error.kind()))
        }
        End::Left => {
            match handle {
                Some(handle) => {
                    text::note(format_args!("outlast: detached"));
                    say_how_to_go_on(handle);
                }
                None => text::note(format_args!(
                    "outlast: interrupted before the server answered; whether the tool runs is not known"
                )),
            }
            Ok(Exit::Interrupted)
        }
    }
}

/// What is said of an error, with what to do where the error alone does not say it.
fn said(kind: &CallErrorKind) -> String {
    let CallErrorKind::Unauthorized(challenge) = kind else { return kind.to_string() };
    // RFC 6750; there is none where no token was shown.
    let why = challenge.split_once("error_description=\"").and_then(|(_, rest)| rest.split('"').next());
    let why = why.map_or_else(String::new, |why| format!(" ({})", text::one_line(why, 200)));
    format!(
        "{kind}{why}; show it a good token with --token-env VAR, where VAR is the environment variable with the token"
    )
}

/// How another process takes the task up.
pub(crate) fn say_how_to_go_on(handle: &TaskHandle) {
    // A server that is a command ends with this process.
    let goes_on = if handle.server().starts_with("command:") {
        "goes on when its server runs again"
    } else {
        "goes on"
    };
    let name = handles::name(&handle.save());
    text::note(format_args!("outlast: the task {goes_on}; `outlast tasks resume {name}` takes it up again"));
}

fn write_result(result: &CallToolResult, json: bool) -> anyhow::Result<()> {
    use std::io::Write;
    let shown = if json {
        format!("{}\n", text::json(&serde_json::to_value(result)?))
    } else {
        output::result(result)
    };
    let mut out = std::io::stdout().lock();
    out.write_all(shown.as_bytes())?;
    Ok(out.flush()?)
}

fn exit(kind: &CallErrorKind) -> Exit {
    match kind {
        CallErrorKind::Failed(_) => Exit::TaskFailed,
        CallErrorKind::Cancelled(_) => Exit::Cancelled,
        CallErrorKind::Deadline => Exit::Deadline,
        CallErrorKind::OutcomeUnknown(_) | CallErrorKind::Connection(_) => Exit::Unreached,
        CallErrorKind::Unanswered { .. } | CallErrorKind::TooManyQuestions => Exit::Unanswered,
        CallErrorKind::Expired
        | CallErrorKind::Gone
        | CallErrorKind::AnotherTask
        | CallErrorKind::SessionEnded => Exit::Gone,
        _ => Exit::Failed,
    }
}

/// Lets a server that was started here end in its own time, unless somebody does not want to wait for that.
pub(crate) async fn close(client: &TaskClient, signals: &mut Signals) {
    tokio::select! {
        () = client.close() => {}
        _ = signals.next() => {}
    }
}

/// When `deadline` has passed from now on; never without one.
pub(crate) fn deadline(deadline: Option<Duration>) -> impl Future<Output = ()> {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline).left_future(),
        None => future::pending().right_future(),
    }
}
