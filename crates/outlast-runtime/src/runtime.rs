//! The runtime, what carries calls out for it, and how it starts and stops.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use metrics::gauge;
use outlast_core::{
    Applied, By, Call, Counts, Created, Event, Head, Hints, LeaseRequest, NewTask, Owner, Payload, Question,
    Store, StoreError, Task, TaskError, TaskId, Token, ToolVersion, WorkerId,
};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument as _, Span};

use crate::{
    Config, Run,
    backoff::Backoff,
    measure::{LOADED, Measured},
    poll_limit::PollLimiter,
    run::Lease,
    slots::Slots,
    spans,
};

/// Carries out calls. What it returns is how one attempt, or one round of one, ended.
#[async_trait]
pub trait Runner: Send + Sync + 'static {
    /// Runs the call from its start; `round` carries on a multi-round-trip call.
    ///
    /// Must end soon after [`Run::unload`] is cancelled, with whatever outcome.
    async fn run(&self, call: Call, round: Option<Round>, run: Run) -> Ended;
}

/// The input of a further round of a multi-round-trip call.
#[derive(Debug, Clone)]
pub struct Round {
    /// The answers, by the keys that the tool asked under.
    pub answers: Vec<(String, Payload)>,
    /// What the tool handed out to be echoed.
    pub state: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub enum Ended {
    /// With a result, tool errors included (S13).
    Result(Payload),
    /// With a JSON-RPC error.
    Error(TaskError),
    /// By an explicit exit after a cancel.
    Cancelled,
    /// The tool wants another round (S16, S20b).
    InputRequired {
        /// What it asks, by its own keys.
        questions: Vec<(String, Question)>,
        /// What it wants echoed.
        state: Option<String>,
        /// The whole result, for a caller who is asked directly.
        whole: Payload,
    },
    /// By being dropped: it was unloaded.
    Dropped,
}

/// A running runtime; clones share it.
#[derive(Clone)]
pub struct Runtime(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: Config,
    pub(crate) worker: WorkerId,
    pub(crate) runner: Arc<dyn Runner>,
    pub(crate) serves: Mutex<BTreeSet<ToolVersion>>,
    /// In the order of their ids, so that one seed of the simulation always runs the same way.
    pub(crate) loaded: Mutex<BTreeMap<TaskId, Run>>,
    /// Work that began under a lease and was dropped without its end being written, by the lease's token.
    pub(crate) let_go: Mutex<BTreeMap<TaskId, Token>>,
    /// The owners of the tasks that are being created with a lease and are not loaded yet.
    pub(crate) beginning: Mutex<Vec<Owner>>,
    /// Whether tasks wait for a slot: then newer ones queue behind them, and the claim is fair.
    pub(crate) backlog: AtomicBool,
    /// Held by the suspect whose turn it is to run alone.
    pub(crate) alone: tokio::sync::Mutex<()>,
    /// Whether nothing new begins, because a suspect runs alone or is about to.
    pub(crate) holding: AtomicBool,
    pub(crate) slots: Arc<Slots>,
    polls: Mutex<PollLimiter>,
    pub(crate) draining: CancellationToken,
    pub(crate) tracker: TaskTracker,
}

impl Runtime {
    /// Starts the workers, which begin by taking up what an earlier process left.
    pub fn start(store: Arc<dyn Store>, config: Config, runner: Arc<dyn Runner>) -> Result<Self, String> {
        config.check()?;
        let inner = Inner {
            store: Arc::new(Measured(store)),
            worker: WorkerId::new(format!("{}-{}", std::process::id(), random_id())),
            runner,
            serves: Mutex::default(),
            loaded: Mutex::default(),
            let_go: Mutex::default(),
            beginning: Mutex::default(),
            backlog: AtomicBool::new(false),
            alone: tokio::sync::Mutex::default(),
            holding: AtomicBool::new(false),
            slots: Arc::default(),
            polls: Mutex::new(PollLimiter::new(config.poll_limit)),
            draining: CancellationToken::new(),
            tracker: TaskTracker::new(),
            config,
        };
        let runtime = Self(Arc::new(inner));
        runtime.spawn_loops();
        Ok(runtime)
    }

    /// Its limits and paces.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// From now on this worker takes up tasks of `tool`.
    pub fn serve(&self, tool: ToolVersion) {
        if lock(&self.0.serves).insert(tool) {
            self.0.slots.work_may_be_ready();
        }
    }

    /// The task as it is now.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError> {
        self.0.store.get(id).await
    }

    /// Applies events on the word of `by`, again while the store is down for a moment.
    ///
    /// # Errors
    /// When the store fails for longer.
    pub async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError> {
        let span = spans::told(&events);
        // What was done already is absorbed.
        let applied = repeating(|| self.0.store.apply(id, by.clone(), events.clone())).await?;
        if let Some(span) = span {
            match &applied {
                Applied::Applied(task) => spans::told_to(&span, task, "applied"),
                Applied::Absorbed(task) => spans::told_to(&span, task, "absorbed"),
                _ => drop(span.record("outcome", "refused")),
            }
        }
        Ok(applied)
    }

    /// Whether `owner` may poll `id` now; if not, how long to wait.
    pub fn may_poll(&self, owner: &Owner, id: TaskId) -> Result<(), Duration> {
        lock(&self.0.polls).take(owner, id, self.0.config.clock.monotonic())
    }

    /// Whether nothing may begin here before its task is in the store: another process runs the work, or a suspect runs
    /// alone in this one.
    pub fn begins_nothing(&self) -> bool {
        self.0.store.is_front() || self.is_holding()
    }

    /// How many tasks there are of each status, over all processes.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn counts(&self) -> Result<Counts, StoreError> {
        self.0.store.counts().await
    }

    /// How many tasks this process has in memory, and how many of them run rather than wait.
    pub fn loaded(&self) -> (usize, usize) {
        let loaded = lock(&self.0.loaded);
        (loaded.len(), loaded.values().filter(|run| !run.is_idle()).count())
    }

    /// The store's change feed.
    pub fn hints(&self) -> Hints {
        self.0.store.watch()
    }

    /// Creates a task, leased to this process where it has room to run it.
    ///
    /// `within` is the span of a call that runs already.
    pub(crate) async fn create(
        &self,
        mut new: NewTask,
        want_lease: bool,
        within: Option<&Span>,
    ) -> Result<Created, StoreError> {
        let span = spans::create(&mut new, within);
        let lease =
            want_lease.then(|| LeaseRequest { worker: self.0.worker.clone(), lease: self.0.config.lease });
        let creating = repeating(|| self.0.store.create(new.clone(), lease.clone()));
        let created = creating.instrument(span.clone()).await?;
        spans::created(&span, &created);
        if let Created::Created { task, token: None } = &created {
            self.serve_again(task);
        }
        Ok(created)
    }

    /// A task is to be taken up from the store that this process has had, whether or not its tool is listed. Not for one that
    /// runs from its creation to its end: callers may name any tool, and each claim names all that are served.
    pub(crate) fn serve_again(&self, task: &Task) {
        self.serve(ToolVersion::new(task.spec.tool.clone(), task.spec.version.clone()));
    }

    /// Keeps a slot for a task of `owner` that is about to be created, if there is one to begin in at once.
    pub(crate) fn place(&self, owner: &Owner) -> Option<Place> {
        let mut beginning = lock(&self.0.beginning);
        let loaded = lock(&self.0.loaded);
        let running = loaded.values().filter(|run| !run.is_idle());
        let of_owner =
            running.clone().filter(|run| run.lease().is_some_and(|lease| lease.owner == *owner)).count()
                + beginning.iter().filter(|other| *other == owner).count();
        let free = !self.0.draining.is_cancelled()
            && !self.0.backlog.load(Ordering::Relaxed)
            && !self.is_holding()
            && running.count() + beginning.len() < self.0.config.max_running
            && loaded.len() + beginning.len() < self.0.config.max_loaded
            && of_owner < self.0.config.max_running_per_owner as usize;
        if !free {
            self.0.backlog.store(true, Ordering::Relaxed);
            return None;
        }
        beginning.push(owner.clone());
        Some(Place { runtime: self.clone(), owner: owner.clone() })
    }

    /// Stops: no more claims; running work may end for as long as [`Config::drain`] says; what is left is given back.
    pub async fn drain(&self) {
        self.0.draining.cancel();
        self.0.tracker.close();
        let settled = async {
            loop {
                self.0.slots.until(|| self.loaded().1 == 0).await;
                if !self.wake_those_with_news().await {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(self.0.config.drain, settled).await;
        // What only waits is parked as it is, and need not be loaded again before it is woken.
        self.park_those_that_wait();
        let parked = self.0.slots.until(|| !self.any_may_park());
        let _ = tokio::time::timeout(self.0.config.drain, parked).await;
        let left: Vec<Run> = lock(&self.0.loaded).values().cloned().collect();
        futures::future::join_all(left.iter().map(|run| self.give_back(run))).await;
        // Work that holds its thread cannot be dropped; the process need not wait for it.
        let _ = tokio::time::timeout(self.0.config.drain, self.0.tracker.wait()).await;
    }

    /// Loads a leased task, unless the runtime is on its way out: then whoever leased it has to give it back.
    ///
    /// Under the lock that [`Runtime::drain`] takes after it said that it drains, so that it misses none.
    pub(crate) fn load(&self, lease: &Lease, run: &Run) -> bool {
        let mut loaded = lock(&self.0.loaded);
        if self.0.draining.is_cancelled() {
            return false;
        }
        // This worker got its own task again: the older attempt is over, and what it let go is taken up.
        lock(&self.0.let_go).remove(&lease.id);
        match loaded.insert(lease.id, run.clone()) {
            Some(older) => older.gone().cancel(),
            None => gauge!(LOADED).increment(1.0),
        }
        drop(loaded);
        // A cancel that came between the lease and now was a hint about a task that nobody had loaded.
        self.check_cancel(run.clone());
        true
    }

    /// The opposite of [`Runtime::load`].
    pub(crate) fn unload(&self, lease: &Lease) {
        let mut loaded = lock(&self.0.loaded);
        if loaded.get(&lease.id).and_then(Run::lease).is_some_and(|held| held.token == lease.token) {
            loaded.remove(&lease.id);
            gauge!(LOADED).decrement(1.0);
        }
        drop(loaded);
        self.0.slots.changed();
    }

    /// Wakes waiting work that has not heard of an answer that is in the store, and says whether there was any: what was
    /// acknowledged is not given back as if it had never come.
    pub(crate) async fn wake_those_with_news(&self) -> bool {
        let runs: Vec<Run> = lock(&self.0.loaded).values().cloned().collect();
        let mut any = false;
        for run in runs {
            // A suspect in line hears of it when it begins.
            let Some(lease) = run.lease().filter(|_| !run.is_in_line()) else { continue };
            if let Ok(Some(task)) = self.0.store.get(lease.id).await
                && task.inbox_seq > Run::seen_seq(lease)
            {
                // Here, because work that waits for something else would never read it.
                run.refresh(lease).await;
                run.notify();
                any = true;
            }
        }
        tokio::task::yield_now().await;
        any
    }

    /// Whether no task runs here or is about to.
    pub(crate) fn runs_nothing(&self) -> bool {
        lock(&self.0.beginning).is_empty() && self.loaded().1 == 0
    }

    /// Has work that may be taken up again, and only waits, park now instead of later.
    pub(crate) fn park_those_that_wait(&self) {
        let loaded = lock(&self.0.loaded);
        loaded.values().filter(|run| run.may_park()).for_each(|run| run.park_soon().cancel());
    }

    fn any_may_park(&self) -> bool {
        lock(&self.0.loaded).values().any(Run::may_park)
    }

    /// Stops at once and gives nothing back, as if the process had ended here.
    pub fn abandon(&self) {
        self.0.draining.cancel();
        let runs: Vec<Run> = std::mem::take(&mut *lock(&self.0.loaded)).into_values().collect();
        runs.iter().for_each(|run| {
            gauge!(LOADED).decrement(1.0);
            run.gone().cancel();
        });
        self.0.slots.changed();
    }

    /// Cancelled when the runtime is on its way out.
    pub fn draining(&self) -> &CancellationToken {
        &self.0.draining
    }

    /// Revision and finality of many tasks at once.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError> {
        self.0.store.heads(ids).await
    }

    /// Whether the runtime is on its way out.
    pub fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }
}

/// A slot that is kept until its task is loaded.
pub(crate) struct Place {
    runtime: Runtime,
    owner: Owner,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut beginning = lock(&self.runtime.0.beginning);
        if let Some(at) = beginning.iter().position(|owner| *owner == self.owner) {
            beginning.swap_remove(at);
        }
        drop(beginning);
        self.runtime.0.slots.changed();
    }
}

/// Repeats a write that may be repeated as it is, while the store is down; after a second or two its caller gets the error.
async fn repeating<T, W>(write: impl Fn() -> W) -> Result<T, StoreError>
where
    W: Future<Output = Result<T, StoreError>>,
{
    const TIMES: u32 = 5;
    let mut backoff = Backoff::default();
    for _ in 0..TIMES {
        match write().await {
            Err(error) if error.is_retryable() => sleep(backoff.next()).await,
            other => return other,
        }
    }
    write().await
}

/// 128 fresh random bits (S17).
pub fn random_id() -> TaskId {
    let mut bytes = [0; 16];
    // Without the system's randomness ids could be guessed, so nothing may go on.
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    TaskId::from_bytes(bytes)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
