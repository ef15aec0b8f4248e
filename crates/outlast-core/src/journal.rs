//! The journal of a task: what happened to it, in order, never rewritten. Replay reads it.

use std::time::Duration;

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
    /// The work was unloaded while it waits.
    Parked,
    /// The worker gave the task back, to be taken up again.
    Released,
    /// A question was asked; the body is the wire request.
    Asked,
    /// Its answer came; the body is the answer.
    Answered,
    /// The question was taken back.
    Withdrawn,
    /// A step finished; the body is [`Finished`].
    Step,
    /// A timer was set; the body is the instant that it is due, in milliseconds.
    TimerSet,
    /// The work saw that the timer was due.
    TimerFired,
    /// The caller asked for the end of the work.
    CancelRequested,
}

impl EntryKind {
    /// Its name, as operators read it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::LeaseLost => "lease_lost",
            Self::Parked => "parked",
            Self::Released => "released",
            Self::Asked => "asked",
            Self::Answered => "answered",
            Self::Withdrawn => "withdrawn",
            Self::Step => "step",
            Self::TimerSet => "timer_set",
            Self::TimerFired => "timer_fired",
            Self::CancelRequested => "cancel_requested",
        }
    }

    /// Whether this entry is the first of its key, and so says what the key names.
    #[must_use]
    pub fn opens_key(self) -> bool {
        matches!(self, Self::Asked | Self::Step | Self::TimerSet)
    }

    /// Whether the work itself made this entry. Only these count towards [`Limits::entries`](crate::Limits::entries):
    /// what was done to a task, however often, does not use up the room of its work.
    #[must_use]
    pub fn is_of_work(self) -> bool {
        match self {
            Self::Asked | Self::Withdrawn | Self::Step | Self::TimerSet | Self::TimerFired => true,
            Self::Claimed
            | Self::LeaseLost
            | Self::Parked
            | Self::Released
            | Self::Answered
            | Self::CancelRequested => false,
        }
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

    /// How a step finished, if this is the entry of one.
    #[must_use]
    pub fn finished(&self) -> Option<Finished> {
        self.body.as_ref().filter(|_| self.kind == EntryKind::Step)?.decode().ok()
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

/// What the journal keeps of a step that finished: the body of an [`EntryKind::Step`].
///
/// ```
/// use outlast_core::{Finished, Outcome, Payload};
/// let finished = Finished { outcome: Outcome::Value(Payload::null()), took: std::time::Duration::from_millis(30), tries: 2 };
/// let body = Payload::encode(&finished)?;
/// assert_eq!(body.as_str(), r#"{"value":null,"took_ms":30,"tries":2}"#);
/// assert_eq!(body.decode::<Finished>()?, finished);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Body", try_from = "Body")]
pub struct Finished {
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took, in whole milliseconds.
    pub took: Duration,
    /// How often it was tried.
    pub tries: u32,
}

/// [`Finished`] as it is written. Journals of before these two numbers hold the outcome alone.
#[derive(Serialize, Deserialize)]
struct Body {
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::payload::present")]
    value: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::payload::present")]
    error: Option<Payload>,
    #[serde(default)]
    took_ms: u64,
    #[serde(default = "once")]
    tries: u32,
}

fn once() -> u32 {
    1
}

impl From<Finished> for Body {
    fn from(Finished { outcome, took, tries }: Finished) -> Self {
        let (value, error) = match outcome {
            Outcome::Value(value) => (Some(value), None),
            Outcome::Error(error) => (None, Some(error)),
        };
        Self { value, error, took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX), tries }
    }
}

impl TryFrom<Body> for Finished {
    type Error = &'static str;

    fn try_from(Body { value, error, took_ms, tries }: Body) -> Result<Self, Self::Error> {
        let outcome = match (value, error) {
            (Some(value), None) => Outcome::Value(value),
            (None, Some(error)) => Outcome::Error(error),
            _ => return Err("a step has either a value or an error"),
        };
        Ok(Self { outcome, took: Duration::from_millis(took_ms), tries })
    }
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
