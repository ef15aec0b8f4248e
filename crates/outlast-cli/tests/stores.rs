//! Tasks in a database that several servers share, and tasks that move between stores.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use std::{
    path::PathBuf,
    process::{Command, Output},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};
use support::{Caller, Http, Pipes, Place, outlast, text};

const FILES: &[(&str, &str)] = &[("a.txt", "abc"), ("b.txt", "")];

/// The database of this run: the one that is given, or one that goes with this process.
fn url() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| match std::env::var("OUTLAST_TEST_POSTGRES") {
        Ok(url) if !url.is_empty() => url,
        _ => {
            let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres.sh");
            let process = std::process::id().to_string();
            let output = Command::new(script).args(["start", "--for", &process]).output().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            text(&output.stdout).lines().next().unwrap().to_owned()
        }
    })
}

/// A schema of a test's own in that database, and a folder.
struct Shared {
    place: Place,
    schema: String,
}

impl Shared {
    fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let schema = format!("cli_{}_{number}", std::process::id());
        Self { place: Place::new(FILES), schema }
    }

    /// `outlast`, which finds the store in its environment.
    fn outlast(&self, args: &[&str]) -> Command {
        let mut command = outlast();
        command.env("OUTLAST_STORE", url()).env("OUTLAST_STORE_SCHEMA", &self.schema);
        command.current_dir(self.place.path()).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.outlast(args).output().unwrap()
    }

    fn works(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?} failed: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn replica(&self) -> Http {
        Http::run(self.outlast(&["demo", "--listen", "127.0.0.1:0"]))
    }

    fn replica_on_pipes(&self) -> Pipes {
        Pipes::run(self.outlast(&["demo", "--stdio"]))
    }
}

/// Two servers, of which each request goes to the other one than the last.
struct Replicas([Http; 2], usize);

impl Caller for Replicas {
    fn send(&mut self, method: &str, name: &str, params: Value) -> Value {
        self.1 += 1;
        self.0[self.1 % 2].send(method, name, params)
    }
}

fn answers() -> Value {
    json!({
        "title": {"action": "accept", "content": {"title": "Both"}},
        "format": {"action": "accept", "content": {"format": "markdown"}},
    })
}

#[test]
fn each_request_may_go_to_another_replica_than_the_last() {
    let shared = Shared::new();
    let mut replicas = Replicas([shared.replica(), shared.replica()], 0);

    let report = replicas.start("make_report", json!({"folder": "files", "file": "report.md"}));
    let asked = replicas.until_status(&report, "input_required");
    assert_eq!(asked["inputRequests"].as_object().unwrap().len(), 2);
    replicas.update(&report, answers());
    let done = replicas.until_status(&report, "completed");
    assert_eq!(done["result"]["isError"], false, "{done}");
    assert!(std::fs::read_to_string(shared.place.path().join("report.md")).unwrap().contains("Both"));

    let long = replicas.start("count", json!({"seconds": 3600}));
    replicas.until(&long, |task| task["statusMessage"].is_string());
    replicas.cancel(&long);
    replicas.until_status(&long, "cancelled");
    // An answer after the end, at either of them, changes nothing (S12).
    replicas.update(&report, answers());
    replicas.update(&report, answers());
    assert_eq!(replicas.get(&report)["result"], done["result"]);
}

#[test]
fn a_subscriber_of_one_replica_hears_what_happens_at_the_other() {
    let shared = Shared::new();
    let (mut here, mut there) = (shared.replica_on_pipes(), shared.replica_on_pipes());
    let id = there.start("make_report", json!({"folder": "files", "file": "report.md"}));
    there.until_status(&id, "input_required");
    here.begin("subscriptions/listen", json!({"notifications": {"taskIds": [id]}}));
    let pushed = |here: &Pipes, status: &str| {
        loop {
            let message = here.next();
            if message["method"] == "notifications/tasks" && message["params"]["status"] == status {
                return message["params"].clone();
            }
        }
    };
    // First the state as it is, and then what becomes of it.
    pushed(&here, "input_required");
    there.update(&id, answers());
    let done = pushed(&here, "completed");
    assert_eq!(done["result"]["isError"], false, "{done}");
}

#[test]
fn the_work_of_a_replica_that_is_stopped_goes_on_at_the_other() {
    let shared = Shared::new();
    let (mut first, mut second) = (shared.replica(), shared.replica());
    let report = first.start("make_report", json!({"folder": "files", "file": "report.md"}));
    first.until_status(&report, "input_required");
    assert!(first.server.terminate().success());

    second.update(&report, answers());
    let done = second.until_status(&report, "completed");
    assert_eq!(done["result"]["isError"], false, "{done}");
}

/// A database of a test's own, which keeps what it commits, to be killed and started again.
struct Cluster {
    url: String,
    folder: String,
}

impl Cluster {
    fn start() -> Self {
        let process = std::process::id().to_string();
        let started = Self::script(&["start", "--for", &process, "--durable"]);
        let mut lines = started.lines().map(str::to_owned);
        Self { url: lines.next().unwrap(), folder: lines.next().unwrap() }
    }

    /// As a crash would end it.
    fn kill(&self) {
        Self::script(&["kill", &self.folder]);
    }

    fn start_again(&self) {
        Self::script(&["again", &self.folder]);
    }

    fn script(arguments: &[&str]) -> String {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres.sh");
        let output =
            Command::new(script).args(arguments).env_remove("OUTLAST_TEST_POSTGRES").output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        Self::script(&["stop", &self.folder]);
    }
}

#[test]
fn work_goes_on_while_the_database_is_away_and_callers_are_told_to_come_back() {
    let (place, cluster) = (Place::new(FILES), Cluster::start());
    let mut command = outlast();
    command.env("OUTLAST_STORE", &cluster.url).current_dir(place.path());
    command.args(["demo", "--listen", "127.0.0.1:0"]);
    let mut server = Http::run(command);
    let asks = server.start("make_report", json!({"folder": "files", "file": "report.md"}));
    server.until_status(&asks, "input_required");
    let runs = server.start("count", json!({"seconds": 2}));

    cluster.kill();
    for (method, params) in [
        ("tasks/get", json!({"taskId": runs})),
        ("tasks/update", json!({"taskId": asks, "inputResponses": answers()})),
        ("tasks/cancel", json!({"taskId": runs})),
    ] {
        let answer =
            server.send(method, params["taskId"].as_str().unwrap(), support::with_meta(params.clone()));
        let error = &answer["error"];
        assert_eq!(error["code"], -32603, "{method}: {answer}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("again"), "{method} says to come back: {message}");
        assert!(!message.contains("postgres"), "and nothing of the database: {message}");
    }
    cluster.start_again();

    // What was refused was not done, and is done when it is sent again; what ran went on.
    let done = server.until_status(&runs, "completed");
    assert_eq!(done["result"]["isError"], false, "{done}");
    assert_eq!(server.get(&asks)["status"], "input_required");
    server.update(&asks, answers());
    server.until_status(&asks, "completed");
}

#[test]
fn an_operator_sees_and_answers_tasks_in_a_database() {
    let shared = Shared::new();
    let mut server = shared.replica();
    let id = server.start("make_report", json!({"folder": "files", "file": "report.md"}));
    server.until_status(&id, "input_required");

    assert!(shared.works(&["tasks", "list"]).contains("make_report"));
    let by_name = outlast()
        .env("OUTLAST_STORE_SCHEMA", &shared.schema)
        .args(["tasks", "show", &id, "--store", url()])
        .output()
        .unwrap();
    assert!(text(&by_name.stdout).contains("question 'title'"), "{}", text(&by_name.stderr));
    shared.works(&["tasks", "answer", &id, "title", "--accept", "title=By hand"]);
    shared.works(&["tasks", "answer", &id, "format", "--accept", "format=markdown"]);
    server.until_status(&id, "completed");
    let long = server.start("count", json!({"seconds": 3600}));
    shared.works(&["tasks", "cancel", &long]);
    server.until_status(&long, "cancelled");
    let unknown = shared.run(&["tasks", "show", "00000000000000000000000000000000"]);
    assert!(text(&unknown.stderr).contains("no task"), "{}", text(&unknown.stderr));
}

#[test]
fn tasks_move_from_a_file_to_a_database_and_back() {
    let shared = Shared::new();
    let mut server = Http::start(&shared.place);
    let asks = server.start("make_report", json!({"folder": "files", "file": "report.md"}));
    server.until_status(&asks, "input_required");
    let hashed = server.start("hash_folder", json!({"path": "files"}));
    let result = server.until_status(&hashed, "completed")["result"].clone();
    let refused = shared.run(&["store", "copy", "outlast.db", url()]);
    assert!(text(&refused.stderr).contains("is served by"), "{}", text(&refused.stderr));
    assert!(server.server.terminate().success());

    let said = shared.works(&["store", "copy", "outlast.db", url()]);
    assert!(said.contains("2 copied to postgres://") && !said.contains(url()), "{said}");
    let again = shared.works(&["store", "copy", "outlast.db", url()]);
    assert!(again.contains("0 copied") && again.contains("2 were there already"), "{again}");

    let mut server = shared.replica();
    assert_eq!(server.get(&hashed)["result"], result);
    server.update(&asks, answers());
    server.until_status(&asks, "completed");
    assert!(server.server.terminate().success());

    let nobodys = shared.works(&["store", "copy", url(), "nobody.db", "--owner", "nobody"]);
    assert!(nobodys.contains("0 copied") && nobodys.contains("0 were there already"), "{nobodys}");
    shared.works(&["store", "copy", url(), "back.db", "--owner", "anonymous"]);
    let list = support::works(&shared.place.path(), &["tasks", "list", "--db", "back.db"]);
    assert_eq!(list.matches("completed").count(), 2, "{list}");
}

#[test]
fn a_store_is_not_copied_onto_itself_by_whatever_name() {
    let place = Place::new(FILES);
    let mut server = Http::start(&place);
    server.start("hash_folder", json!({"path": "files"}));
    let path = place.path();
    let beside = path.join("files").join("copy.db");
    let into = |to: &str| support::fails(&path, &["store", "copy", "outlast.db", to]);
    let held = support::fails(&path, &["store", "copy", "outlast.db", "copy.db"]);
    assert!(held.contains("served by process") && !held.contains("--db"), "{held}");
    assert!(server.server.terminate().success());

    std::os::unix::fs::symlink("outlast.db", path.join("link.db")).unwrap();
    let whole = path.join("outlast.db");
    for to in
        ["./outlast.db", "files/../outlast.db", "link.db", "sqlite://outlast.db", whole.to_str().unwrap()]
    {
        let said = into(to);
        assert!(said.contains("are the same store"), "{to}: {said}");
    }
    let missing = support::fails(&path, &["store", "copy", "no.db", "files/copy.db"]);
    assert!(missing.contains("there is no file no.db") && !missing.contains("--db"), "{missing}");
    assert!(!beside.exists(), "nothing was made");
}

#[test]
fn the_tasks_of_an_owner_are_copied_by_the_name_that_is_shown() {
    let place = Place::new(FILES);
    let mut server = Http::start(&place);
    let id = server.start("hash_folder", json!({"path": "files"}));
    server.until_status(&id, "completed");
    assert!(server.server.terminate().success());
    let path = place.path();
    let shown = support::works(&path, &["tasks", "show", &id]);
    let owner = shown.lines().find_map(|line| line.strip_prefix("owner")).unwrap().trim();
    let said = support::works(&path, &["store", "copy", "outlast.db", "part.db", "--owner", owner]);
    assert!(said.starts_with("1 copied") && !said.contains("alone from now on"), "{said}");
    assert!(said.contains("Cancel in outlast.db"), "{said}");
}

#[test]
fn a_database_that_cannot_be_used_is_said_to_be_so_without_its_password() {
    let place = Place::new(&[]);
    for (store, word) in [
        ("postgres://ann:secret@127.0.0.1:1/tasks", "cannot be opened"),
        ("postgres://ann:secret@[/tasks", "postgres://USER"),
        ("mysql://ann:secret@db/tasks", "a store is a database"),
    ] {
        let list = outlast().env("OUTLAST_STORE", store).args(["tasks", "list"]).output().unwrap();
        let said = text(&list.stderr);
        assert!(said.contains(word) && !said.contains("secret"), "{store}: {said}");
        let server = outlast()
            .env("OUTLAST_STORE", store)
            .current_dir(place.path())
            .args(["gateway", "--upstream", "http://127.0.0.1:1/mcp", "--listen", "127.0.0.1:0"])
            .output()
            .unwrap();
        let said = text(&server.stderr);
        assert_eq!(server.status.code(), Some(1));
        assert!(said.contains(word) && !said.contains("secret"), "{store}: {said}");
    }
    let both =
        outlast().args(["tasks", "list", "--db", "a.db", "--store", "postgres://h/d"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
}
