//! `outlast call` and what `outlast tasks` does with its handles, as a person at a terminal and as a script.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use std::{path::Path, process::Output};

use serde_json::{Value, json};
use support::{Http, Place, outlast, pty::Person, text};

/// The two ways in which a server is reached.
enum Way {
    Http(Http),
    Child,
}

impl Way {
    fn http(place: &Place) -> Self {
        Self::Http(Http::start(place))
    }

    /// The command line that calls `tool`.
    fn call<'a>(&'a self, tool: &'a str, rest: &[&'a str]) -> Vec<String> {
        let mut args = vec!["call".to_owned()];
        if let Self::Http(server) = self {
            args.push(format!("http://{}/mcp", server.address));
        }
        args.push(tool.to_owned());
        args.extend(rest.iter().map(|&arg| arg.to_owned()));
        if let Self::Child = self {
            args.extend(["--", env!("CARGO_BIN_EXE_outlast"), "demo", "--stdio"].map(str::to_owned));
        }
        args
    }

    fn person_calls(&self, place: &Place, tool: &str, rest: &[&str]) -> Person {
        let args = self.call(tool, rest);
        Person::runs(&place.path(), &args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn script_calls(&self, place: &Place, tool: &str, rest: &[&str]) -> Output {
        let args = self.call(tool, rest);
        script(&place.path(), &args.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// Runs the command without a terminal.
fn script(folder: &Path, args: &[&str]) -> Output {
    outlast()
        .current_dir(folder)
        .env("OUTLAST_HANDLES", "handles")
        .args(args)
        .output()
        .expect("the binary runs")
}

/// The exit status of a script, once it is known what it said to standard error.
fn status(output: &Output, said: &str) -> i32 {
    let stderr = text(&output.stderr);
    assert!(stderr.contains(said), "{said:?} is not in {stderr:?}");
    output.status.code().unwrap()
}

/// The names of the handles that are kept.
fn handles(place: &Place) -> Vec<String> {
    let listed = script(&place.path(), &["tasks", "handles", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    listed.as_array().unwrap().iter().map(|task| task["name"].as_str().unwrap().to_owned()).collect()
}

/// Fills in the form that has a field of each kind, with two wrong entries.
fn fills_in_the_form(person: &mut Person) {
    person.sees("asks:\nPlease book a table.\n").sees(":decline says no");
    for (prompt, line) in [
        ("At (a date and time such as 2026-07-28T09:30:00Z; optional): ", "2026-12-24T18:00:00+01:00"),
        ("Avoid (some of these, or none; commas between; optional): ", "1, milk"),
        ("Budget (a number, at least 0; optional): ", "49.5"),
        ("Day (a date such as 2026-07-28; optional): ", "24.12.2026"),
        ("! this field takes a date such as 2026-07-28\nDay (a date", "2026-12-24"),
        ("E-mail (an e-mail address; optional): ", "ada@example.com"),
        ("Extras (some of these, 1 to 2; commas between): ", "Bread, flowers"),
        ("Guests (a whole number, 1 to 12) [2]: ", "13"),
        ("! this field takes a whole number, 1 to 12\nGuests", "4"),
        ("Menu (one of these, by number or name; optional) [plants]: ", ""),
        ("Name (text, 1 to 40 characters): ", "Ada Lovelace"),
        ("Outside (yes or no; optional) [no]: ", "y"),
        ("Web page (a URI such as https://example.com/; optional): ", ""),
        ("Table (one of these, by number or name): ", "By the fire"),
    ] {
        person.sees(prompt).types(line);
    }
    person.sees("  Extras: Bread, Flowers\n").sees("  Table: By the fire\n").sees("Send this?").types("yes");
}

fn entered() -> Value {
    json!({"entered": {
        "at": "2026-12-24T18:00:00+01:00",
        "avoid": ["nuts", "milk"],
        "budget": 49.5,
        "day": "2026-12-24",
        "email": "ada@example.com",
        "extras": ["b", "f"],
        "guests": 4,
        "menu": "plants",
        "name": "Ada Lovelace",
        "outside": true,
        "table": "t2",
    }})
}

/// The JSON that a terminal shows last.
fn last_json(shown: &str) -> Value {
    let at = shown.rfind("{\n  \"").unwrap_or_else(|| panic!("there is no JSON in {shown}"));
    serde_json::from_str(&shown[at..]).unwrap_or_else(|error| panic!("{error} in {shown}"))
}

fn a_form_is_filled_in(way: &Way, place: &Place) {
    let mut person = way.person_calls(place, "fill_form", &[]);
    fills_in_the_form(&mut person);
    let (code, shown) = person.sees_it_end();
    assert_eq!((code, last_json(&shown)), (0, entered()), "{shown}");
    assert!(handles(place).is_empty(), "nothing is left to take up");
}

#[test]
fn a_form_with_each_kind_of_field_is_filled_in_over_http() {
    let place = Place::new(&[]);
    a_form_is_filled_in(&Way::http(&place), &place);
}

#[test]
fn a_form_with_each_kind_of_field_is_filled_in_for_a_child_process() {
    let place = Place::new(&[]);
    a_form_is_filled_in(&Way::Child, &place);
}

#[test]
fn progress_is_shown_until_the_result_is_there() {
    let place = Place::new(&[]);
    for way in [Way::http(&place), Way::Child] {
        let mut person = way.person_calls(&place, "count", &["--arg", "seconds=3"]);
        person.sees("count: working").sees("counting (").sees("\"counted\": 3");
        assert_eq!(person.sees_it_end().0, 0);
        if let Way::Http(server) = way {
            // The next one has the file for itself.
            server.server.kill();
        }
    }
}

#[test]
fn a_handle_is_taken_up_where_its_server_is_reached_now() {
    let place = Place::new(&[]);
    let path = place.path();
    let server = Http::start(&place);
    let old = server.address.clone();
    script(&path, &["call", &format!("http://{old}/mcp"), "fill_form", "--detach"]);
    let [handle] = &handles(&place)[..] else { panic!("one handle is kept") };
    server.server.kill();
    // Nobody answers at the old address, and the new one is another.
    let _taken = std::net::TcpListener::bind(&old).unwrap();
    let moved = Http::start(&place);
    let url = format!("http://{}/mcp", moved.address);

    let got = script(&path, &["tasks", "get", handle, "--url", &url]);
    assert!(text(&got.stdout).contains("input_required"), "{}", text(&got.stderr));
    let answered = script(&path, &["tasks", "answer", handle, "form", "--decline", "--url", &url]);
    assert!(answered.status.success(), "{}", text(&answered.stderr));
    let watched = script(&path, &["tasks", "watch", handle, "--url", &url]);
    assert_eq!(status(&watched, "the tool ended with an error"), 3);
    assert!(handles(&place).is_empty(), "it is one handle, wherever its server is");
}

#[test]
fn no_is_an_answer() {
    let place = Place::new(&[]);
    let way = Way::http(&place);
    let mut person = way.person_calls(&place, "fill_form", &[]);
    person.sees("At (").types("").sees("Avoid (").types(":decline").sees("declined");
    person.sees("nothing was entered").sees("the tool ended with an error");
    assert_eq!(person.sees_it_end().0, 3);

    let mut person = way.person_calls(&place, "fill_form", &[]);
    person.sees("At (").presses_ctrl('d').sees("no answer is given").sees("nothing was entered");
    assert_eq!(person.sees_it_end().0, 3);
}

#[test]
fn a_page_is_shown_with_its_host_and_not_opened() {
    let place = Place::new(&[]);
    let way = Way::http(&place);
    let page = r#"{"page": "https://user@evil.example/a?b=c"}"#;
    let mut person = way.person_calls(&place, "fill_form", &[page]);
    person.sees("Please read this page first.").sees("address: https://user@evil.example/a?b=c\n");
    person.sees("host:    evil.example\n").sees("careful: what stands before the @ is not the host");
    person.sees("Will you open it?").types("").sees("say yes or no").types("yes");
    person.sees("Please book a table.").sees("At (").types(":cancel");
    assert_eq!(person.sees_it_end().0, 3);

    let mut person = way.person_calls(&place, "fill_form", &[page]);
    person.sees("Will you open it?").types("no").sees("the page was not read");
    assert_eq!(person.sees_it_end().0, 3);
}

fn a_detached_task_is_taken_up(way: &Way, place: &Place) {
    let path = place.path();
    let mut person = way.person_calls(place, "fill_form", &["--detach"]);
    person.sees("outlast tasks resume fill_form.");
    assert_eq!(person.sees_it_end().0, 0);
    let [handle] = &handles(place)[..] else { panic!("one handle is kept") };

    let shown = text(&script(&path, &["tasks", "get", handle]).stdout);
    assert!(
        shown.contains("status    input_required") && shown.contains("extras: any of w, b, f"),
        "{shown}"
    );

    let mut person = Person::runs(&path, &["tasks", "resume", handle]);
    fills_in_the_form(&mut person);
    let (code, shown) = person.sees_it_end();
    assert_eq!((code, last_json(&shown)), (0, entered()), "{shown}");
    assert_eq!(status(&script(&path, &["tasks", "resume", handle]), "there is no handle"), 1);
}

#[test]
fn a_detached_task_is_taken_up_by_a_second_process_over_http() {
    let place = Place::new(&[]);
    a_detached_task_is_taken_up(&Way::http(&place), &place);
}

#[test]
fn a_detached_task_is_taken_up_with_the_command_that_was_kept() {
    let place = Place::new(&[]);
    a_detached_task_is_taken_up(&Way::Child, &place);
}

#[test]
fn a_call_that_was_killed_at_a_question_is_taken_up_at_that_question() {
    let place = Place::new(&[]);
    let way = Way::http(&place);
    let mut person = way.person_calls(&place, "fill_form", &["--arg", "page=https://a.example/"]);
    person.sees("Will you open it?").types("yes").sees("Please book a table.").sees("At (");
    person.kills_it();

    let [handle] = &handles(&place)[..] else { panic!("one handle is kept") };
    let mut person = Person::runs(&place.path(), &["tasks", "resume", handle]);
    fills_in_the_form(&mut person);
    let (code, shown) = person.sees_it_end();
    assert_eq!((code, last_json(&shown)), (0, entered()), "{shown}");
    assert!(!shown.contains("read this page"), "what was answered is not asked again: {shown}");
}

#[test]
fn a_server_that_is_killed_and_comes_back_at_an_open_question_gets_the_answer() {
    let place = Place::new(&[]);
    let server = Http::start(&place);
    let address = server.address.clone();
    let way = Way::Http(server);
    let mut person = way.person_calls(&place, "fill_form", &[]);
    person.sees("Please book a table.").sees("At (");
    let Way::Http(server) = way else { unreachable!("it is one") };
    server.server.kill();
    let again = Http::start_at(&place, &address);

    // The question is still the one at the terminal.
    for (prompt, line) in [("", ""), ("Avoid (", ""), ("Budget (", ""), ("Day (", ""), ("E-mail (", "")] {
        person.sees(prompt).types(line);
    }
    for (prompt, line) in [("Extras (", "Water"), ("Guests (", ""), ("Menu (", ""), ("Name (", "Ada")] {
        person.sees(prompt).types(line);
    }
    for (prompt, line) in [("Outside (", ""), ("Web page (", ""), ("Table (", "1"), ("Send this?", "")] {
        person.sees(prompt).types(line);
    }
    let (code, shown) = person.sees_it_end();
    assert_eq!((code, &last_json(&shown)["entered"]["name"]), (0, &json!("Ada")), "{shown}");
    assert_eq!(shown.matches("Please book a table.").count(), 1, "it is asked once: {shown}");
    drop(again);
}

#[test]
fn ctrl_c_asks_and_cancels() {
    let place = Place::new(&[]);
    for way in [Way::http(&place), Way::Child] {
        let mut person = way.person_calls(&place, "count", &["--arg", "seconds=1000"]);
        person.sees("counting (").presses_ctrl('c').sees("Cancel the task, detach from it, or go on?");
        person.types("x").sees("c cancels the task").types("g").sees("counting (");
        person.presses_ctrl('c').sees("or go on?").types("c").sees("asking the task to end");
        person.sees("the task was cancelled");
        assert_eq!(person.sees_it_end().0, 5);
        if let Way::Http(server) = way {
            server.server.kill();
        }
    }
}

#[test]
fn ctrl_c_comes_before_an_open_question_and_goes_back_to_it() {
    let place = Place::new(&[]);
    let way = Way::http(&place);
    let mut person = way.person_calls(&place, "fill_form", &[]);
    person.sees("At (").types("").sees("Avoid (").presses_ctrl('c').sees("or go on?").types("g");
    person.sees("Avoid (").types("none").sees("Budget (").presses_ctrl('c').sees("or go on?").types("c");
    person.sees("the task was cancelled");
    assert_eq!(person.sees_it_end().0, 5);
}

#[test]
fn ctrl_c_twice_detaches_at_once_and_the_task_goes_on() {
    let place = Place::new(&[]);
    let way = Way::http(&place);
    let mut person = way.person_calls(&place, "count", &["--arg", "seconds=1000"]);
    person.sees("counting (").presses_ctrl('c').sees("or go on?").presses_ctrl('c');
    person.sees("detached").sees("the task goes on; `outlast tasks resume count.");
    assert_eq!(person.sees_it_end().0, 130);

    let [handle] = &handles(&place)[..] else { panic!("one handle is kept") };
    let mut person = Person::runs(&place.path(), &["tasks", "watch", handle]);
    person.sees("working - counting");
    let cancelled = script(&place.path(), &["tasks", "cancel", handle]);
    assert_eq!(status(&cancelled, ""), 0);
    person.sees("the task was cancelled");
    assert_eq!(person.sees_it_end().0, 5);
}

#[test]
fn a_script_learns_from_the_exit_status_how_it_ended() {
    let place = Place::new(&[]);
    let way = Way::http(&place);
    let calls = |tool: &str, rest: &[&str]| way.script_calls(&place, tool, rest);

    assert_eq!(status(&calls("failing_job", &[]), "the tool ended with an error"), 3);
    assert_eq!(
        status(&calls("failing_job", &["--arg", "kind=protocol"]), "always ends in a protocol error"),
        4
    );
    assert_eq!(status(&calls("no_such_tool", &[]), "tool not found"), 4);
    let late = calls("count", &["--arg", "seconds=1000", "--deadline", "200ms"]);
    assert_eq!(status(&late, "the deadline passed"), 6);
    assert_eq!(status(&calls("fill_form", &[]), "there is nobody at a terminal to ask"), 8);
    assert_eq!(status(&calls("fill_form", &["--answer", r#"form={"name": 1}"#]), "does not fit: 'name'"), 8);
    assert_eq!(status(&calls("fill_form", &["--answer", "form=decline"]), "the tool ended with an error"), 3);

    let path = place.path();
    assert_eq!(status(&script(&path, &["call", "http://127.0.0.1:9/mcp", "count"]), "cannot be reached"), 7);
    for wrong in [
        &["call"][..],
        &["call", "count"],
        &["call", "ftp://a/", "count"],
        &["call", "a", "b", "c", "--", "d"],
    ] {
        assert_eq!(script(&path, wrong).status.code(), Some(2), "{wrong:?}");
    }
    let Way::Http(server) = way else { unreachable!("it is one") };
    let handle = &handles(&place)[0];
    server.server.kill();
    std::fs::remove_file(path.join("outlast.db")).unwrap();
    let _ = std::fs::remove_file(path.join("outlast.db-wal"));
    let again = Http::start_at(&place, &server.address);
    assert_eq!(status(&script(&path, &["tasks", "get", handle]), "does not know the task"), 9);
    drop(again);
}

#[test]
fn a_script_gets_json_and_nothing_else_and_answers_beforehand() {
    let place = Place::new(&[]);
    let way = Way::Child;
    let answer = r#"form={"name": "Ada", "guests": 1, "table": "t1", "extras": ["w"]}"#;
    let output = way.script_calls(&place, "fill_form", &["--answer", answer, "--json"]);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["structuredContent"]["entered"]["name"], "Ada");
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn a_server_that_was_started_for_a_call_ends_in_its_own_time() {
    let place = Place::new(&[]);
    let path = place.path();
    // A shell that is killed says nothing of what it ran.
    let server = r#""$0" demo --stdio; echo "ended with $?" > end"#;
    let call =
        ["call", "count", "--arg", "seconds=1", "--", "sh", "-c", server, env!("CARGO_BIN_EXE_outlast")];
    assert_eq!(status(&script(&path, &call), ""), 0);
    assert_eq!(std::fs::read_to_string(path.join("end")).unwrap(), "ended with 0\n");
}

#[test]
fn a_handle_is_json_that_answers_and_resumes() {
    let place = Place::new(&[]);
    let path = place.path();
    let way = Way::http(&place);
    let report = ["--arg", "folder=files", "--arg", "file=report.md", "--detach", "--json"];
    let handle = text(&way.script_calls(&place, "make_report", &report).stdout);
    assert!(serde_json::from_str::<Value>(&handle).unwrap()["taskId"].is_string());

    let answered =
        |key: &str, rest: &[&str]| script(&path, &[&["tasks", "answer", &handle, key], rest].concat());
    assert_eq!(status(&answered("other", &["--decline"]), "it asks under format, title"), 1);
    assert_eq!(status(&answered("format", &["--accept", "format=pdf"]), "one of markdown, json"), 1);
    assert_eq!(text(&answered("format", &["--accept", "format=json"]).stdout), "'format' is answered\n");

    std::fs::write(path.join("handle.json"), &handle).unwrap();
    let output =
        script(&path, &["tasks", "resume", "handle.json", "--answer", r#"title={"title": "T"}"#, "--json"]);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["structuredContent"]["title"], "T", "{}", text(&output.stderr));
}

#[test]
fn a_store_and_a_server_are_told_apart() {
    let place = Place::new(&[]);
    let path = place.path();
    let way = Way::http(&place);
    let id = "0".repeat(32);
    assert_eq!(status(&script(&path, &["tasks", "cancel", &id]), "there is no task"), 1);
    assert_eq!(
        status(&script(&path, &["tasks", "cancel", "count.abc"]), "there is no handle 'count.abc'"),
        1
    );
    let both = script(&path, &["tasks", "cancel", "count.abc", "--db", "outlast.db"]);
    assert_eq!(status(&both, "is not the id of a task in outlast.db"), 1);
    assert_eq!(
        status(
            &script(&path, &["tasks", "get", "count.abc", "--db", "outlast.db"]),
            "name where tasks are kept"
        ),
        1
    );
    drop(way);
}
