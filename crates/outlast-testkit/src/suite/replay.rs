//! What was journaled before is a change of nothing, so that an identical retry is safe; a key names one thing.

use outlast_core::{Applied, EntryKind, Event, Finished, Illegal, Outcome, Status, Wake};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn asking_the_same_again_is_absorbed_answered_or_not(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let asked = store.worked(task.id, token, vec![ask("q", "Sure?")]).await;
    assert_eq!(store.work(task.id, token, vec![ask("q", "Sure?")]).await, Applied::Absorbed(asked));

    store.alice(task.id, vec![answer("q", "yes")]).await;
    let again = after(store.work(task.id, token, vec![ask("q", "Sure?")]).await);
    assert_eq!(again.status(), Status::Working, "an answered question does not come back");
    assert_eq!(store.entries(task.id).await.len(), 2);
}

pub async fn asking_something_else_under_a_used_key_is_refused(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "Sure?")]).await;
    let used = Applied::Illegal(Illegal::KeyUsed { key: step("q") });
    assert_eq!(store.work(task.id, token, vec![ask("q", "Really?")]).await, used);

    // Used is used: answered, withdrawn, or asked by an attempt before.
    store.alice(task.id, vec![answer("q", "yes")]).await;
    assert_eq!(store.work(task.id, token, vec![ask("q", "Really?")]).await, used);
    store.worked(task.id, token, vec![ask("r", "Sure?")]).await;
    store.worked(task.id, token, vec![Event::Withdraw { key: input("r") }]).await;
    let refused = store.work(task.id, token, vec![ask("r", "Really?")]).await;
    assert_eq!(refused, Applied::Illegal(Illegal::KeyUsed { key: step("r") }));
    on.advance(LEASE).await;
    let next = store.claim_only("two").await;
    assert_eq!(store.work(task.id, next.token, vec![ask("q", "Really?")]).await, used);
}

pub async fn a_key_names_one_kind_of_thing(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let opening = vec![ask("question", "Sure?"), finish("step", &json!(1)), timer("timer", HOUR)];
    let before = store.worked(task.id, token, opening).await;

    for (key, event) in [
        ("question", finish("question", &json!(1))),
        ("question", timer("question", HOUR)),
        ("step", ask("step", "Sure?")),
        ("step", timer("step", HOUR)),
        ("timer", ask("timer", "Sure?")),
        ("timer", finish("timer", &json!(1))),
    ] {
        let refused = store.work(task.id, token, vec![event]).await;
        assert_eq!(refused, Applied::Illegal(Illegal::KeyKind { key: step(key) }));
    }
    assert_eq!(store.task(task.id).await, before);
}

pub async fn a_step_that_finished_keeps_its_first_outcome(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let finished = store.worked(task.id, token, vec![finish("a", &json!("first"))]).await;
    for again in [
        finish("a", &json!("first")),
        finish("a", &json!("second")),
        finish_with("a", Outcome::Error(payload(&json!("no")))),
    ] {
        assert_eq!(store.work(task.id, token, vec![again]).await, Applied::Absorbed(finished.clone()));
    }
    let entries = store.entries(task.id).await;
    assert_eq!(entries.len(), 1);
    let finished = entries[0].finished().unwrap();
    assert_eq!(
        finished,
        Finished { outcome: Outcome::Value(payload(&json!("first"))), took: MOMENT, tries: 1 }
    );
}

pub async fn a_timer_that_was_set_keeps_its_time(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let set = store.worked(task.id, token, vec![timer("t", HOUR)]).await;
    on.advance(MINUTE).await;
    assert_eq!(store.work(task.id, token, vec![timer("t", HOUR)]).await, Applied::Absorbed(set.clone()));

    // Also once it has fired.
    let fired = store.worked(task.id, token, vec![Event::FireTimer { key: step("t") }]).await;
    for again in [Event::FireTimer { key: step("t") }, timer("t", HOUR)] {
        assert_eq!(store.work(task.id, token, vec![again]).await, Applied::Absorbed(fired.clone()));
    }
    let kinds: Vec<_> = store.entries(task.id).await.into_iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [EntryKind::TimerSet, EntryKind::TimerFired]);
}

pub async fn a_timer_is_due_from_when_it_was_set_or_at_its_instant(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let at = task.created_at + DAY;
    let set = vec![timer("after", HOUR), Event::SetTimer { key: step("at"), wake: Wake::At(at) }];
    let task = store.worked(task.id, token, set).await;
    let timers = &task.live().unwrap().timers;
    let entries = store.entries(task.id).await;
    assert_eq!(timers[&step("after")], entries[0].at + HOUR);
    assert_eq!(timers[&step("at")], at);
    let due: i64 = entries[1].body.as_ref().unwrap().decode().unwrap();
    assert_eq!(due, at.as_millis());
}

pub async fn answering_again_is_absorbed_and_the_first_answer_stands(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "Sure?")]).await;
    let answered = after(store.alice(task.id, vec![answer("q", "yes")]).await);
    for again in [answer("q", "yes"), answer("q", "no"), answer("never asked", "yes")] {
        assert_eq!(store.alice(task.id, vec![again]).await, Applied::Absorbed(answered.clone()));
    }
    let entries = store.entries(task.id).await;
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[1].body, Some(accepted("yes")));
}

pub async fn a_subset_of_the_answers_leaves_the_rest_outstanding(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "One?"), ask("r", "Two?")]).await;
    let task = after(store.alice(task.id, vec![answer("r", "yes"), answer("unknown", "yes")]).await);
    assert_eq!(task.status(), Status::InputRequired);
    assert_eq!(task.live().unwrap().questions.keys().collect::<Vec<_>>(), [&input("q")]);
    let task = after(store.alice(task.id, vec![answer("q", "yes")]).await);
    assert_eq!(task.status(), Status::Working);
}

pub async fn an_answer_of_the_wrong_shape_consumes_nothing(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let asking = store.worked(task.id, token, vec![ask("q", "One?"), ask("r", "Two?")]).await;
    let wrong = Event::Answer { key: input("r"), answer: payload(&json!("yes")) };
    let refused = store.alice(task.id, vec![answer("q", "yes"), wrong]).await;
    assert_eq!(refused, Applied::Illegal(Illegal::AnswerShape { key: input("r") }));
    assert_eq!(store.task(task.id).await, asking);
}

pub async fn what_a_later_worker_repeats_is_absorbed_as_well(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let script = || vec![finish("a", &json!(1)), ask("q", "Sure?"), timer("t", HOUR)];
    store.worked(task.id, token, script()).await;
    on.advance(LEASE).await;
    let next = store.claim_only("two").await;
    let replayed = store.work(task.id, next.token, script()).await;
    assert_eq!(replayed, Applied::Absorbed(next.task));
}

pub async fn a_final_task_absorbs_every_late_word(on: &dyn Harness) {
    let store = on.open().await;
    let ends = [vec![complete(&json!(1))], vec![fail("no")], vec![Event::PassDeadline]];
    for end in ends {
        let (task, token) = store.create_leased(new_task(), "one").await;
        store.worked(task.id, token, vec![ask("q", "Sure?")]).await;
        let ended = store.worked(task.id, token, end.clone()).await;
        assert!(ended.is_final());

        let absorbed = Applied::Absorbed(ended.clone());
        for late in [
            end,
            vec![complete(&json!("late"))],
            vec![fail("late")],
            vec![finish("late", &json!(1)), ask("late", "Sure?")],
            vec![Event::SetMessage(Some("late".into())), Event::ExtendTtl(DAY * 100)],
            vec![park(0)],
            vec![Event::Release { began: true }],
            vec![Event::ConfirmCancel],
            vec![Event::PassDeadline],
        ] {
            assert_eq!(store.work(task.id, token, late).await, absorbed);
        }
        for late in [vec![answer("q", "yes")], vec![Event::Cancel]] {
            assert_eq!(store.alice(task.id, late).await, absorbed);
        }
        assert_eq!(store.task(task.id).await, ended);
    }
}
