//! Several servers on one file, each started by a host of its own, as windows of one editor do.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

mod support;

use serde_json::{Value, json};
use support::{Caller, Pipes, Place, works};

const FILES: &[(&str, &str)] = &[("a.txt", "abc"), ("b.txt", "")];

/// The process that runs the file's tasks, as its lock says.
fn holder(place: &Place) -> u32 {
    let note = std::fs::read(place.path().join("outlast.db.lock")).unwrap();
    let note: Value = serde_json::from_slice(&note).expect("the holder wrote a note");
    note["process"].as_u64().unwrap().try_into().unwrap()
}

/// What one server was asked for.
struct Tasks {
    /// Runs for a second.
    brief: String,
    /// Runs until it is told to stop.
    long: String,
    /// Waits for two answers.
    asks: String,
    title: String,
}

impl Tasks {
    /// Starts them, and waits until they are at work.
    fn start(server: &mut Pipes, number: usize) -> Self {
        let report = format!("report-{number}.md");
        let asks = server.start("make_report", json!({"folder": "files", "file": report}));
        let long = server.start("count", json!({"seconds": 3600}));
        let brief = server.start("count", json!({"seconds": 1}));
        server.until_status(&asks, "input_required");
        server.until(&long, |task| task["statusMessage"].is_string());
        Self { brief, long, asks, title: format!("Report {number}") }
    }
}

#[test]
fn the_server_that_runs_the_work_of_three_is_killed_and_the_others_go_on() {
    let place = Place::new(FILES);
    let mut servers: Vec<Pipes> = (0..3).map(|_| Pipes::start(&place)).collect();
    let tasks: Vec<Tasks> =
        servers.iter_mut().enumerate().map(|(number, server)| Tasks::start(server, number)).collect();

    let first = holder(&place);
    let at = servers.iter().position(|server| server.process() == first).expect("one of the three is it");
    servers.remove(at).kill();

    // The others take what is for any task, also for those of the one that is gone.
    for (number, Tasks { asks, long, title, .. }) in tasks.iter().enumerate() {
        let title = json!({"action": "accept", "content": {"title": title}});
        let format = json!({"action": "accept", "content": {"format": "markdown"}});
        let server = &mut servers[number % 2];
        server.update(asks, json!({"title": title, "format": format}));
        server.cancel(long);
    }
    for server in &mut servers {
        let new = server.start("hash_folder", json!({"path": "files"}));
        server.until_status(&new, "completed");
        for Tasks { brief, long, asks, title } in &tasks {
            let counted = server.until_status(brief, "completed");
            assert_eq!(counted["result"]["structuredContent"], json!({"counted": 1}));
            server.until_status(long, "cancelled");
            let made = server.until_status(asks, "completed");
            assert_eq!(made["result"]["structuredContent"]["title"], **title, "{made}");
        }
    }
    let second = holder(&place);
    assert!(servers.iter().any(|server| server.process() == second), "one of the two runs the work now");
    for Tasks { long, asks, .. } in &tasks {
        for id in [long, asks] {
            let shown: Value =
                serde_json::from_str(&works(&place.path(), &["tasks", "show", id, "--json"])).unwrap();
            assert!(shown["claims"].as_u64() > Some(1), "it was taken over: {shown}");
        }
    }
    for server in servers {
        assert!(server.close().success());
    }
}
