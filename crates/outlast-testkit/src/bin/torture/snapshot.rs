//! What a store file holds, as plain data: read by a store of its own, from a copy that nobody else uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use futures::{StreamExt, TryStreamExt, stream};
use outlast_core::{EntryKind, Filter, Inspect, Outcome, Payload, Run, Status, Store, Task, TaskState};
use outlast_sqlite::{Options, Role, SqliteStore};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The tasks of a store by their markers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) tasks: BTreeMap<String, Vec<Kept>>,
}

/// One task of a store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) id: String,
    pub(crate) place: Place,
    /// Who holds it, and until when by the store's time, in milliseconds.
    pub(crate) held: Option<Held>,
    pub(crate) cancel_requested: bool,
    /// The result or the error that it ended with.
    pub(crate) end: Option<Value>,
    /// The texts of the questions that were asked.
    pub(crate) asked: BTreeMap<String, String>,
    pub(crate) answers: BTreeMap<String, String>,
    pub(crate) withdrawn: BTreeSet<String>,
    /// The steps that are journaled; `None` where one ended with its final error.
    pub(crate) steps: BTreeMap<String, Option<Value>>,
    /// Every key that is journaled in any way.
    pub(crate) keys: BTreeSet<String>,
    /// The journal, an entry a line: nothing of it ever changes.
    pub(crate) journal: Vec<String>,
}

/// A worker's hold on a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) worker: String,
    pub(crate) until: i64,
}

impl Held {
    pub(crate) fn of(task: &Task) -> Option<Self> {
        let lease = task.lease()?;
        Some(Self { worker: lease.worker.as_str().to_owned(), until: lease.until.as_millis() })
    }

    /// Whether the worker is one of this process: its name begins with the number of that.
    pub(crate) fn is_by(&self, pid: u32) -> bool {
        self.worker.split('-').next() == Some(&*pid.to_string())
    }
}

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Place {
    Queued,
    AtWork,
    /// In a worker's memory, waiting for a person.
    Asking,
    /// In a worker's memory, waiting for a time.
    Sleeping,
    ParkedAsking,
    ParkedSleeping,
    Completed,
    Failed,
    Cancelled,
}

impl Place {
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    pub(crate) fn is_leased(self) -> bool {
        matches!(self, Self::AtWork | Self::Asking | Self::Sleeping)
    }

    pub(crate) fn of(task: &Task) -> Self {
        let live = match &task.state {
            TaskState::Completed { .. } => return Self::Completed,
            TaskState::Failed { .. } => return Self::Failed,
            TaskState::Cancelled => return Self::Cancelled,
            TaskState::Live(live) => live,
        };
        match (&live.run, live.questions.is_empty(), live.timers.is_empty()) {
            (Run::Queued { .. }, ..) => Self::Queued,
            (Run::Leased(_), false, _) => Self::Asking,
            (Run::Leased(_), true, false) => Self::Sleeping,
            (Run::Leased(_), ..) => Self::AtWork,
            (Run::Parked { .. }, false, _) => Self::ParkedAsking,
            (Run::Parked { .. }, ..) => Self::ParkedSleeping,
        }
    }
}

/// How a copy is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened {
    /// Beside whoever runs it: nothing is changed, and the places of the tasks are as they were.
    AsFront,
    /// As its next runtime, which takes the leases of the last one back.
    AsRuntime,
}

impl Snapshot {
    /// Opens the store in `file` and reads all of it.
    ///
    /// # Errors
    /// When the store does not open, or what it holds cannot be read.
    pub(crate) async fn read(file: &Path, opened: Opened) -> Result<Self, String> {
        let role = if opened == Opened::AsFront { Role::Front } else { Role::Runtime };
        let store = SqliteStore::open_with(file, Options::default().role(role))
            .map_err(|error| format!("the store does not open: {}", chain(&error)))?;
        let read = Self::of(&store).await.map_err(|error| format!("the store cannot be read: {error}"));
        store.close().await;
        whole(file)?;
        read
    }

    /// Reads all of a store, where every task is first and then their journals, while others may go on with it.
    ///
    /// # Errors
    /// When the store does not answer, or holds what cannot be read.
    pub(crate) async fn of(store: &dyn Store) -> Result<Self, StoreTrouble> {
        let mut tasks = Vec::new();
        let mut after = None;
        loop {
            let page = store.list(Filter::default(), after, 500).await?;
            tasks.extend(page.tasks);
            after = page.next;
            if after.is_none() {
                return Self::of_these(store, tasks).await;
            }
        }
    }

    /// Reads the journals of these.
    ///
    /// # Errors
    /// When the store does not answer, or holds what cannot be read.
    pub(crate) async fn of_these(store: &dyn Store, tasks: Vec<Task>) -> Result<Self, StoreTrouble> {
        const AT_ONCE: usize = 6;
        let found: Vec<(String, Kept)> = stream::iter(tasks)
            .map(async |task: Task| {
                let call = store.call(task.id).await?.ok_or("a task has no call")?;
                let marker =
                    call.params.to_value()["arguments"]["marker"].as_str().unwrap_or_default().to_owned();
                Ok::<_, StoreTrouble>((marker, kept(store, &task).await?))
            })
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        let mut snapshot = Self::default();
        for (marker, kept) in found {
            snapshot.tasks.entry(marker).or_default().push(kept);
        }
        Ok(snapshot)
    }
}

/// Why a store could not be read.
pub(crate) type StoreTrouble = Box<dyn std::error::Error + Send + Sync>;

/// How many tasks of a store that others work on are not over: looked at from beside, as an operator does.
///
/// # Errors
/// When the store cannot be read.
pub(crate) async fn unfinished(file: &Path) -> Result<u64, String> {
    let store =
        SqliteStore::open_with(file, Options::default().role(Role::Front)).map_err(|error| chain(&error))?;
    let counts = store.counts().await.map_err(|error| chain(&error));
    store.close().await;
    counts.map(|counts| counts.of(Status::Working) + counts.of(Status::InputRequired))
}

async fn kept(store: &dyn Store, task: &Task) -> Result<Kept, StoreTrouble> {
    let mut kept = Kept {
        id: task.id.to_string(),
        place: Place::of(task),
        held: Held::of(task),
        cancel_requested: task.cancel_requested(),
        end: match &task.state {
            TaskState::Completed { result } => Some(result.to_value()),
            TaskState::Failed { error } => Some(serde_json::to_value(error)?),
            TaskState::Cancelled | TaskState::Live(_) => None,
        },
        asked: BTreeMap::new(),
        answers: BTreeMap::new(),
        withdrawn: BTreeSet::new(),
        steps: BTreeMap::new(),
        keys: BTreeSet::new(),
        journal: Vec::new(),
    };
    let mut after = 0;
    loop {
        let page = store.journal(task.id, after, 1 << 20).await?;
        for entry in page.entries {
            after = entry.seq;
            kept.journal.push(serde_json::to_string(&entry)?);
            let Some(key) = entry.key.as_ref().map(ToString::to_string) else { continue };
            kept.keys.insert(key.clone());
            let body = || entry.body.as_ref().map(Payload::to_value).unwrap_or_default();
            match entry.kind {
                EntryKind::Asked => {
                    let text = body()["params"]["message"].as_str().unwrap_or_default().to_owned();
                    kept.asked.insert(key, text);
                }
                EntryKind::Answered => {
                    let name = body()["content"]["name"].as_str().unwrap_or_default().to_owned();
                    kept.answers.insert(key, name);
                }
                EntryKind::Withdrawn => drop(kept.withdrawn.insert(key)),
                EntryKind::Step => {
                    let value = match entry.finished().ok_or("a step has no outcome")?.outcome {
                        Outcome::Value(value) => Some(value.to_value()),
                        Outcome::Error(_) => None,
                    };
                    kept.steps.insert(key, value);
                }
                _ => {}
            }
        }
        if !page.more {
            return Ok(kept);
        }
    }
}

/// Looks at the file itself, past the store.
fn whole(file: &Path) -> Result<(), String> {
    let check = || -> rusqlite::Result<String> {
        rusqlite::Connection::open(file)?.query_row("PRAGMA integrity_check", [], |row| row.get(0))
    };
    match check() {
        Ok(said) if said == "ok" => Ok(()),
        Ok(said) => Err(format!("the file is damaged: {said}")),
        Err(error) => Err(format!("the file cannot be checked: {error}")),
    }
}

/// An error with all that caused it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
