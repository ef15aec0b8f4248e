//! Work that waits is nobody's, and comes back for what it waits for and for nothing else.

use std::time::Duration;

use outlast_core::{Event, Status};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn parked_work_is_nobodys_until_its_answer_comes(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let parked = store.worked(task.id, token, vec![ask("q", "Sure?"), park(1)]).await;
    assert_eq!((parked.status(), parked.lease(), parked.ready_at()), (Status::InputRequired, None, None));
    on.advance(HOUR).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);

    store.alice(task.id, vec![answer("q", "yes")]).await;
    let claimed = store.claim_only("two").await;
    assert_eq!(claimed.task.status(), Status::Working);
    assert_eq!(claimed.token, token.next());
}

pub async fn an_answer_that_the_work_had_not_seen_when_it_parked_is_not_lost(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let asked = store.worked(task.id, token, vec![ask("q", "Sure?")]).await;
    store.alice(task.id, vec![answer("q", "yes")]).await;
    store.worked(task.id, token, vec![park(asked.seq)]).await;
    assert_eq!(store.claim_only("two").await.task.id, task.id);
}

pub async fn an_answer_that_the_work_had_seen_does_not_wake_it_again(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "One?"), ask("r", "Two?")]).await;
    let answered = after(store.alice(task.id, vec![answer("q", "yes")]).await);
    store.worked(task.id, token, vec![park(answered.inbox_seq)]).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
    store.alice(task.id, vec![answer("r", "yes")]).await;
    assert_eq!(store.claim_only("two").await.task.id, task.id);
}

pub async fn work_that_claims_to_have_seen_the_future_is_woken_all_the_same(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "Sure?"), park(1_000_000)]).await;
    store.alice(task.id, vec![answer("q", "yes")]).await;
    assert_eq!(store.claim_only("two").await.task.id, task.id);
}

pub async fn a_cancel_wakes_parked_work_and_takes_its_questions_back(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "Sure?"), park(1)]).await;
    let cancelled = after(store.alice(task.id, vec![Event::Cancel]).await);
    assert_eq!(cancelled.status(), Status::Working, "started work is asked to end, and not ended");

    let claimed = store.claim_only("two").await;
    assert!(claimed.task.cancel_requested());
    // It may clean up, and may not ask.
    store.worked(task.id, claimed.token, vec![finish("clean up", &json!(1))]).await;
    let refused = store.work(task.id, claimed.token, vec![ask("r", "Why?")]).await;
    assert_eq!(refused, outlast_core::Applied::Illegal(outlast_core::Illegal::CancelRequested));
    let ended = store.worked(task.id, claimed.token, vec![Event::ConfirmCancel]).await;
    assert_eq!(ended.status(), Status::Cancelled);
}

pub async fn a_timer_wakes_parked_work_when_it_is_due(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let timers = vec![timer("late", HOUR * 2), timer("early", HOUR), park(2)];
    store.worked(task.id, token, timers).await;
    on.advance(HOUR - MINUTE).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
    on.advance(MINUTE).await;
    let claimed = store.claim_only("two").await;

    // A timer that fired wakes no more; the other still does.
    let fire = Event::FireTimer { key: step("early") };
    store.worked(task.id, claimed.token, vec![fire, park(claimed.task.seq)]).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
    on.advance(HOUR).await;
    assert_eq!(store.claim_only("two").await.task.id, task.id);
}

pub async fn a_backoff_wakes_parked_work_once(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let back_off = |seen_seq| Event::Park { seen_seq, wake: Some(MINUTE) };
    store.worked(task.id, token, vec![back_off(0)]).await;
    on.advance(MINUTE - MOMENT).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
    on.advance(MOMENT).await;
    let claimed = store.claim_only("two").await;
    store.worked(task.id, claimed.token, vec![ask("q", "Sure?"), park(claimed.task.seq + 1)]).await;
    on.advance(HOUR).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
}

pub async fn the_first_of_timer_backoff_and_answer_wakes(on: &dyn Harness) {
    let store = on.open().await;
    let set = |number: u64, wake: Option<Duration>| {
        vec![ask("q", "Sure?"), timer("t", HOUR * number as u32), Event::Park { seen_seq: 2, wake }]
    };
    let (timed, token) = store.create_leased(new_task(), "one").await;
    store.worked(timed.id, token, set(1, Some(HOUR * 2))).await;
    let (backed, token) = store.create_leased(new_task(), "one").await;
    store.worked(backed.id, token, set(5, Some(HOUR * 2))).await;
    let (answered, token) = store.create_leased(new_task(), "one").await;
    store.worked(answered.id, token, set(5, None)).await;

    store.alice(answered.id, vec![answer("q", "yes")]).await;
    assert_eq!(store.claim_only("two").await.task.id, answered.id);
    store.worked(answered.id, outlast_core::Token(2), vec![complete(&json!(1))]).await;
    on.advance(HOUR).await;
    let claimed = store.claim_only("two").await;
    assert_eq!(claimed.task.id, timed.id);
    store.worked(timed.id, claimed.token, vec![complete(&json!(1))]).await;
    on.advance(HOUR).await;
    assert_eq!(store.claim_only("two").await.task.id, backed.id);
}

pub async fn c25_a_question_unanswered_for_longer_than_any_result_is_kept_is_still_answerable(
    on: &dyn Harness,
) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "Sure?"), park(1)]).await;
    for _ in 0..30 {
        on.advance(DAY / 2).await;
        store.sweep_all().await;
    }
    let waiting = store.task(task.id).await;
    assert_eq!(waiting.status(), Status::InputRequired);
    let now = store.list(outlast_core::Filter::default(), None, 1).await.unwrap().now;
    assert!(waiting.created_at + waiting.ttl.unwrap() > now, "no client's backstop fires meanwhile");

    store.alice(task.id, vec![answer("q", "yes")]).await;
    let claimed = store.claim_only("two").await;
    store.worked(task.id, claimed.token, vec![complete(&json!("at last"))]).await;
}
