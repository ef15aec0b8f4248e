//! What is told of tasks.

use std::time::Duration;

use outlast_core::{ClaimRequest, Event, Outcome, StepKey, Store as _, TaskError, ToolVersion, WorkerId};
use serde_json::{Value, json};

use crate::support::{HOSTILE, LEASE, Place, id, payload};

fn ids(page: &Value) -> Vec<String> {
    page["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["taskId"].as_str().unwrap()[..2].to_owned())
        .collect()
}

#[tokio::test]
async fn tasks_are_listed_newest_first_with_what_one_wants_to_see_of_them() {
    let place = Place::new();
    place.asks(1, "alice").await;
    place.clock.advance(Duration::from_secs(90));
    let token = place.task(2, "bob", "slow").await;
    place.does(2, token, Event::SetMessage(Some(HOSTILE.to_owned()))).await;
    let page = place.get("/api/tasks").await.json();
    assert_eq!(ids(&page), ["02", "01"]);
    let [slow, asks] = [&page["tasks"][0], &page["tasks"][1]];
    assert_eq!(
        (&slow["status"], &slow["tool"], &slow["worker"]),
        (&json!("working"), &json!("slow"), &json!("w1"))
    );
    assert_eq!((&slow["claims"], &slow["lost"], &slow["ageMs"]), (&json!(1), &json!(0), &json!(0)));
    assert_eq!(slow["statusMessage"], HOSTILE, "as it is: the page shows it as text");
    assert_eq!((&asks["questions"], &asks["ageMs"]), (&json!(1), &json!(90_000)));
    assert!(!page.to_string().contains("alice"), "owners are told apart and not named");
}

#[tokio::test]
async fn a_list_is_filtered_by_status_tool_and_owner_by_name_or_digest() {
    let place = Place::new();
    place.asks(1, "alice").await;
    place.task(2, "bob", "slow").await;
    place.task(3, "alice", "slow").await;
    let digest = place.get("/api/tasks?status=input_required").await.json()["tasks"][0]["owner"].clone();
    let digest = digest.as_str().unwrap();
    for (query, expected) in [
        ("status=input_required".to_owned(), &["01"][..]),
        ("status=working".to_owned(), &["03", "02"]),
        ("status=failed".to_owned(), &[]),
        ("tool=slow".to_owned(), &["03", "02"]),
        ("owner=alice".to_owned(), &["03", "01"]),
        (format!("owner={digest}"), &["03", "01"]),
        (format!("owner={digest}&tool=slow&status="), &["03"]),
        ("owner=deadbeef".to_owned(), &[]),
    ] {
        assert_eq!(ids(&place.get(&format!("/api/tasks?{query}")).await.json()), expected, "{query}");
    }
    // A process that has not listed anything knows it too.
    let other = outlast_admin::Admin::new(
        place.store.clone(),
        outlast_admin::AdminToken::new(crate::support::TOKEN).unwrap(),
        outlast_admin::Options::default(),
    );
    let fresh = Place { admin: other, ..place };
    assert_eq!(ids(&fresh.get(&format!("/api/tasks?owner={digest}")).await.json()), ["03", "01"]);
}

#[tokio::test]
async fn pages_of_any_size_follow_each_other_without_a_gap() {
    let place = Place::new();
    for n in 1..=50 {
        place.task(n, "alice", "slow").await;
    }
    for max in [1, 7, 20, 45, 50, 1_000] {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let page = place.get(&format!("/api/tasks?max={max}&after={after}")).await.json();
            let got = ids(&page);
            assert!(got.len() <= max);
            found.extend(got);
            match page["next"].as_str() {
                Some(next) => after = next.to_owned(),
                None => break,
            }
        }
        let all: Vec<_> = (1..=50_u8).rev().map(|n| format!("{n:02x}")).collect();
        assert_eq!(found, all, "in pages of {max}");
    }
}

#[tokio::test]
async fn what_is_not_understood_is_refused_in_words() {
    let place = Place::new();
    for query in ["status=done", "after=x", "max=0", "max=1001", "order=age"] {
        assert!(!place.get(&format!("/api/tasks?{query}")).await.refusal(400).is_empty());
    }
    for path in [
        "/api/tasks/../../etc",
        "/api/tasks/x",
        "/api/tasks/%3Cscript%3E",
        "/api/tasks/07070707070707070707070707070707",
    ] {
        place.get(path).await.refusal(404);
    }
    place.get("/api/counts/x").await.refusal(404);
    place.post("/api/counts", "").await.refusal(405);
    place.get("/api/tasks/07070707070707070707070707070707/cancel").await.refusal(405);
}

#[tokio::test]
async fn all_of_a_task_is_told_and_values_where_they_are_asked_for() {
    let place = Place::new();
    let token = place.asks(1, "alice").await;
    let step = Event::FinishStep {
        key: StepKey::new("pay").unwrap(),
        outcome: Outcome::Value(payload(json!({"card": "4711"}))),
        took: Duration::from_millis(300),
        tries: 1,
    };
    place.does(1, token, step).await;
    place.clock.advance(Duration::from_secs(10));
    let path = format!("/api/tasks/{}", id(1));
    let answer = place.get(&path).await;
    assert!(
        answer.body.contains(r#""arguments":{"z":1,"a":"<b>"}"#),
        "in the order in which they came: {}",
        answer.body
    );
    let task = answer.json();
    assert_eq!(task["questions"][0]["key"], "who");
    assert_eq!(task["questions"][0]["kind"], "elicitation by form");
    assert_eq!(task["questions"][0]["request"]["params"]["message"], HOSTILE);
    assert_eq!(task["told"]["work"], "held by w1, whose lease lasts 20s more unless it is renewed");
    assert_eq!(task["told"]["attempts"], "1; is taken up again after a crash");
    let words: Vec<&str> =
        task["history"].as_array().unwrap().iter().map(|event| event["words"].as_str().unwrap()).collect();
    assert_eq!(words[..2], ["created", "attempt 1 begun by w1"]);
    assert!(
        words[2].starts_with("asked 'who': <img src=x") && !words[2].contains('\u{202e}'),
        "{}",
        words[2]
    );
    assert_eq!(words[3], "step 'pay' done in 300 ms (15 bytes)");
    assert_eq!(task["history"][3]["after"], "+0 ms");
    assert!(!answer.body.contains("4711"), "values may be secrets");
    assert!(place.get(&format!("{path}?values=true")).await.body.contains("4711"));
    place.get(&format!("{path}?values=perhaps")).await.refusal(400);
    place.get(&format!("{path}?all=true")).await.refusal(400);
}

#[tokio::test]
async fn what_a_task_waits_for_is_told_as_it_and_the_workers_change() {
    let place = Place::new();
    let waits_for = async || -> Vec<(String, String)> {
        let task = place.get(&format!("/api/tasks/{}", id(1))).await.json();
        let part = |cause: &Value, part: &str| cause[part].as_str().unwrap().to_owned();
        let causes = task["waitsFor"].as_array().unwrap().iter();
        causes.map(|cause| (part(cause, "cause"), part(cause, "says"))).collect()
    };
    let only = async |expected: &str, words: &str| {
        let waits_for = waits_for().await;
        let [(cause, says)] = &waits_for[..] else { panic!("one cause: {waits_for:?}") };
        assert!(cause == expected && says.contains(words), "{cause}: {says}");
    };
    let claim = async |tool: &str, max| {
        let serves = [ToolVersion::new(tool, "")].into();
        let request = ClaimRequest { worker: WorkerId::new("w2"), serves, per_owner: 1, lease: LEASE, max };
        place.store.claim(request).await.unwrap()
    };
    let token = place.asks(1, "alice").await;
    let both = waits_for().await;
    assert_eq!(both.iter().map(|(cause, _)| &**cause).collect::<Vec<_>>(), ["running", "answers"]);
    assert_eq!(both[1].1, "It waits for the answer to 'who'.");
    place.does(1, token, Event::Park { seen_seq: 2, wake: None }).await;
    only("answers", "'who'").await;
    let path = format!("/api/tasks/{}/answers", id(1));
    assert_eq!(place.post(&path, r#"{"who": {"action": "decline"}}"#).await.status, 200);
    only("version", "no worker of this store serves that tool. Start a server that does").await;

    claim("ask", 0).await;
    place.clock.advance(Duration::from_secs(61));
    only("worker", "ready for 1m, and no worker has taken it up").await;
    let other = place.task(2, "alice", "slow").await;
    only("limit", "Its owner has 1 tasks running, and 1 are allowed").await;
    place.does(2, other, Event::Complete(payload(json!(1)))).await;
    let claimed = claim("ask", 1).await;
    only("running", "A worker has it (w2); its lease ends in 30s").await;
    place.clock.advance(LEASE + Duration::from_secs(5));
    only("lease", "the lease ran out 5s ago").await;
    place.does(1, claimed[0].token, Event::Complete(payload(json!(1)))).await;
    only("ended", "it is completed").await;
}

#[tokio::test]
async fn how_a_task_ended_is_told() {
    let place = Place::new();
    let token = place.task(1, "alice", "slow").await;
    let result = r#"{"content":[{"type":"text","text":"done"}],"big":12345678901234567890}"#;
    place.does(1, token, Event::Complete(outlast_core::Payload::from_json(result).unwrap())).await;
    let token = place.task(2, "alice", "slow").await;
    place.does(2, token, Event::Fail(TaskError::internal("no van"))).await;
    let done = place.get(&format!("/api/tasks/{}", id(1))).await;
    assert!(done.body.contains(result), "to the letter: {}", done.body);
    assert!(done.json().get("error").is_none());
    let failed = place.get(&format!("/api/tasks/{}", id(2))).await.json();
    assert_eq!((&failed["error"]["code"], &failed["error"]["message"]), (&json!(-32603), &json!("no van")));
    assert_eq!(
        failed["history"].as_array().unwrap().last().unwrap()["words"],
        "failed by attempt 1 after 0 ms"
    );
}

#[tokio::test]
async fn tasks_are_counted_by_status() {
    let place = Place::new();
    place.asks(1, "alice").await;
    place.task(2, "alice", "slow").await;
    let counts = place.get("/api/counts").await.json();
    let mut expected = json!({"working": 1, "input_required": 1, "completed": 0, "failed": 0, "cancelled": 0, "leased": 2, "total": 2, "ready": 0, "oldestReadyMs": null});
    assert_eq!(counts, expected);

    // Their leases run out, and nobody takes them over.
    place.clock.advance(LEASE + Duration::from_secs(9));
    (expected["ready"], expected["oldestReadyMs"]) = (json!(2), json!(9_000));
    assert_eq!(place.get("/api/counts").await.json(), expected);
}
