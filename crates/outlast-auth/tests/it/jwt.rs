//! Tokens of an issuer: which are good, and how the others are refused.

use std::{
    net::SocketAddr,
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use outlast_auth::{Auth, Jwt};
use serde_json::{Value, json};

use crate::{
    issuer::{Issuer, Signer, base64url},
    support::{Answer, RESOURCE, call, client, serve},
};

const METADATA: &str = "https://tools.example.com/.well-known/oauth-protected-resource/mcp";

#[allow(clippy::disallowed_methods)]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn claims(issuer: &Issuer) -> Value {
    json!({ "iss": issuer.url, "sub": "ann", "aud": RESOURCE, "exp": now() + 300, "iat": now() })
}

/// The claims with one of them changed; `null` takes it away.
fn but(issuer: &Issuer, name: &str, value: Value) -> Value {
    let mut claims = claims(issuer);
    claims[name] = value;
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

async fn protected(jwt: Jwt) -> SocketAddr {
    serve(Auth::new(jwt).resource(RESOURCE).unwrap()).await
}

async fn of(issuer: &Issuer) -> SocketAddr {
    protected(Jwt::new(&issuer.url, RESOURCE).unwrap()).await
}

async fn with(server: SocketAddr, token: &str) -> Answer {
    call(server, Some(&format!("Bearer {token}"))).await
}

#[tokio::test]
async fn a_token_of_each_kind_of_key_is_good() {
    let (ed, ec, rsa) = (Signer::ed25519(), Signer::p256(), Signer::rsa());
    let issuer = Issuer::start(vec![ed.jwk("ed"), ec.jwk("ec"), rsa.jwk("rsa")]).await;
    let server = of(&issuer).await;
    let tokens = [
        ed.token("ed", &claims(&issuer)),
        ec.token("ec", &claims(&issuer)),
        rsa.token("rsa", &claims(&issuer)),
        rsa.token_as(&json!({ "alg": "PS256", "kid": "rsa" }), &claims(&issuer)),
        // Without an id the keys of its algorithm are tried.
        ec.token_as(&json!({ "alg": "ES256" }), &claims(&issuer)),
        // Several audiences, and clocks that differ a little.
        ed.token("ed", &but(&issuer, "aud", json!(["https://other.example", RESOURCE]))),
        ed.token("ed", &but(&issuer, "exp", json!(now() - 30))),
        ed.token("ed", &but(&issuer, "nbf", json!(now() + 30))),
    ];

    for token in &tokens {
        let answer = with(server, token).await;
        assert_eq!(answer.json()["result"]["resultType"], "task", "{answer:?}");
    }
    // The scheme has any case.
    assert_eq!(call(server, Some(&format!("bearer {}", tokens[0]))).await.status, 200);
    assert_eq!(issuer.reads.load(Ordering::SeqCst), 1, "the keys are read once");
}

#[tokio::test]
async fn a_request_without_a_token_is_told_where_to_get_one() {
    let issuer = Issuer::start(vec![Signer::p256().jwk("ec")]).await;
    let server = of(&issuer).await;

    for authorization in [None, Some("Basic YTpi"), Some("Bearer"), Some("Bearer  "), Some("Token abc")] {
        let answer = call(server, authorization).await;
        assert_eq!((answer.status, answer.error()), (401, None), "{authorization:?}: {answer:?}");
        let challenge = answer.challenge.unwrap();
        assert_eq!(challenge, format!("Bearer resource_metadata=\"{METADATA}\""));
    }
    for place in ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"] {
        let document = Answer::of(client().get(format!("http://{server}{place}"))).await.json();
        assert_eq!(document["resource"], RESOURCE);
        assert_eq!(document["authorization_servers"], json!([issuer.url]));
        assert_eq!(document["bearer_methods_supported"], json!(["header"]));
    }
}

#[tokio::test]
async fn a_token_that_is_not_good_is_refused_and_told_why() {
    let (signer, stranger) = (Signer::p256(), Signer::p256());
    let rsa = Signer::rsa();
    let issuer = Issuer::start(vec![signer.jwk("ec"), rsa.jwk("rsa")]).await;
    let server = of(&issuer).await;
    let good = claims(&issuer);
    let of = |claims: Value| signer.token("ec", &claims);
    let unsigned =
        |header: Value| format!("{}.{}.", base64url(header.to_string()), base64url(good.to_string()));
    // The public key as a shared secret: what a library does that goes by the token's own word.
    let confused = {
        let header = json!({ "alg": "HS256", "kid": "rsa" });
        let message = format!("{}.{}", base64url(header.to_string()), base64url(good.to_string()));
        let secret = rsa.jwk("rsa")["n"].as_str().unwrap().to_owned();
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
        format!("{message}.{}", base64url(ring::hmac::sign(&key, message.as_bytes())))
    };
    let (body, signature) =
        of(good.clone()).rsplit_once('.').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let mut other = claims(&issuer);
    other["sub"] = "bob".into();
    let header = body.split_once('.').unwrap().0;
    let swapped = format!("{header}.{}.{signature}", base64url(other.to_string()));

    for (token, why) in [
        (of(but(&issuer, "exp", json!(now() - 61))), "has expired"),
        (of(but(&issuer, "nbf", json!(now() + 120))), "not good yet"),
        (of(but(&issuer, "aud", json!("https://other.example/mcp"))), "meant for another server"),
        (of(but(&issuer, "aud", json!([]))), "meant for another server"),
        (of(but(&issuer, "iss", json!("https://evil.example"))), "another issuer"),
        (of(but(&issuer, "sub", json!(""))), "no subject"),
        (of(but(&issuer, "sub", json!(null))), "lacks a claim"),
        (of(but(&issuer, "exp", json!(null))), "lacks a claim"),
        (of(but(&issuer, "aud", json!(null))), "lacks a claim"),
        (of(but(&issuer, "exp", json!("tomorrow"))), "lacks a claim"),
        (of(but(&issuer, "nbf", json!("9999999999"))), "lacks a claim"),
        (stranger.token("ec", &good), "signature is not good"),
        (swapped, "signature is not good"),
        (format!("{body}."), "signature is not good"),
        (stranger.token("unknown", &good), "a key that its issuer does not have"),
        (
            signer.token_as(&json!({ "alg": "ES256", "kid": "rsa" }), &good),
            "a key that its issuer does not have",
        ),
        (unsigned(json!({ "alg": "none" })), "not one that this server can read"),
        (unsigned(json!({ "alg": "None", "kid": "ec" })), "not one that this server can read"),
        (confused, "not signed by a key"),
        ("garbage".to_owned(), "not one that this server can read"),
        ("a.b.c".to_owned(), "not one that this server can read"),
    ] {
        let answer = with(server, &token).await;
        assert_eq!((answer.status, answer.error()), (401, Some("invalid_token")), "{why}: {answer:?}");
        let challenge = answer.challenge.as_deref().unwrap();
        assert!(challenge.contains(why) && challenge.contains(METADATA), "{why}: {challenge}");
    }
    // Two, of which a proxy may have looked at the other.
    let twice = client()
        .post(format!("http://{server}/mcp"))
        .header("authorization", format!("Bearer {}", of(good.clone())))
        .header("authorization", "Bearer other");
    assert_eq!(Answer::of(twice).await.status, 401);
}

#[tokio::test]
async fn a_new_key_of_the_issuer_is_found_and_an_old_one_forgotten() {
    let (old, new) = (Signer::p256(), Signer::ed25519());
    let issuer = Issuer::start(vec![old.jwk("old")]).await;
    let server = of(&issuer).await;
    assert_eq!(with(server, &old.token("old", &claims(&issuer))).await.status, 200);

    *issuer.keys.lock().unwrap() = vec![new.jwk("new")];
    // One who makes up ids of keys does not make the server ask for each.
    for n in 0..5 {
        let answer = with(server, &new.token(&format!("made-up-{n}"), &claims(&issuer))).await;
        assert_eq!(answer.status, 401);
    }
    assert_eq!(issuer.reads.load(Ordering::SeqCst), 1, "the last look was a moment ago");
    pass(Duration::from_secs(10)).await;
    assert_eq!(with(server, &new.token("new", &claims(&issuer))).await.status, 200);
    assert_eq!(with(server, &old.token("old", &claims(&issuer))).await.status, 401);
    assert_eq!(issuer.reads.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_issuer_that_is_away_does_not_take_the_good_tokens_with_it() {
    let signer = Signer::p256();
    let issuer = Issuer::start(vec![signer.jwk("ec")]).await;
    issuer.is_down.store(true, Ordering::SeqCst);
    let server = of(&issuer).await;
    let token = || signer.token("ec", &but(&issuer, "exp", json!(now() + 1_000_000)));

    let answer = with(server, &token()).await;
    assert_eq!((answer.status, answer.retry_after.as_deref(), answer.challenge), (503, Some("10"), None));
    issuer.is_down.store(false, Ordering::SeqCst);
    pass(Duration::from_secs(10)).await;
    assert_eq!(with(server, &token()).await.status, 200);

    issuer.is_down.store(true, Ordering::SeqCst);
    pass(Duration::from_secs(23 * 3_600)).await;
    assert_eq!(with(server, &token()).await.status, 200);
    pass(Duration::from_secs(3_600)).await;
    assert_eq!(with(server, &token()).await.status, 503, "keys that are a day old may have been revoked");
}

#[tokio::test]
async fn an_issuer_that_hangs_holds_nobody_up_whose_key_is_known() {
    let signer = Signer::p256();
    let issuer = Issuer::start(vec![signer.jwk("ec")]).await;
    let server = of(&issuer).await;
    let token = signer.token("ec", &but(&issuer, "exp", json!(now() + 1_000_000)));
    assert_eq!(with(server, &token).await.status, 200);

    issuer.hangs.store(true, Ordering::SeqCst);
    pass(Duration::from_secs(600)).await;
    // It is given up after ten seconds, which the first who comes must not wait for, nor those after them.
    let all = async {
        for _ in 0..50 {
            assert_eq!(with(server, &token).await.status, 200);
        }
    };
    tokio::time::timeout(Duration::from_secs(8), all).await.unwrap();
    assert_eq!(issuer.reads.load(Ordering::SeqCst), 2, "one look serves all");

    issuer.hangs.store(false, Ordering::SeqCst);
    pass(Duration::from_secs(20)).await;
    assert_eq!(with(server, &token).await.status, 200);
}

#[tokio::test]
async fn whether_keys_can_be_read_can_be_found_out_beforehand() {
    let signer = Signer::p256();
    let issuer = Issuer::start(vec![signer.jwk("ec")]).await;
    Jwt::new(&issuer.url, RESOURCE).unwrap().read_keys().await.unwrap();
    let missing = Jwt::new(&issuer.url, RESOURCE).unwrap().keys_file("no/such/file");
    let why = missing.read_keys().await.unwrap_err().to_string();
    assert!(why.contains("no/such/file: No such file"), "{why}");
    let secret = issuer.url.replace("http://", "http://me:s3cret@");
    let absent =
        Jwt::new(&issuer.url, RESOURCE).unwrap().keys_url(&format!("{secret}/x?key=s3cret")).unwrap();
    let why = absent.read_keys().await.unwrap_err().to_string();
    assert!(why.contains("/realms/a/x: it answers 404") && !why.contains("s3cret"), "{why}");
    issuer.keys.lock().unwrap().clear();
    let none = Jwt::new(&issuer.url, RESOURCE).unwrap().read_keys().await.unwrap_err();
    assert!(none.to_string().contains("no key that signs"), "{none}");
}

#[tokio::test]
async fn keys_come_from_a_url_or_a_file_where_these_are_named() {
    let (signer, next) = (Signer::rsa(), Signer::ed25519());
    let issuer = Issuer::start(vec![signer.jwk("rsa")]).await;
    let token = signer.token("rsa", &claims(&issuer));
    let jwt = || Jwt::new(&issuer.url, RESOURCE).unwrap();

    let by_url = protected(jwt().keys_url(&format!("{}/keys", issuer.url)).unwrap()).await;
    assert_eq!(with(by_url, &token).await.status, 200);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    let by_file = protected(jwt().keys_file(&file)).await;
    assert_eq!(with(by_file, &token).await.status, 503, "it is not there yet");
    std::fs::write(&file, json!({ "keys": [signer.jwk("rsa")] }).to_string()).unwrap();
    pass(Duration::from_secs(2)).await;
    assert_eq!(with(by_file, &token).await.status, 200);
    std::fs::write(&file, json!({ "keys": [next.jwk("ed")] }).to_string()).unwrap();
    pass(Duration::from_secs(2)).await;
    assert_eq!(with(by_file, &next.token("ed", &claims(&issuer))).await.status, 200);
    assert_eq!(with(by_file, &token).await.status, 401);
}

#[tokio::test]
async fn a_token_that_does_not_reach_far_enough_is_forbidden() {
    let signer = Signer::p256();
    let issuer = Issuer::start(vec![signer.jwk("ec")]).await;
    let jwt = Jwt::new(&issuer.url, RESOURCE).unwrap().scope("tools:call");
    let server = protected(jwt).await;

    for (name, value, status) in [
        ("scope", json!(null), 403),
        ("scope", json!("tools:read tools:caller"), 403),
        ("scope", json!("tools:read tools:call"), 200),
        ("scp", json!(["tools:call"]), 200),
        ("scp", json!([1]), 403),
    ] {
        let answer = with(server, &signer.token("ec", &but(&issuer, name, value.clone()))).await;
        assert_eq!(answer.status, status, "{value}");
        assert_eq!(answer.error(), (status == 403).then_some("insufficient_scope"));
    }
    let document =
        Answer::of(client().get(format!("http://{server}/.well-known/oauth-protected-resource"))).await;
    assert_eq!(document.json()["scopes_supported"], json!(["tools:call"]));
}

#[tokio::test]
async fn an_issuer_that_is_not_safe_is_refused() {
    for bad in ["http://login.example.com", "login", "https://a b", "ftp://localhost"] {
        assert!(Jwt::new(bad, RESOURCE).is_err(), "{bad}");
    }
    let jwt = Jwt::new("https://login.example.com", RESOURCE).unwrap();
    assert!(jwt.keys_url("http://login.example.com/keys").is_err());
}

/// Lets the clock go on that ages are judged by.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}
