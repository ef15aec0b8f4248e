//! What a hostile reviewer tried: stores that are slow or lose their hints, waits that end in the very moment that the work
//! is unloaded, keys at their limits, stops beside suspects.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use outlast_core::{
    Applied, By, Call, ClaimRequest, Claimed, Counts, Created, EntryKind, Event, Filter, Head, Held,
    HintSender, Hints, InputKey, Inspect, JournalPage, LeaseRequest, ListPage, MemoryStore, NewTask, Owner,
    Recovery, Renewal, Status, Store, StoreError, Swept, Task, TaskId, ToolVersion, Wake, WorkerId,
    WorkerSeen,
};
use outlast_runtime::{Inline, Run, Runtime};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::support::{Attempts, Outcomes, TestClock, World, ask, cancelled, key, question, step};

/// A sound store that is slow, or that loses every hint.
pub(crate) struct Quirky {
    inner: MemoryStore,
    reading: Duration,
    writing: Duration,
    mute: Option<HintSender>,
    claims: AtomicU32,
}

impl Quirky {
    pub(crate) fn over(inner: MemoryStore) -> Self {
        let (reading, writing) = (Duration::ZERO, Duration::ZERO);
        Self { inner, reading, writing, mute: None, claims: AtomicU32::new(0) }
    }

    fn new() -> Self {
        Self::over(MemoryStore::new(TestClock))
    }

    /// As long as this takes it to read a journal and to write.
    pub(crate) fn slow(self, reading: Duration, writing: Duration) -> Self {
        Self { reading, writing, ..self }
    }

    fn mute(self) -> Self {
        Self { mute: Some(HintSender::new(1)), ..self }
    }
}

async fn takes(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

#[async_trait]
impl Store for Quirky {
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError> {
        self.inner.create(new, lease).await
    }

    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        takes(self.writing / 2).await;
        let applied = self.inner.apply(id, by, events).await;
        takes(self.writing / 2).await;
        applied
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.inner.claim(request).await
    }

    async fn renew(
        &self,
        worker: WorkerId,
        held: Vec<Held>,
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.inner.renew(worker, held, lease).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        self.inner.get(id).await
    }

    async fn journal(&self, id: TaskId, after_seq: u64, max_bytes: u64) -> Result<JournalPage, StoreError> {
        takes(self.reading).await;
        self.inner.journal(id, after_seq, max_bytes).await
    }

    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        self.inner.heads(ids).await
    }

    async fn sweep(&self, max: u32) -> Result<Swept, StoreError> {
        self.inner.sweep(max).await
    }

    fn watch(&self) -> Hints {
        self.mute.as_ref().map_or_else(|| self.inner.watch(), HintSender::watch)
    }
}

#[async_trait]
impl Inspect for Quirky {
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError> {
        self.inner.list(filter, after, max).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.inner.counts().await
    }

    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        self.inner.workers().await
    }

    async fn running(&self, owner: Owner) -> Result<u32, StoreError> {
        self.inner.running(owner).await
    }

    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError> {
        self.inner.call(id).await
    }

    fn is_exclusive(&self) -> bool {
        self.inner.is_exclusive()
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Asks with a time limit; the name that was answered, or "late".
async fn ask_until(run: &Run, key: &str, within: Duration) -> Outcomes {
    match run.ask_until(InputKey::new(key).unwrap(), question(key), Wake::After(within)).await {
        Ok(Some(answer)) => Ok(answer.to_value()["content"]["name"].clone()),
        Ok(None) => Ok(json!("late")),
        Err(_) => Err(cancelled()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_was_answered_in_time_does_not_wake_the_work_when_its_time_comes() {
    for park_after in [0, 1, 30_000] {
        let mut world = World::new();
        world.config.park_after = Duration::from_millis(park_after);
        let attempts = Attempts::default();
        let worker = world.worker({
            let attempts = attempts.clone();
            move |run: Run| {
                attempts.next();
                async move {
                    let first = ask_until(&run, "first", HOUR).await?;
                    Ok(json!([first, ask(&run, "second").await?]))
                }
            }
        });
        let id = world.begin(&worker).await;
        world.until_asked(id, "first").await;
        world.answer(id, "first", "ann").await;
        world.until_asked(id, "second").await;
        world.until_parked(id).await;
        let before = attempts.count();
        tokio::time::sleep(2 * HOUR).await;
        assert_eq!(attempts.count() - before, 0, "nothing happened");
        world.answer(id, "second", "bea").await;
        assert_eq!(world.result(id).await, json!(["ann", "bea"]));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_question_that_was_asked_again_counts_on_every_attempt() {
    let memory = MemoryStore::new(TestClock);
    let mut world = World::on(Arc::new(memory.clone()));
    world.config.park_after = 9 * HOUR;
    let worker = world.worker(|run: Run| async move {
        // Dropped, and so taken back.
        let _ = tokio::time::timeout(Duration::from_secs(1), ask_until(&run, "name", HOUR)).await;
        std::future::pending().await
    });
    let id = world.begin(&worker).await;
    let withdrawn = |task: &Task| task.seq >= 3 && task.status() == outlast_core::Status::Working;
    let created = world.until(id, withdrawn).await.created_at;
    worker.abandon();
    let tool = |run: Run| async move {
        let name = ask_until(&run, "name", HOUR).await?;
        Ok(json!([name, ask(&run, "more").await?]))
    };
    // It hears of the answer when the time of the question is over.
    let deaf = Quirky::over(memory).mute();
    let worker = world.worker_on(Arc::new(deaf), tool);
    world.until_asked(id, "outlast:2:name").await;
    tokio::time::sleep((created + HOUR).since(world.config.clock.now()) - Duration::from_millis(1)).await;
    world.answer(id, "outlast:2:name", "ann").await;
    world.until_asked(id, "more").await;
    worker.abandon();
    let _worker = world.worker(tool);
    world.answer(id, "more", "bea").await;
    assert_eq!(world.result(id).await, json!(["ann", "bea"]));
}

#[tokio::test(start_paused = true)]
async fn a_long_key_can_be_asked_again_by_a_later_attempt() {
    for length in [200, 246, 247, 256] {
        let mut world = World::new();
        world.config.park_after = 9 * HOUR;
        let long = "k".repeat(length);
        let attempts = Attempts::default();
        let tool = {
            let (long, attempts) = (long.clone(), attempts.clone());
            move |run: Run| {
                let (long, first) = (long.clone(), attempts.next() == 1);
                async move {
                    if first {
                        let _ = tokio::time::timeout(Duration::from_secs(1), ask(&run, &long)).await;
                        return std::future::pending().await;
                    }
                    ask(&run, &long).await
                }
            }
        };
        let worker = world.worker(tool.clone());
        let id = world.begin(&worker).await;
        let first = world.until_asked(id, &long).await;
        world.until(id, |task| task.status() == outlast_core::Status::Working).await;
        worker.abandon();
        world.worker(tool);
        let asked = world
            .until(id, |task| {
                task.live().is_some_and(|live| !live.questions.is_empty()) && task.token > first.token
            })
            .await;
        let current = asked.live().unwrap().questions.keys().next().unwrap().clone();
        world.answer(id, current.as_str(), "bea").await;
        assert_eq!(world.result(id).await, "bea");
    }
}

/// A task that was lost twice, in line behind a neighbour that runs for as long as `busy`, in the process that is given.
async fn in_line(world: &World, id: TaskId, busy: Duration) -> Runtime {
    for crash in 0..2 {
        let worker = world.worker(move |_| tool_for(HOUR));
        // A claim is no news to anybody, and gives no hint.
        while !{
            let task = world.task(id).await;
            task.lease().is_some() && task.lost.len() == crash
        } {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        worker.abandon();
    }
    let mut neighbour = world.clone();
    neighbour.spec.version = "2".to_owned();
    neighbour.spec.deadline = None;
    let log = world.log.clone();
    let worker = neighbour.worker(move |_| {
        log.say("began");
        tool_for(busy)
    });
    let beside = neighbour.begin(&worker).await;
    neighbour.until(beside, |task| task.lease().is_some()).await;
    worker.serve(ToolVersion::new(&*world.spec.tool, &*world.spec.version));
    while worker.loaded() != (2, 1) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(world.task(id).await.lost.len(), 2);
    worker
}

async fn tool_for(time: Duration) -> Outcomes {
    tokio::time::sleep(time).await;
    Ok(json!("well"))
}

async fn create(world: &World) -> TaskId {
    let new = world.new_task();
    let id = new.id;
    world.store.create(new, None).await.unwrap();
    id
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_suspect_in_line_that_has_an_answer() {
    let world = World::new();
    let worker = world.worker(|run: Run| async move { ask(&run, "name").await });
    let id = world.begin(&worker).await;
    world.until_asked(id, "name").await;
    worker.abandon();
    world.answer(id, "name", "ann").await;
    let lease = world.task(id).await.lease().unwrap().until;
    tokio::time::sleep(lease.since(world.config.clock.now())).await;
    let worker = in_line(&world, id, Duration::from_secs(40)).await;
    // A loop that does not wait would keep time from going on.
    let stop = tokio::spawn(async move { worker.drain().await });
    for _ in 0..100_000 {
        tokio::task::yield_now().await;
    }
    assert!(world.config.clock.now() > lease);
    stop.await.unwrap();
    let task = world.task(id).await;
    assert!(task.lease().is_none(), "{task:?}");
    assert_eq!(task.lost.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_suspect_in_line_is_ended_by_its_deadline() {
    let mut world = World::new();
    world.spec.deadline = Some(Duration::from_secs(600));
    let id = create(&world).await;
    let _worker = in_line(&world, id, HOUR).await;
    let message = world.failure(id).await;
    assert!(message.contains("longer than its tool allows"), "{message}");
    let task = world.task(id).await;
    let took = task.updated_at.since(task.created_at);
    assert!(took < Duration::from_secs(605), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_begins_no_suspect() {
    let world = World::new();
    let id = create(&world).await;
    let worker = in_line(&world, id, Duration::from_secs(40)).await;
    worker.drain().await;
    assert_eq!(world.log.said(), ["began"]);
    let task = world.task(id).await;
    assert!(task.lease().is_none() && task.lost.len() == 2, "{task:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_something_else_of_the_work_read_reaches_its_question_without_a_hint() {
    let mut world = World::on(Arc::new(Quirky::new().mute()));
    world.spec.recovery = Recovery::Fail;
    let worker = world.worker(|run: Run| async move {
        let other = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            // Setting a timer reads the journal.
            run.sleep(key("nap"), Wake::After(Duration::from_secs(1))).await
        };
        let (name, slept) = tokio::join!(ask(&run, "name"), other);
        slept.map_err(|_| cancelled())?;
        name
    });
    let id = world.begin(&worker).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    world.answer(id, "name", "ann").await;
    tokio::time::sleep(HOUR).await;
    assert_eq!(world.status(id).await, outlast_core::Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn work_does_not_park_while_it_reads_its_journal() {
    for park_after in [0, 1, 30] {
        let mut world = World::on(Arc::new(Quirky::new().slow(Duration::from_millis(100), Duration::ZERO)));
        world.config.park_after = Duration::from_millis(park_after);
        let worker = world.worker(|run: Run| async move {
            let slept = run.sleep(key("long"), Wake::After(240 * HOUR));
            let asked = async {
                let first = ask(&run, "first").await?;
                Ok(json!([first, ask(&run, "second").await?]))
            };
            tokio::select! {
                _ = slept => Ok(json!("late")),
                asked = asked => asked,
            }
        });
        let id = world.begin(&worker).await;
        let asking = async |name: &str| {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let task = world.task(id).await;
            let keys: Vec<_> = task.live().unwrap().questions.keys().map(ToString::to_string).collect();
            assert_eq!(keys, [name], "{park_after}");
        };
        asking("first").await;
        world.answer(id, "first", "ann").await;
        asking("second").await;
        world.answer(id, "second", "bea").await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(world.result(id).await, json!(["ann", "bea"]));
        let journal = world.journal(id).await;
        let withdrawn = journal.iter().filter(|entry| entry.kind == EntryKind::Withdrawn).count();
        assert_eq!(withdrawn, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_does_steps_beside_a_question_is_seen_to() {
    let world = World::new();
    let attempts = Attempts::default();
    let worker = world.worker({
        let (log, attempts) = (world.log.clone(), attempts.clone());
        move |run: Run| {
            let (log, attempts) = (log.clone(), attempts.clone());
            async move {
                attempts.next();
                let child = {
                    let (run, log) = (run.clone(), log.clone());
                    tokio::spawn(async move {
                        for i in 0..20 {
                            tokio::time::sleep(Duration::from_secs(10)).await;
                            let _ = step(&run, &log, &format!("step {i}")).await;
                        }
                    })
                };
                let name = ask(&run, "name").await;
                let _ = child.await;
                name
            }
        }
    });
    let id = world.begin(&worker).await;
    world.until_asked(id, "name").await;
    tokio::time::sleep(Duration::from_secs(205)).await;
    assert_eq!(world.log.said().len(), 20);
    assert_eq!(attempts.count(), 1);
    world.until_parked(id).await;
    world.answer(id, "name", "bea").await;
    assert_eq!(world.result(id).await, "bea");
}

#[tokio::test(start_paused = true)]
async fn a_child_whose_timer_is_due_as_its_task_parks_goes_on() {
    // The child's wait ends in the moment that the task parks.
    for offset in 0..4 {
        let world = World::new();
        let worker = world.worker({
            let log = world.log.clone();
            move |run: Run| {
                let log = log.clone();
                async move {
                    let child = {
                        let (run, log) = (run.clone(), log.clone());
                        tokio::spawn(async move {
                            let due = Duration::from_millis(29_999 + offset);
                            let _ = run.sleep(key("nap"), Wake::After(due)).await;
                            let _ = step(&run, &log, "after the nap").await;
                        })
                    };
                    let name = ask(&run, "name").await;
                    let _ = child.await;
                    name
                }
            }
        });
        let id = world.begin(&worker).await;
        world.until_asked(id, "name").await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(world.log.said(), ["after the nap"], "{offset}");
    }
}

#[tokio::test(start_paused = true)]
async fn steps_do_not_have_the_worker_look_for_work() {
    let store = Arc::new(Quirky::new());
    let world = World::on(store.clone());
    let worker = world.worker({
        let log = world.log.clone();
        move |run: Run| {
            let log = log.clone();
            async move {
                for i in 0..1_000 {
                    step(&run, &log, &format!("step {i}")).await?;
                }
                Ok(json!("well"))
            }
        }
    });
    let id = world.begin(&worker).await;
    world.result(id).await;
    let claims = store.claims.load(Ordering::SeqCst);
    assert!(claims < 50, "{claims}");
}

#[tokio::test(start_paused = true)]
async fn a_sleep_for_ever_can_be_cancelled() {
    let world = World::new();
    let worker = world.worker(|run: Run| async move {
        run.sleep(key("for ever"), Wake::After(Duration::MAX)).await.map_err(|_| cancelled())?;
        Ok(json!("slept"))
    });
    let id = world.begin(&worker).await;
    let parked = world.until_parked(id).await;
    assert!(parked.ready_at().is_some());
    tokio::time::sleep(24 * HOUR).await;
    world.cancel(id).await;
    assert_eq!(world.until(id, Task::is_final).await.status(), outlast_core::Status::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn what_a_call_said_before_it_was_a_task_is_the_message_of_the_task_that_it_became() {
    let world = World::new();
    let worker = world.worker(|run: Run| async move {
        run.status("halfway".to_owned());
        Ok(json!("well"))
    });
    let new = world.new_task();
    let run = Run::inline(new.id, new.spec.asks);
    let begun = worker.begin_inline(new.clone(), HOUR, true, run, CancellationToken::new()).await;
    assert!(matches!(begun, Inline::Task(_)));
    assert_eq!(world.result(new.id).await, "well");
    assert_eq!(world.task(new.id).await.status_message.as_deref(), Some("halfway"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_over_before_it_is_a_task_keeps_its_end_in_a_process_that_stops() {
    for recovery in [Recovery::Rerun, Recovery::Fail] {
        let mut world = World::new();
        world.spec.recovery = recovery;
        let go = Arc::new(Notify::new());
        let worker = world.worker({
            let (log, go) = (world.log.clone(), go.clone());
            move |run: Run| {
                let (log, go) = (log.clone(), go.clone());
                async move {
                    step(&run, &log, "effect").await?;
                    go.notified().await;
                    Ok(json!("well"))
                }
            }
        });
        let new = world.new_task();
        let run = Run::inline(new.id, new.spec.asks);
        let begun = worker.begin_inline(new.clone(), HOUR, true, run, CancellationToken::new());
        let stop = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let drain = worker.drain();
            go.notify_one();
            drain.await;
        };
        let (begun, ()) = tokio::join!(begun, stop);
        assert!(matches!(begun, Inline::Task(_)));
        assert_eq!(world.result(new.id).await, "well");
    }
}

#[tokio::test(start_paused = true)]
async fn the_steps_of_a_call_that_becomes_a_task_in_a_process_that_stops_are_kept() {
    let world = World::new();
    let tool = {
        let log = world.log.clone();
        move |run: Run| {
            let log = log.clone();
            async move {
                step(&run, &log, "effect").await?;
                tokio::time::sleep(HOUR).await;
                Ok(json!("well"))
            }
        }
    };
    let worker = world.worker(tool.clone());
    let new = world.new_task();
    let run = Run::inline(new.id, new.spec.asks);
    let patience = Duration::from_secs(2);
    let begun = worker.begin_inline(new.clone(), patience, false, run, CancellationToken::new());
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        worker.drain().await;
    };
    let (begun, ()) = tokio::join!(begun, stop);
    assert!(matches!(begun, Inline::Task(_)));
    world.worker(tool);
    assert_eq!(world.result(new.id).await, "well");
    assert_eq!(world.log.said(), ["effect"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_the_work_hears_of_by_its_question_alone_ends_it_cancelled() {
    let memory = MemoryStore::new(TestClock);
    let world = World::on(Arc::new(memory.clone()));
    // Nobody else tells this process of the cancel, which comes while the question is on its way to the store.
    let quirky = Quirky::over(memory).mute().slow(Duration::ZERO, Duration::from_secs(4));
    let worker = world.worker_on(Arc::new(quirky), |run: Run| async move { ask(&run, "first").await });
    let id = world.begin(&worker).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.cancel(id).await;
    assert_eq!(world.until(id, Task::is_final).await.status(), Status::Cancelled);
    assert!(world.journal(id).await.iter().all(|entry| entry.kind != EntryKind::Asked));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_on_its_way_to_the_store_when_its_task_ends_does_not_return() {
    let memory = MemoryStore::new(TestClock);
    let world = World::on(Arc::new(memory.clone()));
    let quirky = Quirky::over(memory).mute().slow(Duration::ZERO, Duration::from_secs(4));
    let log = world.log.clone();
    let worker = world.worker_on(Arc::new(quirky), move |run: Run| {
        let log = log.clone();
        async move {
            step(&run, &log, "first").await?;
            step(&run, &log, "second, though the first is in no journal").await
        }
    });
    let id = world.begin(&worker).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // As the end of the lease would of a tool that must not run twice.
    world.store.apply(id, By::Store, vec![Event::PassDeadline]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.log.said(), ["first"]);
    assert_eq!(worker.loaded(), (0, 0));
}
