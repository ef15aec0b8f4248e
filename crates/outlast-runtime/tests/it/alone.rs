//! Work that kills its process is found out, and its neighbours are not blamed.

use std::{sync::Arc, time::Duration};

use outlast_core::{Status, Task};
use outlast_runtime::{Run, Runtime};
use serde_json::json;
use tokio::sync::Notify;

use crate::support::{World, key};

/// A world in which a task that is marked kills its process a second after it began.
struct Poisoned {
    world: World,
    killed: Arc<Notify>,
}

impl Poisoned {
    fn new() -> Self {
        Self { world: World::new(), killed: Arc::default() }
    }

    /// The poison is known by the tool's own log: the first to begin is it.
    fn worker(&self, poison: outlast_core::TaskId) -> Runtime {
        let (log, killed) = (self.world.log.clone(), self.killed.clone());
        let id = outlast_runtime::step_id(poison, "which");
        self.world.worker(move |run: Run| {
            let (log, killed, id) = (log.clone(), killed.clone(), id.clone());
            async move {
                if run.step_id("which") == id {
                    log.say("poison");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    killed.notify_one();
                    std::future::pending::<()>().await;
                }
                log.say("neighbour");
                tokio::time::sleep(Duration::from_secs(20)).await;
                log.say("neighbour done");
                Ok(json!("well"))
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_keeps_killing_its_process_is_given_up_with_its_history_and_its_neighbours_end_well() {
    let poisoned = Poisoned::new();
    let world = &poisoned.world;
    let poison = world.new_task();
    let id = poison.id;
    let neighbours: Vec<_> = (0..3).map(|_| world.new_task()).collect();
    let ids: Vec<_> = neighbours.iter().map(|new| new.id).collect();
    let mut crashes = 0;
    let mut worker = poisoned.worker(id);
    worker.begin(poison).await.unwrap();
    for new in neighbours {
        worker.begin(new).await.unwrap();
    }
    let task = loop {
        tokio::select! {
            () = poisoned.killed.notified() => {
                crashes += 1;
                assert!(crashes < 20, "it is never given up");
                worker.abandon();
                worker = poisoned.worker(id);
            }
            task = world.until(id, Task::is_final) => break task,
        }
    };
    // Two in company, three alone.
    assert_eq!(crashes, 5);
    assert_eq!(task.status(), Status::Failed);
    let message = task.status_message.unwrap();
    assert!(message.contains("stopped 5 times in a row while it ran this work"), "{message}");
    assert_eq!(message.matches("2026-").count(), 5, "{message}");
    for id in ids {
        assert_eq!(world.result(id).await, "well");
        assert!(world.task(id).await.lost.len() <= 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_gets_on_or_waits_makes_room_for_the_others() {
    let world = World::new();
    let tool = {
        let log = world.log.clone();
        move |run: Run| {
            let log = log.clone();
            async move {
                log.say("began");
                tokio::time::sleep(Duration::from_secs(10)).await;
                crate::support::step(&run, &log, "got on").await?;
                run.sleep(key("long"), outlast_core::Wake::After(Duration::from_secs(86_400))).await.ok();
                Ok(json!("well"))
            }
        }
    };
    let mut worker = world.worker(tool.clone());
    let (a, b) = (world.begin(&worker).await, world.begin(&worker).await);
    for crash in 1..=2 {
        while world.log.times("began") < 2 * crash {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        worker.abandon();
        worker = world.worker(tool.clone());
    }
    // Both are suspects by now, and run one after the other.
    assert_eq!(world.result(a).await, "well");
    assert_eq!(world.result(b).await, "well");
    let said = world.log.said();
    assert_eq!(said.iter().filter(|said| *said == "got on").count(), 2, "{said:?}");
    assert!(world.task(a).await.lost.is_empty() && world.task(b).await.lost.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_hangs_keeps_nobody_from_beginning_for_ever() {
    let world = World::new();
    let tool = {
        let log = world.log.clone();
        move |run: Run| {
            let log = log.clone();
            async move {
                let name = run.step_id("which");
                log.say(&*name);
                if log.said()[0] == name {
                    std::future::pending::<()>().await;
                }
                Ok(json!("well"))
            }
        }
    };
    let mut worker = world.worker(tool.clone());
    let hangs = world.begin(&worker).await;
    world.until(hangs, |_| world.log.said().len() == 1).await;
    for attempt in 2..=3 {
        worker.abandon();
        worker = world.worker(tool.clone());
        while world.log.said().len() < attempt {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    assert!(world.task(hangs).await.lease().unwrap().alone, "it is a suspect by now");
    let other = world.begin(&worker).await;
    let began = world.config.clock.now();
    assert_eq!(world.result(other).await, "well");
    let waited = world.config.clock.now().since(began);
    assert!(waited >= Duration::from_secs(30) && waited <= 11 * world.config.lease, "{waited:?}");
    assert!(!world.task(hangs).await.lease().unwrap().alone, "a crash is no longer put down to it");
}
