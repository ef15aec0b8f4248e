//! Waiting: durable timers, and questions to the caller.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use outlast_core::{
    EntryKind, Event, Illegal, InputKey, Payload, Question, QuestionKind, Recovery, StepKey, Wake,
};
use tokio::time::sleep;
use tracing::{Instrument as _, Span, field::Empty, info_span};

use crate::{
    lock,
    race::asks,
    run::{Cancelled, Lease, Run, UsedKey, answer},
    spans,
};

/// The longest that a timer that stays loaded waits before it looks at the clock again: a machine that was suspended lost
/// the time. One that may be unloaded does not look, because what is polled does not only wait.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

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
    #[error("the client did not declare that it can be asked this kind of question: {0}")]
    Undeclared(QuestionKind),
    /// The caller asked for the end of the work, so no answer will come.
    #[error("the task was cancelled")]
    Cancelled,
    /// The question exceeds a limit of the task.
    #[error("the question cannot be asked: {0}")]
    Limit(String),
}

impl Run {
    /// Waits for a time, on the store's clock: a restart does not begin the wait anew.
    ///
    /// # Errors
    /// [`Cancelled`] when the caller asked for the end of the work before the time came.
    pub async fn sleep(&self, key: StepKey, wake: Wake) -> Result<(), Cancelled> {
        self.unless_revoked().await;
        let lease = self.become_task().await;
        let Some(mut used) = self.use_key(&key) else { match self.misuse(used_twice(&key)).await {} };
        lease.warn_of_waiting();
        let span = info_span!(parent: &spans::inner(self.span()), "sleep", %key);
        self.sleep_until_due(&lease, &key, wake).instrument(span).await?;
        used.keep();
        self.0.activity.moved();
        Ok(())
    }

    async fn sleep_until_due(&self, lease: &Arc<Lease>, key: &StepKey, wake: Wake) -> Result<(), Cancelled> {
        let known = lock(&lease.seen).kind(key);
        match known {
            Some(EntryKind::TimerSet) => {}
            Some(kind) => match self.misuse(other_kind(key, kind, "timer")).await {},
            None if self.cancel().is_cancelled() => return Err(Cancelled),
            None => self.set_timer(lease, key, wake).await,
        }
        self.pass_timer(lease, key).await
    }

    async fn set_timer(&self, lease: &Arc<Lease>, key: &StepKey, wake: Wake) {
        let set = Event::SetTimer { key: key.clone(), wake };
        if let Err(illegal) = self.commit(lease, vec![set]).await {
            match self.misuse(format!("the timer '{key}' could not be set: {illegal}")).await {}
        }
        self.refresh(lease).await;
    }

    /// Waits until a timer that is set is due, and marks it as passed.
    async fn pass_timer(&self, lease: &Arc<Lease>, key: &StepKey) -> Result<(), Cancelled> {
        match lock(&lease.seen).timer(key) {
            Some(timer) if timer.fired => return Ok(()),
            _ => {}
        }
        self.until_due(lease, key).await?;
        // Refused only where the task is over.
        let _ = self.commit(lease, vec![Event::FireTimer { key: key.clone() }]).await;
        Ok(())
    }

    async fn until_due(&self, lease: &Lease, key: &StepKey) -> Result<(), Cancelled> {
        let Some(timer) = lock(&lease.seen).timer(key) else {
            match self.misuse(format!("the timer '{key}' cannot be read from the history of the task")).await {}
        };
        let mut waiting = None;
        loop {
            let left = timer.due.since(lease.store_now());
            if left.is_zero() {
                return Ok(());
            }
            if self.cancel().is_cancelled() {
                return Err(Cancelled);
            }
            waiting.get_or_insert_with(|| self.0.activity.wait());
            tokio::select! {
                biased;
                () = self.cancel().cancelled() => {}
                () = sleep(if lease.recovery == Recovery::Fail { left.min(LOOK_AGAIN) } else { left }) => {}
            }
        }
    }

    /// Asks all of `questions` at once and waits for every answer. What was asked by an earlier attempt is not asked
    /// again, and what was answered returns at once.
    ///
    /// # Errors
    /// [`AskRefused`] says why nothing was asked, or that no answer will come.
    pub async fn ask(
        &self,
        questions: Vec<(InputKey, Question)>,
    ) -> Result<BTreeMap<InputKey, Payload>, AskRefused> {
        let span = self.ask_span(questions.len());
        let answers = self.ask_all(questions).instrument(span.clone()).await;
        span.record("outcome", asked(answers.as_ref().map(|_| true)));
        answers
    }

    async fn ask_all(
        &self,
        questions: Vec<(InputKey, Question)>,
    ) -> Result<BTreeMap<InputKey, Payload>, AskRefused> {
        let (mut asking, own) = self.open(questions, None).await?;
        loop {
            // Registered before the look, so that an answer in between is not missed.
            let mut news = std::pin::pin!(self.0.news.notified());
            news.as_mut().enable();
            self.refresh(&asking.lease).await;
            if let Some(answers) = asking.answers() {
                // Before the answers count as heard: work that parks now has gone on.
                self.0.activity.moved();
                asking.over = true;
                return Ok(own.into_iter().zip(answers).collect());
            }
            if self.cancel().is_cancelled() {
                asking.over = true;
                return Err(AskRefused::Cancelled);
            }
            // Only while it really waits: work that has its answers and has not seen them runs.
            let _waiting = self.0.activity.wait();
            tokio::select! {
                biased;
                () = news => {}
                () = self.cancel().cancelled() => {}
            }
        }
    }

    /// Asks one question and waits for its answer until a time on the store's clock; then the question is taken back and
    /// the result is `None`, on every later attempt too. An answer that was acknowledged before that counts.
    ///
    /// # Errors
    /// [`AskRefused`] says why nothing was asked, or that no answer will come.
    pub async fn ask_until(
        &self,
        key: InputKey,
        question: Question,
        wake: Wake,
    ) -> Result<Option<Payload>, AskRefused> {
        let span = self.ask_span(1);
        let answer = self.ask_one_until(key, question, wake).instrument(span.clone()).await;
        span.record("outcome", asked(answer.as_ref().map(Option::is_some)));
        answer
    }

    async fn ask_one_until(
        &self,
        key: InputKey,
        question: Question,
        wake: Wake,
    ) -> Result<Option<Payload>, AskRefused> {
        let timer = timeout_key(&key)?;
        // Free again when this is dropped: nothing waits for the timer then.
        let mut limit = self.use_key(&timer).ok_or_else(|| AskRefused::KeyUsed(key.clone()))?;
        let (mut asking, _) = self.open(vec![(key, question)], Some((&timer, wake))).await?;
        let lease = asking.lease.clone();
        let asked = asking.keys[0].clone();
        loop {
            let mut news = std::pin::pin!(self.0.news.notified());
            news.as_mut().enable();
            self.refresh(&lease).await;
            if let Some(answer) = answer(&lease, &asked) {
                if lock(&lease.seen).timer(&timer).is_some_and(|timer| !timer.fired) {
                    // Nothing waits for it any more, and when it is due it would wake work that is parked by then.
                    let _ = self.commit(&lease, vec![Event::FireTimer { key: timer.clone() }]).await;
                }
                self.0.activity.moved();
                asking.over = true;
                limit.keep();
                return Ok(Some(answer));
            }
            if lock(&lease.seen).timer(&timer).is_some_and(|timer| timer.fired) {
                self.0.activity.moved();
                asking.over = true;
                limit.keep();
                return Ok(None);
            }
            let due = tokio::select! {
                biased;
                due = self.until_due(&lease, &timer) => due,
                () = async {
                    let _waiting = self.0.activity.wait();
                    news.await;
                } => continue,
            };
            if due.is_err() {
                asking.over = true;
                return Err(AskRefused::Cancelled);
            }
            // Both or none. An answer that came first is in the journal, and taking its question back changes nothing.
            let events =
                vec![Event::Withdraw { key: asked.clone() }, Event::FireTimer { key: timer.clone() }];
            let _ = self.commit(&lease, events).await;
        }
    }

    /// Closed without an outcome, it tells of work that was unloaded, or of a question that was dropped.
    fn ask_span(&self, questions: usize) -> Span {
        info_span!(parent: &spans::inner(self.span()), "ask", questions, outcome = Empty)
    }

    /// Asks what is not asked yet, with the timer that limits the wait. Returns the questions as they are asked by now, and
    /// the tool's own keys.
    async fn open(
        &self,
        questions: Vec<(InputKey, Question)>,
        limit: Option<(&StepKey, Wake)>,
    ) -> Result<(Asking, Vec<InputKey>), AskRefused> {
        self.unless_revoked().await;
        if let Some((_, question)) = questions.iter().find(|(_, asked)| !self.0.asks.allows(asked.kind())) {
            return Err(AskRefused::Undeclared(question.kind()));
        }
        let own: Vec<_> = questions.iter().map(|(key, _)| key.clone()).collect();
        let mut used = Vec::with_capacity(own.len());
        for key in &own {
            used.push(self.use_key(&key.into()).ok_or_else(|| AskRefused::KeyUsed(key.clone()))?);
        }
        let lease = self.become_task().await;
        lease.warn_of_waiting();
        // Before anything else can be over: a race that this loses at once takes back what an earlier attempt asked.
        let known: Vec<_> = own.iter().map(|key| lock(&lease.seen).current_key(key)).collect();
        asks(&known);
        lock(&self.0.wanted).extend(known);
        self.refresh(&lease).await;
        let (questions, new, timed_out) = {
            let seen = lock(&lease.seen);
            let fired = |key| seen.timer(key).is_some_and(|timer| timer.fired);
            let timed_out = limit.is_some_and(|(timer, _)| fired(timer));
            // What was taken back because its time was over is not asked under a further key.
            let current = |key: InputKey| {
                let current = seen.current_key(&key);
                if timed_out && !seen.was_asked(&current) { key } else { current }
            };
            let questions: Vec<_> =
                questions.into_iter().map(|(key, question)| (current(key), question)).collect();
            let new: Vec<_> = questions.iter().filter(|(key, _)| !seen.was_asked(key)).cloned().collect();
            (questions, new, timed_out)
        };
        let keys: Vec<_> = questions.into_iter().map(|(key, _)| key).collect();
        asks(&keys);
        lock(&self.0.wanted).extend(keys.iter().cloned());
        // From before the write: dropped in the middle of it, the questions may be asked all the same.
        let number = {
            let mut asking = lock(&self.0.asking);
            let number = asking.last_key_value().map_or(0, |(last, _)| last + 1);
            asking.insert(number, keys.clone());
            number
        };
        let mut asking = Asking { run: self.clone(), lease: lease.clone(), number, keys, used, over: false };
        if new.is_empty() || timed_out {
            return Ok((asking, own));
        }
        if self.cancel().is_cancelled() {
            asking.over = true;
            return Err(AskRefused::Cancelled);
        }
        // What the work last said comes with its question, so that nobody is asked beside an older message.
        let message = self.last_message();
        let timer = limit.map(|(key, wake)| Event::SetTimer { key: key.clone(), wake });
        let asks = new.into_iter().map(|(key, question)| Event::Ask { key, question });
        let events = message.into_iter().chain(timer).chain(asks).collect();
        if let Err(illegal) = self.commit(&lease, events).await {
            // All or none: nothing was asked, and nothing was used.
            asking.nothing_was_asked();
            if illegal == Illegal::CancelRequested {
                // The first that is heard of it here, where it was told to another process and its hint is on its way.
                self.cancel().cancel();
            }
            return Err(refused(illegal));
        }
        Ok((asking, own))
    }
}

/// Questions that are being asked. Dropped before their answers came, they are withdrawn.
struct Asking {
    run: Run,
    lease: Arc<Lease>,
    number: u64,
    keys: Vec<InputKey>,
    used: Vec<UsedKey>,
    over: bool,
}

impl Asking {
    /// Every answer, in the order of the keys.
    fn answers(&self) -> Option<Vec<Payload>> {
        self.keys.iter().map(|key| answer(&self.lease, key)).collect()
    }

    fn nothing_was_asked(&mut self) {
        self.over = true;
        self.used.clear();
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // A key that was asked under is never free again (S18).
        self.used.iter_mut().for_each(UsedKey::keep);
        if self.over {
            lock(&self.run.0.asking).remove(&self.number);
            return;
        }
        // An attempt that is unloaded leaves its questions to the next one.
        if self.run.is_revoked() {
            return;
        }
        lock(&self.run.0.asking).remove(&self.number);
        // Where the write below does not come through, the one that parks the task takes them back.
        lock(&self.run.0.dropped).extend(self.keys.iter().cloned());
        let (run, lease) = (self.run.clone(), self.lease.clone());
        let events: Vec<_> = self
            .keys
            .drain(..)
            .filter(|key| answer(&lease, key).is_none())
            .map(|key| Event::Withdraw { key })
            .collect();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // The questions may be on their way still.
                lease.writing.settled().await;
                let unload = run.unload().clone();
                tokio::select! {
                    biased;
                    () = unload.cancelled() => {}
                    _ = run.commit(&lease, events) => {}
                }
            });
        }
    }
}

/// How asking went; `Ok(false)` is a time that was over before the answer came.
fn asked(answered: Result<bool, &AskRefused>) -> &'static str {
    match answered {
        Ok(true) => "answered",
        Ok(false) => "timed_out",
        Err(AskRefused::Cancelled) => "cancelled",
        Err(_) => "refused",
    }
}

/// The key of the timer that limits the wait for an answer. Tools cannot use it, because theirs do not begin so.
fn timeout_key(key: &InputKey) -> Result<StepKey, AskRefused> {
    let room = "the key of a question with a time limit is at most 240 bytes long";
    StepKey::new(format!("outlast:limit:{key}")).map_err(|_| AskRefused::Limit(room.to_owned()))
}

/// What a person is told whose tool uses a key twice.
pub(crate) fn used_twice(key: &StepKey) -> String {
    format!(
        "the tool used the key '{key}' twice; each step, timer and question of a task needs a key of its own, \
         which `scope` gives to the turns of a loop"
    )
}

/// What a person is told whose tool uses a key for something else than an earlier attempt did.
pub(crate) fn other_kind(key: &StepKey, kind: EntryKind, wanted: &str) -> String {
    let names = match kind {
        EntryKind::Asked => "question",
        EntryKind::Step => "step",
        EntryKind::TimerSet => "timer",
        _ => "something else",
    };
    format!(
        "the key '{key}' names a {names} in the history of this task, and the tool uses it for a {wanted}; \
         a tool that changed so needs another version, or other keys"
    )
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
