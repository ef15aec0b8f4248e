//! Upstreams that get their callers' own `Authorization` headers: each its own, and nothing of another's.

mod stub;
mod waiting;

use std::{collections::BTreeSet, sync::Arc};

use outlast::{Config, MemoryStore, SystemClock, http};
use outlast_client::Server;
use outlast_gateway::{Gateway, GatewayOptions, Upstream};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::stub::{Caller, Stub, gateway, in_front, is_final, message, serve};

#[tokio::test(flavor = "multi_thread")]
async fn each_request_of_a_caller_carries_that_callers_header() {
    let stub = Stub::new(false);
    for caller in in_front(&stub).await {
        let token = caller.token;
        let ask = async |method: &str, params: Value| caller.ask(method, params).await.unwrap().to_string();
        for (method, params) in [
            ("tools/list", json!({})),
            ("prompts/list", json!({})),
            ("resources/list", json!({})),
            ("resources/templates/list", json!({})),
            ("prompts/get", json!({ "name": "p" })),
            ("resources/read", json!({ "uri": "a://1" })),
            (
                "completion/complete",
                json!({ "ref": { "type": "ref/prompt", "name": "p" }, "argument": { "name": "a", "value": "" } }),
            ),
            ("custom/echo", json!({})),
            ("server/discover", json!({})),
        ] {
            let answer = ask(method, params).await;
            assert!(answer.contains(token), "{method}: {answer}");
        }
        let id = caller.start("tool").await;
        assert_eq!(caller.ended(&id).await, token);
        let held =
            caller.ask_as("tools/call", json!({ "name": "tool", "arguments": { "n": 1 } }), false).await;
        assert_eq!(held.unwrap()["content"][0]["text"], token);
    }
    let others: Vec<_> = stub.seen().into_iter().filter(|(_, token, _)| token == "nobody").collect();
    assert_eq!(others, [], "the gateway asks nothing for itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_header_is_forwarded_unless_that_is_set() {
    let stub = Stub::new(false);
    let upstream = Upstream::only(Server::http(stub.serve().await));
    let server = gateway(vec![upstream], Arc::new(MemoryStore::new(SystemClock))).await;
    let caller = Caller { address: serve(server).await, token: "ann-1" };
    let id = caller.start("slow").await;
    stub.until_seen("tasks/get", "nobody", 1).await;
    caller.ask("tools/list", json!({})).await.unwrap();
    caller.ask("tasks/cancel", json!({ "taskId": id })).await.unwrap();
    stub.until_seen("tasks/cancel", "nobody", 1).await;
    assert!(stub.seen().iter().all(|(_, token, _)| token == "nobody"), "{:?}", stub.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_owner_was_told_is_not_shown_to_another() {
    let stub = Stub::new(false);
    let [ann, bob] = in_front(&stub).await;
    for method in
        ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover"]
    {
        for (caller, other) in [(&ann, "bob-1"), (&bob, "ann-1"), (&ann, "bob-1")] {
            let told = caller.ask(method, json!({})).await.unwrap().to_string();
            assert!(told.contains(caller.token) && !told.contains(other), "{method}: {told}");
        }
    }
    // The same call of another is another call, and its work is not there for the first one.
    let call = json!({ "name": "tool", "arguments": { "same": true } });
    for caller in [&ann, &bob] {
        let told = caller.ask_as("tools/call", call.clone(), false).await.unwrap();
        assert_eq!(told["content"][0]["text"], caller.token);
    }
    let id = ann.start("slow").await;
    bob.ask("tasks/get", json!({ "taskId": id })).await.unwrap_err();
    bob.ask("tasks/cancel", json!({ "taskId": id })).await.unwrap_err();
    assert!(
        !stub.tokens("tasks/get").contains(&"bob-1".to_owned()),
        "bob's request lets ann's work in nowhere"
    );
    assert_eq!(stub.tokens("tasks/cancel"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_an_upstream_is_one_owners_alone() {
    let stub = Stub::new(true);
    let [ann, bob] = in_front(&stub).await;
    let calls = [&ann, &bob, &ann, &bob].map(async |caller| {
        let id = caller.start("tool").await;
        assert_eq!(caller.ended(&id).await, caller.token);
    });
    futures::future::join_all(calls).await;
    let seen = stub.seen();
    let sessions: BTreeSet<(&str, &str)> = seen
        .iter()
        .filter(|(_, _, session)| !session.is_empty())
        .map(|(_, token, session)| (session.as_str(), token.as_str()))
        .collect();
    assert_eq!(sessions.len(), 2, "{sessions:?}");
    assert_eq!(sessions.iter().map(|(session, _)| *session).collect::<BTreeSet<_>>().len(), 2);
    assert_eq!(stub.tokens("initialize").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tokens_of_one_owner_are_not_mixed() {
    let stub = Stub::new(false);
    let [ann, _] = in_front(&stub).await;
    let other = ann.with("ann-2");
    let id = ann.start("slow").await;
    stub.until_seen("tasks/get", "ann-1", 1).await;
    for caller in [&other, &ann, &other] {
        let listed = caller.ask("resources/list", json!({})).await.unwrap().to_string();
        assert!(listed.contains(caller.token), "{listed}");
        let called = caller.start("tool").await;
        assert_eq!(caller.ended(&called).await, caller.token);
    }
    let read = ann.ask("resources/read", json!({ "uri": "a://1" })).await.unwrap().to_string();
    assert!(read.contains("ann-1"), "{read}");
    // A task goes on with the token of its own call, until a request about it brings another.
    assert!(stub.tokens("tasks/get").iter().all(|token| token == "ann-1"), "{:?}", stub.tokens("tasks/get"));
    other.get(&id).await;
    stub.until_seen("tasks/get", "ann-2", 1).await;
    other.ask("tasks/cancel", json!({ "taskId": id })).await.unwrap();
    stub.until_seen("tasks/cancel", "ann-2", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_made_for_its_own_caller() {
    let stub = Stub::new(false);
    let [ann, bob] = in_front(&stub).await;
    let subscribed = [&ann, &bob].map(|caller| {
        let caller = caller.clone();
        tokio::spawn(async move {
            let filter = json!({ "toolsListChanged": true, "resourceSubscriptions": ["a://1"] });
            caller.ask("subscriptions/listen", json!({ "notifications": filter })).await
        })
    });
    for token in ["ann-1", "bob-1"] {
        // One for the lists, and one for the resource.
        stub.until_seen("subscriptions/listen", token, 2).await;
    }
    assert!(!stub.tokens("subscriptions/listen").contains(&"nobody".to_owned()));
    subscribed.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_upstream_is_told_to_the_caller_and_to_no_other() {
    for legacy in [false, true] {
        let stub = Stub::new(legacy);
        stub.lets_in(&["bob-1"]);
        let [ann, bob] = in_front(&stub).await;
        for (method, params) in [
            ("tools/list", json!({})),
            ("prompts/get", json!({ "name": "p" })),
            ("resources/read", json!({ "uri": "a://1" })),
        ] {
            let refused = ann.ask(method, params).await.unwrap_err();
            let message = refused["message"].as_str().unwrap();
            assert!(
                message.contains("401") && message.contains("a token that it accepts"),
                "{method}: {refused}"
            );
            assert!(!message.contains("ann-1"));
        }
        let id = ann.start("tool").await;
        let failed = ann.until(&id, is_final).await;
        assert_eq!(failed["status"], "failed");
        assert!(failed["error"]["message"].as_str().unwrap().contains("401"), "{failed}");
        let held = ann.ask_as("tools/call", json!({ "name": "tool" }), false).await.unwrap_err();
        assert!(held["message"].as_str().unwrap().contains("401"), "{held}");
        let nobody = ann.with("").ask("tools/list", json!({})).await.unwrap_err();
        assert!(nobody["message"].as_str().unwrap().contains("this request has none"), "{nobody}");

        let id = bob.start("tool").await;
        assert_eq!(bob.ended(&id).await, "bob-1");
        // The upstream counts as there, so that the next token of the same owner is tried at once.
        stub.lets_in(&["ann-2", "bob-1"]);
        assert!(
            ann.with("ann-2").ask("tools/list", json!({})).await.unwrap().to_string().contains("of_ann-2")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_people_each_token_is_an_owner() {
    let stub = Stub::new(true);
    let upstream = Upstream::only(Server::http(stub.serve().await)).forward_authorization();
    let server = gateway(vec![upstream], Arc::new(MemoryStore::new(SystemClock))).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { http::serve(listener, server, std::future::pending()).await });
    for token in ["ann-1", "ann-2"] {
        let caller = Caller { address: address.clone(), token };
        let id = caller.start("tool").await;
        assert_eq!(caller.ended(&id).await, token);
    }
    assert_eq!(stub.tokens("initialize"), ["ann-1", "ann-2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_a_caller_hears_by_the_callers_own_token() {
    let stub = Stub::new(true);
    for caller in in_front(&stub).await {
        let hello = json!({
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": { "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
        });
        let opened = caller.post(&hello, "").await;
        let session =
            opened.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap().to_owned();
        let told = message(&opened).unwrap();
        assert_eq!(told["instructions"], format!("for {}", caller.token));
        let headers = format!("Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n");
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        caller.post(&initialized, &headers).await;
        for (method, params) in [
            ("resources/subscribe", json!({ "uri": "a://1" })),
            ("logging/setLevel", json!({ "level": "error" })),
            ("resources/unsubscribe", json!({ "uri": "a://1" })),
        ] {
            let asked = json!({ "jsonrpc": "2.0", "id": 2, "method": method, "params": params });
            message(&caller.post(&asked, &headers).await).unwrap();
            stub.until_seen(method, caller.token, 1).await;
        }
    }
    assert!(stub.seen().iter().all(|(_, token, _)| token != "nobody"), "{:?}", stub.seen());
    for method in ["resources/subscribe", "resources/unsubscribe", "logging/setLevel"] {
        assert_eq!(stub.tokens(method), ["ann-1", "bob-1"], "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_beside_it_gets_no_callers_header_and_is_known_from_the_start() {
    let (forwarding, plain) = (Stub::new(false), Stub::new(false));
    let upstreams = vec![
        Upstream::named("own", Server::http(forwarding.serve().await)).forward_authorization(),
        Upstream::named("plain", Server::http(plain.serve().await)),
    ];
    let server = gateway(upstreams, Arc::new(MemoryStore::new(SystemClock))).await;
    let ann = Caller { address: serve(server).await, token: "ann-1" };
    let mut names = Vec::new();
    let mut params = json!({});
    loop {
        let page = ann.ask("tools/list", params).await.unwrap();
        names.extend(page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()));
        match page.get("nextCursor").filter(|cursor| !cursor.is_null()) {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None => break,
        }
    }
    assert_eq!(
        names,
        ["own__tool", "own__slow", "own__of_ann-1", "plain__tool", "plain__slow", "plain__of_nobody"]
    );
    for (tool, token) in [("own__tool", "ann-1"), ("plain__tool", "nobody")] {
        let id = ann.start(tool).await;
        assert_eq!(ann.ended(&id).await, token);
    }
    assert!(forwarding.seen().iter().all(|(_, token, _)| token == "ann-1"), "{:?}", forwarding.seen());
    assert!(plain.seen().iter().all(|(_, token, _)| token == "nobody"), "{:?}", plain.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_not_reached_over_http_cannot_be_forwarded_to() {
    let store = Arc::new(MemoryStore::new(SystemClock));
    let upstream = Upstream::only(Server::command("my-server", [] as [&str; 0])).forward_authorization();
    let refused = Gateway::serve(vec![upstream], GatewayOptions::default(), store, Config::default()).await;
    assert!(refused.unwrap_err().to_string().contains("not reached over HTTP"));
}
