//! A store that is closed and opened again has lost nothing and begins no second life.

use outlast_core::{Applied, Created, Event, Filter, Spec, Status};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn c18_finished_waiting_and_queued_tasks_survive_as_they_are(on: &dyn Harness) {
    let store = on.open().await;
    let mut tasks = Vec::new();
    for end in [complete(&json!({"é": 1})), fail("no")] {
        let (task, token) = store.create_leased(new_task(), "one").await;
        tasks.push(store.worked(task.id, token, vec![finish("a", &json!(1)), end]).await);
    }
    let task = store.create_one(new_task()).await;
    tasks.push(after(store.alice(task.id, vec![Event::Cancel]).await));
    tasks.push(store.create_one(new_task()).await);
    let (task, token) = store.create_leased(new_task(), "one").await;
    let leave = vec![ask("q", "Sure?"), ask("r", "Really?"), timer("t", DAY), park(3)];
    store.worked(task.id, token, leave).await;
    tasks.push(after(store.alice(task.id, vec![answer("q", "yes")]).await));

    let mut before = Vec::new();
    for task in &tasks {
        before.push((store.call(task.id).await.unwrap(), store.entries(task.id).await));
    }
    let counts = store.counts().await.unwrap();
    let listed = store.list(Filter::default(), None, 100).await.unwrap().tasks;

    let store = on.reopen(store).await;
    for (task, (call, entries)) in tasks.iter().zip(before) {
        assert_eq!(store.task(task.id).await, *task);
        assert_eq!(store.call(task.id).await.unwrap(), call);
        assert_eq!(store.entries(task.id).await, entries);
    }
    assert_eq!(store.counts().await.unwrap(), counts);
    assert_eq!(store.list(Filter::default(), None, 100).await.unwrap().tasks, listed);

    // Life goes on where it stopped.
    let claimed = store.claim_up_to("two", 10).await;
    assert_eq!(claimed.len(), 2, "the queued task, and the one with an answer that nobody saw");
    store.alice(tasks[4].id, vec![answer("r", "no")]).await;
}

pub async fn work_that_ran_is_taken_up_under_a_higher_token(on: &dyn Harness) {
    let store = on.open().await;
    let (task, old) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, old, vec![finish("a", &json!("kept")), ask("q", "Sure?")]).await;
    let journaled = store.entries(task.id).await;

    let store = on.reopen(store).await;
    on.advance(LEASE * 2).await;
    let claimed = store.claim_only("two").await;
    assert!(claimed.token > old);
    assert_eq!(claimed.task.status(), Status::InputRequired);
    assert_eq!(store.entries(task.id).await[..2], journaled);
    assert_eq!(store.work(task.id, old, vec![complete(&json!(1))]).await, Applied::Fenced);
    let replayed = store.work(task.id, claimed.token, vec![ask("q", "Sure?")]).await;
    assert!(matches!(replayed, Applied::Absorbed(_)), "the key is known");
    store.worked(task.id, claimed.token, vec![complete(&json!(1))]).await;
}

pub async fn work_that_must_not_run_twice_ends_also_over_a_restart(on: &dyn Harness) {
    let store = on.open().await;
    let (task, _) = store.create_leased(new_with(run_once()), "one").await;
    let store = on.reopen(store).await;
    on.advance(LEASE * 2).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
    assert_eq!(store.task(task.id).await.status(), Status::Failed);
}

pub async fn keys_are_known_after_a_restart_spent_ones_too(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_keyed("k", 1)).await;
    let store = on.reopen(store).await;
    assert_eq!(store.try_create(new_keyed("k", 1)).await, Created::Existing(task));
    assert_eq!(store.try_create(new_keyed("k", 2)).await, Created::KeyReused);

    let claimed = store.claim_only("one").await;
    store.worked(claimed.task.id, claimed.token, vec![complete(&json!(1))]).await;
    on.advance(claimed.task.spec.ttl.unwrap()).await;
    assert_eq!(store.sweep_all().await, 1);
    let store = on.reopen(store).await;
    assert_eq!(store.try_create(new_keyed("k", 1)).await, Created::KeySpent);
}

pub async fn a_creation_repeated_after_a_restart_is_the_same(on: &dyn Harness) {
    let store = on.open().await;
    let new = new_task();
    let first = store.try_create(new.clone()).await;
    let store = on.reopen(store).await;
    assert_eq!(store.try_create(new).await, first);
}

pub async fn what_was_deleted_stays_deleted(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_with(Spec { ttl: Some(HOUR), ..rerun() }), "one").await;
    store.worked(task.id, token, vec![complete(&json!(1))]).await;
    on.advance(HOUR).await;
    store.sweep_all().await;
    let store = on.reopen(store).await;
    assert_eq!(store.get(task.id).await.unwrap(), None);
    assert_eq!(store.entries(task.id).await, []);
}

pub async fn time_does_not_run_back_over_a_restart(on: &dyn Harness) {
    let store = on.open().await;
    let before = store.create_one(new_task()).await;
    on.set_back(DAY).await;
    let store = on.reopen(store).await;
    let after = store.create_one(new_task()).await;
    assert!(after.created_at >= before.created_at);
}

pub async fn a_store_may_be_reopened_again_and_again(on: &dyn Harness) {
    let mut store = on.open().await;
    let task = store.create_one(new_task()).await;
    for number in 0..5 {
        let claimed = store.claim_only("one").await;
        assert_eq!(claimed.token.0, number + 1);
        let leave = vec![finish(&format!("step {number}"), &json!(number)), Event::Release { began: true }];
        store.worked(task.id, claimed.token, leave).await;
        store = on.reopen(store).await;
    }
    let steps = store.entries(task.id).await.into_iter().filter(|entry| entry.key.is_some()).count();
    assert_eq!(steps, 5);
}
