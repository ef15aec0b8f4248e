//! The words that store tests are written in: tasks, owners and workers by the dozen, and [`Tell`], which says what
//! happens and expects it to go well.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use outlast_core::{
    Applied, Asks, By, Call, ClaimRequest, Claimed, Created, Entry, Event, Held, IdempotencyKey, InputKey,
    LeaseRequest, NewTask, Outcome, Owner, Payload, Question, Recovery, Renewal, Spec, StepKey, Store, Task,
    TaskError, TaskId, Token, ToolVersion, Wake, WorkerId,
};
use serde_json::{Value, json};

/// The lease that workers of the suite take.
pub const LEASE: Duration = Duration::from_secs(30);
/// A little time, shorter than every other span of the suite.
pub const MOMENT: Duration = Duration::from_millis(10);
/// A minute.
pub const MINUTE: Duration = Duration::from_secs(60);
/// An hour.
pub const HOUR: Duration = Duration::from_secs(3_600);
/// A day.
pub const DAY: Duration = Duration::from_secs(86_400);
/// The tool that tasks are of unless a test says otherwise.
pub const TOOL: &str = "tool";

/// An id that no other call of this process returned.
#[must_use]
pub fn fresh_id() -> TaskId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Spread over the whole space, as random ids are, so that no store can lean on their order.
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&spread.to_be_bytes());
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    TaskId::from_bytes(bytes)
}

/// An owner of this name.
#[must_use]
pub fn owner(name: &str) -> Owner {
    Owner::new(name)
}

/// A worker of this name.
#[must_use]
pub fn worker(name: &str) -> WorkerId {
    WorkerId::new(name)
}

/// A key of a step or a timer.
#[must_use]
pub fn step(key: &str) -> StepKey {
    StepKey::new(key).expect("a key of a test is well formed")
}

/// A key of a question.
#[must_use]
pub fn input(key: &str) -> InputKey {
    InputKey::new(key).expect("a key of a test is well formed")
}

/// The payload of a value.
#[must_use]
pub fn payload(value: &Value) -> Payload {
    Payload::from_value(value)
}

/// The terms of a [`TOOL`] that runs again after a crash, to a client that can be asked anything.
#[must_use]
pub fn rerun() -> Spec {
    Spec { recovery: Recovery::Rerun, asks: Asks::all(), ..Spec::new(TOOL) }
}

/// The terms of a [`TOOL`] that must not run twice.
#[must_use]
pub fn run_once() -> Spec {
    Spec { recovery: Recovery::Fail, ..rerun() }
}

/// A task of alice's on the terms of [`rerun`].
#[must_use]
pub fn new_task() -> NewTask {
    new_with(rerun())
}

/// A task of alice's on these terms.
#[must_use]
pub fn new_with(spec: Spec) -> NewTask {
    NewTask::new(fresh_id(), owner("alice"), spec, Call::new(payload(&json!({"name": TOOL}))))
}

/// A task of this owner's on the terms of [`rerun`].
#[must_use]
pub fn new_of(name: &str) -> NewTask {
    NewTask { owner: owner(name), ..new_task() }
}

/// A task of alice's whose caller sent an idempotency key; equal `request`s are the same request.
#[must_use]
pub fn new_keyed(key: &str, request: u8) -> NewTask {
    let idempotency = Some(IdempotencyKey { key: key.into(), request: [request; 32] });
    NewTask { idempotency, ..new_task() }
}

/// A lease for this worker.
#[must_use]
pub fn lease_for(name: &str) -> LeaseRequest {
    LeaseRequest { worker: worker(name), lease: LEASE }
}

/// Asks for a claim by this worker, which serves [`TOOL`] and has room for `max`.
#[must_use]
pub fn claim_by(name: &str, max: u32) -> ClaimRequest {
    ClaimRequest {
        worker: worker(name),
        serves: Arc::new([ToolVersion::new(TOOL, "")]),
        per_owner: 10_000,
        lease: LEASE,
        max,
    }
}

/// A question in a form, whose text is this.
#[must_use]
pub fn question(text: &str) -> Question {
    let request = json!({
        "method": "elicitation/create",
        "params": {"mode": "form", "message": text, "requestedSchema": {"type": "object", "properties": {}}},
    });
    Question::new(&request).expect("a form is a kind of question")
}

/// The work asks [`question`].
#[must_use]
pub fn ask(key: &str, text: &str) -> Event {
    Event::Ask { key: input(key), question: question(text) }
}

/// An answer that accepts a form with this in it.
#[must_use]
pub fn accepted(content: &str) -> Payload {
    payload(&json!({"action": "accept", "content": {"text": content}}))
}

/// The caller answers.
#[must_use]
pub fn answer(key: &str, content: &str) -> Event {
    Event::Answer { key: input(key), answer: accepted(content) }
}

/// A step finished with a value.
#[must_use]
pub fn finish(key: &str, value: &Value) -> Event {
    finish_with(key, Outcome::Value(payload(value)))
}

/// A step finished so, at its first try.
#[must_use]
pub fn finish_with(key: &str, outcome: Outcome) -> Event {
    Event::FinishStep { key: step(key), outcome, took: MOMENT, tries: 1 }
}

/// The work waits for this long from now.
#[must_use]
pub fn timer(key: &str, after: Duration) -> Event {
    Event::SetTimer { key: step(key), wake: Wake::After(after) }
}

/// The work waits, and had seen this much of its journal.
#[must_use]
pub fn park(seen_seq: u64) -> Event {
    Event::Park { seen_seq, wake: None }
}

/// The work ended with this.
#[must_use]
pub fn complete(value: &Value) -> Event {
    Event::Complete(payload(value))
}

/// The work ended with an error that says this.
#[must_use]
pub fn fail(message: &str) -> Event {
    Event::Fail(TaskError::new(-32_000, message))
}

/// What happens to tasks, in a store that is expected to answer.
///
/// Every method panics when the store fails, and says so.
#[async_trait]
pub trait Tell {
    /// Creates a task, which is new.
    async fn create_one(&self, new: NewTask) -> Task;

    /// Creates a task, which is new, in the hands of a worker.
    async fn create_leased(&self, new: NewTask, worker: &str) -> (Task, Token);

    /// What a creation answers.
    async fn try_create(&self, new: NewTask) -> Created;

    /// The task, which exists.
    async fn task(&self, id: TaskId) -> Task;

    /// What events on somebody's word do.
    async fn tell(&self, id: TaskId, by: By, events: Vec<Event>) -> Applied;

    /// What events from the worker with this token do.
    async fn work(&self, id: TaskId, token: Token, events: Vec<Event>) -> Applied;

    /// The task after events from the worker with this token, which change it.
    async fn worked(&self, id: TaskId, token: Token, events: Vec<Event>) -> Task;

    /// What alice's own events do.
    async fn alice(&self, id: TaskId, events: Vec<Event>) -> Applied;

    /// What a worker of this name, with room for `max`, is handed.
    async fn claim_up_to(&self, worker: &str, max: u32) -> Vec<Claimed>;

    /// The one task that a worker of this name is handed when it has room for many.
    async fn claim_only(&self, worker: &str) -> Claimed;

    /// What a worker of this name hears about one lease.
    async fn renew_one(&self, worker: &str, id: TaskId, token: Token) -> Renewal;

    /// The whole journal, read in one page.
    async fn entries(&self, id: TaskId) -> Vec<Entry>;

    /// Sweeps until nothing is due, and says how many tasks that took.
    async fn sweep_all(&self) -> u32;
}

const WORKS: &str = "the store answers";

#[async_trait]
impl<S: Store + ?Sized> Tell for S {
    async fn create_one(&self, new: NewTask) -> Task {
        match self.try_create(new).await {
            Created::Created { task, token: None } => task,
            other => panic!("a new task is created, not {other:?}"),
        }
    }

    async fn create_leased(&self, new: NewTask, worker: &str) -> (Task, Token) {
        match self.create(new, Some(lease_for(worker))).await.expect(WORKS) {
            Created::Created { task, token: Some(token) } => (task, token),
            other => panic!("a new task is created and leased, not {other:?}"),
        }
    }

    async fn try_create(&self, new: NewTask) -> Created {
        self.create(new, None).await.expect(WORKS)
    }

    async fn task(&self, id: TaskId) -> Task {
        self.get(id).await.expect(WORKS).expect("the task exists")
    }

    async fn tell(&self, id: TaskId, by: By, events: Vec<Event>) -> Applied {
        self.apply(id, by, events).await.expect(WORKS)
    }

    async fn work(&self, id: TaskId, token: Token, events: Vec<Event>) -> Applied {
        self.tell(id, By::Lease(token), events).await
    }

    async fn worked(&self, id: TaskId, token: Token, events: Vec<Event>) -> Task {
        match self.work(id, token, events).await {
            Applied::Applied(task) => task,
            other => panic!("the worker's events change the task, but: {other:?}"),
        }
    }

    async fn alice(&self, id: TaskId, events: Vec<Event>) -> Applied {
        self.tell(id, By::Owner(owner("alice")), events).await
    }

    async fn claim_up_to(&self, worker: &str, max: u32) -> Vec<Claimed> {
        self.claim(claim_by(worker, max)).await.expect(WORKS)
    }

    async fn claim_only(&self, worker: &str) -> Claimed {
        let mut claimed = self.claim_up_to(worker, 100).await;
        assert_eq!(claimed.len(), 1, "exactly one task is ready");
        claimed.remove(0)
    }

    async fn renew_one(&self, name: &str, id: TaskId, token: Token) -> Renewal {
        let renewals = self.renew(worker(name), vec![Held { id, token }], LEASE).await.expect(WORKS);
        assert_eq!(renewals.len(), 1, "one lease, one answer");
        renewals[0]
    }

    async fn entries(&self, id: TaskId) -> Vec<Entry> {
        let page = self.journal(id, 0, u64::MAX).await.expect(WORKS);
        assert!(!page.more, "without a limit of bytes the journal is one page");
        page.entries
    }

    async fn sweep_all(&self) -> u32 {
        let mut done = 0;
        // A sweep that has more to do says so; the bound turns one that never ends into a failure.
        for _ in 0..10_000 {
            let swept = self.sweep(50).await.expect(WORKS);
            done += swept.done;
            if swept.next_due != Some(Duration::ZERO) {
                return done;
            }
        }
        panic!("the sweep finds something due for ever");
    }
}

/// The task that an [`Applied`] holds, changed or not.
///
/// # Panics
/// When the events were refused.
pub fn after(applied: Applied) -> Task {
    match applied {
        Applied::Applied(task) | Applied::Absorbed(task) => task,
        other => panic!("the events are taken, but: {other:?}"),
    }
}

/// Runs these calls on several threads, all from the same moment on, and returns what they return, in order.
///
/// # Panics
/// When one of them panics.
pub async fn at_once<T: Send + 'static>(
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let calls: Vec<_> = calls.into_iter().collect();
    let line = Arc::new(tokio::sync::Barrier::new(calls.len()));
    let running: Vec<_> = calls
        .into_iter()
        .map(|call| {
            let line = line.clone();
            tokio::spawn(async move {
                line.wait().await;
                call.await
            })
        })
        .collect();
    let mut results = Vec::with_capacity(running.len());
    for call in running {
        results.push(call.await.expect("no call panics"));
    }
    results
}

/// What a future returns, unless it waits for something that does not come.
///
/// # Panics
/// When nothing comes for half a minute.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(MINUTE / 2, future).await.expect("it comes soon")
}
