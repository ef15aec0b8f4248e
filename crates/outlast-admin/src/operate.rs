//! What an operator does to the tasks of a store.

use std::{fmt, sync::Arc};

use outlast_core::{
    Applied, By, Created, Entry, Event, Filter, IdempotencyKey, InputKey, NewTask, Owner, Payload, Spec,
    Status, Store, StoreError, TakenUp, Task, TaskId, TaskState, Timestamp, ToolVersion,
};
use sha2::{Digest, Sha256};

use crate::{Unfit, answer, text, view};

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such task.
    #[error("there is no task {0}")]
    NoSuchTask(TaskId),
    /// The task is in no state for it.
    #[error("{0}")]
    State(String),
    /// What was given does not fit.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system gives no random bytes for the id of a task.
    #[error("the system gives no random bytes for the id of a task; nothing was started")]
    Random,
}

/// A task that somebody named.
///
/// # Errors
/// When there is none, or the store cannot answer.
pub async fn find(store: &dyn Store, id: TaskId) -> Result<Task, Refusal> {
    store.get(id).await?.ok_or(Refusal::NoSuchTask(id))
}

/// The whole journal of a task.
///
/// # Errors
/// When the store cannot answer.
pub async fn journal(store: &dyn Store, id: TaskId) -> Result<Vec<Entry>, StoreError> {
    const PAGE_BYTES: u64 = 1 << 20;
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let after = entries.last().map_or(0, |entry| entry.seq);
        let page = store.journal(id, after, PAGE_BYTES).await?;
        entries.extend(page.entries);
        if !page.more {
            return Ok(entries);
        }
    }
}

/// What the store's clock says.
///
/// # Errors
/// When the store cannot answer.
pub async fn now(store: &dyn Store) -> Result<Timestamp, StoreError> {
    Ok(store.list(Filter::default(), None, 1).await?.now)
}

/// Whether `named` is what [`text::owner`] makes of an owner.
pub(crate) fn is_digest(named: &str) -> bool {
    const DIGITS: usize = 8;
    named.len() == DIGITS && named.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The owner of this name or [digest](text::owner). A digest does not give the name away, so the tasks are gone through for
/// one of it.
///
/// # Errors
/// When the store cannot answer.
pub async fn owner(store: &dyn Store, named: &str) -> Result<Owner, StoreError> {
    if !is_digest(named) {
        return Ok(Owner::new(named));
    }
    let mut after = None;
    loop {
        let page = store.list(Filter::default(), after, 1_000).await?;
        if let Some(task) = page.tasks.into_iter().find(|task| text::owner(&task.owner) == named) {
            return Ok(task.owner);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(Owner::new(named)),
        }
    }
}

/// Answers questions of a task, all or none, and gives the task after it.
///
/// # Errors
/// When one of them is not asked, or an answer does not fit.
pub async fn answer(
    store: &dyn Store,
    id: TaskId,
    answers: Vec<(InputKey, Payload)>,
) -> Result<Task, Refusal> {
    let task = find(store, id).await?;
    for (key, given) in &answers {
        let question = answer::outstanding(&task, key)?;
        answer::check(question, &given.to_value())
            .map_err(|Unfit(why)| Unfit(format!("no answer to '{key}' was given: {why}")))?;
    }
    let keys: Vec<_> = answers.iter().map(|(key, _)| format!("'{key}'")).collect();
    let events = answers.into_iter().map(|(key, answer)| Event::Answer { key, answer }).collect();
    match store.apply(id, By::Operator, events).await? {
        Applied::Applied(task) => Ok(task),
        Applied::Absorbed(_) => {
            let keys = keys.join(", ");
            Err(Refusal::State(format!("{keys} was answered or taken back in the meantime")))
        }
        Applied::NotFound | Applied::Fenced => Err(Refusal::NoSuchTask(id)),
        Applied::Illegal(illegal) => Err(Unfit(format!("{illegal}; no answer was taken")).into()),
    }
}

/// What came of a cancel. Its words are for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The work had not begun, and is over.
    Ended,
    /// The work is told, and decides itself how it ends.
    Asked,
    /// It had been told before.
    AskedBefore,
    /// It was over before.
    HadEnded(Status),
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("cancelled"),
            Self::Asked => f.write_str("the task is asked to end"),
            Self::AskedBefore => f.write_str("the task was asked to end before"),
            Self::HadEnded(status) => write!(f, "the task had ended: it is {}", status.as_str()),
        }
    }
}

/// Asks a task to end.
///
/// # Errors
/// When there is none, or the store cannot.
pub async fn cancel(store: &dyn Store, id: TaskId) -> Result<Cancelled, Refusal> {
    match store.apply(id, By::Operator, vec![Event::Cancel]).await? {
        Applied::Applied(task) if task.status() == Status::Cancelled => Ok(Cancelled::Ended),
        Applied::Applied(_) => Ok(Cancelled::Asked),
        Applied::Absorbed(task) if task.is_final() => Ok(Cancelled::HadEnded(task.status())),
        Applied::Absorbed(_) => Ok(Cancelled::AskedBefore),
        Applied::NotFound | Applied::Fenced => Err(Refusal::NoSuchTask(id)),
        Applied::Illegal(illegal) => Err(Refusal::State(format!("the task cannot be cancelled: {illegal}"))),
    }
}

/// A failed task that was started again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retried {
    /// The new task.
    pub task: Task,
    /// Whether it waits for a worker that is not there ([`view::unserved`]).
    pub unserved: bool,
}

/// Starts a failed task again, as a new one, in another version of its tool where one is given.
///
/// # Errors
/// When it has not failed, or was started again before: work is not to be done in two tasks at once because somebody asked
/// twice.
pub async fn retry(store: &dyn Store, id: TaskId, tool_version: Option<String>) -> Result<Retried, Refusal> {
    let failed = find(store, id).await?;
    if !matches!(failed.state, TaskState::Failed { .. }) {
        let status = failed.status().as_str();
        return Err(Refusal::State(format!("the task is {status}; only a failed one can be started again")));
    }
    let call = store.call(id).await?.ok_or(Refusal::NoSuchTask(id))?;
    let takes_up = TakenUp::of(&failed, journal(store, id).await?);
    let version = tool_version.unwrap_or_else(|| failed.spec.version.clone());
    let spec = Spec { version, ..Spec::clone(&failed.spec) };
    let new = NewTask {
        idempotency: Some(once(id)),
        // It is the operator who asks for it, and not the owner.
        max_open: u32::MAX,
        takes_up,
        ..NewTask::new(random_id()?, failed.owner.clone(), spec, call)
    };
    let why = match store.create(new, None).await? {
        Created::Created { task, .. } => {
            // It is started, whatever becomes of this.
            let unserved = store
                .workers()
                .await
                .is_ok_and(|workers| view::unserved(&task, &ToolVersion::served_by(&workers)));
            return Ok(Retried { task, unserved });
        }
        Created::Existing(task) => format!(
            "the task was started again before, as {}, which is {}{}",
            task.id,
            task.status().as_str(),
            if matches!(task.state, TaskState::Failed { .. }) { "; start that one again" } else { "" }
        ),
        Created::KeySpent => {
            "the task was started again before, and the new one was kept for its time and is gone".to_owned()
        }
        Created::KeyReused => {
            "the task's owner has used the name under which it would be started again".to_owned()
        }
        Created::OverQuota => "the task's owner has as many unfinished tasks as a store can count".to_owned(),
    };
    Err(Refusal::State(why))
}

/// The key that makes the same task of every further try.
fn once(failed: TaskId) -> IdempotencyKey {
    let key = format!("outlast tasks retry {failed}");
    IdempotencyKey { request: Sha256::digest(&key).into(), key: Arc::from(key) }
}

/// 128 fresh random bits (S17).
fn random_id() -> Result<TaskId, Refusal> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| Refusal::Random)?;
    Ok(TaskId::from_bytes(bytes))
}
