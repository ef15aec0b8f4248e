//! Changes of tasks over standard input and output (S27, S28).

// The lint spares test functions alone, and the functions that they share are tests as well.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};

use crate::support::{Caller, Pipes, Place, run};

/// What is in the folder that a report is made of.
const FILES: &[(&str, &str)] = &[("a.txt", "abc"), ("b.txt", ""), ("c.txt", "hello\n")];

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// A stream of a task's states, up to the acknowledgement.
fn follow(caller: &mut Pipes, ids: &[&str]) -> u64 {
    let listening = caller.begin("subscriptions/listen", json!({"notifications": {"taskIds": ids}}));
    let agreed = caller.next();
    assert_eq!(agreed["method"], "notifications/subscriptions/acknowledged", "{agreed}");
    assert_eq!(agreed["params"]["notifications"], json!({"taskIds": ids}));
    assert_eq!(agreed["params"]["_meta"][SUBSCRIPTION], listening);
    listening
}

/// The next state that is pushed with this status; earlier ones are of statuses that led there.
fn pushed(caller: &Pipes, listening: u64, status: &str) -> Value {
    loop {
        let message = caller.next();
        // The answer to an update may come in between.
        if message.get("method").is_none() && message["id"] != listening {
            assert_eq!(message["result"]["resultType"], "complete", "{message}");
            continue;
        }
        assert_eq!(message["method"], "notifications/tasks", "{message}");
        assert_eq!(message["params"]["_meta"][SUBSCRIPTION], listening);
        if message["params"]["status"] == status {
            return message["params"].clone();
        }
        assert!(["working", "input_required"].contains(&message["params"]["status"].as_str().unwrap()));
    }
}

fn ended(caller: &Pipes, listening: u64) {
    let message = caller.next();
    assert_eq!(message["id"], listening, "{message}");
    assert_eq!(message["result"]["resultType"], "complete");
    assert_eq!(message["result"]["_meta"][SUBSCRIPTION], listening);
}

#[test]
fn a_report_is_followed_from_its_questions_to_its_end() {
    let place = Place::new(FILES);
    let mut caller = Pipes::start(&place);
    let id = caller.start("make_report", json!({"folder": "files", "file": "report.md"}));
    let listening = follow(&mut caller, &[&id]);
    let asked = pushed(&caller, listening, "input_required");
    assert_eq!(asked["inputRequests"].as_object().unwrap().len(), 2, "{asked}");
    caller.begin(
        "tasks/update",
        json!({"taskId": id, "inputResponses": {
            "title": {"action": "accept", "content": {"title": "My files"}},
            "format": {"action": "accept", "content": {"format": "markdown"}},
        }}),
    );
    let done = pushed(&caller, listening, "completed");
    assert_eq!(done["result"]["isError"], false, "{done}");
    ended(&caller, listening);
    // The connection goes on.
    assert_eq!(caller.get(&id)["status"], "completed");
}

#[test]
fn a_cancel_by_another_process_is_pushed() {
    let place = Place::new(FILES);
    let mut caller = Pipes::start(&place);
    let id = caller.start("make_report", json!({"folder": "files", "file": "report.md"}));
    let listening = follow(&mut caller, &[&id]);
    pushed(&caller, listening, "input_required");
    let cancelled = run(&place.path(), &["tasks", "cancel", &id]);
    assert!(cancelled.status.success(), "{cancelled:?}");
    pushed(&caller, listening, "cancelled");
    ended(&caller, listening);
}

#[test]
fn a_message_that_is_too_long_is_answered_and_the_next_one_is_served() {
    let place = Place::new(FILES);
    let mut caller = Pipes::start(&place);
    caller.begin("tools/call", json!({"name": "hash_folder", "arguments": {"path": "x".repeat(5 << 20)}}));
    let refused = caller.next();
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    let id = caller.start("make_report", json!({"folder": "files", "file": "report.md"}));
    caller.until_status(&id, "input_required");
}

#[test]
fn a_subscription_that_its_client_cancels_says_nothing_more() {
    let place = Place::new(FILES);
    let mut caller = Pipes::start(&place);
    let id = caller.start("make_report", json!({"folder": "files", "file": "report.md"}));
    let listening = follow(&mut caller, &[&id]);
    pushed(&caller, listening, "input_required");
    caller.tell("notifications/cancelled", json!({"requestId": listening}));
    // From here on every message is an answer: each request looks.
    caller.get(&id);
    caller.cancel(&id);
    caller.until_status(&id, "cancelled");
    caller.get(&id);
}
