//! Whose task it is.

use serde_json::json;

use crate::support::{TestServer, client::accept};

#[tokio::test(flavor = "multi_thread")]
async fn c45_a_foreign_task_looks_like_one_that_does_not_exist() {
    let server = TestServer::start().await;
    let alice = server.client.with_token("alice@acme");
    let id = alice.task("asks", json!({})).await;
    let before = alice.until(&id, "input_required").await;
    let unknown = "00000000000000000000000000000000";
    let strangers = [
        server.client.with_token("bob@acme"),
        server.client.clone(),
        server.client.with_token("opaque-token"),
    ];
    for stranger in strangers {
        assert_eq!(stranger.get(&id).await.text, stranger.get(unknown).await.text);
        assert_eq!(stranger.get(&id).await.code(), -32602);
        let answer = json!({"who": accept("mallory")});
        assert_eq!(
            stranger.update(&id, answer.clone()).await.text,
            stranger.update(unknown, answer).await.text
        );
        assert_eq!(stranger.cancel(&id).await.text, stranger.cancel(unknown).await.text);
        assert_eq!(stranger.cancel(&id).await.code(), -32602);
    }
    assert_eq!(alice.state(&id).await, before, "the task is untouched");
}

#[tokio::test(flavor = "multi_thread")]
async fn c46_a_foreign_expired_task_looks_like_one_that_never_was() {
    let server = TestServer::start().await;
    let alice = server.client.with_token("alice@acme");
    let bob = server.client.with_token("bob@acme");
    server.gates.open("g");
    let id = alice.task("gated", json!({"gate": "g"})).await;
    alice.until(&id, "completed").await;
    let never_was = bob.get("00000000000000000000000000000000").await.text;
    assert_eq!(bob.get(&id).await.text, never_was);
    server.expire(&id).await;
    assert_eq!(bob.get(&id).await.text, never_was);
    assert_eq!(alice.get(&id).await.text, never_was);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tokens_are_two_owners_and_one_token_is_one() {
    let server = TestServer::start().await;
    let one = server.client.with_token("token-1");
    let id = one.task("gated", json!({})).await;
    one.get(&id).await.result();
    assert_eq!(server.client.with_token("token-2").get(&id).await.code(), -32602);
    server.client.with_token("token-1").get(&id).await.result();
}

#[tokio::test(flavor = "multi_thread")]
async fn c53_a_tool_sees_the_same_claims_synchronously_as_a_task_and_after_a_restart() {
    let server = TestServer::start().await;
    let alice = server.client.with_token("alice@acme");
    let said = |reply: &serde_json::Value| reply["content"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(said(alice.undeclared().call("claims", json!({})).await.result()), "tenant acme");

    let id = alice.task("claims", json!({"gate": "never"})).await;
    server.gates.reached("never", 1).await;
    let server = server.restart().await;
    let alice = server.client.with_token("alice@acme");
    server.gates.reached("never", 1).await;
    server.gates.open("never");
    assert_eq!(said(&alice.until(&id, "completed").await["result"]), "tenant acme");

    let file = std::fs::read(TestServer::file(&server.data)).unwrap();
    let log = std::fs::read(TestServer::file(&server.data).with_extension("db-wal")).unwrap_or_default();
    for bytes in [file, log] {
        let holds = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!holds("alice@acme") && !holds("Bearer"), "a credential was stored");
    }
}
