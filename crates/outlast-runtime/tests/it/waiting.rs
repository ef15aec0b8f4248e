//! Sleeps and questions, across crashes and cancels.

use std::time::Duration;

use outlast_core::{EntryKind, Status, Task, Wake};
use outlast_runtime::Run;
use serde_json::json;

use crate::support::{World, ask, cancelled, key, step};

const HOUR: Duration = Duration::from_secs(3_600);

fn sleeper(
    world: &World,
    wake: Wake,
) -> impl Fn(Run) -> futures::future::BoxFuture<'static, crate::support::Outcomes> + Clone + use<> {
    let log = world.log.clone();
    move |run| {
        let log = log.clone();
        Box::pin(async move {
            step(&run, &log, "before").await?;
            if run.sleep(key("night"), wake).await.is_err() {
                log.say("woken by the cancel");
                step(&run, &log, "tidy").await?;
                return match ask(&run, "really").await {
                    Err(_) => Err(cancelled()),
                    Ok(_) => Ok(json!("asked after a cancel")),
                };
            }
            step(&run, &log, "after").await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_sleep_ends_at_its_time_whatever_happens_to_its_process() {
    let world = World::new();
    let mut worker = world.worker(sleeper(&world, Wake::After(10 * HOUR)));
    let id = world.begin(&worker).await;
    let began = world.task(id).await.created_at;
    for _ in 0..3 {
        tokio::time::sleep(HOUR).await;
        worker.abandon();
        tokio::time::sleep(HOUR).await;
        worker = world.worker(sleeper(&world, Wake::After(10 * HOUR)));
    }
    let ended = world.until(id, Task::is_final).await;
    assert_eq!(ended.status(), Status::Completed);
    let slept = ended.updated_at.since(began);
    // It is looked for once a second.
    assert!(slept >= 10 * HOUR && slept <= 10 * HOUR + Duration::from_secs(2), "{slept:?}");
    assert_eq!(world.log.said(), ["before", "after"]);
}

#[tokio::test(start_paused = true)]
async fn a_sleep_whose_time_came_while_nobody_ran_is_over() {
    let world = World::new();
    let worker = world.worker(sleeper(&world, Wake::After(HOUR)));
    let id = world.begin(&worker).await;
    world.until_parked(id).await;
    worker.abandon();
    tokio::time::sleep(5 * HOUR).await;
    let woken = world.config.clock.now();
    world.worker(sleeper(&world, Wake::After(HOUR)));
    let ended = world.until(id, Task::is_final).await;
    assert_eq!(ended.status(), Status::Completed);
    assert!(ended.updated_at.since(woken) < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_time_that_comes_while_its_task_parks_wakes_it() {
    let mut world = World::new();
    world.config.park_after = Duration::from_millis(30);
    // However the two fall together, it is woken.
    for millis in 20..50 {
        let worker = world.worker(sleeper(&world, Wake::After(Duration::from_millis(millis))));
        let id = world.begin(&worker).await;
        assert_eq!(world.result(id).await, "after");
        worker.abandon();
    }
}

#[tokio::test(start_paused = true)]
async fn a_sleep_until_an_instant_ends_then() {
    let world = World::new();
    let instant = world.config.clock.now() + 3 * HOUR;
    let worker = world.worker(sleeper(&world, Wake::At(instant)));
    let id = world.begin(&worker).await;
    let ended = world.until(id, Task::is_final).await;
    assert!(ended.updated_at >= instant && ended.updated_at.since(instant) <= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_wakes_a_sleeper_loaded_or_parked_and_its_clean_up_runs_and_may_not_ask() {
    for parked in [false, true] {
        let world = World::new();
        let worker = world.worker(sleeper(&world, Wake::After(10 * HOUR)));
        let id = world.begin(&worker).await;
        if parked {
            world.until_parked(id).await;
        } else {
            world.until(id, |task| task.seq >= 2).await;
        }
        world.cancel(id).await;
        let task = world.until(id, Task::is_final).await;
        assert_eq!(task.status(), Status::Cancelled);
        assert_eq!(world.log.said(), ["before", "woken by the cancel", "tidy"]);
        assert!(task.updated_at.since(task.created_at) < HOUR);
        let asked = world.journal(id).await.iter().any(|entry| entry.kind == EntryKind::Asked);
        assert!(!asked);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_twice_and_what_was_answered_while_no_process_was_alive_is_there() {
    let world = World::new();
    let tool = |run: Run| async move {
        let first = ask(&run, "first").await?;
        let second = ask(&run, "second").await?;
        Ok(json!([first, second]))
    };
    let mut worker = world.worker(tool);
    let id = world.begin(&worker).await;
    for key in ["first", "second"] {
        world.until_asked(id, key).await;
        worker.abandon();
        tokio::time::sleep(HOUR).await;
        world.answer(id, key, key).await;
        tokio::time::sleep(HOUR).await;
        worker = world.worker(tool);
    }
    assert_eq!(world.result(id).await, json!(["first", "second"]));
    let asked: Vec<_> =
        world.journal(id).await.into_iter().filter(|entry| entry.kind == EntryKind::Asked).collect();
    assert_eq!(asked.len(), 2);
}
