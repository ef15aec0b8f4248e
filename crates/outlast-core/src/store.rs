//! The contract between the runtime and whatever keeps its tasks.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    By, Call, Event, Hints, Illegal, JournalPage, NewTask, Owner, Status, Task, TaskId, Timestamp, Token,
    WorkerId,
};

/// A durable home of tasks.
///
/// A store runs [`Task::decide`] **inside** its atomic step. Callers send events and an authority, never a new state,
/// so an answer that arrives while a worker runs is merged and not fought over; no caller ever sees a conflict.
///
/// # What every store keeps
/// - **Durable before it returns.** What `create`, `apply`, `claim` and `renew` answer, a refusal included, follows
///   from state that survives `kill -9`.
/// - **Fencing by token.** A worker's events commit exactly while its token is the task's newest and its lease was
///   neither given back nor ended, whatever the time.
/// - **Linearizable reads.** `get` sees every change that was acknowledged before it began.
/// - **Same call again, same answer.** After [`StoreError::Unknown`] an identical retry is safe.
/// - **One damaged task is one.** A task that cannot be read is [`StoreError::Damaged`] to who asks for it, and what walks
///   many tasks passes it over.
/// - **Its own time.** Durations cross this trait, instants do not come in; a store reads the clock that it was given,
///   and that time never runs back.
/// - **Clones share.** A store is used through `Arc`; every clone sees the same tasks.
///
/// The suite in `outlast-testkit` shows each of these for a backend.
#[async_trait]
pub trait Store: Inspect {
    /// Creates a task, durably before it returns; with a lease, its first claim is part of the same write, as is what it
    /// takes over from a failed task ([`NewTask::journal`]).
    ///
    /// Sent again it answers with the task as it is by then, and with the token only while the first lease is still in
    /// the hands of that worker.
    ///
    /// With an idempotency key that its owner used before: the task that exists for the same request,
    /// [`Created::KeyReused`] for another one.
    async fn create(&self, new: NewTask, lease: Option<LeaseRequest>) -> Result<Created, StoreError>;

    /// Applies `events` on the word of `by`, all or none.
    ///
    /// A task of another owner is [`Applied::NotFound`]. Events that were journaled before, or come too late, are
    /// [`Applied::Absorbed`].
    async fn apply(&self, id: TaskId, by: By, events: Vec<Event>) -> Result<Applied, StoreError>;

    /// Hands out up to [`ClaimRequest::max`] tasks that are ready now, each under its next token.
    ///
    /// Owners are served in turn, so that one who floods the queue does not keep another waiting; no task goes to two
    /// workers. Leases that ran out are ended first ([`Event::LoseLease`]), also of tools that the worker does not
    /// serve: else they would hold places of their owner for ever.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError>;

    /// Extends the leases that `worker` holds, in one write, and reports what is new to it. Answers in the order of
    /// `held`.
    async fn renew(
        &self,
        worker: WorkerId,
        held: Vec<Held>,
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError>;

    /// The task as it is now; `None` when there is none of this id. Whether the asker may see it is for the caller of
    /// this method to judge, by [`Task::owner`].
    async fn get(&self, id: TaskId) -> Result<Option<Task>, StoreError>;

    /// The journal after entry `after_seq`, as many entries as fit in `max_bytes` and at least one; empty for an
    /// unknown task.
    async fn journal(&self, id: TaskId, after_seq: u64, max_bytes: u64) -> Result<JournalPage, StoreError>;

    /// Revision and finality of many tasks at once, in order, for those who follow changes; `None` where there is no
    /// such task.
    async fn heads(&self, ids: Vec<TaskId>) -> Result<Vec<Option<Head>>, StoreError>;

    /// Does what is due on at most `max` tasks that no worker holds ([`Task::sweep`]), and forgets idempotency keys
    /// whose time is over. Small writes, so that it never stalls the callers of other methods.
    async fn sweep(&self, max: u32) -> Result<Swept, StoreError>;

    /// The change feed from now on, changes by other processes on the same store included. Hints come after their
    /// change is durable, and may be lost or merged.
    fn watch(&self) -> Hints;
}

/// What an operator may ask of a store, beyond what the runtime needs.
#[async_trait]
pub trait Inspect: Send + Sync + 'static {
    /// Tasks that `filter` lets through, newest first, at most `max` from the place that an earlier page ended at.
    async fn list(&self, filter: Filter, after: Option<String>, max: u32) -> Result<ListPage, StoreError>;

    /// How many tasks there are of each status, how many a worker holds, and how many wait for one.
    async fn counts(&self) -> Result<Counts, StoreError>;

    /// The workers of this store, each as of its last claim: a task of which none serves the tool in its version
    /// ([`ToolVersion::served_by`]) is taken up by nobody. Where nothing of a worker is heard that has gone, it is still
    /// among them until another one takes its place, or until a store that several share has not heard of it for a while.
    async fn workers(&self) -> Result<Vec<WorkerSeen>, StoreError>;

    /// How many of this owner's tasks hold a place ([`Task::holds_slot`]), which [`WorkerSeen::per_owner`] limits.
    async fn running(&self, owner: Owner) -> Result<u32, StoreError>;

    /// The call that a task carries out; `None` when there is no such task.
    async fn call(&self, id: TaskId) -> Result<Option<Call>, StoreError>;

    /// Whether no other process can take a task over while this one has the store open.
    ///
    /// Where that is so, a worker whose store is down goes on past the time of its leases, because nobody else can have
    /// got its work. Otherwise it drops the work, for somebody may.
    fn is_exclusive(&self) -> bool;

    /// Whether another process runs this store's work for now, so that nothing that is created here is leased here.
    ///
    /// A server that knows so begins no work that it could not go on with.
    fn is_front(&self) -> bool {
        false
    }
}

/// Why a store could not answer. Each variant asks something else of its caller.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing was done; try again after a while.
    #[error("the store cannot take this now; nothing was changed")]
    Unavailable(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// It may have been done; an identical retry is safe and tells.
    #[error("the store failed while it wrote; whether the change was kept is not known")]
    Unknown(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// This task cannot be read. It was left as it is, no retry helps, and other tasks are not concerned.
    #[error("the task is damaged in the store and cannot be read; nothing was changed")]
    Damaged(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The store cannot go on, and no retry helps.
    #[error("the store has failed and takes no more work")]
    Fatal(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    /// [`StoreError::Unavailable`] for this reason.
    pub fn unavailable(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unavailable(reason.into().into())
    }

    /// [`StoreError::Unknown`] for this reason.
    pub fn unknown(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unknown(reason.into().into())
    }

    /// [`StoreError::Damaged`] for this reason.
    pub fn damaged(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Damaged(reason.into().into())
    }

    /// [`StoreError::Fatal`] for this reason.
    pub fn fatal(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Fatal(reason.into().into())
    }

    /// Whether the same call may be sent again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unknown(_))
    }
}

/// A lease to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Who takes it.
    pub worker: WorkerId,
    /// For how long.
    pub lease: Duration,
}

/// How [`Store::create`] went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// The task exists now and is durable; with the token of its lease, if one was asked for.
    Created {
        /// The task.
        task: Task,
        /// The token of the lease.
        token: Option<Token>,
    },
    /// The key had been used for the same request: this is its task.
    Existing(Task),
    /// The key had been used for another request.
    KeyReused,
    /// The key's task was kept for its time and is gone; running the request again would be a second run.
    KeySpent,
    /// The owner has as many unfinished tasks as allowed.
    OverQuota,
}

/// How [`Store::apply`] went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// The change is durable, and this is the task after it.
    Applied(Task),
    /// Nothing had to change.
    Absorbed(Task),
    /// The lease of this token was taken over; the worker must stop.
    Fenced,
    /// No such task for this sender.
    NotFound,
    /// Refused, all of it.
    Illegal(Illegal),
}

/// A tool of one version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ToolVersion {
    /// The tool.
    pub tool: String,
    /// Its version, empty when it has none.
    pub version: String,
}

impl ToolVersion {
    /// This tool at this version.
    #[must_use]
    pub fn new(tool: impl Into<String>, version: impl Into<String>) -> Self {
        Self { tool: tool.into(), version: version.into() }
    }

    /// What these workers serve, in order and each once.
    #[must_use]
    pub fn served_by(workers: &[WorkerSeen]) -> Vec<Self> {
        let served: BTreeSet<_> = workers.iter().flat_map(|seen| seen.serves.iter()).collect();
        served.into_iter().cloned().collect()
    }
}

/// What is known of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSeen {
    /// What it can run.
    pub serves: Arc<[ToolVersion]>,
    /// How many running tasks it lets one owner have, over all workers.
    pub per_owner: u32,
}

/// What a worker wants to take up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The worker.
    pub worker: WorkerId,
    /// What it can run.
    pub serves: Arc<[ToolVersion]>,
    /// How many running tasks ([`Task::holds_slot`]) one owner may have, over all workers.
    pub per_owner: u32,
    /// For how long it takes them.
    pub lease: Duration,
    /// How many it has room for.
    pub max: u32,
}

/// A task that a worker took up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The task, leased to the worker.
    pub task: Task,
    /// The call that it carries out.
    pub call: Call,
    /// The token to write with.
    pub token: Token,
}

/// A lease that a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The task.
    pub id: TaskId,
    /// The token of the lease.
    pub token: Token,
}

/// What a renewal tells about one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Somebody else has the task, or it has ended or is gone: stop.
    Lost,
    /// The lease holds.
    Kept {
        /// The last entry that an answer or a cancel made; one that the worker has not seen is news.
        inbox_seq: u64,
        /// Whether the caller asked for the end.
        cancel: bool,
    },
}

/// What a follower of changes needs of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The task's revision.
    pub revision: u64,
    /// Whether it is final.
    pub is_final: bool,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// How many tasks it changed or removed.
    pub done: u32,
    /// How long until something is due; zero when more is due now, `None` when nothing is in sight.
    pub next_due: Option<Duration>,
}

/// Which tasks to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Of this owner alone.
    pub owner: Option<Owner>,
    /// In this status alone.
    pub status: Option<Status>,
    /// Of this tool alone.
    pub tool: Option<String>,
}

impl Filter {
    /// Whether `task` is let through.
    #[must_use]
    pub fn admits(&self, task: &Task) -> bool {
        self.owner.as_ref().is_none_or(|owner| *owner == task.owner)
            && self.status.is_none_or(|status| status == task.status())
            && self.tool.as_ref().is_none_or(|tool| *tool == task.spec.tool)
    }
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListPage {
    /// The tasks, newest first.
    pub tasks: Vec<Task>,
    /// Where the next page begins; `None` when this is the last.
    pub next: Option<String>,
    /// What the store's clock said.
    pub now: Timestamp,
}

/// How many tasks there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// By status, in the order of [`Status::ALL`].
    pub by_status: [u64; 5],
    /// Those that a worker holds.
    pub leased: u64,
    /// Those that are ready by the store's clock ([`Task::ready_at`]): a worker is to take them up now, and none has.
    ///
    /// Whatever keeps workers from them: there is none, none has room, none serves the version, their owner is at its
    /// limit. A lease that ran out makes its task ready as well, from its end on; until a claim ends it, it is also
    /// among [`Counts::leased`].
    pub ready: u64,
    /// For how long that one of them has been ready which has been for longest; `None` when there is none.
    pub oldest_ready: Option<Duration>,
}

impl Counts {
    /// How many are in `status`.
    #[must_use]
    pub fn of(&self, status: Status) -> u64 {
        self.by_status[status as usize]
    }

    /// How many there are in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_status.iter().sum()
    }
}
