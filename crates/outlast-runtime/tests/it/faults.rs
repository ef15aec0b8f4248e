//! A store that fails at any one of its calls: the work comes to the same end, and nothing of it is done twice.

use std::{sync::Arc, time::Duration};

use outlast_core::{EntryKind, InputKey, MemoryStore, Recovery, TaskError, Wake};
use outlast_runtime::{Raced, Run, Runtime};
use outlast_testkit::{Fault, FaultStore};
use serde_json::json;

use crate::support::{Log, Outcomes, TestClock, World, ask, cancelled, key, question, step};

const SECOND: Duration = Duration::from_secs(1);

async fn tool(run: Run, log: Log) -> Outcomes {
    step(&run, &log, "first").await?;
    let name = ask(&run, "name").await?;
    let limited = async {
        let key = InputKey::new("limited").unwrap();
        let answer = run.ask_until(key, question("limited"), Wake::After(60 * SECOND)).await;
        Ok::<_, TaskError>(answer.map_err(|_| cancelled())?.is_some())
    };
    let beside = async {
        run.sleep(key("nap"), Wake::After(45 * SECOND)).await.map_err(|_| cancelled())?;
        step(&run, &log, "beside").await
    };
    let (limited, beside) = tokio::join!(limited, beside);
    beside?;
    let slept = run.sleep(key("patience"), Wake::After(40 * SECOND));
    let raced = match run.race(key("race"), ask(&run, "raced"), slept).await {
        Raced::First(name) => name?,
        Raced::Second(_) => json!("nobody"),
    };
    step(&run, &log, "last").await?;
    Ok(json!([name, limited?, raced]))
}

/// One life of a task on a store with one fault; says whether it struck.
async fn life(mut world: World, store: Arc<FaultStore<MemoryStore>>, answers: bool) -> bool {
    world.config.poll_every = SECOND;
    let log = world.log.clone();
    let worker: Runtime = world.worker_on(store.clone(), move |run| tool(run, log.clone()));
    let id = world.begin(&worker).await;
    world.until_asked(id, "name").await;
    world.answer(id, "name", "ann").await;
    if answers {
        world.until_asked(id, "limited").await;
        world.answer(id, "limited", "bea").await;
        world.until_asked(id, "raced").await;
        world.answer(id, "raced", "cy").await;
    }
    let expected = if answers { json!(["ann", true, "cy"]) } else { json!(["ann", false, "nobody"]) };
    assert_eq!(world.result(id).await, expected);
    assert_eq!(world.log.said(), ["first", "beside", "last"]);
    let journal = world.journal(id).await;
    let asked = journal.iter().filter(|entry| entry.kind == EntryKind::Asked).count();
    assert_eq!(asked, 3, "{journal:#?}");
    let withdrawn = journal.iter().filter(|entry| entry.kind == EntryKind::Withdrawn).count();
    assert_eq!(withdrawn, if answers { 0 } else { 2 }, "{journal:#?}");
    world.settle().await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(worker.loaded(), (0, 0), "nothing of it stays in memory");
    worker.drain().await;
    store.struck()
}

async fn walk(fault: Fault) {
    for (park_after, recovery) in [(0, Recovery::Rerun), (30, Recovery::Rerun), (30, Recovery::Fail)] {
        for answers in [true, false] {
            for nth in 1.. {
                println!("{fault:?} at call {nth}, parked after {park_after} s, {recovery:?}, {answers}");
                let memory = Arc::new(MemoryStore::new(TestClock));
                let mut world = World::on(memory.clone());
                world.config.park_after = Duration::from_secs(park_after);
                world.spec.recovery = recovery;
                let store = Arc::new(FaultStore::failing(memory, nth, fault));
                if !life(world, store.clone(), answers).await {
                    break;
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_before_its_effect_changes_nothing() {
    walk(Fault::Before).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_answer_is_lost_changes_nothing() {
    walk(Fault::After).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_its_time_changes_nothing() {
    walk(Fault::Delayed(5)).await;
}
