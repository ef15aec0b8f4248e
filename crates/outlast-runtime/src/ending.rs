//! How an attempt ends.

use outlast_core::Event;

/// How an attempt ended, for those who measure it and for what is to be done after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Completed,
    Failed,
    Cancelled,
    /// It only waits, or goes on in a further round.
    Parked,
    /// It was given back.
    Released,
    /// Its lease, or its last word.
    Lost,
    /// It was over before it was a task.
    Inline,
    /// The store would not have it as a task.
    Refused,
    /// Whoever waited for it left before it was a task.
    CallerLeft,
}

impl Ending {
    /// That of an attempt that ends by writing these events.
    pub(crate) fn of(events: &[Event]) -> Self {
        let end = events.iter().find_map(|event| match event {
            Event::Complete(_) => Some(Self::Completed),
            Event::Fail(_) | Event::PassDeadline => Some(Self::Failed),
            Event::ConfirmCancel => Some(Self::Cancelled),
            Event::Park { .. } => Some(Self::Parked),
            _ => None,
        });
        end.unwrap_or(Self::Released)
    }

    /// Whether the task is there to be taken up again.
    pub(crate) fn leaves_work(self) -> bool {
        matches!(self, Self::Parked | Self::Released | Self::Lost)
    }

    /// As metrics and spans have it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Parked => "parked",
            Self::Released => "released",
            Self::Lost => "lost",
            Self::Inline => "inline",
            Self::Refused => "refused",
            Self::CallerLeft => "caller_left",
        }
    }
}
