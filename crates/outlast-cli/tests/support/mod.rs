//! The binary as its users meet it: over a socket, over its pipes, and on the command line.
#![allow(dead_code, reason = "each test file uses its part")]

#[cfg(unix)]
pub(crate) mod collector;
pub(crate) mod page;
pub(crate) mod plain;
#[cfg(unix)]
pub(crate) mod pty;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything may take before a test says that it never came.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How often a task is polled: well under what the server takes for too fast.
pub(crate) const PACE: Duration = Duration::from_millis(100);

pub(crate) fn outlast() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
    command.env_remove("RUST_LOG").env_remove("OUTLAST_STORE").stdin(Stdio::null());
    command
}

/// Runs the command to its end in `folder`.
pub(crate) fn run(folder: &Path, args: &[&str]) -> Output {
    outlast().current_dir(folder).args(args).output().expect("the binary runs")
}

/// What a command that is to work writes.
pub(crate) fn works(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    assert!(output.status.success(), "{args:?} failed: {}", text(&output.stderr));
    text(&output.stdout)
}

/// What a command that is to fail says.
pub(crate) fn fails(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    assert_eq!(output.status.code(), Some(1), "{args:?} wrote {}", text(&output.stdout));
    assert_eq!(text(&output.stdout), "");
    text(&output.stderr)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it is text")
}

/// Runs `outlast` as a person who has this token.
pub(crate) fn person(place: &Place, token: &str, args: &[&str]) -> Output {
    let mut command = outlast();
    command
        .current_dir(place.path())
        .env("TOKEN", token)
        .env("OUTLAST_HANDLES", place.path().join("handles"));
    command.args(args).args(["--token-env", "TOKEN"]).output().unwrap()
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / PACE.as_millis() {
        if is_so() {
            return;
        }
        thread::sleep(PACE);
    }
    panic!("it never came: {what}");
}

/// A folder for a server to run in, with some files in a folder inside.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("files")).unwrap();
        for (name, contents) in files {
            std::fs::write(folder.path().join("files").join(name), contents).unwrap();
        }
        Self(folder)
    }

    /// Its whole real path, as tools that delete want it.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap()
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.path().join("files")
    }
}

/// A child of the test, killed with it.
pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
}

impl Server {
    fn start(place: &Place, args: &[&str]) -> (Self, ChildStdin) {
        let mut command = outlast();
        command.current_dir(place.path()).arg("demo").args(args);
        Self::run(command)
    }

    fn run(mut command: Command) -> (Self, ChildStdin) {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        (Self { child, lines }, stdin)
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("the server writes another line")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it as an operator does, and waits until it has.
    #[cfg(unix)]
    pub(crate) fn terminate(self) -> std::process::ExitStatus {
        let killed = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(killed.success());
        self.end()
    }

    /// Waits for its end, which its last line comes before.
    fn end(mut self) -> std::process::ExitStatus {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap(),
                Err(RecvTimeoutError::Timeout) => panic!("the server does not end"),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A caller of tasks, whatever the way to the server.
pub(crate) trait Caller {
    /// The whole JSON-RPC answer to a request whose parameters have their `_meta` already.
    fn send(&mut self, method: &str, name: &str, params: Value) -> Value;

    /// The result of a request.
    fn request(&mut self, method: &str, name: &str, params: Value) -> Value {
        let mut answer = self.send(method, name, with_meta(params));
        assert!(answer.get("error").is_none(), "{method} was refused: {answer}");
        answer["result"].take()
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.request("tools/call", tool, json!({"name": tool, "arguments": arguments}))
    }

    /// Starts a task, and returns its id.
    fn start(&mut self, tool: &str, arguments: Value) -> String {
        let created = self.call(tool, arguments);
        assert_eq!(created["resultType"], "task", "{created}");
        created["taskId"].as_str().expect("a task has an id").to_owned()
    }

    fn get(&mut self, id: &str) -> Value {
        self.request("tasks/get", id, json!({"taskId": id}))
    }

    /// Polls until `done` says so of the task.
    fn until(&mut self, id: &str, done: impl Fn(&Value) -> bool) -> Value {
        let polls = PATIENCE.as_millis() / PACE.as_millis();
        let mut last = Value::Null;
        for _ in 0..polls {
            last = self.get(id);
            if done(&last) {
                return last;
            }
            thread::sleep(PACE);
        }
        panic!("the task never came so far; it is {last}");
    }

    fn until_status(&mut self, id: &str, status: &str) -> Value {
        self.until(id, |task| task["status"] == status)
    }

    fn update(&mut self, id: &str, answers: Value) {
        let done = self.request("tasks/update", id, json!({"taskId": id, "inputResponses": answers}));
        assert_eq!(done["resultType"], "complete");
    }

    fn cancel(&mut self, id: &str) {
        let done = self.request("tasks/cancel", id, json!({"taskId": id}));
        assert_eq!(done["resultType"], "complete");
    }
}

/// Whether the tool `count` has begun; how far it is, a slow machine may never see.
pub(crate) fn is_counting(task: &Value) -> bool {
    task["statusMessage"].as_str().is_some_and(|message| message.starts_with("counting ("))
}

/// The declaration that each request makes (S1).
pub(crate) fn with_meta(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
    });
    params
}

/// A demo server over HTTP, and a caller of it.
pub(crate) struct Http {
    pub(crate) server: Server,
    pub(crate) banner: String,
    pub(crate) address: String,
}

impl Http {
    pub(crate) fn start(place: &Place) -> Self {
        Self::start_at(place, "127.0.0.1:0")
    }

    pub(crate) fn start_at(place: &Place, address: &str) -> Self {
        let (server, _) = Server::start(place, &["--listen", address]);
        Self::of(server)
    }

    /// A server that is started by another command.
    pub(crate) fn run(command: Command) -> Self {
        Self::of(Server::run(command).0)
    }

    /// Another caller of the same server.
    pub(crate) fn again(&self) -> At {
        At(self.address.clone())
    }

    fn of(server: Server) -> Self {
        let mut banner = server.line();
        let url = banner.strip_prefix("listening on ").expect("the first line says where it listens");
        let address =
            url.strip_prefix("http://").and_then(|url| url.strip_suffix("/mcp")).unwrap().to_owned();
        while !banner.contains("Ctrl-C") {
            banner = banner + "\n" + &server.line();
        }
        Self { server, banner, address }
    }

    /// Sends a request as it is, and returns the JSON that came back.
    pub(crate) fn post(&self, headers: &[(String, String)], body: &str) -> Value {
        self.again().post(headers, body)
    }
}

/// A caller of a server over HTTP that somebody else holds.
#[derive(Clone)]
pub(crate) struct At(String);

impl At {
    fn post(&self, headers: &[(String, String)], body: &str) -> Value {
        let mut stream = TcpStream::connect(&self.0).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let (address, length) = (&self.0, body.len());
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").expect("an answer has a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error} in {answer}"))
    }
}

impl Caller for Http {
    fn send(&mut self, method: &str, name: &str, params: Value) -> Value {
        self.again().send(method, name, params)
    }
}

impl Caller for At {
    fn send(&mut self, method: &str, name: &str, params: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let headers = [
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", method),
            ("Mcp-Name", name),
        ];
        self.post(&headers.map(|(name, value)| (name.to_owned(), value.to_owned())), &body.to_string())
    }
}

/// A demo server on its standard input and output, and a caller of it.
pub(crate) struct Pipes {
    server: Server,
    stdin: ChildStdin,
    id: u64,
}

impl Pipes {
    pub(crate) fn start(place: &Place) -> Self {
        let (server, stdin) = Server::start(place, &["--stdio"]);
        Self { server, stdin, id: 0 }
    }

    /// A server that is started by another command.
    pub(crate) fn run(command: Command) -> Self {
        let (server, stdin) = Server::run(command);
        Self { server, stdin, id: 0 }
    }

    pub(crate) fn process(&self) -> u32 {
        self.server.id()
    }

    /// Sends a request whose answer comes later, and returns its id.
    pub(crate) fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.id += 1;
        let params = with_meta(params);
        let request = json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params});
        writeln!(self.stdin, "{request}").unwrap();
        self.id
    }

    /// Sends a notification.
    pub(crate) fn tell(&mut self, method: &str, params: Value) {
        writeln!(self.stdin, "{}", json!({"jsonrpc": "2.0", "method": method, "params": params})).unwrap();
    }

    /// The next message, of whatever kind.
    pub(crate) fn next(&self) -> Value {
        serde_json::from_str(&self.server.line()).expect("a line is a message")
    }

    /// SIGKILL; when this returns, the process is gone.
    pub(crate) fn kill(self) {
        self.server.kill();
    }

    /// Closes the client's end, and returns how the server ended.
    pub(crate) fn close(self) -> std::process::ExitStatus {
        drop(self.stdin);
        self.server.end()
    }

    #[cfg(unix)]
    pub(crate) fn terminate(self) -> std::process::ExitStatus {
        let Self { server, stdin, .. } = self;
        let status = server.terminate();
        drop(stdin);
        status
    }
}

impl Caller for Pipes {
    fn send(&mut self, method: &str, _: &str, params: Value) -> Value {
        self.id += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params});
        writeln!(self.stdin, "{request}").unwrap();
        // Every line is a message: nothing else goes to standard output.
        let answer: Value = serde_json::from_str(&self.server.line()).expect("a line is a message");
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(self.id)), "{answer}");
        answer
    }
}
