//! A wall clock that somebody sets moves no date backwards and calls nobody dead who is alive.

use outlast_core::{Event, Renewal, Spec, Status};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn a_clock_that_is_set_back_makes_no_date_earlier(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    on.set_back(DAY).await;
    let changed = store.worked(task.id, token, vec![Event::SetMessage(Some("still here".into()))]).await;
    assert!(changed.updated_at >= task.updated_at);
    store.worked(task.id, token, vec![finish("a", &json!(1))]).await;
    assert!(store.entries(task.id).await[0].at >= task.created_at);
    assert!(store.create_one(new_task()).await.created_at >= task.created_at);
}

pub async fn a_clock_that_is_set_back_ends_no_lease_and_lets_work_go_on(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    on.set_back(HOUR).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
    assert!(matches!(store.renew_one("one", task.id, token).await, Renewal::Kept { .. }));
    store.create_one(new_task()).await;
    assert_eq!(store.claim_up_to("two", 10).await.len(), 1, "what is new is ready at once");
    store.worked(task.id, token, vec![complete(&json!(1))]).await;
}

pub async fn after_a_jump_forward_living_workers_have_a_lease_of_time_to_renew(on: &dyn Harness) {
    let store = on.open().await;
    let (alive, token) = store.create_leased(new_task(), "alive").await;
    let (dead, _) = store.create_leased(new_task(), "dead").await;
    let waiting = store.create_one(new_with(Spec { deadline: Some(HOUR), ..rerun() })).await;
    on.set_forward(DAY).await;

    // Nobody is called dead yet, and no deadline is called passed.
    store.sweep_all().await;
    assert_eq!(store.task(waiting.id).await.status(), Status::Working);
    let claimed: Vec<_> =
        store.claim_up_to("two", 10).await.into_iter().map(|claimed| claimed.task.id).collect();
    assert!(!claimed.contains(&alive.id) && !claimed.contains(&dead.id));
    on.advance(LEASE / 2).await;
    assert!(matches!(store.renew_one("alive", alive.id, token).await, Renewal::Kept { .. }));

    // After one lease who is silent is dead.
    on.advance(LEASE - LEASE / 4).await;
    let claimed: Vec<_> =
        store.claim_up_to("two", 10).await.into_iter().map(|claimed| claimed.task.id).collect();
    assert!(claimed.contains(&dead.id) && !claimed.contains(&alive.id));
    store.worked(alive.id, token, vec![complete(&json!(1))]).await;
}

pub async fn after_a_jump_forward_what_is_due_is_done_one_lease_later(on: &dyn Harness) {
    let store = on.open().await;
    // The length of a lease is known by the leases that were taken.
    store.create_leased(new_task(), "one").await;
    let waiting = store.create_one(new_with(Spec { deadline: Some(HOUR), ..rerun() })).await;
    on.set_forward(DAY).await;
    let swept = store.sweep(10).await.unwrap();
    assert_eq!(swept.done, 0);
    assert!(swept.next_due.is_some_and(|due| due <= LEASE), "it comes back to it");
    on.advance(LEASE).await;
    store.sweep_all().await;
    assert_eq!(store.task(waiting.id).await.status(), Status::Failed);
}
