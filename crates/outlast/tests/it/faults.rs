//! One fault at each call that a task's life makes on its store, in turn.

use std::{sync::Arc, time::Duration};

use outlast_core::{ManualClock, Timestamp};
use outlast_sqlite::SqliteStore;
use outlast_testkit::{Fault, FaultStore};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, Reply, TestServer, client::accept, server::config};

/// A caller who, as the protocol lets it, repeats what failed with an internal error. A creation is repeated under its
/// key, so that it cannot happen twice.
async fn insist(send: impl AsyncFn() -> Reply) -> Value {
    loop {
        let reply = send().await;
        if let Some(result) = reply.body.get("result") {
            return result.clone();
        }
        assert_eq!(reply.code(), -32603, "only the store's failure may be told: {}", reply.text);
    }
}

async fn create(client: &Client, tool: &str, arguments: Value, key: &str) -> String {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"outlast/idempotencyKey": key}});
    let created = insist(async || client.request("tools/call", params.clone()).await).await;
    assert_eq!(created["resultType"], "task");
    created["taskId"].as_str().unwrap().to_owned()
}

/// Looks once for each change of the store, so that a life makes about the same calls every time.
async fn until(server: &TestServer, id: &str, accept: impl Fn(&Value) -> bool) -> Value {
    let mut changes = server.server.watch();
    loop {
        let state = insist(async || server.client.get(id).await).await;
        if accept(&state) {
            return state;
        }
        let over = ["completed", "failed", "cancelled"].contains(&state["status"].as_str().unwrap());
        assert!(!over, "this is not what was to become of it: {state:#}");
        changes.next().await.unwrap();
    }
}

fn is(status: &str) -> impl Fn(&Value) -> bool {
    move |state| state["status"] == status
}

fn asks(key: &str) -> impl Fn(&Value) -> bool {
    move |state| state["inputRequests"].get(key).is_some()
}

/// A question answered, a cancel heard, a multi-round-trip call: each ends as it must.
async fn three_lives(server: &TestServer) {
    server.gates.open("heard");
    let client = &server.client;
    let asks_id = create(client, "asks", json!({}), "asks").await;
    until(server, &asks_id, asks("who")).await;
    insist(async || client.update(&asks_id, json!({"who": accept("ann")})).await).await;
    let done = until(server, &asks_id, is("completed")).await;
    assert_eq!(done["result"]["content"][0]["text"], "hello ann");

    let gated = create(client, "gated", json!({"gate": "never"}), "gated").await;
    insist(async || client.cancel(&gated).await).await;
    until(server, &gated, is("cancelled")).await;

    let rounds = create(client, "rounds", json!({}), "rounds").await;
    until(server, &rounds, asks("a")).await;
    insist(async || client.update(&rounds, json!({"a": accept("ann")})).await).await;
    until(server, &rounds, asks("b")).await;
    insist(async || client.update(&rounds, json!({"b": accept("bea")})).await).await;
    let done = until(server, &rounds, is("completed")).await;
    assert_eq!(done["result"]["content"][0]["text"], "a=ann b=bea");
}

/// Walks every call in turn until a life is over before the fault would strike.
async fn walk(fault: Fault) {
    for nth in 1.. {
        let data = TempDir::new().unwrap();
        // On the machine's own clock: a claim whose answer is lost is made good when its lease runs out.
        let sound = SqliteStore::open(data.path().join("tasks.db")).unwrap();
        let store = Arc::new(FaultStore::failing(Arc::new(sound), nth, fault));
        let server = TestServer::on_with(store.clone(), ManualClock::new(Timestamp::default()), |builder| {
            let mut config = config();
            config.lease = Duration::from_millis(500);
            config.poll_every = Duration::from_millis(100);
            builder.config(config).tool("rounds", outlast::TaskTool::required())
        })
        .await;
        three_lives(&server).await;
        if !store.struck() {
            assert!(nth > 20, "the walk is too short to have seen a task's life: {nth} calls");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_before_the_effect_of_any_call_leaves_nothing_undone() {
    walk(Fault::Before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_lost_after_the_effect_of_any_call_does_nothing_twice() {
    walk(Fault::After).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_of_any_call_changes_nothing() {
    walk(Fault::Delayed(5)).await;
}
