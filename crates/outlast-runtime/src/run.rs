//! One attempt at a task, as the work sees it: what it may say, ask and hear.
//!
//! A store that fails, a lease that is lost and a drain never reach the work as errors. What it awaits here then simply
//! does not resolve, and the runtime drops the attempt.

use std::{
    any::Any,
    collections::{BTreeMap, HashSet},
    convert::Infallible,
    future::pending,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast_core::{
    Applied, Asks, By, EntryKind, Event, Finished, Illegal, InputKey, Outcome, Owner, Payload, Question,
    QuestionKind, Recovery, StepKey, Store, Task, TaskId, Token,
};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{backoff::Backoff, lock, slots::Slots};

/// A loaded task and the lease that this process holds on it.
pub(crate) struct Lease {
    pub(crate) id: TaskId,
    pub(crate) token: Token,
    pub(crate) owner: Owner,
    pub(crate) store: Arc<dyn Store>,
    recovery: Recovery,
    /// Whether its author was told that asking and [`Recovery::Fail`] do not go well together.
    warned: AtomicBool,
    /// The bytes that a status message may have.
    message_bytes: usize,
    /// Told when the work begins or stops waiting, because waiting work holds no slot.
    slots: Arc<Slots>,
    /// When the lease was last known to hold, on the worker's own clock.
    renewed: Mutex<Duration>,
    journal: Mutex<Journal>,
    message: watch::Sender<Option<String>>,
}

/// What this attempt knows of the task's journal.
#[derive(Default)]
struct Journal {
    seq: u64,
    asked: HashSet<StepKey>,
    answers: BTreeMap<StepKey, Payload>,
    withdrawn: HashSet<StepKey>,
    steps: BTreeMap<StepKey, Outcome>,
}

/// A handle on one attempt; clones share it.
#[derive(Clone)]
pub struct Run(Arc<Shared>);

struct Shared {
    asks: Asks,
    /// Set once the call is a task: at once for a claimed one, later or never for one that began inline.
    lease: OnceLock<Arc<Lease>>,
    bound: Notify,
    /// The work needs the call to become a task.
    wants_task: CancellationToken,
    /// The caller asked for the end of the work.
    cancel: CancellationToken,
    /// The work is to be dropped: the lease is lost, the process drains, or the inline caller left.
    unload: CancellationToken,
    news: Notify,
    waiting: AtomicUsize,
    /// The work is over and its end is being written.
    ended: AtomicBool,
    used_keys: Mutex<HashSet<InputKey>>,
    /// Who waits for a call that is no task yet, as the runner knows them.
    caller: OnceLock<Arc<dyn Any + Send + Sync>>,
    early_message: Mutex<Option<String>>,
}

/// Why a question was not asked, or will not be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskRefused {
    /// The key was used before in this task (S18).
    #[error("the question key '{0}' was used before in this task; use another key for another question")]
    KeyUsed(InputKey),
    /// The key names a step or timer of this task.
    #[error("'{0}' cannot be a question key: it names a step or timer of this task")]
    KeyKind(InputKey),
    /// The client did not declare that it can be asked this (S20a).
    #[error("the client did not declare that it can be asked this kind of question ({0:?})")]
    Undeclared(QuestionKind),
    /// The caller asked for the end of the work, so no answer will come.
    #[error("the task was cancelled")]
    Cancelled,
    /// The question exceeds a limit of the task.
    #[error("the question cannot be asked: {0}")]
    Limit(String),
}

impl Run {
    /// An attempt at a call that is no task (yet); its work may ask kinds in `asks` once it becomes one.
    pub fn inline(asks: Asks) -> Self {
        Self(Arc::new(Shared {
            asks,
            lease: OnceLock::new(),
            bound: Notify::new(),
            wants_task: CancellationToken::new(),
            cancel: CancellationToken::new(),
            unload: CancellationToken::new(),
            news: Notify::new(),
            waiting: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            used_keys: Mutex::default(),
            caller: OnceLock::new(),
            early_message: Mutex::default(),
        }))
    }

    /// Someone waits for the answer, for as long as the call is no task.
    pub fn with_caller(self, caller: impl Any + Send + Sync) -> Self {
        let _ = self.0.caller.set(Arc::new(caller));
        self
    }

    /// Who waits for the answer, unless the call is a task by now.
    pub fn caller<T: Clone + 'static>(&self) -> Option<T> {
        if self.is_task() { None } else { self.0.caller.get()?.downcast_ref::<T>().cloned() }
    }

    /// The call is this task now, leased to this process.
    pub(crate) fn bind(
        &self,
        task: &Task,
        store: Arc<dyn Store>,
        slots: Arc<Slots>,
        renewed: Duration,
    ) -> Arc<Lease> {
        let lease = Arc::new(Lease {
            id: task.id,
            token: task.token,
            owner: task.owner.clone(),
            store,
            recovery: task.spec.recovery,
            warned: AtomicBool::new(false),
            message_bytes: usize::try_from(task.spec.limits.message_bytes).unwrap_or(usize::MAX),
            slots,
            renewed: Mutex::new(renewed),
            journal: Mutex::default(),
            message: watch::Sender::new(task.status_message.clone()),
        });
        if self.0.lease.set(lease.clone()).is_ok() {
            if task.cancel_requested() {
                self.0.cancel.cancel();
            }
            tokio::spawn(write_messages(Arc::downgrade(&lease), lease.message.subscribe(), self.clone()));
            if let Some(early) = lock(&self.0.early_message).take() {
                self.status(early);
            }
            self.0.bound.notify_waiters();
        }
        lease
    }

    // --- what the runtime needs of it

    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        self.0.lease.get()
    }

    /// Cancelled when the work is to be dropped: its lease is lost, it parks, the process drains, or its caller left.
    pub fn unload(&self) -> &CancellationToken {
        &self.0.unload
    }

    /// Cancelled when the caller asked for the end of the work (S22).
    pub fn cancel(&self) -> &CancellationToken {
        &self.0.cancel
    }

    pub(crate) fn wants_task(&self) -> &CancellationToken {
        &self.0.wants_task
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed) > 0
    }

    /// The work is over: what is left is to write how it ended, which may take as long as the store needs. The token
    /// guards that write, so it is safe after the lease's time.
    pub(crate) fn set_ended(&self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Relaxed)
    }

    /// Something may have changed in the store: an answer, a cancel.
    pub(crate) fn notify(&self) {
        self.0.news.notify_waiters();
    }

    /// The lease was known to hold at this moment of the worker's clock.
    pub(crate) fn renewed(&self, at: Duration) {
        if let Some(lease) = self.lease() {
            *lock(&lease.renewed) = at;
        }
    }

    pub(crate) fn renewed_at(&self) -> Option<Duration> {
        self.lease().map(|lease| *lock(&lease.renewed))
    }

    /// What the work last said about itself, for the event that ends it.
    pub(crate) fn last_message(&self) -> Option<String> {
        self.lease().and_then(|lease| lease.message.borrow().clone())
    }

    // --- what the work may do

    /// Whether the call is a task by now.
    pub fn is_task(&self) -> bool {
        self.lease().is_some()
    }

    /// Sets the status message; writes are coalesced to at most four a second.
    pub fn status(&self, message: String) {
        match self.lease() {
            Some(lease) => {
                let message = cut(message, lease.message_bytes);
                lease.message.send_if_modified(|current| {
                    let changed = current.as_ref() != Some(&message);
                    *current = Some(message);
                    changed
                });
            }
            None => *lock(&self.0.early_message) = Some(message),
        }
    }

    /// Keeps the task for at least this long from now (S24).
    pub async fn extend_ttl(&self, from_now: Duration) {
        if let Some(lease) = self.lease() {
            // Refused only where it would mean nothing: the task is over.
            let _ = self.commit(lease, vec![Event::ExtendTtl(from_now)]).await;
        }
    }

    /// Asks all of `questions` at once and waits for every answer. What was asked by an earlier attempt is not asked
    /// again, and what was answered returns at once.
    pub async fn ask(
        &self,
        questions: Vec<(InputKey, Question)>,
    ) -> Result<BTreeMap<InputKey, Payload>, AskRefused> {
        if let Some((_, question)) = questions.iter().find(|(_, asked)| !self.0.asks.allows(asked.kind())) {
            return Err(AskRefused::Undeclared(question.kind()));
        }
        let own: Vec<_> = questions.iter().map(|(key, _)| key.clone()).collect();
        self.use_keys(&own)?;
        let lease = self.become_task().await;
        if lease.recovery == Recovery::Fail && !lease.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                task = ?lease.id,
                "a tool of Recovery::Fail asks: should its server stop before the answer comes, the task fails; \
                 a tool that does no harm before it asks can be Recovery::Rerun"
            );
        }
        self.refresh(&lease).await;
        let questions: Vec<_> =
            questions.into_iter().map(|(key, question)| (current_key(&lease, &key), question)).collect();
        let new: Vec<_> =
            questions.iter().filter(|(key, _)| !Self::was_asked(&lease, key)).cloned().collect();
        let keys = questions.into_iter().map(|(key, _)| key).collect();
        // From before the write: dropped in the middle of it, the questions may be asked all the same.
        let mut asking = Asking { run: self.clone(), lease: lease.clone(), keys, answered: false };
        if !new.is_empty() {
            if self.0.cancel.is_cancelled() {
                asking.answered = true;
                return Err(AskRefused::Cancelled);
            }
            // What the work last said comes with its question, so that nobody is asked beside an older message.
            let message = lease.message.borrow().clone().map(|message| Event::SetMessage(Some(message)));
            let asks = new.into_iter().map(|(key, question)| Event::Ask { key, question });
            let events = message.into_iter().chain(asks).collect();
            if let Err(illegal) = self.commit(&lease, events).await {
                // All or none: nothing was asked, and nothing was used.
                asking.answered = true;
                lock(&self.0.used_keys).retain(|key| !own.contains(key));
                return Err(refused(illegal));
            }
        }
        loop {
            // Registered before the look, so that an answer in between is not missed.
            let mut news = std::pin::pin!(self.0.news.notified());
            news.as_mut().enable();
            self.refresh(&lease).await;
            if let Some(answers) = asking.answers() {
                asking.answered = true;
                return Ok(own.into_iter().zip(answers).collect());
            }
            if self.0.cancel.is_cancelled() {
                asking.answered = true;
                return Err(AskRefused::Cancelled);
            }
            // Only while it really waits: work that has its answers and has not seen them runs.
            let _waiting = Waiting::begin(self, &lease);
            tokio::select! {
                () = news => {}
                () = self.0.cancel.cancelled() => {}
            }
        }
    }

    /// Marks all of these keys as used by this attempt, or none.
    fn use_keys(&self, keys: &[InputKey]) -> Result<(), AskRefused> {
        let mut used = lock(&self.0.used_keys);
        for (n, key) in keys.iter().enumerate() {
            if !used.insert(key.clone()) {
                let twice = key.clone();
                for key in &keys[..n] {
                    used.remove(key);
                }
                return Err(AskRefused::KeyUsed(twice));
            }
        }
        Ok(())
    }

    /// The lease, as soon as the call is a task.
    async fn become_task(&self) -> Arc<Lease> {
        loop {
            let mut bound = std::pin::pin!(self.0.bound.notified());
            bound.as_mut().enable();
            if let Some(lease) = self.lease() {
                return lease.clone();
            }
            self.0.wants_task.cancel();
            bound.await;
        }
    }

    // --- the journal

    /// Reads what is new in the journal.
    pub(crate) async fn refresh(&self, lease: &Lease) {
        const PAGE: u64 = 1 << 20;
        let mut backoff = Backoff::default();
        loop {
            let after = lock(&lease.journal).seq;
            match lease.store.journal(lease.id, after, PAGE).await {
                Ok(page) => {
                    let mut journal = lock(&lease.journal);
                    for entry in page.entries.into_iter().filter(|entry| entry.seq > after) {
                        journal.seq = entry.seq;
                        match (entry.kind, entry.key, entry.body) {
                            (EntryKind::Asked, Some(key), _) => drop(journal.asked.insert(key)),
                            (EntryKind::Answered, Some(key), Some(answer)) => {
                                journal.answers.insert(key, answer);
                            }
                            (EntryKind::Withdrawn, Some(key), _) => drop(journal.withdrawn.insert(key)),
                            (EntryKind::Step, Some(key), Some(body)) => {
                                if let Ok(finished) = body.decode::<Finished>() {
                                    journal.steps.insert(key, finished.outcome);
                                }
                            }
                            (EntryKind::CancelRequested, ..) => self.0.cancel.cancel(),
                            _ => {}
                        }
                    }
                    if !page.more {
                        return;
                    }
                }
                Err(error) if error.is_retryable() => sleep(backoff.next()).await,
                Err(_) => match self.stop().await {},
            }
        }
    }

    /// The last journal entry that this attempt has seen.
    pub(crate) fn seen_seq(lease: &Lease) -> u64 {
        lock(&lease.journal).seq
    }

    /// What a step of this key returned, if it finished.
    pub(crate) fn step(lease: &Lease, key: &StepKey) -> Option<Outcome> {
        lock(&lease.journal).steps.get(key).cloned()
    }

    /// The answer to a question, if it came.
    pub(crate) fn answer(lease: &Lease, key: &InputKey) -> Option<Payload> {
        lock(&lease.journal).answers.get(&key.into()).cloned()
    }

    /// Whether a question of this key was asked in this task.
    pub(crate) fn was_asked(lease: &Lease, key: &InputKey) -> bool {
        lock(&lease.journal).asked.contains(&key.into())
    }

    /// Writes events under the lease, for as long as that takes. Does not return when the lease is lost: the attempt
    /// is dropped then.
    pub(crate) async fn commit(&self, lease: &Lease, events: Vec<Event>) -> Result<Task, Illegal> {
        let mut backoff = Backoff::default();
        loop {
            match lease.store.apply(lease.id, By::Lease(lease.token), events.clone()).await {
                Ok(Applied::Applied(task) | Applied::Absorbed(task)) => return Ok(task),
                Ok(Applied::Illegal(illegal)) => return Err(illegal),
                Ok(Applied::Fenced | Applied::NotFound) => match self.stop().await {},
                Err(error) if error.is_retryable() => {
                    tracing::warn!(task = ?lease.id, %error, "the store failed; trying again");
                    sleep(backoff.next()).await;
                }
                Err(error) => {
                    tracing::error!(task = ?lease.id, %error, "the store failed for good");
                    match self.stop().await {}
                }
            }
        }
    }

    /// Has the attempt dropped, and never returns.
    async fn stop(&self) -> Infallible {
        self.0.unload.cancel();
        pending().await
    }
}

/// Questions that are being asked. Dropped before their answers came, they are withdrawn.
struct Asking {
    run: Run,
    lease: Arc<Lease>,
    keys: Vec<InputKey>,
    answered: bool,
}

impl Asking {
    /// Every answer, in the order of the keys.
    fn answers(&self) -> Option<Vec<Payload>> {
        self.keys.iter().map(|key| Run::answer(&self.lease, key)).collect()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // An attempt that is unloaded leaves its questions to the next one.
        if self.answered || self.run.0.unload.is_cancelled() {
            return;
        }
        let (run, lease) = (self.run.clone(), self.lease.clone());
        let events: Vec<_> = self
            .keys
            .drain(..)
            .filter(|key| Run::answer(&lease, key).is_none())
            .map(|key| Event::Withdraw { key })
            .collect();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let unload = run.unload().clone();
                tokio::select! {
                    _ = run.commit(&lease, events) => {}
                    () = unload.cancelled() => {}
                }
            });
        }
    }
}

/// The work waits for a person, and holds no running slot meanwhile.
struct Waiting(Run, Arc<Lease>);

impl Waiting {
    fn begin(run: &Run, lease: &Arc<Lease>) -> Self {
        run.0.waiting.fetch_add(1, Ordering::Relaxed);
        lease.slots.changed();
        Self(run.clone(), lease.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.1.slots.changed();
    }
}

/// Writes the newest status message, at most four times a second, until the attempt is over.
async fn write_messages(
    lease: std::sync::Weak<Lease>,
    mut messages: watch::Receiver<Option<String>>,
    run: Run,
) {
    const PACE: Duration = Duration::from_millis(250);
    let unload = run.unload().clone();
    drop(run);
    let writing = async {
        while messages.changed().await.is_ok() {
            let message = messages.borrow_and_update().clone();
            let Some(lease) = lease.upgrade() else { return };
            let by = By::Lease(lease.token);
            match lease.store.apply(lease.id, by, vec![Event::SetMessage(message)]).await {
                Ok(_) => {}
                // The event that ends the task carries the last message; an earlier one may be missed.
                Err(error) => tracing::debug!(task = ?lease.id, %error, "a status message was not written"),
            }
            drop(lease);
            sleep(PACE).await;
        }
    };
    tokio::select! {
        () = writing => {}
        () = unload.cancelled() => {}
    }
}

/// The key that a question is asked under by now: a later attempt may need what an earlier one withdrew, and a key is
/// never used again (S18). Tools cannot use these further keys, because theirs do not begin so.
fn current_key(lease: &Lease, own: &InputKey) -> InputKey {
    let journal = lock(&lease.journal);
    let further = (2..).map_while(|n: u32| InputKey::new(format!("outlast:{n}:{own}")).ok());
    std::iter::once(own.clone())
        .chain(further)
        .find(|key| !journal.withdrawn.contains(&key.into()))
        .unwrap_or_else(|| own.clone())
}

fn refused(illegal: Illegal) -> AskRefused {
    let question = |key: StepKey| InputKey::new(key.as_str()).expect("a key that was asked under");
    match illegal {
        Illegal::KeyUsed { key } => AskRefused::KeyUsed(question(key)),
        Illegal::KeyKind { key } => AskRefused::KeyKind(question(key)),
        Illegal::Undeclared { kind } => AskRefused::Undeclared(kind),
        Illegal::CancelRequested => AskRefused::Cancelled,
        other => AskRefused::Limit(other.to_string()),
    }
}

fn cut(mut text: String, bytes: usize) -> String {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
