//! One attempt at a task, as the work sees it: what it may say, ask and hear.
//!
//! A store that fails, a lease that is lost, a drain and a park never reach the work as errors. What it awaits here then
//! simply does not resolve, and the runtime drops the attempt. From then on the attempt is revoked: whoever kept a clone of
//! it can begin nothing, and what it had sent is fenced by the store.

use std::{
    any::Any,
    collections::{BTreeMap, HashSet},
    convert::Infallible,
    future::pending,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use metrics::histogram;
use outlast_core::{
    Asks, By, Clock, Event, InputKey, Owner, Payload, Recovery, StepKey, Store, Task, TaskError, TaskId,
    Timestamp, Token,
};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::{
    activity::Activity, clock::Stopwatch, ending::Ending, in_flight::InFlight, lock, measure::RUN_SECONDS,
    runtime::Inner, seen::Seen,
};

/// A loaded task and the lease that this process holds on it.
pub(crate) struct Lease {
    pub(crate) id: TaskId,
    pub(crate) token: Token,
    pub(crate) owner: Owner,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) recovery: Recovery,
    /// Whether its author was told that waiting and [`Recovery::Fail`] do not go well together.
    warned: AtomicBool,
    /// The bytes that a status message may have.
    message_bytes: usize,
    clock: Arc<dyn Clock>,
    /// The store's clock and the worker's own at one moment, the latter a little later.
    moment: Mutex<(Timestamp, Duration)>,
    /// When the lease was last known to hold, on the worker's own clock.
    renewed: Mutex<Duration>,
    pub(crate) seen: Mutex<Seen>,
    pub(crate) message: watch::Sender<Option<String>>,
    /// What finished before the call was a task, and is not journaled yet.
    pub(crate) early: Mutex<Vec<Event>>,
    /// What the work has on its way, so that whoever must see it can wait for all of it.
    pub(crate) writing: Arc<InFlight>,
}

impl Lease {
    /// The store's clock now, never ahead of it by more than the two clocks drift apart.
    pub(crate) fn store_now(&self) -> Timestamp {
        let (store, own) = *lock(&self.moment);
        store + self.clock.monotonic().saturating_sub(own)
    }

    /// The store's clock is at least here: somebody may have set it forward.
    pub(crate) fn heard_of(&self, instant: Timestamp) {
        if instant > self.store_now() {
            *lock(&self.moment) = (instant, self.clock.monotonic());
        }
    }

    /// Says once that a tool of [`Recovery::Fail`] waits.
    pub(crate) fn warn_of_waiting(&self) {
        if self.recovery == Recovery::Fail && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                task = ?self.id,
                "a tool of Recovery::Fail waits: should its server stop before that is over, the task fails; \
                 a tool that does no harm before it waits can be Recovery::Rerun"
            );
        }
    }
}

/// A handle on one attempt; clones share it.
#[derive(Clone)]
pub struct Run(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    /// The task that the call is or may become, or the first of those that it carries on.
    origin: TaskId,
    pub(crate) asks: Asks,
    /// Set once the call is a task: at once for a claimed one, later or never for one that began inline.
    lease: OnceLock<Arc<Lease>>,
    bound: Notify,
    /// The work needs the call to become a task.
    wants_task: CancellationToken,
    /// The caller asked for the end of the work.
    cancel: CancellationToken,
    /// The lease is lost, or the process is on its way out: nothing more is to be written.
    gone: CancellationToken,
    /// The work is to be dropped: that, or it parks, it is over, or the inline caller left.
    unload: CancellationToken,
    /// The work broke a rule that it cannot be told of; [`Shared::misuse`] says which.
    stop: CancellationToken,
    misuse: OnceLock<TaskError>,
    /// The work is to park as soon as it only waits.
    park_soon: CancellationToken,
    /// The work made a journal entry under this lease.
    progress: CancellationToken,
    /// A suspect that waits for its turn to run alone.
    in_line: AtomicBool,
    pub(crate) news: Notify,
    pub(crate) activity: Activity,
    /// The work is over and its end is being written.
    ended: AtomicBool,
    pub(crate) used_keys: Mutex<HashSet<StepKey>>,
    /// Questions that this attempt wants or wanted an answer to, under the keys that they are asked by now.
    pub(crate) wanted: Mutex<HashSet<InputKey>>,
    /// Questions that this attempt asked and dropped, to be taken back.
    pub(crate) dropped: Mutex<HashSet<InputKey>>,
    /// The questions of each `ask` that has not returned, by its number.
    pub(crate) asking: Mutex<BTreeMap<u64, Vec<InputKey>>>,
    /// Keys of steps that were dropped after their work was done: whether they are journaled is not known yet.
    pub(crate) doubtful: Mutex<HashSet<StepKey>>,
    /// Who waits for a call that is no task yet, as the runner knows them.
    caller: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// What a call that is no task yet said and finished.
    early: Mutex<Early>,
    /// What the attempt is in the traces of its task, until it is over.
    span: Mutex<Span>,
    began: Stopwatch,
    told_end: AtomicBool,
}

#[derive(Default)]
struct Early {
    message: Option<String>,
    events: Vec<Event>,
}

/// The caller asked for the end of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task was cancelled")]
pub struct Cancelled;

impl Run {
    /// An attempt at a call that is no task (yet), and would be `id`; its work may ask kinds in `asks` once it is one.
    pub fn inline(id: TaskId, asks: Asks) -> Self {
        let gone = CancellationToken::new();
        Self(Arc::new(Shared {
            origin: id,
            asks,
            lease: OnceLock::new(),
            bound: Notify::new(),
            wants_task: CancellationToken::new(),
            cancel: CancellationToken::new(),
            unload: gone.child_token(),
            gone,
            stop: CancellationToken::new(),
            misuse: OnceLock::new(),
            park_soon: CancellationToken::new(),
            progress: CancellationToken::new(),
            in_line: AtomicBool::new(false),
            news: Notify::new(),
            activity: Activity::default(),
            ended: AtomicBool::new(false),
            used_keys: Mutex::default(),
            wanted: Mutex::default(),
            dropped: Mutex::default(),
            asking: Mutex::default(),
            doubtful: Mutex::default(),
            caller: OnceLock::new(),
            early: Mutex::default(),
            span: Mutex::new(Span::none()),
            began: Stopwatch::start(),
            told_end: AtomicBool::new(false),
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

    /// The call is this task now, leased to this process since `leased` of its own clock.
    pub(crate) fn bind(&self, task: &Task, runtime: &Inner, leased: Duration) -> Arc<Lease> {
        // The lease began when the store last read its clock.
        let store_now = task.lease().map_or(task.updated_at, |held| held.until - runtime.config.lease);
        let lease = Arc::new(Lease {
            id: task.id,
            token: task.token,
            owner: task.owner.clone(),
            store: runtime.store.clone(),
            recovery: task.spec.recovery,
            warned: AtomicBool::new(false),
            message_bytes: usize::try_from(task.spec.limits.message_bytes).unwrap_or(usize::MAX),
            clock: runtime.config.clock.clone(),
            moment: Mutex::new((store_now, runtime.config.clock.monotonic())),
            renewed: Mutex::new(leased),
            seen: Mutex::default(),
            message: watch::Sender::new(task.status_message.clone()),
            early: Mutex::default(),
            writing: Arc::default(),
        });
        if self.0.lease.set(lease.clone()).is_ok() {
            self.0.activity.attach(runtime.slots.clone());
            if task.cancel_requested() {
                self.0.cancel.cancel();
            }
            let span = self.span();
            span.record("task", tracing::field::debug(task.id));
            span.record("attempt", task.token.0);
            tokio::spawn(write_messages(Arc::downgrade(&lease), lease.message.subscribe(), self.clone()));
            // Not before: nothing is kept early once the lease is there.
            let early = std::mem::take(&mut *lock(&self.0.early));
            *lock(&lease.early) = early.events;
            if let Some(early) = early.message {
                self.relay_status(early);
            }
            self.0.bound.notify_waiters();
        }
        lease
    }

    // --- what the runtime needs of it

    /// The attempt's span; none when it is over.
    pub(crate) fn span(&self) -> Span {
        lock(&self.0.span).clone()
    }

    pub(crate) fn set_span(&self, span: Span) {
        *lock(&self.0.span) = span;
    }

    /// The attempt is over, and its first word on that counts: whoever kept a clone of it does not keep its span open.
    pub(crate) fn end_span(&self, ending: Ending) {
        if self.0.told_end.swap(true, Ordering::Relaxed) {
            return;
        }
        let span = std::mem::replace(&mut *lock(&self.0.span), Span::none());
        let outcome = ending.as_str();
        span.record("outcome", outcome);
        histogram!(RUN_SECONDS, "outcome" => outcome).record(self.0.began.elapsed());
    }

    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        self.0.lease.get()
    }

    /// Cancelled when the work is to be dropped: its lease is lost, it parks, the process drains, or its caller left.
    pub fn unload(&self) -> &CancellationToken {
        &self.0.unload
    }

    /// Cancelled when nothing of this attempt is to be written any more.
    pub(crate) fn gone(&self) -> &CancellationToken {
        &self.0.gone
    }

    /// Cancelled when the caller asked for the end of the work (S22).
    pub fn cancel(&self) -> &CancellationToken {
        &self.0.cancel
    }

    pub(crate) fn wants_task(&self) -> &CancellationToken {
        &self.0.wants_task
    }

    /// Cancelled when the work is to park as soon as it only waits.
    pub(crate) fn park_soon(&self) -> &CancellationToken {
        &self.0.park_soon
    }

    /// Cancelled when the work made a journal entry.
    pub(crate) fn progress(&self) -> &CancellationToken {
        &self.0.progress
    }

    /// Whether the work holds no running slot: it waits for a person or a time, or has not begun.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_in_line() || self.0.activity.only_waits()
    }

    /// Whether it is a suspect that waits for its turn to run alone, and has not begun.
    pub(crate) fn is_in_line(&self) -> bool {
        self.0.in_line.load(Ordering::Relaxed)
    }

    pub(crate) fn set_in_line(&self, in_line: bool) {
        self.0.in_line.store(in_line, Ordering::Relaxed);
    }

    /// Whether the work only waits, and a later attempt may take it up where it is.
    pub(crate) fn may_park(&self) -> bool {
        self.lease().is_some_and(|lease| lease.recovery == Recovery::Rerun) && self.0.activity.only_waits()
    }

    /// Whether answers came, and are known, that the work did not hear of yet.
    pub(crate) fn has_unheard_answers(&self, lease: &Lease) -> bool {
        let seen = lock(&lease.seen);
        lock(&self.0.asking).values().any(|keys| keys.iter().all(|key| seen.answer(key).is_some()))
    }

    /// The work is over: what is left is to write how it ended, which may take as long as the store needs. The token
    /// guards that write, so it is safe after the lease's time. Nothing else is begun from now on.
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

    /// What the work last said about itself, for the event that ends or parks it.
    pub(crate) fn last_message(&self) -> Option<Event> {
        let message = self.lease()?.message.borrow().clone()?;
        Some(Event::SetMessage(Some(message)))
    }

    /// How the work broke a rule, if it did.
    pub(crate) fn misused(&self) -> Option<&TaskError> {
        self.0.misuse.get()
    }

    // --- what the work may do

    /// Polls the work of a tool to its end. `None` when it was dropped before that, because the attempt is unloaded: by
    /// then the work and all that it held is gone, and what is returned to whoever called it does not matter.
    ///
    /// Everything that a tool does belongs in here: by the polls the runtime knows whether the work does something
    /// beside its waiting.
    pub async fn attend<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let _attended = self.0.activity.attend();
        let mut work = std::pin::pin!(work);
        let watched = std::future::poll_fn(|context| {
            // Before and after: what a poll does is seen by whoever looks while it goes on, too.
            let _polled = self.0.activity.poll();
            work.as_mut().poll(context)
        });
        tokio::select! {
            biased;
            () = self.0.unload.cancelled() => None,
            () = self.0.stop.cancelled() => None,
            result = watched.instrument(self.span()) => {
                // Nothing that the work left behind gets in between this and its end.
                self.set_ended();
                Some(result)
            }
        }
    }

    /// Whether the call is a task by now.
    pub fn is_task(&self) -> bool {
        self.lease().is_some()
    }

    /// Sets the status message; writes are coalesced to at most four a second.
    pub fn status(&self, message: String) {
        if !self.is_revoked() {
            self.relay_status(message);
        }
    }

    /// Sets the status message to what the work said while it ran, for a runner who hears of that when it is over.
    pub fn relay_status(&self, message: String) {
        match self.lease() {
            Some(lease) => {
                let message = cut(message, lease.message_bytes);
                lease.message.send_if_modified(|current| {
                    let changed = current.as_ref() != Some(&message);
                    *current = Some(message);
                    changed
                });
            }
            None => lock(&self.0.early).message = Some(message),
        }
    }

    /// Keeps the task for at least this long from now (S24).
    pub async fn extend_ttl(&self, from_now: Duration) {
        if let Some(lease) = self.lease() {
            // Refused only where it would mean nothing: the task is over.
            let _ = self.commit(lease, vec![Event::ExtendTtl(from_now)]).await;
        }
    }

    /// A name for the step of this key that outside systems can tell a repeat by: the same on every attempt at the task
    /// and for a task that carries it on, another one for every other step and task. It does not tell the task's id.
    pub fn step_id(&self, key: &str) -> String {
        crate::step::step_id(self.0.origin, key)
    }

    // --- for the other things that the work may do

    /// The lease, as soon as the call is a task.
    pub(crate) async fn become_task(&self) -> Arc<Lease> {
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

    /// Keeps what finished for the moment that the call becomes a task; gives it back when it is one already.
    pub(crate) fn keep_early(&self, event: Event) -> Result<(), (Event, Arc<Lease>)> {
        let mut early = lock(&self.0.early);
        match self.lease() {
            None => {
                early.events.push(event);
                Ok(())
            }
            Some(lease) => Err((event, lease.clone())),
        }
    }

    /// Whether the attempt may begin nothing any more.
    pub(crate) fn is_revoked(&self) -> bool {
        self.0.unload.is_cancelled() || self.0.stop.is_cancelled() || self.has_ended()
    }

    /// Does not return when the attempt is revoked: a child that a tool left behind must not do its work.
    pub(crate) async fn unless_revoked(&self) {
        if self.is_revoked() {
            pending::<()>().await;
        }
    }

    /// Takes a key for this attempt.
    pub(crate) fn use_key(&self, key: &StepKey) -> Option<UsedKey> {
        let new = lock(&self.0.used_keys).insert(key.clone());
        new.then(|| UsedKey { run: self.clone(), key: key.clone(), kept: false })
    }

    /// Ends the task as `failed`, because the work broke a rule that no code of a tool should deal with. Never returns:
    /// the attempt is dropped.
    pub async fn misuse(&self, message: String) -> Infallible {
        self.misuse_now(message);
        pending().await
    }

    pub(crate) fn misuse_now(&self, message: String) {
        let _ = self.0.misuse.set(TaskError::internal(message));
        self.0.stop.cancel();
    }

    /// The lease is lost: has the attempt dropped, and never returns.
    pub(crate) async fn let_go(&self) -> Infallible {
        self.0.gone.cancel();
        pending().await
    }
}

/// A key that this attempt uses; dropped before it is kept, it is free again.
pub(crate) struct UsedKey {
    run: Run,
    key: StepKey,
    kept: bool,
}

impl UsedKey {
    /// The key names something of this attempt for good.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for UsedKey {
    fn drop(&mut self) {
        // Work that is dropped because it parks goes on waiting for what its keys name.
        if !self.kept && !self.run.is_revoked() {
            lock(&self.run.0.used_keys).remove(&self.key);
        }
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
        biased;
        () = unload.cancelled() => {}
        () = writing => {}
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

/// A question's answer, by its key.
pub(crate) fn answer(lease: &Lease, key: &InputKey) -> Option<Payload> {
    lock(&lease.seen).answer(key).cloned()
}
