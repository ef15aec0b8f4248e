//! Many callers at the same instant: each effect once, one end, and nobody is refused for a conflict.

use std::collections::{BTreeMap, BTreeSet};

use outlast_core::{Applied, By, EntryKind, Event, Status, Store, Task, TaskId};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn sixty_four_callers_answer_one_task_at_once_and_each_answer_counts_once(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let asks = (0..32).map(|number| ask(&format!("q{number}"), "Sure?")).collect();
    store.worked(task.id, token, asks).await;

    // Every answer is sent twice, as a caller does whose acknowledgement was lost.
    let callers = (0..64).map(|caller| {
        let (store, id) = (store.clone(), task.id);
        async move { store.alice(id, vec![answer(&format!("q{}", caller / 2), "yes")]).await }
    });
    let answers = at_once(callers).await;
    let taken = answers.iter().filter(|answer| matches!(answer, Applied::Applied(_))).count();
    let absorbed = answers.iter().filter(|answer| matches!(answer, Applied::Absorbed(_))).count();
    assert_eq!((taken, absorbed), (32, 32));

    let entries = store.entries(task.id).await;
    let answered: BTreeSet<_> = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Answered)
        .map(|entry| entry.key.clone())
        .collect();
    assert_eq!((entries.len(), answered.len()), (64, 32));
    let task = store.task(task.id).await;
    assert_eq!((task.status(), task.seq), (Status::Working, 64));
}

pub async fn sixty_four_writes_of_one_worker_at_once_are_all_kept(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "Sure?")]).await;
    let callers = (0..64).map(|number| {
        let (store, id) = (store.clone(), task.id);
        async move {
            // Among them one answer and some reads, renewals and status messages.
            match number {
                0 => drop(after(store.alice(id, vec![answer("q", "yes")]).await)),
                1..10 => drop(store.renew_one("one", id, token).await),
                10..20 => {
                    let message = Event::SetMessage(Some(format!("at {number}")));
                    after(store.work(id, token, vec![message]).await);
                }
                _ => {
                    let steps = [0, 1].map(|part| finish(&format!("{number} {part}"), &json!(number)));
                    store.worked(id, token, steps.into()).await;
                }
            }
        }
    });
    at_once(callers).await;

    let entries = store.entries(task.id).await;
    assert_eq!(entries.len(), 1 + 1 + 44 * 2);
    let numbers: Vec<_> = entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(numbers, (1..=90).collect::<Vec<_>>());
    // The two steps of one call stand side by side: a call is one change.
    let steps: Vec<_> = entries.iter().filter(|entry| entry.kind == EntryKind::Step).collect();
    assert!(steps.chunks(2).all(|pair| pair[0].seq + 1 == pair[1].seq && pair[0].body == pair[1].body));
}

pub async fn c09_a_cancel_and_a_completion_at_the_same_instant_end_in_one_final_state(on: &dyn Harness) {
    let store = on.open().await;
    let mut ends: BTreeMap<Status, u32> = BTreeMap::new();
    for round in 0..1_000 {
        let (task, token) = store.create_leased(new_task(), "one").await;
        let id = task.id;
        store.worked(id, token, vec![ask("q", "Sure?")]).await;

        // The caller answers and cancels, the work ends one way or the other, all at once.
        let answering = (By::Owner(owner("alice")), answer("q", "yes"));
        let cancelling = (By::Owner(owner("alice")), Event::Cancel);
        let completing = (By::Lease(token), complete(&json!(round)));
        let confirming = (By::Lease(token), Event::ConfirmCancel);
        let mut calls = vec![answering, cancelling, completing, confirming];
        calls.rotate_left(round % 4);
        let told = at_once(calls.into_iter().map(|(by, event)| {
            let store = store.clone();
            async move {
                let told = store.tell(id, by, vec![event]).await;
                (told, store.task(id).await)
            }
        }))
        .await;

        // Whoever saw an end saw the same end.
        let last = store.task(id).await;
        assert!(last.is_final());
        let seen = told.iter().flat_map(|(told, seen)| [applied(told), Some(seen)]).flatten();
        assert!(seen.filter(|task| task.is_final()).all(|task| *task == last), "round {round}");
        if last.status() == Status::Completed {
            assert_eq!(last.state, outlast_core::TaskState::Completed { result: payload(&json!(round)) });
        }
        *ends.entry(last.status()).or_default() += 1;
        stays_as_it_is(&*store, &last).await;
    }
    println!("ends: {ends:?}");
}

fn applied(told: &Applied) -> Option<&Task> {
    match told {
        Applied::Applied(task) | Applied::Absorbed(task) => Some(task),
        // A confirmation that comes before its cancel.
        Applied::Illegal(_) => None,
        other => panic!("nobody is refused, but: {other:?}"),
    }
}

async fn stays_as_it_is(store: &dyn Store, last: &Task) {
    let late = [vec![Event::ConfirmCancel], vec![complete(&json!("late"))], vec![fail("late")]];
    for events in late {
        assert_eq!(store.work(last.id, last.token, events).await, Applied::Absorbed(last.clone()));
    }
    assert_eq!(store.alice(last.id, vec![Event::Cancel]).await, Applied::Absorbed(last.clone()));
    assert_eq!(store.task(last.id).await, *last);
}

pub async fn a_cancel_and_a_claim_at_the_same_instant_agree_on_who_was_first(on: &dyn Harness) {
    let store = on.open().await;
    for _ in 0..100 {
        let task = store.create_one(new_task()).await;
        let (caller, taker) = (store.clone(), store.clone());
        let id = task.id;
        let cancel = tokio::spawn(async move { after(caller.alice(id, vec![Event::Cancel]).await) });
        let claim = tokio::spawn(async move { taker.claim_up_to("one", 1).await });
        let (cancelled, claimed) = (cancel.await.unwrap(), claim.await.unwrap());

        match claimed.as_slice() {
            // Unstarted work ends at once, and nobody gets it.
            [] => assert_eq!(cancelled.status(), Status::Cancelled),
            [claimed] => {
                assert!(cancelled.cancel_requested(), "started work is asked to end");
                let ended = store.worked(id, claimed.token, vec![Event::ConfirmCancel]).await;
                assert_eq!(ended.status(), Status::Cancelled);
            }
            more => panic!("one task was there, {} were claimed", more.len()),
        }
    }
}

pub async fn of_many_completions_at_once_one_stands(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let ends = at_once((0..32).map(|number| {
        let (store, id) = (store.clone(), task.id);
        async move { store.work(id, token, vec![complete(&json!(number))]).await }
    }))
    .await;
    let stood = ends.iter().filter(|end| matches!(end, Applied::Applied(_))).count();
    assert_eq!(stood, 1);
    let last = store.task(task.id).await;
    assert!(ends.into_iter().map(after).all(|end| end == last));
}

pub async fn two_workers_take_an_expired_lease_at_once_and_one_gets_it(on: &dyn Harness) {
    let store = on.open().await;
    store.create_leased(new_task(), "dead").await;
    on.advance(LEASE).await;
    let claims = at_once((0..8).map(|number| {
        let store = store.clone();
        async move { store.claim_up_to(&format!("worker {number}"), 10).await }
    }))
    .await;
    let claimed: Vec<_> = claims.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].token.0, 2);
}

pub async fn c24_sixteen_tasks_created_and_finished_at_once_over_and_over_all_end(on: &dyn Harness) {
    let store = on.open().await;
    let ids: Vec<Vec<TaskId>> = at_once((0..16).map(|lane| {
        let store = store.clone();
        async move {
            let mut ids = Vec::new();
            for round in 0..20 {
                let (task, token) = store.create_leased(new_task(), "one").await;
                store.worked(task.id, token, vec![finish("a", &json!(round))]).await;
                store.worked(task.id, token, vec![complete(&json!([lane, round]))]).await;
                ids.push(task.id);
            }
            ids
        }
    }))
    .await;
    for id in ids.into_iter().flatten() {
        assert_eq!(store.task(id).await.status(), Status::Completed);
    }
    assert_eq!(store.counts().await.unwrap().of(Status::Completed), 320);
}
