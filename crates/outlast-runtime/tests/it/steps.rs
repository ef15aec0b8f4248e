//! Steps: done once, tried again, and refused with a clear word.

use std::{sync::Arc, time::Duration};

use outlast_core::{Finished, Outcome, Payload, TaskError};
use outlast_runtime::{StepFailure, StepOptions};
use serde_json::json;
use tokio::sync::Notify;

use crate::support::{Attempts, World, ask, failure, key, outcome, step};

#[tokio::test(start_paused = true)]
async fn a_finished_step_is_not_done_again_after_its_process_died() {
    let world = World::new();
    let tool = {
        let log = world.log.clone();
        move |run: outlast_runtime::Run| {
            let log = log.clone();
            async move {
                let a = step(&run, &log, "a").await?;
                let name = ask(&run, "name").await?;
                let b = step(&run, &log, "b").await?;
                Ok(json!([a, name, b]))
            }
        }
    };
    let first = world.worker(tool.clone());
    let id = world.begin(&first).await;
    world.until_asked(id, "name").await;
    first.abandon();
    world.answer(id, "name", "bea").await;
    world.worker(tool);
    assert_eq!(world.result(id).await, json!(["a", "bea", "b"]));
    assert_eq!(world.log.said(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn the_last_error_of_a_step_is_kept_and_another_is_tried_again_by_the_next_attempt() {
    for (last, done) in [(true, 1), (false, 2)] {
        let world = World::new();
        let log = world.log.clone();
        let tool = move |run: outlast_runtime::Run| {
            let log = log.clone();
            async move {
                let refused = run
                    .step(key("pay"), &StepOptions::new(), async || {
                        log.say("pay");
                        Err(StepFailure { error: TaskError::new(-7, "no money"), last })
                    })
                    .await;
                let error = refused.expect_err("it fails");
                ask(&run, "and now").await?;
                Ok(json!([error.code, error.message]))
            }
        };
        let first = world.worker(tool.clone());
        let id = world.begin(&first).await;
        world.until_asked(id, "and now").await;
        assert_eq!(outcome(&world.journal(id).await, "pay").is_some(), last);
        first.abandon();
        world.answer(id, "and now", "go on").await;
        world.worker(tool);
        assert_eq!(world.result(id).await, json!([-7, "no money"]));
        assert_eq!(world.log.times("pay"), done);
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_is_tried_as_often_as_its_options_say_and_its_duration_is_kept() {
    let world = World::new();
    let attempts = Attempts::default();
    let options =
        StepOptions::new().tries(4).backoff(Duration::from_secs(2)).timeout(Duration::from_secs(10));
    let worker = world.worker({
        let (attempts, options) = (attempts.clone(), options.clone());
        move |run| {
            let (attempts, options) = (attempts.clone(), options.clone());
            async move {
                let work = async || match attempts.next() {
                    1 => Err(failure("not yet")),
                    // Longer than a try may take.
                    2 => {
                        tokio::time::sleep(Duration::from_secs(3_600)).await;
                        Err(failure("unreachable"))
                    }
                    _ => Ok(Payload::from_value(&"done".into())),
                };
                Ok(run.step(key("patient"), &options, work).await?.to_value())
            }
        }
    });
    let id = world.begin(&worker).await;
    assert_eq!(world.result(id).await, "done");
    let entries = world.journal(id).await;
    let entry = entries.iter().find(|entry| entry.key == Some(key("patient"))).unwrap();
    let finished: Finished = entry.body.as_ref().unwrap().decode().unwrap();
    // At once, two seconds later for ten seconds, and four seconds after that.
    assert_eq!((finished.tries, finished.took), (3, Duration::from_secs(16)));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_only_ever_times_out_says_so() {
    let world = World::new();
    let worker = world.worker(|run| async move {
        let options = StepOptions::new().tries(2).timeout(Duration::from_secs(10));
        Ok(run.step(key("slow"), &options, std::future::pending).await?.to_value())
    });
    let id = world.begin(&worker).await;
    assert_eq!(world.failure(id).await, "the step took longer than 10s and was ended");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_used_twice_ends_the_task_and_is_named_whatever_the_tool_does_with_it() {
    let world = World::new();
    let log = world.log.clone();
    let worker = world.worker(move |run| {
        let log = log.clone();
        async move {
            let _ = step(&run, &log, "same").await;
            let _ = step(&run, &log, "same").await;
            log.say("went on");
            Ok(json!("fine"))
        }
    });
    let id = world.begin(&worker).await;
    let failure = world.failure(id).await;
    assert!(failure.contains("the tool used the key 'same' twice"), "{failure}");
    assert_eq!(world.log.said(), ["same"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_names_something_else_in_the_history_ends_the_task_and_is_named() {
    let world = World::new();
    let attempts = Attempts::default();
    let tool = {
        let (attempts, log) = (attempts.clone(), world.log.clone());
        move |run: outlast_runtime::Run| {
            let (attempts, log) = (attempts.clone(), log.clone());
            async move {
                match attempts.next() {
                    1 => ask(&run, "thing").await,
                    _ => step(&run, &log, "thing").await,
                }
            }
        }
    };
    let first = world.worker(tool.clone());
    let id = world.begin(&first).await;
    world.until_asked(id, "thing").await;
    first.abandon();
    world.worker(tool);
    let failure = world.failure(id).await;
    assert!(failure.contains("the key 'thing' names a question in the history of this task"), "{failure}");
    assert!(failure.contains("another version"), "{failure}");
    assert!(world.log.said().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_value_past_its_limit_ends_the_task_and_is_named() {
    let mut world = World::new();
    world.spec.limits.value_bytes = 100;
    let worker = world.worker(|run| async move {
        let work = async || Ok(Payload::from_value(&"x".repeat(200).into()));
        Ok(run.step(key("large"), &StepOptions::new(), work).await?.to_value())
    });
    let id = world.begin(&worker).await;
    let failure = world.failure(id).await;
    assert!(failure.contains("the step 'large' ended and could not be kept"), "{failure}");
    assert!(failure.contains("limit of 100"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn more_steps_than_a_journal_holds_end_the_task() {
    let mut world = World::new();
    world.spec.limits.entries = 3;
    let log = world.log.clone();
    let worker = world.worker(move |run| {
        let log = log.clone();
        async move {
            for i in 0..10 {
                step(&run, &log, &format!("s{i}")).await?;
            }
            Ok(json!("unreachable"))
        }
    });
    let id = world.begin(&worker).await;
    let failure = world.failure(id).await;
    assert!(failure.contains("the step 's3'") && failure.contains("journal entries"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn steps_run_beside_each_other_and_each_is_done_once() {
    let world = World::new();
    let tool = {
        let log = world.log.clone();
        move |run: outlast_runtime::Run| {
            let log = log.clone();
            async move {
                let (a, b, c) =
                    tokio::join!(step(&run, &log, "a"), step(&run, &log, "b"), ask(&run, "go on"));
                step(&run, &log, "after").await?;
                Ok(json!([a?, b?, c?]))
            }
        }
    };
    let first = world.worker(tool.clone());
    let id = world.begin(&first).await;
    world.until(id, |task| task.seq >= 3).await;
    first.abandon();
    world.answer(id, "go on", "yes").await;
    world.worker(tool);
    assert_eq!(world.result(id).await, json!(["a", "b", "yes"]));
    assert_eq!(world.log.said(), ["a", "b", "after"]);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_dropped_frees_its_key() {
    let world = World::new();
    let log = world.log.clone();
    let worker = world.worker(move |run| {
        let log = log.clone();
        async move {
            let options = StepOptions::new();
            let never = run.step(key("s"), &options, std::future::pending);
            assert!(tokio::time::timeout(Duration::from_secs(1), never).await.is_err());
            step(&run, &log, "s").await
        }
    });
    let id = world.begin(&worker).await;
    assert_eq!(world.result(id).await, "s");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_dropped_when_its_work_is_done_is_not_done_again() {
    let world = World::new();
    let log = world.log.clone();
    let worker = world.worker(move |run| {
        let log = log.clone();
        async move {
            {
                let mut dropped = Box::pin(step(&run, &log, "s"));
                // The work is done at the first poll, and its entry is on its way.
                assert!(futures::poll!(&mut dropped).is_pending());
            }
            step(&run, &log, "s").await
        }
    });
    let id = world.begin(&worker).await;
    assert_eq!(world.result(id).await, "s");
    assert_eq!(world.log.said(), ["s"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_call_finished_before_it_was_a_task_is_not_done_again() {
    let world = World::new();
    let tool = {
        let log = world.log.clone();
        move |run: outlast_runtime::Run| {
            let log = log.clone();
            async move {
                step(&run, &log, "early").await?;
                ask(&run, "name").await
            }
        }
    };
    let first = world.worker(tool.clone());
    let new = world.new_task();
    let run = outlast_runtime::Run::inline(new.id, new.spec.asks);
    let caller = tokio_util::sync::CancellationToken::new();
    let id = match first.begin_inline(new, Duration::from_secs(3), false, run, caller).await {
        outlast_runtime::Inline::Task(task) => task.id,
        _ => panic!("asking makes it a task"),
    };
    world.until_asked(id, "name").await;
    let entries = world.journal(id).await;
    assert!(matches!(outcome(&entries, "early"), Some(Outcome::Value(_))));
    let entry = entries.iter().find(|entry| entry.key == Some(key("early"))).unwrap();
    assert!(entry.finished().unwrap().took < Duration::from_secs(1), "its time is its own");
    first.abandon();
    world.answer(id, "name", "bea").await;
    world.worker(tool);
    assert_eq!(world.result(id).await, "bea");
    assert_eq!(world.log.said(), ["early"]);
}

#[tokio::test(start_paused = true)]
async fn a_step_has_one_name_for_outside_systems_over_all_attempts() {
    let world = World::new();
    let tool = {
        let log = world.log.clone();
        move |run: outlast_runtime::Run| {
            let log = log.clone();
            async move {
                log.say(run.step_id("pay"));
                ask(&run, "name").await
            }
        }
    };
    let first = world.worker(tool.clone());
    let id = world.begin(&first).await;
    world.until_asked(id, "name").await;
    first.abandon();
    world.worker(tool);
    world.answer(id, "name", "bea").await;
    world.result(id).await;
    let said = world.log.said();
    assert!(said.len() >= 2 && said.iter().all(|name| *name == said[0]), "{said:?}");
    assert!(!said[0].contains(&id.to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_the_pause_between_two_tries_and_a_step_in_flight() {
    let world = World::new();
    let began = Arc::new(Notify::new());
    let worker = world.worker({
        let (log, began) = (world.log.clone(), began.clone());
        move |run| {
            let (log, began) = (log.clone(), began.clone());
            async move {
                let options = StepOptions::new()
                    .tries(9)
                    .backoff(Duration::from_secs(86_400))
                    .max_backoff(Duration::MAX);
                let in_flight = run.step(key("in flight"), &options, async || {
                    run.cancel().cancelled().await;
                    Ok(Payload::from_value(&"heard".into()))
                });
                let failing = run.step(key("failing"), &options, async || {
                    began.notify_one();
                    Err(failure("not yet"))
                });
                let (heard, failed) = tokio::join!(in_flight, failing);
                log.say(heard?.to_value().to_string());
                log.say(failed.expect_err("it was not tried again").message);
                // Clean-up.
                step(&run, &log, "tidy").await?;
                Err(crate::support::cancelled())
            }
        }
    });
    let id = world.begin(&worker).await;
    began.notified().await;
    world.cancel(id).await;
    let task = world.until(id, outlast_core::Task::is_final).await;
    assert_eq!(task.status(), outlast_core::Status::Cancelled);
    assert_eq!(world.log.said(), ["\"heard\"", "not yet", "tidy"]);
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_clean_up_after_a_cancel_gets_all_of_its_tries() {
    let world = World::new();
    let tries = Attempts::default();
    let worker = world.worker({
        let tries = tries.clone();
        move |run| {
            let tries = tries.clone();
            async move {
                run.cancel().cancelled().await;
                let work = async || match tries.next() {
                    1 | 2 => Err(failure("not yet")),
                    _ => Ok(Payload::null()),
                };
                run.step(key("tidy"), &StepOptions::new().tries(3), work).await?;
                Err(crate::support::cancelled())
            }
        }
    });
    let id = world.begin(&worker).await;
    world.cancel(id).await;
    let task = world.until(id, outlast_core::Task::is_final).await;
    assert_eq!((task.status(), tries.count()), (outlast_core::Status::Cancelled, 3));
}
