//! What the client was told, line by line on disk, and what follows from it about every task.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Write,
    path::Path,
};

use outlast::Recovery;
use serde::{Deserialize, Serialize};

use crate::{
    caller::Shown,
    plan::{Plan, PlanName},
    tools::recovery,
};

/// A line of the log. What begins with `Will` is written before the request is sent, the others when it was answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Line {
    WillCreate { plan: PlanName, owner: u64 },
    Created { id: String },
    WillAnswer { key: String },
    Answered { key: String },
    WillCancel,
    Cancelled,
    WillOpen,
    Saw(Shown),
}

/// All that is known of one task.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) plan: Plan,
    pub(crate) owner: u64,
    /// Unknown while its creation is not acknowledged.
    pub(crate) id: Option<String>,
    pub(crate) sent_answers: BTreeSet<String>,
    pub(crate) answered: BTreeSet<String>,
    pub(crate) sent_cancel: bool,
    pub(crate) cancelled: bool,
    pub(crate) opened: bool,
    /// What it was when it was last looked at.
    pub(crate) seen: Option<Shown>,
}

/// Where a kill can find a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Acknowledged, and no slot was free for it yet.
    Queued,
    AtWork,
    /// At work that must not be done twice.
    AtWorkOnce,
    /// Waits for an answer in the middle of a tool that may run again.
    Asking,
    /// Waits for the answers of a multi-round-trip call's first round.
    InFirstRound,
    InSecondRound,
    Completed,
    Failed,
    Cancelled,
    /// An answer was acknowledged, and the task is not over.
    Answered,
    /// A cancel was acknowledged, and the task is not over.
    Cancelling,
}

impl State {
    /// Those that the client can know of. Whether a task was queued, only the server's file can tell.
    pub(crate) const KNOWABLE: [Self; 10] = [
        Self::AtWork,
        Self::AtWorkOnce,
        Self::Asking,
        Self::InFirstRound,
        Self::InSecondRound,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Answered,
        Self::Cancelling,
    ];
}

impl Known {
    /// The state that the task is in for certain, if it is certain.
    pub(crate) fn state(&self) -> Option<State> {
        let seen = self.seen.as_ref()?;
        match &*seen.status() {
            "completed" => return Some(State::Completed),
            "failed" => return Some(State::Failed),
            "cancelled" => return Some(State::Cancelled),
            _ => {}
        }
        // What was sent and not acknowledged may have happened or not.
        if self.sent_cancel != self.cancelled || self.sent_answers != self.answered || self.opened {
            return None;
        }
        let asks = self.outstanding();
        match recovery(self.plan.tool) {
            _ if self.cancelled => seen.is_at_work().then_some(State::Cancelling),
            _ if seen.is_at_work() && !self.answered.is_empty() => Some(State::Answered),
            Recovery::Rerun if seen.is_at_work() => Some(State::AtWork),
            Recovery::Fail if seen.is_at_work() => Some(State::AtWorkOnce),
            _ if asks.contains("a") => Some(State::InFirstRound),
            _ if asks.contains("b") => Some(State::InSecondRound),
            _ if !asks.is_empty() => Some(State::Asking),
            _ => None,
        }
    }

    /// The questions that are outstanding for certain.
    pub(crate) fn outstanding(&self) -> BTreeSet<String> {
        let seen = self.seen.iter().flat_map(Shown::asks);
        seen.filter(|key| !self.sent_answers.contains(key) && !self.sent_cancel).collect()
    }
}

/// The log, and what follows from it.
pub(crate) struct Ledger {
    file: File,
    known: BTreeMap<String, Known>,
}

impl Ledger {
    pub(crate) fn create(path: &Path) -> Self {
        Self { file: File::create(path).unwrap(), known: BTreeMap::new() }
    }

    /// What a log on disk says, by label.
    pub(crate) fn read(path: &Path) -> BTreeMap<String, Known> {
        let mut known = BTreeMap::new();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let (label, line): (String, Line) = serde_json::from_str(line).unwrap();
            learn(&mut known, &label, line);
        }
        known
    }

    pub(crate) fn write(&mut self, label: &str, line: Line) {
        let text = serde_json::to_string(&(label, &line)).unwrap();
        self.file.write_all(format!("{text}\n").as_bytes()).unwrap();
        learn(&mut self.known, label, line);
    }

    /// How many creations were acknowledged.
    pub(crate) fn created(&self) -> usize {
        self.known.values().filter(|task| task.id.is_some()).count()
    }

    /// The acknowledged tasks.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &String> {
        self.known.iter().filter(|(_, task)| task.id.is_some()).map(|(label, _)| label)
    }

    /// The states that no task is in.
    pub(crate) fn missing(&self) -> Vec<State> {
        let hit: BTreeSet<State> = self.known.values().filter_map(Known::state).collect();
        State::KNOWABLE.into_iter().filter(|state| !hit.contains(state)).collect()
    }
}

fn learn(known: &mut BTreeMap<String, Known>, label: &str, line: Line) {
    if let Line::WillCreate { plan, owner } = line {
        let task = Known {
            plan: plan.plan(),
            owner,
            id: None,
            sent_answers: BTreeSet::new(),
            answered: BTreeSet::new(),
            sent_cancel: false,
            cancelled: false,
            opened: false,
            seen: None,
        };
        known.insert(label.to_owned(), task);
        return;
    }
    let task = known.get_mut(label).unwrap();
    match line {
        Line::WillCreate { .. } => {}
        Line::Created { id } => task.id = Some(id),
        Line::WillAnswer { key } => drop(task.sent_answers.insert(key)),
        Line::Answered { key } => drop(task.answered.insert(key)),
        Line::WillCancel => task.sent_cancel = true,
        Line::Cancelled => task.cancelled = true,
        Line::WillOpen => task.opened = true,
        Line::Saw(shown) => task.seen = Some(shown),
    }
}
