//! What can happen to a task, and on whose word.

use std::time::Duration;

use crate::{InputKey, Outcome, Owner, Payload, Question, StepKey, TaskError, Timestamp, Token, WorkerId};

/// On whose authority events are applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    /// The caller who owns the task; to anyone else the task does not exist (S25).
    Owner(Owner),
    /// Someone at the machine, who may see and answer every task.
    Operator,
    /// The worker that holds the lease of this token.
    Lease(Token),
    /// The store itself: claims, renewals, recovery and sweeps.
    Store,
}

/// When a timer is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// This long after it is set, on the store's clock.
    After(Duration),
    /// At this instant.
    At(Timestamp),
}

/// Something that happens to a task. [`Task::apply`](crate::Task::apply) says what it does.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    // --- from the caller
    /// An answer to a question (S20).
    Answer {
        /// The question.
        key: InputKey,
        /// The client's result for it.
        answer: Payload,
    },
    /// The caller asks for the end of the work (S22).
    Cancel,

    // --- from the worker that holds the lease
    /// The work asks; several at once are several events of one call.
    Ask {
        /// The question's key, never used before in this task (S18).
        key: InputKey,
        /// What is asked.
        question: Question,
    },
    /// The work no longer wants an answer.
    Withdraw {
        /// The question.
        key: InputKey,
    },
    /// A step finished.
    FinishStep {
        /// The step.
        key: StepKey,
        /// How it ended.
        outcome: Outcome,
        /// How long it took, its tries and the pauses between them included.
        took: Duration,
        /// How often it was tried.
        tries: u32,
    },
    /// The work waits for a time.
    SetTimer {
        /// The timer.
        key: StepKey,
        /// When it is due.
        wake: Wake,
    },
    /// The work went on after its timer.
    FireTimer {
        /// The timer.
        key: StepKey,
    },
    /// What the work says about itself; not journaled.
    SetMessage(Option<String>),
    /// Keep the task for at least this long from now.
    ExtendTtl(Duration),
    /// The worker runs nothing beside this until the work gets on, so that should it die before, it is known what killed
    /// it ([`Task::is_suspect`](crate::Task::is_suspect)).
    RunAlone,
    /// The worker runs others beside this again, so that its end says nothing of what killed it.
    RunBeside,
    /// The work ended with a result, tool errors included (S13).
    Complete(Payload),
    /// The work ended with a JSON-RPC error (S13).
    Fail(TaskError),
    /// The work ended because its caller asked for it.
    ConfirmCancel,
    /// The work waits, and nothing of it is kept in memory. An entry that it has not seen wakes it at once.
    Park {
        /// The last journal entry that the work had seen.
        seen_seq: u64,
        /// Come back after this long in any case ("come back later", S20b).
        wake: Option<Duration>,
    },
    /// The worker gives the task back without ending it.
    Release {
        /// Whether any of the tool's code ran under this lease.
        began: bool,
    },

    // --- from the store
    /// A worker takes the task up under the next token.
    Claim {
        /// The worker.
        worker: WorkerId,
        /// For how long, unless it renews.
        lease: Duration,
    },
    /// The worker is alive: its lease, and the task's TTL where that is half gone, are extended.
    Renew {
        /// For how long from now.
        lease: Duration,
    },
    /// The worker's lease ended without its word.
    LoseLease,
    /// The hard deadline that the tool's author set has passed.
    PassDeadline,
    /// Half of the TTL of unfinished work is gone: extend it, so that no client's backstop fires (S24).
    RefreshTtl,
    /// A cancelled task was taken up by nobody within its grace.
    AbandonCancelled,
}

impl Event {
    /// How large its payload is, in bytes: what counts when events are written together.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Answer { answer, .. } => answer.len(),
            Self::Ask { question, .. } => question.request().len(),
            Self::FinishStep { outcome: Outcome::Value(value) | Outcome::Error(value), .. } => value.len(),
            Self::Complete(result) => result.len(),
            Self::Fail(error) => error.message.len() + error.data.as_ref().map_or(0, Payload::len),
            _ => 0,
        }
    }

    /// Whether `by` may cause this event at all.
    #[must_use]
    pub fn allowed_to(&self, by: &By) -> bool {
        match self {
            Self::Answer { .. } | Self::Cancel => matches!(by, By::Owner(_) | By::Operator),
            Self::Ask { .. }
            | Self::Withdraw { .. }
            | Self::FinishStep { .. }
            | Self::SetTimer { .. }
            | Self::FireTimer { .. }
            | Self::SetMessage(_)
            | Self::ExtendTtl(_)
            | Self::RunAlone
            | Self::RunBeside
            | Self::Complete(_)
            | Self::Fail(_)
            | Self::ConfirmCancel
            | Self::Park { .. }
            | Self::Release { .. } => matches!(by, By::Lease(_)),
            // A worker judges the deadline of work that it holds; the store that of work that nobody holds.
            Self::PassDeadline => matches!(by, By::Lease(_) | By::Store),
            Self::Claim { .. }
            | Self::Renew { .. }
            | Self::LoseLease
            | Self::RefreshTtl
            | Self::AbandonCancelled => {
                matches!(by, By::Store)
            }
        }
    }

    /// The key that the event opens or is about, where that decides whether it was journaled before.
    #[must_use]
    pub fn key(&self) -> Option<StepKey> {
        match self {
            Self::Ask { key, .. } => Some(key.into()),
            Self::FinishStep { key, .. } | Self::SetTimer { key, .. } | Self::FireTimer { key } => {
                Some(key.clone())
            }
            _ => None,
        }
    }

    /// The event's name, for error messages and tables.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Answer { .. } => "answer",
            Self::Cancel => "cancel",
            Self::Ask { .. } => "ask",
            Self::Withdraw { .. } => "withdraw",
            Self::FinishStep { .. } => "finish step",
            Self::SetTimer { .. } => "set timer",
            Self::FireTimer { .. } => "fire timer",
            Self::SetMessage(_) => "set message",
            Self::ExtendTtl(_) => "extend ttl",
            Self::RunAlone => "run alone",
            Self::RunBeside => "run beside",
            Self::Complete(_) => "complete",
            Self::Fail(_) => "fail",
            Self::ConfirmCancel => "confirm cancel",
            Self::Park { .. } => "park",
            Self::Release { .. } => "release",
            Self::Claim { .. } => "claim",
            Self::Renew { .. } => "renew",
            Self::LoseLease => "lose lease",
            Self::PassDeadline => "pass deadline",
            Self::RefreshTtl => "refresh ttl",
            Self::AbandonCancelled => "abandon cancelled",
        }
    }
}
