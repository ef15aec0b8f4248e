//! What is counted of tasks, wherever they are kept: through the facade `metrics`, which costs next to nothing while no
//! recorder is installed.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use metrics::{SharedString, Unit, counter, describe_counter, describe_histogram, histogram};

use crate::{Decision, Entry, EntryKind, Status, Task, Timestamp};

/// Tasks that were created, by `tool`.
pub const TASKS_CREATED: &str = "outlast_tasks_created_total";
/// Tasks that ended, by `tool` and `status`.
pub const TASKS_ENDED: &str = "outlast_tasks_ended_total";
/// How long tasks took from their creation to their end, by `status`.
pub const TASK_SECONDS: &str = "outlast_task_seconds";
/// For how long tasks were ready before a worker claimed them.
pub const QUEUE_SECONDS: &str = "outlast_queue_seconds";
/// What was journaled, by `kind`: steps, questions, answers, timers, claims, lost leases and the rest.
pub const JOURNAL_ENTRIES: &str = "outlast_journal_entries_total";

/// How many tools are told apart. A caller may name tools that do not exist, and no caller may fill a recorder.
const MAX_TOOLS: usize = 200;
/// The longest name of a tool that is told apart, in bytes.
const MAX_TOOL: usize = 128;
/// What all others are counted as.
const OTHER: &str = "other";

/// Describes what a [`Tally`] counts to the recorder that is installed.
pub fn describe_tally() {
    describe_counter!(TASKS_CREATED, "Tasks that this process created, by tool.");
    describe_counter!(TASKS_ENDED, "Tasks whose end this process wrote, by tool and status.");
    describe_histogram!(TASK_SECONDS, Unit::Seconds, "From the creation of a task to its end, by status.");
    describe_histogram!(QUEUE_SECONDS, Unit::Seconds, "How long a task was ready before it was claimed.");
    describe_counter!(JOURNAL_ENTRIES, "Entries that were written to the journals of tasks, by kind.");
}

/// What one write of a store is to be counted as. A store fills it where it decides and publishes it once the write is
/// durable, so that what is counted is what is kept.
#[derive(Debug, Default)]
pub struct Tally {
    created: Vec<SharedString>,
    ended: Vec<End>,
    queued: Vec<Duration>,
    entries: Vec<EntryKind>,
}

#[derive(Debug)]
struct End {
    tool: SharedString,
    status: Status,
    took: Duration,
}

impl Tally {
    /// A task is new, with these entries in its journal.
    pub fn created(&mut self, task: &Task, journal: &[Entry]) {
        self.created.push(tool_label(&task.spec.tool));
        self.entries.extend(journal.iter().map(|entry| entry.kind));
    }

    /// A task was `before`, and is what was decided from now on.
    pub fn changed(&mut self, before: &Task, decision: &Decision, now: Timestamp) {
        let after = &decision.task;
        if after.is_final() && !before.is_final() {
            let took = now.since(after.created_at);
            self.ended.push(End { tool: tool_label(&after.spec.tool), status: after.status(), took });
        }
        if before.lease().is_none()
            && after.lease().is_some()
            && let Some(ready) = before.ready_at()
        {
            self.queued.push(now.since(ready));
        }
        self.entries.extend(decision.entries.iter().map(|entry| entry.kind));
    }

    /// The write is durable: counts it.
    pub fn publish(&self) {
        for tool in &self.created {
            counter!(TASKS_CREATED, "tool" => tool.clone()).increment(1);
        }
        for End { tool, status, took } in &self.ended {
            let status = status.as_str();
            counter!(TASKS_ENDED, "tool" => tool.clone(), "status" => status).increment(1);
            histogram!(TASK_SECONDS, "status" => status).record(*took);
        }
        for waited in &self.queued {
            histogram!(QUEUE_SECONDS).record(*waited);
        }
        for kind in &self.entries {
            counter!(JOURNAL_ENTRIES, "kind" => kind.as_str()).increment(1);
        }
    }
}

/// What a tool is counted as: by its name, as long as that is one of the first few hundred of this process and no longer than
/// a name is; else as `other`.
#[must_use]
pub fn tool_label(tool: &str) -> SharedString {
    static KNOWN: Mutex<Option<HashSet<SharedString>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    label(known.get_or_insert_default(), tool)
}

fn label(known: &mut HashSet<SharedString>, tool: &str) -> SharedString {
    if let Some(known) = known.get(tool) {
        return known.clone();
    }
    if known.len() >= MAX_TOOLS || tool.len() > MAX_TOOL {
        return SharedString::const_str(OTHER);
    }
    let label = SharedString::from_shared(tool.into());
    known.insert(label.clone());
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_caller_makes_up_fill_nothing() {
        let mut known = HashSet::new();
        for n in 0..10_000 {
            label(&mut known, &format!("tool-{n}"));
        }
        assert_eq!(&*label(&mut known, "tool-0"), "tool-0");
        assert_eq!(&*label(&mut known, "tool-9999"), OTHER);
        assert_eq!(known.len(), MAX_TOOLS);
        assert_eq!(&*label(&mut HashSet::new(), &"x".repeat(MAX_TOOL + 1)), OTHER);
    }
}
