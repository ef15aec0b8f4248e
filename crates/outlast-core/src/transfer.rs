//! Moving what one store keeps to another.

use async_trait::async_trait;

use crate::{Call, Entry, IdempotencyKey, Owner, Store, StoreError, Task, TaskId, Timestamp};

/// A store that gives away all that it keeps, and takes in what another one kept.
///
/// A task moves as it is: under its id, with its journal, its answers, its timers and its times. Whoever moves the tasks of a
/// store sees to it that nobody runs them there any more, for they would be run twice.
///
/// ```
/// # use outlast_core::*;
/// # async fn moved(from: &impl Transfer, to: &impl Transfer) -> Result<u64, StoreError> {
/// let (mut place, mut new) = (None, 0);
/// loop {
///     let page = from.export(place, 1 << 20).await?;
///     new += to.import(page.records).await?;
///     place = page.next;
///     if place.is_none() {
///         return Ok(new);
///     }
/// }
/// # }
/// ```
#[async_trait]
pub trait Transfer: Store {
    /// Records from the place that an earlier page ended at, in the order of creation: as many as fit in `max_bytes`, and at
    /// least one where there is one. Tasks that cannot be read are left out, and counted.
    async fn export(&self, after: Option<String>, max_bytes: u64) -> Result<Exported, StoreError>;

    /// Keeps records, durably before it returns, and says how many were new. One whose task or key there is already is left
    /// alone, so that a move which was broken off can be begun again.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] keeps none of them, and after [`StoreError::Unknown`] an identical retry tells.
    async fn import(&self, records: Vec<Record>) -> Result<u64, StoreError>;
}

/// Something that moves from store to store.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A task, with all that belongs to it.
    Task(Box<TaskRecord>),
    /// A key whose task is gone, and which is remembered so that its request does not run a second time.
    SpentKey(SpentKey),
}

/// A task, with all that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRecord {
    /// The task.
    pub task: Task,
    /// What it carries out.
    pub call: Call,
    /// The key that it was created under.
    pub key: Option<IdempotencyKey>,
    /// Its whole journal.
    pub journal: Vec<Entry>,
}

/// A key whose task is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpentKey {
    /// Whose key it is.
    pub owner: Owner,
    /// The key.
    pub key: IdempotencyKey,
    /// The task that was created under it.
    pub task: TaskId,
    /// When it is forgotten.
    pub until: Timestamp,
}

/// A page of what a store keeps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Exported {
    /// The records.
    pub records: Vec<Record>,
    /// Where the next page begins; `None` when this is the last.
    pub next: Option<String>,
    /// How many tasks of the page cannot be read, and stay behind.
    pub damaged: u32,
}

impl Record {
    /// About how many bytes it takes.
    #[must_use]
    pub fn size(&self) -> u64 {
        let Self::Task(record) = self else { return SMALL };
        let journal: u64 = record.journal.iter().map(Entry::size).sum();
        SMALL + record.call.params.len() as u64 + journal
    }
}

/// What a task takes beside its texts.
const SMALL: u64 = 1_024;
