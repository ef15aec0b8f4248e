//! What is decided about a task once, when it is created.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Asks, Entry, Owner, Payload, TakenUp, TaskId, TraceParent};

/// What becomes of work whose process died while it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// It runs again from its start, and finished steps return what they returned.
    Rerun,
    /// It ends `failed`, saying that its outcome is unknown: running it twice might do harm.
    Fail,
}

/// The limits of one task. All are finite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of one answer, step value or question. 1 MiB by default.
    pub value_bytes: u64,
    /// Bytes of the final result or error. 16 MiB by default.
    pub result_bytes: u64,
    /// Bytes of the status message. 4 KiB by default.
    pub message_bytes: u64,
    /// Questions that are outstanding at one time. 64 by default.
    pub questions: u32,
    /// Entries of the journal that the work makes. 10,000 by default.
    pub entries: u64,
    /// Bytes of the journal. 64 MiB by default.
    pub journal_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            value_bytes: 1 << 20,
            result_bytes: 16 << 20,
            message_bytes: 4 << 10,
            questions: 64,
            entries: 10_000,
            journal_bytes: 64 << 20,
        }
    }
}

/// The terms of a task: resolved once at creation and never changed, so that a deploy in the middle of a task does
/// not change the rules that it runs under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The tool that does the work.
    pub tool: String,
    /// The version of the tool, empty when it has none; only a worker that serves it may claim the task.
    pub version: String,
    /// What becomes of the work when its process dies.
    pub recovery: Recovery,
    /// How long the task stays readable, from its creation and once more from its end; `None` is for ever (S11, S24).
    #[serde(with = "millis::option")]
    pub ttl: Option<Duration>,
    /// The least time that the ended task stays readable, whatever `ttl` says.
    #[serde(with = "millis")]
    pub min_retention: Duration,
    /// How long the work may take, from its creation; after that it is failed. Only an author sets one.
    #[serde(with = "millis::option")]
    pub deadline: Option<Duration>,
    /// A fixed poll interval; `None` adapts it to the task's age (S23).
    #[serde(with = "millis::option")]
    pub poll: Option<Duration>,
    /// How many attempts in a row may end by a lost lease before the task is failed. Only an attempt that ran alone
    /// fails it ([`Task::is_suspect`](crate::Task::is_suspect)).
    pub max_attempts: u32,
    /// How long a cancelled task that nobody runs waits for a worker before the sweeper ends it.
    #[serde(with = "millis")]
    pub cancel_grace: Duration,
    /// The kinds of question that the client declared (S20a).
    pub asks: Asks,
    /// Its limits.
    pub limits: Limits,
    /// Where it belongs in the traces of its caller, so that every attempt goes on from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceParent>,
}

impl Spec {
    /// The longest time that may be configured: a thousand years, well inside what a [`crate::Timestamp`] holds.
    pub(crate) const MAX_DURATION: Duration = Duration::from_secs(1_000 * 366 * 86_400);

    /// The terms of a task of `tool` where its author said nothing.
    #[must_use]
    pub fn new(tool: impl Into<String>) -> Self {
        Self {
            tool: tool.into(),
            version: String::new(),
            recovery: Recovery::Fail,
            ttl: Some(Duration::from_secs(24 * 3_600)),
            min_retention: Duration::from_secs(60),
            deadline: None,
            poll: None,
            max_attempts: 5,
            cancel_grace: Duration::from_secs(30),
            asks: Asks::none(),
            limits: Limits::default(),
            trace: None,
        }
    }

    /// Checks what a person configured.
    ///
    /// # Errors
    /// [`InvalidSpec`] names the first setting that cannot be kept.
    pub fn check(&self) -> Result<(), InvalidSpec> {
        let zero = |setting: Option<Duration>| setting.is_some_and(|value| value < Duration::from_millis(1));
        let far = |setting: Option<Duration>| setting.is_some_and(|value| value > Self::MAX_DURATION);
        if self.tool.is_empty() {
            Err(InvalidSpec::Tool)
        } else if zero(self.ttl) || far(self.ttl) {
            Err(InvalidSpec::Duration { setting: "ttl" })
        } else if zero(self.deadline) || far(self.deadline) {
            Err(InvalidSpec::Duration { setting: "deadline" })
        } else if zero(self.poll) || far(self.poll) {
            Err(InvalidSpec::Duration { setting: "poll interval" })
        } else if far(Some(self.min_retention)) {
            Err(InvalidSpec::Duration { setting: "minimum retention" })
        } else if far(Some(self.cancel_grace)) {
            Err(InvalidSpec::Duration { setting: "cancel grace" })
        } else if self.max_attempts == 0 {
            Err(InvalidSpec::Attempts)
        } else {
            Ok(())
        }
    }
}

/// A setting that cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSpec {
    /// The tool has no name.
    #[error("a tool needs a name")]
    Tool,
    /// A duration is under a millisecond or over a thousand years.
    #[error("the {setting} must be from one millisecond to a thousand years")]
    Duration {
        /// Which one.
        setting: &'static str,
    },
    /// No attempt is allowed at all.
    #[error("the number of attempts must be at least one")]
    Attempts,
}

/// The request that a task carries out, kept as it came so that each attempt sees the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The parameters of the request, its `_meta` included.
    pub params: Payload,
    /// What the server captured of the request's context; never a credential.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::payload::present")]
    pub context: Option<Payload>,
}

impl Call {
    /// A call without a captured context.
    #[must_use]
    pub fn new(params: Payload) -> Self {
        Self { params, context: None }
    }
}

/// A key by which a caller may safely repeat a creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyKey {
    /// The key, unique among those of its owner.
    pub key: Arc<str>,
    /// A digest of the request that it was first used for, without `_meta`.
    pub request: [u8; 32],
}

impl IdempotencyKey {
    /// How long a key is remembered after its task is gone, at the least.
    pub const MIN_TOMBSTONE: Duration = Duration::from_secs(24 * 3_600);
}

/// A task to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// Its id, of fresh random bits (S17).
    pub id: TaskId,
    /// Who it belongs to.
    pub owner: Owner,
    /// Its terms.
    pub spec: Arc<Spec>,
    /// What it carries out.
    pub call: Call,
    /// The caller's key, when it sent one.
    pub idempotency: Option<IdempotencyKey>,
    /// How many unfinished tasks the owner may have, this one included.
    pub max_open: u32,
    /// The failed task that it goes on from, if it is to start one again.
    pub takes_up: Option<TakenUp>,
}

impl NewTask {
    /// A task without a key and with the usual quota.
    #[must_use]
    pub fn new(id: TaskId, owner: Owner, spec: impl Into<Arc<Spec>>, call: Call) -> Self {
        Self { id, owner, spec: spec.into(), call, idempotency: None, max_open: 1_000, takes_up: None }
    }

    /// How large its call is, and what it takes over, in bytes: what counts when tasks are written together.
    #[must_use]
    pub fn size(&self) -> usize {
        let journal: u64 = self.takes_up.iter().flat_map(|taken| &taken.journal).map(Entry::size).sum();
        self.call.params.len()
            + self.call.context.as_ref().map_or(0, Payload::len)
            + usize::try_from(journal).unwrap_or(usize::MAX)
    }
}

/// Durations as whole milliseconds, the unit of the protocol.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn count(duration: Duration) -> u64 {
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(count(*duration))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Ok(Duration::from_millis(u64::deserialize(deserializer)?))
    }

    pub(super) mod option {
        use super::{Deserialize, Deserializer, Duration, Serializer, count};

        pub(in super::super) fn serialize<S: Serializer>(
            duration: &Option<Duration>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            match duration {
                Some(duration) => serializer.serialize_some(&count(*duration)),
                None => serializer.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
        }
    }
}
