//! What the client was told, line by line on disk, and what follows from it about every call.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Write,
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::{
    caller::Shown,
    plan::{Kind, Plan, PlanName},
};

/// A line of the log. What begins with `Will` is written before the request is sent, the others when it was answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Line {
    WillCall { plan: PlanName, owner: u64 },
    Called { id: String },
    WillAnswer { key: String },
    Answered { key: String },
    WillCancel,
    Cancelled,
    WillOpen,
    Saw(Shown),
}

/// All that is known of one call.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) plan: Plan,
    pub(crate) owner: u64,
    /// The task that it became; unknown while that is not acknowledged.
    pub(crate) id: Option<String>,
    pub(crate) sent_answers: BTreeSet<String>,
    pub(crate) answered: BTreeSet<String>,
    pub(crate) sent_cancel: bool,
    pub(crate) cancelled: bool,
    pub(crate) opened: bool,
    /// What it was when it was last looked at.
    pub(crate) seen: Option<Shown>,
}

/// Where a kill can find a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// The upstream is at work on it.
    AtWork,
    AtWorkInPipe,
    /// The upstream is at work that must not be done twice.
    AtWorkOnce,
    AtWorkOnceInPipe,
    /// The same, and the call became a task when it had been made already.
    AtWorkOnceForLong,
    /// The upstream is at work in a task of its own.
    AtWorkAsTask,
    /// The same, and must not do it twice.
    AtWorkOnceAsTask,
    /// The upstream waits for an answer in the middle of the call.
    Asking,
    AskingOnce,
    AskingAsTask,
    /// An answer was acknowledged, and the upstream is at work with it.
    Answered,
    AnsweredAsTask,
    /// A cancel was acknowledged; whether the upstream has heard of it is unknown.
    Cancelling,
    CancellingOnce,
    /// A cancel was acknowledged, and the upstream's task cleans up.
    CleaningUpAsTask,
    /// A caller who knows nothing of tasks was told that the work goes on.
    Held,
    HeldOnce,
    Completed,
    Failed,
    Cancelled,
}

impl State {
    pub(crate) const ALL: [Self; 20] = [
        Self::AtWork,
        Self::AtWorkInPipe,
        Self::AtWorkOnce,
        Self::AtWorkOnceInPipe,
        Self::AtWorkOnceForLong,
        Self::AtWorkAsTask,
        Self::AtWorkOnceAsTask,
        Self::Asking,
        Self::AskingOnce,
        Self::AskingAsTask,
        Self::Answered,
        Self::AnsweredAsTask,
        Self::Cancelling,
        Self::CancellingOnce,
        Self::CleaningUpAsTask,
        Self::Held,
        Self::HeldOnce,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// Whether the upstream is in the middle of a call that must not be made again.
    pub(crate) fn is_once(self) -> bool {
        matches!(
            self,
            Self::AtWorkOnce
                | Self::AtWorkOnceInPipe
                | Self::AtWorkOnceForLong
                | Self::AskingOnce
                | Self::HeldOnce
        )
    }
}

impl Known {
    /// The state that the call is in for certain, if it is certain.
    pub(crate) fn state(&self) -> Option<State> {
        self.id.as_ref()?;
        match self.seen.as_ref().map(Shown::status) {
            Some("completed") => return Some(State::Completed),
            Some("failed") => return Some(State::Failed),
            Some("cancelled") => return Some(State::Cancelled),
            _ => {}
        }
        // What was sent and not acknowledged may have happened or not.
        if self.sent_cancel != self.cancelled || self.sent_answers != self.answered || self.opened {
            return None;
        }
        if self.cancelled {
            return Some(match self.plan.tool {
                "cleans" => State::CleaningUpAsTask,
                _ if self.plan.is_once() => State::CancellingOnce,
                _ => State::Cancelling,
            });
        }
        if self.plan.is_held() {
            return Some(if self.plan.is_once() { State::HeldOnce } else { State::Held });
        }
        let seen = self.seen.as_ref()?;
        if !self.outstanding().is_empty() {
            return Some(match self.plan.upstream {
                Kind::Tasks => State::AskingAsTask,
                _ if self.plan.is_once() => State::AskingOnce,
                _ => State::Asking,
            });
        }
        if !seen.is_at_work() {
            return None;
        }
        Some(match (self.plan.tool, self.plan.upstream) {
            ("asks_then_works", Kind::Tasks) => State::AnsweredAsTask,
            ("asks_then_works", _) => State::Answered,
            ("works_once", Kind::Tasks) => State::AtWorkOnceAsTask,
            (_, Kind::Tasks) => State::AtWorkAsTask,
            ("late_once", _) => State::AtWorkOnceForLong,
            ("works_once", Kind::Piped) => State::AtWorkOnceInPipe,
            ("works_once", Kind::Plain) => State::AtWorkOnce,
            (_, Kind::Piped) => State::AtWorkInPipe,
            (_, Kind::Plain) => State::AtWork,
        })
    }

    /// The questions that are outstanding for certain.
    pub(crate) fn outstanding(&self) -> BTreeSet<String> {
        let seen = self.seen.iter().flat_map(Shown::asks);
        seen.filter(|key| !self.sent_answers.contains(key) && !self.sent_cancel).collect()
    }

    /// The name of its tool at the gateway.
    pub(crate) fn tool(&self) -> String {
        format!("{}__{}", self.plan.upstream.name(), self.plan.tool)
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

    /// How many tasks were acknowledged.
    pub(crate) fn acknowledged(&self) -> usize {
        self.known.values().filter(|call| call.id.is_some()).count()
    }

    /// What a task was seen to ask.
    pub(crate) fn asks(&self, label: &str) -> BTreeSet<String> {
        self.known[label].outstanding()
    }

    /// The states that no call is in.
    pub(crate) fn missing(&self) -> Vec<State> {
        let hit: BTreeSet<State> = self.known.values().filter_map(Known::state).collect();
        State::ALL.into_iter().filter(|state| !hit.contains(state)).collect()
    }
}

fn learn(known: &mut BTreeMap<String, Known>, label: &str, line: Line) {
    if let Line::WillCall { plan, owner } = line {
        let call = Known {
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
        known.insert(label.to_owned(), call);
        return;
    }
    let call = known.get_mut(label).unwrap();
    match line {
        Line::WillCall { .. } => {}
        Line::Called { id } => call.id = Some(id),
        Line::WillAnswer { key } => drop(call.sent_answers.insert(key)),
        Line::Answered { key } => drop(call.answered.insert(key)),
        Line::WillCancel => call.sent_cancel = true,
        Line::Cancelled => call.cancelled = true,
        Line::WillOpen => call.opened = true,
        Line::Saw(shown) => call.seen = Some(shown),
    }
}
