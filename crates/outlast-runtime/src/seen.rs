//! What an attempt knows of its task's journal. Replay reads from here.

use std::collections::{BTreeMap, HashSet};

use outlast_core::{Entry, EntryKind, Finished, InputKey, Outcome, Payload, StepKey, Timestamp};
use sha2::{Digest, Sha256};

/// The part of a journal that replay needs, as far as it was read.
#[derive(Default)]
pub(crate) struct Seen {
    /// The last entry that was read.
    pub(crate) seq: u64,
    /// What the caller asked for, if it asked for the end.
    pub(crate) cancel: bool,
    /// What each key names.
    kinds: BTreeMap<StepKey, EntryKind>,
    answers: BTreeMap<StepKey, Payload>,
    withdrawn: HashSet<StepKey>,
    steps: BTreeMap<StepKey, Outcome>,
    /// Steps whose outcome was handed out: reading them again must not bring it back into memory.
    taken: HashSet<StepKey>,
    timers: BTreeMap<StepKey, Timer>,
}

/// A timer of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timer {
    /// When it is due, on the store's clock.
    pub(crate) due: Timestamp,
    /// Whether the work went on after it.
    pub(crate) fired: bool,
}

impl Seen {
    /// Takes in the next entry; one that was read before changes nothing.
    pub(crate) fn take_in(&mut self, entry: Entry) {
        if entry.seq <= self.seq {
            return;
        }
        self.seq = entry.seq;
        if let Some(key) = entry.key.clone().filter(|_| entry.kind.opens_key()) {
            self.kinds.insert(key, entry.kind);
        }
        match (entry.kind, entry.key, entry.body) {
            (EntryKind::Answered, Some(key), Some(answer)) => drop(self.answers.insert(key, answer)),
            (EntryKind::Withdrawn, Some(key), _) => drop(self.withdrawn.insert(key)),
            (EntryKind::Step, Some(key), Some(body)) if !self.taken.contains(&key) => {
                if let Ok(finished) = body.decode::<Finished>() {
                    self.steps.insert(key, finished.outcome);
                }
            }
            (EntryKind::TimerSet, Some(key), Some(body)) => {
                if let Ok(due) = body.decode() {
                    self.timers.insert(key, Timer { due, fired: false });
                }
            }
            (EntryKind::TimerFired, Some(key), _) => {
                if let Some(timer) = self.timers.get_mut(&key) {
                    timer.fired = true;
                }
            }
            (EntryKind::CancelRequested, ..) => self.cancel = true,
            _ => {}
        }
    }

    /// What the key names in this task, if anything.
    pub(crate) fn kind(&self, key: &StepKey) -> Option<EntryKind> {
        self.kinds.get(key).copied()
    }

    /// How the step of this key ended, if it did.
    pub(crate) fn step(&self, key: &StepKey) -> Option<&Outcome> {
        self.steps.get(key)
    }

    /// The same, for a step that is asked for but once in an attempt: its outcome need not be kept any longer.
    pub(crate) fn take_step(&mut self, key: &StepKey) -> Option<Outcome> {
        self.taken.insert(key.clone());
        self.steps.remove(key)
    }

    /// A step that this attempt finished, for whoever asks again before it is read back.
    pub(crate) fn put_step(&mut self, key: StepKey, outcome: Outcome) {
        self.kinds.insert(key.clone(), EntryKind::Step);
        self.steps.insert(key, outcome);
    }

    /// How many questions were answered.
    pub(crate) fn answers(&self) -> usize {
        self.answers.len()
    }

    pub(crate) fn answer(&self, key: &InputKey) -> Option<&Payload> {
        self.answers.get(&key.into())
    }

    pub(crate) fn was_asked(&self, key: &InputKey) -> bool {
        self.kind(&key.into()) == Some(EntryKind::Asked)
    }

    pub(crate) fn timer(&self, key: &StepKey) -> Option<Timer> {
        self.timers.get(key).copied()
    }

    /// Timers that are due at `now` and that nothing went on after.
    pub(crate) fn due_timers(&self, now: Timestamp) -> impl Iterator<Item = &StepKey> {
        self.timers.iter().filter(move |(_, timer)| !timer.fired && timer.due <= now).map(|(key, _)| key)
    }

    /// Questions that still want an answer.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = InputKey> {
        let asked = self.kinds.iter().filter(|(_, kind)| **kind == EntryKind::Asked).map(|(key, _)| key);
        asked
            .filter(|key| !self.answers.contains_key(*key) && !self.withdrawn.contains(*key))
            .filter_map(|key| InputKey::new(key.as_str()).ok())
    }

    /// The key that a question is asked under by now: a later attempt may need what an earlier one withdrew, and a key
    /// is never used again (S18). Tools cannot use these further keys, because theirs do not begin so.
    pub(crate) fn current_key(&self, own: &InputKey) -> InputKey {
        std::iter::once(own.clone())
            .chain((2..).map(|n| further_key(n, own)))
            .find(|key| !self.withdrawn.contains(&key.into()))
            .unwrap_or_else(|| own.clone())
    }
}

/// The key under which a question is asked for the `n`th time. A digest stands for a key that leaves no room.
fn further_key(n: u32, own: &InputKey) -> InputKey {
    InputKey::new(format!("outlast:{n}:{own}")).unwrap_or_else(|_| {
        let digest: String = Sha256::digest(own.as_str()).iter().map(|byte| format!("{byte:02x}")).collect();
        InputKey::new(format!("outlast:{n}:{digest}")).expect("a short text is a key")
    })
}
