//! `outlast tasks`, beside a running server and without one.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use serde_json::{Value, json};
use support::{Caller, Http, Place, fails, is_counting, outlast, run, text, works};

const FILES: &[(&str, &str)] = &[("a.txt", "abc"), ("b.txt", "")];

fn json_of(output: &str) -> Value {
    serde_json::from_str(output).expect("it is JSON")
}

/// A server with a task that asks.
fn asking(place: &Place) -> (Http, String) {
    let mut caller = Http::start(place);
    let id = caller.start("make_report", json!({"folder": "files", "file": "report.md"}));
    caller.until(&id, |task| task["status"] == "input_required" && task["statusMessage"] == "b.txt (2/2)");
    (caller, id)
}

#[test]
fn an_operator_answers_while_the_server_runs() {
    let place = Place::new(FILES);
    let (mut caller, id) = asking(&place);
    let path = place.path();

    let shown = works(&path, &["tasks", "show", &id]);
    assert!(
        shown.contains(
            "question 'format'\n  In which format do you want it?\n  format: one of markdown, json"
        ),
        "{shown}"
    );

    let said = works(&path, &["tasks", "answer", &id, "title", "--accept", "title=By the operator"]);
    assert_eq!(said, "'title' is answered; the task is input_required\n");
    let answer = r#"{"action": "accept", "content": {"format": "markdown"}}"#;
    let said = works(&path, &["tasks", "answer", &id, "format", answer]);
    assert_eq!(said, "'format' is answered; the task is working\n");

    let done = caller.until_status(&id, "completed");
    assert_eq!(done["result"]["structuredContent"]["title"], "By the operator");
}

#[test]
fn an_operator_declines_and_reads_from_standard_input() {
    let place = Place::new(FILES);
    let (mut caller, id) = asking(&place);
    works(&place.path(), &["tasks", "answer", &id, "title", "--decline"]);

    let answer = place.path().join("answer.json");
    std::fs::write(&answer, r#"{"action": "decline"}"#).unwrap();
    let mut command = outlast();
    command.current_dir(place.path()).args(["tasks", "answer", &id, "format", "-"]);
    let output = command.stdin(std::fs::File::open(answer).unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));

    assert_eq!(caller.until_status(&id, "completed")["result"]["isError"], true);
    assert!(!place.path().join("report.md").exists());
}

#[test]
fn an_operator_cancels_while_the_server_runs() {
    let place = Place::new(FILES);
    let (mut caller, asks) = asking(&place);
    let counts = caller.start("count", json!({"seconds": 3600}));
    caller.until(&counts, is_counting);
    let path = place.path();
    for id in [&asks, &counts] {
        assert_eq!(works(&path, &["tasks", "cancel", id]), "the task is asked to end\n");
        caller.until_status(id, "cancelled");
        assert_eq!(works(&path, &["tasks", "cancel", id]), "the task had ended: it is cancelled\n");
    }
}

#[test]
fn an_answer_given_without_a_server_is_there_when_one_starts() {
    let place = Place::new(FILES);
    let (caller, id) = asking(&place);
    caller.server.kill();
    let path = place.path();
    works(&path, &["tasks", "answer", &id, "title", "--accept", "title=Meanwhile"]);
    works(&path, &["tasks", "answer", &id, "format", "--accept", "format=json"]);
    let mut caller = Http::start(&place);
    let done = caller.until_status(&id, "completed");
    assert_eq!(done["result"]["structuredContent"]["title"], "Meanwhile");
}

#[test]
fn tasks_are_listed_filtered_and_paged() {
    let place = Place::new(FILES);
    let (mut caller, asks) = asking(&place);
    let mut hashed: Vec<_> = (0..3).map(|_| caller.start("hash_folder", json!({"path": "files"}))).collect();
    for id in &hashed {
        caller.until_status(id, "completed");
    }
    hashed.reverse();
    let path = place.path();
    let list = |args: &[&str]| json_of(&works(&path, &[&["tasks", "list", "--json"], args].concat()));
    let ids = |page: &Value| -> Vec<String> {
        page["tasks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|task| task["taskId"].as_str().unwrap().to_owned())
            .collect()
    };

    let all = list(&[]);
    assert_eq!(ids(&all), [&hashed[..], std::slice::from_ref(&asks)].concat(), "newest first");
    assert_eq!(ids(&list(&["--status", "input_required"])), [asks.as_str()]);
    assert_eq!(ids(&list(&["--tool", "hash_folder"])), hashed);
    let owner = all["tasks"][0]["owner"].as_str().unwrap();
    assert_eq!(ids(&list(&["--owner", owner])).len(), 4);
    assert_eq!(ids(&list(&["--owner", "anonymous"])).len(), 4);
    assert_eq!(ids(&list(&["--owner", "deadbeef"])), Vec::<String>::new());

    let first = list(&["--limit", "3"]);
    let second = list(&["--limit", "3", "--after", first["next"].as_str().unwrap()]);
    assert_eq!([ids(&first), ids(&second)].concat(), ids(&all));
    assert_eq!(second["next"], Value::Null);

    let table = works(&path, &["tasks", "list", "--db", "outlast.db"]);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("ID ") && lines[0].ends_with("AGE  MESSAGE"), "{table}");
    assert!(
        lines[4].starts_with(&asks)
            && lines[4].contains("input_required")
            && lines[4].ends_with("b.txt (2/2)")
    );
}

#[test]
fn a_task_is_shown_with_its_call_its_history_and_its_end() {
    let place = Place::new(FILES);
    let (mut caller, id) = asking(&place);
    let path = place.path();
    works(&path, &["tasks", "answer", &id, "title", "--accept", "title=Secret title"]);
    works(&path, &["tasks", "answer", &id, "format", "--decline"]);
    caller.until_status(&id, "completed");

    let shown = json_of(&works(&path, &["tasks", "show", &id, "--json"]));
    assert_eq!(shown["arguments"], json!({"folder": "files", "file": "report.md"}));
    assert_eq!(shown["result"]["isError"], true);
    assert_eq!(shown["recovery"], "rerun");
    let kinds: Vec<_> =
        shown["history"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "asked").count(), 2, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == "answered").count(), 2, "{kinds:?}");

    let shown = works(&path, &["tasks", "show", &id]);
    assert!(shown.contains("asked 'title': What is the title of the report?"), "{shown}");
    assert!(!shown.contains("Secret title") && !shown.contains("anonymous"), "{shown}");
    assert!(works(&path, &["tasks", "show", &id, "--values"]).contains("Secret title"));

    let failed = caller.start("failing_job", json!({"kind": "protocol"}));
    caller.until_status(&failed, "failed");
    assert!(works(&path, &["tasks", "show", &failed]).contains("\"code\": -32603"));
}

#[test]
fn a_history_tells_of_the_server_that_was_killed_and_of_the_one_that_went_on() {
    let place = Place::new(FILES);
    let (caller, id) = asking(&place);
    let path = place.path();
    caller.server.kill();
    works(&path, &["tasks", "answer", &id, "title", "--accept", "title=Meanwhile"]);
    works(&path, &["tasks", "answer", &id, "format", "--accept", "format=json"]);
    Http::start(&place).until_status(&id, "completed");

    let shown = works(&path, &["tasks", "show", &id]);
    let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("'{text}' is not in {shown}"));
    let story = [
        "+0 ms  created\n",
        "attempt 1 begun by ",
        "asked 'title': What is the title of the report?\n",
        "answered 'title' after ",
        "attempt 1 lost after ",
        "attempt 2 begun by ",
        "completed by attempt 2 after ",
    ];
    assert!(story.map(at).is_sorted(), "{shown}");

    let history = json_of(&works(&path, &["tasks", "show", &id, "--json"]))["history"].take();
    let told: Vec<_> = history.as_array().unwrap().iter().map(|told| &told["kind"]).collect();
    assert_eq!((told[0], told[told.len() - 1]), (&json!("created"), &json!("completed")));
    let lost = history.as_array().unwrap().iter().find(|told| told["kind"] == "lease_lost").unwrap();
    assert!(lost["attempt"] == 1 && lost["tookMs"].is_u64() && lost["afterMs"].is_u64(), "{lost}");
}

#[test]
fn a_failed_task_is_started_again_once_as_another_one() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    let path = place.path();
    let failed = caller.start("failing_job", json!({"kind": "protocol"}));
    let end = caller.until_status(&failed, "failed");

    let said = works(&path, &["tasks", "retry", &failed]);
    let again = said.trim_end();
    assert_eq!(said, format!("{again}\n"), "the id alone, for a script");
    assert_ne!(again, failed);
    caller.until_status(again, "failed");
    let now = caller.get(&failed);
    for field in ["status", "error", "lastUpdatedAt"] {
        assert_eq!(now[field], end[field], "what failed stays as it is");
    }
    let shown = works(&path, &["tasks", "show", again]);
    assert!(shown.contains(&format!("created with what is kept of the failed task {failed}")), "{shown}");

    let refused = fails(&path, &["tasks", "retry", &failed]);
    let told = format!("was started again before, as {again}, which is failed; start that one again");
    assert!(refused.contains(&told), "{refused}");
    let third = works(&path, &["tasks", "retry", again]);
    caller.until_status(third.trim_end(), "failed");
}

#[test]
fn a_task_that_is_started_again_does_no_finished_step_twice() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    let path = place.path();
    let failed = caller.start("failing_job", json!({"kind": "protocol", "until": "van"}));
    assert_eq!(caller.until_status(&failed, "failed")["error"]["message"], "there is no file van");
    let shown = works(&path, &["tasks", "show", &failed]);
    assert!(
        shown.contains("step 'prepare' done in ")
            && shown.contains("step 'deliver' ended with an error after ")
    );
    let steps = |id: &str| -> Vec<Value> {
        let shown = json_of(&works(&path, &["tasks", "show", id, "--json", "--values"]));
        let history = shown["history"].as_array().unwrap().iter();
        history.filter(|told| told["kind"] == "step").cloned().collect()
    };
    let before = steps(&failed);
    let ticket = before[0]["value"].as_str().expect("a ticket");
    assert!(!shown.contains(ticket), "what a step gave back may be secret");
    assert_eq!((&before[0]["tries"], &before[1]["isError"]), (&json!(1), &json!(true)), "{before:?}");

    std::fs::write(path.join("van"), "").unwrap();
    let again = works(&path, &["tasks", "retry", &failed]);
    let done = caller.until_status(again.trim_end(), "completed");
    assert_eq!(done["result"]["content"][0]["text"], format!("delivered with the ticket {ticket}"));
    let after = steps(again.trim_end());
    let keys: Vec<_> = after.iter().map(|step| (&step["key"], &step["isError"])).collect();
    assert_eq!(keys, [(&json!("prepare"), &json!(false)), (&json!("deliver"), &json!(false))]);
    assert!(after[0]["afterMs"].as_i64() < Some(0), "it is older than the task: {after:?}");
}

#[test]
fn only_a_failed_task_is_started_again() {
    let place = Place::new(FILES);
    let (mut caller, id) = asking(&place);
    let path = place.path();
    let retry = |id: &str| fails(&path, &["tasks", "retry", id]);
    assert!(retry(&id).contains("the task is input_required; only a failed one can be started again"));
    caller.cancel(&id);
    caller.until_status(&id, "cancelled");
    assert!(retry(&id).contains("the task is cancelled; only a failed one"));
    assert!(retry(&"0".repeat(32)).contains("there is no task 0000"));
    assert_eq!(works(&path, &["tasks", "list"]).lines().count(), 2, "nothing was started");
}

#[test]
fn a_task_of_a_version_that_nobody_serves_is_marked_and_can_be_found() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    let path = place.path();
    let failed = caller.start("failing_job", json!({"kind": "protocol"}));
    caller.until_status(&failed, "failed");
    let hashed = caller.start("hash_folder", json!({"path": "files"}));
    caller.until_status(&hashed, "completed");

    let output = run(&path, &["tasks", "retry", &failed, "--tool-version", "2.0"]);
    let (id, note) = (text(&output.stdout), text(&output.stderr));
    let id = id.trim_end();
    assert!(output.status.success());
    assert!(note.contains("waits for a server that serves 'failing_job' in version 2.0"), "{note}");

    let list = |args: &[&str]| {
        let output = run(&path, &[&["tasks", "list"], args].concat());
        (text(&output.stdout), text(&output.stderr))
    };
    let (all, note) = list(&[]);
    assert_eq!(all.lines().count(), 4, "{all}");
    let marked: Vec<_> = all.lines().filter(|line| line.contains(" ! ")).collect();
    assert!(
        matches!(marked[..], [line] if line.starts_with(id) && line.contains("failing_job 2.0")),
        "{all}"
    );
    assert!(note.starts_with("! nobody takes it up: ") && note.contains("or cancel it"), "{note}");
    let (found, _) = list(&["--unserved", "--json"]);
    let found = json_of(&found);
    assert_eq!(found["tasks"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(
        (&found["tasks"][0]["taskId"], &found["tasks"][0]["unserved"]),
        (&json!(id), &json!(true)),
        "{found}"
    );
    assert!(works(&path, &["tasks", "show", id]).contains("\nserved    by no server"));

    assert_eq!(works(&path, &["tasks", "cancel", id]), "cancelled\n");
    let (none, note) = list(&["--unserved"]);
    assert_eq!((&*none, &*note), ("", "no tasks\n"));
}

#[test]
fn what_cannot_be_done_is_said_and_fails() {
    let place = Place::new(FILES);
    let (mut caller, id) = asking(&place);
    let path = place.path();
    let unknown = "0".repeat(32);

    for command in [
        &["tasks", "show", &unknown][..],
        &["tasks", "cancel", &unknown],
        &["tasks", "answer", &unknown, "k", "--decline"],
    ] {
        assert!(fails(&path, command).contains("there is no task 0000"), "{command:?}");
    }
    let answer = |rest: &[&str]| fails(&path, &[&["tasks", "answer", &id], rest].concat());
    assert!(answer(&["other", "--decline"]).contains("it asks under format, title"));
    assert!(answer(&["title", "--accept"]).contains("the field 'title' is missing"));
    assert!(answer(&["format", "--accept", "format=pdf"]).contains("one of markdown, json"));
    assert!(answer(&["format", "{"]).contains("not JSON"));
    assert!(answer(&["format", "[]"]).contains("the answer has to be {\"action\": \"accept\""));
    assert_eq!(caller.get(&id)["status"], "input_required", "nothing was taken");

    caller.cancel(&id);
    caller.until_status(&id, "cancelled");
    assert!(answer(&["title", "--decline"]).contains("the task is cancelled and asks nothing any more"));
}

#[test]
fn a_wrong_command_line_is_told_from_a_failure() {
    let place = Place::new(&[]);
    let path = place.path();
    let id = "0".repeat(32);
    for wrong in [
        &["tasks", "show", "xyz"][..],
        &["tasks", "list", "--status", "done"],
        &["tasks", "list", "--limit", "0"],
        &["tasks", "answer", &id, "key"],
        &["tasks", "answer", &id, "key", "{}", "--decline"],
        &["nonsense"],
        &[],
    ] {
        assert_eq!(run(&path, wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert!(
        text(&run(&path, &["tasks", "list", "--status", "done"]).stderr).contains("working, input_required")
    );
    assert_eq!(works(&path, &["--version"]), format!("outlast {}\n", env!("CARGO_PKG_VERSION")));
    assert!(works(&path, &["--help"]).contains("Exit status: 0 when it was done"));
    assert!(works(&path, &["tasks", "answer", "--help"]).contains("--accept confirm=true"));
}

#[test]
fn nothing_is_made_of_a_file_that_is_not_there() {
    let place = Place::new(&[]);
    let path = place.path();
    let id = "0".repeat(32);
    for command in [&["tasks", "list"][..], &["tasks", "show", &id], &["tasks", "cancel", &id]] {
        assert!(fails(&path, command).contains("there is no file outlast.db"));
    }
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1, "there is only the folder of files");
}

#[cfg(unix)]
#[test]
fn a_file_of_another_program_or_of_a_newer_version_is_refused_and_left_alone() {
    let place = Place::new(&[]);
    let path = place.path();
    assert!(Http::start(&place).server.terminate().success(), "so that all of the store is in its file");
    let store = std::fs::read(path.join("outlast.db")).unwrap();
    // Where an SQLite file says of which version and of which program it is.
    for (at, said) in [(60, "run a newer version of it"), (68, "is an SQLite database of another program")] {
        let mut other = store.clone();
        other[at..at + 4].copy_from_slice(&77_u32.to_be_bytes());
        std::fs::write(path.join("other.db"), &other).unwrap();
        for command in ["tasks list", "demo --stdio"] {
            let command: Vec<_> = command.split(' ').chain(["--db", "other.db"]).collect();
            let error = fails(&path, &command);
            assert!(error.contains("other.db") && error.contains(said), "{command:?}: {error}");
            for beside in ["-wal", "-shm", ".lock"] {
                assert!(!path.join(format!("other.db{beside}")).exists(), "{command:?} left {beside}");
            }
        }
        assert!(std::fs::read(path.join("other.db")).unwrap() == other, "not a byte of it changed");
    }
}

#[cfg(unix)]
#[test]
fn what_is_wrong_with_a_damaged_file_is_said_once_and_of_which_file() {
    const PAGE: usize = 4_096;
    let place = Place::new(FILES);
    let path = place.path();
    let (caller, _) = asking(&place);
    assert!(caller.server.terminate().success(), "so that all of the store is in its file");
    let store = std::fs::read(path.join("outlast.db")).unwrap();
    let mut refused = 0;
    for page in 1..store.len() / PAGE {
        let mut damaged = store.clone();
        damaged[page * PAGE..][..PAGE].fill(0xa5);
        std::fs::write(path.join("damaged.db"), damaged).unwrap();
        let output = run(&path, &["tasks", "list", "--db", "damaged.db"]);
        let said = text(&output.stderr);
        if !output.status.success() {
            refused += 1;
            assert!(said.starts_with("outlast: cannot ") && said.contains("damaged.db"), "{said}");
            assert_eq!(said.matches("malformed").count(), 1, "{said}");
        }
        for beside in ["damaged.db-wal", "damaged.db-shm"] {
            let _ = std::fs::remove_file(path.join(beside));
        }
    }
    assert!(refused > 2, "only {refused} commands noticed");
}

#[test]
fn a_tool_that_reads_the_servers_own_folder_leaves_the_store_alone() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    let path = place.path();
    std::fs::write(path.join("mine.txt"), "mine").unwrap();
    // Were the store's file only opened and closed here, its locks would be gone, and with the next command its log.
    let id = caller.start("hash_folder", json!({"path": "."}));
    let done = caller.until_status(&id, "completed");
    let skipped = &done["result"]["structuredContent"]["skipped"];
    assert_eq!(
        skipped[0],
        json!({"name": "outlast.db", "reason": "this server keeps its tasks in it"}),
        "{done}"
    );
    assert_eq!(done["statusMessage"], "mine.txt (1/1)", "what is skipped is not counted");
    works(&path, &["tasks", "list"]);

    let id = caller.start("delete_files", json!({"folder": path, "names": ["outlast.db", "outlast.db-wal"]}));
    caller.until_status(&id, "input_required");
    works(&path, &["tasks", "answer", &id, "confirm", "--accept", "confirm=true"]);
    let done = caller.until_status(&id, "completed");
    assert_eq!(done["result"]["structuredContent"]["deleted"], json!([]));

    let id = caller.start("make_report", json!({"folder": "files", "file": "outlast.db"}));
    let done = caller.until_status(&id, "completed");
    assert_eq!(done["result"]["isError"], true, "{done}");
    assert!(works(&path, &["tasks", "list"]).contains(&id), "what is acknowledged is in the file");
}

#[test]
fn what_goes_to_a_server_does_not_look_at_the_store_of_the_environment() {
    let place = Place::new(FILES);
    let run = |args: &[&str]| {
        let mut command = outlast();
        command.env("OUTLAST_STORE", "mysql://nonsense").env("OUTLAST_HANDLES", "handles");
        command.current_dir(place.path()).args(args).output().unwrap()
    };
    let handles = run(&["tasks", "handles"]);
    assert!(handles.status.success(), "{}", text(&handles.stderr));
    for args in [
        &["tasks", "get", "none"][..],
        &["tasks", "watch", "none"],
        &["tasks", "resume", "none"],
        &["tasks", "cancel", "none"],
        &["tasks", "answer", "none", "title", "--decline"],
    ] {
        let said = text(&run(args).stderr);
        assert!(said.contains("there is no handle 'none'"), "{args:?}: {said}");
    }
    for args in [&["tasks", "list"][..], &["tasks", "watch"], &["tasks", "cancel", &"0".repeat(32)]] {
        let said = text(&run(args).stderr);
        assert!(said.starts_with("outlast: OUTLAST_STORE: a store is a database"), "{args:?}: {said}");
    }
}

#[test]
fn watching_a_store_is_refused_where_a_server_is_meant() {
    let place = Place::new(FILES);
    for of_server in
        [&["--url", "http://127.0.0.1:1/mcp"][..], &["--", "my-server"], &["--token-env", "TOKEN"]]
    {
        let said = fails(&place.path(), &[&["tasks", "watch"], of_server].concat());
        assert!(said.contains("by its handle"), "{of_server:?}: {said}");
    }
}

#[cfg(unix)]
#[test]
fn watching_a_store_ends_with_its_reader_even_when_nothing_changes() {
    use std::{
        io::{BufRead, BufReader},
        process::Stdio,
        sync::mpsc,
        thread,
    };

    let place = Place::new(FILES);
    let (_caller, id) = asking(&place);
    let mut command = outlast();
    command.current_dir(place.path()).args(["tasks", "watch"]);
    let mut watching = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watching.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(&id), "{line}");

    let process = watching.id();
    let (sender, ended) = mpsc::channel();
    let waiting = thread::spawn(move || sender.send(watching.wait_with_output().unwrap()));
    let output = ended.recv_timeout(support::PATIENCE);
    if output.is_err() {
        let _ = std::process::Command::new("kill").arg(process.to_string()).status();
    }
    waiting.join().unwrap().unwrap();
    let output = output.expect("it ends");
    assert!(output.status.success());
    assert_eq!(text(&output.stderr), "");
}
