//! The demo server, over HTTP and over standard input and output.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use serde_json::{Value, json};
use support::{Caller, Http, Pipes, Place, is_counting, run, text, works};

const FILES: &[(&str, &str)] = &[("a.txt", "abc"), ("b.txt", ""), ("c.txt", "hello\n")];

fn accept(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

/// Created, progress seen, questions answered, result read.
fn a_report_is_made(caller: &mut impl Caller, place: &Place) {
    let id = caller.start("make_report", json!({"folder": "files", "file": "report.md"}));
    // Progress is written a few times a second, so the newest may come after the question.
    let asking = caller
        .until(&id, |task| task["statusMessage"] == "c.txt (3/3)" && task["status"] == "input_required");
    let questions = asking["inputRequests"].as_object().unwrap();
    assert_eq!(questions.keys().collect::<Vec<_>>(), ["format", "title"]);
    assert_eq!(
        questions["format"]["params"]["requestedSchema"]["properties"]["format"]["enum"],
        json!(["markdown", "json"])
    );

    caller.update(&id, json!({"title": accept(json!({"title": "Three files"}))}));
    assert_eq!(caller.get(&id)["status"], "input_required", "one answer of two (S20)");
    caller.update(&id, json!({"format": accept(json!({"format": "markdown"}))}));

    let done = caller.until_status(&id, "completed");
    let report = &done["result"]["structuredContent"];
    assert_eq!((&report["title"], &report["files"]), (&json!("Three files"), &json!(3)), "{done}");
    let written = std::fs::read_to_string(place.path().join("report.md")).unwrap();
    assert!(written.starts_with("# Three files\n\n3 files in "), "{written}");
    assert!(
        written
            .contains("| a.txt | 3 | `ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad` |")
    );
}

#[test]
fn a_task_is_created_followed_answered_and_read_over_http() {
    let place = Place::new(FILES);
    a_report_is_made(&mut Http::start(&place), &place);
}

#[test]
fn a_task_is_created_followed_answered_and_read_over_stdio() {
    let place = Place::new(FILES);
    let mut caller = Pipes::start(&place);
    a_report_is_made(&mut caller, &place);
    assert!(caller.close().success(), "it ends when its client closes");
}

#[test]
fn the_printed_curl_works_as_it_is() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    let command =
        caller.banner.split("\n\n").find(|part| part.starts_with("curl ")).expect("there is a curl command");
    let words = shell_words(command);
    assert_eq!(words[..3], ["curl", "-sS", &format!("http://{}/mcp", caller.address)]);
    let (mut headers, mut body) = (Vec::new(), String::new());
    for pair in words[3..].chunks(2) {
        match pair {
            [flag, header] if flag == "-H" => {
                let (name, value) = header.split_once(": ").unwrap();
                headers.push((name.to_owned(), value.to_owned()));
            }
            [flag, data] if flag == "-d" => body.clone_from(data),
            other => panic!("this test does not know {other:?}"),
        }
    }
    let created = caller.post(&headers, &body);
    let id = created["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned();
    let done = caller.until_status(&id, "completed");
    assert_eq!(done["result"]["isError"], false, "{done}");
}

/// A command line as a shell takes it apart, as far as the banner goes: plain words, single quotes, line ends.
fn shell_words(command: &str) -> Vec<String> {
    let joined = command.replace("\\\n", " ");
    let mut words = vec![];
    let mut rest = joined.trim_start();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('\'') {
            Some(quoted) => quoted.split_once('\'').expect("a quote ends"),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    words
}

#[test]
fn a_folder_is_hashed_and_a_missing_one_is_a_tool_error() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);

    let id = caller.start("hash_folder", json!({"path": "files"}));
    let done = caller.until_status(&id, "completed");
    assert_eq!(done["statusMessage"], "c.txt (3/3)");
    let folder = &done["result"]["structuredContent"];
    assert_eq!(folder["total_bytes"], 9);
    let names: Vec<_> = folder["files"].as_array().unwrap().iter().map(|file| &file["name"]).collect();
    assert_eq!(names, ["a.txt", "b.txt", "c.txt"]);

    let id = caller.start("hash_folder", json!({"path": "nowhere"}));
    let failed = caller.until_status(&id, "completed");
    assert_eq!(failed["result"]["isError"], true, "a tool error completes its task (S13)");
    assert!(failed["result"]["content"][0]["text"].as_str().unwrap().starts_with("cannot read the folder"));
}

#[test]
fn files_are_deleted_only_when_a_person_agrees() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    let files = place.files();
    let delete = json!({"folder": files, "names": ["a.txt", "nothing.txt"]});

    for refusal in
        [json!({"action": "decline"}), json!({"action": "cancel"}), accept(json!({"confirm": false}))]
    {
        let id = caller.start("delete_files", delete.clone());
        let asking = caller.until_status(&id, "input_required");
        let question = asking["inputRequests"]["confirm"]["params"]["message"].as_str().unwrap();
        assert!(question.ends_with("for good?\na.txt\nnothing.txt"), "{question}");
        caller.update(&id, json!({"confirm": refusal}));
        let done = caller.until_status(&id, "completed");
        assert_eq!(done["result"]["structuredContent"]["deleted"], json!([]));
        assert!(files.join("a.txt").exists());
    }

    let id = caller.start("delete_files", delete);
    caller.until_status(&id, "input_required");
    caller.update(&id, json!({"confirm": accept(json!({"confirm": true}))}));
    let done = caller.until_status(&id, "completed");
    let deletion = &done["result"]["structuredContent"];
    assert_eq!(deletion["deleted"], json!(["a.txt"]));
    assert_eq!(deletion["skipped"], json!([{"name": "nothing.txt", "reason": "there is no such file"}]));
    assert!(!files.join("a.txt").exists() && files.join("b.txt").exists());
}

#[test]
fn nothing_outside_the_folder_can_be_named_for_deletion() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    for names in [json!(["../outlast.db"]), json!(["a.txt", "/etc/passwd"]), json!([""]), json!([])] {
        let id = caller.start("delete_files", json!({"folder": place.files(), "names": names}));
        let done = caller.until_status(&id, "completed");
        assert_eq!(done["result"]["isError"], true, "nobody is even asked: {done}");
    }
}

#[test]
fn a_count_says_each_second_and_stops_when_it_is_cancelled() {
    let place = Place::new(&[]);
    let mut caller = Http::start(&place);
    let id = caller.start("count", json!({"seconds": 3600}));
    caller.until(&id, is_counting);
    caller.cancel(&id);
    caller.until_status(&id, "cancelled");
}

#[test]
fn failures_end_their_tasks_and_nothing_else() {
    let place = Place::new(&[]);
    let mut caller = Http::start(&place);

    let id = caller.start("failing_job", json!({}));
    assert_eq!(caller.until_status(&id, "completed")["result"]["isError"], true);
    let id = caller.start("failing_job", json!({"kind": "protocol"}));
    assert_eq!(caller.until_status(&id, "failed")["error"]["code"], -32603);
    let id = caller.start("panic_job", json!({}));
    let failed = caller.until_status(&id, "failed");
    assert!(failed["error"]["message"].as_str().unwrap().contains("panicked"), "{failed}");

    let id = caller.start("count", json!({"seconds": 1}));
    assert_eq!(caller.until_status(&id, "completed")["result"]["structuredContent"]["counted"], 1);
}

#[test]
fn a_question_and_a_result_outlast_the_death_of_the_server() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    let hashed = caller.start("hash_folder", json!({"path": "files"}));
    let before = caller.until_status(&hashed, "completed");
    let report = caller.start("make_report", json!({"folder": "files", "file": "report.json"}));
    caller.until_status(&report, "input_required");
    caller.server.kill();

    let mut caller = Http::start(&place);
    assert_eq!(caller.get(&hashed), before, "a result is what it was (S12)");
    caller.until_status(&report, "input_required");
    let (title, format) = (accept(json!({"title": "Later"})), accept(json!({"format": "json"})));
    caller.update(&report, json!({"title": title, "format": format}));
    caller.until_status(&report, "completed");
    let written: Value =
        serde_json::from_slice(&std::fs::read(place.path().join("report.json")).unwrap()).unwrap();
    assert_eq!(written["title"], "Later");
}

/// The server dies between the writing and the result, and meanwhile the folder changes.
#[test]
fn a_report_that_a_killed_server_wrote_is_known_again() {
    let place = Place::new(FILES);
    let path = place.path();
    let mut caller = Http::start(&place);
    let id = caller.start("make_report", json!({"folder": "files", "file": "report.md"}));
    caller.until_status(&id, "input_required");
    caller.server.kill();
    works(&path, &["tasks", "answer", &id, "title", "--accept", "title=Once"]);
    works(&path, &["tasks", "answer", &id, "format", "--accept", "format=markdown"]);
    let store = ["outlast.db", "outlast.db-wal"].map(|name| path.join(name));
    let answered = store.each_ref().map(|file| std::fs::read(file).unwrap());

    let mut caller = Http::start(&place);
    let first = caller.until_status(&id, "completed");
    caller.server.kill();
    let report = std::fs::read(path.join("report.md")).unwrap();

    std::fs::remove_file(path.join("outlast.db-shm")).unwrap();
    store.iter().zip(answered).for_each(|(file, bytes)| std::fs::write(file, bytes).unwrap());
    std::fs::write(path.join("files/d.txt"), "new").unwrap();
    let mut caller = Http::start(&place);
    let again = caller.until_status(&id, "completed");
    assert_eq!(again["result"], first["result"], "and no error: {first}");
    assert_eq!(first["result"]["structuredContent"]["files"], 3);
    assert!(std::fs::read(path.join("report.md")).unwrap() == report);
}

#[test]
fn nobody_is_asked_about_a_report_that_cannot_be_written() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    std::fs::write(place.path().join("mine.md"), "mine").unwrap();
    for (file, said) in [
        ("nowhere/report.md", "cannot write nowhere/report.md: there is no such folder"),
        ("mine.md", "mine.md exists already and is left as it is"),
    ] {
        let id = caller.start("make_report", json!({"folder": "files", "file": file}));
        assert_eq!(error_of(&caller.until_status(&id, "completed")), said);
    }
}

#[test]
fn an_error_names_no_path_that_its_caller_did_not() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    for (tool, arguments) in [
        ("hash_folder", json!({"path": "nowhere"})),
        ("hash_folder", json!({"path": "files/a.txt"})),
        ("make_report", json!({"folder": "nowhere", "file": "report.md"})),
        ("make_report", json!({"folder": "files", "file": "outlast.db"})),
        ("make_report", json!({"folder": "files", "file": "files"})),
        ("delete_files", json!({"folder": "files", "names": ["a.txt"]})),
        ("delete_files", json!({"folder": "nowhere", "names": ["a.txt"]})),
    ] {
        let id = caller.start(tool, arguments);
        let said = error_of(&caller.until_status(&id, "completed"));
        assert!(!said.contains(place.path().to_str().unwrap()), "{said}");
    }
}

/// What a tool error says.
fn error_of(task: &Value) -> String {
    assert_eq!(task["result"]["isError"], true, "{task}");
    task["result"]["content"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn a_caller_without_tasks_is_served_at_once() {
    let place = Place::new(FILES);
    let mut caller = Http::start(&place);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"name": "hash_folder", "arguments": {"path": "files"}, "_meta": meta});
    let answer = caller.send("tools/call", "hash_folder", params);
    assert_eq!(answer["result"]["structuredContent"]["total_bytes"], 9, "{answer}");

    let params = json!({"name": "delete_files", "arguments": {"folder": place.files(), "names": ["a.txt"]}, "_meta": meta});
    let answer = caller.send("tools/call", "delete_files", params);
    assert_eq!(answer["error"]["code"], -32021, "a tool that has to ask cannot (S5): {answer}");
}

#[cfg(unix)]
#[test]
fn it_stops_in_good_order_when_it_is_told_to() {
    let place = Place::new(&[]);
    let caller = Http::start(&place);
    assert!(caller.server.terminate().success());

    let mut caller = Pipes::start(&place);
    let id = caller.start("make_report", json!({"folder": "files", "file": "report.md"}));
    caller.until_status(&id, "input_required");
    assert!(caller.terminate().success(), "an open standard input does not keep it");
}

#[test]
fn a_client_that_leaves_before_it_said_anything_is_no_error() {
    let place = Place::new(&[]);
    let output = run(&place.path(), &["demo", "--stdio"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(
        text(&output.stderr),
        "outlast: serving on standard input and output, with tasks in outlast.db\n"
    );
}

#[test]
fn two_servers_on_standard_input_share_one_file() {
    let place = Place::new(FILES);
    let mut first = Pipes::start(&place);
    let id = first.start("make_report", json!({"folder": "files", "file": "report.md"}));
    first.until_status(&id, "input_required");

    let mut second = Pipes::start(&place);
    assert_eq!(second.get(&id)["status"], "input_required", "it is the same owner's task");
    let hashed = second.start("hash_folder", json!({"path": "files"}));
    second.until_status(&hashed, "completed");

    assert!(first.close().success());
    let (title, format) = (accept(json!({"title": "Taken over"})), accept(json!({"format": "json"})));
    second.update(&id, json!({"title": title, "format": format}));
    second.until_status(&id, "completed");
}

#[test]
fn a_task_goes_on_from_one_short_process_to_the_next() {
    let place = Place::new(FILES);
    let mut caller = Pipes::start(&place);
    let id = caller.start("make_report", json!({"folder": "files", "file": "report.md"}));
    assert!(caller.close().success());

    // Each takes the task up while it is told to stop already.
    for _ in 0..10 {
        let mut caller = Pipes::start(&place);
        assert_eq!(caller.get(&id)["status"], "input_required");
        assert!(caller.close().success());
    }

    let mut caller = Pipes::start(&place);
    let (title, format) = (accept(json!({"title": "At last"})), accept(json!({"format": "json"})));
    caller.update(&id, json!({"title": title, "format": format}));
    assert!(caller.close().success());
    assert_eq!(Pipes::start(&place).until_status(&id, "completed")["result"]["isError"], false);
}

#[test]
fn a_server_that_cannot_be_says_why() {
    let place = Place::new(&[]);
    let caller = Http::start(&place);
    let path = place.path();
    let refused = |args: &[&str], code| {
        let output = run(&path, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        text(&output.stderr)
    };
    let second = refused(&["demo", "--listen", "127.0.0.1:0"], 1);
    assert!(
        second
            .starts_with(&format!("outlast: outlast.db is served by process {} since ", caller.server.id()))
            && second.contains("name another file with --db"),
        "one runtime for a file: {second}"
    );
    assert!(refused(&["demo", "--listen", &caller.address], 1).contains("cannot listen on"));
    assert!(refused(&["demo", "--listen", "0.0.0.0:0"], 1).contains("--allow-host"));
    for way in [&["--listen", "127.0.0.1:0"][..], &["--stdio"]] {
        let said = refused(&[&["demo", "--db", "files"], way].concat(), 1);
        assert_eq!(said.lines().last(), Some("outlast: files is a folder; give the path of a file"));
    }
    assert!(
        refused(&["demo", "--listen", "127.0.0.1:0", "--allow-host", ""], 2).contains("a host is a name")
    );
    assert!(refused(&["demo", "--stdio", "--listen", "127.0.0.1:0"], 2).contains("cannot be used with"));
}
