//! The state machine: the one place that says which event is legal in which state, and what it does.
//!
//! | | queued | leased | parked | final |
//! |---|---|---|---|---|
//! | answer | taken, or ignored | taken, or ignored | taken, or ignored | ignored |
//! | cancel | ends it unless begun | marked | marked | ignored |
//! | worker's events | - | as named | - | ignored |
//! | claim | leased | - | leased | - |
//! | renew | - | extended | - | - |
//! | lose lease | - | queued, or failed where it ran alone or must not run twice | - | - |
//! | pass deadline | fails it | fails it | fails it | ignored |
//! | refresh ttl, abandon | as named | as named | as named | - |
//!
//! "ignored" is a change of nothing; "-" is illegal. Whether the sender may send the event at all, and whether a
//! worker's token is the current one, is decided before, in [`Task::decide`].

use std::time::Duration;

use crate::{
    EntryKind, Event, Finished, InputKey, Known, Lease, Live, Outcome, Payload, Question, QuestionKind,
    Recovery, Run, Spec, StepKey, Task, TaskError, TaskState, Timestamp, Wake, WorkerId, journal::Entry,
};

/// What an event does to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Nothing: the event was journaled before, came too late, or is about nothing that is outstanding.
    Nothing,
    /// The task becomes this.
    To {
        /// The task after the event.
        task: Box<Task>,
        /// The entry that the event adds to the journal.
        entry: Option<Entry>,
    },
}

impl Change {
    /// The task after the event, if it changed.
    #[must_use]
    pub fn task(&self) -> Option<&Task> {
        match self {
            Self::Nothing => None,
            Self::To { task, .. } => Some(task),
        }
    }
}

/// Why an event is refused. Nothing of the task changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Illegal {
    /// The event has no place in the task's state, or this sender may not send it.
    #[error("{event} has no place in a task that is {state}")]
    State {
        /// The event's name.
        event: &'static str,
        /// The state's name.
        state: &'static str,
    },
    /// The key was used for another question, step or timer of the same kind (S18).
    #[error("the key '{key}' was used before in this task")]
    KeyUsed {
        /// The key.
        key: StepKey,
    },
    /// The key names a thing of another kind.
    #[error("the key '{key}' names something of another kind in this task")]
    KeyKind {
        /// The key.
        key: StepKey,
    },
    /// The answer's shape cannot belong to its question's kind.
    #[error("the answer to '{key}' does not have the shape of a result for its question")]
    AnswerShape {
        /// The question.
        key: InputKey,
    },
    /// The client did not declare that it can be asked this (S20a).
    #[error("the client did not declare that it can be asked this kind of question")]
    Undeclared {
        /// What was to be asked.
        kind: QuestionKind,
    },
    /// Work whose end was asked for may clean up, and may not ask.
    #[error("the task was cancelled and may not ask any more")]
    CancelRequested,
    /// Something is larger than the task's limits allow.
    #[error("{what} of {size} exceeds the limit of {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// Its size, in the limit's unit.
        size: u64,
        /// The limit.
        limit: u64,
    },
}

/// What a task that was stopped while a tool of [`Recovery::Fail`] ran tells its caller.
pub(crate) const OUTCOME_UNKNOWN: &str = "the server stopped while this work ran; it was not started again because that could do it twice, and its outcome is unknown";

impl Task {
    /// What `event` does to this task at `now`.
    ///
    /// `known` is what the journal already says about the event's [key](Event::key), if it has one. Replaying an event
    /// that was journaled is a change of nothing, so that an identical retry is safe.
    ///
    /// # Errors
    /// [`Illegal`] when the event has no place in this state or exceeds the task's limits.
    ///
    /// ```
    /// use outlast_core::*;
    /// let now = Timestamp::from_millis(0);
    /// let new = NewTask::new(TaskId::from_bytes([1; 16]), Owner::anonymous(), Spec::new("t"), Call::new(Payload::null()));
    /// let task = Task::create_leased(&new, WorkerId::new("w"), std::time::Duration::from_secs(30), now);
    /// let done = task.apply(&Event::Complete(Payload::null()), None, now)?;
    /// let done = done.task().unwrap();
    /// assert_eq!(done.status(), Status::Completed);
    /// // Final is final (S12).
    /// assert_eq!(done.apply(&Event::Cancel, None, now)?, Change::Nothing);
    /// # Ok::<(), Illegal>(())
    /// ```
    pub fn apply(&self, event: &Event, known: Option<&Known>, now: Timestamp) -> Result<Change, Illegal> {
        use Event as E;
        let TaskState::Live(live) = &self.state else { return self.apply_to_final(event) };
        // Before anything is copied: a caller may send any number of these.
        if matches!(event, E::Answer { key, .. } if !live.questions.contains_key(key)) {
            return Ok(Change::Nothing);
        }
        let mut next = Next { task: self.clone(), live: live.clone(), now, entry: None };
        match (&live.run, event) {
            // The caller, whatever the work does.
            (_, E::Answer { key, answer }) => return next.answer(key, answer),
            (Run::Queued { .. }, E::Cancel) if !self.was_claimed() => {
                return Ok(next.end(TaskState::Cancelled));
            }
            (_, E::Cancel) if live.cancel.is_some() => return Ok(Change::Nothing),
            (_, E::Cancel) => next.request_cancel(),

            // Asked for by the caller, confirmed by the work, or by the store for work that nobody took up.
            (Run::Leased(_), E::ConfirmCancel) | (_, E::AbandonCancelled) if live.cancel.is_some() => {
                return Ok(next.end(TaskState::Cancelled));
            }

            // The worker that holds it.
            (Run::Leased(_), E::Ask { key, question }) => return next.ask(key, question, known),
            (Run::Leased(_), E::Withdraw { key }) => return Ok(next.withdraw(key)),
            (Run::Leased(_), E::FinishStep { key, outcome, took, tries }) => {
                let finished = Finished { outcome: outcome.clone(), took: *took, tries: *tries };
                return next.finish_step(key, finished, known);
            }
            (Run::Leased(_), E::SetTimer { key, wake }) => return next.set_timer(key, *wake, known),
            (Run::Leased(_), E::FireTimer { key }) => return Ok(next.fire_timer(key)),
            (Run::Leased(_), E::SetMessage(message)) if self.status_message == *message => {
                return Ok(Change::Nothing);
            }
            (Run::Leased(_), E::SetMessage(message)) => next.set_message(message.as_deref())?,
            (Run::Leased(_), E::ExtendTtl(from_now)) => return Ok(next.extend_ttl(*from_now)),
            (Run::Leased(held), E::RunAlone | E::RunBeside) => {
                let alone = matches!(event, E::RunAlone);
                if held.alone == alone {
                    return Ok(Change::Nothing);
                }
                next.live.run = Run::Leased(Lease { alone, ..held.clone() });
                return Ok(next.quietly());
            }
            (Run::Leased(_), E::Complete(result)) => {
                limit("result bytes", result.len() as u64, self.spec.limits.result_bytes)?;
                return Ok(next.end(TaskState::Completed { result: result.clone() }));
            }
            (Run::Leased(_), E::Fail(error)) => {
                let data = error.data.as_ref().map_or(0, Payload::len);
                limit("error bytes", (error.message.len() + data) as u64, self.spec.limits.result_bytes)?;
                return Ok(next.fail(error.clone()));
            }
            (Run::Leased(_), E::Park { seen_seq, wake }) => {
                // Nobody has seen what is not there yet: what comes after this must wake the work.
                let seen_seq = (*seen_seq).min(self.seq);
                next.live.run = Run::Parked { seen_seq, wake: wake.map(|wake| now + wake) };
                next.journal(EntryKind::Parked, None, None);
                return Ok(next.quietly());
            }
            (Run::Leased(_), E::Release { began: true }) if self.spec.recovery == Recovery::Fail => {
                return Ok(next.fail(TaskError::internal(OUTCOME_UNKNOWN)));
            }
            (Run::Leased(_), E::Release { .. }) => {
                next.live.run = Run::Queued { not_before: now };
                next.journal(EntryKind::Released, None, None);
                return Ok(next.quietly());
            }

            // The store.
            (Run::Queued { .. } | Run::Parked { .. }, E::Claim { worker, lease }) => {
                return Ok(next.claim(worker, *lease));
            }
            (Run::Leased(held), E::Renew { lease }) => return Ok(next.renew(held, *lease)),
            (Run::Leased(held), E::LoseLease) => return Ok(next.lose_lease(held)),
            (_, E::PassDeadline) => {
                return Ok(
                    next.fail(TaskError::internal("the work took longer than its tool allows and was ended"))
                );
            }
            (_, E::RefreshTtl) => return Ok(next.refresh_ttl()),
            _ => return Err(Illegal::State { event: event.name(), state: state_name(&self.state) }),
        }
        Ok(next.visibly())
    }

    fn apply_to_final(&self, event: &Event) -> Result<Change, Illegal> {
        use Event as E;
        match event {
            // Acknowledged and without effect: a late answer or cancel (S20, S22), a worker's late word (S12).
            E::Answer { .. }
            | E::Cancel
            | E::Ask { .. }
            | E::Withdraw { .. }
            | E::FinishStep { .. }
            | E::SetTimer { .. }
            | E::FireTimer { .. }
            | E::SetMessage(_)
            | E::ExtendTtl(_)
            | E::RunAlone
            | E::RunBeside
            | E::Complete(_)
            | E::Fail(_)
            | E::ConfirmCancel
            | E::Park { .. }
            | E::Release { .. }
            | E::PassDeadline => Ok(Change::Nothing),
            E::Claim { .. } | E::Renew { .. } | E::LoseLease | E::RefreshTtl | E::AbandonCancelled => {
                Err(Illegal::State { event: event.name(), state: state_name(&self.state) })
            }
        }
    }
}

/// The name of a state, for error messages.
fn state_name(state: &TaskState) -> &'static str {
    match state {
        TaskState::Live(live) => match live.run {
            Run::Queued { .. } => "queued",
            Run::Leased(_) => "leased",
            Run::Parked { .. } => "parked",
        },
        TaskState::Completed { .. } => "completed",
        TaskState::Failed { .. } => "failed",
        TaskState::Cancelled => "cancelled",
    }
}

fn limit(what: &'static str, size: u64, limit: u64) -> Result<(), Illegal> {
    if size > limit { Err(Illegal::Limit { what, size, limit }) } else { Ok(()) }
}

/// A live task on its way to its next value.
struct Next {
    task: Task,
    live: Live,
    now: Timestamp,
    entry: Option<Entry>,
}

impl Next {
    // --- how a change ends

    /// A change that a caller can see.
    fn visibly(mut self) -> Change {
        self.task.revision += 1;
        self.task.updated_at = self.now;
        self.quietly()
    }

    /// A change that no caller can see.
    fn quietly(mut self) -> Change {
        self.task.state = TaskState::Live(self.live);
        Change::To { task: Box::new(self.task), entry: self.entry }
    }

    /// The last change of all.
    fn end(mut self, state: TaskState) -> Change {
        // The result stays readable for one further TTL, and for the minimum in any case.
        self.task.ttl = self
            .task
            .spec
            .ttl
            .zip(self.task.ttl)
            .map(|(base, now)| now.max(self.aged(base.max(self.task.spec.min_retention))));
        self.task.revision += 1;
        self.task.updated_at = self.now;
        self.task.state = state;
        Change::To { task: Box::new(self.task), entry: self.entry }
    }

    fn fail(mut self, error: TaskError) -> Change {
        // S13: the status message says why. It is cut to the limit, the error itself is whole.
        let room = usize::try_from(self.task.spec.limits.message_bytes).unwrap_or(usize::MAX);
        self.task.status_message = Some(cut(&error.message, room).to_owned());
        self.end(TaskState::Failed { error })
    }

    /// The age of the task this long from now.
    fn aged(&self, from_now: Duration) -> Duration {
        self.now.since(self.task.created_at).saturating_add(from_now)
    }

    // --- the journal

    fn journal(&mut self, kind: EntryKind, key: Option<StepKey>, body: Option<Payload>) {
        let entry = Entry { seq: self.task.seq + 1, at: self.now, kind, key, body };
        self.task.count(&entry);
        self.entry = Some(entry);
    }

    /// An entry that the work makes: limited, and a sign that it gets on.
    fn journal_work(&mut self, kind: EntryKind, key: StepKey, body: Option<Payload>) -> Result<(), Illegal> {
        let limits = &self.task.spec.limits;
        let size = (key.as_str().len() + body.as_ref().map_or(0, Payload::len)) as u64;
        limit("journal entries", self.task.entries + 1, limits.entries)?;
        limit("journal bytes", self.task.journal_bytes + size, limits.journal_bytes)?;
        self.task.lost.clear();
        if let Run::Leased(lease) = &mut self.live.run {
            // No suspect any more: others may run beside it again, and another crash may be theirs.
            lease.alone = false;
        }
        self.journal(kind, Some(key), body);
        Ok(())
    }

    // --- the caller

    fn answer(mut self, key: &InputKey, answer: &Payload) -> Result<Change, Illegal> {
        let Some(question) = self.live.questions.get(key) else { return Ok(Change::Nothing) };
        limit("answer bytes", answer.len() as u64, self.task.spec.limits.value_bytes)?;
        if !question.kind().admits(&answer.to_value()) {
            return Err(Illegal::AnswerShape { key: key.clone() });
        }
        self.live.questions.remove(key);
        self.journal(EntryKind::Answered, Some(key.into()), Some(answer.clone()));
        Ok(self.visibly())
    }

    /// Marks the cancel and takes the outstanding questions back: nobody should answer for work that is to end.
    fn request_cancel(&mut self) {
        self.live.cancel = Some(self.now);
        self.live.questions.clear();
        if let Run::Queued { not_before } = &mut self.live.run {
            // A cancel does not wait for the backoff.
            *not_before = self.now.min(*not_before);
        }
        self.journal(EntryKind::CancelRequested, None, None);
    }

    // --- the worker

    fn ask(mut self, key: &InputKey, question: &Question, known: Option<&Known>) -> Result<Change, Illegal> {
        match known {
            Some(Known { kind: EntryKind::Asked, body }) if body.as_ref() == Some(question.request()) => {
                return Ok(Change::Nothing);
            }
            Some(Known { kind: EntryKind::Asked, .. }) => return Err(Illegal::KeyUsed { key: key.into() }),
            Some(_) => return Err(Illegal::KeyKind { key: key.into() }),
            None => {}
        }
        if self.live.cancel.is_some() {
            return Err(Illegal::CancelRequested);
        }
        if !self.task.spec.asks.allows(question.kind()) {
            return Err(Illegal::Undeclared { kind: question.kind() });
        }
        let limits = &self.task.spec.limits;
        limit("question bytes", question.request().len() as u64, limits.value_bytes)?;
        limit("outstanding questions", self.live.questions.len() as u64 + 1, limits.questions.into())?;
        self.journal_work(EntryKind::Asked, key.into(), Some(question.request().clone()))?;
        self.live.questions.insert(key.clone(), question.clone());
        Ok(self.visibly())
    }

    fn withdraw(mut self, key: &InputKey) -> Change {
        if self.live.questions.remove(key).is_none() {
            return Change::Nothing;
        }
        self.journal(EntryKind::Withdrawn, Some(key.into()), None);
        self.visibly()
    }

    fn finish_step(
        mut self,
        key: &StepKey,
        finished: Finished,
        known: Option<&Known>,
    ) -> Result<Change, Illegal> {
        match known {
            Some(Known { kind: EntryKind::Step, .. }) => return Ok(Change::Nothing),
            Some(_) => return Err(Illegal::KeyKind { key: key.clone() }),
            None => {}
        }
        let (Outcome::Value(value) | Outcome::Error(value)) = &finished.outcome;
        limit("step bytes", value.len() as u64, self.task.spec.limits.value_bytes)?;
        let body = Payload::encode(&finished).ok();
        self.journal_work(EntryKind::Step, key.clone(), body)?;
        Ok(self.quietly())
    }

    fn set_timer(mut self, key: &StepKey, wake: Wake, known: Option<&Known>) -> Result<Change, Illegal> {
        match known {
            Some(Known { kind: EntryKind::TimerSet, .. }) => return Ok(Change::Nothing),
            Some(_) => return Err(Illegal::KeyKind { key: key.clone() }),
            None => {}
        }
        let at = match wake {
            Wake::After(duration) => self.now + duration,
            Wake::At(instant) => instant,
        };
        let body = Payload::encode(&at).ok();
        self.journal_work(EntryKind::TimerSet, key.clone(), body)?;
        self.live.timers.insert(key.clone(), at);
        Ok(self.quietly())
    }

    fn fire_timer(mut self, key: &StepKey) -> Change {
        if self.live.timers.remove(key).is_none() {
            return Change::Nothing;
        }
        self.journal(EntryKind::TimerFired, Some(key.clone()), None);
        self.quietly()
    }

    fn set_message(&mut self, message: Option<&str>) -> Result<(), Illegal> {
        let size = message.map_or(0, str::len) as u64;
        limit("status message bytes", size, self.task.spec.limits.message_bytes)?;
        self.task.status_message = message.map(str::to_owned);
        Ok(())
    }

    fn extend_ttl(mut self, from_now: Duration) -> Change {
        let wanted = self.aged(from_now.min(Spec::MAX_DURATION));
        match self.task.ttl {
            Some(ttl) if ttl < wanted => {
                self.task.ttl = Some(wanted);
                self.visibly()
            }
            _ => Change::Nothing,
        }
    }

    // --- the store

    fn claim(mut self, worker: &WorkerId, lease: Duration) -> Change {
        self.task.token = self.task.token.next();
        self.live.run = Run::Leased(Lease { worker: worker.clone(), until: self.now + lease, alone: false });
        let body = Payload::encode(worker.as_str()).ok();
        self.journal(EntryKind::Claimed, None, body);
        self.quietly()
    }

    fn renew(mut self, held: &Lease, lease: Duration) -> Change {
        let until = held.until.max(self.now + lease);
        self.live.run = Run::Leased(Lease { until, ..held.clone() });
        if self.refresh_ttl_due() { self.refresh_ttl() } else { self.quietly() }
    }

    fn refresh_ttl_due(&self) -> bool {
        let half = self.task.spec.ttl.map(|base| base / 2);
        self.task.ttl.zip(half).is_some_and(|(ttl, half)| self.aged(half) >= ttl)
    }

    fn refresh_ttl(mut self) -> Change {
        let Some((ttl, base)) = self.task.ttl.zip(self.task.spec.ttl) else { return Change::Nothing };
        if !self.refresh_ttl_due() {
            return Change::Nothing;
        }
        self.task.ttl = Some(ttl.max(self.aged(base)));
        self.visibly()
    }

    fn lose_lease(mut self, held: &Lease) -> Change {
        let body = Payload::encode(held.worker.as_str()).ok();
        self.journal(EntryKind::LeaseLost, None, body);
        if self.task.spec.recovery == Recovery::Fail {
            self.task.lost.push(self.now);
            return self.fail(TaskError::internal(OUTCOME_UNKNOWN));
        }
        // What runs beside a suspect may be what killed the worker: that is no proof against it.
        if held.alone || !self.task.is_suspect() {
            self.task.lost.push(self.now);
        }
        let lost = self.task.lost.len();
        if held.alone && lost as u64 >= u64::from(self.task.spec.max_attempts) {
            let error = TaskError::internal(self.given_up());
            return self.fail(error);
        }
        self.live.run = Run::Queued { not_before: self.now + backoff(lost) };
        self.quietly()
    }

    /// What a person is told of work that killed its workers.
    fn given_up(&self) -> String {
        let (lost, spec) = (&self.task.lost, &self.task.spec);
        let times = if lost.len() == 1 { "once".into() } else { format!("{} times in a row", lost.len()) };
        let told = format!(
            "the server stopped {times} while it ran this work, at the end with nothing beside it, so the work was given \
             up; finished steps and answers are kept in its history, and an operator can start it again with \
             `outlast tasks retry`; attempts were lost at "
        );
        // The newest of them, as many as the status message has room for.
        const EACH: usize = "2026-11-29T16:10:43.120Z, ".len();
        let room =
            usize::try_from(spec.limits.message_bytes).unwrap_or(usize::MAX).saturating_sub(told.len());
        let newest = &lost[lost.len().saturating_sub((room / EACH).max(1))..];
        let when: Vec<_> = newest.iter().map(Timestamp::to_string).collect();
        told + &when.join(", ")
    }
}

/// How long a task waits after its `lost`th lost lease in a row: the first retry is immediate.
fn backoff(lost: usize) -> Duration {
    match lost {
        0 | 1 => Duration::ZERO,
        n => Duration::from_secs(1 << (n - 2).min(6)),
    }
}

/// The longest prefix of `text` that is at most `bytes` long and whole characters.
fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
