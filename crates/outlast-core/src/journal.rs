//! The journal of a task: what happened to it, in order, never rewritten. Replay reads it.

use serde::{Deserialize, Serialize};

use crate::{Payload, StepKey, Timestamp};

/// What an entry records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EntryKind {
    /// A worker took the task up; the body is the worker's name.
    Claimed,
    /// A worker's lease ended without its word; the body is the worker's name.
    LeaseLost,
    /// A question was asked; the body is the wire request.
    Asked,
    /// Its answer came; the body is the answer.
    Answered,
    /// The question was taken back.
    Withdrawn,
    /// A step finished; the body is its [`Outcome`].
    Step,
    /// A timer was set; the body is the instant that it is due, in milliseconds.
    TimerSet,
    /// The work saw that the timer was due.
    TimerFired,
    /// The caller asked for the end of the work.
    CancelRequested,
}

impl EntryKind {
    /// Whether this entry is the first of its key, and so says what the key names.
    #[must_use]
    pub fn opens_key(self) -> bool {
        matches!(self, Self::Asked | Self::Step | Self::TimerSet)
    }
}

/// One entry of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place: 1 for the first entry of a task, then up by one.
    pub seq: u64,
    /// When it was made.
    pub at: Timestamp,
    /// What it records.
    pub kind: EntryKind,
    /// The question, step or timer that it is about.
    pub key: Option<StepKey>,
    /// What [`EntryKind`] says.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::payload::present")]
    pub body: Option<Payload>,
}

impl Entry {
    /// What the entry adds to the size of its journal, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        let key = self.key.as_ref().map_or(0, |key| key.as_str().len());
        let body = self.body.as_ref().map_or(0, Payload::len);
        (key + body) as u64
    }
}

/// How a step ended: with its value, or with the error that it declared as final.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The step's value.
    Value(Payload),
    /// The step's own final error.
    Error(Payload),
}

/// What the journal already says about a key: the entry that opened it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The kind of that entry, one that [opens a key](EntryKind::opens_key).
    pub kind: EntryKind,
    /// Its body.
    pub body: Option<Payload>,
}

/// A part of a journal, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JournalPage {
    /// The entries after the one asked for, oldest first.
    pub entries: Vec<Entry>,
    /// Whether more follow the last of them.
    pub more: bool,
}
