//! One write keeps every lease of a worker, and tells it what is new.

use outlast_core::{Event, Held, Renewal, Spec, Token};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn a_renewed_lease_lasts_from_its_renewal(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    for _ in 0..4 {
        on.advance(LEASE / 2).await;
        let kept = store.renew_one("one", task.id, token).await;
        assert_eq!(kept, Renewal::Kept { inbox_seq: 0, cancel: false });
    }
    on.advance(LEASE - MOMENT).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
    on.advance(MOMENT).await;
    assert_eq!(store.claim_only("two").await.token, token.next());
}

pub async fn a_renewal_never_shortens_a_lease(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.renew(worker("one"), vec![Held { id: task.id, token }], MOMENT).await.unwrap();
    on.advance(LEASE - MOMENT).await;
    assert_eq!(store.claim_up_to("two", 10).await, []);
}

pub async fn a_renewal_tells_of_answers_and_of_a_cancel(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "One?"), ask("r", "Two?")]).await;
    let kept = |inbox_seq, cancel| Renewal::Kept { inbox_seq, cancel };
    assert_eq!(store.renew_one("one", task.id, token).await, kept(0, false));

    store.alice(task.id, vec![answer("q", "yes")]).await;
    assert_eq!(store.renew_one("one", task.id, token).await, kept(3, false));
    store.worked(task.id, token, vec![finish("a", &json!(1))]).await;
    assert_eq!(store.renew_one("one", task.id, token).await, kept(3, false), "its own word is no news");
    store.alice(task.id, vec![Event::Cancel]).await;
    assert_eq!(store.renew_one("one", task.id, token).await, kept(5, true));
}

pub async fn a_lease_that_is_not_the_workers_is_lost(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    assert_eq!(store.renew_one("one", task.id, token.next()).await, Renewal::Lost);
    assert_eq!(store.renew_one("one", task.id, Token(0)).await, Renewal::Lost);
    let (ended, token) = store.create_leased(new_task(), "one").await;
    store.worked(ended.id, token, vec![complete(&json!(1))]).await;
    assert_eq!(store.renew_one("one", ended.id, token).await, Renewal::Lost);
    let queued = store.create_one(new_task()).await;
    assert_eq!(store.renew_one("one", queued.id, Token(0)).await, Renewal::Lost);

    // Nothing of a lost lease is renewed.
    on.advance(LEASE).await;
    assert_eq!(store.claim_up_to("two", 10).await.len(), 2);
    assert_eq!(store.task(task.id).await.lease().unwrap().worker, worker("two"));
}

pub async fn many_leases_are_renewed_in_one_call_and_answered_in_order(on: &dyn Harness) {
    let store = on.open().await;
    let mut held = Vec::new();
    for number in 0..40 {
        let (task, token) = store.create_leased(new_task(), "one").await;
        if number % 4 == 1 {
            store.worked(task.id, token, vec![park(0)]).await;
        }
        if number % 4 == 2 {
            store.alice(task.id, vec![Event::Cancel]).await;
        }
        held.push(Held { id: task.id, token });
    }
    held.push(Held { id: fresh_id(), token: Token(1) });
    on.advance(LEASE - MOMENT).await;
    let told = store.renew(worker("one"), held, LEASE).await.unwrap();

    assert_eq!(told.len(), 41);
    for (number, renewal) in told.into_iter().enumerate() {
        let expected = match number % 4 {
            _ if number == 40 => Renewal::Lost,
            1 => Renewal::Lost,
            2 => Renewal::Kept { inbox_seq: 1, cancel: true },
            _ => Renewal::Kept { inbox_seq: 0, cancel: false },
        };
        assert_eq!(renewal, expected, "lease {number}");
    }
    on.advance(MOMENT).await;
    assert_eq!(store.claim_up_to("two", 100).await, []);
}

pub async fn nothing_held_is_nothing_renewed(on: &dyn Harness) {
    let store = on.open().await;
    assert_eq!(store.renew(worker("one"), vec![], LEASE).await.unwrap(), []);
}

pub async fn c23_the_ttl_of_running_work_is_extended_before_it_is_over(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_with(Spec { ttl: Some(HOUR), ..rerun() }), "one").await;
    on.advance(HOUR / 2 - MINUTE).await;
    store.renew_one("one", task.id, token).await;
    assert_eq!(store.task(task.id).await.ttl, Some(HOUR), "not before half of it is gone");
    on.advance(MINUTE).await;
    store.renew_one("one", task.id, token).await;
    let extended = store.task(task.id).await;
    assert!(extended.ttl.unwrap() >= HOUR * 3 / 2);
    assert!(extended.revision > task.revision, "who follows the task sees it");

    // A worker that renews keeps its task for ever.
    for _ in 0..100 {
        on.advance(HOUR / 4).await;
        store.renew_one("one", task.id, token).await;
        store.sweep_all().await;
    }
    store.worked(task.id, token, vec![complete(&json!("after a day"))]).await;
}
