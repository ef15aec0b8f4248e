//! Failed work starts again in a task of its own, which takes over what was done.

use std::sync::Arc;

use outlast_core::{
    Applied, Asks, Created, Entry, EntryKind, Event, NewTask, Outcome, QuestionKind, Spec, Status, StepKey,
    Store, TakenUp, Task, Token,
};
use serde_json::json;

use crate::{Harness, story::*};

/// Work that failed after these events, and the task that is to start it again.
async fn failed_after(store: &dyn Store, events: Vec<Event>) -> (Task, NewTask) {
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, events).await;
    let failed = store.worked(task.id, token, vec![fail("no")]).await;
    let again = again(store, &failed).await;
    (failed, again)
}

async fn again(store: &dyn Store, failed: &Task) -> NewTask {
    let takes_up = TakenUp::of(failed, store.entries(failed.id).await);
    assert!(takes_up.is_some());
    NewTask { takes_up, ..new_task() }
}

fn kinds(entries: &[Entry]) -> Vec<(EntryKind, &str)> {
    entries.iter().map(|entry| (entry.kind, entry.key.as_ref().map_or("", StepKey::as_str))).collect()
}

/// The task and its journal fit together.
fn assert_whole(task: &Task, entries: &[Entry]) {
    assert!(entries.iter().map(|entry| entry.seq).eq(1..=task.seq));
    assert_eq!(task.journal_bytes, entries.iter().map(Entry::size).sum::<u64>());
    assert_eq!(task.entries, entries.iter().filter(|entry| entry.kind.is_of_work()).count() as u64);
}

pub async fn a_failed_task_starts_again_with_what_was_done(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let begun = vec![
        finish("a", &json!("kept")),
        finish_with("b", Outcome::Error(payload(&json!("no")))),
        ask("q", "Sure?"),
        ask("r", "Really?"),
        ask("w", "Never mind?"),
        timer("t", HOUR),
        timer("u", HOUR),
        Event::Withdraw { key: input("w") },
        Event::FireTimer { key: step("t") },
    ];
    store.worked(task.id, token, begun).await;
    store.alice(task.id, vec![answer("q", "yes")]).await;
    on.advance(LEASE).await;
    let token = store.claim_only("two").await.token;
    store.worked(task.id, token, vec![finish("c", &json!(3))]).await;
    let failed = store.worked(task.id, token, vec![fail("no")]).await;
    let before = store.entries(task.id).await;

    let new = again(&*store, &failed).await;
    let task = store.create_one(new.clone()).await;
    let entries = store.entries(task.id).await;
    use EntryKind::{Answered, Asked, Step, TimerFired, TimerSet, Withdrawn};
    let expected = [
        (Step, "a"),
        (Asked, "q"),
        (Asked, "r"),
        (Asked, "w"),
        (TimerSet, "t"),
        (TimerSet, "u"),
        (Withdrawn, "w"),
        (TimerFired, "t"),
        (Answered, "q"),
        (Step, "c"),
    ];
    assert_eq!(kinds(&entries), expected);
    for entry in &entries {
        let same = |old: &&Entry| Entry { seq: entry.seq, ..(*old).clone() } == *entry;
        assert!(before.iter().find(same).is_some(), "{entry:?} is as it was");
    }
    assert_whole(&task, &entries);
    assert_eq!((task.inbox_seq, task.origin, task.token), (9, Some(failed.id), Token(0)));
    assert_eq!(task.status(), Status::InputRequired);
    assert_eq!(task.live().unwrap().questions.keys().collect::<Vec<_>>(), [&input("r")]);
    assert_eq!(task.live().unwrap().timers.keys().collect::<Vec<_>>(), [&step("u")]);
    assert_eq!(store.task(task.id).await, task);
    assert_eq!(store.task(failed.id).await, failed, "what failed stays as it is");

    // It replays what was done, and does what was not.
    let claimed = store.claim_only("one").await;
    assert_eq!((claimed.task.id, claimed.token), (task.id, Token(1)));
    let replayed =
        vec![finish("a", &json!("again")), ask("q", "Sure?"), ask("r", "Really?"), timer("t", HOUR)];
    assert_eq!(store.work(task.id, claimed.token, replayed).await, Applied::Absorbed(claimed.task.clone()));
    let other = store.work(task.id, claimed.token, vec![ask("q", "Something else?")]).await;
    assert!(matches!(other, Applied::Illegal(_)), "its keys are used");
    let task = store.worked(task.id, claimed.token, vec![finish("b", &json!("better"))]).await;
    assert_eq!(store.entries(task.id).await.last().unwrap().seq, 12);
    store.worked(task.id, claimed.token, vec![complete(&json!(1))]).await;
}

pub async fn what_a_task_took_over_is_written_once_with_its_creation(on: &dyn Harness) {
    let store = on.open().await;
    let (_, new) = failed_after(&*store, vec![finish("a", &json!(1)), ask("q", "Sure?")]).await;
    let (task, token) = store.create_leased(new.clone(), "one").await;
    assert_eq!((token, task.seq), (Token(1), 2));
    let entries = store.entries(task.id).await;
    assert_eq!(store.create_leased(new, "one").await, (task.clone(), token));
    assert_eq!(store.entries(task.id).await, entries);
    assert_whole(&task, &entries);
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.of(Status::InputRequired), counts.of(Status::Failed), counts.leased), (1, 1, 1));
    store.worked(task.id, token, vec![finish("b", &json!(1))]).await;

    // Nothing of a creation that is refused.
    let (_, new) = failed_after(&*store, vec![finish("a", &json!(1))]).await;
    let refused = NewTask { max_open: 0, ..new };
    assert_eq!(store.try_create(refused.clone()).await, Created::OverQuota);
    assert_eq!(store.entries(refused.id).await, []);
}

pub async fn what_a_task_took_over_is_there_after_a_restart(on: &dyn Harness) {
    let store = on.open().await;
    let (_, new) = failed_after(&*store, vec![finish("a", &json!(1)), ask("q", "Sure?")]).await;
    let task = store.create_one(new).await;
    let entries = store.entries(task.id).await;
    let store = on.reopen(store).await;
    assert_eq!((store.task(task.id).await, store.entries(task.id).await), (task, entries));
}

pub async fn a_question_that_was_open_is_answered_in_the_new_task(on: &dyn Harness) {
    let store = on.open().await;
    let (failed, new) = failed_after(&*store, vec![ask("q", "Sure?")]).await;
    let task = store.create_one(new).await;
    let open = &task.live().unwrap().questions[&input("q")];
    assert_eq!(*open, question("Sure?"));
    assert_eq!(store.alice(failed.id, vec![answer("q", "late")]).await, Applied::Absorbed(failed));
    let answered = after(store.alice(task.id, vec![answer("q", "yes")]).await);
    assert_eq!((answered.status(), answered.inbox_seq), (Status::Working, 2));
    // Before anybody took it up, and not lost on who parks without a look at it.
    let token = store.claim_only("one").await.token;
    store.worked(task.id, token, vec![park(1)]).await;
    store.claim_only("one").await;
}

pub async fn a_question_that_the_client_cannot_be_asked_any_more_is_dropped(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "Sure?"), ask("r", "Really?")]).await;
    store.alice(task.id, vec![answer("q", "yes")]).await;
    let failed = store.worked(task.id, token, vec![fail("no")]).await;
    let spec = Spec { asks: Asks::none().with(QuestionKind::Roots), ..rerun() };
    let new = NewTask { spec: Arc::new(spec), ..again(&*store, &failed).await };
    let task = store.create_one(new).await;
    assert_eq!(task.status(), Status::Working);
    let expected = [(EntryKind::Asked, "q"), (EntryKind::Answered, "q")];
    assert_eq!(kinds(&store.entries(task.id).await), expected, "an answer stays, whoever gave it");
}

pub async fn a_timer_is_due_when_it_was(on: &dyn Harness) {
    let store = on.open().await;
    let (_, new) = failed_after(&*store, vec![timer("t", HOUR)]).await;
    on.advance(HOUR - MINUTE).await;
    let (task, token) = store.create_leased(new, "one").await;
    store.worked(task.id, token, vec![timer("t", HOUR), park(1)]).await;
    on.advance(MINUTE - MOMENT).await;
    assert_eq!(store.claim_up_to("two", 9).await, []);
    on.advance(MOMENT).await;
    assert_eq!(store.claim_only("two").await.task.id, task.id);
}

pub async fn a_cancel_is_not_taken_over(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "Sure?")]).await;
    store.alice(task.id, vec![Event::Cancel]).await;
    let failed = store.worked(task.id, token, vec![fail("no")]).await;
    let task = store.create_one(again(&*store, &failed).await).await;
    assert!(!task.cancel_requested());
    assert_eq!(task.status(), Status::InputRequired, "what the cancel took back is asked again");
    assert_eq!(task.inbox_seq, 0);
}

pub async fn work_started_again_and_again_keeps_its_origin(on: &dyn Harness) {
    let store = on.open().await;
    let (first, mut new) = failed_after(&*store, vec![finish("step 0", &json!(0))]).await;
    assert_eq!(first.origin, None);
    for round in 1..5_u64 {
        let (task, token) = store.create_leased(new, "one").await;
        assert_eq!((task.origin, task.entries), (Some(first.id), round));
        let events = vec![finish(&format!("step {round}"), &json!(round)), fail("no")];
        let failed = store.worked(task.id, token, events).await;
        new = again(&*store, &failed).await;
    }
}

pub async fn only_failed_work_starts_again(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    assert_eq!(TakenUp::of(&task, Vec::new()), None, "it runs");
    let done = store.worked(task.id, token, vec![complete(&json!(1))]).await;
    assert_eq!(TakenUp::of(&done, Vec::new()), None);
    let task = store.create_one(new_task()).await;
    let cancelled = after(store.alice(task.id, vec![Event::Cancel]).await);
    assert_eq!(TakenUp::of(&cancelled, Vec::new()), None);
}
