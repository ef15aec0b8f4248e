//! The operators' page of a gateway, by the binary. What the page itself does is shown in a browser (`scripts/page.sh`).

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::Command,
};

use serde_json::{Value, json};
use support::{
    Caller, Http, PATIENCE, Place,
    page::{self, ask},
    plain, text,
};

/// The process behind the gateways of these tests.
#[test]
#[ignore = "a process of the other tests here"]
fn plain_server() {
    if let Some(folder) = std::env::var_os(plain::FOLDER) {
        plain::serve(folder.as_ref());
    }
}

const TOKEN: &str = "an-admin-token-that-was-set";

fn gateway(place: &Place, args: &[&str]) -> Command {
    let page: &[&str] = if args.contains(&"--admin") { &[] } else { &["--admin", "127.0.0.1:0"] };
    plain::gateway(place, &[&["--listen", "127.0.0.1:0", "--start", "now"], page, args].concat())
}

fn refuses(mut gateway: Command) -> String {
    let output = gateway.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "it wrote {}", text(&output.stdout));
    text(&output.stderr)
}

#[test]
fn the_banner_has_a_link_with_a_new_token_and_operators_see_and_answer_what_callers_asked_for() {
    let place = Place::new(&[]);
    let mut caller = Http::run(gateway(&place, &[]));
    let (address, token) = page::of(&caller);
    let token = token.expect("the link has a token");
    assert_eq!(ask(&address, "GET", "/ui", "", "").0, 200);
    assert_eq!(ask(&address, "GET", "/api/tasks", "another-token-0123456", "").0, 401);

    let id = caller.start("asks", json!({}));
    caller.until_status(&id, "input_required");
    let (_, page) = ask(&address, "GET", "/api/tasks?status=input_required", &token, "");
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["tasks"][0]["taskId"], id.as_str());
    let (_, task) = ask(&address, "GET", &format!("/api/tasks/{id}"), &token, "");
    let task: Value = serde_json::from_str(&task).unwrap();
    let key = task["questions"][0]["key"].as_str().unwrap();
    let answer = json!({key: {"action": "accept", "content": {"name": "Ada"}}}).to_string();
    let (status, said) = ask(&address, "POST", &format!("/api/tasks/{id}/answers"), &token, &answer);
    assert_eq!(status, 200, "{said}");
    assert!(caller.until_status(&id, "completed")["result"].to_string().contains("Ada"));
    let (_, metrics) = ask(&address, "GET", "/metrics", &token, "");
    assert!(metrics.contains("outlast_tasks{status=\"completed\"} 1"), "{metrics}");
    drop(caller);

    let (_, other) = page::of(&Http::run(gateway(&place, &[])));
    assert_ne!(other, Some(token), "each start has its own");
}

#[test]
fn a_token_that_was_set_is_the_one_and_is_not_printed() {
    let place = Place::new(&[]);
    fs::write(place.path().join("token"), format!("{TOKEN}\n")).unwrap();
    let of_file = Http::run(gateway(&place, &["--admin-token-file", "token"]));
    let (address, token) = page::of(&of_file);
    assert_eq!((token, ask(&address, "GET", "/api/counts", TOKEN, "").0), (None, 200));
    drop(of_file);
    let mut command = gateway(&place, &[]);
    command.env("OUTLAST_GATEWAY_ADMIN_TOKEN", TOKEN);
    let of_environment = Http::run(command);
    let (address, token) = page::of(&of_environment);
    assert_eq!((token, ask(&address, "GET", "/api/counts", TOKEN, "").0), (None, 200));
    assert!(!of_environment.banner.contains(TOKEN));
}

#[test]
fn a_page_that_others_could_reach_or_whose_token_is_none_is_refused() {
    let place = Place::new(&[]);
    let said = refuses(gateway(&place, &["--admin", "0.0.0.0:0"]));
    assert!(
        said.contains("can be reached from other machines") && said.contains("--admin-token-file"),
        "{said}"
    );
    fs::write(place.path().join("token"), "short-secret").unwrap();
    let said = refuses(gateway(&place, &["--admin-token-file", "token"]));
    assert!(said.contains("token holds no admin token") && said.contains("16 characters"), "{said}");
    assert!(!said.contains("short-secret"), "{said}");
    let said = refuses(gateway(&place, &["--admin-token-file", "missing"]));
    assert!(said.contains("cannot read the admin token in missing"), "{said}");
    assert!(!place.path().join("outlast-gateway.db").exists(), "nothing was made");
}

#[cfg(unix)]
#[test]
fn a_stop_does_not_wait_for_pages_that_are_open() {
    let place = Place::new(&[]);
    let gateway = Http::run(gateway(&place, &[]));
    let (address, token) = page::of(&gateway);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let token = token.unwrap();
    write!(stream, "GET /api/changes HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n")
        .unwrap();
    let mut heard = Vec::new();
    while !text(&heard).contains("event: open") {
        let mut some = [0; 1_024];
        let read = stream.read(&mut some).unwrap();
        assert!(read > 0, "the stream is open");
        heard.extend_from_slice(&some[..read]);
    }
    assert!(gateway.server.terminate().success());
    stream.read_to_end(&mut heard).unwrap();
    assert!(text(&heard).ends_with("0\r\n\r\n"), "and ends as streams do: {}", text(&heard));
}
