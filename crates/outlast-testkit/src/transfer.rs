//! What moves from one store to another goes on there as if nothing had been.

// These are tests, although they are compiled for the tests of others: what fails should panic.
#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use outlast_core::{Applied, By, Created, Filter, NewTask, Record, Spec, Task, Transfer};
use serde_json::json;

use crate::story::*;

/// Moves all that is in `from`, page by page, and says how many records were new.
async fn move_all(from: &dyn Transfer, to: &dyn Transfer, page_bytes: u64) -> u64 {
    let (mut place, mut new) = (None, 0);
    loop {
        let page = from.export(place, page_bytes).await.unwrap();
        assert_eq!(page.damaged, 0);
        new += to.import(page.records).await.unwrap();
        match page.next {
            Some(next) => place = Some(next),
            None => return new,
        }
    }
}

async fn all(store: &dyn Transfer) -> Vec<Task> {
    store.list(Filter::default(), None, 100).await.unwrap().tasks
}

/// Tasks in every state move as they are, and go on where they were.
pub async fn tasks_move_as_they_are(from: &dyn Transfer, to: &dyn Transfer) {
    let queued = from.create_one(new_keyed("k", 1)).await;
    let (asking, token) = from.create_leased(new_task(), "one").await;
    let waits = vec![finish("half", &json!("done")), ask("who", "who?"), timer("nap", HOUR)];
    let waiting = from.worked(asking.id, token, waits).await;
    from.worked(asking.id, token, vec![park(waiting.seq)]).await;
    let (completed, token) = from.create_leased(new_of("bob"), "one").await;
    from.worked(completed.id, token, vec![complete(&json!({"text": "a\u{0}b"}))]).await;
    let (failed, token) = from.create_leased(new_of("bob"), "one").await;
    from.worked(failed.id, token, vec![fail("it broke")]).await;
    let cancelled = from.create_one(new_task()).await;
    from.alice(cancelled.id, vec![outlast_core::Event::Cancel]).await;

    // One record a page.
    assert_eq!(move_all(from, to, 1).await, 5);

    assert_eq!(all(to).await, all(from).await);
    assert_eq!(to.counts().await.unwrap(), from.counts().await.unwrap());
    for task in all(from).await {
        assert_eq!(to.entries(task.id).await, from.entries(task.id).await);
        assert_eq!(to.call(task.id).await.unwrap(), from.call(task.id).await.unwrap());
    }
    // The key finds its task.
    assert_eq!(to.try_create(new_keyed("k", 1)).await, Created::Existing(queued.clone()));
    assert_eq!(to.try_create(new_keyed("k", 2)).await, Created::KeyReused);
    // The question is answered, and the step that was done is not done again.
    after(to.alice(asking.id, vec![answer("who", "me")]).await);
    let claimed = to.claim_up_to("two", 5).await;
    let mut ids: Vec<_> = claimed.iter().map(|claimed| claimed.task.id).collect();
    ids.sort_unstable();
    let mut both = [queued.id, asking.id];
    both.sort_unstable();
    assert_eq!(ids, both);
    let token = claimed.iter().find(|claimed| claimed.task.id == asking.id).unwrap().token;
    let again = to.work(asking.id, token, vec![finish("half", &json!("again"))]).await;
    assert!(matches!(again, Applied::Absorbed(_)), "{again:?}");
    to.worked(asking.id, token, vec![complete(&json!("end"))]).await;
}

/// A move that was broken off is begun again, and leaves alone what is there by then.
pub async fn a_second_move_changes_nothing(from: &dyn Transfer, to: &dyn Transfer) {
    let moved = from.create_one(new_keyed("moved", 1)).await;
    from.create_one(new_keyed("taken", 1)).await;
    let own = to.create_one(new_keyed("taken", 2)).await;

    assert_eq!(move_all(from, to, u64::MAX).await, 2);
    let claimed = to.claim_up_to("two", 5).await;
    assert_eq!(claimed.len(), 3);
    assert_eq!(move_all(from, to, u64::MAX).await, 0);

    assert_ne!(to.task(moved.id).await, moved, "it was claimed since, and is not set back");
    assert_eq!(to.counts().await.unwrap().leased, 3);
    // A key that was in use stays with its own task, also when the one that moved is gone.
    let own = to.task(own.id).await;
    assert_eq!(to.try_create(new_keyed("taken", 2)).await, Created::Existing(own));
    assert_eq!(to.try_create(new_keyed("taken", 1)).await, Created::KeyReused);
}

/// A key whose task is gone is still known after the move, and forgotten when its time is over.
pub async fn spent_keys_move(from: &dyn Transfer, to: &dyn Transfer, advance: impl AsyncFn(Duration)) {
    let short = || NewTask { spec: Arc::new(Spec { ttl: Some(HOUR), ..rerun() }), ..new_keyed("k", 1) };
    let (task, token) = from.create_leased(short(), "one").await;
    from.worked(task.id, token, vec![complete(&json!(null))]).await;
    advance(HOUR).await;
    assert_eq!(from.sweep_all().await, 1);

    let page = from.export(None, u64::MAX).await.unwrap();
    let [Record::SpentKey(spent)] = &page.records[..] else { panic!("one key: {page:?}") };
    assert_eq!((spent.task, &*spent.key.key), (task.id, "k"));
    assert_eq!(move_all(from, to, 1).await, 1);

    assert_eq!(to.try_create(short()).await, Created::KeySpent);
    advance(DAY).await;
    to.sweep_all().await;
    assert!(matches!(to.try_create(short()).await, Created::Created { .. }));
}

/// A lease that was held moves with its task, and runs out there.
pub async fn a_lease_that_was_held_runs_out(
    from: &dyn Transfer,
    to: &dyn Transfer,
    advance: impl AsyncFn(Duration),
) {
    let (task, token) = from.create_leased(new_task(), "one").await;
    assert_eq!(move_all(from, to, u64::MAX).await, 1);
    assert!(to.claim_up_to("two", 1).await.is_empty());

    // Twice, for a store leaves leases alone for one lease where its clock jumped.
    advance(LEASE).await;
    to.claim_up_to("two", 0).await;
    advance(LEASE).await;

    assert_eq!(to.claim_only("two").await.task.id, task.id);
    assert_eq!(to.tell(task.id, By::Lease(token), vec![complete(&json!(null))]).await, Applied::Fenced);
}
