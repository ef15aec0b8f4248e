//! A caller that repeats a creation under its key gets the task that exists, and never a second run.

use outlast_core::{Created, IdempotencyKey, NewTask, Spec};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn the_same_key_and_request_find_the_same_task(on: &dyn Harness) {
    let store = on.open().await;
    let first = store.create_one(new_keyed("k", 1)).await;
    let repeated = new_keyed("k", 1);
    assert_eq!(store.try_create(repeated.clone()).await, Created::Existing(first));
    assert_eq!(store.get(repeated.id).await.unwrap(), None);
}

pub async fn a_key_finds_its_task_as_it_is_by_then(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_keyed("k", 1), "one").await;
    let done = store.worked(task.id, token, vec![complete(&json!("once"))]).await;
    assert_eq!(store.try_create(new_keyed("k", 1)).await, Created::Existing(done));
}

pub async fn who_repeats_a_creation_gets_no_lease(on: &dyn Harness) {
    let store = on.open().await;
    let first = store.create_one(new_keyed("k", 1)).await;
    let again = store.create(new_keyed("k", 1), Some(lease_for("one"))).await.unwrap();
    assert_eq!(again, Created::Existing(first));
    assert_eq!(store.claim_only("two").await.token.0, 1);
}

pub async fn a_key_reused_for_another_request_is_refused(on: &dyn Harness) {
    let store = on.open().await;
    let first = store.create_one(new_keyed("k", 1)).await;
    let other = new_keyed("k", 2);
    assert_eq!(store.try_create(other.clone()).await, Created::KeyReused);
    assert_eq!(store.get(other.id).await.unwrap(), None);
    assert_eq!(store.task(first.id).await, first);
}

pub async fn the_same_key_of_two_owners_is_two_keys(on: &dyn Harness) {
    let store = on.open().await;
    store.create_one(new_keyed("k", 1)).await;
    let bobs = NewTask { owner: owner("bob"), ..new_keyed("k", 2) };
    let bobs = store.create_one(bobs).await;
    let again = NewTask { owner: owner("bob"), ..new_keyed("k", 2) };
    assert_eq!(store.try_create(again).await, Created::Existing(bobs));
}

pub async fn a_known_key_is_answered_also_when_the_quota_is_used_up(on: &dyn Harness) {
    let store = on.open().await;
    let limited = || NewTask { max_open: 1, ..new_keyed("k", 1) };
    let first = store.create_one(limited()).await;
    assert_eq!(store.try_create(limited()).await, Created::Existing(first));
}

pub async fn thirty_two_callers_with_one_key_make_one_task(on: &dyn Harness) {
    let store = on.open().await;
    let callers = (0..32).map(|caller| {
        let store = store.clone();
        async move {
            // Some ask for a lease with it, as a runtime with a free slot does.
            let lease = (caller % 2 == 0).then(|| lease_for("one"));
            store.create(new_keyed("k", 1), lease).await.unwrap()
        }
    });
    let answers = at_once(callers).await;

    let (mut created, mut ids) = (0, Vec::new());
    for answer in answers {
        match answer {
            Created::Created { task, .. } => {
                created += 1;
                ids.push(task.id);
            }
            Created::Existing(task) => ids.push(task.id),
            other => panic!("nobody is refused, but: {other:?}"),
        }
    }
    ids.dedup();
    assert_eq!((created, ids.len()), (1, 1));
    assert_eq!(store.counts().await.unwrap().total(), 1);
}

pub async fn the_same_creation_sent_many_times_at_once_makes_one_task(on: &dyn Harness) {
    let store = on.open().await;
    let new = new_task();
    let callers = (0..16).map(|_| {
        let (store, new) = (store.clone(), new.clone());
        async move { store.try_create(new).await }
    });
    let answers = at_once(callers).await;
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "the same call, the same answer");
    assert_eq!(store.counts().await.unwrap().total(), 1);
}

pub async fn a_key_is_spent_once_its_task_is_gone_and_free_when_its_time_is_over(on: &dyn Harness) {
    let store = on.open().await;
    let short =
        |request| NewTask { spec: Spec { ttl: Some(HOUR), ..rerun() }.into(), ..new_keyed("k", request) };
    let (task, token) = store.create_leased(short(1), "one").await;
    store.worked(task.id, token, vec![complete(&json!(null))]).await;
    on.advance(HOUR).await;
    assert_eq!(store.sweep_all().await, 1);
    assert_eq!(store.get(task.id).await.unwrap(), None);

    // Running it again would be a second run, and another request is told apart still.
    assert_eq!(store.try_create(short(1)).await, Created::KeySpent);
    assert_eq!(store.try_create(short(2)).await, Created::KeyReused);
    on.advance(IdempotencyKey::MIN_TOMBSTONE - MINUTE).await;
    store.sweep_all().await;
    assert_eq!(store.try_create(short(1)).await, Created::KeySpent);

    on.advance(MINUTE).await;
    let fresh = store.create_one(short(2)).await;
    assert_eq!(store.try_create(short(2)).await, Created::Existing(fresh));
}

pub async fn a_key_outlives_its_task_by_the_tasks_own_ttl_when_that_is_longer(on: &dyn Harness) {
    let store = on.open().await;
    let long = || NewTask { spec: Spec { ttl: Some(DAY * 3), ..rerun() }.into(), ..new_keyed("k", 1) };
    let (task, token) = store.create_leased(long(), "one").await;
    store.worked(task.id, token, vec![complete(&json!(null))]).await;
    on.advance(DAY * 3).await;
    assert_eq!(store.sweep_all().await, 1);

    on.advance(DAY * 3 - MINUTE).await;
    store.sweep_all().await;
    assert_eq!(store.try_create(long()).await, Created::KeySpent);
    on.advance(MINUTE).await;
    store.create_one(long()).await;
}
