//! What the store keeps, and what callers see when it fails.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use outlast::{Store, TaskTool};
use outlast_core::{ManualClock, MemoryStore, Timestamp};
use outlast_testkit::FaultStore;
use serde_json::json;

use crate::support::{TestServer, client::accept};

#[tokio::test(flavor = "multi_thread")]
async fn c18_after_a_restart_the_same_caller_finds_its_task_by_id() {
    let server = TestServer::start().await;
    server.gates.open("g");
    let done = server.client.task("gated", json!({"gate": "g"})).await;
    let before = server.client.until(&done, "completed").await;
    let asking = server.client.task("asks", json!({})).await;
    server.client.until(&asking, "input_required").await;
    let once = server.client.task("once", json!({"gate": "never"})).await;
    server.gates.reached("never", 1).await;

    let server = server.restart().await;
    assert_eq!(server.client.state(&done).await, before);
    server.client.until(&asking, "input_required").await;
    server.client.update(&asking, json!({"who": accept("ann")})).await.result();
    let answered = server.client.until(&asking, "completed").await;
    assert_eq!(answered["result"]["content"][0]["text"], "hello ann");
    let unknown = server.client.until(&once, "failed").await;
    assert!(unknown["statusMessage"].as_str().unwrap().contains("its outcome is unknown"), "{unknown:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c19_a_hard_deadline_ends_work_that_waits_for_an_answer_and_frees_its_memory() {
    let server = TestServer::with(|builder| {
        builder.tool("asks", TaskTool::required().deadline(Duration::from_millis(300)))
    })
    .await;
    let id = server.client.task("asks", json!({})).await;
    let failed = server.client.until(&id, "failed").await;
    assert!(failed["statusMessage"].as_str().unwrap().contains("longer than its tool allows"), "{failed:#}");
    server.until_unloaded().await;
    server.expire(&id).await;
    assert_eq!(server.client.get(&id).await.code(), -32602);
}

#[tokio::test(flavor = "multi_thread")]
async fn c20_a_result_that_comes_after_its_task_is_gone_is_dropped_quietly() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({"gate": "g"})).await;
    server.gates.reached("g", 1).await;
    // Ended by someone else and purged while the tool still runs: its lease is over.
    server.end_from_outside(&id).await;
    server.expire(&id).await;
    server.gates.open("g");
    server.until_unloaded().await;
    assert_eq!(server.client.get(&id).await.code(), -32602);
    server.client.task("gated", json!({"gate": "g"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c21_a_failing_store_is_an_internal_error_that_tells_nothing_of_it() {
    let clock = ManualClock::new(Timestamp::from_millis(1_785_283_200_000));
    let faults = Arc::new(FaultStore::sound(Arc::new(MemoryStore::new(clock.clone()))));
    let server = TestServer::on(faults.clone(), clock).await;
    let id = server.client.task("gated", json!({})).await;
    faults.set_down(true);
    let reply = server.client.get(&id).await;
    assert_eq!(reply.code(), -32603);
    for secret in ["sqlite", "SELECT", "/", "disk", "outage"] {
        assert!(!reply.text.contains(secret), "'{secret}' is in {}", reply.text);
    }
    faults.set_down(false);
    assert_eq!(server.client.state(&id).await["status"], "working");
}

#[tokio::test(flavor = "multi_thread")]
async fn c23_the_ttl_of_living_work_is_extended_and_the_work_is_not_killed() {
    let server =
        TestServer::with(|builder| builder.tool("asks", TaskTool::required().ttl(Duration::from_secs(100))))
            .await;
    let id = server.client.task("asks", json!({})).await;
    assert_eq!(server.client.until(&id, "input_required").await["ttlMs"], 100_000);
    server.clock.advance(Duration::from_secs(250));
    loop {
        let state = server.client.state(&id).await;
        assert_eq!(state["status"], "input_required");
        if state["ttlMs"].as_u64().unwrap() > 250_000 {
            break;
        }
        server.store.sweep(50).await.unwrap();
    }
    server.client.update(&id, json!({"who": accept("ann")})).await.result();
    server.client.until(&id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c24_sixteen_tasks_at_once_over_and_over_all_end() {
    let server = TestServer::start().await;
    server.gates.open("g");
    for _ in 0..20 {
        let client = &server.client;
        let ids = join_all((0..16).map(|_| client.task("gated", json!({"gate": "g"})))).await;
        join_all(ids.iter().map(|id| client.until(id, "completed"))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c25_a_question_is_answerable_longer_than_any_result_is_kept() {
    let server = TestServer::with(|builder| {
        let mut config = crate::support::server::config();
        // The store's clock alone is stepped here, so the worker's lease must outlast the steps.
        config.lease = Duration::from_secs(3_600);
        builder.config(config).tool("asks", TaskTool::required().ttl(Duration::from_secs(60)))
    })
    .await;
    server.gates.open("g");
    let id = server.client.task("asks", json!({})).await;
    server.client.until(&id, "input_required").await;
    for _ in 0..50 {
        server.clock.advance(Duration::from_secs(60));
        server.renew(&id).await;
        server.store.sweep(50).await.unwrap();
    }
    assert_eq!(server.client.state(&id).await["status"], "input_required");
    server.client.update(&id, json!({"who": accept("ann")})).await.result();
    server.client.until(&id, "completed").await;
}

/// A server whose work is at the gate `g` under a short lease, on the store's clock, when the store goes down.
async fn at_work_when_its_store_goes_down<S: Store>(
    store: &Arc<FaultStore<S>>,
    clock: ManualClock,
) -> (TestServer, String) {
    let worker = clock.clone();
    let server = TestServer::on_with(store.clone(), clock, move |builder| {
        let mut config = crate::support::server::config();
        config.lease = Duration::from_millis(100);
        config.clock = Arc::new(worker.clone());
        builder.config(config)
    })
    .await;
    let id = server.client.task("once", json!({"gate": "g"})).await;
    server.gates.reached("g", 1).await;
    store.set_down(true);
    (server, id)
}

/// Waits until the store was called, in vain, several times more.
async fn several_calls<S: Store>(store: &FaultStore<S>) {
    let before = store.calls();
    while store.calls() < before + 5 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_waits_for_a_store_that_is_down_longer_than_a_lease() {
    let clock = ManualClock::new(Timestamp::from_millis(1_785_283_200_000));
    let store = Arc::new(FaultStore::sound(Arc::new(MemoryStore::new(clock.clone()))));
    let (server, id) = at_work_when_its_store_goes_down(&store, clock).await;
    server.gates.open("g");
    // The work is over; its lease runs out, and several renewals fail, before its end can be written.
    several_calls(&store).await;
    server.clock.advance(Duration::from_secs(1));
    several_calls(&store).await;
    store.set_down(false);
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "through");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_through_an_outage_of_an_embedded_store_and_ends_after_it() {
    let data = tempfile::TempDir::new().unwrap();
    let clock = ManualClock::new(Timestamp::from_millis(1_785_283_200_000));
    let options = outlast_sqlite::Options::default().clock(clock.clone());
    let sqlite = outlast_sqlite::SqliteStore::open_with(data.path().join("tasks.db"), options).unwrap();
    let store = Arc::new(FaultStore::sound(Arc::new(sqlite)));
    let (server, id) = at_work_when_its_store_goes_down(&store, clock).await;
    server.clock.advance(Duration::from_millis(150));
    several_calls(&store).await;
    store.set_down(false);
    server.gates.open("g");
    let done = server.client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "through");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_acknowledged_before_a_stop_is_worked_off_before_it() {
    for _ in 0..20 {
        let server = TestServer::with(|builder| {
            let mut config = crate::support::server::config();
            config.drain = Duration::from_secs(10);
            // A tool that must not run twice: given back after its answer, it would fail.
            let once = TaskTool::required().recovery(outlast::Recovery::Fail);
            builder.config(config).tool("asks", once)
        })
        .await;
        let ids = join_all((0..6).map(|_| server.client.task("asks", json!({})))).await;
        join_all(ids.iter().map(|id| server.client.until(id, "input_required"))).await;
        let answer = async |id: &String| {
            server.client.update(id, json!({"who": accept("ann")})).await.result();
        };
        join_all(ids.iter().map(answer)).await;
        let server = server.restart().await;
        for id in &ids {
            assert_eq!(server.client.state(id).await["status"], "completed");
        }
    }
}
