//! Follows a task until it ends: polls at the server's pace, hears pushes, presents questions and delivers their answers.
//!
//! A pump is a loop over what can happen; it runs while somebody waits for the task, and can be stopped at any point without
//! losing anything, since what must last is in [`Followed`].

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use rmcp::{
    model::{ClientResult, ErrorCode, ErrorData, RequestId},
    service::RequestContext,
};
use serde_json::Value;
use tokio::{
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use crate::{
    book::{Answers, Prompt},
    clock,
    connection::{Connection, Failure},
    error::CallErrorKind,
    follow::Followed,
    pace,
    push::{self, Push},
    requests,
    saved::Generation,
    tap::{Heard, User},
    task::{Question, Task},
};

/// How many tries in a row of a listen that fails before pushes are given up for this wait.
const LISTENS: u32 = 5;
/// A subscription that has lasted so long did not fail.
const STEADY: Duration = Duration::from_secs(60);

type Look<'f> = BoxFuture<'f, Result<Task, requests::Error>>;
type Delivery<'f> = BoxFuture<'f, Result<(), requests::Error>>;

pub(crate) struct Pump<'f> {
    followed: &'f Arc<Followed>,
    next_poll: Instant,
    /// When the last poll was answered, or this began.
    looked_at: Instant,
    next_delivery: Instant,
    next_listen: Option<Instant>,
    backstop: Option<Instant>,
    /// A last poll runs: the time to live has passed.
    is_last_look: bool,
    polls: Tries,
    deliveries: Tries,
    cancels: Tries,
    next_cancel: Instant,
    legacy_results: Tries,
    next_legacy_result: Instant,
    listens_failed: u32,
    listening_since: Instant,
    /// Whether the server has agreed to push the task.
    is_pushed: bool,
    poll: Option<Look<'f>>,
    delivery: Option<(Answers, Delivery<'f>)>,
    cancel: Option<Delivery<'f>>,
    /// Answers that were refused: by their shape, or because the task is gone; the next poll tells which.
    refused: Option<Answers>,
    prompts: JoinSet<()>,
    open: HashMap<Prompt, (String, AbortHandle)>,
    push: Option<Push>,
    /// The legacy request that holds the result of a task, and meanwhile carries its questions.
    legacy_result: Option<Look<'f>>,
}

/// What woke the loop.
enum Event {
    Polled(Result<Task, requests::Error>),
    Delivered(Answers, Result<(), requests::Error>),
    Cancelled(Result<(), requests::Error>),
    Answered,
    Heard(Heard),
    ListenEnded(Result<(), Failure>),
    LegacyResult(Result<Task, requests::Error>),
    Stirred,
    Due,
}

impl<'f> Pump<'f> {
    pub(crate) fn new(followed: &'f Arc<Followed>) -> Self {
        let now = clock::now();
        Self {
            followed,
            // What an earlier wait learnt of the pace holds for this one.
            next_poll: followed.next_look(),
            looked_at: now,
            next_delivery: now,
            next_listen: followed.link.options().push.then_some(now),
            backstop: None,
            is_last_look: false,
            polls: Tries::default(),
            deliveries: Tries::default(),
            cancels: Tries::default(),
            next_cancel: now,
            legacy_results: Tries::default(),
            next_legacy_result: now,
            listens_failed: 0,
            listening_since: now,
            is_pushed: false,
            poll: None,
            delivery: None,
            cancel: None,
            refused: None,
            prompts: JoinSet::new(),
            open: HashMap::new(),
            push: None,
            legacy_result: None,
        }
    }

    /// Runs until the task is final; or until it is clear that this wait will not see that.
    pub(crate) async fn run(mut self) -> Result<(), CallErrorKind> {
        self.set_backstop(&self.followed.task());
        loop {
            if self.followed.task().is_final() {
                return Ok(());
            }
            if self.followed.is_replaced() {
                return Err(CallErrorKind::AnotherTask);
            }
            self.present()?;
            self.start_requests();
            if let Some(end) = self.followed.unanswered() {
                // C35: what was answered to other questions is kept and sent first.
                let is_settled =
                    self.prompts.is_empty() && self.delivery.is_none() && !self.followed.owes_answers();
                if is_settled {
                    return Err(end);
                }
            }
            let event = self.next_event().await;
            self.take(event).await?;
        }
    }

    /// Gives the questions that nobody has seen to the handler, and closes the prompts of those that are asked no more.
    fn present(&mut self) -> Result<(), CallErrorKind> {
        if self.followed.is_cancelling() {
            // C33: what is open is closed, and nothing else is opened.
            self.prompts.abort_all();
            self.open.clear();
            return Ok(());
        }
        if self.followed.unanswered().is_some() {
            self.close_unwanted();
            return Ok(());
        }
        let task = self.followed.task();
        let due = self.followed.due_questions()?;
        self.close_unwanted();
        for (key, prompt) in due {
            let question =
                task.questions().find(|(asked, _)| *asked == key).map(|(_, question)| question.clone());
            let Some(question) = question else { continue };
            let held = Held { followed: self.followed.clone(), key: key.clone(), prompt };
            let handle = self.prompts.spawn(held.put(question));
            self.open.insert(prompt, (key, handle));
        }
        Ok(())
    }

    /// Closes the prompts whose answer nobody waits for: the server has stopped asking, or has it from elsewhere.
    fn close_unwanted(&mut self) {
        self.open.retain(|prompt, (key, handle)| {
            let is_wanted = self.followed.awaits(key, *prompt);
            if !is_wanted {
                handle.abort();
            }
            is_wanted
        });
    }

    fn start_requests(&mut self) {
        let (followed, now) = (self.followed, clock::now());
        if self.poll.is_none() && now >= self.next_poll {
            self.poll = Some(requests::get(followed).boxed());
        }
        if self.may_deliver() && now >= self.next_delivery {
            let answers = followed.deliverable();
            if !answers.is_empty() {
                let delivery = requests::update(followed, answers.clone()).boxed();
                self.delivery = Some((answers, delivery));
            }
        }
        if self.cancel.is_none() && followed.owes_cancel() && now >= self.next_cancel {
            self.cancel = Some(followed.cancel().boxed());
        }
        if self.push.is_none() && self.next_listen.is_some_and(|at| now >= at) {
            self.next_listen = None;
            self.listening_since = now;
            if followed.origin.generation == Generation::Extension {
                self.push = Some(push::listen(followed));
            }
        }
        let asks_by_itself =
            followed.origin.generation == Generation::Experimental && followed.task().needs_input();
        let may_ask = asks_by_itself && !followed.is_cancelling() && now >= self.next_legacy_result;
        if self.legacy_result.is_none() && may_ask {
            self.legacy_result = Some(requests::legacy_result(followed).boxed());
        }
    }

    /// Answers are sent one after the other.
    fn may_deliver(&self) -> bool {
        self.delivery.is_none() && self.refused.is_none()
    }

    async fn next_event(&mut self) -> Event {
        let wants_delivery = self.may_deliver() && !self.followed.deliverable().is_empty();
        let wants_cancel = self.cancel.is_none() && self.followed.owes_cancel();
        let due = [
            self.poll.is_none().then_some(self.next_poll),
            wants_delivery.then_some(self.next_delivery),
            wants_cancel.then_some(self.next_cancel),
            self.push.is_none().then_some(self.next_listen).flatten(),
            (!self.is_last_look).then_some(self.backstop).flatten(),
        ];
        let due = due.into_iter().flatten().min();
        tokio::select! {
            polled = maybe(self.poll.as_mut()) => {
                self.poll = None;
                Event::Polled(polled)
            }
            delivered = maybe(self.delivery.as_mut().map(|(_, delivery)| delivery)) => {
                let (sent, _) = self.delivery.take().expect("it has just come");
                Event::Delivered(sent, delivered)
            }
            cancelled = maybe(self.cancel.as_mut()) => {
                self.cancel = None;
                Event::Cancelled(cancelled)
            }
            Some(_) = self.prompts.join_next() => Event::Answered,
            pushed = push::next(self.push.as_mut()) => match pushed {
                push::Event::Heard(heard) => Event::Heard(heard),
                push::Event::Ended(end) => Event::ListenEnded(end),
            },
            result = maybe(self.legacy_result.as_mut()) => {
                self.legacy_result = None;
                Event::LegacyResult(result)
            }
            () = self.followed.stirred.notified() => Event::Stirred,
            () = sleep_until(due) => Event::Due,
        }
    }

    async fn take(&mut self, event: Event) -> Result<(), CallErrorKind> {
        match event {
            Event::Polled(Ok(task)) => {
                self.polls = Tries::default();
                self.looked_at = clock::now();
                let (is_final, interval) = (task.is_final(), task.poll_interval_ms);
                self.see(task)?;
                self.next_poll = self.looked_at;
                self.set_pace(interval);
                if std::mem::take(&mut self.is_last_look)
                    && !is_final
                    && self.backstop.is_some_and(|backstop| clock::now() >= backstop)
                {
                    return Err(CallErrorKind::Expired);
                }
                if let Some(sent) = self.refused.take()
                    && !is_final
                {
                    // The task is there, so it was the answers that were refused.
                    self.followed.rejected(&sent).await;
                }
                Ok(())
            }
            Event::Delivered(sent, Ok(())) => {
                self.deliveries = Tries::default();
                self.followed.acknowledged(&sent).await;
                // The server may go on at once, and nothing else tells of it.
                self.poll_soon();
                Ok(())
            }
            Event::Delivered(sent, Err(error)) => self.delivery_failed(sent, error),
            Event::Cancelled(Ok(())) => {
                self.poll_soon();
                Ok(())
            }
            // What the end of it means for the task is told by a poll.
            Event::Cancelled(Err(requests::Error::End(_))) => Ok(()),
            Event::Cancelled(Err(requests::Error::Failed(failure))) => {
                self.next_cancel = clock::now() + self.cancels.failed(self.followed, failure)?;
                Ok(())
            }
            Event::Answered => {
                self.open.retain(|_, (_, handle)| !handle.is_finished());
                Ok(())
            }
            Event::Heard(heard) => self.heard(heard),
            Event::ListenEnded(end) => {
                self.listen_ended(end);
                Ok(())
            }
            Event::LegacyResult(Ok(task)) => self.see(task),
            Event::Polled(Err(error)) => self.poll_failed(error),
            Event::LegacyResult(Err(error)) => self.legacy_result_failed(error),
            Event::Stirred => {
                if self.followed.is_cancelling() {
                    self.poll_soon();
                }
                Ok(())
            }
            Event::Due => self.backstop_due(),
        }
    }

    /// A valid answer came.
    fn see(&mut self, task: Task) -> Result<(), CallErrorKind> {
        if !self.followed.origin.is_of(&task) {
            return Err(CallErrorKind::AnotherTask);
        }
        self.set_backstop(&task);
        self.followed.see(task);
        Ok(())
    }

    /// The next poll comes no sooner than the newest state asks for. Counted from the last one: who pushes the same again and
    /// again is polled all the same.
    fn set_pace(&mut self, interval: Option<u64>) {
        let mut pause = pace::next_poll(interval, pace::random());
        let at = self.looked_at + pause;
        self.followed.set_next_look(self.followed.next_look().max(at));
        if self.push.as_ref().is_some_and(Push::is_acknowledged) {
            pause = pause.max(self.followed.link.options().poll_beside_push);
        }
        self.next_poll = self.next_poll.max(self.looked_at + pause);
    }

    fn poll_failed(&mut self, error: requests::Error) -> Result<(), CallErrorKind> {
        let failure = match error {
            requests::Error::End(end) => return Err(end),
            requests::Error::Failed(failure) => failure,
        };
        if self.is_last_look {
            return Err(CallErrorKind::Expired);
        }
        let now = clock::now();
        let retry = self.polls.failed(self.followed, failure)?;
        // The pace that the server asked for holds for polls that fail, too.
        let asked = self.followed.task().poll_interval_ms;
        let pace = asked.map(|asked| pace::next_poll(Some(asked), pace::random())).unwrap_or_default();
        self.next_poll = now + retry.max(pace);
        self.followed.set_next_look(self.next_poll);
        Ok(())
    }

    /// The request that carries the questions is made again; meanwhile polls tell whether there are any.
    fn legacy_result_failed(&mut self, error: requests::Error) -> Result<(), CallErrorKind> {
        let failure = match error {
            requests::Error::End(end) => return Err(end),
            requests::Error::Failed(failure) => failure,
        };
        let retry = self.legacy_results.failed(self.followed, failure)?;
        self.next_legacy_result = clock::now() + retry;
        Ok(())
    }

    fn delivery_failed(&mut self, sent: Answers, error: requests::Error) -> Result<(), CallErrorKind> {
        match error {
            requests::Error::End(end) => return Err(end),
            requests::Error::Failed(Failure::Refused(error)) if requests::is_rejection(&error) => {
                self.refused = Some(sent);
                // A poll that was asked before says nothing of why.
                self.poll = None;
                self.poll_soon();
            }
            requests::Error::Failed(failure) => {
                let retry = self.deliveries.failed(self.followed, failure)?;
                self.next_delivery = clock::now() + retry;
            }
        }
        Ok(())
    }

    fn heard(&mut self, heard: Heard) -> Result<(), CallErrorKind> {
        self.is_pushed |= heard.acknowledged;
        let Some(state) = heard.state else { return Ok(()) };
        self.see(Task::clone(&state))?;
        self.set_pace(state.poll_interval_ms);
        Ok(())
    }

    /// Polling covers for pushes until they can be had again.
    fn listen_ended(&mut self, end: Result<(), Failure>) {
        self.push = None;
        let now = clock::now();
        if now.duration_since(self.listening_since) >= STEADY {
            self.listens_failed = 0;
        }
        self.listens_failed += 1;
        let delay = match end {
            // It ends by itself when the task is final, or when the server goes down.
            Ok(()) => None,
            // A server that ends a subscription without its result fails; any other refusal is about what was asked.
            Err(Failure::Refused(error)) if error.code != ErrorCode::INTERNAL_ERROR => {
                tracing::debug!(code = error.code.0, "the server pushes nothing for this task");
                self.is_pushed = false;
                self.listens_failed = LISTENS;
                None
            }
            Err(failure) => {
                tracing::debug!(?failure, "the subscription to a task was lost");
                failure.delay()
            }
        };
        // A server that has agreed before is asked again, however often, and ever less often.
        if self.is_pushed || self.listens_failed < LISTENS {
            self.next_listen = Some(now + pace::next_retry(self.listens_failed, delay, pace::random()));
        }
        // Whatever changed meanwhile is seen by the next poll, which need not be the slow one beside pushes.
        self.poll_soon();
    }

    /// The next poll comes as soon as the server's pace allows.
    fn poll_soon(&mut self) {
        self.next_poll = self.next_poll.min(self.followed.next_look());
    }

    fn backstop_due(&mut self) -> Result<(), CallErrorKind> {
        if self.backstop.is_some_and(|backstop| clock::now() >= backstop) && !self.is_last_look {
            self.is_last_look = true;
            self.next_poll = clock::now();
        }
        Ok(())
    }

    /// S24: the time to live, counted from when this client first saw the task, since its clock and the server's may differ.
    fn set_backstop(&mut self, task: &Task) {
        self.backstop = task.ttl_ms.and_then(|ttl| {
            let left = Duration::from_millis(ttl).saturating_sub(self.followed.age());
            clock::now().checked_add(left)
        });
    }
}

/// The tries of one kind of request that failed in a row.
#[derive(Default)]
struct Tries {
    failed: u32,
    since: Option<Instant>,
}

impl Tries {
    /// How long to wait after one more.
    ///
    /// # Errors
    ///
    /// The failure as the end of the wait, when they have failed for too long.
    fn failed(&mut self, followed: &Followed, failure: Failure) -> Result<Duration, CallErrorKind> {
        let now = clock::now();
        self.failed += 1;
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) >= followed.link.options().give_up_after {
            return Err(requests::Error::Failed(failure).into_kind());
        }
        Ok(pace::next_retry(self.failed, failure.delay(), pace::random()))
    }
}

/// A prompt that is open. However it ends, its key is given back unless it was answered; until then the key is held, so
/// that no second prompt opens beside one that is still closing.
struct Held {
    followed: Arc<Followed>,
    key: String,
    prompt: Prompt,
}

impl Held {
    async fn put(self, question: Question) {
        let mut failures = 0;
        let connection = loop {
            match self.followed.link.connection().await {
                Ok(connection) => break connection,
                Err(_) => {
                    failures += 1;
                    tokio::time::sleep(pace::next_retry(failures, None, pace::random())).await;
                }
            }
        };
        match put(&connection, self.followed.handler(), &question, &self.key).await {
            Ok(answer) => {
                self.followed.answered(&self.key, self.prompt, answer).await;
            }
            // Told before the key is free, so that it is not presented again by this wait.
            Err(error) => self.followed.set_unanswered(&self.key, self.prompt, error),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.followed.abandoned(&self.key, self.prompt);
    }
}

/// The key that a server gave a question, in the extensions of the request by which a handler is asked. A request that the
/// server sent by itself has none: its id says nothing on another connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionKey(pub Arc<str>);

/// Puts a question to the user's handler, as it would be put if the server had sent it by itself (S30).
pub(crate) async fn put(
    connection: &Connection,
    handler: Option<User>,
    question: &Question,
    key: &str,
) -> Result<Value, ErrorData> {
    let handler = handler.unwrap_or_else(|| connection.user.clone());
    let Some(request) = question.request() else {
        return Err(ErrorData::invalid_request("the question is of no kind that a task may ask", None));
    };
    if let Some(refusal) = requests::undeclared(&handler.get_info().capabilities, &request) {
        return Err(refusal);
    }
    let mut context = RequestContext::new(RequestId::String(key.into()), connection.peer().clone());
    context.extensions.insert(QuestionKey(key.into()));
    let handled = AssertUnwindSafe(handler.handle_request(request, context)).catch_unwind().await;
    match handled {
        Ok(Ok(ClientResult::EmptyResult(_) | ClientResult::CustomResult(_))) | Err(_) => {
            Err(ErrorData::internal_error("the handler of the question failed", None))
        }
        Ok(Ok(result)) => {
            serde_json::to_value(result).map_err(|_| ErrorData::internal_error("the answer is no JSON", None))
        }
        Ok(Err(error)) => Err(error),
    }
}

/// Waits for a future that may not be there.
async fn maybe<T>(future: Option<&mut BoxFuture<'_, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
