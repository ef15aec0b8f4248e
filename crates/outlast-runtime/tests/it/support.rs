//! Workers, tools that are closures, and a clock that stands still while anything runs.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use outlast_core::{
    Asks, By, Call, Clock, Created, Entry, Event, InputKey, MemoryStore, NewTask, Outcome, Owner, Payload,
    Question, Recovery, Spec, Status, StepKey, Store, Task, TaskError, TaskId, TaskState, Timestamp,
    ToolVersion,
};
use outlast_runtime::{Config, Ended, Round, Run, Runner, Runtime, StepFailure, StepOptions, random_id};
use serde_json::{Value, json};

/// Tokio's time, which a test pauses: it goes on by itself when nothing else is left to do.
#[derive(Clone, Copy)]
pub(crate) struct TestClock;

impl TestClock {
    const BEGAN: Timestamp = Timestamp::from_millis(1_785_283_200_000);
}

#[allow(clippy::disallowed_methods, reason = "time is paused")]
impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Self::BEGAN + self.monotonic()
    }

    fn monotonic(&self) -> Duration {
        thread_local!(static BEGAN: tokio::time::Instant = tokio::time::Instant::now());
        BEGAN.with(|began| tokio::time::Instant::now().duration_since(*began))
    }
}

/// What a tool makes of a call.
pub(crate) type Outcomes = Result<Value, TaskError>;

type Tool = dyn Fn(Run) -> BoxFuture<'static, Outcomes> + Send + Sync;

struct Tools(Arc<Tool>);

#[async_trait]
impl Runner for Tools {
    async fn run(&self, _call: Call, _round: Option<Round>, run: Run) -> Ended {
        match run.attend((self.0)(run.clone())).await {
            Some(Ok(result)) => Ended::Result(Payload::from_value(&result)),
            Some(Err(error)) if error.code == CANCELLED && run.cancel().is_cancelled() => Ended::Cancelled,
            Some(Err(error)) => Ended::Error(error),
            None => Ended::Dropped,
        }
    }
}

const CANCELLED: i64 = -1;

/// The error by which a tool stops because it was asked to.
pub(crate) fn cancelled() -> TaskError {
    TaskError::new(CANCELLED, "the task was cancelled")
}

/// A store, and the processes that come and go on it.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) log: Log,
    pub(crate) spec: Spec,
    pub(crate) config: Config,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::on(Arc::new(MemoryStore::new(TestClock)))
    }

    pub(crate) fn on(store: Arc<dyn Store>) -> Self {
        let mut spec = Spec::new("tool");
        spec.recovery = Recovery::Rerun;
        spec.asks = Asks::all();
        let mut config = Config::default();
        config.clock = Arc::new(TestClock);
        Self { store, log: Log::default(), spec, config }
    }

    /// Another process that serves `tool`.
    pub(crate) fn worker<F>(&self, tool: impl Fn(Run) -> F + Send + Sync + 'static) -> Runtime
    where
        F: Future<Output = Outcomes> + Send + 'static,
    {
        self.worker_on(self.store.clone(), tool)
    }

    /// The same, which sees the store through another.
    pub(crate) fn worker_on<F>(
        &self,
        store: Arc<dyn Store>,
        tool: impl Fn(Run) -> F + Send + Sync + 'static,
    ) -> Runtime
    where
        F: Future<Output = Outcomes> + Send + 'static,
    {
        let tools = Tools(Arc::new(move |run| Box::pin(tool(run)) as BoxFuture<'static, Outcomes>));
        let runtime = Runtime::start(store, self.config.clone(), Arc::new(tools)).unwrap();
        runtime.serve(ToolVersion::new(&*self.spec.tool, &*self.spec.version));
        runtime
    }

    pub(crate) fn new_task(&self) -> NewTask {
        NewTask::new(random_id(), owner(), self.spec.clone(), Call::new(Payload::null()))
    }

    /// Creates a task, begun by `runtime` where it has room.
    pub(crate) async fn begin(&self, runtime: &Runtime) -> TaskId {
        match runtime.begin(self.new_task()).await.unwrap() {
            Created::Created { task, .. } => task.id,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn task(&self, id: TaskId) -> Task {
        self.store.get(id).await.unwrap().unwrap()
    }

    /// Waits until the task is as wanted, for at most ten days of the paused clock.
    pub(crate) async fn until(&self, id: TaskId, wanted: impl Fn(&Task) -> bool) -> Task {
        let mut hints = self.store.watch();
        let waiting = async {
            loop {
                let task = self.task(id).await;
                if wanted(&task) {
                    return task;
                }
                hints.next().await.unwrap();
            }
        };
        match tokio::time::timeout(Duration::from_secs(10 * 86_400), waiting).await {
            Ok(task) => task,
            Err(_) => panic!("it did not come to that: {:#?}", self.task(id).await),
        }
    }

    /// The result of a task that must complete.
    pub(crate) async fn result(&self, id: TaskId) -> Value {
        match self.until(id, Task::is_final).await.state {
            TaskState::Completed { result } => result.to_value(),
            other => panic!("{other:?}"),
        }
    }

    /// The message of a task that must fail, which its status message tells too.
    pub(crate) async fn failure(&self, id: TaskId) -> String {
        let task = self.until(id, Task::is_final).await;
        match task.state {
            TaskState::Failed { error } => {
                assert_eq!(task.status_message.as_deref(), Some(&*error.message));
                error.message
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn until_asked(&self, id: TaskId, key: &str) -> Task {
        let key = InputKey::new(key).unwrap();
        self.until(id, |task| task.live().is_some_and(|live| live.questions.contains_key(&key))).await
    }

    pub(crate) async fn until_parked(&self, id: TaskId) -> Task {
        self.until(id, |task| {
            task.live().is_some_and(|live| matches!(live.run, outlast_core::Run::Parked { .. }))
        })
        .await
    }

    pub(crate) async fn answer(&self, id: TaskId, key: &str, name: &str) {
        let key = InputKey::new(key).unwrap();
        let answer = Payload::from_value(&json!({"action": "accept", "content": {"name": name}}));
        let applied =
            self.store.apply(id, By::Owner(owner()), vec![Event::Answer { key, answer }]).await.unwrap();
        assert!(
            matches!(applied, outlast_core::Applied::Applied(_) | outlast_core::Applied::Absorbed(_)),
            "{applied:?}"
        );
    }

    pub(crate) async fn cancel(&self, id: TaskId) {
        self.store.apply(id, By::Owner(owner()), vec![Event::Cancel]).await.unwrap();
    }

    pub(crate) async fn journal(&self, id: TaskId) -> Vec<Entry> {
        self.store.journal(id, 0, u64::MAX).await.unwrap().entries
    }

    pub(crate) async fn status(&self, id: TaskId) -> Status {
        self.task(id).await.status()
    }

    /// Lets everything that is ready run, without time going on.
    pub(crate) async fn settle(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) fn owner() -> Owner {
    Owner::new("ann")
}

pub(crate) fn key(text: &str) -> StepKey {
    StepKey::new(text).unwrap()
}

pub(crate) fn question(message: &str) -> Question {
    Question::new(&json!({"method": "elicitation/create", "params": {
        "mode": "form", "message": message, "requestedSchema": {"type": "object", "properties": {}},
    }}))
    .unwrap()
}

/// Asks one question, and gives the name that was answered.
pub(crate) async fn ask(run: &Run, key: &str) -> Outcomes {
    let input = InputKey::new(key).unwrap();
    match run.ask(vec![(input.clone(), question(key))]).await {
        Ok(answers) => Ok(answers[&input].to_value()["content"]["name"].clone()),
        Err(outlast_runtime::AskRefused::Cancelled) => Err(cancelled()),
        Err(refused) => Err(TaskError::internal(refused.to_string())),
    }
}

/// A step that does what it says in the log, and has it for its value.
pub(crate) async fn step(run: &Run, log: &Log, name: &str) -> Outcomes {
    let work = async || {
        log.say(name);
        Ok(Payload::from_value(&name.into()))
    };
    run.step(key(name), &StepOptions::new(), work).await.map(|value| value.to_value())
}

pub(crate) fn failure(message: &str) -> StepFailure {
    StepFailure { error: TaskError::internal(message), last: false }
}

/// What happened, in order, over all processes.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn say(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    pub(crate) fn said(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn times(&self, what: &str) -> usize {
        self.said().iter().filter(|said| *said == what).count()
    }
}

/// Counts its calls: the first attempt does one thing, the next another.
#[derive(Clone, Default)]
pub(crate) struct Attempts(Arc<AtomicU32>);

impl Attempts {
    /// The number of this attempt, from 1.
    pub(crate) fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Says so when it is dropped.
pub(crate) struct Guard(pub(crate) Log);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.say("dropped");
    }
}

/// What a task's journal says of a step.
pub(crate) fn outcome(entries: &[Entry], name: &str) -> Option<Outcome> {
    let entry = entries.iter().find(|entry| entry.key.as_ref().is_some_and(|key| key.as_str() == name))?;
    Some(entry.body.as_ref()?.decode::<outlast_core::Finished>().ok()?.outcome)
}
