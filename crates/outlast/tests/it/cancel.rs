//! Cancelling: acknowledged at once, decided by the work.

use serde_json::{Value, json};

use crate::support::{Reply, TestServer, server::config};

#[track_caller]
fn acknowledged(reply: &Reply) {
    assert_eq!(*reply.result(), json!({"resultType": "complete"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn c03_an_undeclared_cancel_is_refused_and_the_task_runs_on() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({"gate": "g"})).await;
    let refused = server.client.undeclared().cancel(&id).await;
    assert_eq!(refused.code(), -32021);
    server.gates.open("g");
    server.client.until(&id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c05_a_cancel_of_a_completed_task_is_acknowledged_and_changes_nothing() {
    let server = TestServer::start().await;
    server.gates.open("g");
    let id = server.client.task("gated", json!({"gate": "g"})).await;
    let before = server.client.until(&id, "completed").await;
    acknowledged(&server.client.cancel(&id).await);
    assert_eq!(server.client.state(&id).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn c06_a_cancel_is_acknowledged_while_the_tool_holds_its_thread() {
    let server = TestServer::start().await;
    let id = server.client.task("busy", json!({"gate": "g"})).await;
    server.gates.reached("g", 1).await;
    acknowledged(&server.client.cancel(&id).await);
    assert_eq!(server.client.state(&id).await["status"], "working");
    server.gates.open("g");
    server.client.until(&id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c09_a_cancel_and_a_completion_at_the_same_instant_leave_one_final_state() {
    let server = TestServer::start().await;
    server.gates.open("heard");
    for round in 0..1_000 {
        let gate = format!("g{round}");
        let id = server.client.task("gated", json!({"gate": gate})).await;
        server.gates.reached(&gate, 1).await;
        let (reply, ()) = tokio::join!(server.client.cancel(&id), async { server.gates.open(&gate) });
        acknowledged(&reply);
        let first = loop {
            let state = server.client.state(&id).await;
            if ["completed", "cancelled"].contains(&state["status"].as_str().unwrap()) {
                break state;
            }
            assert_eq!(state["status"], "working");
        };
        acknowledged(&server.client.cancel(&id).await);
        assert_eq!(server.client.state(&id).await, first);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c14_a_tool_that_listens_sees_the_cancel_and_its_task_ends_cancelled() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({"gate": "g"})).await;
    server.gates.reached("g", 1).await;
    acknowledged(&server.client.cancel(&id).await);
    server.gates.reached("heard", 1).await;
    assert_eq!(server.client.state(&id).await["status"], "working", "it signals; the work decides (S22)");
    server.gates.open("heard");
    let state = server.client.until(&id, "cancelled").await;
    assert!(state.get("result").is_none() && state.get("error").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn c52_a_tool_that_finishes_after_the_cancel_was_acknowledged_completes() {
    let server = TestServer::start().await;
    let id = server.client.task("deaf", json!({"gate": "g"})).await;
    server.gates.reached("g", 1).await;
    acknowledged(&server.client.cancel(&id).await);
    server.gates.open("g");
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "through");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_a_cancel_wakes_ends_its_task_cancelled() {
    let server = TestServer::start().await;
    let id = server.client.task("asks", json!({})).await;
    server.client.until(&id, "input_required").await;
    acknowledged(&server.client.cancel(&id).await);
    server.client.until(&id, "cancelled").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_between_two_rounds_ends_the_task() {
    let server = TestServer::start().await;
    let answers: Value = json!({"a": crate::support::client::accept("ann")});
    let params =
        json!({"name": "rounds", "arguments": {}, "inputResponses": answers, "requestState": "begun"});
    // The second question is asked before a task exists, so it goes to the caller; a task is made of the third round.
    let asked = server.client.request("tools/call", params).await;
    assert_eq!(asked.result()["resultType"], "input_required");

    let id = server.client.task("later", json!({})).await;
    acknowledged(&server.client.cancel(&id).await);
    server.client.until(&id, "cancelled").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_nobody_began_is_cancelled_at_once() {
    let mut config = config();
    config.max_running = 1;
    let server = TestServer::with(move |builder| builder.config(config.clone())).await;
    let running = server.client.task("gated", json!({"gate": "g"})).await;
    server.gates.reached("g", 1).await;
    let waiting = server.client.task("gated", json!({"gate": "never"})).await;
    acknowledged(&server.client.cancel(&waiting).await);
    assert_eq!(server.client.state(&waiting).await["status"], "cancelled");
    assert_eq!(server.gates.count("never"), 0);
    server.gates.open("g");
    server.client.until(&running, "completed").await;
}
