//! A task is its principal's, whatever token shows who that is.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use outlast_auth::{Auth, Jwt};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    issuer::{Issuer, Signer},
    support::{RESOURCE, ask, call, client, serve},
};

#[allow(clippy::disallowed_methods)]
fn soon() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 300
}

#[tokio::test]
async fn another_principals_task_is_not_found_and_a_new_token_of_the_same_finds_it() {
    let signer = Signer::p256();
    let issuer = Issuer::start(vec![signer.jwk("ec")]).await;
    let server = serve(Auth::new(Jwt::new(&issuer.url, RESOURCE).unwrap()).resource(RESOURCE).unwrap()).await;
    let token = |subject: &str, id: &str| {
        let claims = json!({ "iss": issuer.url, "sub": subject, "aud": RESOURCE, "exp": soon(), "jti": id });
        format!("Bearer {}", signer.token("ec", &claims))
    };
    let created = call(server, Some(&token("ann", "1"))).await.json();
    let id = created["result"]["taskId"].as_str().unwrap().to_owned();

    for (method, more) in [
        ("tasks/get", json!({})),
        ("tasks/cancel", json!({})),
        ("tasks/update", json!({ "inputResponses": { "a": { "action": "accept" } } })),
    ] {
        let mut params: Value = more;
        params["taskId"] = id.clone().into();
        let answer = ask(server, Some(&token("bob", "2")), method, params).await;
        let unknown = ask(
            server,
            Some(&token("bob", "2")),
            method,
            json!({ "taskId": "0".repeat(id.len()),
            "inputResponses": { "a": { "action": "accept" } } }),
        )
        .await;
        assert_eq!(answer.json()["error"]["code"], -32602, "{method}: {answer:?}");
        assert_eq!(answer.status, unknown.status, "a task of another is as one that is not there");
    }
    let found = ask(server, Some(&token("ann", "3")), "tasks/get", json!({ "taskId": id })).await;
    assert_eq!(found.json()["result"]["taskId"], id.as_str());
    assert_eq!(ask(server, None, "tasks/get", json!({ "taskId": id })).await.status, 401);
}

#[tokio::test]
async fn the_same_subject_of_another_issuer_is_somebody_else() {
    let (one, other) = (Signer::p256(), Signer::p256());
    let (first, second) =
        (Issuer::start(vec![one.jwk("k")]).await, Issuer::start(vec![other.jwk("k")]).await);
    let named = |issuer: &Issuer, signer: &Signer| {
        signer.token("k", &json!({ "iss": issuer.url, "sub": "ann", "aud": RESOURCE, "exp": soon() }))
    };
    use outlast_auth::Authenticate as _;
    let at = |issuer: &Issuer| Jwt::new(&issuer.url, RESOURCE).unwrap();
    let ann = at(&first).authenticate(&named(&first, &one)).await.unwrap();
    let another = at(&second).authenticate(&named(&second, &other)).await.unwrap();
    assert_ne!(ann, another);
    assert!(at(&first).authenticate(&named(&second, &other)).await.is_err());
}

/// A request of protocol 2025-11-25, and its status and session.
async fn in_session(
    server: SocketAddr,
    method: Method,
    token: &str,
    session: Option<&str>,
    body: Option<Value>,
) -> (u16, Option<String>) {
    let mut request = client()
        .request(method, format!("http://{server}/mcp"))
        .header("authorization", token)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2025-11-25")
        .timeout(Duration::from_secs(30));
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    if let Some(body) = body {
        request = request.body(body.to_string());
    }
    // Not its body: that of a stream has no end.
    let response = request.send().await.unwrap();
    let session = response.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
    (response.status().as_u16(), session)
}

#[tokio::test]
async fn a_session_is_not_there_for_anybody_but_the_principal_who_began_it() {
    let signer = Signer::p256();
    let issuer = Issuer::start(vec![signer.jwk("ec")]).await;
    let server = serve(Auth::new(Jwt::new(&issuer.url, RESOURCE).unwrap())).await;
    let token = |subject: &str, id: &str| {
        let claims = json!({ "iss": issuer.url, "sub": subject, "aud": RESOURCE, "exp": soon(), "jti": id });
        format!("Bearer {}", signer.token("ec", &claims))
    };
    let (ann, bob) = (token("ann", "1"), token("bob", "2"));
    let begin = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
    } });
    let began = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let (status, session) = in_session(server, Method::POST, &ann, None, Some(begin)).await;
    let session = session.unwrap();
    assert_eq!(status, 200);
    assert_eq!(in_session(server, Method::POST, &ann, Some(&session), Some(began)).await.0, 202);

    // What she was given, and what the SDK may have written of it in a log.
    let bare = session.rsplit_once('.').map_or(&*session, |(id, _)| id);
    for stolen in [&*session, bare] {
        for (method, body) in
            [(Method::POST, Some(list.clone())), (Method::GET, None), (Method::DELETE, None)]
        {
            let (status, _) = in_session(server, method.clone(), &bob, Some(stolen), body).await;
            assert_eq!(status, 404, "{method} {stolen}");
        }
    }
    // It is still there for her, whatever token shows who she is.
    let renewed = token("ann", "3");
    assert_eq!(in_session(server, Method::POST, &renewed, Some(&session), Some(list)).await.0, 200);
    assert_eq!(in_session(server, Method::GET, &renewed, Some(&session), None).await.0, 200);
}
