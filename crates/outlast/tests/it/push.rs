//! `subscriptions/listen` with task ids, over HTTP (S27, S28).

use std::{sync::Arc, time::Duration};

use axum::Router;
use outlast::{MemoryStore, SystemClock, TaskServer, TaskTool};
use outlast_core::{By, Event, Store};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use serde_json::{Value, json};

use crate::support::{Client, TestServer, client::accept, gates::Gates, handler::Handler};

/// What `tasks/get` says of a task, without what belongs to its answer alone.
async fn get(client: &Client, id: &str) -> Value {
    let mut state = client.state(id).await;
    state.as_object_mut().unwrap().remove("resultType");
    state
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_sees_each_state_as_tasks_get_would_show_it_and_then_the_end() {
    let server = TestServer::start().await;
    let client = &server.client;
    let id = client.task("stages", json!({})).await;
    server.gates.reached("begin", 1).await;
    let mut listener = client.follow(&[&id]).await;
    let working = listener.state().await;
    assert_eq!((&working["status"], &working), (&json!("working"), &get(client, &id).await));

    server.gates.open("begin");
    let asked = listener.state().await;
    assert_eq!((&asked["status"], &asked), (&json!("input_required"), &get(client, &id).await));
    assert!(asked["inputRequests"]["who"]["params"]["message"].is_string());

    client.update(&id, json!({"who": accept("ann")})).await.result();
    let working = listener.state().await;
    assert_eq!((&working["status"], &working), (&json!("working"), &get(client, &id).await));

    server.gates.open("end");
    let done = listener.state().await;
    assert_eq!((&done["status"], &done), (&json!("completed"), &get(client, &id).await));
    assert_eq!(done["result"]["content"][0]["text"], "hello ann");
    listener.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_does_not_declare_the_extension_is_refused_with_a_plain_answer() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({})).await;
    let refused = server.client.undeclared().listen(json!({"taskIds": [id]})).await.err().unwrap();
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    assert_eq!(server.server.load().await.unwrap().subscriptions, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_caller_may_read_is_agreed_to_each_once() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.client.with_token("ann@acme"), server.client.with_token("bob@acme"));
    let (mine, foreign) = (ann.task("gated", json!({})).await, bob.task("gated", json!({})).await);
    let unknown = "0".repeat(32);
    let asked = json!({"taskIds": [foreign, mine, unknown, "no id", mine]});
    let mut listener = ann.listen(asked).await.unwrap();
    assert_eq!(listener.acknowledged().await, json!({"taskIds": [mine]}));
    assert_eq!(listener.state().await["taskId"], mine);
    // Nothing of the other one comes.
    bob.cancel(&foreign).await.result();
    server.gates.open("heard");
    bob.until(&foreign, "cancelled").await;
    ann.cancel(&mine).await.result();
    assert_eq!(listener.until("cancelled").await["taskId"], mine);
    listener.ended().await;

    for none in [json!([]), json!([foreign, unknown, ""])] {
        let mut listener = ann.listen(json!({"taskIds": none})).await.unwrap();
        assert_eq!(listener.acknowledged().await, json!({"taskIds": []}));
        listener.ended().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_is_none_and_one_that_is_too_long_are_refused() {
    let server = TestServer::start().await;
    let many: Vec<_> = (0..10_000).map(|n| format!("{n:032x}")).collect();
    for (filter, says) in [
        (json!({"taskIds": "x"}), "taskIds is a list"),
        (json!({"taskIds": [1]}), "taskIds is a list"),
        (json!({"taskIds": [], "toolsListChanged": 3}), "a filter has"),
        (json!({"taskIds": many}), "at most 1000 tasks"),
    ] {
        let refused = server.client.listen(filter).await.err().unwrap();
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains(says), "{refused}");
    }
    let bare = server.client.request("subscriptions/listen", json!({})).await;
    assert_eq!(bare.code(), -32602, "{}", bare.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_has_only_so_many_subscriptions_and_one_that_leaves_makes_room() {
    let server = TestServer::with(|builder| {
        let mut config = crate::support::server::config();
        config.max_subscriptions_per_owner = 2;
        builder.config(config)
    })
    .await;
    let client = server.client.with_token("ann@acme");
    let id = client.task("gated", json!({})).await;
    let first = client.follow(&[&id]).await;
    let _second = client.follow(&[&id]).await;
    let refused = client.listen(json!({"taskIds": [id]})).await.err().unwrap();
    assert!(refused["error"]["message"].as_str().unwrap().contains("as many subscriptions as allowed"));
    drop(first);
    // The server notices by itself.
    while server.server.load().await.unwrap().subscriptions > 1 {
        tokio::task::yield_now().await;
    }
    client.follow(&[&id]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_another_process_makes_is_pushed_too() {
    let server = TestServer::start().await;
    let id = server.client.task("asks", json!({})).await;
    server.client.until(&id, "input_required").await;
    let mut listener = server.client.follow(&[&id]).await;
    assert_eq!(listener.state().await["status"], "input_required");
    let front = server.front_store();
    front.apply(id.parse().unwrap(), By::Operator, vec![Event::Cancel]).await.unwrap();
    listener.until("cancelled").await;
    listener.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c43_and_a_lost_subscription_misses_nothing() {
    let server = TestServer::start().await;
    let client = &server.client;
    let id = client.task("stages", json!({})).await;
    let mut listener = client.follow(&[&id]).await;
    // Its method is `notifications/tasks`: `state` looks.
    assert_eq!(listener.state().await["status"], "working");
    drop(listener);
    server.gates.open("begin");
    client.until(&id, "input_required").await;
    let mut listener = client.follow(&[&id]).await;
    assert_eq!(listener.state().await["status"], "input_required", "the first is the state as it is");
    drop(listener);
    client.update(&id, json!({"who": accept("ann")})).await.result();
    server.gates.open("end");
    client.until(&id, "completed").await;
    let mut listener = client.follow(&[&id]).await;
    assert_eq!(listener.state().await, get(client, &id).await);
    listener.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c44_a_subscriber_that_stops_reading_gets_the_newest_state_and_delays_nobody() {
    let server = TestServer::start().await;
    let client = &server.client;
    let big = "x".repeat(3_000);
    let id = client.task("chatters", json!({"text": big})).await;
    let mut sleepy = client.follow(&[&id]).await;
    let mut awake = client.follow(&[&id]).await;
    server.gates.open("begin");
    // The one that reads sees the end of it, whatever the other one does.
    let mut seen = 0;
    loop {
        let state = awake.state().await;
        seen += 1;
        if state["status"] == "completed" {
            break;
        }
    }
    awake.ended().await;
    assert!(seen > 2, "it saw states on the way: {seen}");
    let last = sleepy.until("completed").await;
    assert_eq!(last, get(client, &id).await);
    sleepy.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mixed_filter_is_served_whole() {
    let server = TestServer::start().await;
    let client = &server.client;
    let id = client.task("gated", json!({"gate": "g"})).await;
    let filter = json!({"taskIds": [id], "toolsListChanged": true, "promptsListChanged": true});
    let mut listener = client.listen(filter).await.unwrap();
    assert_eq!(listener.acknowledged().await, json!({"taskIds": [id], "toolsListChanged": true}));
    assert_eq!(listener.state().await["status"], "working");
    server.gates.open("tools changed");
    let changed = listener.next().await.unwrap();
    assert_eq!(changed["method"], "notifications/tools/list_changed", "{changed}");
    assert_eq!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "sub");
    server.gates.open("g");
    listener.until("completed").await;
    // The tools are still subscribed.
    server.gates.open("tools done");
    listener.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_without_tasks_is_the_handlers_own() {
    let server = TestServer::start().await;
    let mut listener = server.client.undeclared().listen(json!({"toolsListChanged": true})).await.unwrap();
    let agreed = listener.next().await.unwrap();
    assert_eq!(agreed["params"]["notifications"], json!({"toolsListChanged": true}));
    server.gates.open("tools changed");
    server.gates.open("tools done");
    assert_eq!(listener.next().await.unwrap()["method"], "notifications/tools/list_changed");
    listener.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_the_streams_with_their_result() {
    let server = TestServer::start().await;
    let id = server.client.task("gated", json!({})).await;
    let mut listener = server.client.follow(&[&id]).await;
    assert_eq!(listener.state().await["status"], "working");
    let stopping = tokio::spawn(server.stop());
    listener.ended().await;
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_own_service_under_a_router_of_ones_own_needs_one_layer() {
    let gates = Gates::default();
    let server = TaskServer::builder(Handler { gates: gates.clone() })
        .store(MemoryStore::new(SystemClock))
        .tool("gated", TaskTool::required())
        .build()
        .await
        .unwrap();
    let options = outlast::http::Options::default();
    let (shared, config) = (server.clone(), StreamableHttpServerConfig::default());
    let mcp: StreamableHttpService<_, LocalSessionManager> =
        StreamableHttpService::new(move || Ok(shared.clone()), Arc::default(), config);
    let app = Router::new().route_service("/mcp", mcp).layer(outlast::http::layer(&options));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(format!("http://{}/mcp", listener.local_addr().unwrap()));
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    let id = client.task("gated", json!({"gate": "g"})).await;
    let mut subscription = client.follow(&[&id]).await;
    assert_eq!(subscription.state().await["status"], "working");
    gates.open("g");
    subscription.until("completed").await;
    subscription.ended().await;
    serving.abort();
    tokio::time::timeout(Duration::from_secs(60), server.shutdown()).await.unwrap();
}
