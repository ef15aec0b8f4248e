//! Calls of a store as values, so that they can be under way.

use std::time::Duration;

use futures::FutureExt as _;
use outlast_core::{
    Applied, By, Call, ClaimRequest, Claimed, Counts, Created, Event, Filter, Head, Held, Inspect as _,
    JournalPage, LeaseRequest, ListPage, MemoryStore, NewTask, Owner, Renewal, Store as _, StoreError, Swept,
    Task, TaskId, WorkerId, WorkerSeen,
};

/// A method of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Create,
    Apply,
    Claim,
    Renew,
    Get,
    Journal,
    Heads,
    Sweep,
    List,
    Counts,
    Workers,
    Running,
    Call,
}

/// A call.
#[derive(Debug, Clone)]
pub(super) enum Request {
    Create(Box<NewTask>, Option<LeaseRequest>),
    Apply(TaskId, By, Vec<Event>),
    Claim(ClaimRequest),
    Renew(WorkerId, Vec<Held>, Duration),
    Get(TaskId),
    Journal(TaskId, u64, u64),
    Heads(Vec<TaskId>),
    Sweep(u32),
    List(Filter, Option<String>, u32),
    Counts,
    Workers,
    Running(Owner),
    Call(TaskId),
}

/// What a call returns.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Create(Created),
    Apply(Applied),
    Claim(Vec<Claimed>),
    Renew(Vec<Renewal>),
    Get(Option<Task>),
    Journal(JournalPage),
    Heads(Vec<Option<Head>>),
    Sweep(Swept),
    List(ListPage),
    Counts(Counts),
    Workers(Vec<WorkerSeen>),
    Running(u32),
    Call(Option<Call>),
}

impl Request {
    pub(super) fn operation(&self) -> Operation {
        match self {
            Self::Create(..) => Operation::Create,
            Self::Apply(..) => Operation::Apply,
            Self::Claim(_) => Operation::Claim,
            Self::Renew(..) => Operation::Renew,
            Self::Get(_) => Operation::Get,
            Self::Journal(..) => Operation::Journal,
            Self::Heads(_) => Operation::Heads,
            Self::Sweep(_) => Operation::Sweep,
            Self::List(..) => Operation::List,
            Self::Counts => Operation::Counts,
            Self::Workers => Operation::Workers,
            Self::Running(_) => Operation::Running,
            Self::Call(_) => Operation::Call,
        }
    }

    /// Carries the call out, at one moment.
    pub(super) fn perform(self, store: &MemoryStore) -> Result<Answer, StoreError> {
        Ok(match self {
            Self::Create(new, lease) => Answer::Create(at_once(store.create(*new, lease))?),
            Self::Apply(id, by, events) => Answer::Apply(at_once(store.apply(id, by, events))?),
            Self::Claim(request) => Answer::Claim(at_once(store.claim(request))?),
            Self::Renew(worker, held, lease) => Answer::Renew(at_once(store.renew(worker, held, lease))?),
            Self::Get(id) => Answer::Get(at_once(store.get(id))?),
            Self::Journal(id, after, bytes) => Answer::Journal(at_once(store.journal(id, after, bytes))?),
            Self::Heads(ids) => Answer::Heads(at_once(store.heads(ids))?),
            Self::Sweep(max) => Answer::Sweep(at_once(store.sweep(max))?),
            Self::List(filter, after, max) => Answer::List(at_once(store.list(filter, after, max))?),
            Self::Counts => Answer::Counts(at_once(store.counts())?),
            Self::Workers => Answer::Workers(at_once(store.workers())?),
            Self::Running(owner) => Answer::Running(at_once(store.running(owner))?),
            Self::Call(id) => Answer::Call(at_once(store.call(id))?),
        })
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Create(new, lease) => {
                write!(f, "create {:?}{}", new.id, if lease.is_some() { " leased" } else { "" })
            }
            Self::Apply(id, by, events) => {
                write!(f, "apply {id:?} by {}", author(by))?;
                events.iter().try_for_each(|event| {
                    write!(f, ", {}", event.name())?;
                    event.key().map_or(Ok(()), |key| write!(f, " {key}"))
                })
            }
            Self::Claim(request) => write!(f, "claim {}", request.max),
            Self::Renew(_, held, _) => {
                f.write_str("renew")?;
                held.iter().try_for_each(|held| write!(f, " {:?} {}", held.id, held.token.0))
            }
            Self::Get(id) => write!(f, "get {id:?}"),
            Self::Journal(id, after, _) => write!(f, "journal {id:?} after {after}"),
            Self::Heads(ids) => write!(f, "heads of {}", ids.len()),
            Self::Sweep(max) => write!(f, "sweep {max}"),
            Self::List(..) => f.write_str("list"),
            Self::Counts => f.write_str("counts"),
            Self::Workers => f.write_str("workers"),
            Self::Running(_) => f.write_str("running"),
            Self::Call(id) => write!(f, "call {id:?}"),
        }
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Create(created) => match created {
                Created::Created { token, .. } => {
                    write!(f, "created, token {:?}", token.map(|token| token.0))
                }
                Created::Existing(task) => write!(f, "exists as {:?}", task.id),
                Created::KeyReused => f.write_str("key reused"),
                Created::KeySpent => f.write_str("key spent"),
                Created::OverQuota => f.write_str("over quota"),
            },
            Self::Apply(applied) => match applied {
                Applied::Applied(task) => write!(f, "applied: {}", line(task)),
                Applied::Absorbed(task) => write!(f, "absorbed: {}", line(task)),
                Applied::Fenced => f.write_str("fenced"),
                Applied::NotFound => f.write_str("not found"),
                Applied::Illegal(illegal) => write!(f, "illegal: {illegal}"),
            },
            Self::Claim(claimed) => {
                f.write_str("claimed")?;
                claimed.iter().try_for_each(|claimed| write!(f, " [{}]", line(&claimed.task)))
            }
            Self::Renew(renewals) => renewals.iter().try_for_each(|renewal| match renewal {
                Renewal::Lost => f.write_str("lost "),
                Renewal::Kept { inbox_seq, cancel } => {
                    write!(f, "kept {inbox_seq}{} ", if *cancel { " cancelled" } else { "" })
                }
            }),
            Self::Get(task) => match task {
                Some(task) => write!(f, "{}", line(task)),
                None => f.write_str("none"),
            },
            Self::Journal(page) => write!(f, "{} entries", page.entries.len()),
            Self::Heads(heads) => write!(f, "{} heads", heads.len()),
            Self::Sweep(swept) => write!(f, "swept {}", swept.done),
            Self::List(page) => write!(f, "{} tasks", page.tasks.len()),
            Self::Counts(counts) => write!(f, "{} tasks", counts.total()),
            Self::Workers(workers) => write!(f, "{} workers", workers.len()),
            Self::Running(running) => write!(f, "{running} running"),
            Self::Call(call) => write!(f, "a call: {}", call.is_some()),
        }
    }
}

/// A task in a few words. Names of workers are left out: they differ from run to run.
pub(super) fn line(task: &Task) -> String {
    let state = match task.live().map(|live| &live.run) {
        None => task.status().as_str().to_owned(),
        Some(outlast_core::Run::Queued { .. }) => "queued".to_owned(),
        Some(outlast_core::Run::Leased(_)) => "leased".to_owned(),
        Some(outlast_core::Run::Parked { seen_seq, .. }) => format!("parked seen {seen_seq}"),
    };
    let cancel = if task.cancel_requested() { " cancelled" } else { "" };
    format!(
        "{:?} {state}{cancel}, token {}, revision {}, seq {}, inbox {}",
        task.id, task.token.0, task.revision, task.seq, task.inbox_seq
    )
}

fn author(by: &By) -> String {
    match by {
        By::Owner(owner) => owner.as_str().to_owned(),
        By::Operator => "the operator".to_owned(),
        By::Lease(token) => format!("token {}", token.0),
        By::Store => "the store".to_owned(),
    }
}

/// What a future is that never waits, as those of [`MemoryStore`] are.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the store in memory never waits")
}
