//! A task is its principal's, whatever token shows who that is.

use std::time::{SystemTime, UNIX_EPOCH};

use outlast_auth::{Auth, Jwt};
use serde_json::{Value, json};

use crate::{
    issuer::{Issuer, Signer},
    support::{RESOURCE, ask, call, serve},
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
