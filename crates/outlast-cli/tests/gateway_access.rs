//! Who may call a gateway.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};
use support::{Http, Place, person, plain, text, until};

/// The process behind the gateways of these tests.
#[test]
#[ignore = "a process of the other tests here"]
fn plain_server() {
    if let Some(folder) = std::env::var_os(plain::FOLDER) {
        plain::serve(folder.as_ref());
    }
}

const RESOURCE: &str = "https://tools.example.com/mcp";
const ISSUER: &str = "https://login.example.com";
/// What [`ISSUER`] signed, and the key that it did it with.
const TOKENS: &str = include_str!("fixtures/tokens.json");
const KEYS: &str = include_str!("fixtures/jwks.json");

fn issued(name: &str) -> String {
    let tokens: Value = serde_json::from_str(TOKENS).unwrap();
    tokens[name].as_str().unwrap().to_owned()
}

fn refuses(place: &Place, args: &[&str]) -> String {
    let output = plain::gateway(place, args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "it wrote {}", text(&output.stdout));
    text(&output.stderr)
}

/// A gateway that lets in those who show a token of [`ISSUER`].
fn with_issuer(place: &Place) -> Http {
    fs::write(place.path().join("keys.json"), KEYS).unwrap();
    let jwt = ["--auth", "jwt", "--issuer", ISSUER, "--audience", RESOURCE, "--keys-file", "keys.json"];
    Http::run(plain::gateway(place, &[&["--listen", "127.0.0.1:0", "--start", "now"], &jwt[..]].concat()))
}

/// The answer to a request without a body, as it is.
fn raw(gateway: &Http, path: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(&gateway.address).unwrap();
    let address = &gateway.address;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{more}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_bearer_of_a_token_in_the_file_may_call_and_nobody_else() {
    let place = Place::new(&[]);
    fs::write(place.path().join("tokens"), "ann ann-has-this-token\n").unwrap();
    let gateway =
        Http::run(plain::gateway(&place, &["--listen", "127.0.0.1:0", "--auth", "bearer-file", "tokens"]));
    assert!(gateway.banner.contains("whoever shows a token"), "{}", gateway.banner);
    assert!(gateway.banner.contains("NAME=VALUE --token-env VAR"), "{}", gateway.banner);
    let url = format!("http://{}/mcp", gateway.address);

    let refused = raw(&gateway, "/mcp", "");
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    assert!(refused.to_ascii_lowercase().contains("www-authenticate: bearer"), "{refused}");
    let called = person(&place, "ann-has-this-token", &["call", &url, "quick"]);
    assert!(called.status.success(), "{}", text(&called.stderr));
    let refused = person(&place, "nobody-has-this-token", &["call", &url, "quick"]);
    assert!(!refused.status.success(), "{}", text(&refused.stdout));
    let why = text(&refused.stderr);
    assert!(why.contains("the token is not known") && why.contains("--token-env VAR"), "{why}");
    // A new token for the same person, without a restart.
    fs::write(place.path().join("tokens"), "ann ann-has-this-token\nann ann-has-another-token\n").unwrap();
    let renewed = || person(&place, "ann-has-another-token", &["call", &url, "quick"]).status.success();
    until("the new token is good", renewed);
}

#[test]
fn a_task_is_its_callers_alone_whatever_the_upstream_knows() {
    let place = Place::new(&[]);
    let gateway = with_issuer(&place);
    let url = format!("http://{}/mcp", gateway.address);
    let started = person(&place, &issued("ann"), &["call", &url, "slow", "--detach", "--json"]);
    assert!(started.status.success(), "{}", text(&started.stderr));
    let handle = place.path().join("ann.json");
    fs::write(&handle, &started.stdout).unwrap();
    let get = |token: &str| person(&place, token, &["tasks", "get", handle.to_str().unwrap(), "--json"]);

    let seen = get(&issued("ann"));
    assert!(seen.status.success(), "{}", text(&seen.stderr));
    let hidden = get(&issued("bob"));
    assert!(!hidden.status.success(), "{}", text(&hidden.stdout));
    for bad in ["expired", "other_audience"] {
        assert!(!get(&issued(bad)).status.success(), "{bad}");
        let refused = raw(&gateway, "/mcp", &format!("Authorization: Bearer {}\r\n", issued(bad)));
        assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("invalid_token"), "{bad}: {refused}");
    }
    plain::let_go(&place);
}

#[test]
fn a_client_is_told_where_tokens_come_from() {
    let place = Place::new(&[]);
    let gateway = with_issuer(&place);
    let refused = raw(&gateway, "/mcp", "");
    let metadata = "https://tools.example.com/.well-known/oauth-protected-resource/mcp";
    assert!(refused.contains(&format!("resource_metadata=\"{metadata}\"")), "{refused}");
    let document = raw(&gateway, "/.well-known/oauth-protected-resource/mcp", "");
    let (_, body) = document.split_once("\r\n\r\n").unwrap();
    let document: Value = serde_json::from_str(body).unwrap();
    assert_eq!(document["resource"], RESOURCE);
    assert_eq!(document["authorization_servers"], json!([ISSUER]));
}

#[test]
fn an_address_that_others_can_reach_needs_access_control_or_two_words() {
    let place = Place::new(&[]);
    let open = ["--listen", "0.0.0.0:0"];
    let refusal = refuses(&place, &open);
    assert!(refusal.contains("0.0.0.0:0") && refusal.contains("--auth bearer-file"), "{refusal}");
    assert!(refuses(&place, &[&open[..], &["--auth", "none"]].concat()).contains("--open-to-anyone"));
    let refusal = refuses(&place, &[&open[..], &["--open-to-anyone"]].concat());
    assert!(refusal.contains("auth = \"none\""), "{refusal}");
    assert!(!place.path().join("outlast-gateway.db").exists(), "nothing was begun");

    let gateway_at = |more: &[&str]| Http::run(plain::gateway(&place, &[&open[..], more].concat()));
    let anybody = gateway_at(&["--auth", "none", "--open-to-anyone"]);
    assert!(anybody.banner.contains("anybody who reaches it"), "{}", anybody.banner);
    drop(anybody);
    fs::write(place.path().join("tokens"), "ann ann-has-this-token\n").unwrap();
    drop(gateway_at(&["--auth", "bearer-file", "tokens"]));
}

#[test]
fn what_does_not_go_together_is_refused_with_what_is_missing() {
    let place = Place::new(&[]);
    for (args, word) in [
        (&["--auth", "bearer-file"][..], "`tokens`"),
        (&["--auth", "bearer-file", "no-such-file"], "cannot read the tokens in no-such-file"),
        (&["--auth", "bearer-file", "no-such-file"], "a name, a space and a token"),
        (
            &["--auth", "jwt", "--issuer", ISSUER, "--audience", "a", "--keys-file", "no-such-file"],
            "JSON Web Key Set",
        ),
        (&["--auth", "jwt"], "`issuer` is missing"),
        (&["--auth", "jwt", "--issuer", ISSUER], "`audience` is missing"),
        (&["--auth", "jwt", "--issuer", "http://login.example.com", "--audience", "a"], "https"),
        (&["--issuer", ISSUER], "auth = \"jwt\""),
        (&["--auth", "bearer"], "the nearest known one is 'bearer-file'"),
        (&["--auth", "jwt", "--issuer", ISSUER, "--audience", "a", "--stdio"], "standard input and output"),
        (
            &[
                "--auth",
                "jwt",
                "--issuer",
                ISSUER,
                "--audience",
                "a",
                "--keys-url",
                "https://a/k",
                "--keys-file",
                "k",
            ],
            "two places for keys",
        ),
    ] {
        let refusal = refuses(&place, args);
        assert!(refusal.contains(word), "{args:?}: {refusal}");
    }
}

#[test]
fn a_check_says_that_nobody_could_call() {
    let place = Place::new(&[]);
    let jwt = ["--auth", "jwt", "--issuer", ISSUER, "--audience", RESOURCE, "--keys-file", "keys.json"];
    let check = |auth: &[&str]| plain::gateway(&place, &[&["--check"], auth].concat()).output().unwrap();
    for (auth, why) in
        [(&jwt[..], "keys of the issuer"), (&["--auth", "bearer-file", "tokens"], "cannot read the tokens")]
    {
        let checked = check(auth);
        assert_eq!(checked.status.code(), Some(1), "{auth:?}");
        let said = text(&checked.stdout);
        assert!(said.contains("reached") && said.contains(why), "{said}");
    }
    fs::write(place.path().join("keys.json"), KEYS).unwrap();
    let checked = check(&jwt);
    assert!(checked.status.success(), "{}", text(&checked.stdout));
}
