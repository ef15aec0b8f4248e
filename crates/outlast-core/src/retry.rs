//! Starting failed work again: what a new task takes over from the journal of one that failed.
//!
//! A failed task is final (S12), so the work goes on in a task of its own, and what is in the history is not done twice:
//!
//! | of the old journal | the new one has |
//! |---|---|
//! | a step with a value | the step |
//! | a step with an error | nothing: it runs again |
//! | a question and its answer | both |
//! | a question without an answer | the question, outstanding again where the client can be asked it |
//! | a question that was taken back | both, so that a later one under a further key keeps its meaning |
//! | a timer, fired or not | the timer, due when it was |
//! | who had the task and when, and its cancel | nothing |

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    Asks, Entry, EntryKind, InputKey, NewTask, Outcome, Question, StepKey, Task, TaskId, TaskState, Timestamp,
};

/// The failed task that a new one goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenUp {
    /// The first task of the chain: what stands behind step ids, so that they stay the same.
    pub origin: TaskId,
    /// Its journal, whole and as it is.
    pub journal: Vec<Entry>,
}

impl TakenUp {
    /// What a new task takes over from `failed`, whose whole journal this is; `None` when it did not fail.
    #[must_use]
    pub fn of(failed: &Task, journal: Vec<Entry>) -> Option<Self> {
        let origin = failed.origin.unwrap_or(failed.id);
        matches!(failed.state, TaskState::Failed { .. }).then_some(Self { origin, journal })
    }
}

impl NewTask {
    /// The entries that its journal begins with, numbered from 1: none, unless it [takes up](NewTask::takes_up) a failed
    /// task. A store writes them in the same step as the task itself.
    ///
    /// ```
    /// use outlast_core::*;
    /// use std::time::Duration;
    /// let now = Timestamp::from_millis(0);
    /// let id = |n| TaskId::from_bytes([n; 16]);
    /// let new = |n| NewTask::new(id(n), Owner::anonymous(), Spec::new("t"), Call::new(Payload::null()));
    /// let mut journal = Vec::new();
    /// let mut task = Task::create_leased(&new(1), WorkerId::new("w"), Duration::from_secs(30), now);
    /// let step = |key, outcome| Event::FinishStep { key, outcome, took: Duration::ZERO, tries: 1 };
    /// for event in [
    ///     step(StepKey::new("paid").unwrap(), Outcome::Value(Payload::null())),
    ///     step(StepKey::new("shipped").unwrap(), Outcome::Error(Payload::null())),
    ///     Event::Fail(TaskError::internal("no van")),
    /// ] {
    ///     let Change::To { task: next, entry } = task.apply(&event, None, now).unwrap() else { unreachable!() };
    ///     (task, journal) = (*next, journal.into_iter().chain(entry).collect());
    /// }
    ///
    /// let again = NewTask { takes_up: TakenUp::of(&task, journal), ..new(2) };
    /// let kept = again.journal();
    /// assert_eq!(kept.len(), 1);
    /// assert_eq!(kept[0].key, Some(StepKey::new("paid").unwrap()));
    /// assert_eq!(Task::create(&again, now).origin, Some(id(1)));
    /// ```
    #[must_use]
    pub fn journal(&self) -> Vec<Entry> {
        self.takes_up.as_ref().map(|taken| carried(&taken.journal, self.spec.asks)).unwrap_or_default()
    }
}

/// The questions that a journal without cancels leaves outstanding.
pub(crate) fn outstanding(journal: &[Entry]) -> BTreeMap<InputKey, Question> {
    let mut questions = BTreeMap::new();
    for entry in journal {
        let Some(key) = entry.key.as_ref().and_then(|key| InputKey::new(key.as_str()).ok()) else { continue };
        match entry.kind {
            EntryKind::Asked => {
                questions.extend(question(entry).map(|question| (key, question)));
            }
            EntryKind::Answered | EntryKind::Withdrawn => drop(questions.remove(&key)),
            _ => {}
        }
    }
    questions
}

/// The timers that a journal leaves unfired, and when they are due.
pub(crate) fn unfired(journal: &[Entry]) -> BTreeMap<StepKey, Timestamp> {
    let mut timers = BTreeMap::new();
    for entry in journal {
        let Some(key) = &entry.key else { continue };
        match entry.kind {
            EntryKind::TimerSet => timers.extend(due(entry).map(|due| (key.clone(), due))),
            EntryKind::TimerFired => drop(timers.remove(key)),
            _ => {}
        }
    }
    timers
}

/// What a new task whose client can be asked `asks` takes over from `journal`.
fn carried(journal: &[Entry], asks: Asks) -> Vec<Entry> {
    let closed: HashSet<_> = journal
        .iter()
        .filter(|entry| matches!(entry.kind, EntryKind::Answered | EntryKind::Withdrawn))
        .filter_map(|entry| entry.key.as_ref())
        .collect();
    let mut opened: HashMap<&StepKey, EntryKind> = HashMap::new();
    let mut kept = Vec::new();
    for entry in journal {
        let Some(key) = &entry.key else { continue };
        let is_open = |kind| opened.get(key) == Some(&kind);
        let keep = match entry.kind {
            EntryKind::Asked if closed.contains(key) => true,
            EntryKind::Asked => question(entry).is_some_and(|question| asks.allows(question.kind())),
            EntryKind::Step => {
                entry.finished().is_some_and(|finished| matches!(finished.outcome, Outcome::Value(_)))
            }
            EntryKind::TimerSet => due(entry).is_some(),
            EntryKind::Answered | EntryKind::Withdrawn => is_open(EntryKind::Asked),
            EntryKind::TimerFired => is_open(EntryKind::TimerSet),
            _ => false,
        };
        if keep && (!entry.kind.opens_key() || opened.insert(key, entry.kind).is_none()) {
            kept.push(Entry { seq: kept.len() as u64 + 1, ..entry.clone() });
        }
    }
    kept
}

fn question(entry: &Entry) -> Option<Question> {
    entry.body.as_ref().and_then(Question::of)
}

fn due(entry: &Entry) -> Option<Timestamp> {
    entry.body.as_ref()?.decode().ok()
}
