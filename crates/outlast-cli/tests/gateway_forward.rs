//! A gateway in front of a server that gets its callers' own tokens, by the binary.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde_json::{Value, json};
use support::{Http, Place, outlast, person, text, until};

const ANN: &str = "ann-has-this-token";
const ANNS_NEXT: &str = "ann-has-another-token";
const BOB: &str = "bob-has-this-token";

/// A server that lets in whose token it knows, and answers with their names. It notes each request: its method and the name.
#[derive(Clone, Default)]
struct Upstream {
    seen: Arc<Mutex<Vec<(String, String)>>>,
    /// Whether its tasks end.
    ends: Arc<AtomicBool>,
    /// Whether the first of ann's tokens has expired.
    has_expired: Arc<AtomicBool>,
}

impl Upstream {
    /// Serves it for as long as the test runs, and gives its URL.
    fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let upstream = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let upstream = upstream.clone();
                thread::spawn(move || upstream.answer(stream));
            }
        });
        url
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut length, mut token) = (0, String::new());
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim_end().split_once(": ") {
                None if line.trim_end().is_empty() => break,
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().unwrap();
                }
                Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                    token = value.trim_start_matches("Bearer ").to_owned();
                }
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (status, body) = self.respond(&message, &token);
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    fn respond(&self, message: &Value, token: &str) -> (&'static str, String) {
        let who = match token {
            ANN if !self.has_expired.load(Ordering::SeqCst) => "ann",
            ANNS_NEXT => "ann",
            BOB => "bob",
            "" => "nobody",
            _ => "a stranger",
        };
        let method = message["method"].as_str().unwrap_or_default();
        self.seen.lock().unwrap().push((method.to_owned(), who.to_owned()));
        if !["ann", "bob"].contains(&who) {
            return ("401 Unauthorized\r\nWWW-Authenticate: Bearer", String::new());
        }
        if message.get("id").is_none() {
            return ("202 Accepted", String::new());
        }
        let (name, id) = (&message["params"]["name"], &message["id"]);
        let task = |status: &str| {
            json!({
                "taskId": "theirs", "status": status, "ttlMs": null, "pollIntervalMs": 50,
                "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
            })
        };
        let content = json!([{ "type": "text", "text": format!("for {who}") }]);
        let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
        let mut result = match method {
            "server/discover" => json!({
                "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                "capabilities": { "tools": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } },
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "stub", "version": "1" } },
            }),
            "tools/list" => json!({
                "tools": [tool("quick"), tool("slow")], "ttlMs": 60_000, "cacheScope": "private",
            }),
            "tools/call" if name == "slow" => task("working"),
            "tools/call" => json!({ "content": content }),
            "tasks/get" if self.ends.load(Ordering::SeqCst) => task("completed"),
            "tasks/get" => task("working"),
            _ => {
                let error = json!({ "code": -32601, "message": "no" });
                return ("200 OK", json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string());
            }
        };
        if result["status"] == "completed" {
            result["result"] = json!({ "content": content });
        }
        result["resultType"] = if name == "slow" { "task" } else { "complete" }.into();
        ("200 OK", json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string())
    }

    fn who_asked(&self, method: &str) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(asked, _)| asked == method).map(|(_, who)| who.clone()).collect()
    }
}

fn gateway(place: &Place, url: &str, args: &[&str]) -> Command {
    let mut command = outlast();
    command.current_dir(place.path()).args(["gateway", "--upstream", url]).args(args);
    command
}

/// A gateway that knows ann, by two tokens, and bob, and logs to the file `log`.
fn in_front(place: &Place, url: &str) -> Http {
    fs::write(place.path().join("tokens"), format!("ann {ANN}\nann {ANNS_NEXT}\nbob {BOB}\n")).unwrap();
    let args = ["--listen", "127.0.0.1:0", "--start", "now", "--auth", "bearer-file", "tokens"];
    let mut command = gateway(place, url, &[&args[..], &["--forward-authorization"]].concat());
    let log = fs::File::options().create(true).append(true).open(place.path().join("log")).unwrap();
    Http::run({
        command.env("RUST_LOG", "debug").stderr(log);
        command
    })
}

#[test]
fn each_callers_token_reaches_the_server_and_lies_nowhere() {
    let (place, upstream) = (Place::new(&[]), Upstream::default());
    let url = upstream.serve();
    let gateway = in_front(&place, &url);
    let at = format!("http://{}/mcp", gateway.address);
    for (token, who) in [(ANN, "for ann"), (BOB, "for bob")] {
        let called = person(&place, token, &["call", &at, "quick"]);
        assert!(text(&called.stdout).contains(who), "{}{}", text(&called.stdout), text(&called.stderr));
    }
    let started = person(&place, ANN, &["call", &at, "slow", "--detach", "--json"]);
    assert!(started.status.success(), "{}", text(&started.stderr));
    let handle = place.path().join("ann.json");
    fs::write(&handle, &started.stdout).unwrap();
    until("a poll", || upstream.who_asked("tasks/get").contains(&"ann".to_owned()));
    let banner = gateway.banner.clone();
    gateway.server.kill();
    upstream.has_expired.store(true, Ordering::SeqCst);
    upstream.ends.store(true, Ordering::SeqCst);

    // Another process knows no token, and waits for one.
    let gateway = in_front(&place, &url);
    let log = || fs::read_to_string(place.path().join("log")).unwrap();
    until("word of the wait", || log().contains("a task waits for the next request of its owner"));
    let at = format!("http://{}/mcp", gateway.address);
    let asked = person(&place, BOB, &["call", &at, "quick"]);
    assert!(asked.status.success(), "{}", text(&asked.stderr));
    let handle = handle.to_str().unwrap();
    let ended = person(&place, ANNS_NEXT, &["tasks", "resume", handle, "--url", &at]);
    let said = text(&ended.stdout);
    assert!(said.contains("for ann"), "{said}{}", text(&ended.stderr));
    assert_eq!(upstream.who_asked("tools/call").iter().filter(|who| *who == "ann").count(), 2);
    drop(gateway);

    let mut looked_at = 0;
    for file in fs::read_dir(place.path()).unwrap().map(|file| file.unwrap().path()) {
        if file.is_dir() || file.ends_with("tokens") {
            continue;
        }
        looked_at += 1;
        let bytes = fs::read(&file).unwrap();
        for token in [ANN, ANNS_NEXT, BOB] {
            let is_there = bytes.windows(token.len()).any(|window| window == token.as_bytes());
            assert!(!is_there, "{token} is in {}", file.display());
        }
    }
    assert!(looked_at >= 2, "the store and the log");
    assert!(log().contains("DEBUG"), "the log says what it can");
    assert!([ANN, ANNS_NEXT, BOB].iter().all(|token| !banner.contains(token)), "{banner}");
}

#[test]
fn a_refusal_of_the_server_is_told_to_the_caller() {
    let (place, upstream) = (Place::new(&[]), Upstream::default());
    upstream.has_expired.store(true, Ordering::SeqCst);
    let gateway = in_front(&place, &upstream.serve());
    let at = format!("http://{}/mcp", gateway.address);
    let refused = person(&place, ANN, &["call", &at, "quick"]);
    assert!(!refused.status.success());
    let why = text(&refused.stderr);
    assert!(why.contains("does not accept the `Authorization` header") && !why.contains(ANN), "{why}");
}

/// Sends a message of 2025-11-25, and gives the status of the answer and the session that it names.
fn send(address: &str, token: &str, session: Option<&str>, message: &Value) -> (String, Option<String>) {
    let mut stream = TcpStream::connect(address).unwrap();
    let authorization = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    let session = session.map(|id| format!("Mcp-Session-Id: {id}\r\n")).unwrap_or_default();
    let body = message.to_string();
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{authorization}{session}Content-Type: application/json\r\n\
        Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let head = lines.take_while(|line| !line.is_empty());
    let named = head.filter_map(|line| line.strip_prefix("mcp-session-id: ").map(str::to_owned)).next();
    (status, named)
}

#[test]
fn without_auth_a_session_is_that_of_its_token_alone() {
    let place = Place::new(&[]);
    let url = Upstream::default().serve();
    let sessions_of = |args: &[&str], others: &str| {
        let gateway = Http::run(gateway(&place, &url, &[&["--listen", "127.0.0.1:0"], args].concat()));
        let hello = json!({
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": { "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
        });
        let (status, session) = send(&gateway.address, ANN, None, &hello);
        assert_eq!(status, "200");
        let ping = json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" });
        let pings = |token| send(&gateway.address, token, session.as_deref(), &ping).0;
        assert_eq!([pings(BOB), pings("")], [others, others]);
        assert_eq!(pings(ANN), "200");
    };
    sessions_of(&["--forward-authorization"], "404");
    // Where nobody is told apart, a session may outlive its token.
    sessions_of(&["--db", "other.db"], "200");
}

#[test]
fn a_check_knows_that_callers_bring_their_tokens() {
    let (place, upstream) = (Place::new(&[]), Upstream::default());
    let url = upstream.serve();
    let check = |args: &[&str]| gateway(&place, &url, &[&["--check"], args].concat()).output().unwrap();
    let checked = check(&["--forward-authorization"]);
    assert!(checked.status.success(), "{}", text(&checked.stdout));
    assert!(text(&checked.stdout).contains("which each caller brings"), "{}", text(&checked.stdout));
    // A gateway that has to bring one itself is not let in.
    assert!(!check(&[]).status.success());
    let both = check(&["--forward-authorization", "--token-env", "TOKEN"]);
    assert!(text(&both.stderr).contains("cannot be used with"), "{}", text(&both.stderr));
    fs::write(
        place.path().join("both.toml"),
        format!("url = \"{url}\"\nforward_authorization = true\nheaders = {{ Authorization = \"x\" }}"),
    )
    .unwrap();
    let mut command = outlast();
    command.current_dir(place.path()).args(["gateway", "--check", "--config", "both.toml"]);
    let refused = text(&command.output().unwrap().stderr);
    assert!(
        refused.contains("both.toml: forward_authorization: the upstream has an `Authorization` of its own"),
        "{refused}"
    );
}
