//! Work that only waits is unloaded, and comes back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outlast_core::{EntryKind, Recovery, Wake};
use outlast_runtime::{Run, StepOptions};
use serde_json::json;
use tokio::sync::Notify;

use crate::support::{Attempts, Guard, World, ask, key, step};

#[tokio::test(start_paused = true)]
async fn waiting_work_is_dropped_and_holds_nothing_until_its_answer_comes() {
    let world = World::new();
    let worker = world.worker({
        let log = world.log.clone();
        move |run| {
            let log = log.clone();
            async move {
                let _guard = Guard(log.clone());
                step(&run, &log, "before").await?;
                ask(&run, "name").await
            }
        }
    });
    let id = world.begin(&worker).await;
    world.until_asked(id, "name").await;
    assert_eq!(worker.loaded(), (1, 0), "it is in memory, and holds no slot");
    let parked = world.until_parked(id).await;
    assert!(parked.lease().is_none());
    // What a tool holds is gone before the task is given back.
    assert_eq!(world.log.said(), ["before", "dropped"]);
    world.settle().await;
    assert_eq!(worker.loaded(), (0, 0));
    let waited = world.config.clock.now().since(parked.updated_at);
    assert_eq!(waited.as_secs(), 30, "park_after is 30 seconds");
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    assert_eq!(world.task(id).await.seq, parked.seq, "nobody looks at it meanwhile");
    world.answer(id, "name", "bea").await;
    assert_eq!(world.result(id).await, "bea");
    assert_eq!(world.log.times("before"), 1);
}

#[tokio::test(start_paused = true)]
async fn park_after_zero_is_at_once() {
    let mut world = World::new();
    world.config.park_after = Duration::ZERO;
    let worker = world.worker(|run| async move { ask(&run, "name").await });
    let id = world.begin(&worker).await;
    let asked = world.until_asked(id, "name").await.updated_at;
    world.until_parked(id).await;
    assert!(world.config.clock.now().since(asked) < Duration::from_millis(10));
    world.answer(id, "name", "bea").await;
    assert_eq!(world.result(id).await, "bea");
}

#[tokio::test(start_paused = true)]
async fn work_that_must_not_run_twice_stays() {
    let mut world = World::new();
    world.spec.recovery = Recovery::Fail;
    let attempts = Attempts::default();
    let worker = world.worker({
        let attempts = attempts.clone();
        move |run| {
            attempts.next();
            async move { ask(&run, "name").await }
        }
    });
    let id = world.begin(&worker).await;
    world.until_asked(id, "name").await;
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    assert_eq!(worker.loaded(), (1, 0));
    world.answer(id, "name", "bea").await;
    assert_eq!(world.result(id).await, "bea");
    assert_eq!(attempts.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn work_that_does_something_beside_its_waiting_stays() {
    // A step that runs for an hour, and a loop of its own.
    for own in [false, true] {
        let world = World::new();
        let attempts = Attempts::default();
        let worker = world.worker({
            let attempts = attempts.clone();
            move |run: Run| {
                attempts.next();
                async move {
                    let beside = async {
                        if own {
                            for _ in 0..360 {
                                tokio::time::sleep(Duration::from_secs(10)).await;
                            }
                            return;
                        }
                        let options = StepOptions::new();
                        let work = async || {
                            tokio::time::sleep(Duration::from_secs(3_600)).await;
                            Ok(outlast_core::Payload::null())
                        };
                        let _ = run.step(key("long"), &options, work).await;
                    };
                    let (name, ()) = tokio::join!(ask(&run, "name"), beside);
                    name
                }
            }
        });
        let id = world.begin(&worker).await;
        world.until_asked(id, "name").await;
        tokio::time::sleep(Duration::from_secs(3_000)).await;
        world.settle().await;
        assert_eq!(worker.loaded().0, 1);
        world.until_parked(id).await;
        world.answer(id, "name", "bea").await;
        // Once more for the step; the loop is not a step, and begins again.
        assert_eq!(world.result(id).await, "bea");
        assert_eq!(attempts.count(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_a_task_parks_wakes_it() {
    let mut world = World::new();
    world.config.park_after = Duration::ZERO;
    // However the answer and the parking fall together, it arrives.
    for pause in 0..40 {
        let worker = world.worker(|run| async move { ask(&run, "name").await });
        let id = world.begin(&worker).await;
        world.until_asked(id, "name").await;
        for _ in 0..pause {
            tokio::task::yield_now().await;
        }
        let answered = world.config.clock.now();
        world.answer(id, "name", "bea").await;
        assert_eq!(world.result(id).await, "bea");
        assert!(world.task(id).await.updated_at.since(answered) < Duration::from_millis(50));
        worker.abandon();
    }
}

#[tokio::test(start_paused = true)]
async fn a_context_that_a_child_kept_can_do_nothing_after_its_attempt() {
    let world = World::new();
    let go = Arc::new(Notify::new());
    let attempts = Attempts::default();
    let worker = world.worker({
        let (log, go, attempts) = (world.log.clone(), go.clone(), attempts.clone());
        move |run: Run| {
            let (log, go, attempts) = (log.clone(), go.clone(), attempts.clone());
            async move {
                if attempts.next() == 1 {
                    let (run, log) = (run.clone(), log.clone());
                    tokio::spawn(async move {
                        go.notified().await;
                        log.say("the child goes on");
                        run.status("from the child".to_owned());
                        let asks = async { drop(ask(&run, "child").await) };
                        let sleeps = async {
                            let _ = run.sleep(key("nap"), Wake::After(Duration::ZERO)).await;
                        };
                        tokio::join!(asks, sleeps, async { drop(step(&run, &log, "child step").await) });
                        log.say("and returns");
                    });
                }
                ask(&run, "name").await
            }
        }
    });
    let id = world.begin(&worker).await;
    world.until_parked(id).await;
    go.notify_one();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = world.journal(id).await.len();
    world.answer(id, "name", "bea").await;
    assert_eq!(world.result(id).await, "bea");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.log.said(), ["the child goes on"]);
    let journal = world.journal(id).await;
    let foreign = journal.iter().filter_map(|entry| entry.key.as_ref()).find(|key| key.as_str() != "name");
    assert_eq!(foreign, None, "{before}");
    assert_ne!(world.task(id).await.status_message.as_deref(), Some("from the child"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_parks_what_waits_and_the_next_process_wakes_it_by_its_answer_alone() {
    let world = World::new();
    let attempts = Attempts::default();
    let tool = {
        let attempts = attempts.clone();
        move |run: Run| {
            attempts.next();
            async move { ask(&run, "name").await }
        }
    };
    let worker = world.worker(tool.clone());
    let id = world.begin(&worker).await;
    world.until_asked(id, "name").await;
    worker.drain().await;
    world.until_parked(id).await;
    world.worker(tool);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(attempts.count(), 1);
    world.answer(id, "name", "bea").await;
    assert_eq!(world.result(id).await, "bea");
    let kinds: Vec<_> = world.journal(id).await.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [EntryKind::Asked, EntryKind::Parked, EntryKind::Answered, EntryKind::Claimed]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_running_work_end_and_gives_the_rest_back_unblamed() {
    let mut world = World::new();
    world.config.drain = Duration::from_secs(10);
    let attempts = Attempts::default();
    let tool = {
        let (log, attempts) = (world.log.clone(), attempts.clone());
        move |run: Run| {
            let (log, attempts) = (log.clone(), attempts.clone());
            async move {
                let long = attempts.next() == 2;
                step(&run, &log, "work").await?;
                tokio::time::sleep(Duration::from_secs(if long { 3_600 } else { 5 })).await;
                Ok(json!("done"))
            }
        }
    };
    let worker = world.worker(tool.clone());
    let (short, long) = (world.begin(&worker).await, world.begin(&worker).await);
    world.until(long, |task| task.seq >= 1).await;
    worker.drain().await;
    assert_eq!(world.status(short).await, outlast_core::Status::Completed);
    let given_back = world.task(long).await;
    assert!(given_back.lease().is_none() && given_back.lost.is_empty());
    world.worker(tool);
    assert_eq!(world.result(long).await, "done");
    assert_eq!(world.log.said(), ["work", "work"]);
}

/// Callers may name any tool, and each claim names all that a worker serves.
#[tokio::test(start_paused = true)]
async fn a_tool_that_nobody_listed_is_served_where_its_work_waits_and_not_where_it_is_over() {
    let mut world = World::new();
    let asks = Arc::new(AtomicBool::new(false));
    let worker = world.worker({
        let asks = asks.clone();
        move |run| {
            let asks = asks.load(Ordering::Relaxed);
            async move { if asks { ask(&run, "name").await } else { Ok(json!("done")) } }
        }
    });
    for n in 0..20 {
        world.spec.tool = format!("made-up-{n}");
        let id = world.begin(&worker).await;
        assert_eq!(world.result(id).await, "done");
    }
    asks.store(true, Ordering::Relaxed);
    world.spec.tool = "waits".to_owned();
    let id = world.begin(&worker).await;
    world.until_parked(id).await;
    world.answer(id, "name", "bea").await;
    assert_eq!(world.result(id).await, "bea");
    let workers = world.store.workers().await.unwrap();
    let served: Vec<_> = workers[0].serves.iter().map(|served| &*served.tool).collect();
    assert_eq!((workers.len(), served), (1, vec!["tool", "waits"]));
}
