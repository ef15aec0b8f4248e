//! A task as a value, and what follows from it: its wire status, when it is ready, when it is due.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Entry, EntryKind, Event, InputKey, NewTask, Owner, Payload, Question, Spec, StepKey, TaskId, Timestamp,
    Token, WorkerId, retry,
};

/// A durable task.
///
/// A task is changed by [`Task::apply`] alone, which returns a new value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its public id.
    pub id: TaskId,
    /// Who it belongs to.
    pub owner: Owner,
    /// The terms that it was created under.
    pub spec: Arc<Spec>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When anything that a caller can see last changed.
    pub updated_at: Timestamp,
    /// Readable for this long from its creation; `None` is for ever (S11).
    pub ttl: Option<Duration>,
    /// What the work says about itself, or why it ended.
    pub status_message: Option<String>,
    /// What state it is in, with what belongs to that state.
    pub state: TaskState,
    /// Grows with every change that a caller can see, and orders reads.
    pub revision: u64,
    /// The last entry of its journal, 0 when that is empty.
    pub seq: u64,
    /// The last entry that somebody other than the worker made: an answer or a cancel.
    pub inbox_seq: u64,
    /// The size of its journal in bytes.
    pub journal_bytes: u64,
    /// The fencing token of the last claim.
    pub token: Token,
    /// How many of its entries the work itself made ([`EntryKind::is_of_work`](crate::EntryKind::is_of_work)).
    #[serde(default)]
    pub entries: u64,
    /// The first of the tasks that this one goes on from, where it was created to start a failed one again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<TaskId>,
    /// The attempts in a row that ended by a lost lease, since work last made progress.
    pub lost: Vec<Timestamp>,
}

/// The state of a task. The last three are final: nothing changes them (S12).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// The work is not over.
    Live(Live),
    /// It ended with a result, which may be a tool error (S13).
    Completed {
        /// What the call would have returned (S14).
        result: Payload,
    },
    /// It ended with a JSON-RPC error (S13).
    Failed {
        /// That error.
        error: TaskError,
    },
    /// It ended because its caller asked for it.
    Cancelled,
}

/// Work that is not over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Where the work is.
    pub run: Run,
    /// When its caller asked for its end, if they did.
    pub cancel: Option<Timestamp>,
    /// The outstanding questions (S18).
    pub questions: BTreeMap<InputKey, Question>,
    /// The timers that have not fired, and when they are due.
    pub timers: BTreeMap<StepKey, Timestamp>,
}

/// Where unfinished work is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Run {
    /// Nobody has it; it may be claimed from this instant on.
    Queued {
        /// Not before.
        not_before: Timestamp,
    },
    /// A worker has it.
    Leased(Lease),
    /// Nobody has it; it waits for an answer, a timer, or this instant.
    Parked {
        /// The last journal entry that the work had seen.
        seen_seq: u64,
        /// Come back at this instant in any case.
        wake: Option<Timestamp>,
    },
}

/// A worker's hold on a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Who holds it.
    pub worker: WorkerId,
    /// Until when, unless renewed.
    pub until: Timestamp,
    /// Whether the worker runs nothing beside it ([`Event::RunAlone`]), until the work gets on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
}

/// What a store repeats of a task beside its value, to find it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Its status.
    pub status: Status,
    /// Whether a worker holds it.
    pub leased: bool,
    /// Whether it takes up a place ([`Task::holds_slot`]).
    pub running: bool,
    /// From when on it may be claimed ([`Task::ready_at`]); of a leased task, when its lease ends.
    pub ready_at: Option<Timestamp>,
    /// When there is next something to do with it ([`Task::next_deadline`]).
    pub due_at: Option<Timestamp>,
}

impl Shape {
    /// The shape of a task.
    #[must_use]
    pub fn of(task: &Task) -> Self {
        Self {
            status: task.status(),
            leased: task.lease().is_some(),
            running: task.holds_slot(),
            ready_at: task.ready_at(),
            due_at: task.next_deadline(),
        }
    }

    /// From when on a claim may hand it out.
    #[must_use]
    pub fn claimable_at(self) -> Option<Timestamp> {
        self.ready_at.filter(|_| !self.leased)
    }
}

/// A JSON-RPC error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskError {
    /// Its code.
    pub code: i64,
    /// What it tells a person.
    pub message: String,
    /// What else it carries.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::payload::present")]
    pub data: Option<Payload>,
}

impl TaskError {
    /// An error without data.
    #[must_use]
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// An internal error (`-32603`).
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(-32603, message)
    }
}

/// The status on the wire (S12), derived from the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The work goes on.
    Working,
    /// The work waits for answers, whatever else it does.
    InputRequired,
    /// Ended with a result.
    Completed,
    /// Ended with a JSON-RPC error.
    Failed,
    /// Ended because the caller asked for it.
    Cancelled,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Working, Self::InputRequired, Self::Completed, Self::Failed, Self::Cancelled];

    /// Whether nothing can change any more (S12).
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// The status as it is written on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The status that is written so, if any is.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// Poll intervals where the author fixed none: short while the task is young, longer as it ages, and longer still
/// while a person is asked.
const POLL_YOUNG: Duration = Duration::from_millis(500);
const POLL_OLD: Duration = Duration::from_secs(10);
const POLL_ASKING: Duration = Duration::from_secs(2);

impl Task {
    /// The task that `new` asks for, created at `now` and owned by nobody's lease.
    #[must_use]
    pub fn create(new: &NewTask, now: Timestamp) -> Self {
        let journal = new.journal();
        let mut task = Self {
            id: new.id,
            owner: new.owner.clone(),
            spec: new.spec.clone(),
            created_at: now,
            updated_at: now,
            ttl: new.spec.ttl,
            status_message: None,
            state: TaskState::Live(Live {
                run: Run::Queued { not_before: now },
                cancel: None,
                questions: retry::outstanding(&journal),
                timers: retry::unfired(&journal),
            }),
            revision: 1,
            seq: 0,
            inbox_seq: 0,
            journal_bytes: 0,
            token: Token::default(),
            entries: 0,
            origin: new.takes_up.as_ref().map(|taken| taken.origin),
            lost: Vec::new(),
        };
        for entry in &journal {
            task.count(entry);
        }
        task
    }

    /// Keeps what a task knows of its journal when `entry` is added to it.
    pub(crate) fn count(&mut self, entry: &Entry) {
        self.seq = entry.seq;
        self.journal_bytes += entry.size();
        self.entries += u64::from(entry.kind.is_of_work());
        if matches!(entry.kind, EntryKind::Answered | EntryKind::CancelRequested) {
            self.inbox_seq = entry.seq;
        }
    }

    /// The task that `new` asks for, leased to a worker from its start, which saves the write of a claim.
    #[must_use]
    pub fn create_leased(new: &NewTask, worker: WorkerId, lease: Duration, now: Timestamp) -> Self {
        let mut task = Self::create(new, now);
        task.token = task.token.next();
        if let TaskState::Live(live) = &mut task.state {
            live.run = Run::Leased(Lease { worker, until: now + lease, alone: false });
        }
        task
    }

    /// The status on the wire: outstanding questions make it `input_required` (S18).
    #[must_use]
    pub fn status(&self) -> Status {
        match &self.state {
            TaskState::Live(live) if live.questions.is_empty() => Status::Working,
            TaskState::Live(_) => Status::InputRequired,
            TaskState::Completed { .. } => Status::Completed,
            TaskState::Failed { .. } => Status::Failed,
            TaskState::Cancelled => Status::Cancelled,
        }
    }

    /// Whether nothing can change any more (S12).
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.status().is_final()
    }

    /// The unfinished work, if it is unfinished.
    #[must_use]
    pub fn live(&self) -> Option<&Live> {
        match &self.state {
            TaskState::Live(live) => Some(live),
            _ => None,
        }
    }

    /// The lease, if a worker holds one.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        match self.live()?.run {
            Run::Leased(ref lease) => Some(lease),
            _ => None,
        }
    }

    /// Whether any worker ever had it.
    #[must_use]
    pub fn was_claimed(&self) -> bool {
        self.token > Token::default()
    }

    /// Whether it may be what killed its workers: its last two attempts, or all that it is allowed, ended by a lost
    /// lease. A worker runs a suspect alone ([`Event::RunAlone`]), so that it takes no other work with it and no other
    /// work's crash is put down to it.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.lost.len() as u64 >= u64::from(self.spec.max_attempts.min(2))
    }

    /// Whether the caller asked for its end.
    #[must_use]
    pub fn cancel_requested(&self) -> bool {
        self.live().is_some_and(|live| live.cancel.is_some())
    }

    /// Whether it takes up one of its worker's running slots: work that waits for a person does not.
    #[must_use]
    pub fn holds_slot(&self) -> bool {
        self.lease().is_some() && self.status() == Status::Working
    }

    /// From when on a worker may claim it; `None` when only an answer, a cancel or nothing at all can bring it back.
    #[must_use]
    pub fn ready_at(&self) -> Option<Timestamp> {
        let live = self.live()?;
        match &live.run {
            Run::Queued { not_before } => Some(*not_before),
            Run::Leased(lease) => Some(lease.until),
            // An entry that the work has not seen: ready since it came.
            Run::Parked { seen_seq, .. } if self.inbox_seq > *seen_seq => Some(self.updated_at),
            Run::Parked { wake, .. } => live.timers.values().copied().chain(*wake).min(),
        }
    }

    /// When the sweeper next has something to do with it; `None` when never.
    ///
    /// A leased task is its worker's to look after until the lease ends.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let due = self.due().into_iter().map(|(at, _)| at).min();
        match self.lease() {
            Some(lease) => due.map(|at| at.max(lease.until)),
            None => due,
        }
    }

    /// What the sweeper is to do with it at `now`.
    #[must_use]
    pub fn sweep(&self, now: Timestamp) -> Option<Sweep> {
        if self.lease().is_some_and(|lease| lease.until > now) {
            return None;
        }
        // A deadline that passed ends the task, whatever else is due.
        self.due().into_iter().filter(|(at, _)| *at <= now).map(|(_, what)| what).min()
    }

    fn due(&self) -> Vec<(Timestamp, Sweep)> {
        let expires = self.ttl.map(|ttl| self.created_at + ttl);
        let Some(live) = self.live() else {
            return expires.map(|at| (at, Sweep::Purge)).into_iter().collect();
        };
        let mut due = Vec::with_capacity(3);
        if let Some(deadline) = self.hard_deadline() {
            due.push((deadline, Sweep::PassDeadline));
        }
        if let Some(cancelled) = live.cancel {
            due.push((cancelled + self.spec.cancel_grace, Sweep::AbandonCancelled));
        }
        if let Some((expires, ttl)) = expires.zip(self.spec.ttl) {
            due.push((expires - ttl / 2, Sweep::RefreshTtl));
        }
        due
    }

    /// When its author wants it failed, if they set a deadline.
    #[must_use]
    pub fn hard_deadline(&self) -> Option<Timestamp> {
        self.spec.deadline.map(|deadline| self.created_at + deadline)
    }

    /// When a task that ended may be forgotten; `None` while it lives or when it is kept for ever. An age of exactly
    /// the TTL counts as expired.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        if self.is_final() { self.ttl.map(|ttl| self.created_at + ttl) } else { None }
    }

    /// How long the caller should wait before it polls again (S23).
    #[must_use]
    pub fn poll_interval(&self, now: Timestamp) -> Duration {
        if let Some(fixed) = self.spec.poll {
            return fixed;
        }
        let by_age = (now.since(self.created_at) / 10).clamp(POLL_YOUNG, POLL_OLD);
        if self.status() == Status::InputRequired { by_age.max(POLL_ASKING) } else { by_age }
    }
}

/// What a sweep does with a task; the first that is due is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sweep {
    /// The author's deadline passed.
    PassDeadline,
    /// Cancelled, and nobody took it up.
    AbandonCancelled,
    /// Half of its TTL is gone while the work lives.
    RefreshTtl,
    /// Ended, and its TTL is over.
    Purge,
}

impl Sweep {
    /// The event that carries it out; `None` for a purge, which removes the task instead of changing it.
    #[must_use]
    pub fn event(self) -> Option<Event> {
        match self {
            Self::PassDeadline => Some(Event::PassDeadline),
            Self::AbandonCancelled => Some(Event::AbandonCancelled),
            Self::RefreshTtl => Some(Event::RefreshTtl),
            Self::Purge => None,
        }
    }
}
