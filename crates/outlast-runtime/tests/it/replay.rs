//! Races and time limits take the same branch on every attempt.

use std::time::Duration;

use outlast_core::{EntryKind, InputKey, Wake};
use outlast_runtime::{Raced, Run};
use serde_json::json;

use crate::support::{World, ask, key, outcome, question, step};

fn racing(
    world: &World,
) -> impl Fn(Run) -> futures::future::BoxFuture<'static, crate::support::Outcomes> + Clone + use<> {
    let log = world.log.clone();
    move |run| {
        let log = log.clone();
        Box::pin(async move {
            let slow = async { run.sleep(key("patience"), Wake::After(Duration::from_secs(3_600))).await };
            let raced = run.race(key("race"), ask(&run, "name"), slow).await;
            let won = match raced {
                Raced::First(name) => name?,
                Raced::Second(slept) => json!(slept.is_ok()),
            };
            step(&run, &log, &format!("won: {won}")).await?;
            ask(&run, "end").await?;
            Ok(won)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_takes_the_branch_that_won() {
    let world = World::new();
    let tool = racing(&world);
    let first = world.worker(tool.clone());
    let id = world.begin(&first).await;
    // The time wins, and the question is taken back.
    let task = world.until_asked(id, "end").await;
    assert_eq!(task.live().unwrap().questions.len(), 1);
    first.abandon();
    // Too late: it changes nothing, and the next attempt does not ask again.
    world.answer(id, "name", "late").await;
    world.answer(id, "end", "yes").await;
    world.worker(tool);
    assert_eq!(world.result(id).await, json!(true));
    assert_eq!(world.log.said(), ["won: true"]);
    let asked = world.journal(id).await.into_iter().filter(|entry| entry.kind == EntryKind::Asked).count();
    assert_eq!(asked, 2);
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_lost_wakes_nobody() {
    let world = World::new();
    let tool = racing(&world);
    let first = world.worker(tool.clone());
    let id = world.begin(&first).await;
    world.until_asked(id, "name").await;
    world.answer(id, "name", "bea").await;
    world.until_asked(id, "end").await;
    // Its time passes while the task is parked on its last question.
    world.until_parked(id).await;
    tokio::time::sleep(Duration::from_secs(2 * 3_600)).await;
    let seq = world.until_parked(id).await.seq;
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    assert_eq!(world.until_parked(id).await.seq, seq, "it is woken once for the lost timer and no more");
    world.answer(id, "end", "yes").await;
    assert_eq!(world.result(id).await, json!("bea"));
}

fn limited(
    world: &World,
) -> impl Fn(Run) -> futures::future::BoxFuture<'static, crate::support::Outcomes> + Clone + use<> {
    let log = world.log.clone();
    move |run| {
        let log = log.clone();
        Box::pin(async move {
            let name = InputKey::new("name").unwrap();
            let answer = run.ask_until(name, question("name"), Wake::After(Duration::from_secs(3_600))).await;
            let answer =
                answer.expect("it may be asked").map(|answer| answer.to_value()["content"]["name"].clone());
            step(&run, &log, &format!("{answer:?}")).await?;
            ask(&run, "end").await?;
            Ok(json!(answer))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_whose_time_is_over_is_taken_back_and_stays_so() {
    let world = World::new();
    let tool = limited(&world);
    let first = world.worker(tool.clone());
    let id = world.begin(&first).await;
    let task = world.until_asked(id, "end").await;
    assert_eq!(task.live().unwrap().questions.len(), 1, "the question is taken back");
    first.abandon();
    world.answer(id, "name", "late").await;
    world.answer(id, "end", "yes").await;
    world.worker(tool);
    assert_eq!(world.result(id).await, json!(null));
    assert_eq!(world.log.said(), ["None"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_time_counts_on_every_attempt_also_one_given_while_nobody_ran() {
    for crash_first in [false, true] {
        let world = World::new();
        let tool = limited(&world);
        let mut worker = world.worker(tool.clone());
        let id = world.begin(&worker).await;
        world.until_asked(id, "name").await;
        if crash_first {
            worker.abandon();
        }
        world.answer(id, "name", "bea").await;
        if crash_first {
            // The time limit passes too, but the answer was there first.
            tokio::time::sleep(Duration::from_secs(2 * 3_600)).await;
            worker = world.worker(tool.clone());
        }
        world.until_asked(id, "end").await;
        worker.abandon();
        world.answer(id, "end", "yes").await;
        world.worker(tool);
        assert_eq!(world.result(id).await, json!("bea"));
        assert_eq!(world.log.said(), ["Some(String(\"bea\"))"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_during_the_wait_does_not_begin_the_time_limit_anew() {
    let world = World::new();
    let tool = limited(&world);
    let mut worker = world.worker(tool.clone());
    let id = world.begin(&worker).await;
    let asked = world.until_asked(id, "name").await.updated_at;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(600)).await;
        worker.abandon();
        worker = world.worker(tool.clone());
    }
    let over = world.until_asked(id, "end").await.updated_at;
    let waited = over.since(asked);
    assert!((3_600..3_640).contains(&waited.as_secs()), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_crash_right_behind_the_end_of_a_race_leaves_no_question_that_nobody_wants() {
    let world = World::new();
    let ended = std::sync::Arc::new(tokio::sync::Notify::new());
    let tool = {
        let ended = ended.clone();
        move |run: Run| {
            let ended = ended.clone();
            async move {
                let inner = async {
                    let nap = run.sleep(key("nap"), Wake::After(Duration::from_secs(3_600)));
                    run.race(key("inner"), ask(&run, "deep"), nap).await
                };
                run.race(key("race"), inner, run.sleep(key("patience"), Wake::After(Duration::from_secs(5))))
                    .await;
                ended.notify_one();
                std::future::pending().await
            }
        }
    };
    let worker = world.worker(tool);
    let id = world.begin(&worker).await;
    world.until_asked(id, "deep").await;
    // Seen at the very write that ends the race.
    let task = world.until(id, |task| task.live().is_some_and(|live| live.questions.is_empty())).await;
    let entries = world.journal(id).await;
    assert!(outcome(&entries, "race").is_some());
    let place = |wanted: &dyn Fn(&outlast_core::Entry) -> bool| entries.iter().position(wanted).unwrap();
    let won = place(&|entry| entry.key == Some(key("race")));
    let taken_back = place(&|entry| entry.kind == EntryKind::Withdrawn);
    assert_eq!((taken_back, entries[won].at), (won + 1, entries[taken_back].at), "{task:?}");
    ended.notified().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_that_a_later_attempt_does_not_want_is_taken_back_when_it_parks() {
    let world = World::new();
    let attempts = crate::support::Attempts::default();
    let tool = {
        let attempts = attempts.clone();
        move |run: Run| {
            let attempts = attempts.clone();
            async move { if attempts.next() == 1 { ask(&run, "old").await } else { ask(&run, "new").await } }
        }
    };
    let first = world.worker(tool.clone());
    let id = world.begin(&first).await;
    world.until_asked(id, "old").await;
    first.abandon();
    world.worker(tool);
    let parked = world.until_parked(id).await;
    let keys: Vec<_> = parked.live().unwrap().questions.keys().map(InputKey::to_string).collect();
    assert_eq!(keys, ["new"]);
    world.answer(id, "new", "bea").await;
    assert_eq!(world.result(id).await, json!("bea"));
}

#[tokio::test(start_paused = true)]
async fn a_question_on_its_way_when_its_race_is_lost_is_not_left_behind_by_a_crash() {
    // Each call of the store is the slow one in turn: one of them brings the question.
    let mut asked = 0;
    for nth in 1..12 {
        let memory = std::sync::Arc::new(outlast_core::MemoryStore::new(crate::support::TestClock));
        let world = World::on(memory.clone());
        let slow = outlast_testkit::FaultStore::failing(memory, nth, outlast_testkit::Fault::Delayed(500));
        let worker = world.worker_on(std::sync::Arc::new(slow), |run: Run| async move {
            let soon = async {
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
            };
            run.race(key("race"), ask(&run, "loser"), soon).await;
            std::future::pending().await
        });
        let id = world.begin(&worker).await;
        while outcome(&world.journal(id).await, "race").is_none() {
            tokio::task::yield_now().await;
        }
        world.settle().await;
        // A crash right behind the end of the race finds the question before it, and taken back with it.
        let entries = world.journal(id).await;
        let place = |wanted: &dyn Fn(&outlast_core::Entry) -> bool| entries.iter().position(wanted);
        let over = place(&|entry| entry.key == Some(key("race"))).unwrap();
        if let Some(question) = place(&|entry| entry.kind == EntryKind::Asked) {
            asked += 1;
            assert!(question < over, "call {nth}: {entries:?}");
            assert_eq!(place(&|entry| entry.kind == EntryKind::Withdrawn), Some(over + 1), "call {nth}");
        }
    }
    assert!(asked > 5, "it was asked nearly every time: {asked}");
}
