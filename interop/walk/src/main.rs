//! Our client through the five tools that every server here offers: `walk PEER URL`.
//!
//! One line for each check: `ok`, `FAIL` or `not offered`. It fails when a check does. `walk --resume FILE URL` and
//! `walk --resume-all FOLDER URL` are the second process of a check: it takes up what the first one saved, and prints the result.

mod checks;
mod person;
mod push;

use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures::StreamExt;
use outlast_client::{
    CallErrorKind, CallOptions, DirStore, SavedTask, Server, Started, TaskClient, TaskHandle,
};
use rmcp::model::{CallToolRequestParams, CallToolResult, ProtocolVersion};
use rmcp::object;

use crate::checks::Checks;
use crate::person::Person;

/// Longer than any of the tools takes.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &*arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        ["--resume", file, url] => {
            println!("{}", resumed(file, url).await?);
            Ok(ExitCode::SUCCESS)
        }
        ["--resume-all", folder, url] => {
            println!("{}", resumed_all(folder, url).await?);
            Ok(ExitCode::SUCCESS)
        }
        [peer, url] => Ok(walk(peer, url).await),
        _ => bail!("usage: walk PEER URL"),
    }
}

async fn walk(peer: &str, url: &str) -> ExitCode {
    let person = Person::default();
    let client = TaskClient::new(Server::http(url), person.clone());
    let mut checks = Checks::new(peer);

    checks.run("negotiation", negotiation(&client)).await;
    let offers = match offered(&client).await {
        Ok(offers) => offers,
        Err(error) => {
            checks.run("the list of tools", async { Err(error) }).await;
            return checks.end();
        }
    };
    checks.run("quick", quick(&client)).await;
    checks.run("slow", slow(&client)).await;
    checks.run("slow, in one call", slow_in_one_call(&client)).await;
    if offers.questions {
        checks.run("asks", asks(&client, &person)).await;
        if offers.sessions {
            checks.not_offered(
                "asks, answered by hand",
                "questions of its protocol are requests of their own, without keys",
            );
        } else {
            checks.run("asks, answered by hand", answered_by_hand(&client, &person)).await;
        }
    } else {
        checks.not_offered(
            "asks",
            "it has no such tool, since its tools get no way to send their client a request",
        );
    }
    if offers.errors {
        checks.run("fails", fails(&client)).await;
    } else {
        checks.not_offered(
            "fails",
            "its tasks/result panics on the error of any task (-32603 is no code of a server, says turul-rpc-core 0.1.0), \
             and the answer is empty",
        );
        checks.run("fails, with a deadline", fails_late(&client)).await;
    }
    checks.run("cancel", cancel(&client)).await;
    if offers.sessions {
        checks.not_offered(
            "resume",
            "its tasks belong to the session of their client, which a second process has not",
        );
        checks.run("resume is refused", resume_refused(&client, url)).await;
    } else {
        checks.run("resume", resume(&client, url)).await;
        checks.run("resume all, with a question open", resume_all(url)).await;
    }
    checks.run("gone", gone(&client)).await;
    if offers.sessions {
        checks.not_offered("push", "its protocol has no subscriptions");
    } else {
        match push::offered(&client, url).await {
            Ok(Ok(())) => checks.run("push", async { Ok("a subscription is acknowledged".to_owned()) }).await,
            Ok(Err(why)) => checks.not_offered("push", &why),
            Err(error) => checks.run("push", async { Err(error) }).await,
        }
    }
    client.close().await;
    checks.end()
}

async fn negotiation(client: &TaskClient) -> anyhow::Result<String> {
    let peer = client.peer().await?;
    let info = peer.peer_info().context("no word of the server")?;
    let name = info.server_info.as_ref().map_or("a server", |server| &server.name);
    Ok(format!("{} with {name}", info.protocol_version))
}

/// What a server may lack without being wrong.
struct Offers {
    questions: bool,
    /// It can tell with which error a task failed.
    errors: bool,
    /// It is one of protocol 2025-11-25.
    sessions: bool,
}

async fn offered(client: &TaskClient) -> anyhow::Result<Offers> {
    let peer = client.peer().await?;
    let tools = peer.list_all_tools().await?;
    for name in ["quick", "slow", "fails", "cancellable"] {
        ensure!(tools.iter().any(|tool| tool.name == name), "the server has no tool {name}");
    }
    let info = peer.peer_info().context("no word of the server")?;
    Ok(Offers {
        questions: tools.iter().any(|tool| tool.name == "asks"),
        errors: info.server_info.as_ref().is_none_or(|server| server.name != "turul-2025"),
        sessions: info.protocol_version < ProtocolVersion::V_2026_07_28,
    })
}

async fn quick(client: &TaskClient) -> anyhow::Result<String> {
    match client.start_tool(tool("quick")).await? {
        Started::Ready(result) => says(&result, "quick: done"),
        other => bail!("expected an answer, got {other:?}"),
    }
}

async fn slow(client: &TaskClient) -> anyhow::Result<String> {
    let task = started(client, slow_for(1)).await?;
    let mut updates = Box::pin(task.updates());
    let mut seen = Vec::new();
    while let Some(update) = updates.next().await {
        seen.push(format!("{:?}", update?.status()));
    }
    Ok(format!("{}: {}", seen.join(", "), says(&task.wait(PATIENCE).await?, "slow: done")?))
}

async fn slow_in_one_call(client: &TaskClient) -> anyhow::Result<String> {
    says(&client.call_tool(slow_for(1)).await?, "slow: done")
}

async fn asks(client: &TaskClient, person: &Person) -> anyhow::Result<String> {
    let before = person.asked();
    let text = says(&client.call_tool(tool("asks")).await?, "asks: hello Ada")?;
    ensure!(person.asked() == before + 1, "asked {} times", person.asked() - before);
    Ok(format!("asked once: {text}"))
}

async fn answered_by_hand(client: &TaskClient, person: &Person) -> anyhow::Result<String> {
    let before = person.asked();
    let task = started(client, tool("asks")).await?;
    let key = loop {
        // A server may give the question a key of its own.
        if let Some((key, _)) = task.get().await?.questions().next() {
            break key.to_owned();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let answer = object!({ "action": "accept", "content": { "name": "Grace" } });
    task.answer(&key, answer.into()).await?;
    let text = says(&task.wait(PATIENCE).await?, "asks: hello Grace")?;
    ensure!(person.asked() == before, "asked the person all the same");
    Ok(text)
}

async fn fails(client: &TaskClient) -> anyhow::Result<String> {
    let error = match client.call_tool(tool("fails")).await {
        Ok(result) => bail!("expected an error, got {result:?}"),
        Err(error) => error,
    };
    let CallErrorKind::Failed(inner) = error.kind() else { bail!("expected that it failed, got {error}") };
    ensure!(inner.message.contains("it went wrong"), "failed with another message: {error}");
    Ok(error.to_string())
}

/// The error that a server cannot tell: the call ends at its deadline, and keeps its handle.
async fn fails_late(client: &TaskClient) -> anyhow::Result<String> {
    let options = CallOptions::default().with_deadline(Duration::from_secs(5));
    let error = match client.call_tool_with(tool("fails"), options).await {
        Ok(result) => bail!("expected an error, got {result:?}"),
        Err(error) => error,
    };
    ensure!(matches!(error.kind(), CallErrorKind::Deadline), "expected the deadline, got {error}");
    ensure!(error.handle().is_some(), "the error has no handle: {error}");
    Ok(error.to_string())
}

async fn cancel(client: &TaskClient) -> anyhow::Result<String> {
    let task = started(client, tool("cancellable")).await?;
    task.cancel().await?;
    match task.wait(PATIENCE).await {
        Ok(result) => bail!("expected that it was cancelled, got {result:?}"),
        Err(error) if matches!(error.kind(), CallErrorKind::Cancelled(_)) => Ok(error.to_string()),
        Err(error) => bail!("expected that it was cancelled, got {error}"),
    }
}

/// A task that this process begins and saves by hand, and a second one ends.
async fn resume(client: &TaskClient, url: &str) -> anyhow::Result<String> {
    let task = started(client, slow_for(3)).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("task.json");
    tokio::fs::write(&file, task.to_json()).await?;
    task.detach();
    second_process("--resume", &file, url, "slow: done").await
}

/// A task of a session that another process takes up, in a session of its own.
async fn resume_refused(client: &TaskClient, url: &str) -> anyhow::Result<String> {
    let task = started(client, slow_for(1)).await?;
    let second = TaskClient::new(Server::http(url), Person::default());
    let error = match second.resume(SavedTask::from_json(&task.to_json())?).await {
        Ok(task) => task.wait(PATIENCE).await.err(),
        Err(error) => Some(error),
    };
    second.close().await;
    let error = error.context("expected that it was refused")?;
    ensure!(
        matches!(error.kind(), CallErrorKind::SessionEnded),
        "expected that its session has ended, got {error}"
    );
    says(&task.wait(PATIENCE).await?, "slow: done")?;
    Ok(error.to_string())
}

async fn resumed(file: &str, url: &str) -> anyhow::Result<String> {
    let client = TaskClient::new(Server::http(url), Person::default());
    let saved = SavedTask::from_json(&tokio::fs::read_to_string(file).await?)?;
    let result = client.resume(saved).await?.wait(PATIENCE).await?;
    client.close().await;
    Ok(text_of(&result))
}

/// A task that this process begins with a store for its handles, and leaves with its question open.
async fn resume_all(url: &str) -> anyhow::Result<String> {
    let folder = tempfile::tempdir()?;
    let client = TaskClient::builder(Server::http(url))
        .handler(Person::default())
        .store(DirStore::open(folder.path())?)
        .build();
    let task = started(&client, tool("asks")).await?;
    while !task.get().await?.needs_input() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    client.close().await;
    second_process("--resume-all", folder.path(), url, "asks: hello Ada").await
}

async fn resumed_all(folder: &str, url: &str) -> anyhow::Result<String> {
    let store = DirStore::open(folder)?;
    let client = TaskClient::builder(Server::http(url)).handler(Person::default()).store(store).build();
    let mut said = Vec::new();
    for task in client.resume_all().await? {
        said.push(text_of(&task.wait(PATIENCE).await?));
    }
    ensure!(client.resume_all().await?.is_empty(), "a task that ended is still in the store");
    client.close().await;
    Ok(said.join(", "))
}

async fn second_process(way: &str, saved: &Path, url: &str, expected: &str) -> anyhow::Result<String> {
    let second = tokio::process::Command::new(std::env::current_exe()?)
        .args([way.as_ref(), saved.as_os_str(), url.as_ref()])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let printed = String::from_utf8_lossy(&second.stdout);
    ensure!(
        second.status.success(),
        "the second process failed: {}",
        String::from_utf8_lossy(&second.stderr)
    );
    ensure!(printed.trim() == expected, "the second process printed {printed}");
    Ok(format!("in a second process: {}", printed.trim()))
}

/// A task that the server never had.
async fn gone(client: &TaskClient) -> anyhow::Result<String> {
    let task = started(client, slow_for(1)).await?;
    let saved = task.to_json().replace(task.id(), "no-such-task");
    task.wait(PATIENCE).await?;
    let never = client.resume(SavedTask::from_json(&saved)?).await?;
    let error = never.get().await.err().context("expected that there is no such task")?;
    ensure!(matches!(error.kind(), CallErrorKind::Gone), "expected that it is gone, got {error}");
    Ok(error.to_string())
}

async fn started(client: &TaskClient, request: CallToolRequestParams) -> anyhow::Result<TaskHandle> {
    match client.start_tool(request).await? {
        Started::Task(task) => Ok(task),
        other => bail!("expected a task, got {other:?}"),
    }
}

fn tool(name: &'static str) -> CallToolRequestParams {
    CallToolRequestParams::new(name)
}

fn slow_for(seconds: u32) -> CallToolRequestParams {
    tool("slow").with_arguments(object!({ "seconds": seconds }))
}

fn says(result: &CallToolResult, expected: &str) -> anyhow::Result<String> {
    let text = text_of(result);
    ensure!(text.contains(expected), "expected {expected:?}, got {result:?}");
    Ok(text)
}

fn text_of(result: &CallToolResult) -> String {
    result.content.iter().filter_map(|block| Some(&*block.as_text()?.text)).collect()
}
