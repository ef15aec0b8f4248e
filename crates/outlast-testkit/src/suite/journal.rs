//! Several events are one; the journal holds them in order and is read in pages.

use outlast_core::{Applied, EntryKind, Event, Illegal, Limits, Spec};
use serde_json::json;

use super::recovery::crash;
use crate::{Harness, story::*};

pub async fn several_events_are_journaled_in_order_as_one_change(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let events = vec![finish("a", &json!(1)), ask("q", "One?"), ask("r", "Two?"), timer("t", HOUR)];
    let changed = store.worked(task.id, token, events).await;

    let entries = store.entries(task.id).await;
    let kinds: Vec<_> = entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [EntryKind::Step, EntryKind::Asked, EntryKind::Asked, EntryKind::TimerSet]);
    let keys: Vec<_> = entries.iter().map(|entry| entry.key.clone().unwrap()).collect();
    assert_eq!(keys, [step("a"), step("q"), step("r"), step("t")]);
    assert_eq!(store.task(task.id).await, changed);
}

pub async fn entries_are_numbered_without_gaps_and_their_size_is_the_tasks(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![finish("a", &json!("ä"))]).await;
    store.worked(task.id, token, vec![ask("q", "One?"), ask("r", "Two?")]).await;
    store.alice(task.id, vec![answer("r", "yes"), answer("q", "no")]).await;
    store.alice(task.id, vec![Event::Cancel]).await;
    store.worked(task.id, token, vec![park(0)]).await;
    store.claim_only("two").await;

    let (task, entries) = (store.task(task.id).await, store.entries(task.id).await);
    let numbers: Vec<_> = entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(numbers, (1..=task.seq).collect::<Vec<_>>());
    assert_eq!(task.journal_bytes, entries.iter().map(outlast_core::Entry::size).sum::<u64>());
    assert!(entries.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert_eq!(task.inbox_seq, 6, "the cancel is the last thing that the worker did not do itself");
}

pub async fn each_attempt_is_in_the_journal_with_its_end(on: &dyn Harness) {
    use EntryKind::{Claimed, LeaseLost, Parked, Released};
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![timer("t", HOUR), park(1)]).await;
    on.advance(HOUR).await;
    let claimed = store.claim_only("two").await;
    store.worked(task.id, claimed.token, vec![Event::Release { began: true }]).await;
    store.claim_only("three").await;
    on.advance(LEASE).await;
    let claimed = store.claim_only("four").await;
    let ended = store.worked(task.id, claimed.token, vec![complete(&json!(1))]).await;

    let entries = store.entries(task.id).await;
    let kinds: Vec<_> = entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(
        kinds,
        [EntryKind::TimerSet, Parked, Claimed, Released, Claimed, LeaseLost, Claimed],
        "the end itself is the task's state"
    );
    assert_eq!(ended.seq, 7);
}

pub async fn what_is_done_to_a_task_does_not_use_up_the_room_of_its_work(on: &dyn Harness) {
    let store = on.open().await;
    let limits = Limits { entries: 4, ..Limits::default() };
    let spec = Spec { limits, ..rerun() };
    let (task, mut token) = store.create_leased(new_with(spec), "one").await;
    store.worked(task.id, token, vec![ask("q", "One?"), ask("r", "Two?")]).await;
    for _ in 0..20 {
        store.worked(task.id, token, vec![Event::Park { seen_seq: 1_000, wake: Some(MINUTE) }]).await;
        on.advance(MINUTE).await;
        token = store.claim_only("one").await.token;
        store.worked(task.id, token, vec![Event::Release { began: true }]).await;
        store.claim_only("lost").await;
        crash(on, &*store).await;
        token = store.claim_only("one").await.token;
    }
    store.alice(task.id, vec![answer("q", "yes"), answer("r", "no")]).await;
    let task = store.worked(task.id, token, vec![finish("a", &json!(1)), finish("b", &json!(2))]).await;
    assert_eq!((task.entries, task.seq), (4, 126));
    let full = Illegal::Limit { what: "journal entries", size: 5, limit: 4 };
    assert_eq!(store.work(task.id, token, vec![finish("c", &json!(3))]).await, Applied::Illegal(full));
    store.worked(task.id, token, vec![complete(&json!(1))]).await;
}

pub async fn one_illegal_event_refuses_all_of_them(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let before = store.worked(task.id, token, vec![finish("used", &json!(1))]).await;

    let with = |last: Event| vec![finish("a", &json!(1)), ask("q", "Sure?"), park(0), last];
    for last in [ask("used", "Again?"), Event::ConfirmCancel, answer("q", "yes")] {
        let refused = store.work(task.id, token, with(last)).await;
        assert!(matches!(refused, Applied::Illegal(_)), "{refused:?}");
    }
    assert_eq!(store.task(task.id).await, before);
    assert_eq!(store.entries(task.id).await.len(), 1);

    // None of the refused keys is used.
    store.worked(task.id, token, vec![ask("a", "Free?"), finish("q", &json!(1))]).await;
}

pub async fn an_event_without_effect_does_not_keep_the_others_back(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![finish("a", &json!(1))]).await;
    let events = vec![finish("a", &json!(1)), Event::FireTimer { key: step("none") }, finish("b", &json!(2))];
    let task = store.worked(task.id, token, events).await;
    assert_eq!(task.seq, 2);
    assert_eq!(store.entries(task.id).await[1].key, Some(step("b")));
}

pub async fn a_key_is_used_within_one_call_too(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let twice = vec![ask("q", "One?"), ask("q", "Two?")];
    let refused = store.work(task.id, token, twice).await;
    assert_eq!(refused, Applied::Illegal(Illegal::KeyUsed { key: step("q") }));
    let task = store.worked(task.id, token, vec![ask("q", "One?"), ask("q", "One?")]).await;
    assert_eq!(task.seq, 1);
}

pub async fn no_events_at_all_change_nothing(on: &dyn Harness) {
    let store = on.open().await;
    let task = store.create_one(new_task()).await;
    assert_eq!(store.alice(task.id, vec![]).await, Applied::Absorbed(task.clone()));
    assert_eq!(store.task(task.id).await, task);
}

pub async fn a_page_holds_the_entries_that_fit_and_at_least_one(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    for number in 0..20 {
        let value = json!("x".repeat(100));
        store.worked(task.id, token, vec![finish(&format!("step {number:02}"), &value)]).await;
    }
    let all = store.entries(task.id).await;
    let size = all[0].size();
    assert!(all.iter().all(|entry| entry.size() == size));

    for (max_bytes, fit) in [(0, 1), (1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (7 * size + 3, 7)] {
        let (mut read, mut after, mut pages) = (Vec::new(), 0, 0);
        loop {
            let page = store.journal(task.id, after, max_bytes).await.unwrap();
            pages += 1;
            assert!(page.entries.len() == fit || !page.more, "{max_bytes} bytes: {}", page.entries.len());
            after = page.entries.last().map_or(after, |entry| entry.seq);
            read.extend(page.entries);
            if !page.more {
                break;
            }
        }
        assert_eq!(read, all, "{max_bytes} bytes a page");
        assert_eq!(pages, 20_usize.div_ceil(fit));
    }
}

pub async fn a_page_begins_behind_the_entry_it_is_asked_for(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let steps = (0..5).map(|number| finish(&format!("step {number}"), &json!(number))).collect();
    store.worked(task.id, token, steps).await;
    let all = store.entries(task.id).await;
    assert_eq!(store.journal(task.id, 3, u64::MAX).await.unwrap().entries, all[3..]);
    for after in [5, 6, 1_000_000] {
        let page = store.journal(task.id, after, u64::MAX).await.unwrap();
        assert!(page.entries.is_empty() && !page.more);
    }
}
