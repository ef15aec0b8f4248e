//! Steps, sleeps and questions of real tools, across the deaths of their server.

use std::time::Duration;

use outlast::{Mode, Start, TaskTool};
use outlast_core::{Applied, By, Event, InputKey, Payload};
use serde_json::json;

use crate::support::{TestServer, client::accept};

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_value_that_is_no_longer_of_its_type_ends_the_task_and_is_named() {
    let server = TestServer::start().await;
    let id = server.client.task("grows", json!({})).await;
    server.gates.reached("grown", 1).await;
    let server = server.crash().await;
    let failed = server.client.until(&id, "failed").await;
    let message = failed["statusMessage"].as_str().unwrap();
    assert!(message.contains("the value of the step 'value' in the history of this task is not of the type"));
    assert!(message.contains("needs another version, or another key"), "{message}");
    assert_eq!(failed["error"]["message"], message);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_or_a_value_that_cannot_be_kept_ends_the_task_and_is_named() {
    let server = TestServer::start().await;
    for (tool, says) in [
        (
            "reserved",
            "'outlast:mine' cannot be the key of a step or timer: keys that begin with 'outlast:' are",
        ),
        ("unwritable", "the value of the step 'odd' cannot be written as JSON"),
    ] {
        let id = server.client.task(tool, json!({})).await;
        let failed = server.client.until(&id, "failed").await;
        assert!(failed["error"]["message"].as_str().unwrap().contains(says), "{failed:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steps_own_last_error_is_the_same_after_a_crash_and_reaches_the_caller_whole() {
    let server = TestServer::start().await;
    let id = server.client.task("refused", json!({})).await;
    server.client.until(&id, "input_required").await;
    assert_eq!(server.gates.count("paying"), 1);
    let server = server.crash().await;
    server.client.update(&id, json!({"seen": accept("ann")})).await.result();
    let failed = server.client.until(&id, "failed").await;
    let error = json!({"code": -7, "message": "the card was refused", "data": {"card": 3}});
    assert_eq!(failed["error"], error);
    assert_eq!(server.gates.count("paying"), 0, "it is not tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_turns_of_a_loop_have_keys_of_their_own() {
    let mut server = TestServer::start().await;
    let id = server.client.task("chapters", json!({})).await;
    for chapter in 0..3 {
        let key = format!("chapter[{chapter}]/ok");
        let asked = server.client.until(&id, "input_required").await;
        assert_eq!(asked["inputRequests"].as_object().unwrap().keys().collect::<Vec<_>>(), [&key]);
        server = server.crash().await;
        server.client.update(&id, json!({key: accept("ann")})).await.result();
        // The next question, or the end.
        loop {
            let state = server.client.state(&id).await;
            let answered = state["inputRequests"].get(format!("chapter[{chapter}]/ok")).is_none();
            if answered && (state["status"] == "input_required" || state["status"] == "completed") {
                break;
            }
        }
    }
    let done = server.client.until(&id, "completed").await;
    let text = done["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    let words: Vec<_> = text.split(' ').collect();
    assert_eq!(words.len(), 6, "{text}");
    assert!(words[0] != words[2] && words[2] != words[4], "each step has a name of its own: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_tool_does_without_a_task_where_its_caller_knows_none() {
    let server = TestServer::start().await;
    let reply = server.client.undeclared().call("patient", json!({})).await;
    let text = reply.result()["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("3 true this call is not a task"), "{text}");
    let id = server.client.task("patient", json!({})).await;
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "3 true None");
}

/// Answers on the file itself while no server runs, as `outlast tasks answer` does.
async fn answer_from_outside(server: TestServer, id: &str) -> TestServer {
    let down = server.kill().await;
    let answer =
        Event::Answer { key: InputKey::new("who").unwrap(), answer: Payload::from_value(&accept("ann")) };
    let front = down.front();
    let applied =
        outlast_core::Store::apply(&front, id.parse().unwrap(), By::Operator, vec![answer]).await.unwrap();
    assert!(matches!(applied, Applied::Applied(_)), "{applied:?}");
    front.close().await;
    down.start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_while_the_server_is_down_resumes_its_task() {
    let server = TestServer::start().await;
    let id = server.client.task("asks", json!({})).await;
    server.client.until(&id, "input_required").await;
    let server = answer_from_outside(server, &id).await;
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "hello ann");
}

#[tokio::test(flavor = "multi_thread")]
async fn c19_a_hard_deadline_that_passes_while_the_server_is_down_ends_the_waiting_work() {
    let server = TestServer::with(|builder| {
        builder.tool("asks", TaskTool::required().deadline(Duration::from_secs(600)))
    })
    .await;
    let id = server.client.task("asks", json!({})).await;
    server.client.until(&id, "input_required").await;
    let down = server.kill().await;
    down.clock.advance(Duration::from_secs(3_600));
    let server = down.start().await;
    let failed = server.client.until(&id, "failed").await;
    assert!(failed["statusMessage"].as_str().unwrap().contains("longer than its tool allows"), "{failed:#}");
    server.until_unloaded().await;
    server.expire(&id).await;
    assert_eq!(server.client.get(&id).await.code(), -32602);
}

#[tokio::test(flavor = "multi_thread")]
async fn c23_c25_a_question_outlives_its_ttl_over_many_restarts_and_the_ttl_says_so() {
    let mut server =
        TestServer::with(|builder| builder.tool("asks", TaskTool::required().ttl(Duration::from_secs(100))))
            .await;
    let id = server.client.task("asks", json!({})).await;
    assert_eq!(server.client.until(&id, "input_required").await["ttlMs"], 100_000);
    for restart in 1..=5u64 {
        let down = server.kill().await;
        down.clock.advance(Duration::from_secs(1_000));
        server = down.start().await;
        loop {
            let state = server.client.state(&id).await;
            assert!(state["status"] == "input_required", "{state:#}");
            if state["ttlMs"].as_u64().unwrap() > restart * 1_000_000 {
                break;
            }
            server.store.sweep(50).await.unwrap();
        }
    }
    server.client.update(&id, json!({"who": accept("ann")})).await.result();
    server.client.until(&id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_at_a_front_begins_nothing_that_the_runtime_would_have_to_begin_again() {
    let runtime = TestServer::with(|builder| {
        builder
            .tool("once", TaskTool::new().mode(Mode::Optional).start(Start::After(Duration::from_millis(50))))
    })
    .await;
    let front = runtime
        .front(|builder| {
            builder.tool(
                "once",
                TaskTool::new().mode(Mode::Optional).start(Start::After(Duration::from_millis(50))),
            )
        })
        .await;
    let id = front.client.task("once", json!({"gate": "g"})).await;
    runtime.gates.reached("g", 1).await;
    assert_eq!(front.gates.count("g"), 0, "a tool that must not run twice began here too");
    runtime.gates.open("g");
    front.client.until(&id, "completed").await;
}
