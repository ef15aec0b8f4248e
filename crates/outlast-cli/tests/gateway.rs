//! The gateway in front of a server that knows nothing of tasks, and of one that does.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use std::{
    fs,
    process::{Command, Stdio},
    thread,
};

use serde_json::{Value, json};
use support::{
    Caller, Http, Pipes, Place, outlast,
    plain::{self, deeds, let_go},
    text, works,
};

/// The process behind the gateways of these tests.
#[test]
#[ignore = "a process of the other tests here"]
fn plain_server() {
    if let Some(folder) = std::env::var_os(plain::FOLDER) {
        plain::serve(folder.as_ref());
    }
}

/// `outlast gateway` in the folder, from which servers inherit where their files are.
fn gateway(place: &Place, args: &[&str]) -> Command {
    let mut command = outlast();
    command.current_dir(place.path()).env(plain::FOLDER, place.path()).arg("gateway").args(args);
    command
}

/// The same in front of the plain server, over HTTP.
fn in_front(place: &Place, args: &[&str]) -> Http {
    Http::run(plain::gateway(place, &[&["--listen", "127.0.0.1:0"], args].concat()))
}

/// Waits until `done` says so of what the plain server did.
fn until(place: &Place, done: impl Fn(&[String]) -> bool) -> Vec<String> {
    let mut did = Vec::new();
    support::until("what the plain server was to do", || {
        did = deeds(place);
        done(&did)
    });
    did
}

fn has(deeds: &[String], deed: &str) -> bool {
    deeds.iter().any(|done| done == deed)
}

fn count(deeds: &[String], deed: &str) -> usize {
    deeds.iter().filter(|done| done.starts_with(deed)).count()
}

fn said(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}

/// What a gateway that cannot start says.
fn refuses(place: &Place, args: &[&str], variables: &[(&str, &str)]) -> String {
    let output = gateway(place, args).envs(variables.iter().copied()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "it wrote {}", text(&output.stdout));
    assert_eq!(text(&output.stdout), "");
    text(&output.stderr)
}

#[test]
fn a_slow_call_is_a_task_that_tells_the_servers_progress() {
    let place = Place::new(&[]);
    let mut caller = in_front(&place, &["--start", "now"]);

    let id = caller.start("slow", json!({}));
    let working = caller.until(&id, |task| task["statusMessage"].is_string());
    assert!(working["statusMessage"].as_str().unwrap().starts_with("half of it"), "{working}");
    assert_eq!(working["status"], "working");
    let_go(&place);
    let done = caller.until_status(&id, "completed");
    assert_eq!(said(&done["result"]), "slow and done");
    assert_eq!(count(&deeds(&place), "call slow"), 1);
}

#[test]
fn a_quick_call_is_answered_at_once_and_one_that_is_never_a_task_when_it_is_done() {
    let place = Place::new(&[]);
    let mut caller = in_front(&place, &[]);
    let result = caller.call("quick", json!({"a": 1}));
    assert_eq!(said(&result), r#"quick {"a":1}"#);
    drop(caller);

    let mut caller = in_front(&place, &["--start", "never", "--hold", "1ms"]);
    let letting_go = thread::scope(|scope| {
        let letting_go = scope.spawn(|| {
            until(&place, |deeds| has(deeds, "call slow"));
            let_go(&place);
        });
        let result = caller.call("slow", json!({}));
        assert_eq!(said(&result), "slow and done", "whatever the hold is: {result}");
        letting_go.join()
    });
    letting_go.unwrap();
}

#[test]
fn a_caller_without_tasks_is_told_by_which_tool_to_ask() {
    let place = Place::new(&[]);
    let caller = in_front(&place, &["--hold", "300ms"]);
    let ask = |tool: &str, arguments: Value| {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        let headers = [
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", tool),
        ];
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        said(&caller.post(&headers, &body)["result"]).to_owned()
    };

    let told = ask("slow", json!({}));
    assert!(told.contains("task_result"), "{told}");
    let id = told.split("id is ").nth(1).unwrap().split('.').next().unwrap();
    let_go(&place);
    let mut result = ask("task_result", json!({"task": id}));
    while result.contains("task_result") {
        result = ask("task_result", json!({"task": id}));
    }
    assert_eq!(result, "slow and done");
    assert_eq!(count(&deeds(&place), "call slow"), 1);
}

#[test]
fn what_the_server_asks_is_a_question_of_the_task() {
    let place = Place::new(&[]);
    let mut caller = in_front(&place, &["--start", "now"]);

    let id = caller.start("asks", json!({}));
    let asking = caller.until_status(&id, "input_required");
    let questions = asking["inputRequests"].as_object().unwrap();
    let (key, question) = questions.iter().next().unwrap();
    assert_eq!(question["params"]["message"], "Who are you?", "{question}");
    caller.update(&id, json!({key.as_str(): {"action": "accept", "content": {"name": "Ada"}}}));
    let done = caller.until_status(&id, "completed");
    assert!(said(&done["result"]).contains("Ada"), "{done}");
}

#[test]
fn a_cancel_reaches_the_server() {
    let place = Place::new(&[]);
    let mut caller = in_front(&place, &["--start", "now"]);

    let id = caller.start("slow", json!({}));
    until(&place, |deeds| has(deeds, "call slow"));
    caller.cancel(&id);
    caller.until_status(&id, "cancelled");
    until(&place, |deeds| has(deeds, "cancelled"));
}

#[test]
fn a_gateway_that_was_killed_in_the_middle_of_a_call_calls_again_only_where_that_is_harmless() {
    let place = Place::new(&[]);
    let mut caller = in_front(&place, &["--start", "now"]);
    let harmless = caller.start("slow_and_harmless", json!({}));
    let other = caller.start("slow", json!({}));
    until(&place, |deeds| has(deeds, "call slow") && has(deeds, "call slow_and_harmless"));
    caller.server.kill();

    let mut caller = in_front(&place, &["--start", "now"]);
    let failed = caller.until_status(&other, "failed");
    let error = failed["error"]["message"].as_str().unwrap();
    assert!(error.contains("may not be called twice") && error.contains("unknown"), "{error}");
    until(&place, |deeds| count(deeds, "call slow_and_harmless") == 2);
    let_go(&place);
    let done = caller.until_status(&harmless, "completed");
    assert_eq!(said(&done["result"]), "slow and done");
    let calls = deeds(&place).into_iter().filter(|deed| deed == "call slow").count();
    assert_eq!(calls, 1, "the other one is not called again");
}

#[test]
fn an_operator_finds_the_file_of_the_gateway_in_its_folder() {
    let place = Place::new(&[]);
    let mut caller = in_front(&place, &["--start", "now"]);
    let id = caller.start("quick", json!({}));
    caller.until_status(&id, "completed");
    assert!(caller.banner.contains("of harmless tools alone"), "{}", caller.banner);

    assert!(works(&place.path(), &["tasks", "list"]).contains(&id));
    let shown = works(&place.path(), &["tasks", "show", &id]);
    assert!(shown.contains("is taken up again after a crash"), "not every tool is called again: {shown}");
}

#[cfg(unix)]
#[test]
fn a_caller_that_leaves_is_no_error_of_the_gateway() {
    let place = Place::new(&[]);
    let log = place.path().join("log");
    let mut command = gateway(&place, &["--listen", "127.0.0.1:0", "--"]);
    command.args(plain::command("plain_server")).stderr(fs::File::create(&log).unwrap());
    let mut caller = Http::run(command);

    let url = format!("http://{}/mcp", caller.address);
    let mut leaves = outlast();
    leaves.env("OUTLAST_HANDLES", place.path()).args(["call", &url, "slow"]).stderr(Stdio::null());
    let mut leaves = leaves.spawn().unwrap();
    until(&place, |deeds| has(deeds, "call slow"));
    leaves.kill().unwrap();
    leaves.wait().unwrap();
    let_go(&place);
    let tasks = works(&place.path(), &["tasks", "list", "--json", "--db", "outlast-gateway.db"]);
    let tasks: Value = serde_json::from_str(&tasks).unwrap();
    let id = tasks["tasks"][0]["taskId"].as_str().unwrap();
    caller.until_status(id, "completed");
    assert!(caller.server.terminate().success());
    let log = fs::read_to_string(log).unwrap();
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn c51_a_server_that_dies_in_the_middle_of_a_call_is_started_by_the_next_one() {
    let place = Place::new(&[]);
    let mut caller = in_front(&place, &["--start", "now"]);

    let id = caller.start("dies", json!({}));
    let failed = caller.until_status(&id, "failed");
    let error = failed["error"]["message"].as_str().unwrap();
    assert!(error.contains("ended in the middle of the call"), "{error}");
    let id = caller.start("quick", json!({}));
    caller.until_status(&id, "completed");
    assert_eq!(count(&deeds(&place), "start"), 2);
}

#[test]
fn a_server_that_dies_as_it_starts_is_left_alone_for_a_while() {
    let place = Place::new(&[]);
    let mut command = gateway(&place, &["--listen", "127.0.0.1:0"]);
    command.env(plain::BROKEN, "1").arg("--").args(plain::command("plain_server"));
    let mut caller = Http::run(command);
    for _ in 0..50 {
        let answer = caller.send("tools/list", "", with_no_tasks());
        assert!(answer["error"]["message"].as_str().unwrap().contains("cannot be reached"), "{answer}");
    }
    let starts = count(&deeds(&place), "start");
    assert!((1..20).contains(&starts), "fifty lists started it {starts} times");
}

/// The parameters of a request whose caller knows nothing of tasks.
fn with_no_tasks() -> Value {
    json!({"_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }})
}

#[cfg(unix)]
fn is_alive(pid: &str) -> bool {
    let alive = Command::new("kill").args(["-0", pid]).stderr(std::process::Stdio::null()).status();
    alive.unwrap().success()
}

/// As `npx` does, which runs the server in a process of its own.
#[cfg(unix)]
#[test]
fn what_a_server_has_started_ends_with_it() {
    let place = Place::new(&[]);
    let started = r#"sleep 1000 > /dev/null 2>&1 & echo $! > started; exec "$@""#;
    let mut command = gateway(&place, &["--listen", "127.0.0.1:0", "--", "sh", "-c", started, "sh"]);
    command.args(plain::command("plain_server"));
    let gateway = Http::run(command);
    let pid = fs::read_to_string(place.path().join("started")).unwrap().trim().to_owned();
    assert!(is_alive(&pid));
    assert!(gateway.server.terminate().success());
    assert!(!is_alive(&pid));
}

#[cfg(unix)]
#[test]
fn the_server_ends_with_the_gateway_however_that_ends() {
    let place = Place::new(&[]);
    let pid = || {
        let deeds = until(&place, |deeds| count(deeds, "start") > 0);
        deeds.iter().rfind(|deed| deed.starts_with("start")).unwrap()["start ".len()..].to_owned()
    };
    let gateway = in_front(&place, &[]);
    let first = pid();
    assert!(is_alive(&first));
    assert!(gateway.server.terminate().success());
    assert!(!is_alive(&first), "it has ended when the gateway has");

    let gateway = in_front(&place, &[]);
    let second = pid();
    assert!(first != second && is_alive(&second));
    gateway.server.kill();
    support::until("the end of the server whose input was closed", || !is_alive(&second));
}

#[test]
fn it_serves_on_standard_input_and_output() {
    let place = Place::new(&[]);
    let mut command = gateway(&place, &["--stdio", "--start", "now", "--"]);
    command.args(plain::command("plain_server"));
    let mut caller = Pipes::run(command);

    let id = caller.start("quick", json!({"a": 1}));
    let done = caller.until_status(&id, "completed");
    assert_eq!(said(&done["result"]), r#"quick {"a":1}"#);
    assert!(caller.close().success(), "it ends when its client closes");
    let own = |name: &str| name.starts_with("outlast-gateway-") && name.ends_with(".db");
    let files = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let files: Vec<String> = files.map(|name| name.to_str().unwrap().to_owned()).collect();
    assert!(files.iter().any(|name| own(name)), "a file for this set of servers: {files:?}");
}

#[test]
fn a_server_that_knows_tasks_is_called_through_it_from_a_terminal() {
    let place = Place::new(&[("a.txt", "abc")]);
    let mut command = gateway(&place, &["--listen", "127.0.0.1:0", "--start", "now", "--"]);
    command.args([env!("CARGO_BIN_EXE_outlast"), "demo", "--stdio"]);
    let caller = Http::run(command);
    let url = format!("http://{}/mcp", caller.address);

    let call = [&["call", &url, "--handles", "handles", "--json"][..]].concat();
    let shown = works(&place.path(), &[&call[..], &["hash_folder", "--arg", "path=files"]].concat());
    let result: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(result["structuredContent"]["total_bytes"], 3, "{result}");

    let report = [
        "make_report",
        "--arg",
        "folder=files",
        "--arg",
        "file=report.md",
        "--answer",
        r#"task-title={"title": "T"}"#,
    ];
    let answers = ["--answer", r#"task-format={"format": "markdown"}"#];
    let shown = works(&place.path(), &[&call[..], &report, &answers].concat());
    let result: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        result["structuredContent"]["title"], "T",
        "the keys are the server's own, marked as its task's: {result}"
    );
}

#[test]
fn several_servers_of_a_file_have_their_names_before_those_of_their_tools() {
    let place = Place::new(&[("a.txt", "abc")]);
    let demo = Http::start(&place);
    let settings = format!(
        "start = \"now\"\n\
        [upstream.plain]\ncommand = {}\n\
        [upstream.plain.tools.slow]\nrecovery = \"rerun\"\n\
        [upstream.demo]\nurl = \"http://{}/mcp\"\n",
        json!(plain::command("plain_server")),
        demo.address
    );
    fs::write(place.path().join("gateway.toml"), settings).unwrap();
    let mut caller = Http::run(gateway(&place, &["--listen", "127.0.0.1:0"]));

    let listed = list(&mut caller);
    assert!(listed.contains(&"plain__slow".to_owned()), "{listed:?}");
    assert!(listed.contains(&"demo__hash_folder".to_owned()), "{listed:?}");
    let id = caller.start("demo__hash_folder", json!({"path": "files"}));
    let done = caller.until_status(&id, "completed");
    assert_eq!(done["result"]["structuredContent"]["total_bytes"], 3);

    // The file says that this one may be called again.
    let id = caller.start("plain__slow", json!({}));
    until(&place, |deeds| has(deeds, "call slow"));
    caller.server.kill();
    let mut caller = Http::run(gateway(&place, &["--listen", "127.0.0.1:0"]));
    until(&place, |deeds| count(deeds, "call slow") == 2);
    let_go(&place);
    caller.until_status(&id, "completed");
}

fn list(caller: &mut Http) -> Vec<String> {
    let mut names = Vec::new();
    let mut params = json!({});
    loop {
        let page = caller.request("tools/list", "", params);
        names.extend(
            page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()),
        );
        match page["nextCursor"].as_str() {
            Some(next) => params = json!({"cursor": next}),
            None => return names,
        }
    }
}

#[test]
fn the_environment_sets_what_the_file_and_the_command_line_leave_open() {
    let place = Place::new(&[]);
    let mut command = gateway(&place, &["--db", "option.db"]);
    command
        .env("OUTLAST_GATEWAY_COMMAND", json!(plain::command("plain_server")).to_string())
        .env("OUTLAST_GATEWAY_LISTEN", "127.0.0.1:0")
        .env("OUTLAST_GATEWAY_DB", "variable.db")
        .env("OUTLAST_GATEWAY_TOOLS__QUICK__START", "now");
    let mut caller = Http::run(command);

    caller.start("quick", json!({}));
    assert!(place.path().join("option.db").exists(), "the command line wins");
    assert!(!place.path().join("variable.db").exists());
}

#[test]
fn what_is_set_wrongly_is_refused_with_what_would_be_right() {
    let place = Place::new(&[]);
    fs::write(place.path().join("own.toml"), "command = [\"x\"]\nlistn = \"127.0.0.1:1\"\nhold = \"soon\"\n")
        .unwrap();
    let refusal = refuses(&place, &["--config", "own.toml"], &[("OUTLAST_GATEWAY_STRAT", "now")]);
    assert!(
        refusal.contains("own.toml: listn: there is no key 'listn'; the nearest known one is 'listen'"),
        "{refusal}"
    );
    assert!(
        refusal.contains("own.toml: hold: expected a time such as 50s, 5m or 2h, and found 'soon'"),
        "{refusal}"
    );
    assert!(
        refusal.contains("OUTLAST_GATEWAY_STRAT: there is no key 'strat'; the nearest known one is 'start'"),
        "{refusal}"
    );

    let refusal = refuses(&place, &[], &[]);
    assert!(refusal.contains("there is no server to stand in front of"), "{refusal}");
    let refusal =
        refuses(&place, &["--upstream", "http://127.0.0.1:1/mcp", "--token-env", "NO_SUCH_TOKEN"], &[]);
    assert!(refusal.contains("the environment variable NO_SUCH_TOKEN is not set"), "{refusal}");
    let refusal = refuses(&place, &["--config", "none.toml"], &[]);
    assert!(refusal.contains("cannot read the settings in none.toml"), "{refusal}");
}

#[test]
fn an_address_that_others_can_reach_is_refused_by_name() {
    let place = Place::new(&[]);
    for open in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8808"] {
        let refusal = refuses(&place, &["--listen", open, "--", "server"], &[]);
        assert!(refusal.contains(open) && refusal.contains("listen on 127.0.0.1"), "{refusal}");
    }
    assert!(!place.path().join("outlast-gateway.db").exists(), "nothing was begun");
}

#[test]
fn a_check_reaches_each_server_and_says_what_it_is() {
    let place = Place::new(&[]);
    let check = |settings: &str| {
        fs::write(place.path().join("gateway.toml"), settings).unwrap();
        gateway(&place, &["--check"]).output().unwrap()
    };
    let plain = format!("[upstream.plain]\ncommand = {}\n", json!(plain::command("plain_server")));
    let output = check(&plain);
    assert_eq!(
        text(&output.stdout),
        "plain: reached; plain 1, protocol 2025-11-25, 6 tools: quick, slow, slow_and_harmless, asks, asks_and_is_harmless, dies\n"
    );
    assert!(output.status.success());

    let output = check(&format!(
        "{plain}[upstream.plain.tools.slwo]\nstart = \"now\"\n[upstream.away]\nurl = \"http://127.0.0.1:1/mcp\"\n"
    ));
    let said = text(&output.stdout);
    assert!(said.contains("'slwo', which it has not; the nearest is 'slow'"), "{said}");
    assert!(said.contains("away: the server cannot be reached: "), "{said}");
    assert_eq!(output.status.code(), Some(1));

    let mut broken = gateway(&place, &["--check", "--"]);
    broken.args(plain::command("plain_server")).env(plain::BROKEN, "1");
    fs::remove_file(place.path().join("gateway.toml")).unwrap();
    let said = text(&broken.output().unwrap().stdout);
    assert!(said.contains("cannot be reached") && said.contains("this server is broken"), "{said}");
    let said = text(&gateway(&place, &["--check", "--", "no-such-program"]).output().unwrap().stdout);
    assert!(said.contains("cannot start no-such-program"), "{said}");
    assert!(!place.path().join("outlast-gateway.db").exists(), "a check writes nothing");
}

#[test]
fn a_check_says_what_would_keep_the_gateway_from_being_served() {
    let place = Place::new(&[]);
    for (options, store, word) in [
        (&["--listen", "0.0.0.0:0"][..], "", "listen on 127.0.0.1"),
        (&["--admin", "0.0.0.0:0"], "", "--admin-token-file FILE"),
        (
            &["--admin", "127.0.0.1:0", "--admin-token-file", "none"],
            "",
            "cannot read the admin token in none",
        ),
        (&[], "mysql://ann:secret@db/tasks", "OUTLAST_STORE: a store is a database"),
    ] {
        let mut check = gateway(&place, &[&["--check"], options, &["--"]].concat());
        let output = check.args(plain::command("plain_server")).env("OUTLAST_STORE", store).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains(word) && !said.contains("secret"), "{options:?}: {said}");
        assert_eq!(output.status.code(), Some(1), "{options:?}: {said}");
    }
}

#[test]
fn a_name_that_no_server_has_is_refused_at_the_start() {
    let place = Place::new(&[]);
    let variable = ("OUTLAST_GATEWAY_TOOLS__SLWO__START", "now");
    let server = plain::command("plain_server");
    let server: Vec<&str> = server.iter().map(String::as_str).collect();
    let refusal = refuses(&place, &[&["--listen", "127.0.0.1:0", "--"], &*server].concat(), &[variable]);
    assert!(refusal.contains("the tool 'slwo'") && refusal.contains("--check"), "{refusal}");
}
