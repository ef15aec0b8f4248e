//! On several threads and the system's clock: what parks, wakes, is answered, loses a race and runs out of time, all at once,
//! comes to its end.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use outlast_core::{By, EntryKind, Event, InputKey, MemoryStore, Payload, Status, Store, Task, Wake};
use outlast_runtime::{Raced, Run, Runtime, SystemClock};
use serde_json::json;

use crate::adversary::Quirky;
use crate::support::{Log, Outcomes, World, ask, cancelled, key, owner, question, step};

fn millis(millis: u64) -> Wake {
    Wake::After(Duration::from_millis(millis))
}

async fn tool(run: Run, log: Log) -> Outcomes {
    let child = {
        let (run, log) = (run.clone(), log.clone());
        tokio::spawn(async move {
            let name = ask(&run, "child").await?;
            run.sleep(key("child nap"), millis(3)).await.map_err(|_| cancelled())?;
            step(&run, &log, "child step").await?;
            Ok::<_, outlast_core::TaskError>(name)
        })
    };
    let limited = async {
        run.ask_until(InputKey::new("limited").unwrap(), question("limited"), millis(4))
            .await
            .map_err(|_| cancelled())
    };
    let raced = run.race(key("race"), ask(&run, "raced"), run.sleep(key("patience"), millis(2)));
    let many = async {
        let asks: FuturesUnordered<_> = (0..5)
            .map(|i| {
                let (run, log) = (run.clone(), log.clone());
                async move {
                    let name = ask(&run, &format!("many {i}")).await?;
                    step(&run, &log, &format!("step {i}")).await?;
                    Ok::<_, outlast_core::TaskError>(name)
                }
            })
            .collect();
        asks.collect::<Vec<_>>().await.into_iter().collect::<Result<Vec<_>, _>>()
    };
    let (limited, raced, many) = tokio::join!(limited, raced, many);
    limited?;
    if let Raced::First(name) = raced {
        name?;
    }
    let names = many?;
    let child = child.await.unwrap()?;
    Ok(json!([names.len(), child]))
}

/// Answers whatever is asked, some time after it is, until every task is over.
async fn answer_all(store: &dyn Store, ids: &[outlast_core::TaskId]) {
    let mut dice = 1_u32;
    loop {
        let mut open = 0;
        for id in ids {
            let task: Task = store.get(*id).await.unwrap().unwrap();
            open += usize::from(!task.is_final());
            for key in task.live().into_iter().flat_map(|live| live.questions.keys()) {
                dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if dice >> 28 != 0 {
                    continue;
                }
                let answer = Payload::from_value(&json!({"action": "accept", "content": {"name": "ann"}}));
                let answer = Event::Answer { key: key.clone(), answer };
                store.apply(*id, By::Owner(owner()), vec![answer]).await.unwrap();
            }
        }
        if open == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_micros(300)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_at_once_comes_to_its_end() {
    for (park_after, slow) in [(0, 0), (1, 0), (30_000, 0), (0, 1), (1, 2)] {
        let slow = Duration::from_millis(slow);
        let memory = MemoryStore::new(SystemClock);
        let mut world = World::on(Arc::new(Quirky::over(memory).slow(slow, slow)));
        world.config.clock = Arc::new(SystemClock);
        world.config.park_after = Duration::from_millis(park_after);
        world.config.poll_every = Duration::from_millis(5);
        world.config.max_running_per_owner = 64;
        let log = world.log.clone();
        let worker: Runtime = world.worker(move |run| tool(run, log.clone()));
        let mut ids = Vec::new();
        for _ in 0..50 {
            ids.push(world.begin(&worker).await);
        }
        let over = tokio::time::timeout(Duration::from_secs(30), answer_all(&*world.store, &ids)).await;
        for id in &ids {
            let task = world.task(*id).await;
            if over.is_err() && !task.is_final() {
                let journal = world.journal(*id).await;
                for entry in journal.iter().rev().take(60).rev() {
                    println!("{} {:?} {:?}", entry.at, entry.kind, entry.key);
                }
                panic!("{park_after}: {task:#?}");
            }
            assert_eq!(task.status(), Status::Completed, "{task:#?}");
            let journal = world.journal(*id).await;
            let withdrawn = journal.iter().filter(|entry| entry.kind == EntryKind::Withdrawn);
            for key in withdrawn.filter_map(|entry| entry.key.as_ref()) {
                assert!(["raced", "limited"].contains(&key.as_str()), "{key} is wanted: {journal:#?}");
            }
        }
        worker.drain().await;
        assert_eq!(worker.loaded(), (0, 0));
        println!("{park_after}: {} steps", world.log.said().len());
    }
}
