//! The token guards: a worker writes exactly while its claim is the newest and not given back.

use outlast_core::{Applied, Event, Renewal, Status, Token};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn an_expired_lease_that_nobody_took_still_writes_and_renews(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    on.advance(LEASE * 10).await;
    store.sweep_all().await;
    store.worked(task.id, token, vec![finish("a", &json!(1))]).await;
    assert!(matches!(store.renew_one("one", task.id, token).await, Renewal::Kept { .. }));
    assert_eq!(store.claim_up_to("two", 10).await, [], "renewed is held");
    let done = store.worked(task.id, token, vec![complete(&json!(1))]).await;
    assert_eq!(done.status(), Status::Completed);
}

pub async fn after_a_takeover_the_old_token_is_fenced(on: &dyn Harness) {
    let store = on.open().await;
    let (task, old) = store.create_leased(new_task(), "one").await;
    on.advance(LEASE).await;
    let new = store.claim_only("two").await;
    assert_eq!((old, new.token), (Token(1), Token(2)));

    for events in [
        vec![finish("a", &json!(1))],
        vec![complete(&json!(1))],
        vec![park(0)],
        vec![Event::Release { began: true }],
        vec![],
    ] {
        assert_eq!(store.work(task.id, old, events).await, Applied::Fenced);
    }
    assert_eq!(store.renew_one("one", task.id, old).await, Renewal::Lost);
    assert_eq!(store.task(task.id).await, new.task, "nothing of it was kept");
    store.worked(task.id, new.token, vec![complete(&json!(2))]).await;
    assert_eq!(store.work(task.id, old, vec![complete(&json!(1))]).await, Applied::Fenced);
}

pub async fn a_token_that_was_never_given_out_is_fenced(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    for wrong in [Token(0), token.next(), Token(i64::MAX.unsigned_abs())] {
        assert_eq!(store.work(task.id, wrong, vec![complete(&json!(1))]).await, Applied::Fenced);
    }
    let queued = store.create_one(new_task()).await;
    assert_eq!(store.work(queued.id, Token(0), vec![complete(&json!(1))]).await, Applied::Fenced);
    assert_eq!(store.task(queued.id).await, queued);
}

pub async fn a_park_repeated_after_a_lost_answer_is_absorbed(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let leave = || vec![finish("a", &json!(1)), ask("q", "Sure?"), park(2)];
    let parked = store.worked(task.id, token, leave()).await;
    assert_eq!(parked.lease(), None);
    assert_eq!(store.work(task.id, token, leave()).await, Applied::Absorbed(parked));

    // Once it is parked the worker has no more to say, and another may have it.
    assert_eq!(store.work(task.id, token, vec![finish("b", &json!(1))]).await, Applied::Fenced);
    assert_eq!(store.renew_one("one", task.id, token).await, Renewal::Lost);
    store.alice(task.id, vec![answer("q", "yes")]).await;
    assert!(matches!(store.work(task.id, token, leave()).await, Applied::Absorbed(_)));
    store.claim_only("two").await;
    assert_eq!(store.work(task.id, token, leave()).await, Applied::Fenced);
}

pub async fn a_release_repeated_after_a_lost_answer_is_absorbed(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let released = store.worked(task.id, token, vec![Event::Release { began: false }]).await;
    let again = store.work(task.id, token, vec![Event::Release { began: false }]).await;
    assert_eq!(again, Applied::Absorbed(released));
}

pub async fn work_that_was_never_kept_is_not_acknowledged_with_a_repeated_park(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let parked = store.worked(task.id, token, vec![finish("a", &json!(1)), park(1)]).await;

    // These are no repetition: to absorb them would call lost work kept.
    for unkept in [
        vec![finish("b", &json!(1)), park(1)],
        vec![ask("q", "Sure?"), park(1)],
        vec![timer("t", HOUR), Event::Release { began: true }],
        vec![complete(&json!(1)), park(1)],
    ] {
        assert_eq!(store.work(task.id, token, unkept).await, Applied::Fenced);
    }
    assert_eq!(store.task(task.id).await, parked);
}

pub async fn a_lease_that_was_ended_is_fenced_although_nobody_has_the_task_yet(on: &dyn Harness) {
    let store = on.open().await;
    let (task, mut token) = store.create_leased(new_task(), "one").await;
    on.advance(LEASE).await;
    token = store.claim_only("two").await.token.max(token);
    on.advance(LEASE).await;
    // The second loss in a row has to wait for its backoff: the lease is over, and nobody has the task.
    assert_eq!(store.claim_up_to("three", 10).await, []);
    assert_eq!(store.task(task.id).await.lease(), None);
    assert_eq!(store.work(task.id, token, vec![finish("a", &json!(1))]).await, Applied::Fenced);
    assert_eq!(store.work(task.id, token, vec![finish("a", &json!(1)), park(0)]).await, Applied::Fenced);
    assert_eq!(store.renew_one("two", task.id, token).await, Renewal::Lost);
}

pub async fn each_claim_has_the_next_token_whatever_ended_the_one_before(on: &dyn Harness) {
    let store = on.open().await;
    let (task, first) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, first, vec![Event::Release { began: true }]).await;
    let second = store.claim_only("one").await.token;

    store.worked(task.id, second, vec![ask("q", "Sure?"), park(0)]).await;
    store.alice(task.id, vec![answer("q", "yes")]).await;
    let third = store.claim_only("one").await.token;

    on.advance(LEASE).await;
    let fourth = store.claim_only("one").await.token;
    assert_eq!([first, second, third, fourth], [1, 2, 3, 4].map(Token));
}
