//! One task as this process follows it: what was last seen of it, the book of its questions, and who waits for it.

use std::{
    collections::BTreeSet,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use chrono::{DateTime, Utc};
use futures::FutureExt;
use rmcp::model::ErrorData;
use serde_json::Value;
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
    time::Instant,
};

use crate::{
    authorization::{Authorization, AuthorizationSource},
    book::{Answers, Book, Prompt},
    clock,
    connection::{Connection, Failure, Link},
    error::CallErrorKind,
    pump::Pump,
    requests,
    saved::{Generation, SavedTask},
    store::HandleStore,
    tap::User,
    task::Task,
};

/// What makes a task this task, and never changes.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) first_seen: DateTime<Utc>,
    pub(crate) generation: Generation,
    pub(crate) session: Option<String>,
    pub(crate) output_schema: Option<Value>,
}

impl Origin {
    /// Whether what a server says of a task of this id is about this one (C38). Servers write instants more or less exactly.
    pub(crate) fn is_of(&self, task: &Task) -> bool {
        (self.created_at - task.created_at).num_milliseconds().abs() < 1_000
    }
}

/// See the module. There is one for each task and process, however many handles to it there are.
pub(crate) struct Followed {
    pub(crate) link: Arc<Link>,
    pub(crate) origin: Origin,
    store: Option<Arc<dyn HandleStore>>,
    /// When this process took the task up, and how long ago by the wall it was first seen then.
    taken_up: (Instant, Duration),
    state: Mutex<State>,
    /// Counts what waiters want to know of: new states, and the end of a pump.
    news: watch::Sender<u64>,
    /// Wakes the pump: an answer is there, a key is free again, the task was cancelled.
    pub(crate) stirred: Notify,
    /// Whether the handle has been taken out of the store for good. Writes hold it, so that they happen one after the other
    /// and the newest one stays.
    forgotten: tokio::sync::Mutex<bool>,
}

struct State {
    task: Task,
    /// Whether nothing but the answer to the call has been seen, or what was written down.
    is_seed: bool,
    /// The server is polled no sooner, by whichever wait it is: by its pace, or since it failed (S23).
    next_look: Instant,
    /// The connection on which the task was last seen to be this one (C38).
    seen_on: Weak<Connection>,
    /// Who answers the questions of this task, where that is not the client's handler.
    handler: Option<User>,
    /// What the requests about this task are sent with, where that is not what is set for the server.
    authorization: Option<AuthorizationSource>,
    /// The first question that could not be answered while the present pump runs.
    unanswered: Option<CallErrorKind>,
    book: Book,
    replaced: bool,
    cancel: Cancel,
    seats: usize,
    pump: Option<AbortHandle>,
    /// Counts the pumps, so that a waiter tells the end of its own from that of an earlier one.
    pumps: u64,
    end: Option<(u64, CallErrorKind)>,
}

/// What has become of the caller's wish that the task end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cancel {
    /// There is none.
    Unwanted,
    /// A request is on its way.
    Asked,
    /// The request was lost.
    Owed,
    /// The server has acknowledged it.
    Told,
}

/// A request to cancel that is on its way. Given up, it counts as lost.
struct Cancelling<'f> {
    followed: &'f Followed,
    comes_to: Cancel,
}

impl Drop for Cancelling<'_> {
    fn drop(&mut self) {
        self.followed.set_cancel(self.comes_to);
    }
}

impl State {
    /// Those of the answers that the server asks for now.
    fn asked_for(&self, mut answers: Answers) -> Answers {
        let asked: BTreeSet<&str> = self.task.questions().map(|(key, _)| key).collect();
        answers.retain(|key, _| asked.contains(key.as_str()));
        answers
    }
}

impl Followed {
    pub(crate) fn new(
        link: Arc<Link>,
        store: Option<Arc<dyn HandleStore>>,
        origin: Origin,
        task: Task,
        next_look: Instant,
        seen_on: Weak<Connection>,
        book: Book,
    ) -> Arc<Self> {
        let age = (clock::wall() - origin.first_seen).to_std().unwrap_or_default();
        Arc::new(Self {
            link,
            taken_up: (clock::now(), age),
            origin,
            store,
            state: Mutex::new(State {
                task,
                is_seed: true,
                next_look,
                seen_on,
                handler: None,
                authorization: None,
                unanswered: None,
                book,
                replaced: false,
                cancel: Cancel::Unwanted,
                seats: 0,
                pump: None,
                pumps: 0,
                end: None,
            }),
            news: watch::channel(0).0,
            stirred: Notify::new(),
            forgotten: tokio::sync::Mutex::new(false),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    /// How long ago this client first saw the task. The wall is asked once, and may be set meanwhile.
    pub(crate) fn age(&self) -> Duration {
        let (taken_up, age) = self.taken_up;
        age.saturating_add(clock::now().duration_since(taken_up))
    }

    /// Who answers the questions of this task, where that is not the client's handler.
    pub(crate) fn handler(&self) -> Option<User> {
        self.state().handler.clone()
    }

    /// Has the questions of this task answered by another handler than the client's.
    pub(crate) fn set_handler(&self, handler: User) {
        self.state().handler = Some(handler);
    }

    /// What the next request about this task is sent with, where that is not what is set for the server.
    pub(crate) fn authorization(&self) -> Option<Authorization> {
        let source = self.state().authorization.clone();
        source.and_then(|source| source())
    }

    /// Has the requests about this task sent with another header than what is set for the server.
    pub(crate) fn set_authorization(&self, source: AuthorizationSource) {
        self.state().authorization = Some(source);
    }

    /// The newest state that was seen.
    pub(crate) fn task(&self) -> Task {
        self.state().task.clone()
    }

    /// When the server may be polled again at the earliest.
    pub(crate) fn next_look(&self) -> Instant {
        self.state().next_look
    }

    /// The server is left alone until then, also by waits to come.
    pub(crate) fn set_next_look(&self, at: Instant) {
        self.state().next_look = at;
    }

    /// Whether the server has shown on this connection, and not failed since, that the id is still of this task.
    pub(crate) fn is_sure_on(&self, connection: &Arc<Connection>) -> bool {
        std::ptr::eq(self.state().seen_on.as_ptr(), Arc::as_ptr(connection))
    }

    /// The server has shown it.
    pub(crate) fn set_sure_on(&self, connection: &Arc<Connection>) {
        self.state().seen_on = Arc::downgrade(connection);
    }

    /// The server may have been restarted, and may have given the id to another task.
    pub(crate) fn set_unsure(&self) {
        self.state().seen_on = Weak::new();
    }

    /// The first question that could not be answered, as the end of this wait.
    pub(crate) fn unanswered(&self) -> Option<CallErrorKind> {
        self.state().unanswered.clone()
    }

    /// A handler failed, or refused. Of a prompt that nobody waits for any more this says nothing.
    pub(crate) fn set_unanswered(&self, key: &str, prompt: Prompt, error: ErrorData) {
        let mut state = self.state();
        if state.book.awaits(key, prompt) {
            let end = CallErrorKind::Unanswered { key: key.to_owned(), error };
            state.unanswered.get_or_insert(end);
        }
    }

    /// Whether another task has taken the id.
    pub(crate) fn is_replaced(&self) -> bool {
        self.state().replaced
    }

    /// Whether the caller wants the task to end.
    pub(crate) fn is_cancelling(&self) -> bool {
        self.state().cancel != Cancel::Unwanted
    }

    /// Whether that has still to be said to the server.
    pub(crate) fn owes_cancel(&self) -> bool {
        self.state().cancel == Cancel::Owed
    }

    /// Asks for the end of the task (S22). No question is presented from now on, unless the server refuses. What is lost on its
    /// way is said again by whoever waits.
    pub(crate) async fn cancel(&self) -> Result<(), requests::Error> {
        let mut asking = Cancelling { followed: self, comes_to: Cancel::Owed };
        self.set_cancel(Cancel::Asked);
        let outcome = requests::cancel(self).await;
        asking.comes_to = match &outcome {
            Ok(()) => Cancel::Told,
            Err(requests::Error::Failed(Failure::Refused(error))) if requests::is_rejection(error) => {
                Cancel::Unwanted
            }
            Err(requests::Error::End(_)) => Cancel::Unwanted,
            Err(requests::Error::Failed(_)) => Cancel::Owed,
        };
        outcome
    }

    fn set_cancel(&self, to: Cancel) {
        self.state().cancel = to;
        self.stirred.notify_one();
    }

    /// Takes a state that a server told. One that is older than what is known is left; a final one never changes (S12).
    pub(crate) fn see(&self, task: Task) {
        {
            let mut state = self.state();
            let older = !state.is_seed && task.updated_at < state.task.updated_at && !task.is_final();
            if state.task.is_final() || older {
                return;
            }
            let changed = state.is_seed || state.task != task;
            state.task = task;
            state.is_seed = false;
            if !changed {
                return;
            }
        }
        self.publish();
    }

    /// The questions that have to be presented now.
    pub(crate) fn due_questions(&self) -> Result<Vec<(String, Prompt)>, CallErrorKind> {
        let mut state = self.state();
        if state.is_seed {
            return Ok(Vec::new());
        }
        let State { task, book, .. } = &mut *state;
        book.outstanding(task.questions().map(|(key, _)| key), self.link.options().max_rounds)
            .map_err(|_| CallErrorKind::TooManyQuestions)
    }

    /// Whether the answer of a prompt is still wanted.
    pub(crate) fn awaits(&self, key: &str, prompt: Prompt) -> bool {
        self.state().book.awaits(key, prompt)
    }

    /// A handler has answered. Nothing is kept when nobody waits for its answer any more.
    pub(crate) async fn answered(self: &Arc<Self>, key: &str, prompt: Prompt, answer: Value) {
        let is_taken = self.state().book.answer(key, prompt, answer);
        if is_taken {
            self.keep_answers().await;
        }
    }

    /// An answer from elsewhere than a prompt; an open prompt for it is closed by the pump.
    pub(crate) async fn answer(self: &Arc<Self>, key: &str, answer: Value) {
        self.state().book.answer_unasked(key, answer);
        self.keep_answers().await;
    }

    /// Another process has followed the same task meanwhile.
    pub(crate) fn learn(&self, book: Book) {
        self.state().book.learn(book);
        self.stirred.notify_one();
    }

    /// A prompt has been closed without an answer.
    pub(crate) fn abandoned(&self, key: &str, prompt: Prompt) {
        self.state().book.abandon(key, prompt);
        self.stirred.notify_one();
    }

    /// The answers to send now: those that are asked for and not acknowledged. None before anything was seen of the task, whose
    /// id may be another's by now (C38).
    pub(crate) fn deliverable(&self) -> Answers {
        let state = self.state();
        state.asked_for(state.book.ready())
    }

    /// Whether there are answers that the server asks for and has not acknowledged.
    pub(crate) fn owes_answers(&self) -> bool {
        let state = self.state();
        !state.asked_for(state.book.undelivered()).is_empty()
    }

    /// The answers that may be sent.
    pub(crate) fn ready(&self) -> Answers {
        self.state().book.ready()
    }

    /// The server has what was `sent`.
    pub(crate) async fn acknowledged(self: &Arc<Self>, sent: &Answers) {
        self.state().book.acknowledged(sent);
        self.keep_answers().await;
    }

    /// The server refused what was `sent`.
    pub(crate) async fn rejected(self: &Arc<Self>, sent: &Answers) {
        self.state().book.rejected(sent);
        self.keep_answers().await;
    }

    /// The handle, to be written down.
    pub(crate) fn save(&self) -> SavedTask {
        let state = self.state();
        let origin = self.origin.clone();
        SavedTask {
            version: SavedTask::VERSION,
            server: self.link.server().name().to_owned(),
            task_id: origin.id,
            tool: origin.tool,
            created_at: origin.created_at,
            first_seen: origin.first_seen,
            generation: origin.generation,
            session: origin.session,
            output_schema: origin.output_schema,
            answers: state.book.undelivered(),
            delivered: state.book.delivered(),
        }
    }

    /// Writes the handle to the store, if there is one; to its end even if the caller goes, so that no write that was left
    /// alone comes after a later one. Whether or not that succeeds, the answers in it may be sent after.
    pub(crate) async fn keep(self: &Arc<Self>) -> Result<(), CallErrorKind> {
        if self.store.is_none() {
            return self.write_down().await;
        }
        let followed = self.clone();
        let written = tokio::spawn(async move { followed.write_down().await });
        // It is aborted only with the runtime.
        written.await.unwrap_or_else(|_| Err(CallErrorKind::Store("the runtime has ended".into())))
    }

    async fn write_down(&self) -> Result<(), CallErrorKind> {
        let is_forgotten = self.forgotten.lock().await;
        let saved = self.save();
        let outcome = match &self.store {
            Some(store) if !*is_forgotten => self.stored(store.save(&saved)).await,
            _ => Ok(()),
        };
        self.state().book.written(&saved.answers);
        outcome.map_err(|error| CallErrorKind::Store(error.to_string()))
    }

    /// Keeps what the book says now. A store that fails costs no more than that the person may be asked again by another
    /// process, so the task goes on.
    async fn keep_answers(self: &Arc<Self>) {
        let followed = self.clone();
        let kept = tokio::spawn(async move {
            if let Err(error) = followed.write_down().await {
                tracing::warn!(%error, "an answer could not be written down; it is kept in memory");
            }
            followed.stirred.notify_one();
        });
        // It is aborted only with the runtime.
        let _ = kept.await;
    }

    /// Takes the handle out of the store, since its end has been told: to its end even if the caller goes, who waits for it
    /// no longer than `until`.
    pub(crate) async fn forget(self: &Arc<Self>, until: Option<Instant>) {
        let Some(store) = self.store.clone() else { return };
        let followed = self.clone();
        let removed = tokio::spawn(async move {
            let mut is_forgotten = followed.forgotten.lock().await;
            *is_forgotten = true;
            let removal = store.remove(followed.link.server().name(), &followed.origin.id);
            if let Err(error) = followed.stored(removal).await {
                tracing::warn!(%error, "the handle of a task that has ended could not be removed");
            }
        });
        match until {
            Some(until) => drop(tokio::time::timeout_at(until, removed).await),
            None => drop(removed.await),
        }
    }

    /// What the store makes of it. One that hangs has failed: neither a task nor a wait hangs with it.
    async fn stored(&self, work: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        tokio::time::timeout(self.link.options().request_timeout, work)
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "the store took too long")))
    }

    /// Waits along with others: the first to sit down starts the pump, and when the last one leaves it stops.
    pub(crate) fn sit(self: &Arc<Self>) -> Seat {
        let mut state = self.state();
        let pump = self.pump(&mut state);
        state.seats += 1;
        drop(state);
        Seat { news: self.news.subscribe(), followed: self.clone(), pump }
    }

    /// The number of the pump that runs; started, if none does and there is something to follow.
    fn pump(self: &Arc<Self>, state: &mut State) -> u64 {
        if state.pump.is_none() && !state.task.is_final() && !state.replaced {
            let number = state.pumps + 1;
            let mut ending = Ending { followed: self.clone(), number, end: None };
            let pump = tokio::spawn(async move {
                let run = std::panic::AssertUnwindSafe(Pump::new(&ending.followed).run()).catch_unwind();
                ending.end = match run.await {
                    Ok(end) => end.err(),
                    Err(_) => Some(CallErrorKind::Connection(
                        "following the task failed by a fault of this client".into(),
                    )),
                };
                drop(ending);
            });
            state.pumps = number;
            state.unanswered = None;
            state.pump = Some(pump.abort_handle());
        }
        state.pumps
    }

    fn pump_ended(&self, number: u64, end: Option<CallErrorKind>) {
        {
            let mut state = self.state();
            // One that was stopped while it ended says nothing to those who wait for the next.
            if state.pumps == number {
                state.pump = None;
                state.end = end.map(|end| (number, end));
            }
        }
        self.publish();
    }

    pub(crate) fn replace(&self) {
        self.state().replaced = true;
        self.stirred.notify_one();
        self.publish();
    }
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the id, which may be all that protects the task.
        f.debug_struct("Followed").field("tool", &self.origin.tool).finish_non_exhaustive()
    }
}

/// Tells of the end of a pump, also of one whose runtime has ended under it: who waits in another goes on.
struct Ending {
    followed: Arc<Followed>,
    number: u64,
    end: Option<CallErrorKind>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.followed.pump_ended(self.number, self.end.take());
    }
}

/// A place among those who wait for a task.
pub(crate) struct Seat {
    followed: Arc<Followed>,
    news: watch::Receiver<u64>,
    pump: u64,
}

/// What a seat sees when it looks.
pub(crate) enum View {
    /// The newest state, with more to come.
    State(Task),
    /// The final state.
    Final(Task),
    /// Waiting has ended without one.
    Ended(CallErrorKind),
}

impl Seat {
    /// How things stand.
    pub(crate) fn look(&mut self) -> View {
        self.news.mark_unchanged();
        let mut state = self.followed.state();
        if state.task.is_final() {
            return View::Final(state.task.clone());
        }
        if state.replaced {
            return View::Ended(CallErrorKind::AnotherTask);
        }
        match &state.end {
            Some((pump, end)) if *pump >= self.pump => View::Ended(end.clone()),
            _ => {
                self.pump = self.followed.pump(&mut state);
                View::State(state.task.clone())
            }
        }
    }

    /// Waits until a look may show something new.
    pub(crate) async fn news(&mut self) {
        // The sender lives in what `self.followed` keeps alive.
        let _ = self.news.changed().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.followed.state();
        state.seats -= 1;
        if state.seats == 0
            && let Some(pump) = state.pump.take()
        {
            pump.abort();
        }
    }
}
