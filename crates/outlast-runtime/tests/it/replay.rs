//! Races and time limits take the same branch on every attempt.

use std::time::Duration;

use outlast_core::{EntryKind, InputKey, Wake};
use outlast_runtime::{Raced, Run};
use serde_json::json;

use crate::support::{World, ask, key, question, step};

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
