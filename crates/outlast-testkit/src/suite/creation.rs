//! A task comes to be once, durably, and is there for everyone who may see it.

use outlast_core::{Created, NewTask, Status, Token};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn every_opened_store_is_empty_whatever_became_of_those_before(on: &dyn Harness) {
    let mut kept = Vec::new();
    for number in 0..20 {
        let store = on.open().await;
        assert_eq!(store.counts().await.unwrap().total(), 0);
        store.create_one(new_task()).await;
        match number % 3 {
            0 => kept.push(store),
            1 => kept.push(on.reopen(store).await),
            // Closed, and its address free for the next.
            _ => drop(store),
        }
    }
    for store in kept {
        assert_eq!(store.counts().await.unwrap().total(), 1);
    }
}

pub async fn a_created_task_is_visible_at_once(on: &dyn Harness) {
    let store = on.open().await;
    let new = new_task();
    let task = store.create_one(new.clone()).await;

    assert_eq!(task.id, new.id);
    assert_eq!(task.owner, new.owner);
    assert_eq!(task.spec, new.spec);
    assert_eq!((task.status(), task.revision, task.seq), (Status::Working, 1, 0));
    assert_eq!(store.get(new.id).await.unwrap(), Some(task));
    assert_eq!(store.call(new.id).await.unwrap(), Some(new.call));
    assert_eq!(store.entries(new.id).await, []);
}

pub async fn a_task_created_with_a_lease_is_in_its_workers_hands(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;

    assert_eq!(task.lease().map(|lease| lease.worker.clone()), Some(worker("one")));
    assert_eq!(task.token, token);
    assert_eq!(store.claim_up_to("two", 10).await, []);
    let done = store.worked(task.id, token, vec![complete(&json!("done"))]).await;
    assert_eq!(done.status(), Status::Completed);
}

pub async fn the_same_creation_again_has_the_same_answer(on: &dyn Harness) {
    let store = on.open().await;
    let new = new_task();
    let first = store.try_create(new.clone()).await;
    assert_eq!(store.try_create(new.clone()).await, first);
    assert_eq!(store.counts().await.unwrap().total(), 1);

    // Also when it is the quota's last place that it took.
    let new = NewTask { max_open: 2, ..new_task() };
    let first = store.try_create(new.clone()).await;
    assert_eq!(store.try_create(new).await, first);
}

pub async fn the_same_leased_creation_again_has_the_same_token(on: &dyn Harness) {
    let store = on.open().await;
    let new = new_task();
    let (first, token) = store.create_leased(new.clone(), "one").await;
    assert_eq!(store.create_leased(new, "one").await, (first.clone(), token));
    store.worked(first.id, token, vec![finish("a", &json!(1))]).await;
}

pub async fn a_repeated_creation_never_hands_out_the_token_of_a_later_worker(on: &dyn Harness) {
    let store = on.open().await;
    let new = new_task();
    let (task, _) = store.create_leased(new.clone(), "one").await;
    on.advance(LEASE * 2).await;
    let taken = store.claim_only("two").await;

    // The first worker's creation was answered late; the task is another's by now.
    let Created::Created { token, .. } = store.create(new, Some(lease_for("one"))).await.unwrap() else {
        panic!("the task is the one that was created")
    };
    assert_ne!(token, Some(taken.token));
    assert!(token.is_none_or(|token| token < taken.token));

    // Nor does a task that was created without a lease hand out the token of who claimed it.
    let unleased = new_task();
    store.create_one(unleased.clone()).await;
    let claimed = store.claim_only("two").await;
    assert_eq!(claimed.token, Token(1));
    let again = store.create(unleased, Some(lease_for("one"))).await.unwrap();
    let Created::Created { token, .. } = again else { panic!("the task is the one that was created") };
    assert_ne!(token, Some(claimed.token));
    assert_eq!(store.task(task.id).await.lease().unwrap().worker, worker("two"));
}

pub async fn an_owner_over_quota_creates_nothing(on: &dyn Harness) {
    let store = on.open().await;
    let limited = || NewTask { max_open: 3, ..new_task() };
    for _ in 0..3 {
        store.create_one(limited()).await;
    }
    let refused = limited();
    assert_eq!(store.try_create(refused.clone()).await, Created::OverQuota);
    assert_eq!(store.get(refused.id).await.unwrap(), None);

    // The key of a refused creation is free, and other owners are not concerned.
    let keyed = NewTask { max_open: 3, ..new_keyed("k", 1) };
    assert_eq!(store.try_create(keyed).await, Created::OverQuota);
    store.create_one(NewTask { max_open: 3, ..new_of("bob") }).await;
    store.create_one(new_keyed("k", 2)).await;
}

pub async fn finished_tasks_do_not_count_towards_the_quota(on: &dyn Harness) {
    let store = on.open().await;
    let limited = || NewTask { max_open: 1, ..new_task() };
    let (task, token) = store.create_leased(limited(), "one").await;
    assert_eq!(store.try_create(limited()).await, Created::OverQuota);
    store.worked(task.id, token, vec![complete(&json!(null))]).await;
    store.create_one(limited()).await;
}
