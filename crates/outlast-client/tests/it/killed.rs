//! The client's process is killed, and another one goes on (S26).
//!
//! The process is this test binary, run once more with one test, which is no test by itself.

use std::{
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use outlast_client::{DirStore, Server, Started, TaskClient};
use rmcp::model::CallToolRequestParams;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
};

use crate::support::{
    LONG, Person, Reply, Running, Scripted, accept, ack, asks, completed, created, error, ok, polling, task,
};

/// What a client that may be killed does: goes on with what is there, or calls two tools.
#[tokio::test]
#[ignore = "a process of the other tests here"]
async fn process() {
    let (Ok(url), Ok(handles)) = (std::env::var("TEST_URL"), std::env::var("TEST_HANDLES")) else { return };
    let thinks = std::env::var("TEST_THINKS").is_ok();
    let person = Person::new(move |message| async move {
        println!("asked {message}");
        if thinks {
            std::future::pending::<()>().await;
        }
        Ok(accept(&message))
    });
    let client = TaskClient::builder(Server::http(url))
        .options(polling())
        .handler(person)
        .store(DirStore::open(handles).unwrap())
        .build();
    let mut tasks = client.resume_all().await.unwrap();
    if tasks.is_empty() {
        for tool in ["slow", "asks"] {
            let Started::Task(task) = client.start_tool(CallToolRequestParams::new(tool)).await.unwrap()
            else {
                panic!("no task")
            };
            tasks.push(task);
        }
    }
    let results = futures::future::join_all(tasks.iter().map(|task| task.wait(LONG))).await;
    for (task, result) in tasks.iter().zip(results) {
        println!("{} {}", task.tool(), json!(result.unwrap().content[0])["text"]);
    }
}

fn start(server: &Running, handles: &Path, thinks: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["killed::process", "--exact", "--ignored", "--nocapture"])
        .env("TEST_URL", format!("http://{}/mcp", server.address))
        .env("TEST_HANDLES", handles)
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if thinks {
        command.env("TEST_THINKS", "1");
    }
    command.spawn().unwrap()
}

/// The lines of a process that are its own, and not the test harness's.
async fn words(mut process: Child) -> Vec<String> {
    let mut said = String::new();
    process.stdout.take().unwrap().read_to_string(&mut said).await.unwrap();
    assert!(process.wait().await.unwrap().success(), "{said}");
    let own = |line: &&str| ["asked ", "slow ", "asks "].iter().any(|word| line.starts_with(word));
    let mut lines: Vec<String> = said.lines().filter(own).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// A task that is slow until it is let go, and one that asks. Whether an answer arrives is for `update` to say.
fn two_tasks(
    let_go: Arc<AtomicBool>,
    update: impl Fn(usize) -> Option<Reply> + Send + Sync + 'static,
) -> Scripted {
    let answered = AtomicBool::new(false);
    Scripted::new(move |asked| {
        let id = asked.params["taskId"].as_str().unwrap_or_default().to_owned();
        match (asked.method.as_str(), id.as_str()) {
            ("tools/call", _) => created(asked.params["name"].as_str().unwrap()),
            ("tasks/get", "slow") if let_go.load(Ordering::SeqCst) => completed("slow", "took its time"),
            ("tasks/get", "slow") => ok(task("slow", "working", json!({}))),
            ("tasks/get", "asks") if answered.load(Ordering::SeqCst) => completed("asks", "thanks"),
            ("tasks/get", "asks") => asks("asks", &["who"]),
            ("tasks/update", "asks") => update(asked.nth).unwrap_or_else(|| {
                answered.store(true, Ordering::SeqCst);
                ack()
            }),
            _ => error(-32601, "no"),
        }
    })
}

#[tokio::test]
async fn a_person_who_has_answered_is_not_asked_by_the_next_process() {
    let let_go = Arc::new(AtomicBool::new(false));
    // The first answer is on its way when the process is killed.
    let scripted = two_tasks(let_go.clone(), |nth| (nth == 0).then_some(Reply::Hang));
    let server = scripted.http().await;
    let handles = tempfile::tempdir().unwrap();

    let mut first = start(&server, handles.path(), false);
    scripted.until_asked("tasks/update", 1).await;
    first.kill().await.unwrap();
    let_go.store(true, Ordering::SeqCst);

    let second = words(start(&server, handles.path(), false)).await;

    assert_eq!(second, ["asks \"thanks\"", "slow \"took its time\""]);
    let updates = scripted.asked("tasks/update");
    assert_eq!(updates.len(), 2);
    assert_eq!(updates[0].params["inputResponses"], updates[1].params["inputResponses"]);
    assert_eq!(scripted.asked("tools/call").len(), 2, "nothing is called again");
    assert_eq!(std::fs::read_dir(handles.path()).unwrap().count(), 0, "what has ended is forgotten");
}

#[tokio::test]
async fn a_question_that_was_open_is_put_again_and_answered_once() {
    let let_go = Arc::new(AtomicBool::new(false));
    let scripted = two_tasks(let_go.clone(), |_| None);
    let server = scripted.http().await;
    let handles = tempfile::tempdir().unwrap();

    let mut first = start(&server, handles.path(), true);
    let mut lines = BufReader::new(first.stdout.as_mut().unwrap()).lines();
    while !lines.next_line().await.unwrap().unwrap().contains("asked who") {}
    first.kill().await.unwrap();
    let_go.store(true, Ordering::SeqCst);

    let second = words(start(&server, handles.path(), false)).await;

    assert_eq!(second, ["asked who", "asks \"thanks\"", "slow \"took its time\""]);
    assert_eq!(scripted.asked("tasks/update").len(), 1);
}
