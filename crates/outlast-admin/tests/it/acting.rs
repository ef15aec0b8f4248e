//! Answers, cancels and retries.

use outlast_core::{Event, Status, Store as _, TaskError, TaskState};
use serde_json::json;

use crate::support::{Place, id, key};

async fn status(place: &Place, n: u8) -> Status {
    place.store.get(id(n)).await.unwrap().unwrap().status()
}

#[tokio::test]
async fn an_answer_that_fits_is_given_once() {
    let place = Place::new();
    place.asks(1, "alice").await;
    let path = format!("/api/tasks/{}/answers", id(1));
    let answer =
        json!({"who": {"action": "accept", "content": {"name": "<b>Ada</b>", "size": "s"}}}).to_string();
    let answered = place.post(&path, &answer).await.json();
    assert_eq!(answered, json!({"status": "working", "said": "'who' is answered; the task is working"}));
    let journal = place.store.journal(id(1), 0, u64::MAX).await.unwrap().entries;
    assert_eq!(journal.last().unwrap().body.as_ref().unwrap().to_value()["content"]["name"], "<b>Ada</b>");
    assert_eq!(place.post(&path, &answer).await.refusal(409), "the task asks nothing now");
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_refused_and_the_question_stays() {
    let place = Place::new();
    place.asks(1, "alice").await;
    let path = format!("/api/tasks/{}/answers", id(1));
    let accept = |content| json!({"who": {"action": "accept", "content": content}}).to_string();
    for (body, status, said) in [
        (accept(json!({})), 422, "the field 'name' is missing"),
        (accept(json!({"name": 1})), 422, "the field 'name' takes text"),
        (accept(json!({"name": "a", "size": "m"})), 422, "the field 'size' takes one of s, l"),
        (accept(json!({"name": "a", "age": 3})), 422, "there is no field 'age'"),
        (json!({"who": {"action": "perhaps"}}).to_string(), 422, "the answer has to be"),
        (json!({"who": null}).to_string(), 422, "the answer has to be"),
        (
            json!({"whom": {"action": "decline"}}).to_string(),
            409,
            "the task asks nothing under 'whom'; it asks under who",
        ),
        (json!({"who": {"action": "decline"}, "whom": {"action": "decline"}}).to_string(), 409, "'whom'"),
        ("{}".to_owned(), 400, "there is no answer in it"),
        ("[]".to_owned(), 400, "answers are JSON"),
        ("{\"who\": ".to_owned(), 400, "answers are JSON"),
        ("{\"\": {}}".to_owned(), 400, "answers are JSON"),
        (String::new(), 400, "answers are JSON"),
        (format!("{{\"who\": {}1{}}}", "[".repeat(10_000), "]".repeat(10_000)), 422, "the answer has to be"),
    ] {
        let refusal = place.post(&path, &body).await.refusal(status);
        assert!(refusal.contains(said), "{body} was refused with {refusal}");
    }
    let large = json!({"who": {"action": "accept", "content": {"name": "x".repeat(2 << 20)}}}).to_string();
    assert!(place.post(&path, &large).await.refusal(422).contains("no answer was taken"));
    place.post(&path, &" ".repeat(5 << 20)).await.refusal(413);
    place.post(&format!("/api/tasks/{}/answers", id(9)), &accept(json!({}))).await.refusal(404);
    assert_eq!(status(&place, 1).await, Status::InputRequired);
}

#[tokio::test]
async fn a_cancel_says_what_came_of_it() {
    let place = Place::new();
    let token = place.task(1, "alice", "slow").await;
    let path = format!("/api/tasks/{}/cancel", id(1));
    assert_eq!(
        place.post(&path, "").await.json(),
        json!({"outcome": "asked", "said": "the task is asked to end"})
    );
    assert_eq!(place.post(&path, "").await.json()["outcome"], "asked_before");
    assert_eq!(place.get("/api/tasks").await.json()["tasks"][0]["cancelRequested"], true);
    place.does(1, token, Event::ConfirmCancel).await;
    let had = json!({"outcome": "had_ended", "said": "the task had ended: it is cancelled"});
    assert_eq!(place.post(&path, "").await.json(), had);
    place.post(&format!("/api/tasks/{}/cancel", id(9)), "").await.refusal(404);
}

#[tokio::test]
async fn a_failed_task_is_started_again_once_as_a_new_one_of_the_same_owner() {
    let place = Place::new();
    let token = place.task(1, "alice", "slow").await;
    let path = format!("/api/tasks/{}/retry", id(1));
    assert_eq!(
        place.post(&path, "").await.refusal(409),
        "the task is working; only a failed one can be started again"
    );
    place.does(1, token, Event::Fail(TaskError::internal("no van"))).await;

    place.post(&path, r#"{"version": "2"}"#).await.refusal(400);
    let answer = place.post(&path, r#"{"toolVersion": "2"}"#).await;
    assert_eq!(answer.status, 201);
    let again = answer.json();
    assert_eq!(again["unserved"], true, "nobody has claimed from this store: {again}");
    let new = place.store.get(again["taskId"].as_str().unwrap().parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((new.owner.as_str(), new.spec.version.as_str(), new.origin), ("alice", "2", Some(id(1))));
    assert!(matches!(new.state, TaskState::Live(_)));

    let refusal = place.post(&path, "").await.refusal(409);
    assert!(
        refusal.contains("was started again before, as") && refusal.contains(&new.id.to_string()),
        "{refusal}"
    );
    place.post(&format!("/api/tasks/{}/retry", id(9)), "").await.refusal(404);
    assert_eq!(status(&place, 1).await, Status::Failed);
}

#[tokio::test]
async fn a_question_that_its_owner_answered_first_is_not_answered_again() {
    let place = Place::new();
    place.asks(1, "alice").await;
    let by = outlast_core::By::Owner(outlast_core::Owner::new("alice"));
    let answer = outlast_core::Payload::from_json(r#"{"action": "decline"}"#).unwrap();
    place.store.apply(id(1), by, vec![Event::Answer { key: key("who"), answer }]).await.unwrap();
    let path = format!("/api/tasks/{}/answers", id(1));
    place.post(&path, r#"{"who": {"action": "cancel"}}"#).await.refusal(409);
}
