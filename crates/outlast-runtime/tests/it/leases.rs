//! A worker that falls silent loses its work, writes nothing more of it, and stops it.

use std::{sync::Arc, time::Duration};

use outlast_core::MemoryStore;
use outlast_runtime::Run;
use outlast_testkit::FaultStore;
use serde_json::json;

use crate::support::{Attempts, Guard, TestClock, World, ask, step};

#[tokio::test(start_paused = true)]
async fn a_worker_that_cannot_reach_its_store_is_taken_over_within_its_lease_and_two_seconds() {
    let memory = Arc::new(MemoryStore::new(TestClock));
    let world = World::on(memory.clone());
    let attempts = Attempts::default();
    let tool = {
        let (log, attempts) = (world.log.clone(), attempts.clone());
        move |run: Run| {
            let (log, attempts) = (log.clone(), attempts.clone());
            async move {
                step(&run, &log, "first").await?;
                let _guard = Guard(log.clone());
                if attempts.next() == 1 {
                    tokio::time::sleep(Duration::from_secs(3_600)).await;
                    step(&run, &log, "written by the one that was taken over").await?;
                }
                Ok(json!("done"))
            }
        }
    };
    let cut_off = Arc::new(FaultStore::sound(memory.clone()));
    let stalled = world.worker_on(cut_off.clone(), tool.clone());
    let id = world.begin(&stalled).await;
    world.until(id, |task| task.seq >= 1).await;
    let last_heard = world.config.clock.now();
    cut_off.set_down(true);
    world.worker(tool);
    let done = world.until(id, outlast_core::Task::is_final).await;
    assert!(done.updated_at.since(last_heard) <= world.config.lease + Duration::from_secs(2));
    // It can write again, and knows by its own clock that its lease is over.
    cut_off.set_down(false);
    tokio::time::sleep(Duration::from_secs(2 * 3_600)).await;
    assert_eq!(world.log.said().iter().filter(|said| said.starts_with("written")).count(), 0);
    assert_eq!(world.log.times("dropped"), 2, "what the tool held is dropped when its lease is lost");
    assert_eq!(world.log.times("first"), 1);
    assert_eq!(stalled.loaded(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_a_stalled_worker_sends_after_the_takeover_is_refused() {
    let memory = Arc::new(MemoryStore::new(TestClock));
    let world = World::on(memory.clone());
    let tool = {
        let log = world.log.clone();
        move |run: Run| {
            let log = log.clone();
            async move {
                step(&run, &log, "effect").await?;
                ask(&run, "name").await
            }
        }
    };
    // Its first write, the step's, hangs on its way: the worker is stopped there, and its lease runs out.
    let held = Arc::new(FaultStore::failing(memory.clone(), 3, outlast_testkit::Fault::Held));
    let stalled = world.worker_on(held.clone(), tool.clone());
    let id = world.begin(&stalled).await;
    world.until(id, |_| held.struck()).await;
    let second = world.worker(tool);
    world.until_asked(id, "name").await;
    world.answer(id, "name", "bea").await;
    assert_eq!(world.result(id).await, "bea");
    let before = (world.task(id).await, world.journal(id).await);
    held.release();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(before, (world.task(id).await, world.journal(id).await));
    assert_eq!(stalled.loaded(), (0, 0));
    drop(second);
}
