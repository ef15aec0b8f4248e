//! A server as there are many: one process, one client, protocol 2025-11-25, and no word of tasks. It is this test binary, run
//! once more with one test, which is no test by itself.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use serde_json::{Value, json};

use super::{PACE, Place, outlast};

/// Tells the process where its files are, and that it is the server.
pub(crate) const FOLDER: &str = "TEST_PLAIN_SERVER";
/// Makes it end as it starts.
pub(crate) const BROKEN: &str = "TEST_PLAIN_SERVER_BROKEN";

/// The command that starts it, for the test `name` that calls [`serve`]; [`FOLDER`] has to be in its environment.
pub(crate) fn command(name: &str) -> Vec<String> {
    let binary = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    [&*binary, name, "--exact", "--ignored", "--nocapture", "--test-threads=1"].map(str::to_owned).to_vec()
}

/// `outlast gateway` in the folder, in front of the server, for the test `plain_server` that calls [`serve`].
pub(crate) fn gateway(place: &Place, args: &[&str]) -> Command {
    let mut gateway = outlast();
    gateway.current_dir(place.path()).env(FOLDER, place.path()).arg("gateway").args(args);
    gateway.arg("--").args(command("plain_server"));
    gateway
}

/// What the server did, line by line: `start PID`, `call TOOL`, `cancelled`.
pub(crate) fn deeds(place: &Place) -> Vec<String> {
    let text = fs::read_to_string(place.path().join("deeds")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Lets every slow call end, also those to come.
pub(crate) fn let_go(place: &Place) {
    fs::write(place.path().join("go"), "").unwrap();
}

struct Folder(PathBuf);

impl Folder {
    fn note(&self, deed: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.0.join("deeds")).unwrap();
        // In one piece, since several write.
        file.write_all(format!("{deed}\n").as_bytes()).unwrap();
    }

    fn may_go(&self) -> bool {
        self.0.join("go").exists()
    }
}

fn send(message: &Value) {
    println!("{message}");
}

fn answer(id: &Value, text: &str) {
    let result = json!({"content": [{"type": "text", "text": text}], "isError": false});
    send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

/// Serves on standard input and output until the client closes its end.
pub(crate) fn serve(folder: &Path) {
    let folder = Folder(folder.to_owned());
    folder.note(&format!("start {}", std::process::id()));
    if std::env::var_os(BROKEN).is_some() {
        eprintln!("this server is broken");
        std::process::exit(3);
    }
    // The test harness has left a line unfinished.
    println!();
    let mut asking = Value::Null;
    for line in std::io::stdin().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let (id, params) = (&message["id"], &message["params"]);
        match message["method"].as_str() {
            Some("initialize") => {
                let info = json!({"name": "plain", "version": "1"});
                let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info});
                send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
            }
            Some("tools/list") => {
                let tool = |name: &str, is_harmless: bool| {
                    json!({
                        "name": name,
                        "inputSchema": {"type": "object"},
                        "annotations": {"readOnlyHint": is_harmless},
                    })
                };
                let tools = [
                    tool("quick", true),
                    tool("slow", false),
                    tool("slow_and_harmless", true),
                    tool("asks", false),
                    tool("asks_and_is_harmless", true),
                    tool("dies", false),
                ];
                send(&json!({"jsonrpc": "2.0", "id": id, "result": {"tools": tools}}));
            }
            Some("tools/call") => {
                let tool = params["name"].as_str().unwrap();
                folder.note(&format!("call {tool}"));
                if let Some(place) = params["_meta"]["traceparent"].as_str() {
                    folder.note(&format!("traced {place}"));
                }
                match tool {
                    "slow" | "slow_and_harmless" => slow(&folder, id, params),
                    "asks" | "asks_and_is_harmless" => {
                        asking = id.clone();
                        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
                        let params = json!({"message": "Who are you?", "requestedSchema": schema});
                        let method = "elicitation/create";
                        send(&json!({"jsonrpc": "2.0", "id": "q", "method": method, "params": params}));
                    }
                    "dies" => std::process::exit(7),
                    _ => answer(id, &format!("{tool} {}", params["arguments"])),
                }
            }
            Some("notifications/cancelled") => folder.note("cancelled"),
            None if message["id"] == "q" => answer(&asking, &message["result"].to_string()),
            Some("ping") => send(&json!({"jsonrpc": "2.0", "id": id, "result": {}})),
            Some(_) if !id.is_null() => {
                let error = json!({"code": -32601, "message": "there is no such method"});
                send(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
            _ => {}
        }
    }
}

/// Says that it is half done, and waits until it may go.
fn slow(folder: &Folder, id: &Value, params: &Value) {
    let token = &params["_meta"]["progressToken"];
    if !token.is_null() {
        let params = json!({"progressToken": token, "progress": 1, "total": 2, "message": "half of it"});
        send(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
    }
    let (folder, id) = (Folder(folder.0.clone()), id.clone());
    thread::spawn(move || {
        while !folder.may_go() {
            thread::sleep(PACE / 10);
        }
        answer(&id, "slow and done");
    });
}
