//! How a call can end without its result.

use std::{fmt, time::Duration};

use rmcp::model::ErrorData;

use crate::handle::TaskHandle;

/// Why a call, or a wait for its task, ended without a result. It keeps the handle of the task, if there is one, so that the
/// caller can wait on, cancel, or save it.
#[derive(Debug)]
pub struct CallError {
    kind: CallErrorKind,
    handle: Option<Box<TaskHandle>>,
    answer: Option<Box<ErrorData>>,
}

/// What kind of end a [`CallError`] is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CallErrorKind {
    /// The server answered the call, or ended the task, with this JSON-RPC error.
    Failed(ErrorData),
    /// The task was cancelled. The text is what the server says of it.
    Cancelled(Option<String>),
    /// The caller's deadline passed. The task goes on, if there is a handle; without one nothing was called, or calling again
    /// does no harm.
    Deadline,
    /// The task's time to live passed without an end in sight (S24).
    Expired,
    /// The server does not know the task, or not to this caller (S25).
    Gone,
    /// The server has given the same id to another task since (it restarted): the handle is of no more use.
    AnotherTask,
    /// The session that the task belongs to has ended, and the task with it.
    SessionEnded,
    /// The server does not offer what this takes, or not to this client. The text says which.
    Unsupported(String),
    /// The server's answer breaks the protocol. The text names the field.
    InvalidResponse(String),
    /// The result does not fit the output schema of its tool. The text says where.
    OutputSchema(String),
    /// A question could not be answered: the handler refused it or failed. The answers that were given to others are kept.
    Unanswered {
        /// The key of the question.
        key: String,
        /// What the handler said.
        error: ErrorData,
    },
    /// The task asked more rounds of questions than the client follows.
    TooManyQuestions,
    /// The connection was lost, or the deadline passed, after the call was sent and before an answer came, and repeating it is
    /// not known to be safe: the tool may have run or not.
    OutcomeUnknown(String),
    /// The server asks for (another) authorization. The text is its challenge.
    Unauthorized(String),
    /// The server could not be reached, or failed every request for too long. The text says how.
    Connection(String),
    /// The server answers requests about the task with this error, which says nothing of the task: it goes on.
    Refused(ErrorData),
    /// The server refuses the call for now. The delay is what it asks for.
    Busy(Option<Duration>),
    /// The handle could not be written down, or read. The text says what of it.
    Store(String),
    /// The handle belongs to another server; it is of no use here.
    OtherServer,
}

impl CallError {
    pub(crate) fn new(kind: CallErrorKind) -> Self {
        Self { kind, handle: None, answer: None }
    }

    pub(crate) fn with_handle(mut self, handle: TaskHandle) -> Self {
        self.handle = Some(Box::new(handle));
        self
    }

    pub(crate) fn with_answer(mut self, answer: ErrorData) -> Self {
        self.answer = Some(Box::new(answer));
        self
    }

    /// The JSON-RPC error by which the server refused the call, where it is more than [`kind`](Self::kind) tells: what a
    /// tool needs that this client does not declare, for example.
    #[must_use]
    pub fn answer(&self) -> Option<&ErrorData> {
        match &self.kind {
            CallErrorKind::Failed(error) => Some(error),
            _ => self.answer.as_deref(),
        }
    }

    /// What kind of end this is.
    #[must_use]
    pub fn kind(&self) -> &CallErrorKind {
        &self.kind
    }

    /// The task, where the call became one.
    #[must_use]
    pub fn handle(&self) -> Option<&TaskHandle> {
        self.handle.as_deref()
    }

    /// The task, taken out of the error.
    #[must_use]
    pub fn into_handle(self) -> Option<TaskHandle> {
        self.handle.map(|handle| *handle)
    }

    /// Whether the same may succeed later: waiting again with the handle where there is one, else calling again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match &self.kind {
            CallErrorKind::Deadline
            | CallErrorKind::Unanswered { .. }
            | CallErrorKind::Unauthorized(_)
            | CallErrorKind::Connection(_)
            | CallErrorKind::Refused(_)
            | CallErrorKind::Busy(_)
            | CallErrorKind::Store(_) => true,
            // A call that was turned away with its session can be made in the next one; a task cannot be found there.
            CallErrorKind::SessionEnded => self.handle.is_none(),
            CallErrorKind::Failed(_)
            | CallErrorKind::Cancelled(_)
            | CallErrorKind::Expired
            | CallErrorKind::Gone
            | CallErrorKind::AnotherTask
            | CallErrorKind::Unsupported(_)
            | CallErrorKind::InvalidResponse(_)
            | CallErrorKind::OutputSchema(_)
            | CallErrorKind::TooManyQuestions
            | CallErrorKind::OutcomeUnknown(_)
            | CallErrorKind::OtherServer => false,
        }
    }
}

impl From<CallErrorKind> for CallError {
    fn from(kind: CallErrorKind) -> Self {
        Self::new(kind)
    }
}

impl std::error::Error for CallError {}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        if self.handle.is_some() && self.is_retryable() {
            f.write_str("; the task goes on, and its handle can be waited for again")?;
        }
        Ok(())
    }
}

impl fmt::Display for CallErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "the call failed with {}: {}", error.code.0, error.message),
            Self::Cancelled(Some(message)) => write!(f, "the task was cancelled: {message}"),
            Self::Cancelled(None) => f.write_str("the task was cancelled"),
            Self::Deadline => f.write_str("the deadline passed before the result came"),
            Self::Expired => {
                f.write_str("the time to live of the task passed before it ended; its outcome is unknown")
            }
            Self::Gone => f.write_str("the server does not know the task; its outcome is unknown"),
            Self::AnotherTask => f.write_str(
                "the server has given the id to another task; the outcome of the one it named is unknown",
            ),
            Self::SessionEnded => {
                f.write_str("the session of the task has ended, and the task with it; its outcome is unknown")
            }
            Self::Unsupported(why) => write!(f, "this is not possible here: {why}"),
            Self::InvalidResponse(why) => write!(f, "the server sent an invalid response: {why}"),
            Self::OutputSchema(why) => {
                write!(f, "the result does not fit the output schema of the tool: {why}")
            }
            Self::Unanswered { key, error } => {
                write!(f, "the question \"{}\" was not answered: {}", key.escape_debug(), error.message)
            }
            Self::TooManyQuestions => f.write_str("the task asks more questions than this client follows"),
            Self::OutcomeUnknown(why) => write!(
                f,
                "the call was sent and not answered ({why}); the tool may have run, and calling again may run it twice"
            ),
            Self::Unauthorized(_) => f.write_str("the server asks for authorization"),
            Self::Connection(why) => write!(f, "the server cannot be reached: {why}"),
            Self::Refused(error) => {
                write!(
                    f,
                    "the server refused a request about the task with {}: {}",
                    error.code.0, error.message
                )
            }
            Self::Busy(Some(delay)) => {
                write!(f, "the server takes no more calls now; try again in {delay:?}")
            }
            Self::Busy(None) => f.write_str("the server takes no more calls now; try again later"),
            Self::Store(why) => write!(f, "the handle of the task could not be kept: {why}"),
            Self::OtherServer => f.write_str("the handle belongs to another server"),
        }
    }
}
