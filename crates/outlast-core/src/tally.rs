//! What is counted of tasks, wherever they are kept: through the facade `metrics`, which costs next to nothing while no
//! recorder is installed.

use std::{
    collections::HashSet,
    sync::{LazyLock, Mutex, PoisonError},
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

/// How many tools are told apart that a server is known to have, see [`tell_tool_apart`].
const MAX_TOOLS: usize = 500;
/// How many others are. A caller may name tools that do not exist, and no caller may fill a recorder, or take the place of a
/// tool that is there.
const MAX_HEARD_OF: usize = 100;
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

/// A server has this tool: it is counted by its name, whatever names callers make up.
pub fn tell_tool_apart(tool: &str) {
    TOOLS.lock().unwrap_or_else(PoisonError::into_inner).add(tool);
}

/// What a tool is counted as: by its name where it is [known to be there](tell_tool_apart) or one of the first hundred others
/// of this process, and looks like a name; else as `other`.
#[must_use]
pub fn tool_label(tool: &str) -> SharedString {
    TOOLS.lock().unwrap_or_else(PoisonError::into_inner).label(tool)
}

static TOOLS: LazyLock<Mutex<Tools>> = LazyLock::new(Mutex::default);

/// The tools that are told apart.
#[derive(Default)]
struct Tools {
    there: HashSet<SharedString>,
    heard_of: HashSet<SharedString>,
}

impl Tools {
    fn add(&mut self, tool: &str) {
        if is_name(tool) && self.there.len() < MAX_TOOLS && !self.there.contains(tool) {
            let label = self.heard_of.take(tool).unwrap_or_else(|| SharedString::from_shared(tool.into()));
            self.there.insert(label);
        }
    }

    fn label(&mut self, tool: &str) -> SharedString {
        if let Some(known) = self.there.get(tool).or_else(|| self.heard_of.get(tool)) {
            return known.clone();
        }
        if self.heard_of.len() >= MAX_HEARD_OF || !is_name(tool) {
            return SharedString::const_str(OTHER);
        }
        let label = SharedString::from_shared(tool.into());
        self.heard_of.insert(label.clone());
        label
    }
}

/// Control characters are in no name; a scraper may refuse all that is counted because of a zero byte in one.
fn is_name(tool: &str) -> bool {
    tool.len() <= MAX_TOOL && !tool.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_caller_makes_up_fill_nothing_and_hide_no_tool_that_is_there() {
        let mut tools = Tools::default();
        for n in 0..10_000 {
            tools.label(&format!("tool-{n}"));
        }
        assert_eq!(&*tools.label("tool-0"), "tool-0");
        assert_eq!(&*tools.label("tool-9999"), OTHER);
        assert_eq!(tools.heard_of.len(), MAX_HEARD_OF);

        assert_eq!(&*tools.label("late"), OTHER);
        tools.add("late");
        assert_eq!(&*tools.label("late"), "late");
        (0..10_000).for_each(|n| tools.add(&format!("listed-{n}")));
        assert_eq!(tools.there.len(), MAX_TOOLS);
    }

    #[test]
    fn what_is_no_name_is_counted_as_other() {
        for made_up in ["a\0b", "a\nb", "\u{1b}[31m", &"x".repeat(MAX_TOOL + 1)] {
            let mut tools = Tools::default();
            tools.add(made_up);
            assert_eq!(&*tools.label(made_up), OTHER, "{made_up:?}");
        }
        assert_eq!(&*Tools::default().label("say \"no\\yes\""), "say \"no\\yes\"");
    }
}
