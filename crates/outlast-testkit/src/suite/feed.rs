//! The change feed: a hint after each change, and a gap where hints were lost.

use std::collections::BTreeSet;

use outlast_core::{Event, Hint, Hints, NewTask, Spec, TaskId};
use serde_json::json;

use crate::{Harness, story::*};

/// Waits for a hint that this task may have changed.
async fn hinted(hints: &mut Hints, id: TaskId) {
    soon(async {
        loop {
            match hints.next().await.expect("the feed is open") {
                Hint::Changed(changed) if changed != id => {}
                Hint::Changed(_) | Hint::Gap => break,
            }
        }
    })
    .await;
}

fn drain(hints: &mut Hints) {
    while hints.try_next().is_some() {}
}

pub async fn every_change_that_a_caller_can_see_is_hinted(on: &dyn Harness) {
    let store = on.open().await;
    let mut hints = store.watch();
    let (task, token) = store.create_leased(new_with(Spec { ttl: Some(HOUR), ..rerun() }), "one").await;
    hinted(&mut hints, task.id).await;

    for events in [
        vec![Event::SetMessage(Some("half way".into()))],
        vec![ask("q", "Sure?"), ask("r", "Really?")],
        vec![Event::Withdraw { key: input("r") }],
        vec![Event::ExtendTtl(HOUR * 2)],
    ] {
        drain(&mut hints);
        store.worked(task.id, token, events).await;
        hinted(&mut hints, task.id).await;
    }
    for events in [vec![answer("q", "yes")], vec![Event::Cancel]] {
        drain(&mut hints);
        after(store.alice(task.id, events).await);
        hinted(&mut hints, task.id).await;
    }
    drain(&mut hints);
    store.worked(task.id, token, vec![Event::ConfirmCancel]).await;
    hinted(&mut hints, task.id).await;
}

pub async fn what_the_store_does_of_itself_is_hinted_as_well(on: &dyn Harness) {
    let store = on.open().await;
    let mut hints = store.watch();
    let queued = store.create_one(new_with(Spec { ttl: Some(HOUR), ..rerun() })).await;
    let (held, token) = store.create_leased(new_with(Spec { ttl: Some(HOUR), ..rerun() }), "one").await;
    on.advance(HOUR / 2).await;
    drain(&mut hints);
    store.renew_one("one", held.id, token).await;
    hinted(&mut hints, held.id).await;
    drain(&mut hints);
    store.sweep_all().await;
    hinted(&mut hints, queued.id).await;

    // A lease that a claim ends, and with it the task.
    let (once, _) = store.create_leased(new_with(run_once()), "dead").await;
    on.advance(LEASE).await;
    drain(&mut hints);
    store.claim_up_to("two", 10).await;
    hinted(&mut hints, once.id).await;
    assert!(store.task(once.id).await.is_final());
}

pub async fn a_hinted_change_can_be_read(on: &dyn Harness) {
    let store = on.open().await;
    let mut hints = store.watch();
    let follower = tokio::spawn({
        let store = store.clone();
        async move {
            let mut finished = BTreeSet::new();
            while finished.len() < 100 {
                match soon(hints.next()).await.expect("the feed is open") {
                    Hint::Changed(id) => {
                        // There when its creation is hinted, and at its last hint final.
                        if store.task(id).await.is_final() {
                            finished.insert(id);
                        }
                    }
                    Hint::Gap => panic!("a reader this close behind misses nothing"),
                }
            }
            finished
        }
    });
    let mut made = BTreeSet::new();
    for number in 0..100 {
        let (task, token) = store.create_leased(new_task(), "one").await;
        store.worked(task.id, token, vec![complete(&json!(number))]).await;
        made.insert(task.id);
    }
    assert_eq!(follower.await.unwrap(), made);
}

pub async fn every_reader_hears_of_a_change(on: &dyn Harness) {
    let store = on.open().await;
    let mut readers: Vec<_> = (0..10).map(|_| store.watch()).collect();
    let task = store.create_one(new_task()).await;
    for reader in &mut readers {
        hinted(reader, task.id).await;
    }
}

pub async fn a_reader_that_falls_behind_learns_that_it_did_and_delays_nobody(on: &dyn Harness) {
    let store = on.open().await;
    let mut slow = store.watch();
    let made = at_once((0..64).map(|_| {
        let store = store.clone();
        async move {
            let mut ids = Vec::new();
            for _ in 0..100 {
                ids.push(store.create_one(NewTask { max_open: u32::MAX, ..new_task() }).await.id);
            }
            ids
        }
    }))
    .await;
    let last = store.create_one(new_of("bob")).await.id;

    // Either it hears of every change, or that it missed some; and the newest reaches it in any case.
    let mut missing: BTreeSet<_> = made.into_iter().flatten().collect();
    let mut gap = false;
    soon(async {
        loop {
            match slow.next().await.expect("the feed is open") {
                Hint::Gap => gap = true,
                Hint::Changed(id) if id == last => break,
                Hint::Changed(id) => drop(missing.remove(&id)),
            }
        }
    })
    .await;
    assert!(gap || missing.is_empty(), "{} changes were lost without a word", missing.len());
}
